"""Which device of which node runs each rank of a plan.

Ranks run tensor-parallel fastest, then replica, then stage; this is the default order of Megatron
and of DeepSpeed's pipeline (pipe, data). A replica never leaves its node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.errors import PlanError
from planner.plan import Plan, ReplicaGroup, Stage
from planner.spec.cluster import ClusterSpec, PoolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Replicas of one group on one run of identical nodes."""

    pool: str
    gpu: str
    tp: int
    first_node: int
    nodes: int
    """Consecutive nodes, each with ``replicas_per_node`` replicas."""
    first_device: int
    """Offset, on each node, among the node's devices of this kind."""
    replicas_per_node: int

    @property
    def replicas(self) -> int:
        """Replicas on all nodes of the run."""
        return self.nodes * self.replicas_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process: where it runs and what it is."""

    rank: int
    host: str
    device: int
    """Index of the device on its node."""
    pool: str
    gpu: str
    stage: int
    replica: int
    tp_rank: int
    group: int
    """Index of the replica group in its stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A maximal run of consecutive ranks on one node: one torchrun."""

    host: str
    pool: str
    first_rank: int
    devices: tuple[int, ...]


Placement = tuple[tuple[Slot, ...], ...]
"""Slots of each stage, [stage][slot]."""


class _Kind:
    """Free devices of one kind in one pool: untouched nodes and partly used ones."""

    def __init__(self, pool: PoolSpec, gpu: str) -> None:
        self.pool = pool.name
        self.gpu = gpu
        self.per_node = pool.devices.count(gpu)
        self.nodes = len(pool.hosts)
        self.next_fresh = 0
        self.used: dict[int, int] = {}

    def free(self, node: int) -> int:
        return self.per_node - self.used[node]

    def take(self, group: ReplicaGroup) -> list[Slot]:
        """Slots of a group: whole nodes first, the rest on the tightest node that holds it."""
        per_node = self.per_node // group.tp
        whole = min(group.count // per_node, self.nodes - self.next_fresh) if per_node else 0
        slots = []
        if whole:
            slots.append(self._slot(group, self.next_fresh, whole, 0, per_node))
            for node in range(self.next_fresh, self.next_fresh + whole):
                self.used[node] = per_node * group.tp
            self.next_fresh += whole
        return slots + self._take_rest(group, group.count - whole * per_node)

    def _take_rest(self, group: ReplicaGroup, count: int) -> list[Slot]:
        slots = []
        while count:
            node, replicas = self._best_node(group.tp, count)
            offset = self.used.setdefault(node, 0)
            slots.append(self._slot(group, node, 1, offset, replicas))
            self.used[node] = offset + replicas * group.tp
            count -= replicas
        return slots

    def _best_node(self, tp: int, count: int) -> tuple[int, int]:
        """The fullest node that still holds all, else an untouched one, else the emptiest."""
        holding = [node for node in self.used if self.free(node) >= count * tp]
        if holding:
            return min(holding, key=lambda node: (self.free(node), node)), count
        if self.next_fresh < self.nodes and self.per_node >= tp:
            self.next_fresh += 1
            return self.next_fresh - 1, min(count, self.per_node // tp)
        partly = [node for node in self.used if self.free(node) >= tp]
        if not partly:
            raise PlanError(f"pool {self.pool}: no {tp} devices {self.gpu} left on one node")
        node = max(partly, key=lambda node: (self.free(node), -node))
        return node, min(count, self.free(node) // tp)

    def _slot(self, group: ReplicaGroup, node: int, nodes: int, offset: int, replicas: int) -> Slot:
        return Slot(
            pool=self.pool,
            gpu=self.gpu,
            tp=group.tp,
            first_node=node,
            nodes=nodes,
            first_device=offset,
            replicas_per_node=replicas,
        )


def place(plan: Plan, cluster: ClusterSpec) -> Placement:
    """Give every stage its devices, [stage][slot]; raises PlanError when the cluster has too few."""
    kinds = {(pool.name, gpu): _Kind(pool, gpu) for pool in cluster.pools for gpu in set(pool.devices)}
    order = sorted(
        ((stage, index) for stage in range(plan.pp) for index in range(len(plan.stages[stage].replicas))),
        key=lambda at: (-plan.stages[at[0]].replicas[at[1]].tp, at),
    )
    taken: dict[tuple[int, int], list[Slot]] = {}
    for stage, index in order:
        group = plan.stages[stage].replicas[index]
        kind = kinds.get((group.pool, group.gpu))
        if kind is None:
            raise PlanError(f"stages[{stage}]: the cluster has no {group.gpu} in a pool named {group.pool}")
        taken[stage, index] = kind.take(group)
    return tuple(
        tuple(slot for index in range(len(stage.replicas)) for slot in taken[number, index])
        for number, stage in enumerate(plan.stages)
    )


def ranks(plan: Plan, cluster: ClusterSpec) -> tuple[Rank, ...]:
    """Every process of the plan in rank order."""
    pools = {pool.name: pool for pool in cluster.pools}
    found: list[Rank] = []
    for number, (stage, slots) in enumerate(zip(plan.stages, place(plan, cluster), strict=True)):
        for replica, (group, slot, node, index) in enumerate(_replicas(stage, slots)):
            pool = pools[slot.pool]
            devices = [device for device, gpu in enumerate(pool.devices) if gpu == slot.gpu]
            first = slot.first_device + index * slot.tp
            for tp_rank, device in enumerate(devices[first : first + slot.tp]):
                found.append(
                    Rank(
                        rank=len(found),
                        host=pool.hosts[node],
                        device=device,
                        pool=slot.pool,
                        gpu=slot.gpu,
                        stage=number,
                        replica=replica,
                        tp_rank=tp_rank,
                        group=group,
                    )
                )
    return tuple(found)


def _replicas(stage: Stage, slots: tuple[Slot, ...]) -> Iterator[tuple[int, Slot, int, int]]:
    """(group, slot, node, index on the node) of each replica; slots stand in group order."""
    group, left = 0, stage.replicas[0].count
    for slot in slots:
        for node in range(slot.first_node, slot.first_node + slot.nodes):
            for index in range(slot.replicas_per_node):
                if left == 0:
                    group += 1
                    left = stage.replicas[group].count
                left -= 1
                yield group, slot, node, index


def agents(all_ranks: tuple[Rank, ...]) -> tuple[Agent, ...]:
    """Launchers in rank order: consecutive ranks on one node share one."""
    found: list[Agent] = []
    for rank in all_ranks:
        last = found[-1] if found else None
        if last is not None and last.host == rank.host and rank.device not in last.devices:
            found[-1] = Agent(host=last.host, pool=last.pool, first_rank=last.first_rank, devices=(*last.devices, rank.device))
        else:
            found.append(Agent(host=rank.host, pool=rank.pool, first_rank=rank.rank, devices=(rank.device,)))
    return tuple(found)
