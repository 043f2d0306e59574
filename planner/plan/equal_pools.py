"""Plans on equal pools: the search sees these as one pool, whose hosts are those of all (planner.cluster.equal_pools).

Its plans are then written for the pools of the file. Placement takes nodes in the order of the hosts, so a plan
stands on the same nodes in both forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from planner.cluster.equal_pools import alike, joined
from planner.cluster.multi_node import undealt, widened
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType, Topology
from planner.errors import PlanError
from planner.plan.placement import Placement, Slot, node_span, place, widths
from planner.plan.values import Plan, ReplicaGroup, Sync


def on_own_pools(plan: Plan, seen: ClusterSpec, cluster: ClusterSpec) -> Plan:
    """A plan on the pools of ``seen``, in which equal ones are joined, on those of the cluster with the same hosts."""
    owner = {host: (pool.name, number) for number, pool in enumerate(cluster.pools) for host in pool.hosts}
    if plan.stage_nodes > 1:
        seen = undealt(seen)
    if wide := widths(plan, seen):
        # Replicas that fill several nodes lie in one pool of the cluster: nodes are widened before pools are joined.
        nodes = {host: wide.get(pool.name, 1) for pool in seen.pools for host in pool.hosts}
        each = {pool.name: nodes.get(pool.hosts[0], 1) for pool in cluster.pools}
        each = {name: width for name, width in each.items() if width > 1}
        whole = joined(widened(cluster, each))
        place(plan, whole)  # raises PlanError where nodes that are left over in several pools would be one
        return on_own_pools(plan, whole, cluster)
    hosts = {pool.name: pool.hosts for pool in seen.pools}
    owners = {name: {owner[host][0] for host in own} for name, own in hosts.items()}
    if all(owners[group.pool] == {group.pool} for stage in plan.stages for group in stage.replicas):
        return plan

    devices = {pool.name: pool.devices for pool in seen.pools}

    def divided(slot: Slot) -> Iterator[tuple[str, int]]:
        """Replicas of a slot by the pools of the cluster."""
        own = hosts[slot.pool][slot.first_node : slot.first_node + slot.nodes]
        for (name, _), nodes in groupby(own, key=owner.__getitem__):
            yield name, len(list(nodes)) * slot.replicas_per_node

    def dealt(group: ReplicaGroup, span: int) -> Iterator[tuple[str, int]]:
        """Replicas that fill so many nodes each: as many on each pool of the cluster as it has nodes for."""
        left = group.count
        for (name, _), nodes in groupby(hosts[group.pool], key=owner.__getitem__):
            count = min(left, len(list(nodes)) // span)
            left -= count
            if count:
                yield name, count
        if left:
            raise PlanError("a replica would stand on several pools")

    def regrouped(groups: tuple[ReplicaGroup, ...], slots: tuple[Slot, ...]) -> Iterator[ReplicaGroup]:
        waiting = iter(slots)
        for group in groups:
            counts: list[tuple[str, int]] = []
            span = node_span(group.tp, devices[group.pool].count(group.gpu))
            if span > 1:
                # Such a group, of a grid, is alone in its plan.
                counts += dealt(group, span)
            while sum(count for _, count in counts) < group.count:
                for name, count in divided(next(waiting)):
                    if counts and counts[-1][0] == name:
                        count += counts.pop()[1]
                    counts.append((name, count))
            for name, count in counts:
                yield replace(group, pool=name, count=count)

    stages = tuple(
        replace(stage, replicas=tuple(regrouped(stage.replicas, slots)))
        for stage, slots in zip(plan.stages, place(plan, seen), strict=True)
    )
    used = {group.pool for stage in stages for group in stage.replicas}
    own = {
        name: [owner[host][0] for host in nodes if owner[host][0] in used] for name, nodes in hosts.items()
    }
    return replace(plan, stages=stages, sync=_renamed(plan.sync, own))


def _renamed(sync: Sync, names: Mapping[str, Sequence[str]]) -> Sync:
    """The same islands of pools with other names."""
    islands = (tuple(dict.fromkeys(name for pool in pools for name in names[pool])) for pools in sync.islands)
    return replace(sync, islands=tuple(islands))


def on_joined_pools(plan: Plan, seen: ClusterSpec, cluster: ClusterSpec) -> Plan:
    """The other way round: a plan on the pools of the cluster, on those of ``seen`` that hold their hosts."""
    holder = {host: pool.name for pool in seen.pools for host in pool.hosts}
    name = {pool.name: holder.get(pool.hosts[0], pool.name) for pool in cluster.pools}

    def regrouped(groups: tuple[ReplicaGroup, ...]) -> Iterator[ReplicaGroup]:
        renamed = (replace(group, pool=name[group.pool]) for group in groups)
        for group, same in groupby(renamed, key=lambda group: replace(group, count=1)):
            yield replace(group, count=sum(item.count for item in same))

    stages = (replace(stage, replicas=tuple(regrouped(stage.replicas))) for stage in plan.stages)
    own = {old: [new] for old, new in name.items()}
    return replace(plan, stages=tuple(stages), sync=_renamed(plan.sync, own))


class Joined:
    """What a cluster is once its equal pools are joined, and where its nodes are then."""

    def __init__(self, topology: Topology) -> None:
        cluster = topology.cluster
        whole = joined(cluster)
        self.topology = topology if whole is cluster else Topology(whole)
        self._starts: dict[str, tuple[str, int]] = {}
        for pools in alike(cluster):
            ends = accumulate((len(pool.hosts) for pool in pools), initial=0)
            self._starts |= {
                pool.name: (pools[0].name, first) for pool, first in zip(pools, ends, strict=False)
            }

    def device_type(self, pool: str, gpu: str) -> DeviceType:
        """That of the joined pool that a pool of the cluster is part of: a group may stand on several parts."""
        return self.topology.device_type(self._starts[pool][0], gpu)

    def placement(self, placed: Placement) -> Placement:
        """The same nodes; what the pools of the cluster cut apart is one run of nodes again."""
        return tuple(
            tuple(_runs(map(self._moved, slots))) if len(slots) > 1 else (self._moved(slots[0]),)
            for slots in placed
        )

    def _moved(self, slot: Slot) -> Slot:
        pool, first = self._starts[slot.pool]
        return slot._replace(pool=pool, first_node=first + slot.first_node) if first else slot


def _runs(slots: Iterable[Slot]) -> Iterator[Slot]:
    """Slots in order, those that go on where the one before ends as one with it."""
    last: Slot | None = None
    for slot in slots:
        end = last.first_node + last.nodes if last else None
        if last and slot.first_node == end and slot == last._replace(first_node=end, nodes=slot.nodes):
            last = last._replace(nodes=last.nodes + slot.nodes)
            continue
        if last is not None:
            yield last
        last = slot
    if last is not None:
        yield last
