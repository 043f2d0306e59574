"""Every plan of the space, one by one: the oracle that the search is tested against.

Only for clusters of a few devices and models of a few layers. It knows nothing of bounds, cuts, thresholds or
the ILP; it shares with the search only what defines the space.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations, pairwise, product

from planner.calibration.values import ASSUMED, Calibration
from planner.capabilities import Capabilities, Recompute, Schedule
from planner.cluster.equal_pools import joined
from planner.cluster.multi_node import dealt, widened
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType, Topology
from planner.cost.estimate import Estimator
from planner.dims.pipeline import interleavings
from planner.dims.sharding import holds_groups, parts_of, shard_sizes, trains_whole, zeros_at
from planner.dims.tensor import tp_degrees
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.plan.equal_pools import on_own_pools
from planner.plan.placement import Placement, place_stages
from planner.plan.values import (
    ON_DEVICE,
    WHOLE,
    WHOLE_EXPERTS,
    Context,
    Folding,
    Grid,
    Offload,
    Plan,
    ReplicaGroup,
    Stage,
    ZeroPlus,
)
from planner.search.ranking import ranked
from planner.search.space.choices import (
    Choice,
    Composition,
    Family,
    compositions,
    most_mixed,
    offers,
    targets_of,
    usable_device_types,
)
from planner.search.space.partitions import networks, parts
from planner.search.values import Limits, Scored
from planner.units import divisors


def exhaustive(
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration = ASSUMED,
    limits: Limits | None = None,
    all_plans: Iterable[Plan] | None = None,
) -> Scored | None:
    """The fastest of all plans that fit and that their target runs; None when there is none.

    ``all_plans``: those of the space, where they are there already.
    """
    limits = limits or Limits()
    estimator = Estimator(ranked(cluster), model, calibration)
    best: Scored | None = None
    for plan in plans(estimator, limits) if all_plans is None else all_plans:
        try:
            # Memory takes as long to tell as the step, and matters of a faster plan alone.
            if best is not None and estimator.step_seconds(plan) >= best.estimate.step_seconds:
                continue
            estimate = estimator.estimate(plan)
        except PlanError:
            continue
        if estimate.fits and not faults(plan, cluster, model):
            best = Scored(plan=plan, estimate=estimate)
    return best


def plans(estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    """All plans of all targets that the limits allow, found where equal pools are one."""
    asked = limits.offload or ("none",)
    for plan in _freely(estimator, replace(limits, offload=(*asked, "none"))):
        if plan.offload.anything or "none" in asked:
            yield plan


def _freely(estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    """The same where all may stay on the devices."""
    for row in targets_of(limits):
        for network in networks(row, estimator.topology).values():
            seen = Estimator(joined(network), estimator.model, estimator.calibration)
            for plan in _of_target(row, seen, limits):
                try:
                    yield on_own_pools(plan, seen.cluster, estimator.cluster)
                except PlanError:
                    continue
        yield from _over_nodes(row, estimator, limits)
        yield from _dealt_stages(row, estimator, limits)
        seen = Estimator(joined(estimator.cluster), estimator.model, estimator.calibration)
        asked = (*_islands(row, seen, limits), *_backups(row, seen, limits), *_grids(row, seen, limits))
        for plan in asked:
            yield on_own_pools(plan, seen.cluster, estimator.cluster)


def _over_nodes(row: Capabilities, estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    """Plans whose replicas fill several nodes of some pool: those of clusters whose nodes are several of these."""
    model = estimator.model
    if (
        row.name not in ("deepspeed", "megatron", "torch")
        or model.experts is not None
        or not offers(row, model)
    ):
        return
    for network in networks(row, estimator.topology).values():
        for tp in range(2, 65):
            wide = {
                each.name: tp // len(each.devices)
                for each in network.pools
                if len(set(each.devices)) == 1
                and len(each.devices) < tp <= len(each.devices) * len(each.hosts)
                and tp % len(each.devices) == 0
                and each.nics
            }
            if not wide or (limits.tp is not None and tp not in limits.tp):
                continue
            seen = Estimator(joined(widened(network, wide)), model, estimator.calibration)
            offered = [
                item for item in row.recomputes if limits.recompute is None or item in limits.recompute
            ]
            ways = [offered] if row.recompute_per_stage else [[item] for item in offered]
            for zero, own in product(limits.zero or (0, 1, 2, 3), ways):
                asked = replace(limits, tp=(tp,))
                found = _pipelines(seen, asked, row, zero, own)
                if row.batch_without_pipeline == "per-device" and zero in row.zero_without_pipeline:
                    found = chain(found, *(_of_replicas(seen, asked, row, zero, item) for item in own))
                for plan in found:
                    try:
                        yield on_own_pools(plan, seen.cluster, estimator.cluster)
                    except PlanError:
                        continue


def _dealt_stages(row: Capabilities, estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    """Pipelines whose stages are dealt over the nodes of a pool, and fill them, whichever these are."""
    model = estimator.model
    if row.name not in ("deepspeed", "megatron", "torch") or not offers(row, model):
        return
    several = [
        len(each.hosts)
        for each in joined(estimator.cluster).pools
        if len(each.hosts) > 1 and len({*each.devices}) == 1
    ]
    offered = [item for item in row.recomputes if limits.recompute is None or item in limits.recompute]
    ways = [offered] if row.recompute_per_stage else [[item] for item in offered]
    for network in networks(row, estimator.topology).values():
        for nodes in range(2, 17):
            if nodes != max(several, default=0) and not any(count % nodes == 0 for count in several):
                continue
            seen = Estimator(dealt(joined(network), nodes), model, estimator.calibration)
            for zero, own in product(limits.zero or (0, 1, 2, 3), ways):
                for plan in _pipelines(seen, limits, row, zero, own):
                    alone = plan.cp == 1 and plan.folding == WHOLE_EXPERTS and not plan.shard_size
                    if plan.pp > 1 and alone and fills_nodes(plan, seen.cluster):
                        spread = replace(plan, stage_nodes=nodes)
                        try:
                            yield on_own_pools(spread, seen.cluster, estimator.cluster)
                        except PlanError:
                            continue


def fills_nodes(plan: Plan, seen: ClusterSpec) -> bool:
    """True where each stage on nodes that are taken for one is there alone of its replicas, and has all company."""
    topology, stages = Topology(seen), Counter[tuple[str, int]]()
    full: dict[tuple[str, int], int] = {}
    try:
        placement = place_stages([stage.replicas for stage in plan.stages], seen)
    except PlanError:
        return False
    for slots in placement:
        for slot in slots:
            device_type = topology.device_type(slot.pool, slot.gpu)
            if device_type.dealt > 1:
                where = slot.pool, slot.first_node
                stages[where] += 1
                full[where] = device_type.per_node // (slot.replicas * slot.tp)
                if len(slots) > 1:
                    return False
    # Without any stage that is dealt it is a plan of other nodes.
    return bool(full) and all(stages[where] == most for where, most in full.items())


def _backups(row: Capabilities, estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    """Equal replicas on devices of one type of which a step drops some."""
    model, batch = estimator.model, estimator.model.training.global_batch
    if row.name != "torch" or not offers(row, model) or "none" not in (limits.offload or ("none",)):
        return
    for device_type, zero, recompute in product(
        usable_device_types(estimator.topology, model), (0, 1), row.recomputes
    ):
        if zero not in (limits.zero or (0, 1)) or recompute not in (limits.recompute or row.recomputes):
            continue
        for count in range(2, device_type.devices + 1):
            for backup in range(1, min(limits.backup, count - 1) + 1):
                share, rest = divmod(batch, count - backup)
                for steps in divisors(share) if share and not rest else ():
                    group = ReplicaGroup(
                        pool=device_type.pool,
                        gpu=device_type.gpu,
                        tp=1,
                        count=count,
                        local_batch=share,
                        accumulation_steps=steps,
                    )
                    stage = Stage(
                        first_layer=0, end_layer=model.layers, replicas=(group,), recompute=recompute
                    )
                    yield Plan(target="torch", zero=zero, backup=backup, stages=(stage,))


def _islands(row: Capabilities, estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    """Data parallelism whose islands at slow links exchange whatever the limits let them."""
    if row.name != "torch" or not offers(row, estimator.model) or not limits.syncs:
        return
    if (limits.zero is not None and 0 not in limits.zero) or "none" not in (limits.offload or ("none",)):
        return
    pools = tuple(pool.name for pool in estimator.cluster.pools)
    divisions = list(estimator.topology.divisions(pools)) if len(pools) > 1 else []
    for recompute in row.recomputes:
        if limits.recompute is not None and recompute not in limits.recompute:
            continue
        for plan in _data_parallel(estimator, limits, row, 0, recompute):
            used = {group.pool for group in plan.stages[0].replicas}
            for sync, division in product(limits.syncs, divisions):
                islands = tuple(tuple(pool for pool in part if pool in used) for part in division)
                islands = tuple(part for part in islands if part)
                if len(islands) > 1:
                    yield replace(plan, sync=replace(sync, islands=islands))


def _grids(row: Capabilities, estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    """Replicas of one type that are grids, with a depth or without; what breaks a rule is left out later."""
    model, batch = estimator.model, estimator.model.training.global_batch
    ways: tuple[Recompute, ...] = ("none", "full")
    if row.name != "torch" or not limits.grids or not offers(row, model):
        return
    sizes = (
        (device_type, Grid(rows=side, columns=side, depth=depth))
        for device_type in usable_device_types(estimator.topology, model)
        for side, depth in product((2, 3), (1, 2))
    )
    for device_type, grid in sizes:
        for count in range(1, device_type.devices // grid.devices + 1):
            for share, steps in product(range(1, batch + 1), range(1, batch + 1)):
                if share * count != batch or share % steps:
                    continue
                group = ReplicaGroup(
                    pool=device_type.pool,
                    gpu=device_type.gpu,
                    tp=grid.devices,
                    count=count,
                    local_batch=share,
                    accumulation_steps=steps,
                )
                for zero, recompute in product(limits.zero or (0, 1, 2, 3), ways):
                    stage = Stage(
                        first_layer=0, end_layer=model.layers, recompute=recompute, replicas=(group,)
                    )
                    yield Plan(target=row.name, zero=zero, grid=grid, stages=(stage,))


def _of_target(row: Capabilities, estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    if not offers(row, estimator.model):
        return
    offered = [item for item in row.recomputes if limits.recompute is None or item in limits.recompute]
    for zero in (0, 1, 2, 3):
        if limits.zero is not None and zero not in limits.zero:
            continue
        for own in [offered] if row.recompute_per_stage else [[item] for item in offered]:
            yield from _pipelines(estimator, limits, row, zero, own)
        if row.batch_without_pipeline == "per-device" and zero in row.zero_without_pipeline:
            for recompute in offered:
                yield from _of_replicas(estimator, limits, row, zero, recompute)
                for plan in _data_parallel(estimator, limits, row, zero, recompute):
                    if limits.unequal_shards and "none" in (limits.offload or ("none",)):
                        yield from _unequal(plan, row, estimator)
                    for offload in _offloads(row, zero, recompute, estimator, limits):
                        yield replace(plan, offload=offload)
                        yield from _in_groups(replace(plan, offload=offload), row, estimator)
                        yield from _with_second_copies(replace(plan, offload=offload), row, estimator, limits)


def _pipelines(
    estimator: Estimator, limits: Limits, row: Capabilities, zero: int, recomputes: Sequence[Recompute]
) -> Iterator[Plan]:
    """Plans with equal micro-batches in all replicas; each stage has one of the ``recomputes``."""
    model, device_types = estimator.model, usable_device_types(estimator.topology, estimator.model)
    for family in _families(row, zero, model, device_types, limits):
        found = compositions(family, device_types, model, limits)
        for depth in range(1, model.layers + 1):
            if depth > 1 and family.context.ways > 1 and not row.context_in_pipeline:
                continue
            if zero not in zeros_at(row, depth) or (limits.pp is not None and depth not in limits.pp):
                continue
            for chosen in product(found, repeat=depth):
                mixed = sum(len(groups) > 1 for groups in chosen)
                if (
                    (not mixed or mixed <= _most_mixed(chosen, row, estimator))
                    and _devices_suffice(chosen, device_types)
                    and _stands(chosen, estimator, bool(mixed))
                ):
                    sizes = (None, *_group_sizes(family, chosen, row, estimator))
                    for own, size in product(product(recomputes, repeat=depth), sizes):
                        for plan in _splits(family, chosen, own, row, model):
                            yield replace(plan, shard_size=size)
                            if depth == 1 and family.context.ways > 1 and not row.offloading.in_pipeline:
                                for offload in _offloads(row, zero, own[0], estimator, limits):
                                    if not offload.super_offload:
                                        yield replace(plan, offload=offload)


def _most_mixed(chosen: Sequence[Composition], row: Capabilities, estimator: Estimator) -> int:
    """Stages of several device types: fewer than the part of the network has types that these pipelines are in."""
    used = {group.pool for groups in chosen for group in groups}
    device_types = usable_device_types(estimator.topology, estimator.model)
    return max(
        most_mixed([each for each in device_types if each.pool in pools])
        for pools, islands in parts(row, estimator.cluster, estimator.model)
        if used <= {*pools} and (not islands or sum(not used.isdisjoint(island) for island in islands) > 1)
    )


def _group_sizes(
    family: Family, chosen: tuple[Composition, ...], row: Capabilities, estimator: Estimator
) -> Iterator[int]:
    """Replicas of each stage that may share a copy of the states: those of a node, each of one type."""
    if row.name != "torch" or not family.zero or family.context.ways > 1:
        return
    if any(len(groups) > 1 for groups in chosen):
        return
    try:
        place_stages(chosen, estimator.cluster, whole=True)
    except PlanError:
        return
    types, first = usable_device_types(estimator.topology, estimator.model), chosen[0][0]
    tp, dp = first.tp, first.count
    full = {item.key: item.per_node // tp for item in types}
    own = {full[groups[0].pool, groups[0].gpu] for groups in chosen}
    size = min(own)
    # Each copy has all experts.
    if len(own) == 1 and 1 < size < dp and dp % size == 0 and size * tp % family.folding.ways == 0:
        yield size


def _families(
    row: Capabilities, zero: int, model: ModelSpec, device_types: tuple[DeviceType, ...], limits: Limits
) -> Iterator[Family]:
    outer = chain(
        _unequal_steps(row, zero, model, device_types, limits), _equal_steps(row, model, device_types, limits)
    )
    for (tp, dp, folding, context, batch, steps), offload in product(
        outer, _pipeline_offloads(row, zero, model, limits)
    ):
        yield Family(
            target=row.name,
            zero=zero,
            recompute=None,
            tp=tp,
            dp=dp,
            batch=batch,
            micro_batches=steps,
            folding=folding,
            offload=offload,
            context=context,
        )


Outer = tuple[int | None, int | None, Folding, Context, int, int]
"""(tp, dp, division of experts, division of sequences, sequences of a micro-batch over all replicas, micro-batches)."""


def _equal_steps(
    row: Capabilities, model: ModelSpec, device_types: tuple[DeviceType, ...], limits: Limits
) -> Iterator[Outer]:
    """Batches that the replicas divide."""
    for batch in divisors(model.training.global_batch):
        steps = model.training.global_batch // batch
        degrees: list[tuple[int | None, int | None, Context]] = [
            (tp, dp * context.ways, context)
            for tp in tp_degrees(row, limits.tp, model, device_types)
            for dp in divisors(batch)
            for context in _contexts(row, model, tp, limits)
            if limits.micro_batch is None or batch // dp in limits.micro_batch
        ]
        apart = [(None, None, WHOLE)] if limits.cp is None or 1 in limits.cp else []
        for tp, dp, context in apart if row.dp_per_stage else degrees:
            for folding in _foldings(row, model, tp, dp):
                if limits.ep is not None and folding.ep not in limits.ep:
                    continue
                if limits.etp is None or folding.etp in limits.etp:
                    yield tp, dp, folding, context, batch, steps


def _unequal_steps(
    row: Capabilities, zero: int, model: ModelSpec, device_types: tuple[DeviceType, ...], limits: Limits
) -> Iterator[Outer]:
    """Numbers of replicas with small odd parts that do not divide the batch: some run one micro-batch fewer."""
    if row.name != "torch" or zero > 1 or (limits.cp is not None and 1 not in limits.cp):
        return
    total = model.training.global_batch
    for tp in tp_degrees(row, limits.tp, model, device_types):
        room = sum(device_type.nodes * (device_type.per_node // tp) for device_type in device_types)
        for dp in range(2, room + 1):
            if not any(dp == odd * 2**power for odd in (1, 3, 5, 7) for power in range(10)):
                continue
            known = set()
            for size in range(1, total // dp + 1):
                steps = -(-total // (size * dp))
                if total % size or (limits.micro_batch and size not in limits.micro_batch) or steps in known:
                    continue
                known.add(steps)
                idle = steps * dp - total // size
                if 0 < idle <= 0.1 * steps * dp and steps > 1:
                    yield tp, dp, Folding(), WHOLE, dp * size, steps


def _contexts(row: Capabilities, model: ModelSpec, tp: int, limits: Limits) -> list[Context]:
    """All ways to divide sequences: unasked by powers of two, with 8,192 tokens or more on a device."""
    length, found = model.training.sequence_length, [WHOLE] if limits.cp is None or 1 in limits.cp else []
    for ways in range(2, 65):
        asked = ways in limits.cp if limits.cp else ways.bit_count() == 1 and length >= 8192 * ways
        pieces = 2 * ways if row.name == "megatron" else ways
        split = row.sequence_parallel and tp > 1 and length % tp == 0
        if not asked or length % pieces or (split and length // ways % tp):
            continue
        if model.training.attention != "flash" or model.kind != "decoder":
            continue
        if "ring" in row.context and model.window is None and not model.sinks:
            found.append(Context(ways=ways, kind="ring"))
        heads = model.heads % (tp * ways) == 0 and model.kv_heads % (tp * ways) == 0
        if "ulysses" in row.context and heads and model.latent is None:
            found.append(Context(ways=ways, kind="ulysses"))
    return found


def _foldings(row: Capabilities, model: ModelSpec, tp: int | None, dp: int | None) -> list[Folding]:
    """Whole replicas that share the experts, each device as many as any other, or parts of them as large."""
    experts = model.experts
    if experts is None or row.experts not in ("parallel", "replicas") or tp is None or dp is None:
        return [Folding()]
    if row.experts == "replicas" and (model.training.preference is not None or model.tower_frozen):
        return [Folding()]
    return [
        Folding(ep=ep, etp=etp)
        for etp, ep in product(range(1, tp + 1), range(1, tp * dp + 1))
        if tp % etp == 0 and ep * etp % tp == 0 and tp * dp % (ep * etp) == 0
        if experts.number % ep == 0
        and experts.ffn % etp == 0
        and not ((experts.bias or model.mlp_bias) and etp > 1)
    ]


def _pipeline_offloads(row: Capabilities, zero: int, model: ModelSpec, limits: Limits) -> list[Offload]:
    """Optimizer states in host memory, where the target has that with pipelines; Megatron has tenths of AdamW's too."""
    given = limits.offload or ("none",)
    found = [ON_DEVICE] if "none" in given else []
    if row.offloading.in_pipeline and zero in row.offloading.optimizer_zero and "optimizer" in given:
        parts = 10 if row.name == "megatron" and model.training.optimizer == "adamw" else 1
        found += [Offload(optimizer="cpu", ratio=part / parts) for part in range(1, parts + 1)]
    return found


