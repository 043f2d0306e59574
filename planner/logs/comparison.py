"""A run next to its prediction: step time, parts of the step, memory by rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.cost.estimate import Estimator, Priced
from planner.cost.values import Estimate, Memory
from planner.field_metadata import json_fields
from planner.logs.reading import Observed
from planner.plan.placement import Rank
from planner.plan.values import Plan
from planner.runtimes.log import PARTS, Part, RankMemory


@json_fields("error")
@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A predicted and an observed number of one unit."""

    predicted: float
    """What the cost model says."""
    observed: float
    """What the log says."""

    @property
    def error(self) -> float:
        """Predicted over observed, minus 1, as in ``hetplan validate``; infinite when nothing was observed."""
        return self.predicted / self.observed - 1 if self.observed else float("inf")

    @property
    def excess(self) -> float:
        """Observed less predicted."""
        return self.observed - self.predicted

    def within(self, spread: float) -> bool:
        """True when the error is within this relative standard error."""
        return abs(self.error) <= spread


@json_fields(without=("tp",))
@dataclass(frozen=True, slots=True, kw_only=True)
class PartDeviation:
    """One part of the step, on one rank or on the slowest."""

    part: Part
    """forward, backward, gradient sync, optimizer, or sends and waiting."""
    rank: int | None
    """Rank whose clock it is; None for the slowest."""
    stage: int
    """Stage of the rank; of the slowest by the prediction where the log does not say whose clock it is."""
    gpu: str
    """Type of its device."""
    tp: int
    seconds: Deviation
    """Seconds of a step."""


