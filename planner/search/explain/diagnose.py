"""Why nothing fits, the nearest miss, and the smallest single change that would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.calibration.values import ASSUMED_STACK
from planner.cluster.spec import ClusterSpec
from planner.cost.compute import ELEMENT_BYTES
from planner.cost.estimate import Estimator
from planner.cost.memory import optimizer_bytes
from planner.dims.context import LEAST_TOKENS
from planner.model.spec import ModelSpec
from planner.plan.checks import model_faults, unwritten
from planner.runtimes.registry import TARGETS
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explain.sensitivity import OPTIONS, given, option_text, used, values, without
from planner.search.explorer import Explorer
from planner.search.heuristics.even import best_of, equal_batches, even_pipelines, missing_bytes
from planner.search.space.choices import offers, targets_of, usable_device_types
from planner.search.values import Diagnosis, Limits, Scored, Silent
from planner.units import format_count, gib_from_bytes

MAX_FACTOR = 64
"""Largest multiple of a pool, or part of a model, that is tried as a change."""


def diagnose(estimator: Estimator, limits: Limits, deadline: Deadline = NO_LIMIT) -> Diagnosis:
    """The causes, the nearest miss and the hints for a problem without a plan, as far as the deadline lets."""
    untrained = tuple(_untrained(estimator.model, limits))
    if untrained:
        return Diagnosis(
            causes=(*untrained, *_lacking(estimator)),
            nearest_miss="no plan can be formed",
            hints=tuple(_other_ways(estimator, limits)),
        )
    nearest = None if deadline.struck else _nearest_miss(estimator)
    return Diagnosis(
        causes=tuple(_causes(estimator)),
        nearest_miss=_describe(nearest) if nearest else "no plan can be formed",
        hints=tuple(_hints(estimator, limits, deadline)),
    )


def _untrained(model: ModelSpec, limits: Limits) -> Iterator[str]:
    """What of the model no target of the search trains, or has launch files for."""
    rows = targets_of(limits)
    if any(offers(row, model) for row in rows):
        return
    for row in rows:
        found = [fault.what for fault in model_faults(row, model)]
        yield from found or filter(None, [unwritten(row, model)])


def _other_ways(estimator: Estimator, limits: Limits) -> Iterator[str]:
    """Other targets for the model, and number formats in which these targets train it on these devices."""
    model, device_types = estimator.model, estimator.topology.device_types
    others = [name for name, row in TARGETS.items() if offers(row, model)]
    if others and usable_device_types(estimator.topology, model):
        yield f"it can be trained with --target {' or '.join(others)}"
    formats = {
        name: None
        for row in targets_of(limits)
        for name in row.offered_precisions
        if offers(row, _in(model, name))
        and any(name in device_type.peak_flops for device_type in device_types)
    }
    if formats:
        yield f"with training.precision {', '.join(formats)} there is something to search"


def _in(model: ModelSpec, precision: str) -> ModelSpec:
    training = model.training.model_copy(update={"precision": precision})
    return model.model_copy(update={"training": training})


def _lacking(estimator: Estimator) -> Iterator[str]:
    """Devices without the model's number format."""
    usable = {device_type.gpu for device_type in usable_device_types(estimator.topology, estimator.model)}
    lacking = sorted({device_type.gpu for device_type in estimator.topology.device_types} - usable)
    if lacking:
        yield f"{', '.join(lacking)} cannot be used: no {estimator.model.training.precision}"


def _causes(estimator: Estimator) -> Iterator[str]:
    model, precision = estimator.model, estimator.model.training.precision
    device_types = usable_device_types(estimator.topology, model)
    yield from _lacking(estimator)
    each = 2 * ELEMENT_BYTES[precision] + optimizer_bytes(model)
    states = model.parameters * each
    room = sum(
        device_type.devices
        * (device_type.memory_bytes - device_type.reserve_bytes - ASSUMED_STACK.runtime_bytes)
        for device_type in device_types
    )
    yield (
        f"{format_count(model.parameters)} parameters need {each:g} bytes each with {precision} "
        f"{model.training.optimizer}: model states take {gib_from_bytes(states):.1f} GiB"
    )
    names = ", ".join(
        f"{device_type.devices} x {device_type.gpu} {gib_from_bytes(device_type.memory_bytes):.0f} GiB"
        for device_type in device_types
    )
    yield (
        f"the devices ({names or 'none'}) have {gib_from_bytes(max(0.0, room)):.1f} GiB together after reserve "
        "and runtime"
    )
    if states <= room:
        yield "the states would fit; activations, buffers or the limits given rule out every plan"


def _nearest_miss(estimator: Estimator) -> Scored | None:
    """The plan that lacks least memory, among even ones with smallest micro-batches."""
    if not usable_device_types(estimator.topology, estimator.model):
        return None
    practices = (equal_batches, even_pipelines)
    found = (best_of("", plans(estimator), estimator).scored for plans in practices)
    return min((scored for scored in found if scored), key=missing_bytes, default=None)