def _offloads(
    row: Capabilities, zero: int, recompute: Recompute, estimator: Estimator, limits: Limits
) -> Iterator[Offload]:
    """Whatever the target keeps in host memory or on NVMe when every device has a model of its own."""
    given = limits.offload or ("none",)
    able = row.offloading
    disks = [item.host.nvme_bytes_per_second for item in estimator.topology.device_types]
    swaps = "nvme" in given and zero in able.nvme_zero and None not in disks
    places = ("none", "cpu", "nvme") if swaps else ("none", "cpu")
    for states, weights, kept in product(places, places, ("none", "cpu")):
        if weights != "none" and states == "none":
            continue
        if states == "nvme" and estimator.model.training.optimizer != "adamw":
            continue
        offload = Offload(optimizer=states, parameters=weights, activations=kept)  # type: ignore[arg-type]
        named = {
            name
            for name, place in (("optimizer", states), ("parameters", weights), ("activations", kept))
            if place != "none"
        }
        if not (named or {"none"}) <= {*given, *(("optimizer",) if "parameters" in given else ())}:
            continue
        if (states != "none" and zero not in able.optimizer_zero) or (
            weights != "none" and zero not in able.parameters_zero
        ):
            continue
        if kept == "cpu" and not (able.activations and recompute == "full"):
            continue
        if not able.together or states == weights:
            yield offload
            yield from _in_parts(offload, row, zero, estimator, given)


