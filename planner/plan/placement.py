"""Which device of which node runs each rank of a plan.

Ranks run tensor-parallel fastest, then replica, then stage; this is the default order of Megatron
and of DeepSpeed's pipeline (pipe, data). ``by_pipeline`` numbers them stage before replica, Megatron's other
order. A replica lies in a node or fills several; a group smaller than a node never leaves it, unless the plan deals
its stages over several (``Plan.stage_nodes``). What
a runtime demands of all stages together is checked in plans and obeyed by the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Literal, NamedTuple, get_args

from planner.capabilities import Capabilities
from planner.cluster.equal_pools import joined
from planner.cluster.multi_node import dealt, widened
from planner.cluster.spec import ClusterSpec, PoolSpec, dealt_over
from planner.cluster.topology import DeviceType, Topology
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.targets import target


class Slot(NamedTuple):
    """Replicas of one group on one run of identical nodes."""

    pool: str
    gpu: str
    tp: int
    """Devices of a replica, or of the part of one that fills a node."""
    first_node: int
    nodes: int
    """Consecutive nodes, each with ``replicas_per_node`` replicas."""
    first_device: int
    """Offset, on each node, among the node's devices of this type."""
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


_Rests = Literal["nodes first", "gaps first", "divided"]
"""Where remainders go that are smaller than a node."""


