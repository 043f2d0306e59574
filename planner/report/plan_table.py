"""The chosen plan: its stages, what one step takes, how good it is known to be, and what tells two plans apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType

from planner.cluster.spec import ClusterSpec
from planner.cost.values import CAUSES, Breakdown, Estimate, GroupEstimate, StageEstimate
from planner.dims import DIMENSIONS
from planner.dims.recompute import Recomputation, recompute_text
from planner.frozen import record
from planner.plan.file import Hedge, Summary
from planner.plan.values import Plan
from planner.report.goal import BEST, BETTER, cost_text, idle_text
from planner.report.layout import Paragraph, number, section, table, warnings_section, words
from planner.report.numbers import (
    TimeUnit,
    at_most,
    chance,
    count,
    duration,
    gib,
    percent,
    rate,
    significant,
    span,
    time_unit,
)
from planner.search.values import IdleCost, Scored, SearchResult

FEW = 8
"""Stages that are listed one by one."""


@record(frozen=True, slots=True)
class StageRun:
    """Neighbouring stages that share a row."""

    first: int
    """Index of the first stage."""
    stages: tuple[StageEstimate, ...]

    @property
    def indices(self) -> str:
        """``3``, or ``3-17``."""
        return span(self.first, self.first + len(self.stages))

    @property
    def layers(self) -> str:
        """``12-15``, or ``12-71: 4 each`` for several stages."""
        first, last = self.stages[0], self.stages[-1]
        layers = span(first.first_layer, last.end_layer)
        return layers if len(self.stages) == 1 else f"{layers}: {first.end_layer - first.first_layer} each"

    @property
    def groups(self) -> list[tuple[GroupEstimate, ...]]:
        """Each group of replicas, of all stages."""
        return list(zip(*(stage.groups for stage in self.stages), strict=True))


def stage_runs(stages: Sequence[StageEstimate], few: int = FEW) -> tuple[StageRun, ...]:
    """Stages in order; more than ``few`` are put together where they are alike."""
    numbered = list(enumerate(stages))
    if len(numbered) <= few:
        return tuple(StageRun(index, (stage,)) for index, stage in numbered)
    alike = (list(same) for _, same in groupby(numbered, key=lambda entry: _shape(entry[1])))
    return tuple(StageRun(same[0][0], tuple(stage for _, stage in same)) for same in alike)


def _shape(stage: StageEstimate) -> tuple[object, ...]:
    """What stages of one row have in common."""
    groups = ((each.pool, each.gpu, each.tp, each.count, each.share, each.steps) for each in stage.groups)
    return (stage.end_layer - stage.first_layer, stage.crosses, stage.copies_cross, stage.link, *groups)


def stage_table(estimate: Estimate, few: int = FEW, title: str = "layers") -> RenderableType:
    """Rows with the slowest time, the largest memory and the least free of the stages they stand for."""
    groups = groups_of(estimate)
    unit = time_unit(map(round_seconds, groups))
    columns = (
        number("stage"),
        words(title, least=6),
        words("devices", least=16),
        words("replicas", least=9),
        number("micro-\nbatch\nx accum."),
        number(unit.heading("fwd+bwd")),
        number("memory\n(GiB)"),
        number("free\n(GiB)"),
    )
    return table(columns, [row for run in stage_runs(estimate.stages, few) for row in _rows(run, unit)])


def _rows(run: StageRun, unit: TimeUnit) -> Iterator[list[str]]:
    """A row per group of replicas; the stage is named in the first."""
    for position, groups in enumerate(run.groups):
        where = [run.indices, run.layers] if position == 0 else ["", ""]
        yield [
            *where,
            *_group(groups[0], len(run.stages)),
            unit.show(max(map(round_seconds, groups))),
            gib(max(group.memory.used_bytes for group in groups)),
            gib(min(group.memory.headroom_bytes for group in groups)),
        ]


def groups_of(estimate: Estimate) -> list[GroupEstimate]:
    """The groups of replicas of all stages, in order."""
    return [group for stage in estimate.stages for group in stage.groups]


def group_text(group: GroupEstimate, stages: int = 1) -> str:
    """``8 A100 (a100)``; ``4 x 8 A100 (a100)`` of four stages."""
    many = f"{stages} x " if stages > 1 else ""
    return f"{many}{group.tp * group.count} {group.gpu} ({group.pool})"


def round_seconds(group: GroupEstimate) -> float:
    """Seconds of one micro-batch."""
    return group.forward_seconds + group.backward_seconds


def _group(group: GroupEstimate, stages: int) -> list[str]:
    replicas = f"{group.count} x tp {group.tp}" if group.tp > 1 else str(group.count)
    return [group_text(group, stages), replicas, micro_batches_text(group)]


def micro_batches_text(group: GroupEstimate) -> str:
    """``10 x 8``; ``9-10 x 10`` where the sequences of a replica do not divide evenly."""
    least = group.share // group.steps
    return f"{span(least, group.micro_batch + 1)} x {group.steps}"


Proof = SearchResult | Summary
"""What says how good the best possible plan is: a search, or the plan file that it wrote."""


def proof_text(proof: Proof) -> str:
    """How much faster the best possible plan could be, and what was looked at and what not."""
    claim = _claim(proof) if proof.hedge is None else _hedged(proof.hedge)
    # A search tells the faster plan of a tie on a line of its own.
    tie = f"; {proof.tie}" if isinstance(proof, Summary) and proof.tie else ""
    return f"{claim}{tie}{_effort(proof)}{_outside(proof)}"


def _hedged(hedge: Hedge) -> str:
    """What the choice of a robust plan is worth; the bound is about the fastest plan."""
    least = f"robust: at worst {percent(hedge.regret)} slower than the best of {count(hedge.plans, 'plan')}"
    over = f"at the ends of the error bars ({', '.join(hedge.speeds)})"
    of = f"within {at_most(hedge.fastest_gap)} of the bound on the step"
    if hedge.slower <= 0:
        return f"{least} {over}; it is the fastest plan too, {of}"
    return (
        f"{least} {over}, where the fastest plan is {percent(hedge.fastest_regret)} slower; by the cost model it is "
        f"{percent(hedge.slower)} slower than that plan, which is {of}"
    )


def _claim(proof: Proof) -> str:
    within = (
        "its distance from the optimum is unknown"
        if proof.gap >= 1
        else f"within {at_most(proof.gap)} of the bound"
    )
    if isinstance(proof, SearchResult) and proof.interrupted:
        return f"interrupted: best so far, {within}"
    objective = proof.objective or "time"
    if proof.status == "optimal" and proof.gap <= 0:
        return f"optimal: no plan of {_space(proof)} {BETTER[objective]} by the cost model"
    if proof.status == "optimal":
        best = "best" if objective == "time" else BEST[objective]
        return f"optimal: proven within {at_most(proof.gap)} of the {best} plan of {_space(proof)} by the cost model"
    if proof.tie is not None:
        return f"simpler than the fastest plan that was found: {within}"
    return f"best found before the search stopped: {within}"


def _space(proof: Proof) -> str:
    return "this space" if proof.subclusters is None else count(proof.subclusters, "sub-cluster")


def _effort(proof: Proof) -> str:
    """``(412 candidates, 37 solved, 1.8 s)``; empty for a plan file, which does not have it."""
    if not isinstance(proof, SearchResult):
        return ""
    return f" ({count(proof.candidates, 'candidate')}, {proof.solved} solved, {duration(proof.seconds)})"


def _outside(proof: Proof) -> str:
    return f"; not in this space: {'; '.join(proof.outside)}" if proof.outside else ""


def traits(plan: Plan) -> dict[str, str]:
    """Decision to text; stages are separated by ``|``, runs of equal ones written once with their number."""
    decisions = {"target": plan.target}
    for dimension in DIMENSIONS:
        decisions |= dimension.traits(plan)
    if plan.pp > 1 and not set("|(") & set(decisions["devices"]):
        decisions["devices"] += " a stage"
    return decisions


def in_short(plan: Plan) -> str:
    """``megatron, ZeRO 1, 2 stages, dp 8, tp 4, layers 7|5, micro-batch 4, on 32 a|32 b``, without what is 1 or no."""
    decisions = traits(plan)
    pipeline = plan.pp > 1
    parts = [
        plan.target,
        plan.zero_text,
        f"{plan.pp} stages" if pipeline else "",
        f"dp {decisions['replicas']}",
        f"tp {decisions['tp']}" if decisions["tp"] != "1" else "",
        f"layers {decisions['layers']}" if pipeline else "",
        f"micro-batch {decisions['micro-batch']}",
        *(dimension.words(plan) for dimension in DIMENSIONS),
        f"on {decisions['devices']}",
    ]
    return ", ".join(part for part in parts if part)


def differences(plan: Plan, other: Plan) -> list[str]:
    """What the first plan decides differently: ``layers 23|9 instead of 16``."""
    ours, theirs = traits(plan), traits(other)
    return [
        f"{name} {ours.get(name, 'none')} instead of {theirs.get(name, 'none')}"
        for name in {**ours, **theirs}
        if ours.get(name) != theirs.get(name)
    ]


def misfits(estimate: Estimate) -> list[str]:
    """Where the plan does not fit: stage, device or its host, missing GiB."""
    return [
        f"stage {index}: {lacks}"
        for index, stage in enumerate(estimate.stages)
        for group in stage.groups
        for lacks in _lacks(group)
    ]


def _lacks(group: GroupEstimate) -> Iterator[str]:
    memory, missing = group.memory, group.memory.host_bytes - group.memory.host_capacity_bytes
    if memory.headroom_bytes < 0:
        yield f"{group.gpu} in {group.pool} lacks {gib(-memory.headroom_bytes)} GiB"
    if missing > 0:
        yield f"hosts in {group.pool} lack {gib(missing)} GiB per {group.gpu}"


def caveats(estimate: Estimate) -> list[str]:
    """Where the plan does not fit, and what the estimate warns of."""
    return [*(f"does not fit: {line}" for line in misfits(estimate)), *estimate.warnings]


def warnings_of(estimate: Estimate) -> Group:
    """A section with the caveats; nothing when all is well."""
    return warnings_section(caveats(estimate))


def plan_section(
    scored: Scored,
    cluster: ClusterSpec,
    proof: Proof | None = None,
    few: int = FEW,
    idle: Sequence[IdleCost] = (),
    unit: str = "layers",
) -> Group:
    """Heading, stages (more than ``few`` are put together), what a step takes, idle devices, and the proof."""
    lines: list[RenderableType] = [stage_table(scored.estimate, few, unit)]
    if scored.plan.interleave > 1:
        chunks = f"each stage holds so many in {scored.plan.interleave} chunks along the pipeline"
        lines.append(Paragraph(f"{unit}: counted stage by stage; {chunks}"))
    lines += [Paragraph(line) for line in summary_lines(scored.estimate, cluster, idle)]
    if proof is not None:
        lines.append(Paragraph(proof_text(proof)))
    return section(f"Plan: {headline(scored.plan)}", *lines)


def headline(plan: Plan) -> str:
    """The plan in one line: target, depth, ZeRO stage, recomputation."""
    parts = [
        plan.target,
        count(plan.pp, "stage"),
        plan.zero_text,
        f"{recompute_text(plan)} recomputation",
        *(d.words(plan) for d in DIMENSIONS if not isinstance(d, Recomputation)),
    ]
    return ", ".join(part for part in parts if part)


def summary_lines(estimate: Estimate, cluster: ClusterSpec, idle: Sequence[IdleCost]) -> Iterator[str]:
    """Step time and throughput, where the time goes, and how much of the cluster is used."""
    step = f"step {duration(estimate.step_seconds, estimate.spread)}"
    useful = f"{significant(estimate.tflops_per_gpu)} TFLOP/s per device (MFU {percent(estimate.mfu)})"
    yield f"{step}, {rate(estimate.tokens_per_second)} tokens/s, {useful}"
    yield time_text(estimate.breakdown)
    if any(group.memory.spread for group in groups_of(estimate)):
        yield memory_text(estimate)
    total = cluster.devices
    used = f"all {total}" if estimate.devices == total else f"{estimate.devices} of {total}"
    told = {(entry.pool, entry.gpu) for entry in idle}
    yield "; idle: ".join(filter(None, (f"uses {used} devices", left_idle(estimate, cluster, told))))
    yield from map(idle_text, idle)
    yield from running_cost_lines(estimate)


def memory_text(estimate: Estimate) -> str:
    """``memory ±16 %: 3.1 % chance of running out, on RTX-3090 (mixed)``."""
    worst = max(groups_of(estimate), key=lambda group: group.memory.out_of_memory)
    risk = chance(worst.memory.out_of_memory)
    return (
        f"memory ±{percent(worst.memory.spread)}: {risk} chance of running out, on {worst.gpu} ({worst.pool})"
    )


def left_idle(estimate: Estimate, cluster: ClusterSpec, told: Container[tuple[str, str]]) -> str:
    """``4 T4 (t4), 2 V100 (v100)``; empty when all devices work, or those that do not are told of elsewhere."""
    used: Counter[tuple[str, str]] = Counter()
    for group in groups_of(estimate):
        used[group.pool, group.gpu] += group.tp * group.count
    return ", ".join(
        f"{left} {gpu} ({pool.name})"
        for pool in cluster.pools
        for gpu in dict.fromkeys(pool.devices)
        if (left := len(pool.hosts) * pool.devices.count(gpu) - used[pool.name, gpu])
        and (pool.name, gpu) not in told
    )


def time_text(breakdown: Breakdown) -> str:
    """Shares of the step by cause, largest first, those under half a percent left out."""
    step = breakdown.step_seconds
    shares = sorted(
        ((getattr(breakdown, name) / step, label.text) for name, label in CAUSES.items()), reverse=True
    )
    shown = [f"{label} {percent(share)}" for share, label in shares if share >= 0.005]
    return f"time: {', '.join(shown)}"


def running_cost_lines(estimate: Estimate) -> Iterator[str]:
    """Price and energy of the used devices, as far as known."""
    cost, joules = estimate.cost_per_million_tokens, estimate.joules_per_token
    if cost is not None and estimate.price_per_hour is not None and estimate.cost_per_step is not None:
        step = significant(estimate.cost_per_step)
        yield f"price {significant(estimate.price_per_hour)} per hour, {step} per step, {cost_text(cost)}"
    if joules is not None and estimate.watts is not None:
        yield f"power {significant(estimate.watts / 1000)} kW, {significant(joules)} J per token"