def _in_parts(
    offload: Offload, row: Capabilities, zero: int, estimator: Estimator, given: Sequence[str]
) -> Iterator[Offload]:
    """DeepSpeed's ZeRO 3 with AdamW: tenths of the optimizer on the host, on superchips updated during the backward."""
    training = estimator.model.training
    if row.name != "deepspeed" or zero != 3 or offload.optimizer != "cpu" or training.optimizer != "adamw":
        return
    links = [item.host.bytes_per_second or 0.0 for item in estimator.topology.device_types]
    ahead = "super" in given and min(links) >= 100e9 and training.precision != "fp16"
    for tenths, now in product(range(1, 11), (False, True)):
        whole = tenths == 10
        if (whole or offload.parameters == "none") and (now or not whole) and (ahead or not now):
            yield replace(offload, ratio=tenths / 10, super_offload=now)


def _devices_suffice(chosen: tuple[Composition, ...], device_types: tuple[DeviceType, ...]) -> bool:
    room = {device_type.key: device_type.devices for device_type in device_types}
    for groups in chosen:
        for group in groups:
            room[group.pool, group.gpu] -= group.devices
    return min(room.values()) >= 0


def _stands(chosen: tuple[Composition, ...], estimator: Estimator, mixed: bool) -> bool:
    """A part of a node is on one node; in pipelines without mixed stages it may be on what others leave of several.

    On nodes that powers of two do not fill, that is.
    """
    placed: Placement = ()
    for whole in (True, False):
        try:
            placed = place_stages(chosen, estimator.cluster, whole=whole)
            break
        except PlanError:
            if mixed:
                return False
    for groups, slots in zip(chosen, placed, strict=False):
        full = estimator.topology.device_type(groups[0].pool, groups[0].gpu).per_node // groups[0].tp
        parts = [slot for slot in slots if slot.replicas_per_node < full]
        if len(groups) == 1 and len(parts) > 1 and (groups[0].count > full or full in (2, 4, 8, 16)):
            return False
    return bool(placed)


