"""Why nothing fits, the nearest miss, and the smallest single change that would help."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, product, takewhile
from math import prod
from typing import Any, get_args

from planner.calibration.values import ASSUMED_FRAMEWORK
from planner.capabilities import OFFLOAD_PARTS
from planner.catalog import GpuSpec, gpu_names, gpu_spec
from planner.cluster.spec import ClusterSpec
from planner.cost.compute import ELEMENT_BYTES
from planner.cost.estimate import Estimator
from planner.cost.memory import kept_free, optimizer_bytes, quantised_experts_of, quantised_of
from planner.dims.context import LEAST_TOKENS
from planner.dims.offloading import allows, moves_nothing, offload_text, offloads
from planner.dims.recompute import recompute_text
from planner.dims.sharding import master_weights_of, zeros
from planner.dims.tensor import indivisible, splits, tp_degrees
from planner.dims.trained import lack
from planner.model.spec import HALVES, MOMENTS, NF4_BYTES, LoraSpec, ModelSpec, Optimizer
from planner.plan.checks import model_faults, unwritten
from planner.plan.values import ON_DEVICE, Plan
from planner.ranges import BATCH
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explain.families import keeps_whole, undivided
from planner.search.explain.first_found import first_found
from planner.search.explain.neighbours import all_neighbours
from planner.search.explain.sensitivity import OPTIONS, given, option_text, used, values, without
from planner.search.heuristics.even import best_of, equal_batches, even_pipelines, missing_bytes
from planner.search.heuristics.quick import cheap_plan, everywhere
from planner.search.incumbent import obeys
from planner.search.space.choices import (
    MAX_DEPTH,
    offers,
    recomputes_of,
    targets_of,
    usable_device_types,
)
from planner.search.space.multi_node import wide_degrees
from planner.search.values import Diagnosis, Goal, Limits, PlanLimit, Scored
from planner.targets import TARGETS
from planner.units import bytes_from_gib, format_count, format_seconds, gib_from_bytes

DIAGNOSIS_SHARE = 0.3
"""Part of the time that is left, at most, for the whole diagnosis."""

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
    if not usable_device_types(estimator.topology, estimator.model):
        return Diagnosis(
            causes=tuple(_lacking(estimator)),
            nearest_miss="no plan can be formed",
            hints=tuple(_hints(estimator, limits, deadline)),
        )
    nearest = _nearest_miss(estimator, limits, deadline)
    impossible = tuple(_impossible(estimator, limits))
    return Diagnosis(
        causes=(*_lacking(estimator), *(impossible or _causes(estimator, limits))),
        nearest_miss=_describe(nearest) if nearest else "no plan can be formed",
        hints=tuple(_hints(estimator, limits, deadline)),
    )


def _untrained(model: ModelSpec, limits: Limits) -> Iterator[str]:
    """What of the model no target of the search trains, or has launch files for."""
    rows = targets_of(limits)
    if any(offers(row, model) for row in rows):
        return
    for row in rows:
        faults = [fault.what for fault in model_faults(row, model)]
        yield from faults or filter(None, [unwritten(row, model)])


def _other_ways(estimator: Estimator, limits: Limits) -> Iterator[str]:
    """Other targets for the model, and number formats in which these targets train it on these devices."""
    model = estimator.model
    others = [name for name, row in TARGETS.items() if offers(row, model)]
    if others and usable_device_types(estimator.topology, model):
        yield f"it can be trained with --target {' or '.join(others)}"
    if formats := _formats(estimator, limits):
        yield f"with training.precision {', '.join(formats)} there is something to search"


def _formats(estimator: Estimator, limits: Limits) -> tuple[str, ...]:
    """Number formats in which the targets of the search train the model on some of these devices."""
    formats = {
        name: None
        for row in targets_of(limits)
        for name in row.precisions
        if offers(row, changed := estimator.model.trained_with(precision=name))
        and any(
            lack(device_type, changed.training) is None for device_type in estimator.topology.device_types
        )
    }
    return tuple(formats)


def _lacking(estimator: Estimator) -> Iterator[str]:
    """Devices that cannot do what the training asks for, or without a known link to their host for paged moments."""
    device_types, training = estimator.topology.device_types, estimator.model.training
    usable = usable_device_types(estimator.topology, estimator.model)
    unable: dict[str, set[str]] = {}
    for each in device_types:
        lacking = lack(each, training)
        if lacking is not None:
            unable.setdefault(lacking, set()).add(each.gpu)
    for what, gpus in unable.items():
        yield f"{', '.join(sorted(gpus))} cannot be used: no {what}"
    if apart := {each.gpu for each in device_types if each not in usable}.difference(*unable.values()):
        yield f"{', '.join(sorted(apart))} cannot page moments: host.link_gBps of their pools is not given"


def _impossible(estimator: Estimator, limits: Limits) -> Iterator[str]:
    """Limits that no plan keeps, whatever its memory: they need more devices or layers than there are, or no target of
    the search has what they ask for."""
    model, device_types = estimator.model, usable_device_types(estimator.topology, estimator.model)
    if not device_types:
        return
    yield from _too_many_devices(limits, sum(device_type.devices for device_type in device_types))
    if limits.pp and min(limits.pp) > model.layers:
        yield f"{_typed(limits, 'pp')} needs at least {min(limits.pp)} layers and the model has {model.layers}"
    elif limits.pp and min(limits.pp) > MAX_DEPTH:
        yield f"{_typed(limits, 'pp')} is deeper than the {MAX_DEPTH} stages that are searched"
    if limits.tp and not limits.grids and not any(splits(model, tp) for tp in limits.tp):
        first = next(indivisible(model, limits.tp[0]))
        yield (
            f"--{first}"
            if len(limits.tp) == 1
            else f"{_typed(limits, 'tp')} are no degrees of {model.name} ({first})"
        )
    rows = [row for row in targets_of(limits) if offers(row, model)]
    names = " and ".join(row.name for row in rows)
    widest, devices = max(each.per_node for each in device_types), sum(each.devices for each in device_types)
    over_nodes = any(wide_degrees(row, limits, model, estimator.topology) for row in rows)
    if limits.tp and not limits.grids and not over_nodes and widest < min(limits.tp) <= devices:
        yield f"{_typed(limits, 'tp')} is wider than a node: replicas of at most {widest} devices are searched"
    elif (
        limits.tp
        and min(limits.tp) <= devices
        and not limits.grids
        and not over_nodes
        and any(splits(model, tp) for tp in limits.tp)
        and not any(tp_degrees(row, limits.tp, model, device_types) for row in rows)
    ):
        what = undivided(model, limits)
        reason = f": no tensor parallelism with {what}" if what else ""
        if what is None and (why := keeps_whole(model, limits)):
            reason = f": {rows[0].name} {why}"
        yield f"{names} cannot train this model with {_typed(limits, 'tp')}{reason}"
    degrees = product(limits.ep or (), limits.etp or (), limits.tp or ())
    left_over = [ep * etp % tp for ep, etp, tp in degrees if model.experts is not None]
    if left_over and all(left_over):
        experts = f"{_typed(limits, 'ep')} with {_typed(limits, 'etp')}"
        yield f"{experts} is no multiple of {_typed(limits, 'tp')}: whole replicas share experts"
    if not any(zeros(row, model, None, limits.zero) for row in rows):
        yield f"{names} cannot train this model with {_typed(limits, 'zero')}"
    if limits.recompute and not any(recomputes_of(row, limits, model, device_types) for row in rows):
        yield f"{names} cannot train this model with {_typed(limits, 'recompute')}"
    if limits.offload and "none" not in limits.offload:
        reasons = [moves_nothing(limits.offload, row, model, device_types) for row in rows]
        if all(reasons):
            yield f"{_typed(limits, 'offload')} leaves no plan: {'; '.join(dict.fromkeys(reasons))}"


def _too_many_devices(limits: Limits, devices: int) -> Iterator[str]:
    """Degrees that need more devices than there are: each by itself, else those of a plan together."""
    tp, pp, cp, ep, etp = (
        min(allowed or (1,)) for allowed in (limits.tp, limits.pp, limits.cp, limits.ep, limits.etp)
    )
    stages: tuple[PlanLimit, int] = ("pp", pp)
    # Experts are divided over the same devices of a stage as tensors and sequences.
    tensors: list[tuple[PlanLimit, int]] = [("tp", tp), ("cp", cp)]
    experts: list[tuple[PlanLimit, int]] = [("ep", ep), ("etp", etp)]
    alone = [(name, least) for name, least in (stages, *tensors, *experts) if least > devices]
    for name, least in alone:
        yield f"{_typed(limits, name)} needs at least {least} devices and there are {devices}"
    together = [stages, *(experts if ep * etp > tp * cp else tensors)]
    needed = prod(least for _, least in together)
    if needed > devices and not alone:
        options = " with ".join(_typed(limits, name) for name, least in together if least > 1)
        yield f"{options} needs at least {needed} devices and there are {devices}"


def _typed(limits: Limits, name: PlanLimit) -> str:
    """A limit as the option that sets it."""
    return option_text(name, values(getattr(limits, name)))


def _causes(estimator: Estimator, limits: Limits) -> Iterator[str]:
    """What the model states need and what the devices have."""
    model, precision = estimator.model, estimator.model.training.precision
    device_types = usable_device_types(estimator.topology, model)
    rows = targets_of(limits)
    training = model.training
    kept = min(optimizer_bytes(training, master_weights_of(row, training)) for row in rows)
    each = 2 * ELEMENT_BYTES[precision] + kept
    states = model.trained_parameters * each + _frozen_bytes(model)
    spread = estimator.calibration.memory_spread
    room = sum(
        device_type.devices
        * (device_type.memory_bytes - kept_free(device_type, spread) - ASSUMED_FRAMEWORK.runtime_bytes)
        for device_type in device_types
    )
    frozen = f", {gib_from_bytes(_frozen_bytes(model)):.1f} GiB of them frozen" if model.frozen else ""
    yield (
        f"{format_count(model.trained_parameters)} parameters need {each:g} bytes each with {precision} "
        f"{model.training.optimizer}: model states take {gib_from_bytes(states):.1f} GiB{frozen}"
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
        asked = " ".join(_typed(limits, name) for name in given(limits))
        rest = f"activations, buffers or the limits {asked} rule" if asked else "activations and buffers rule"
        yield f"the states would fit; {rest} out every plan"


def _frozen_bytes(model: ModelSpec) -> float:
    """Bytes of what is not trained."""
    packed: float = quantised_of(model, layers=model.layers, first=True, last=True)
    packed += quantised_experts_of(model, layers=model.layers, expert_ways=1, first=True, last=True)
    whole = model.parameters + model.adapter_parameters - model.trained_parameters - packed
    return ELEMENT_BYTES[model.training.precision] * whole + model.quantised_bytes * packed


def _nearest_miss(estimator: Estimator, limits: Limits, deadline: Deadline) -> Scored | None:
    """The plan that lacks least memory, among even ones with smallest micro-batches that there is time for.

    Of the limits it keeps the one on what may be in host memory, which it uses where nothing fits on the devices alone.
    """
    device_types = usable_device_types(estimator.topology, estimator.model)
    if not device_types:
        return None

    def of_targets(plan: Plan) -> Iterator[Plan]:
        """The same by other targets of the search, which may keep less of it on a device."""
        yield plan
        yield from (replace(plan, target=row.name) for row in targets_of(limits) if row.name != plan.target)

    def offloaded(plan: Plan) -> Iterator[Plan]:
        row, recompute, wide = TARGETS[plan.target], plan.stages[0].recompute, plan.pp > 1
        for offload in offloads(
            row, plan.zero, recompute, limits.offload, estimator.model, device_types, stages=wide
        ):
            if offload.anything and offload.ratio == 1:
                yield replace(plan, offload=offload)

    def nearest(ways: Callable[[Plan], Iterable[Plan]]) -> Scored | None:
        practices = (equal_batches, even_pipelines)
        formed = (chain.from_iterable(map(of_targets, plans(estimator))) for plans in practices)
        every = (chain.from_iterable(map(ways, plans)) for plans in formed)
        in_time = (takewhile(lambda _: not deadline.struck, plans) for plans in every)
        misses = (best_of("", plans, estimator).scored for plans in in_time)
        return min((scored for scored in misses if scored), key=missing_bytes, default=None)

    alone = nearest(lambda plan: (plan,)) if allows(limits.offload, ON_DEVICE) else None
    if limits.offload == ("none",) or (alone is not None and missing_bytes(alone) <= 0):
        return alone
    found = [scored for scored in (alone, nearest(offloaded)) if scored is not None]
    return min(found, key=missing_bytes, default=None)


def _describe(scored: Scored) -> str:
    plan = scored.plan
    groups = [group for stage in scored.estimate.stages for group in stage.groups]
    worst = max(groups, key=lambda group: group.memory.missing_bytes)
    what = (
        f"{plan.pp} stage{'s' if plan.pp > 1 else ''}, tp {worst.tp}"
        if plan.pp > 1 or worst.tp > 1
        else f"ZeRO-{plan.zero} data parallel"
    )
    devices = f"{plan.devices} device{'s' if plan.devices > 1 else ''}"
    what += f" with {recompute_text(plan)} recomputation on {devices}"
    what += f", {offload_text(plan)}," if plan.offload.anything else ""
    memory, missing = worst.memory, gib_from_bytes(worst.memory.missing_bytes)
    if missing <= 0:
        return f"{what} fits outside the given limits"
    place = "on" if memory.missing_bytes == -memory.headroom_bytes else "of host memory per"
    return f"{what} lacks {missing:.1f} GiB {place} {worst.gpu} in {worst.pool}"


def _hints(estimator: Estimator, limits: Limits, deadline: Deadline) -> Iterator[str]:
    """What makes it fit, each tried: what leaves the training as it is, then another training, then other devices."""
    trial = _Trial(estimator, deadline)
    cluster, model = estimator.cluster, estimator.model
    alone = [(name, trial.plan(cluster, model, without(limits, name))) for name in given(limits)]
    changes: list[tuple[str, Scored | None]] = []
    for name, scored in alone:
        if scored is not None:
            instead = option_text(name, used(name, scored))
            changes.append(
                (f"{instead} instead of {option_text(name, values(getattr(limits, name)))}", scored)
            )
    together = len(alone) > 1 and all(scored is None for _, scored in alone)
    freed = without(limits, *given(limits))
    if together and trial.fits(cluster, model, freed):
        yield f"fits without the limits on {', '.join(OPTIONS[name] for name in given(limits))}"
    if limits.offload is None:
        wider = replace(limits, offload=OFFLOAD_PARTS)
        scored = trial.plan(cluster, model, wider)
        changes += [(option_text("offload", used("offload", scored)), scored)] if scored else []
    if cluster.safe is not None:
        what = f"a chance of running out of memory above {100 * cluster.safe:g} %"
        changes.append((what, trial.plan(cluster.model_copy(update={"safe": None}), model, limits)))
    if _no_reserve(cluster) != cluster:
        what = "reserve_gib: 0, which leaves no room for fragmentation"
        changes.append((what, trial.plan(_no_reserve(cluster), model, limits)))
    degrees = _context_degrees(estimator, limits)
    parted = trial.plan(cluster, model, replace(limits, cp=degrees)) if degrees else None
    if parted is not None:
        what = "which divides sequences of fewer tokens than are divided unasked"
        changes.append((f"{option_text('cp', used('cp', parted))}, {what}", parted))
    hints = [*_best_first(changes), *_best_first(_retrained(estimator, limits, trial))]
    hints += filter(None, (_more_nodes(estimator, limits, trial), _larger_devices(estimator, limits, trial)))
    # Whatever is changed alone, nothing fits.
    yield from hints or _two_at_once(estimator, limits, trial)
    smaller = _smaller_model(estimator, limits, trial)
    if smaller:
        yield smaller


def _retrained(estimator: Estimator, limits: Limits, trial: _Trial) -> Iterator[tuple[str, Scored | None]]:
    """Of each way to train the model otherwise, what changes least and makes a plan fit."""
    if not usable_device_types(estimator.topology, estimator.model):
        for name in _formats(estimator, limits):
            other = estimator.model.trained_with(precision=name)
            yield f"--precision {name}", trial.plan(estimator.cluster, other, limits)
    for ways in _trainings(estimator.model):
        yield from _first((what, trial.plan(estimator.cluster, other, limits)) for what, other in ways)


def _two_at_once(estimator: Estimator, limits: Limits, trial: _Trial) -> list[str]:
    """More nodes, or larger devices, and the first training with which they are enough."""
    for ways in _trainings(estimator.model):
        for what, other in ways[-1:]:
            changed = Estimator(estimator.cluster, other, estimator.calibration)
            devices = _more_nodes(changed, limits, trial), _larger_devices(changed, limits, trial)
            if any(devices):
                return [f"{each} and {what}" for each in devices if each]
    return []


def _best_first(changes: Iterable[tuple[str, Scored | None]]) -> list[str]:
    """Changes that make a plan fit, those first with which a token takes least."""
    fitting = [(what, scored.estimate) for what, scored in changes if scored is not None]
    fitting.sort(key=lambda item: -item[1].tokens_per_second)
    return [f"fits with {what}: about {format_seconds(each.step_seconds)} a step" for what, each in fitting]


RANK = 16
"""Of the adapters that are tried."""

SHORTEST = 512
"""Tokens of the shortest sequence that is tried."""


Training = tuple[str, ModelSpec]
"""A model trained in another way, and what to write for it."""


def _first(tried: Iterable[tuple[str, Scored | None]]) -> list[tuple[str, Scored | None]]:
    """The first that fits."""
    return [next((item for item in tried if item[1] is not None), ("", None))]


def _trainings(model: ModelSpec) -> Iterator[list[Training]]:
    """The same model trained in other ways; of those in one list each changes more than the one ahead of it."""
    training = model.training
    if training.token_dispatcher != "alltoall":
        yield [("training.token_dispatcher: alltoall", model.trained_with(token_dispatcher="alltoall"))]
    if training.expert_overlap:
        yield [("training.expert_overlap: false", model.trained_with(expert_overlap=False))]
    if training.cross_entropy == "plain":
        yield [("training.cross_entropy: chunked", model.trained_with(cross_entropy="chunked"))]
    if training.norms == "unfused":
        yield [("training.norms: fused", model.trained_with(norms="fused"))]
    adapted: list[Training] = []
    narrow = [*NF4_BYTES]
    # Modules that predict further tokens are trained whole.
    adaptable = not training.mtp_layers and all(kind.linears for kind in model.trained_kinds)
    if not model.frozen and adaptable:
        for base in (None, *narrow):
            text = f"training.lora: {{rank: {RANK}{f', base: {base}' if base else ''}}}"
            other = {"optimizer": "adamw"} if training.optimizer == "muon" else {}
            text += " and training.optimizer: adamw" if other else ""
            adapters = model.trained_with(lora=LoraSpec(rank=RANK, base=base), **other)
            adapted.append((f"{text}, which trains adapters alone", adapters))
    elif training.lora:
        known = narrow.index(training.lora.base) + 1 if training.lora.base in narrow else 0
        for base in narrow[known:]:
            four_bits = training.lora.model_copy(update={"base": base})
            adapted.append((f"base: {base} in training.lora", model.trained_with(lora=four_bits)))
    yield adapted
    if training.optimizer == "adamw" and training.optimizer_states == "fp32":
        formats = ("bf16", "int8")
        narrower: list[Training] = [
            (f"training.optimizer_states: {name}", model.trained_with(optimizer_states=name))
            for name in formats
        ]
        if training.precision in HALVES and training.master_weights in (None, "fp32"):
            for name in formats:
                text = f"training.optimizer_states: {name} and training.master_weights: bf16"
                narrower.append((text, model.trained_with(optimizer_states=name, master_weights="bf16")))
        yield narrower
    # Only AdamW's moments, and the weights that it updates, have other formats.
    plain: dict[str, Any] = {"optimizer_states": "fp32", "master_weights": None}
    given = [key for key, usual in plain.items() if getattr(training, key) != usual]
    without = f" without {' and '.join(given)}" if given else ""
    for name in get_args(Optimizer):
        if MOMENTS[name] < MOMENTS[training.optimizer] and not (training.lora and name == "muon"):
            yield [(f"training.optimizer: {name}{without}", model.trained_with(optimizer=name, **plain))]
    shorter: list[Training] = []
    length, factor = training.sequence_length, 2
    while length % factor == 0 and length // factor >= SHORTEST:
        batch = training.global_batch * factor
        if batch <= BATCH.most:
            text = f"--sequence-length {length // factor} --global-batch {batch}"
            shorter.append((text, model.trained_with(sequence_length=length // factor, global_batch=batch)))
        factor *= 2
    yield shorter


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
        """The fastest of a few plans that fit, a good one and not proven best; None when few rounds find none.

        Where everything may leave the devices, it does in no plan if one fits without, as in the search of this change.
        """
        if limits.offload == OFFLOAD_PARTS:
            alone = self.plan(cluster, model, replace(limits, offload=("none",)))
            if alone is not None:
                return alone
        changed = Estimator(cluster, model, self.calibration)
        start = first_found(changed, limits, self.deadline)
        found = start and cheap_plan(changed, limits, everywhere(changed), self.deadline, known=start)
        return found and _walked(found, changed, limits, self.deadline)

    def fits(self, cluster: ClusterSpec, model: ModelSpec, limits: Limits) -> bool:
        """True when few rounds find some plan."""
        return first_found(Estimator(cluster, model, self.calibration), limits, self.deadline) is not None


def _walked(scored: Scored, estimator: Estimator, limits: Limits, deadline: Deadline) -> Scored:
    """The plan after changes of one decision, each the one that makes it fastest, as long as one does."""
    while True:
        around = [entry.scored for entry in all_neighbours(scored.plan, estimator, deadline)]
        able = [each for each in around if each.estimate.fits and obeys(each.plan, limits, Goal())]
        best = min([scored, *able], key=lambda each: each.estimate.step_seconds)
        if best is scored:
            return scored
        scored = best


def _no_reserve(cluster: ClusterSpec) -> ClusterSpec:
    pools = tuple(pool.model_copy(update={"reserve_gib": None}) for pool in cluster.pools)
    gpus = {name: gpu.model_copy(update={"reserve_gib": None}) for name, gpu in cluster.gpus.items()}
    return cluster.model_copy(update={"reserve_gib": 0.0, "pools": pools, "gpus": gpus})


def _more_nodes(estimator: Estimator, limits: Limits, trial: _Trial) -> str | None:
    """The smallest number of further nodes of one pool that helps, by doubling, then halving what lies between."""

    def fits(name: str, total: int) -> bool:
        return trial.fits(_with_nodes(estimator.cluster, name, total), estimator.model, limits)

    best: tuple[int, str] | None = None
    for pool in estimator.cluster.pools:
        if not pool.nics and len(pool.hosts) == 1:
            continue
        total = len(pool.hosts)
        while total <= MAX_FACTOR * len(pool.hosts):
            total *= 2
            added = total - len(pool.hosts)
            if best is not None and added * len(pool.devices) >= best[0]:
                break
            if fits(pool.name, total):
                few = total // 2
                while total - few > 1:
                    few, total = (few, half) if fits(pool.name, half := (few + total) // 2) else (half, total)
                added = total - len(pool.hosts)
                nodes = f"{added} more node{'s' if added > 1 else ''}"
                best = added * len(pool.devices), f"fits with {nodes} in pool {pool.name}"
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


def _larger_devices(estimator: Estimator, limits: Limits, trial: _Trial) -> str | None:
    """The devices of the catalogue with least memory, but more than any here, that would do in every place."""
    precision = estimator.model.training.precision
    most = max((each.memory_bytes for each in estimator.topology.device_types), default=0.0)
    known = (gpu_spec(name) for name in gpu_names())
    able = [gpu for gpu in known if precision in gpu.tflops and bytes_from_gib(gpu.memory_gib) > most]
    if all(each.compute_capability for each in estimator.topology.device_types):
        able = [gpu for gpu in able if gpu.compute_capability]  # of the same vendor
    sizes = {round(gpu.memory_gib / 8): gpu for gpu in sorted(able, key=lambda gpu: -gpu.memory_gib)}

    def fits(gpu: GpuSpec) -> bool:
        pools = tuple(
            pool.model_copy(update={"devices": (gpu.name,) * len(pool.devices)})
            for pool in estimator.cluster.pools
        )
        changed = {"pools": pools, "gpus": {**estimator.cluster.gpus, gpu.name: gpu}}
        return trial.fits(estimator.cluster.model_copy(update=changed), estimator.model, limits)

    ascending = sorted(sizes.values(), key=lambda gpu: gpu.memory_gib)
    if not ascending or not fits(ascending[-1]):
        return None
    least = ascending[bisect_left(ascending[:-1], True, key=fits)]
    return f"fits with {least.name} ({least.memory_gib:g} GiB) in place of every device"


def _smaller_model(estimator: Estimator, limits: Limits, trial: _Trial) -> str | None:
    """The largest number of layers that fits, by bisection."""
    low, high = 0, estimator.model.layers
    while low + 1 < high:
        middle = (low + high) // 2
        smaller = estimator.model.model_copy(update={"layers": middle})
        if trial.fits(estimator.cluster, smaller, limits):
            low = middle
        else:
            high = middle
    if not low:
        return None
    size = estimator.model.model_copy(update={"layers": low}).parameters
    return (
        f"a model of {low} instead of {estimator.model.layers} layers ({format_count(size)} parameters) fits"
    )