@json_fields(
    names={
        "peak": "peak_bytes",
        "states": "states_bytes",
        "activations": "activations_bytes",
        "fixed": "fixed_bytes",
    }
)
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDeviation:
    """Peak of one rank, without the device's context: what the framework's allocator holds."""

    rank: int | None
    """Rank; None when the log does not say."""
    stage: int
    """Its stage."""
    gpu: str
    """Type of its device."""
    peak: Deviation
    """Bytes at most."""
    states: Deviation | None = None
    """Parameters, gradients and optimizer states; None where the log does not tell them from the rest."""
    activations: Deviation | None = None
    """Activations, logits and buffers; None as above."""
    fixed: Deviation | None = None
    """Context and libraries; None where the log does not say what the whole device uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that a log allows to compare."""

    step: Deviation
    tokens: Deviation
    """Tokens per second."""
    spread: float
    """Relative standard error that the estimate admits to."""
    parts: tuple[PartDeviation, ...]
    rest: Deviation | None
    """Seconds of the step outside all parts, on the rank that timed them; None without parts of one rank."""
    memory: tuple[MemoryDeviation, ...]
    ranks: int
    """Ranks of the plan."""

    @property
    def within(self) -> bool:
        """True when the step time is within the spread."""
        return self.step.within(self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """What a plan's price says of its ranks."""

    plan: Plan
    estimate: Estimate
    priced: Priced
    ranks: tuple[Rank, ...]

    def parts(self, rank: Rank) -> dict[Part, float]:
        """Seconds of the parts of a step on a rank; a faster replica waits for the slowest in its sync."""
        price = self.priced.stages[rank.stage]
        micro = price.micro_batches[rank.group]
        once = micro.forward_seconds + micro.backward_seconds
        work = price.work_seconds if rank.group == price.slowest else price.works[rank.group]
        times = work / once
        step = self.estimate.step_seconds
        waiting = step - price.work_seconds - price.tail_seconds
        return {
            "forward": times * micro.forward_seconds,
            "backward": times * micro.backward_seconds + price.alone_seconds,
            "gradient sync": price.sync_seconds + max(0.0, price.work_seconds - work),
            "optimizer": price.optimizer_seconds + price.copy_seconds,
            "sends and waiting": waiting if waiting > 1e-9 * step else 0.0,  # else rounding
        }

    def memory(self, rank: Rank) -> Memory:
        """Predicted bytes on a rank."""
        return self.estimate.stages[rank.stage].groups[rank.group].memory

    def slowest(self, part: Part) -> Rank:
        """The rank with most of a part."""
        return max(self.ranks, key=lambda rank: self.parts(rank)[part])

    @property
    def critical(self) -> int:
        """The stage that has most to do."""
        stages = self.priced.stages
        return max(
            range(len(stages)), key=lambda index: stages[index].work_seconds + stages[index].tail_seconds
        )

    def gpus(self, stage: int) -> str:
        """Kinds of device of a stage."""
        return ", ".join(dict.fromkeys(group.gpu for group in self.plan.stages[stage].replicas))


def predicted(plan: Plan, estimator: Estimator, ranks: tuple[Rank, ...]) -> PredictedRun:
    """The prediction of a plan."""
    return PredictedRun(
        plan=plan, estimate=estimator.estimate(plan), priced=estimator.price(plan), ranks=ranks
    )


def compared(seen: Observed, expected: PredictedRun) -> Comparison:
    """The run next to its prediction."""
    estimate = expected.estimate
    step = Deviation(predicted=estimate.step_seconds, observed=seen.step_seconds)
    tokens = estimate.tokens_per_second
    return Comparison(
        step=step,
        tokens=Deviation(predicted=tokens, observed=tokens * step.predicted / step.observed),
        spread=estimate.spread,
        parts=tuple(_parts(seen, expected)),
        rest=_rest(seen, expected),
        memory=tuple(_memory(entry, expected) for entry in _told_apart(seen.memory)),
        ranks=len(expected.ranks),
    )


def _parts(seen: Observed, estimate: PredictedRun) -> Iterator[PartDeviation]:
    """Of each stage the slowest rank that timed a part; of the whole job where ranks were not told apart."""
    for part in PARTS:
        slowest: dict[int, tuple[float, int | None, Rank]] = {}
        for (name, number), seconds in seen.parts.items():
            if name == part:
                rank = estimate.slowest(part) if number is None else estimate.ranks[number]
                key = -1 if number is None else rank.stage
                slowest[key] = max(
                    slowest.get(key, (-1.0, None, rank)), (seconds, number, rank), key=lambda entry: entry[0]
                )
        for seconds, number, rank in (slowest[key] for key in sorted(slowest)):
            expected = estimate.parts(rank)[part]
            if expected or seconds:
                yield PartDeviation(
                    part=part,
                    rank=number,
                    stage=rank.stage,
                    gpu=rank.gpu,
                    tp=estimate.plan.stages[rank.stage].replicas[rank.group].tp,
                    seconds=Deviation(predicted=expected, observed=seconds),
                )


def _rest(seen: Observed, estimate: PredictedRun) -> Deviation | None:
    """What the only rank with clocks did besides the parts that it timed."""
    numbers = {number for _, number in seen.parts}
    if len(numbers) != 1 or None in numbers:
        return None
    (number,) = numbers
    assert number is not None
    expected = estimate.parts(estimate.ranks[number])
    timed = {part for part, _ in seen.parts}
    left = sum(seconds for part, seconds in expected.items() if part not in timed)
    return Deviation(predicted=left, observed=max(0.0, seen.step_seconds - sum(seen.parts.values())))


def _told_apart(memory: tuple[RankMemory, ...]) -> tuple[RankMemory, ...]:
    """Peaks of ranks; those of nobody in particular only where there are no others."""
    known = tuple(entry for entry in memory if entry.rank is not None)
    return known or memory


def _memory(entry: RankMemory, estimate: PredictedRun) -> MemoryDeviation:
    fullest = max(estimate.ranks, key=lambda rank: estimate.memory(rank).used_bytes)
    rank = fullest if entry.rank is None else estimate.ranks[entry.rank]
    memory = estimate.memory(rank)
    states = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    tensors = memory.used_bytes - memory.runtime_bytes
    held, device = entry.held_bytes, entry.device_bytes
    return MemoryDeviation(
        rank=entry.rank,
        stage=rank.stage,
        gpu=rank.gpu,
        peak=Deviation(predicted=tensors, observed=entry.peak_bytes),
        states=None if held is None else Deviation(predicted=states, observed=held),
        activations=None
        if held is None
        else Deviation(predicted=tensors - states, observed=max(0.0, entry.peak_bytes - held)),
        fixed=None
        if device is None
        else Deviation(predicted=memory.runtime_bytes, observed=max(0.0, device - entry.peak_bytes)),
    )