def _splits(
    family: Family,
    chosen: tuple[Composition, ...],
    recomputes: tuple[Recompute, ...],
    row: Capabilities,
    model: ModelSpec,
) -> Iterator[Plan]:
    """All ways to cut the layers into stages of these compositions, with every interleaving."""
    depth = len(chosen)
    fills = family.micro_batches % depth == 0 and not family.fewer_steps(model)
    orders: list[tuple[int, Schedule]] = [
        (chunks, "1f1b")
        for chunks in (interleavings(row, depth, family.micro_batches, model) if fills else (1,))
    ]
    whole = family.zero < 2 and not family.offload.anything and {*recomputes} == {"none"}
    if depth > 1 and whole and fills and row.name == "torch":
        orders.append((1, "zero-bubble"))
    enough = family.micro_batches >= 2 * depth and not family.fewer_steps(model)
    if depth > 1 and whole and enough and row.name == "torch":
        orders += [(2, "zb-v"), (2, "dualpipe-v")]
    for interleave, schedule in orders:
        for cuts in combinations(range(1, model.layers), depth - 1):
            ends = (0, *cuts, model.layers)
            if min(b - a for a, b in pairwise(ends)) < interleave:
                continue
            stages = tuple(
                Stage(first_layer=a, end_layer=b, replicas=groups, recompute=recompute)
                for a, b, groups, recompute in zip(ends, ends[1:], chosen, recomputes, strict=False)
            )
            choice = Choice(family=family, depth=depth, interleave=interleave, schedule=schedule)
            yield choice.plan(stages, model)