class _FreeDevices:
    """Free devices of one type in one pool: untouched nodes and partly used ones."""

    def __init__(self, pool: PoolSpec, gpu: str, *, spans: bool) -> None:
        self.spans = spans
        """True where a replica may fill several nodes."""
        self.pool = pool.name
        self.dealt = dealt_over(pool)
        """Nodes of the cluster file that a node here is, on each of which a stage takes the same part."""
        self.gpu = gpu
        self.per_node = pool.devices.count(gpu)
        self.nodes = len(pool.hosts)
        self.whole = 0
        """The first nodes, which stages fill."""
        self.used: dict[int, int] = {}
        self.rests: dict[int, set[int]] = {}
        """Nodes that hold what is less than a node of a stage."""

    def take_whole_nodes(self, group: ReplicaGroup) -> list[Slot]:
        """The part of a group that fills nodes, on untouched ones."""
        per_node = self.replicas_per_node(group)
        nodes = group.count // per_node
        if not nodes:
            return []
        if self.whole + nodes > self.nodes:
            raise PlanError(f"pool {self.pool}: fewer than {nodes} nodes left for {group.count} replicas")
        first, self.whole = self.whole, self.whole + nodes
        if per_node * group.tp < self.per_node:
            self.used.update(dict.fromkeys(range(first, self.whole), per_node * group.tp))
        return [self._slot(group, first, nodes, 0, per_node)]

    def take_rest(
        self, group: ReplicaGroup, stage: int, beside: int, how: _Rests, others: Sequence[_FreeDevices]
    ) -> list[Slot]:
        """The part of a group smaller than a node, all of it on one node, at best where ``beside`` has its rests.

        ``others``: types of the same nodes of which the stage has rests; all come to one node if one is untouched by
        them.
        """
        count = group.count % self.replicas_per_node(group)
        if not count:
            return []
        near = self.rests.get(beside, set())
        for other in others:
            near = near | other.rests.get(stage, set())
        node = self._node_for(count * group.tp, near, how, others)
        counts = {node: count} if node is not None else {}
        if node is None and how == "divided":
            counts = self._left_over(count, group.tp)
        if not counts:
            raise PlanError(f"pool {self.pool}: no node is left for {count * group.tp} devices {self.gpu}")
        # Of a stage that shares the node of the one before only the newest nodes count.
        kept = self.rests.get(stage, set()) if beside == stage else set()
        self.rests[stage] = kept | set(counts)
        slots = []
        for number, replicas in sorted(counts.items()):
            offset = self.used.get(number, 0)
            self.used[number] = offset + replicas * group.tp
            slots.append(self._slot(group, number, 1, offset, replicas))
        return slots

    def _left_over(self, count: int, tp: int) -> dict[int, int]:
        """So many replicas on what nodes have left, the fullest first, by node; empty where that is not enough."""
        counts: dict[int, int] = {}
        for node in sorted(self.used, key=lambda node: (-self.used[node], node)):
            taken = min(count, (self.per_node - self.used[node]) // tp)
            if taken:
                counts[node] = taken
                count -= taken
        return {} if count else counts

    def parts(self, group: ReplicaGroup) -> ReplicaGroup:
        """The group itself; of replicas that fill several nodes the parts that fill one."""
        span = node_span(group.tp, self.per_node) if self.spans else 1
        if span == 1:
            return group
        return replace(group, tp=self.per_node, count=span * group.count)

    def replicas_per_node(self, group: ReplicaGroup) -> int:
        devices = self.per_node // self.dealt
        if group.tp > devices:
            raise PlanError(f"pool {self.pool}: a node has {devices} {self.gpu}, tp {group.tp} needs more")
        return self.dealt * (devices // group.tp)

    def _node_for(
        self, devices: int, near: set[int], how: _Rests, others: Sequence[_FreeDevices]
    ) -> int | None:
        """A node that is near and has room, else an untouched one, else the fullest with room; None for none."""
        gaps = {node for node, used in self.used.items() if self.per_node - used >= devices}
        candidates = gaps & near or {node for node in near if others and self._is_fresh(node)}
        if not candidates and not (gaps and how == "gaps first"):
            fresh = self._fresh(others)
            if fresh is not None:
                return fresh
        return min(candidates or gaps, key=lambda node: (-self.used.get(node, 0), node), default=None)

    def _is_fresh(self, node: int) -> bool:
        """True for an untouched node."""
        return self.whole <= node and node not in self.used

    def _fresh(self, others: Sequence[_FreeDevices]) -> int | None:
        """The first node that is untouched by the others too, else by this type alone; None for none."""
        for untouched in (others, ()) if others else ((),):
            for node in range(self.whole, self.nodes):
                if self._is_fresh(node) and all(other._is_fresh(node) for other in untouched):
                    return node
        return None

    def _slot(self, group: ReplicaGroup, node: int, nodes: int, offset: int, replicas: int) -> Slot:
        """Where the replicas stand on nodes as the cluster file has them."""
        if replicas % self.dealt:
            what = f"pool {self.pool}: {group.count} replicas cannot be dealt evenly over {self.dealt} nodes"
            raise PlanError(what, path=("stage_nodes",))
        return Slot(
            pool=self.pool,
            gpu=self.gpu,
            tp=group.tp,
            first_node=self.dealt * node,
            nodes=self.dealt * nodes,
            first_device=offset // self.dealt,
            replicas_per_node=replicas // self.dealt,
        )


def replicas_on(
    device_type: DeviceType, tp: int, count: int = 1, share: int = 1, steps: int = 1, shard: int = 1
) -> ReplicaGroup:
    """Replicas of ``tp`` devices of one type, each with a local batch of ``share`` sequences in ``steps``;
    ``shard`` as in ``ReplicaGroup``."""
    return ReplicaGroup(
        pool=device_type.pool,
        gpu=device_type.gpu,
        tp=tp,
        count=count,
        local_batch=share,
        accumulation_steps=steps,
        shard=shard,
    )


def one_replica(group: ReplicaGroup) -> Slot:
    """Where one replica of a group stands alone, on the first node of its pool."""
    return Slot(
        pool=group.pool,
        gpu=group.gpu,
        tp=group.tp,
        first_node=0,
        nodes=1,
        first_device=0,
        replicas_per_node=1,
    )


def node_span(tp: int, per_node: int) -> int:
    """Nodes that a replica of so many devices fills; 1 for one that lies in a node, or does not fill nodes."""
    return tp // per_node if tp % per_node == 0 else 1


def widths(plan: Plan, cluster: ClusterSpec) -> dict[str, int]:
    """Nodes that a tensor-parallel replica fills, by pool: of those pools whose replicas stand on several nodes.

    Grids go their own way. Raises PlanError where replicas neither lie in a node nor fill nodes.
    """
    if plan.grid is not None or plan.stage_nodes > 1:
        return {}
    pools = {pool.name: pool for pool in cluster.pools}
    groups = {(group.pool, group.gpu, group.tp) for stage in plan.stages for group in stage.replicas}
    found: dict[str, int] = {}
    for name, gpu, tp in sorted(groups):
        per_node = pools[name].devices.count(gpu) if name in pools else 0
        if not per_node or tp <= per_node:
            continue
        what = f"pool {name}: a node has {per_node} {gpu}, tp {tp} needs more"
        if len({*pools[name].devices}) > 1:
            raise PlanError(f"{what}, and replicas on several nodes need nodes of one device type")
        if tp % per_node:
            raise PlanError(f"{what} and fills no whole nodes")
        found[name] = tp // per_node
    for name, gpu, tp in sorted(groups) if found else ():
        if name in found and tp != found[name] * pools[name].devices.count(gpu):
            raise PlanError(f"pool {name}: replicas on several nodes need the same tp in all of the pool")
    return found


def place(plan: Plan, cluster: ClusterSpec) -> Placement:
    """Give every stage its devices, [stage][slot]; raises PlanError when the cluster has too few.

    Where one node of a pool has room, and its other nodes would cost all ranks their RDMA, the plan stands on that one.
    Replicas that fill several nodes have slots of whole nodes, as grids have.
    """
    if plan.stage_nodes > 1:
        return _dealt(plan, cluster)
    wide = widths(plan, cluster)
    if wide:
        placement = place(plan, widened(cluster, wide))
        return tuple(tuple(_narrow(slot, wide.get(slot.pool, 1)) for slot in slots) for slots in placement)
    # Replicas that share sequences or experts stay together.
    whole = plan.cp > 1 or plan.folding.ways > max(
        group.tp for stage in plan.stages for group in stage.replicas
    )
    put = partial(
        place_stages, [stage.replicas for stage in plan.stages], spans=plan.grid is not None, whole=whole
    )
    placement = put(cluster)
    row = target(plan.target)
    if row.network_per_group or not plan.sync.exact:
        return placement
    lone = _with_lone_nodes(placement, cluster)
    if lone is not None:
        with suppress(PlanError):
            together = put(lone)
            if not (row.hosts_once and split_nodes(together)):
                return together
    return placement


def _dealt(plan: Plan, cluster: ClusterSpec) -> Placement:
    """Stages dealt over nodes, those of equal pools as if they were of one."""
    whole = joined(cluster)
    seen = dealt(whole, plan.stage_nodes)
    holder = {host: pool.name for pool in whole.pools for host in pool.hosts}
    name = {pool.name: holder[pool.hosts[0]] for pool in cluster.pools}
    own = {host: (pool.name, number) for pool in cluster.pools for number, host in enumerate(pool.hosts)}
    hosts = {pool.name: pool.hosts for pool in whole.pools}

    def together(groups: Sequence[ReplicaGroup]) -> list[ReplicaGroup]:
        """The groups on pools as one."""
        try:
            renamed = [replace(group, pool=name[group.pool]) for group in groups]
        except KeyError as error:
            raise PlanError(f"the cluster has no pool named {error.args[0]}") from None
        alike = groupby(renamed, key=lambda group: replace(group, count=1))
        return [replace(group, count=sum(item.count for item in same)) for group, same in alike]

    def apart(slot: Slot) -> Iterator[Slot]:
        """The same nodes in the pools of the cluster."""
        nodes = [own[host] for host in hosts[slot.pool][slot.first_node : slot.first_node + slot.nodes]]
        for pool, some in groupby(nodes, key=itemgetter(0)):
            (_, first), *others = some
            yield slot._replace(pool=pool, first_node=first, nodes=1 + len(others))

    placed = place_stages([together(stage.replicas) for stage in plan.stages], seen, whole=True)
    placement = tuple(tuple(chain.from_iterable(map(apart, slots))) for slots in placed)
    for stage, slots in zip(plan.stages, placement, strict=True):
        there = _counts((slot.pool, slot.gpu, slot.tp, slot.replicas) for slot in slots)
        if there != _counts((group.pool, group.gpu, group.tp, group.count) for group in stage.replicas):
            wanted = " + ".join(f"{count} on {pool}" for (pool, _, _), count in there)
            raise PlanError(
                f"the nodes in turn have replicas in other pools: {wanted}", path=("stage_nodes",)
            )
    return placement


def _counts(
    groups: Iterable[tuple[str, str, int, int]],
) -> list[tuple[tuple[str, str, int], int]]:
    """Replicas by (pool, gpu, tp), those next to each other together."""
    return [(key, sum(count for *_, count in same)) for key, same in groupby(groups, key=itemgetter(0, 1, 2))]


def _with_lone_nodes(placement: Placement, cluster: ClusterSpec) -> ClusterSpec | None:
    """The cluster with one node of each pool that Ethernet alone keeps from RDMA; None where that gives none."""
    slots = [*chain.from_iterable(placement)]
    used, alone = {slot.pool for slot in slots}, lone_nodes(slots)
    if len(used) == 1 or len(alone) == len(used):
        return None

    def would_do(pool: PoolSpec) -> bool:
        """True where one node has room, and cards of both kinds: by Ethernet to its like, by RDMA to others."""
        if len({cluster.fabrics[nic.fabric].kind == "ethernet" for nic in pool.nics}) == 1:
            return False
        devices: Counter[str] = Counter()
        for slot in slots:
            if slot.pool == pool.name:
                devices[slot.gpu] += slot.replicas * slot.tp
        return all(count <= pool.devices.count(gpu) for gpu, count in devices.items())

    candidates = [pool.name for pool in cluster.pools if pool.name in used - alone and would_do(pool)]
    if not candidates:
        return None
    topology = Topology(cluster)
    slow = {name for name in candidates if not topology.on_rdma(name, name)}
    if not slow or topology.needs_sockets(used, slow | alone):
        return None
    pools = (
        pool.model_copy(update={"hosts": pool.hosts[:1]}) if pool.name in slow else pool
        for pool in cluster.pools
    )
    return cluster.model_copy(update={"pools": tuple(pools)})


def _narrow(slot: Slot, width: int) -> Slot:
    """A slot of wide nodes as one of the nodes that they are made of."""
    return slot._replace(tp=slot.tp // width, first_node=width * slot.first_node, nodes=width * slot.nodes)


def place_stages(
    stages: Sequence[Sequence[ReplicaGroup]],
    cluster: ClusterSpec,
    *,
    spans: bool = False,
    whole: bool = False,
) -> Placement:
    """Give every group of every stage its devices, [stage][slot].

    Groups that fill nodes get untouched ones. A stage smaller than a node never straddles two: it shares
    the node of the stage before it while that has room, so neighbours in the pipeline are neighbours on the
    node. Remainders of larger or mixed stages come last, those of one stage together, of several device types too. What
    finds no untouched node fills gaps; where nodes are then too few, remainders fill gaps first; where they still are,
    stage after stage takes its place, and what no node has room for is divided over what nodes have left. ``spans``:
    replicas may fill several nodes. ``whole``: nothing is divided.
    """
    ways: tuple[_Rests, ...] = ("nodes first", "gaps first") if whole else get_args(_Rests)
    for how in ways[:-1]:
        with suppress(PlanError):
            return _place(stages, cluster, how, spans=spans)
    return _place(stages, cluster, ways[-1], spans=spans)


def _place(
    stages: Sequence[Sequence[ReplicaGroup]], cluster: ClusterSpec, how: _Rests, *, spans: bool
) -> Placement:
    used = {group.pool for groups in stages for group in groups}
    device_types = {
        (pool.name, gpu): _FreeDevices(pool, gpu, spans=spans)
        for pool in cluster.pools
        if pool.name in used
        for gpu in set(pool.devices)
    }
    wanted = [
        _Wanted(stage, index, (own := _kind_of(device_types, group)).parts(group), own, len(groups) == 1)
        for stage, groups in enumerate(stages)
        for index, group in enumerate(groups)
    ]
    taken = {(item.stage, item.index): item.device_type.take_whole_nodes(item.group) for item in wanted}
    if how != "divided":
        wanted.sort(key=lambda item: (not item.is_small_stage, item.stage, item.index))
    together: dict[tuple[int, str], list[_FreeDevices]] = {}
    for item in wanted:
        if not item.alone and item.group.count % item.device_type.replicas_per_node(item.group):
            together.setdefault((item.stage, item.device_type.pool), []).append(item.device_type)
    for item in wanted:
        small = item.is_small_stage
        taken[item.stage, item.index] += item.device_type.take_rest(
            item.group,
            item.stage,
            item.stage - small,
            "nodes first" if small and how == "gaps first" else how,
            together.get((item.stage, item.device_type.pool), ()),
        )
    return tuple(
        tuple(slot for index in range(len(groups)) for slot in taken[stage, index])
        for stage, groups in enumerate(stages)
    )


def lone_nodes(slots: Iterable[Slot]) -> set[str]:
    """Pools of which these slots stand on one node."""
    first: dict[str, int] = {}
    several = {
        slot.pool
        for slot in slots
        if first.setdefault(slot.pool, slot.first_node) != slot.first_node or slot.nodes > 1
    }
    return first.keys() - several


def split_nodes(placement: Placement) -> dict[tuple[str, int], int]:
    """Nodes, (pool, number), whose ranks are not consecutive, and the stage that comes back to each first."""
    before: tuple[str, int] | None = None
    left: set[tuple[str, int]] = set()
    first_stages: dict[tuple[str, int], int] = {}
    for stage, slots in enumerate(placement):
        for slot in slots:
            for number in range(slot.first_node, slot.first_node + slot.nodes):
                node = slot.pool, number
                if node != before and node in left:
                    first_stages.setdefault(node, stage)
                left.add(node)
                before = node
    return first_stages


@dataclass(frozen=True, slots=True)
class _Wanted:
    stage: int
    index: int
    group: ReplicaGroup
    device_type: _FreeDevices
    alone: bool

    @property
    def is_small_stage(self) -> bool:
        """True for a whole stage that needs less than a node."""
        return self.alone and self.group.count < self.device_type.replicas_per_node(self.group)


def _kind_of(device_types: dict[tuple[str, str], _FreeDevices], group: ReplicaGroup) -> _FreeDevices:
    try:
        return device_types[group.pool, group.gpu]
    except KeyError:
        raise PlanError(f"the cluster has no {group.gpu} in a pool named {group.pool}") from None


def ranks(plan: Plan, cluster: ClusterSpec) -> tuple[Rank, ...]:
    """Every process of the plan in rank order."""
    pools = {pool.name: pool for pool in cluster.pools}
    placed: list[Rank] = []
    for number, (stage, slots) in enumerate(zip(plan.stages, place(plan, cluster), strict=True)):
        for part in replica_parts(stage, slots):
            slot, pool = part.slot, pools[part.slot.pool]
            devices = [device for device, gpu in enumerate(pool.devices) if gpu == slot.gpu]
            first = slot.first_device + part.index * slot.tp
            for tp_rank, device in enumerate(devices[first : first + slot.tp], part.before):
                placed.append(
                    Rank(
                        rank=len(placed),
                        host=pool.hosts[part.node],
                        device=device,
                        pool=slot.pool,
                        gpu=slot.gpu,
                        stage=number,
                        replica=part.replica,
                        tp_rank=tp_rank,
                        group=part.group,
                    )
                )
    return tuple(placed)


@dataclass(frozen=True, slots=True)
class ReplicaPart:
    """The devices of a replica that are on one node."""

    replica: int
    group: int
    slot: Slot
    node: int
    index: int
    """Among those of the slot on the node."""
    before: int
    """Devices of the replica on earlier nodes."""


def replica_parts(stage: Stage, slots: tuple[Slot, ...]) -> Iterator[ReplicaPart]:
    """Every replica, those that fill several nodes node by node; slots stand in group order."""
    replica, before, group, left = 0, 0, 0, stage.replicas[0].count
    for slot in slots:
        for node in range(slot.first_node, slot.first_node + slot.nodes):
            for index in range(slot.replicas_per_node):
                if left == 0:
                    group += 1
                    left = stage.replicas[group].count
                yield ReplicaPart(replica, group, slot, node, index, before)
                before += slot.tp
                if before == stage.replicas[group].tp:
                    replica, before, left = replica + 1, 0, left - 1


def by_pipeline(all_ranks: tuple[Rank, ...]) -> tuple[Rank, ...]:
    """The same processes numbered tensor-parallel fastest, then stage, then replica.

    On nodes that mix device types the stages of a replica are neighbours this way, so a node is one launcher.
    """
    ordered = sorted(all_ranks, key=lambda rank: (rank.replica, rank.stage, rank.tp_rank))
    return tuple(replace(rank, rank=number) for number, rank in enumerate(ordered))


def in_fewest_runs(usual: tuple[Rank, ...]) -> tuple[Rank, ...]:
    """The ranks as they are or by pipeline, in the order that needs fewer launchers."""
    other = by_pipeline(usual)
    return other if len(agents(other)) < len(agents(usual)) else usual


def by_copies(plan: Plan, all_ranks: tuple[Rank, ...]) -> tuple[Rank, ...]:
    """The same processes where each layer of a grid's depth is a replica (``Plan.copies``)."""
    grid = plan.grid
    if grid is None or grid.depth == 1:
        return all_ranks
    return tuple(
        replace(
            rank,
            replica=rank.replica * grid.depth + rank.tp_rank // grid.layer,
            tp_rank=rank.tp_rank % grid.layer,
        )
        for rank in all_ranks
    )


def agents(all_ranks: tuple[Rank, ...]) -> tuple[Agent, ...]:
    """Launchers in rank order: consecutive ranks on one node share one."""
    launchers: list[Agent] = []
    for rank in all_ranks:
        last = launchers[-1] if launchers else None
        if last is not None and last.host == rank.host and rank.device not in last.devices:
            launchers[-1] = Agent(
                host=last.host,
                pool=last.pool,
                first_rank=last.first_rank,
                devices=(*last.devices, rank.device),
            )
        else:
            launchers.append(
                Agent(host=rank.host, pool=rank.pool, first_rank=rank.rank, devices=(rank.device,))
            )
    return tuple(launchers)


Groups = Sequence[ReplicaGroup]
"""Replicas of one stage."""


def joins_ends(row: Capabilities, model: ModelSpec) -> bool:
    """True when the runtime ties the embedding of the first stage to the output layer of the last under conditions."""
    return row.joins_tied_ends and model.tied_embeddings


def ends_fault(zero: int, first: Groups, last: Groups) -> str:
    """Why these stages cannot hold one tied embedding; empty when they can."""
    if first[0].tp != last[0].tp:
        return f"the same tp on the first and last stage, got {first[0].tp} and {last[0].tp}"
    here, there = (sum(group.count for group in groups) for groups in (first, last))
    if zero and here % there and there % here:
        return f"first and last stages whose replicas divide with ZeRO {zero}, got {here} and {there}"
    return ""


def nodes_once(row: Capabilities, stages: Sequence[Groups], cluster: ClusterSpec) -> bool:
    """True when the runtime starts each node at most as often as it can; raises PlanError for too few devices."""
    return not (row.hosts_once and split_nodes(place_stages(stages, cluster)))
