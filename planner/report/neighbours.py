"""Plans that differ in one decision, priced: what each decision is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Kind
from planner.cost.estimate import Estimator
from planner.described import told
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import target_faults
from planner.plan.values import ON_DEVICE, Plan, ReplicaGroup, Stage
from planner.runtimes.capabilities import Target
from planner.runtimes.registry import target
from planner.search.space.choices import shard_sizes
from planner.search.values import Scored


@told(
    "scored.estimate.fits",
    "scored.estimate.step_seconds",
    "scored.estimate.tokens_per_second",
    without=("decision", "scored"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A plan with one decision changed."""

    decision: str
    """Which decision: ``ZeRO``, ``recomputation``, ``layers``, ``micro-batch``, ``sequence parallel``."""
    change: str
    """What differs, e.g. ``ZeRO 1 instead of 0``."""
    scored: Scored
    """The plan."""


def neighbours(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration
) -> tuple[Neighbour, ...]:
    """Every plan one decision away that the target can run, fastest of each change."""
    estimator = Estimator(cluster, model, calibration)
    found = []
    row = target(plan.target)
    for decision, change, changed in _changed(plan, row, estimator.topology.kinds):
        if target_faults(changed, model):
            continue
        try:
            scored = Scored(plan=changed, estimate=estimator.estimate(changed))
        except PlanError:
            continue
        found.append(Neighbour(decision=decision, change=change, scored=scored))
    return tuple(_best_of_each(found))


def _best_of_each(found: list[Neighbour]) -> list[Neighbour]:
    """The fastest of every decision that fits, or the fastest when none does."""
    best: dict[str, Neighbour] = {}
    for entry in found:
        known = best.get(entry.decision)
        if known is None or _rank(entry) < _rank(known):
            best[entry.decision] = entry
    return sorted(best.values(), key=_rank)


def _rank(entry: Neighbour) -> tuple[bool, float, str]:
    priced = entry.scored.estimate
    return (not priced.fits, priced.step_seconds, entry.change)


def _changed(plan: Plan, row: Target, kinds: Sequence[Kind]) -> Iterator[tuple[str, str, Plan]]:
    """(decision, change, plan) of all single changes."""
    yield from _zero(plan, row)
    yield from _sharding(plan, row, kinds)
    yield from _recompute(plan, row)
    yield from _layers(plan)
    yield from _micro_batch(plan, row)
    if plan.offload.anything:
        yield "offload", "everything on the devices", replace(plan, offload=ON_DEVICE)
    if row.sequence_parallel and any(group.tp > 1 for stage in plan.stages for group in stage.replicas):
        word = "without" if plan.sequence_parallel else "with"
        changed = replace(plan, sequence_parallel=not plan.sequence_parallel)
        yield "sequence parallel", f"{word} sequence parallelism", changed


def _zero(plan: Plan, row: Target) -> Iterator[tuple[str, str, Plan]]:
    allowed = row.zero_without_pipeline if plan.pp == 1 else row.zero_with_pipeline
    for zero in allowed:
        if zero != plan.zero:
            size = plan.shard_size if zero in row.hybrid_zero else None
            changed = replace(plan, zero=zero, shard_size=size)
            yield f"ZeRO {zero}", f"ZeRO {zero} instead of {plan.zero}", changed


def _sharding(plan: Plan, row: Target, kinds: Sequence[Kind]) -> Iterator[tuple[str, str, Plan]]:
    """One copy of what ZeRO shards, or one in each group of replicas that fills a node or a pool."""
    if plan.shard_size is not None:
        yield "sharding", "sharded over all replicas", replace(plan, shard_size=None)
    for size in shard_sizes(row, plan.zero, kinds):
        if size != plan.shard_size and all(stage.dp % size == 0 and size < stage.dp for stage in plan.stages):
            yield "sharding", f"sharded over groups of {size} replicas", replace(plan, shard_size=size)


def _recompute(plan: Plan, row: Target) -> Iterator[tuple[str, str, Plan]]:
    for kind in row.recomputes:
        if any(stage.recompute != kind for stage in plan.stages):
            stages = tuple(replace(stage, recompute=kind) for stage in plan.stages)
            change = "no recomputation" if kind == "none" else f"{kind} recomputation"
            yield f"recompute {kind}", change, replace(plan, stages=stages)


def _layers(plan: Plan) -> Iterator[tuple[str, str, Plan]]:
    """One layer moved over each border between stages."""
    if plan.interleave > 1:
        return
    for left in range(plan.pp - 1):
        for step, source, sink in ((-1, left, left + 1), (1, left + 1, left)):
            if plan.stages[source].layers > 1:
                change = f"one layer from stage {source} to {sink}"
                yield "layers", change, _moved(plan, left, step)


def _moved(plan: Plan, left: int, step: int) -> Plan:
    """The border after stage ``left`` moved by ``step`` layers."""
    border = plan.stages[left].end_layer + step
    stages = list(plan.stages)
    stages[left] = replace(stages[left], end_layer=border)
    stages[left + 1] = replace(stages[left + 1], first_layer=border)
    return replace(plan, stages=tuple(stages))


def _micro_batch(plan: Plan, row: Target) -> Iterator[tuple[str, str, Plan]]:
    """Micro-batches twice as large, and half as large."""
    rule = row.batch_without_pipeline if plan.pp == 1 else row.batch_with_pipeline
    for name, top, bottom in (("twice", 1, 2), ("half", 2, 1)):
        try:
            stages = tuple(_resized(stage, top, bottom, rule != "per-device") for stage in plan.stages)
            changed = replace(plan, stages=stages)
        except PlanError:
            continue
        yield f"micro-batch {name}", f"micro-batches {name} as large", changed


def _resized(stage: Stage, top: int, bottom: int, equal: bool) -> Stage:
    return replace(stage, replicas=tuple(_stepped(group, top, bottom, equal) for group in stage.replicas))


def _stepped(group: ReplicaGroup, top: int, bottom: int, equal: bool) -> ReplicaGroup:
    """The same share in ``top / bottom`` times as many steps; PlanError when it does not divide."""
    steps, rest = divmod(group.steps * top, bottom)
    if rest or (equal and group.share % steps):
        raise PlanError("the micro-batches do not divide")
    return replace(group, steps=steps)