def _of_replicas(
    estimator: Estimator, limits: Limits, row: Capabilities, zero: int, recompute: Recompute
) -> Iterator[Plan]:
    """The same of replicas of several devices, with what may rest on hosts or in groups that shard; of models all of
    which is trained, without experts."""
    model, device_types = estimator.model, usable_device_types(estimator.topology, estimator.model)
    if model.experts is not None or model.training.lora is not None or model.training.freeze:
        return
    for tp in tp_degrees(row, limits.tp, model, device_types):
        if tp > 1:
            split = row.sequence_parallel and model.training.sequence_length % tp == 0
            for plan in _data_parallel(estimator, replace(limits, tp=None), row, zero, recompute, tp):
                whole = replace(plan, sequence_parallel=split)
                for offload in _offloads(row, zero, recompute, estimator, limits):
                    yield replace(whole, offload=offload)
                yield from _in_groups(whole, row, estimator)


def _data_parallel(
    estimator: Estimator, limits: Limits, row: Capabilities, zero: int, recompute: Recompute, tp: int = 1
) -> Iterator[Plan]:
    """Plans of one stage with any share and any micro-batch on every replica of ``tp`` devices."""
    if any(given is not None and 1 not in given for given in (limits.pp, limits.tp, limits.cp, limits.ep)):
        return
    device_types = usable_device_types(estimator.topology, estimator.model)
    batch = estimator.model.training.global_batch
    loads = tuple(_loads(batch, limits))
    rooms = (device_type.nodes * (device_type.per_node // tp) for device_type in device_types)
    counts = product(*(range(room + 1) for room in rooms))
    totals = [each for each in product(range(batch + 1), repeat=len(device_types)) if sum(each) == batch]
    for chosen in product(counts, totals):
        for per_kind in product(*(_dealt(loads, *each) for each in zip(*chosen, strict=True))):
            if zero >= 2 and len({steps for kind_loads in per_kind for _, steps in kind_loads}) > 1:
                continue
            groups = tuple(
                ReplicaGroup(
                    pool=device_type.pool,
                    gpu=device_type.gpu,
                    tp=tp,
                    count=1,
                    local_batch=share,
                    accumulation_steps=steps,
                )
                for device_type, kind_loads in zip(device_types, per_kind, strict=True)
                for share, steps in kind_loads
            )
            stage = Stage(
                first_layer=0, end_layer=estimator.model.layers, replicas=groups, recompute=recompute
            )
            yield Plan(target=row.name, zero=zero, stages=(stage,))


def _in_groups(plan: Plan, row: Capabilities, estimator: Estimator) -> Iterator[Plan]:
    """The same with states sharded over groups of replicas, each of one type."""
    (stage,) = plan.stages
    device_types = usable_device_types(estimator.topology, estimator.model)
    used = Counter((group.pool, group.gpu) for group in stage.replicas)
    tp = stage.replicas[0].tp
    for size in shard_sizes(row, plan.zero, device_types, tp):
        held = all(holds_groups(item, size, tp) for item in device_types if item.key in used)
        if held and size < stage.dp and all(count % size == 0 for count in used.values()):
            yield replace(plan, shard_size=size)


def _with_second_copies(
    plan: Plan, row: Capabilities, estimator: Estimator, limits: Limits
) -> Iterator[Plan]:
    """The same with second copies of the parameters on nodes or their parts, and with ZeRO 3 sending fewer bits."""
    (stage,) = plan.stages
    if row.name != "deepspeed" or plan.zero != 3 or plan.offload.anything:
        return
    if not trains_whole(estimator.model):
        return
    nodes = {item.key: item.per_node for item in usable_device_types(estimator.topology, estimator.model)}
    used = Counter((group.pool, group.gpu) for group in stage.replicas)
    rounds = limits.quantised and estimator.model.training.precision in ("bf16", "fp16")
    sizes = [None, *sorted({size for node in nodes.values() for size in divisors(node)} - {1})]
    for size, int8, int4 in product(sizes, (False, True), (False, True)):
        if (size is None and (int4 or not int8)) or ((int8 or int4) and not rounds):
            continue
        if size is not None and (
            size >= stage.dp
            or any(count % size for count in used.values())
            or any(nodes[key] % size or (int4 and nodes[key] != size) for key in used)
        ):
            continue
        plus = ZeroPlus(secondary=size, int8_weights=int8, int4_gradients=int4)
        yield replace(plan, zero_plus=plus)


def _unequal(plan: Plan, row: Capabilities, estimator: Estimator) -> Iterator[Plan]:
    """The same with parts of what is sharded for each device type."""
    (stage,) = plan.stages
    device_types = usable_device_types(estimator.topology, estimator.model)
    for shares in parts_of(row, plan.zero, estimator.model, device_types):
        each = {item.key: part for item, part in zip(device_types, shares, strict=True)}
        replicas = tuple(replace(group, shard=each[group.pool, group.gpu]) for group in stage.replicas)
        if len({group.shard for group in replicas}) > 1:
            yield replace(plan, stages=(replace(stage, replicas=replicas),))


Load = tuple[int, int]
"""Sequences of a device in a step, and the micro-batches that they come in."""


@cache
def _dealt(loads: tuple[Load, ...], count: int, total: int) -> list[tuple[Load, ...]]:
    """All ways to load so many equal devices with so many sequences together."""
    if not count:
        return [] if total else [()]
    return [
        ((share, steps), *rest)
        for index, (share, steps) in enumerate(loads)
        if share <= total
        for rest in _dealt(loads[index:], count - 1, total - share)
    ]


def _loads(batch: int, limits: Limits) -> list[Load]:
    """(share, steps) of one device."""
    most = batch if limits.micro_batch is None else max(limits.micro_batch)
    return [
        (share, steps)
        for share in range(1, batch + 1)
        for steps in range(1, share + 1)
        if -(-share // steps) <= most
    ]
