"""Plans that no search made: drawn at random or one step from another plan, to be priced against a proof."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.calibration.file import shipped
from planner.calibration.values import Calibration
from planner.capabilities import RECOMPUTES, Capabilities
from planner.cluster.equal_pools import joined
from planner.cluster.multi_node import dealt
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.cost.schedules import divides, is_v_shaped
from planner.cost.training import devices_of
from planner.dims.pipeline import MAX_INTERLEAVE
from planner.dims.sharding import fills_node, holds_groups, shard_sizes
from planner.dims.tensor import splits_sequence
from planner.dims.trained import lack
from planner.dims.zero_plus import holds_copies
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.plan.equal_pools import Joined, on_joined_pools
from planner.plan.placement import Slot, place
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.search.data_parallel import most_offered
from planner.search.space.choices import MAX_DEPTH, batch_per_replica, offers, stands
from planner.search.space.multi_node import dealt_nodes
from planner.search.values import Limits
from planner.targets import TARGETS, target
from planner.units import divisors
from tests.search.exhaustive import fills_nodes

MOST_OPERATIONS = 20_000
"""Micro-batches times stages of a plan that is priced here; more take the pipeline too long."""


class Field:
    """Where plans are drawn: one cluster, one model, what the user allows."""

    def __init__(
        self,
        cluster: ClusterSpec,
        model: ModelSpec,
        limits: Limits,
        rng: random.Random,
        calibration: Calibration | None = None,
    ) -> None:
        """``calibration``: what ships with the package when absent."""
        self.cluster = cluster
        self.joined = joined(cluster)
        self.model = model
        self.limits = limits
        self.rng = rng
        self.estimator = Estimator(cluster, model, calibration or shipped())
        self.batch = model.training.global_batch
        self.device_types = [
            device_type
            for device_type in self.estimator.topology.device_types
            if lack(device_type, model.training) is None
        ]
        """Devices that can do what the training asks for."""
        rows = [row for row in TARGETS.values() if row.by_default]
        considered = [TARGETS[limits.target]] if limits.target else rows
        self.targets = [row for row in considered if offers(row, model)]
        """Runtimes that the search considers too."""

    def degrees(self, row: Capabilities) -> list[int]:
        """Tensor-parallel degrees that the heads and the nodes allow."""
        most = (
            1
            if row.tensor_parallel == "none"
            else max(device_type.per_node for device_type in self.device_types)
        )
        return [tp for tp in divisors(self.model.heads) if tp <= most]

    def seconds(self, plan: Plan) -> float | None:
        """Step of a plan that can be launched, is allowed, and fits; None of any other."""
        if (
            outside(on_joined_pools(plan, self.joined, self.cluster), self.limits, self.model)
            or faults(plan, self.cluster, self.model)
            or (
                not deals(plan, self.joined, self.cluster, self.model)
                if plan.stage_nodes > 1
                else scatters(plan, self.joined, self.cluster)
            )
            or straddles(plan, self.cluster, self.model)
            or plan.micro_batches * plan.pp > MOST_OPERATIONS
        ):
            return None
        try:
            found = self.estimator.estimate(plan)
        except PlanError:  # replicas that reach each other only over a network that the job does not use
            return None
        return found.step_seconds if found.fits else None


def deals(plan: Plan, seen: ClusterSpec, cluster: ClusterSpec, model: ModelSpec) -> bool:
    """True for stages that the search deals over nodes too: parts of those that are one, which they fill."""
    topology, together = Topology(seen), Topology(dealt(seen, plan.stage_nodes))
    if plan.stage_nodes not in dealt_nodes(target(plan.target), Limits(), model, topology):
        return False
    try:
        groups = [
            (group, together.device_type(group.pool, group.gpu))
            for group in _groups(on_joined_pools(plan, seen, cluster))
        ]
    except KeyError:
        return False
    parts = [each.dealt > 1 and group.devices < each.per_node for group, each in groups]
    able = all(
        each.holds(group.tp) and group.count % each.dealt == 0 and group.devices <= each.per_node
        for group, each in groups
    )
    whole = replace(on_joined_pools(plan, seen, cluster), stage_nodes=1)
    return any(parts) and able and fills_nodes(whole, dealt(seen, plan.stage_nodes))


def scatters(plan: Plan, seen: ClusterSpec, cluster: ClusterSpec) -> bool:
    """True when a stage is divided over nodes in other parts than in the plan on joined pools (5 + 5 of two nodes of
    eight, not 8 + 2), or stands apart from one with which it shares a node there, or where joined pools have no place
    for it: the search has no such plans.
    """
    try:
        own_placement = Joined(Topology(cluster)).placement(place(plan, cluster))
    except PlanError:
        return False
    as_one = on_joined_pools(plan, seen, cluster)
    if not stands([stage.replicas for stage in as_one.stages], Topology(seen)):
        return True
    try:
        alike = place(as_one, seen), own_placement
    except PlanError:
        return True
    as_one_parts, own_parts = ([_parts(slots) for slots in placed] for placed in alike)
    if as_one_parts != own_parts:
        return True
    together, own = ([_shares_node(*pair) for pair in pairwise(placed)] for placed in alike)
    return any(one and not other for one, other in zip(together, own, strict=True))


def straddles(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> bool:
    """True for HSDP groups that lie across nodes which others use too, as where groups of replicas are out of order.

    The same of those that are not as large as a node, but where replicas have batches of their own; and of groups with
    a second copy of the parameters that are not an even part of a node.
    """
    topology, size, tp = Topology(cluster), plan.shard_size, max(group.tp for group in _groups(plan))
    types = [topology.device_type(group.pool, group.gpu) for group in _groups(plan)]
    copies = plan.zero_plus.secondary
    if not size and not copies:
        return False
    try:
        placement = place(plan, cluster)
    except PlanError:  # no room
        return True
    if copies:
        groups = [group for slots in placement for group in _groups_of_nodes(_nodes(slots), copies)]
        return any(len({*group}) > 1 for group in groups) or not all(
            holds_copies(each, plan.zero_plus) for each in types
        )
    assert size
    offered = shard_sizes(target(plan.target), plan.zero, Topology(joined(cluster)).device_types, tp)
    if size not in offered or not all(holds_groups(each, size, tp) for each in types):
        return True
    own = plan.pp == 1 and batch_per_replica(target(plan.target), model, tp)
    if not own and not all(fills_node(each, size, tp) for each in types):
        return True
    return any(_shares_nodes(_nodes(slots), size) for slots in placement)


Node = tuple[str, int]


def _nodes(slots: Sequence[Slot]) -> list[Node]:
    """Of each replica of a stage."""
    return [
        (slot.pool, node)
        for slot in slots
        for node in range(slot.first_node, slot.first_node + slot.nodes)
        for _ in range(slot.replicas_per_node)
    ]


def _groups_of_nodes(nodes: Sequence[Node], size: int) -> list[Sequence[Node]]:
    return [nodes[begin : begin + size] for begin in range(0, len(nodes), size)]


def _shares_nodes(nodes: Sequence[Node], size: int) -> bool:
    """True where a group on several nodes of a stage shares one of them with another group."""
    return any(
        len({*group}) > 1 and any(nodes.count(node) > group.count(node) for node in group)
        for group in _groups_of_nodes(nodes, size)
    )


def _parts(slots: Sequence[Slot]) -> Counter[tuple[str, str, int]]:
    """Nodes of a stage by pool, device type and how many devices of it the stage has there."""
    devices = Counter[tuple[str, str, int]]()
    for slot in slots:
        for node in range(slot.first_node, slot.first_node + slot.nodes):
            devices[slot.pool, slot.gpu, node] += slot.tp * slot.replicas_per_node
    return Counter((pool, gpu, count) for (pool, gpu, _), count in devices.items())


def _shares_node(first: Sequence[Slot], last: Sequence[Slot]) -> bool:
    nodes = ({(slot.pool, slot.first_node) for slot in slots if slot.nodes == 1} for slots in (first, last))
    return not next(nodes).isdisjoint(next(nodes))


def outside(plan: Plan, limits: Limits, model: ModelSpec) -> str:
    """Why the search does not promise to consider a plan (docs/search.md), or the user forbids it; else empty.

    Equal pools are one in the plan, as in the search.
    """
    groups = list(_groups(plan))
    steps = {group.accumulation_steps for group in groups}
    allowed = (
        (limits.zero, {plan.zero}),
        (limits.pp, {plan.pp}),
        (limits.tp, {group.tp for group in groups}),
        (limits.micro_batch, {group.micro_batch for group in groups}),
        (limits.recompute, {stage.recompute for stage in plan.stages}),
    )
    for values, used in allowed:
        if values is not None and not used <= set(values):
            return "a limit of the user"
    if plan.pp > MAX_DEPTH or plan.interleave > MAX_INTERLEAVE:
        return "deeper than the space"
    if plan.interleave > 1 and divides(plan.schedule) and not is_v_shaped(plan.schedule):
        return "an interleaved zero-bubble schedule"
    if plan.offload.anything:
        return "offload"
    if "none" not in (limits.offload or ("none",)):
        return "a limit of the user"
    if plan.zero >= 2 and plan.pp == 1 and len(steps) > 1:
        return "ZeRO 2 or 3 with padding"
    own_batches = plan.pp == 1 and batch_per_replica(target(plan.target), model, groups[0].tp)
    own_batches &= plan.ep == 1
    if not own_batches and any(
        len({(group.pool, group.gpu) for group in stage.replicas}) > 1 for stage in plan.stages
    ):
        return "a stage that mixes types of device"
    if not own_batches and (
        any(len({group.local_batch for group in stage.replicas}) > 1 for stage in plan.stages)
        or any(group.local_batch % group.accumulation_steps for group in groups)
    ):
        return "replicas of several devices with batches or micro-batches of unequal size"
    if own_batches and max(group.micro_batch for group in groups) > most_offered(model):
        return "micro-batches larger than the space"
    row, tp = target(plan.target), max(group.tp for group in groups)
    if row.tensor_parallel == "per-stage" and tp > 1 and not plan.sequence_parallel:
        return "a degree that does not divide the sequence"
    if tp > 1 and not plan.sequence_parallel and splits_sequence(row, model, tp):
        return "whole sequences that could be divided"
    if plan.shard_size and any(count % plan.shard_size for count in devices_of(plan).values()):
        return "HSDP in groups of several device types"
    return ""


# ---------------------------------------------------------------- plans out of nothing


def drawn(field: Field, number: int) -> Iterator[Plan]:
    """That many attempts at random plans; those that are no plans are left out."""
    if not field.device_types or not field.targets:
        return
    for _ in range(number):
        row = field.rng.choice(field.targets)
        alone = row.batch_without_pipeline == "per-device" and field.rng.random() < 0.5
        plan = _attempt(lambda row=row, alone=alone: (_data_parallel if alone else _pipeline)(field, row))  # type: ignore[misc]
        if plan is not None:
            yield plan


def _attempt(make: Callable[[], Plan | None]) -> Plan | None:
    try:
        return make()
    except PlanError:
        return None


def _pipeline(field: Field, row: Capabilities) -> Plan | None:
    """Equal micro-batches: any depth, any stages, layers by speed or by chance."""
    rng, model = field.rng, field.model
    tp = rng.choice(field.degrees(row))
    room = {device_type.key: device_type.replicas(tp) for device_type in field.device_types}
    dp = rng.choice([one for one in divisors(field.batch) if one <= sum(room.values())] or [1])
    micro = rng.choice([one for one in divisors(field.batch // dp) if one <= 64])
    deepest = min(model.layers, sum(room.values()) // dp, 12)
    if deepest < 1:
        return None
    depth = rng.choice((1, 1, rng.randint(1, deepest)))
    depth = min(depth, deepest)
    share, steps = field.batch // dp, field.batch // dp // micro
    stages = []
    for _ in range(depth):
        groups = _replicas(rng, room, dp, tp, share, steps)
        if groups is None:
            return None
        stages.append(groups)
    speeds = [_speed(field, groups) for groups in stages]
    layers = _dealt(
        rng, model.layers, speeds if rng.random() < 0.7 else [rng.random() + 0.05 for _ in speeds]
    )
    plan = _plan(field, row, stages, layers, tp)
    numbers = dealt_nodes(row, Limits(), model, field.estimator.topology)
    if plan is None or depth == 1 or not numbers or rng.random() < 0.5:
        return plan
    return replace(plan, stage_nodes=rng.choice(numbers), shard_size=None)


def _replicas(
    rng: random.Random, room: dict[tuple[str, str], int], dp: int, tp: int, share: int, steps: int
) -> tuple[ReplicaGroup, ...] | None:
    """Replicas of one stage: of one type where that has enough and chance wants it, else of several."""
    enough = [key for key, left in room.items() if left >= dp]
    order = [rng.choice(enough)] if enough and rng.random() < 0.8 else rng.sample(list(room), len(room))
    groups, left = [], dp
    for key in order:
        count = min(left, room[key])
        if count:
            groups.append(
                ReplicaGroup(
                    pool=key[0], gpu=key[1], tp=tp, count=count, local_batch=share, accumulation_steps=steps
                )
            )
            room[key] -= count
            left -= count
    return None if left else tuple(groups)


def _speed(field: Field, groups: Sequence[ReplicaGroup]) -> float:
    """FLOP/s of a stage: all its replicas wait for the slowest."""
    peaks = {
        device_type.key: device_type.peak_flops[field.model.training.precision]
        for device_type in field.device_types
    }
    return min(peaks[group.pool, group.gpu] for group in groups)


def _dealt(rng: random.Random, total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers of at least one in about these proportions."""
    spare = total - len(weights)
    found = [1 + int(spare * weight / sum(weights)) for weight in weights]
    while sum(found) < total:
        found[rng.randrange(len(found))] += 1
    return found


