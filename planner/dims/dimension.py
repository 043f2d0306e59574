"""The protocol of plan dimensions: label, rules, and neighbouring values.

Beside these each module has the values of its dimension that are worth trying for a model, devices and a target's
capabilities, and what the dimension divides or keeps; what that costs in seconds and bytes is in ``planner.cost``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from planner.capabilities import Capabilities
from planner.cluster.equal_pools import likeness
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.errors import KeyPath
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, ReplicaGroup, groups_of


@dataclass(frozen=True, slots=True)
class Change:
    """A plan with one decision changed."""

    decision: str
    """Which decision: ``ZeRO 1``, ``recompute full``, ``layers``, ``micro-batch twice``, ``sequence parallel``."""
    what: str
    """What differs, e.g. ``ZeRO 1 instead of 0``."""
    plan: Plan


class Dimension:
    """One dimension; what it does not answer itself it has nothing to say of."""

    fields: tuple[str, ...] = ()
    """What of a plan is its own, as ``class.field``."""

    def traits(self, plan: Plan) -> dict[str, str]:
        """Its decisions as label and text, in the order in which they are shown."""
        return {}

    def words(self, plan: Plan) -> str:
        """Its decision in the one line that names a plan; empty where it is off."""
        return ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """What of the plan the target does not run, or not with this model."""
        yield from ()

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """What the cluster lacks for it beside devices and links."""
        yield from ()

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Plans that differ in this dimension alone."""
        yield from ()


def node_devices(cluster: ClusterSpec) -> dict[tuple[str, str], int]:
    """Devices of each type on one node of its pool, by pool and GPU."""
    return {(pool.name, gpu): pool.devices.count(gpu) for pool in cluster.pools for gpu in {*pool.devices}}


def runs_of(plan: Plan, cluster: ClusterSpec | None = None) -> Iterator[tuple[KeyPath, ReplicaGroup]]:
    """The groups of a plan, those next to each other as one where replicas of both may share experts or sequences.

    They are of one device type; on a ``cluster`` also of equal pools, which are as good as one.
    """
    names = {pool.name: likeness(pool) for pool in cluster.pools} if cluster else {}

    def alike(item: tuple[KeyPath, ReplicaGroup]) -> tuple[object, ...]:
        path, group = item
        return path[:2], names.get(group.pool), group.gpu, group.tp

    for _, items in groupby(groups_of(plan), key=alike):
        (path, first), *others = items
        yield path, replace(first, count=first.count + sum(group.count for _, group in others))


def single_device_faults(plan: Plan, what: str, replicas: str) -> Iterator[Fault]:
    """What a plan has beside one stage of replicas of one device with whole sequences; ``what`` needs such ones."""
    if plan.pp > 1:
        yield Fault(("stages",), f"{what} for plans of one stage, expected 1, got {plan.pp}")
    for path, group in groups_of(plan):
        if group.tp > 1:
            yield Fault((*path, "tp"), f"{replicas} are one device each, expected 1, got {group.tp}")
    if plan.cp > 1:
        yield Fault(("cp",), f"{replicas} have whole sequences, expected 1, got {plan.cp}")


def allowed(values: tuple[int, ...], limit: tuple[int, ...] | None) -> tuple[int, ...]:
    """Values that the user's limit keeps; None keeps all."""
    if limit is None:
        return values
    wanted = set(limit)
    return tuple(value for value in values if value in wanted)


def by_stage(texts: Iterable[str]) -> str:
    """Texts of all stages: ``23|9``; equal neighbours as ``12 (x 7)|8``; all equal as one."""
    grouped = [(text, len(list(same))) for text, same in groupby(texts)]
    if len(grouped) == 1:
        return grouped[0][0]
    return "|".join(text if length == 1 else f"{text} (x {length})" for text, length in grouped)


def by_group(texts: Iterable[str]) -> str:
    """Texts of the groups of one stage: ``4+1``; all equal as one."""
    parts = list(texts)
    return parts[0] if len(set(parts)) == 1 else "+".join(parts)