def _describe(scored: Scored) -> str:
    plan = scored.plan
    groups = [(group, stage) for stage in scored.estimate.stages for group in stage.groups]
    worst, _ = min(groups, key=lambda item: item[0].memory.headroom_bytes)
    what = (
        f"{plan.pp} stages, tp {worst.tp}"
        if plan.pp > 1 or worst.tp > 1
        else f"ZeRO-{plan.zero} data parallel"
    )
    missing = gib_from_bytes(missing_bytes(scored))
    how = (
        f"lacks {missing:.1f} GiB on {worst.gpu} in {worst.pool}"
        if missing > 0
        else "fits outside the given limits"
    )
    return f"{what} with {plan.stages[0].recompute} recomputation on {plan.devices} devices {how}"


def _hints(estimator: Estimator, limits: Limits, deadline: Deadline) -> Iterator[str]:
    trial = _Trial(estimator, deadline)
    cluster, model = estimator.cluster, estimator.model
    alone = [(name, trial.plan(cluster, model, without(limits, name))) for name in given(limits)]
    for name, scored in alone:
        if scored is not None:
            instead = option_text(name, used(name, scored))
            yield f"fits with {instead} instead of {option_text(name, values(getattr(limits, name)))}"
    together = len(alone) > 1 and all(scored is None for _, scored in alone)
    if together and trial.plan(cluster, model, without(limits, *given(limits))):
        yield f"fits without the limits on {', '.join(OPTIONS[name] for name in given(limits))}"
    if _no_reserve(cluster) != cluster and trial.plan(_no_reserve(cluster), model, limits):
        yield "fits with reserve_gib: 0, which leaves no room for fragmentation"
    degrees = _context_degrees(estimator, limits)
    parted = trial.plan(cluster, model, replace(limits, cp=degrees)) if degrees else None
    if parted is not None:
        what = "divides sequences of fewer tokens than are divided unasked"
        yield f"fits with {option_text('cp', used('cp', parted))}, which {what}"
    nodes = _more_nodes(estimator, limits, trial)
    if nodes:
        yield nodes
    smaller = _smaller_model(estimator, limits, trial)
    if smaller:
        yield smaller


def _context_degrees(estimator: Estimator, limits: Limits) -> tuple[int, ...]:
    """Context-parallel degrees that the search has not tried for want of tokens."""
    if estimator.model.training.sequence_length >= 2 * LEAST_TOKENS:
        return ()
    devices = sum(device_type.devices for device_type in estimator.topology.device_types)
    degrees = (2**power for power in range(1, min(devices, MAX_FACTOR).bit_length()))
    return tuple(degree for degree in degrees if degree not in (limits.cp or ()))


class _Trial:
    """Looks whether something fits once it is changed; at the deadline nothing does."""

    def __init__(self, estimator: Estimator, deadline: Deadline) -> None:
        self.calibration, self.deadline = estimator.calibration, deadline

    def plan(self, cluster: ClusterSpec, model: ModelSpec, limits: Limits) -> Scored | None:
        """Some plan that fits; None when few rounds find none."""
        if self.deadline.struck:
            return None
        changed = Estimator(cluster, model, self.calibration)
        explorer = Explorer(changed, replace(limits, gap=0.9), Silent(), deadline=self.deadline)
        explorer.run(rounds=20)
        return explorer.best


def _no_reserve(cluster: ClusterSpec) -> ClusterSpec:
    pools = tuple(pool.model_copy(update={"reserve_gib": None}) for pool in cluster.pools)
    gpus = {name: gpu.model_copy(update={"reserve_gib": None}) for name, gpu in cluster.gpus.items()}
    return cluster.model_copy(update={"reserve_gib": 0.0, "pools": pools, "gpus": gpus})


def _more_nodes(estimator: Estimator, limits: Limits, trial: _Trial) -> str | None:
    """The smallest number of further nodes of one pool that helps, by doubling."""
    best: tuple[int, str] | None = None
    for pool in estimator.cluster.pools:
        if not pool.nics and len(pool.hosts) == 1:
            continue
        total = len(pool.hosts)
        while total <= MAX_FACTOR * len(pool.hosts):
            total *= 2
            if trial.plan(_with_nodes(estimator.cluster, pool.name, total), estimator.model, limits):
                added = total - len(pool.hosts)
                if best is None or added * len(pool.devices) < best[0]:
                    best = added * len(pool.devices), f"fits with {added} more nodes in pool {pool.name}"
                break
    return best[1] if best else None


def _with_nodes(cluster: ClusterSpec, name: str, total: int) -> ClusterSpec:
    pools = tuple(
        pool.model_copy(update={"hosts": tuple(f"{name}-{index}" for index in range(total))})
        if pool.name == name
        else pool
        for pool in cluster.pools
    )
    return cluster.model_copy(update={"pools": pools})


def _smaller_model(estimator: Estimator, limits: Limits, trial: _Trial) -> str | None:
    """The largest number of layers that fits, by bisection."""
    low, high = 0, estimator.model.layers
    while low + 1 < high:
        middle = (low + high) // 2
        smaller = estimator.model.model_copy(update={"layers": middle})
        if trial.plan(estimator.cluster, smaller, limits):
            low = middle
        else:
            high = middle
    if not low:
        return None
    size = estimator.model.model_copy(update={"layers": low}).parameters
    return (
        f"a model of {low} instead of {estimator.model.layers} layers ({format_count(size)} parameters) fits"
    )
