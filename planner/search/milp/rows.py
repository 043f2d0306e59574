"""Rows of the ILP about devices and nodes, and about what a runtime demands of all stages together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pulp

from planner.cluster.topology import DeviceType
from planner.search.space.stages import Option, StageOptions

Taken = Sequence[tuple[int, Option, pulp.LpVariable]]
"""(stage, option, its variable) of all options of all stages."""


def total(terms: Iterable[tuple[float, pulp.LpVariable]]) -> pulp.LpAffineExpression:
    """The sum of factors times variables; a variable may occur twice."""
    return pulp.lpSum(factor * variable for factor, variable in terms)


def device_rows(stages: StageOptions, taken: Taken) -> Iterator[pulp.LpConstraint]:
    """No device twice: replicas against room where all have one degree, devices otherwise."""
    tp = stages.choice.family.tp
    for device_type in stages.topology.device_types:
        used = [
            (group.count * (1 if tp else group.tp), variable)
            for _, option, variable in taken
            for group in stages.compositions[option.composition]
            if (group.pool, group.gpu) == device_type.key
        ]
        if used:
            # sum of replicas, or of devices, of a type <= what the cluster has of it
            yield total(used) <= (device_type.replicas(tp) if tp else device_type.devices)


def node_rows(
    stages: StageOptions, taken: Taken, fresh: Mapping[tuple[str, str], list[pulp.LpVariable]]
) -> Iterator[pulp.LpConstraint]:
    """No node twice: what fills nodes, and each part of a node with its like.

    ``fresh`` holds, for types whose runs of stages smaller than a node all begin on untouched ones, who begins one.
    """
    for device_type in stages.topology.device_types:
        parts = [
            (part, variable) for _, option, variable in taken for part in _parts(stages, option, device_type)
        ]
        begun = [(1, variable) for variable in fresh.get(device_type.key, [])]
        if begun:
            yield total([*((whole, x) for (whole, _, _), x in parts), *begun]) <= device_type.nodes
        for least in sorted({rest for (_, _, rest), _ in parts}):
            shares = [(_share(part, least, device_type), variable) for part, variable in parts]
            # sum of the shares of a node that parts of ``least`` devices or more take <= nodes
            yield total((share, x) for share, x in shares if share) <= device_type.nodes


Part = tuple[int, int, int]
"""Nodes that a group fills, the devices it takes on each, and those it takes beside, all on one node."""


def _parts(stages: StageOptions, option: Option, device_type: DeviceType) -> Iterator[Part]:
    for group in stages.compositions[option.composition]:
        if (group.pool, group.gpu) == device_type.key:
            per_node = device_type.per_node // group.tp
            whole, rest = divmod(group.count, per_node)
            yield whole, per_node * group.tp, rest * group.tp


def _share(part: Part, least: int, device_type: DeviceType) -> float:
    """Nodes that a group takes at least from those that hold parts of ``least`` devices or more, each an even share."""
    whole, filled, rest = part
    if not least:
        return float(whole)
    room = device_type.per_node // least
    return whole * (1 - (device_type.per_node - filled) // least / room) + (rest >= least) / room


def mixed_rows(stages: StageOptions, taken: Taken) -> Iterator[pulp.LpConstraint]:
    """Few stages of several device types."""
    mixed = [x for _, option, x in taken if stages.is_mixed(option.composition)]
    if mixed and stages.most_mixed < stages.choice.depth:
        yield pulp.lpSum(mixed) <= stages.most_mixed


def tied_rows(stages: StageOptions, taken: Taken) -> Iterator[pulp.LpConstraint]:
    """Degrees of the first stage need degrees of the last that can hold the same embedding, and the reverse."""
    if not stages.joins_ends:
        return
    first, last = (_by_degrees(stages, taken, stage) for stage in (0, stages.choice.depth - 1))
    for these, others in ((first, last), (last, first)):
        for one, variables in these.items():
            partners = [x for other, found in others.items() if stages.joined(one, other) for x in found]
            # x[first, degrees] <= sum of x[last, degrees that fit], and the reverse
            yield pulp.lpSum(variables) <= pulp.lpSum(partners)


def _by_degrees(stages: StageOptions, taken: Taken, stage: int) -> dict[int, list[pulp.LpVariable]]:
    """Variables of a stage by one of the compositions with the same tp and dp."""
    named: dict[tuple[int, int], int] = {}
    found: dict[int, list[pulp.LpVariable]] = {}
    for number, option, variable in taken:
        if number == stage:
            groups = stages.compositions[option.composition]
            degrees = groups[0].tp, sum(group.count for group in groups)
            found.setdefault(named.setdefault(degrees, option.composition), []).append(variable)
    return found


def placed_alike(stages: StageOptions, taken: Taken, slots: Sequence[int]) -> pulp.LpConstraint:
    """No plan whose stages take the same parts of nodes as these compositions, [stage]."""
    wanted = [stages.footprint(composition) for composition in slots]
    alike = [x for stage, option, x in taken if stages.footprint(option.composition) == wanted[stage]]
    # sum_s x[s, any option on these parts] <= p - 1
    return pulp.lpSum(alike) <= len(slots) - 1
