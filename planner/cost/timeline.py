"""Timeline of one step: lanes of spans, from the pipeline that the estimate of a plan was made with.

A pipeline has a lane for each stage, at the pace of its slowest replica. Without one each group of replicas has a
lane: its replicas work at their own pace and meet at the end. Exposed collectives inside a micro-batch have no moment
of their own in the cost model: a lane says which share of its work they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from planner.cost.estimate import Estimator, Priced, pipeline_ends, timeline_of
from planner.cost.pipeline_events import Timeline, longest_path
from planner.cost.schedules import sent_with
from planner.cost.stage_price import StagePrice
from planner.frozen import dataclass
from planner.plan.values import Plan
from planner.targets import target

SpanKind = Literal["forward", "backward", "weights", "send", "sync", "optimizer", "copies"]
"""What a stage is busy with; between its spans it waits."""


@dataclass(frozen=True, slots=True)
class Span:
    """What a lane does from one moment to another, in seconds since the begin of the step."""

    kind: SpanKind
    start: float
    end: float
    critical: bool
    """True on the longest path of the step."""
    micro_batch: int | None = None
    """None for what happens once a step."""
    chunk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One stage, or one group of replicas of a plan without a pipeline."""

    stage: int
    group: int | None
    """Index of the group in its stage; None for the slowest replica of the whole stage."""
    spans: tuple[Span, ...]
    """In order; they do not overlap."""
    collectives: float
    """Share of its forwards and backwards that are exposed collectives (tensor parallelism, ZeRO)."""

    def seconds(self, *kinds: SpanKind) -> float:
        """Seconds of all spans of these kinds."""
        return sum(span.end - span.start for span in self.spans if span.kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a plan."""

    seconds: float
    lanes: tuple[Lane, ...]

    def waiting(self, lane: Lane) -> float:
        """Seconds in which a lane waits for others, until the end of the step."""
        return max(0.0, self.seconds - sum(span.end - span.start for span in lane.spans))


def step_of(plan: Plan, estimator: Estimator) -> Step:
    """The step of a plan; raises PlanError for a plan that cannot run."""
    priced = estimator.price(plan)
    ends = pipeline_ends(plan, priced)
    tails = [end + price.tail_seconds for end, price in zip(ends, priced.stages, strict=True)]
    if plan.pp == 1:
        lanes = tuple(_groups(plan, priced, ends[0]))
    else:
        lanes = tuple(_stages(plan, priced, ends, tails.index(max(tails))))
    return Step(seconds=max(*tails, priced.fed.seconds), lanes=lanes)


def _groups(plan: Plan, priced: Priced, end: float) -> Iterator[Lane]:
    """Each group's micro-batches, of the sizes that its replicas cut their share into."""
    price = priced.stages[0]
    for index, (group, micro) in enumerate(zip(plan.stages[0].replicas, price.micro_batches, strict=True)):
        slowest = index == price.slowest
        work = price.work_seconds if slowest else price.works[index]
        spans, now = [], 0.0
        for number, size in enumerate(group.micro_batch_sizes):
            once = work * size / group.local_batch
            middle = now + once * micro.forward_seconds / micro.seconds
            spans.append(Span("forward", now, middle, slowest, number))
            spans.append(Span("backward", middle, now + once, slowest, number))
            now += once
        spans += _tail(price, end, critical=slowest, busy_until=now)
        inside = micro.tensor_parallel_seconds + micro.zero_seconds
        yield Lane(stage=0, group=index, spans=tuple(spans), collectives=inside / micro.seconds)


def _stages(plan: Plan, priced: Priced, ends: tuple[float, ...], last: int) -> Iterator[Lane]:
    timeline = timeline_of(plan, priced)
    own = timeline.stage_ends()
    # Where the first and the last stage wait for each other, the path goes on from the one that ends later.
    origin = last if own[last] >= ends[last] else own.index(max(own))
    critical = set(longest_path(timeline, origin))
    for stage, price in enumerate(priced.stages):
        spans = [*_work(plan, priced, timeline, stage, critical), *_tail(price, ends[stage], stage == last)]
        micro = price.micro_batches[price.slowest]
        inside = micro.tensor_parallel_seconds + micro.zero_seconds
        yield Lane(stage=stage, group=None, spans=tuple(spans), collectives=inside / micro.seconds)


def _work(
    plan: Plan, priced: Priced, timeline: Timeline, stage: int, critical: set[tuple[int, int]]
) -> Iterator[Span]:
    """Forwards and backwards of a stage, and the sends that keep it busy at their side."""
    in_turn, sends = target(plan.target).exchanges_in_turn, [sent.seconds for sent in priced.sends]
    times = zip(
        timeline.operations[stage], timeline.starts_seconds[stage], timeline.ends_seconds[stage], strict=True
    )
    for position, (work, start, end) in enumerate(times):
        sent = sent_with(
            stage,
            work.chunk,
            plan.pp,
            plan.interleave,
            in_turn=in_turn,
            forwards=priced.forwards,
            schedule=plan.schedule,
        )
        before = after = 0.0
        kind: SpanKind = "weights" if work.weight else "backward" if work.backward else "forward"
        if kind == "backward":
            after = sent.backward_to_before * sends[stage - 1] + sent.backward_to_next * sends[stage]
        elif kind == "forward":
            before = sent.forward_from_before * sends[stage - 1]
            after = sent.forward_to_next * sends[stage] + sent.forward_to_before * sends[stage - 1]
        parts: tuple[tuple[SpanKind, float, float], ...] = (
            ("send", start, start + before),
            (kind, start + before, end - after),
            ("send", end - after, end),
        )
        yield from _present(parts, (stage, position) in critical, work.micro_batch, work.chunk)


def _tail(price: StagePrice, start: float, critical: bool, busy_until: float = 0.0) -> Iterator[Span]:
    """What follows the last backward of a step; a group that works longer reduces less after it."""
    alone = start + price.alone_seconds
    reduced = alone + price.sync_seconds + price.exchange_seconds
    copied = reduced + price.copy_seconds
    parts: tuple[tuple[SpanKind, float, float], ...] = (
        # All-to-alls while the pipeline drains.
        ("backward", start, alone),
        ("sync", max(alone, busy_until), reduced),
        ("copies", reduced, copied),
        ("optimizer", copied, copied + price.optimizer_seconds),
    )
    return _present(parts, critical)


def _present(
    parts: Iterable[tuple[SpanKind, float, float]],
    critical: bool,
    micro_batch: int | None = None,
    chunk: int = 0,
) -> Iterator[Span]:
    return (Span(kind, start, end, critical, micro_batch, chunk) for kind, start, end in parts if end > start)