def _plan(
    field: Field,
    row: Capabilities,
    stages: Sequence[tuple[ReplicaGroup, ...]],
    layers: Sequence[int],
    tp: int,
) -> Plan:
    rng, model = field.rng, field.model
    zeros = row.zero_without_pipeline if len(stages) == 1 else row.zero_with_pipeline
    recompute = rng.choice(row.recomputes)
    ends = [sum(layers[: index + 1]) for index in range(len(layers))]
    interleaved = row.interleave and len(stages) > 1 and rng.random() < 0.3
    return Plan(
        target=row.name,
        zero=rng.choice(zeros),
        stages=tuple(
            Stage(first_layer=end - count, end_layer=end, replicas=groups, recompute=recompute)
            for groups, count, end in zip(stages, layers, ends, strict=True)
        ),
        interleave=rng.randint(2, MAX_INTERLEAVE) if interleaved else 1,
        sequence_parallel=row.sequence_parallel and tp > 1 and model.training.sequence_length % tp == 0,
    )


def _data_parallel(field: Field, row: Capabilities) -> Plan | None:
    """One stage, any replicas, a batch for those of each device type."""
    rng = field.rng
    tp = rng.choice([tp for tp in field.degrees(row) if batch_per_replica(row, field.model, tp)] or [1])
    able = [device_type for device_type in field.device_types if device_type.replicas(tp)]
    if not able:
        return None
    chosen = rng.sample(able, rng.randint(1, len(able)))
    counts = [
        device_type.replicas(tp) if rng.random() < 0.5 else rng.randint(1, device_type.replicas(tp))
        for device_type in chosen
    ]
    peaks = [device_type.peak_flops[field.model.training.precision] for device_type in chosen]
    shares = _shares(rng, field.batch, counts, [peak * rng.uniform(0.7, 1.3) for peak in peaks])
    zero = rng.choice(row.zero_without_pipeline)
    together = max(-(-share // rng.choice((1, 2, 4, 8, 16, 64))) for _, _, share in shares)
    groups = []
    for index, count, share in shares:
        steps = together if zero >= 2 else -(-share // rng.choice((1, 2, 3, 4, 8, 16, 64)))
        device_type = chosen[index]
        groups.append(
            ReplicaGroup(
                pool=device_type.pool,
                gpu=device_type.gpu,
                tp=tp,
                count=count,
                local_batch=share,
                accumulation_steps=min(steps, share),
            )
        )
    recompute = rng.choice(row.recomputes)
    stage = Stage(first_layer=0, end_layer=field.model.layers, replicas=tuple(groups), recompute=recompute)
    split = splits_sequence(row, field.model, tp)
    return Plan(target=row.name, zero=zero, stages=(stage,), sequence_parallel=split)


def _shares(
    rng: random.Random, batch: int, counts: Sequence[int], speeds: Sequence[float]
) -> list[tuple[int, int, int]]:
    """(kind, replicas, sequences of each) in proportion to speed; what is left over is one more for some."""
    total = sum(count * speed for count, speed in zip(counts, speeds, strict=True))
    shares = [int(batch * speed / total) for speed in speeds]
    left = batch - sum(count * share for count, share in zip(counts, shares, strict=True))
    found = []
    for index in sorted(range(len(counts)), key=lambda _: rng.random()):
        more = min(left, counts[index])
        left -= more
        found += [(index, more, shares[index] + 1), (index, counts[index] - more, shares[index])]
    return [(index, count, share) for index, count, share in found if count and share]


# ---------------------------------------------------------------- plans next to a plan


def near(field: Field, plan: Plan) -> Plan | None:
    """A plan that differs from this one in one decision; None where chance chose one that cannot be."""
    return _attempt(lambda: field.rng.choice(STEPS)(field, plan))


def layer_moved(field: Field, plan: Plan) -> Plan | None:
    """A layer or two from one stage to another."""
    if plan.pp == 1:
        return None
    counts = [stage.layers for stage in plan.stages]
    giver, taker = field.rng.sample(range(plan.pp), 2)
    many = field.rng.choice((1, 1, 2))
    counts[giver] -= many
    counts[taker] += many
    return _with_layers(plan, plan.stages, counts) if min(counts) > 0 else None


def _with_layers(plan: Plan, stages: Sequence[Stage], counts: Sequence[int]) -> Plan:
    placed, first = [], 0
    for stage, count in zip(stages, counts, strict=True):
        placed.append(replace(stage, first_layer=first, end_layer=first + count))
        first += count
    return replace(plan, stages=tuple(placed))


def other_degree(field: Field, plan: Plan) -> Plan | None:
    """One replica more or less in every stage, or twice or half as many."""
    row = TARGETS[plan.target]
    if row.dp_per_stage or len({group.local_batch for group in _groups(plan)}) > 1:
        return None
    dp = field.rng.choice(
        (plan.stages[0].dp - 1, plan.stages[0].dp + 1, plan.stages[0].dp * 2, plan.stages[0].dp // 2)
    )
    micro = field.rng.choice([1, *(group.micro_batch for group in _groups(plan))])
    if dp < 1 or field.batch % dp or field.batch // dp % micro:
        return None
    share, steps = field.batch // dp, field.batch // dp // micro
    stages = []
    for stage in plan.stages:
        groups = _resized(stage.replicas, dp)
        groups = tuple(replace(group, local_batch=share, accumulation_steps=steps) for group in groups)
        stages.append(replace(stage, replicas=groups))
    return replace(plan, stages=tuple(stages), zero=plan.zero, shard_size=None, fewer_steps=0)


def _resized(groups: Sequence[ReplicaGroup], dp: int) -> tuple[ReplicaGroup, ...]:
    """The first replicas of a stage, or more of its last group."""
    found: list[ReplicaGroup] = []
    for group in groups:
        count = min(group.count, dp - sum(other.count for other in found))
        if count:
            found.append(replace(group, count=count))
    missing = dp - sum(group.count for group in found)
    found[-1] = replace(found[-1], count=found[-1].count + missing)
    return tuple(found)


def other_micro_batch(field: Field, plan: Plan) -> Plan | None:
    """Another size of micro-batches everywhere, or on one group where each may have its own."""
    row, factor = TARGETS[plan.target], field.rng.choice((2, 3, 5))
    own = plan.pp == 1 and row.batch_without_pipeline == "per-device" and plan.zero < 2
    chosen = field.rng.randrange(sum(len(stage.replicas) for stage in plan.stages)) if own else None
    larger, number = field.rng.random() < 0.5, 0
    stages = []
    for stage in plan.stages:
        groups = []
        for group in stage.replicas:
            steps = (
                group.accumulation_steps
                if chosen not in (None, number)
                else _scaled(group.accumulation_steps, factor, larger, own)
            )
            groups.append(replace(group, accumulation_steps=steps))
            number += 1
        stages.append(replace(stage, replicas=tuple(groups)))
    return replace(plan, stages=tuple(stages))


def _scaled(steps: int, factor: int, larger: bool, own: bool) -> int:
    if not larger:
        return steps + 1 if own else steps * factor
    return max(1, steps - 1) if own else max(1, steps // factor)


def device_dropped(field: Field, plan: Plan) -> Plan | None:
    """One replica of data parallelism left out; the others take its sequences."""
    groups = list(_groups(plan))
    if plan.pp > 1 or TARGETS[plan.target].batch_without_pipeline != "per-device" or plan.stages[0].dp == 1:
        return None
    index = field.rng.randrange(len(groups))
    each = [[group.local_batch] * group.count for group in groups]
    homeless = each[index].pop()
    while homeless:
        number = field.rng.randrange(len(each))
        if each[number]:
            each[number][field.rng.randrange(len(each[number]))] += 1
            homeless -= 1
        if homeless > 200:
            return None
    return _dealt_out(plan, groups, each)


def sequence_moved(field: Field, plan: Plan) -> Plan | None:
    """Some sequences from one replica of data parallelism to another."""
    groups = list(_groups(plan))
    if plan.pp > 1 or TARGETS[plan.target].batch_without_pipeline != "per-device" or plan.stages[0].dp == 1:
        return None
    each = [[group.local_batch] * group.count for group in groups]
    giver, taker = field.rng.randrange(len(each)), field.rng.randrange(len(each))
    many = field.rng.choice((1, 1, 2, max(1, groups[giver].local_batch // 10)))
    if each[giver][0] <= many:
        return None
    each[giver][0] -= many
    each[taker][-1] += many
    return _dealt_out(plan, groups, each)


def _dealt_out(plan: Plan, groups: Sequence[ReplicaGroup], each: Sequence[Sequence[int]]) -> Plan:
    """The groups anew, one for each share; micro-batches stay as large as they were, or as many with ZeRO 2 and 3."""
    found = []
    for group, shares in zip(groups, each, strict=True):
        for share in sorted(set(shares), reverse=True):
            steps = group.accumulation_steps if plan.zero >= 2 else -(-share // group.micro_batch)
            found.append(
                replace(
                    group,
                    count=list(shares).count(share),
                    local_batch=share,
                    accumulation_steps=min(steps, share),
                )
            )
    stages = (replace(plan.stages[0], replicas=tuple(found)),)
    return replace(plan, stages=stages, shard_size=None, fewer_steps=0)


def stages_swapped(field: Field, plan: Plan) -> Plan | None:
    """The devices of two stages change places, with or without their layers."""
    if plan.pp == 1:
        return None
    order = list(range(plan.pp))
    one, other = field.rng.sample(order, 2)
    order[one], order[other] = order[other], order[one]
    stages = [plan.stages[index] for index in order]
    own = field.rng.random() < 0.5
    return _with_layers(plan, stages, [stage.layers for stage in (stages if own else plan.stages)])


def stages_joined(field: Field, plan: Plan) -> Plan | None:
    """A stage goes, its neighbour takes its layers."""
    if plan.pp == 1:
        return None
    index = field.rng.randrange(plan.pp)
    stages, counts = list(plan.stages), [stage.layers for stage in plan.stages]
    neighbour = index - 1 if index else 1
    counts[neighbour] += counts[index]
    del stages[index], counts[index]
    zeros = TARGETS[plan.target].zero_without_pipeline if len(stages) == 1 else None
    found = _with_layers(replace(plan, interleave=1), stages, counts)
    return replace(found, zero=min(plan.zero, max(zeros))) if zeros else found


def stage_divided(field: Field, plan: Plan) -> Plan | None:
    """A stage becomes two, the new one on devices of any kind."""
    index = field.rng.randrange(plan.pp)
    stage = plan.stages[index]
    if (
        stage.layers < 2
        or len({(group.local_batch, group.accumulation_steps) for group in stage.replicas}) > 1
    ):
        return None
    device_type, first = field.rng.choice(field.device_types), stage.replicas[0]
    groups = (replace(first, pool=device_type.pool, gpu=device_type.gpu, count=stage.dp),)
    stages, counts = list(plan.stages), [one.layers for one in plan.stages]
    taken = field.rng.randint(1, stage.layers - 1)
    counts[index] -= taken
    stages.insert(index + 1, replace(stage, replicas=groups))
    counts.insert(index + 1, taken)
    return _with_layers(replace(plan, shard_size=None, interleave=1), stages, counts)


def other_devices(field: Field, plan: Plan) -> Plan | None:
    """A group of replicas, or a part of it, moves to another kind."""
    index = field.rng.randrange(plan.pp)
    stage, device_type = plan.stages[index], field.rng.choice(field.device_types)
    place = field.rng.randrange(len(stage.replicas))
    group = stage.replicas[place]
    moved = group.count if field.rng.random() < 0.6 else field.rng.randint(1, group.count)
    groups = list(stage.replicas)
    groups[place : place + 1] = [
        replace(group, pool=device_type.pool, gpu=device_type.gpu, count=moved),
        *([replace(group, count=group.count - moved)] if moved < group.count else []),
    ]
    stages = list(plan.stages)
    stages[index] = replace(stage, replicas=tuple(groups))
    return replace(plan, stages=tuple(stages))


def other_tensor_degree(field: Field, plan: Plan) -> Plan | None:
    """Wider or narrower replicas on the same devices."""
    tp = field.rng.choice(field.degrees(TARGETS[plan.target]))
    row = TARGETS[plan.target]
    stages = []
    for stage in plan.stages:
        groups = tuple(replace(group, tp=tp) for group in stage.replicas)
        stages.append(replace(stage, replicas=groups))
    even = row.sequence_parallel and tp > 1 and field.model.training.sequence_length % tp == 0
    return replace(plan, stages=tuple(stages), sequence_parallel=even)


def other_rule(field: Field, plan: Plan) -> Plan | None:
    """Another ZeRO stage, recomputation, interleaving or runtime; another division of experts."""
    how = field.rng.randrange(4 if field.model.experts is None else 6)
    if how >= 4 and field.model.experts is not None:
        return replace(plan, ep=field.rng.choice(divisors(field.model.experts.number)), shard_size=None)
    if how == 0:
        return replace(plan, zero=field.rng.randrange(4), shard_size=None)
    if how == 1:
        one = field.rng.choice((None, field.rng.randrange(plan.pp)))
        recompute = field.rng.choice(RECOMPUTES)
        return replace(
            plan,
            stages=tuple(
                replace(stage, recompute=recompute) if one in (None, index) else stage
                for index, stage in enumerate(plan.stages)
            ),
        )
    if how == 2:
        return replace(plan, interleave=field.rng.randint(1, MAX_INTERLEAVE))
    row = field.rng.choice(field.targets)
    sequence = row.sequence_parallel and plan.sequence_parallel
    return replace(plan, target=row.name, sequence_parallel=sequence, interleave=1, shard_size=None)


def _groups(plan: Plan) -> Iterator[ReplicaGroup]:
    return (group for stage in plan.stages for group in stage.replicas)


STEPS: tuple[Callable[[Field, Plan], Plan | None], ...] = (
    *(layer_moved, other_degree, other_micro_batch, device_dropped, sequence_moved, stages_swapped),
    *(stages_joined, stage_divided, other_devices, other_tensor_degree, other_rule),
)


# ---------------------------------------------------------------- the least found


@dataclass(frozen=True, slots=True)
class Rival:
    """A plan with its step, and how it was found."""

    plan: Plan
    seconds: float


def fastest(field: Field, answer: Plan | None, draws: int, steps: int) -> Rival | None:
    """The fastest plan by drawing, then by walking downhill from the best drawn ones and from the answer."""
    priced = [
        Rival(plan, seconds) for plan in drawn(field, draws) if (seconds := field.seconds(plan)) is not None
    ]
    priced.sort(key=lambda rival: rival.seconds)
    starts = priced[:2]
    if answer is not None and (seconds := field.seconds(answer)) is not None:
        starts = [Rival(answer, seconds), *starts]
    ends = [_downhill(field, start, steps // len(starts)) for start in starts]
    return min(ends, key=lambda rival: rival.seconds, default=None)


def _downhill(field: Field, start: Rival, steps: int) -> Rival:
    """Whatever is faster is kept; one step in four begins with a step that need not be."""
    best = start
    for _ in range(steps):
        plan = near(field, best.plan)
        if plan is not None and field.rng.random() < 0.25:
            plan = near(field, plan)
        seconds = None if plan is None else field.seconds(plan)
        if plan is not None and seconds is not None and seconds < best.seconds:
            best = Rival(plan, seconds)
    return best
