"""The estimate of a plan: places it, prices its stages, runs the pipeline and adds up the causes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, combinations_with_replacement
from math import hypot, inf
from typing import Protocol

from planner.calibration.values import ASSUMED, Calibration, Work
from planner.capabilities import Capabilities, Schedule
from planner.catalog.wheels import wheel_warning
from planner.cluster.multi_node import widened
from planner.cluster.spec import RDMA, WITHOUT_SOCKETS, ClusterSpec
from planner.cluster.topology import HostTopology, Topology, sockets_only
from planner.cost.communication import Ring, crossing_rings, data_ring, spans_nodes, tensor_ring
from planner.cost.compute import ELEMENT_BYTES, model_flops, share_of_products
from planner.cost.feed import NOTHING, Fed, feed_of
from planner.cost.grids import copies_of
from planner.cost.islands import islands_of, ring_between
from planner.cost.measured_curves import LinkCurves
from planner.cost.pipeline_end import stage_ends
from planner.cost.pipeline_events import Seconds, Timeline, simulate
from planner.cost.schedules import divides, sent_with, wraps
from planner.cost.sends import Send, likeness, send
from planner.cost.shape import Shape, shapes_of
from planner.cost.sharding import stage_rings
from planner.cost.stage import Pricer
from planner.cost.stage_price import StagePrice, islands_price
from planner.cost.training import devices_of, price_per_hour, watts
from planner.cost.values import Breakdown, Estimate, GroupEstimate, Memory, StageEstimate
from planner.dims.expert import ONCE
from planner.dims.grid import uneven
from planner.dims.trained import lack
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.equal_pools import Joined
from planner.plan.placement import Placement, Slot, lone_nodes, place, widths
from planner.plan.values import WHOLE, Context, Plan, ReplicaGroup, Stage
from planner.targets import target
from planner.units import format_seconds, gib_from_bytes

STEP_SPREAD = 0.10
"""Spread of a step whose layers are measured: 14 runs on GH200 beside the profile of their layers (mean error 8 %)."""


def estimate(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, calibration: Calibration = ASSUMED
) -> Estimate:
    """Seconds, bytes and their causes of one optimizer step; pure, raises PlanError for a plan that cannot run."""
    return Estimator(cluster, model, calibration).estimate(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Everything about a plan before the pipeline runs."""

    placement: Placement
    shapes: Sequence[Shape]
    """[stage]."""
    rings: tuple[Ring, ...]
    """[stage]: over what it shards."""
    sends: tuple[Send, ...]
    """[stage]: to the next stage; with interleaving the last entry goes back to the first stage."""
    stages: tuple[StagePrice, ...]
    forward: Seconds
    """Seconds of a micro-batch with the sends that follow it, [stage][chunk]."""
    backward: Seconds
    weight: Seconds
    """Gradients of weights where they are apart from the backward, [stage][chunk]; else empty."""
    held: tuple[float, ...]
    """Seconds for which a stage holds back its last gradient, [stage]; part of its synchronisation."""
    outer_wait: bool
    """True when the first and the last stage wait for each other after their last backward."""
    inside: tuple[Ring, ...] = ()
    """The ring of its island, the largest, [group]; empty where all replicas are exact among themselves."""
    fed: Fed = NOTHING
    """What the data of a step takes, read ahead beside the step before."""
    forwards: int = 1
    """Forwards of a micro-batch, each of which goes to the next stage."""


class Estimator:
    """Estimates many plans of one model on one cluster.

    ``one_network``: no runtime gives each process group its own network, as those do not that hetplan did not emit.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        model: ModelSpec,
        calibration: Calibration = ASSUMED,
        *,
        one_network: bool = False,
    ) -> None:
        self.one_network = one_network
        self.cluster = cluster
        self.model = model
        self.topology = Topology(cluster)
        self._seen: dict[bool, tuple[Topology, Joined]] = {}
        self._hosts: HostTopology | None = None
        self.feed = feed_of(cluster, model)
        self._calibrate(calibration)

    def _calibrate(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.curves = LinkCurves(calibration) if calibration.link_points else None
        self._pricers: dict[tuple[str, bool, Context, int], Pricer] = {}
        self._wide: dict[frozenset[tuple[str, int]], Estimator] = {}
        self.derived: dict[Hashable, object] = {}
        """What others have computed of it and keep with it."""
        self.of_devices: dict[Hashable, object] = {}
        """The same of devices whatever their number, which estimators of parts of the cluster share."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as what it was made of: prices and curves are made again where they are needed."""
        made = partial(Estimator, one_network=self.one_network)
        return made, (self.cluster, self.model, self.calibration)

    def of(self, plan: Plan) -> Estimator:
        """The estimator that sees each replica of a plan on one node: nodes are wide where replicas fill several."""
        wide = widths(plan, self.cluster)
        if not wide:
            return self
        for pool in wide:
            if not self.topology.path(pool, pool).connected:
                raise PlanError(f"pool {pool}: replicas fill several nodes, which no fabric joins")
        key = frozenset(wide.items())
        if key not in self._wide:
            self._wide[key] = Estimator(
                widened(self.cluster, wide), self.model, self.calibration, one_network=self.one_network
            )
        return self._wide[key]

    def part(self, cluster: ClusterSpec) -> Estimator:
        """The same model and constants on devices of these types, some or all of which are in this cluster."""
        other = Estimator(cluster, self.model, self.calibration, one_network=self.one_network)
        other.of_devices = self.of_devices
        return other

    def with_calibration(self, calibration: Calibration) -> Estimator:
        """The same cluster and model with other constants; what does not depend on them is shared."""
        other = Estimator.__new__(Estimator)
        vars(other).update(vars(self))
        other._calibrate(calibration)
        return other

    def _network(self, sockets: bool) -> tuple[Topology, Joined]:
        """What a job sees of the cluster, and the same with its equal pools joined."""
        if sockets not in self._seen:
            topology = Topology(sockets_only(self.cluster)) if sockets else self.topology
            self._seen[sockets] = topology, Joined(topology)
        return self._seen[sockets]

    def pricer(
        self, target_name: str, *, sockets: bool = False, context: Context = WHOLE, side: int = 1
    ) -> Pricer:
        """The pricer of a target, shared by all its plans on the same network that divide sequences alike, and matrices
        by as many rows and columns."""
        key = (target_name, sockets, context, side)
        if key not in self._pricers:
            topology, joined = self._network(sockets)
            self._pricers[key] = Pricer(
                topology,
                self.model,
                self.calibration,
                target(target_name),
                self.curves,
                context,
                side,
                joined=joined,
            )
        return self._pricers[key]

    def pricer_of(self, plan: Plan, *, sockets: bool = False) -> Pricer:
        """The pricer of a plan."""
        seen = self.of(plan)
        if seen is not self:
            return seen.pricer_of(plan, sockets=sockets)
        side = 1 if plan.grid is None else plan.grid.rows
        return self.pricer(plan.target, sockets=sockets, context=plan.context, side=side)

    def joined_for(self, plan: Plan) -> Joined:
        """What the job of a plan sees of the cluster, once equal pools are one."""
        seen = self.of(plan)
        return seen._network(seen.uses_sockets(plan))[1]

    def uses_sockets(self, plan: Plan) -> bool:
        """True when the runtime has one network for all groups and some nodes of the plan share no RDMA fabric."""
        pools = {group.pool for stage in plan.stages for group in stage.replicas}
        if not plan.sync.exact:
            # Islands talk to each other over sockets, and each has a network of its own.
            return False
        per_group = target(plan.target).network_per_group and not self.one_network
        if per_group or not self.topology.needs_sockets(pools):
            return False
        if len(pools) == 1 or self.topology.needs_sockets(pools, pools):
            return True
        # Nodes of a pool that Ethernet alone joins are no obstacle where the plan has one of them.
        return self.topology.needs_sockets(pools, lone_nodes(chain.from_iterable(place(plan, self.cluster))))

    def without_rdma(self, plan: Plan) -> tuple[str, ...]:
        """Pools whose RDMA the plan leaves off as some of its nodes share no RDMA fabric, in the order of names."""
        if not self.uses_sockets(plan):
            return ()
        pairs = combinations_with_replacement(
            sorted({group.pool for stage in plan.stages for group in stage.replicas}), 2
        )
        return tuple(
            sorted({pool for pair in pairs if self.topology.path(*pair).kind in RDMA for pool in pair})
        )

    def estimate(self, plan: Plan) -> Estimate:
        """The estimate of one plan."""
        seen = self.of(plan)
        if seen is not self:
            return seen.estimate(plan)
        if self.curves is not None:
            self.curves.forget_guesses()
        priced = self.price(plan)
        step = _step_seconds(plan, priced)
        flops = model_flops(self.model)
        used = devices_of(plan)
        stages = tuple(
            _stage(plan, priced, index, memories)
            for index, memories in enumerate(self.memories(plan, priced))
        )
        return Estimate(
            step_seconds=step,
            spread=self._spread(plan),
            breakdown=_breakdown(plan, priced, step),
            stages=stages,
            tokens_per_second=self.model.training.tokens / step,
            tflops_per_gpu=flops / step / used.total() / 1e12,
            mfu=flops / step / self._peak(plan),
            devices=used.total(),
            warnings=(
                *self._starved(plan, priced, step),
                *(self._host_needs(stages, priced.placement) if plan.offload.anything else ()),
                *self._warnings(plan, step),
            ),
            price_per_hour=price_per_hour(used, self.cluster),
            watts=watts(used, self.cluster),
        )

    def step_seconds(self, plan: Plan) -> float:
        """Seconds of one optimizer step of a plan alone."""
        priced = self.price(plan)
        return _step_seconds(plan, priced)

    def _host_needs(self, stages: Sequence[StageEstimate], placement: Placement) -> Iterator[str]:
        """What the fullest node of a pool keeps in host memory, where the file does not say what its hosts have."""
        nodes: dict[tuple[str, int], float] = {}
        for stage, slots in zip(stages, placement, strict=True):
            each = {(group.pool, group.gpu): group.memory.host_bytes for group in stage.groups}
            for slot in slots:
                if self.topology.device_type(slot.pool, slot.gpu).host.memory_bytes == inf:
                    held = each[slot.pool, slot.gpu] * slot.replicas_per_node * slot.tp
                    for node in range(slot.first_node, slot.first_node + slot.nodes):
                        nodes[slot.pool, node] = nodes.get((slot.pool, node), 0.0) + held
        needed: dict[str, float] = {}
        for (pool, _), size in nodes.items():
            needed[pool] = max(size, needed.get(pool, 0.0))
        for pool, size in needed.items():
            if size > 0:
                yield (
                    f"a node of {pool} needs {gib_from_bytes(size):.0f} GiB of host memory, and the file does not "
                    "say what it has: give host: {memory_gib: ...}"
                )

    def _starved(self, plan: Plan, priced: Priced, step: float) -> Iterator[str]:
        """How long the step waits for its data, and for what; the first pass over the data has no caches."""
        if self.feed is None:
            return
        work, fed = _work_seconds(plan, priced), priced.fed
        if fed.seconds > work:
            waits = f"{format_seconds(fed.seconds - work)} of {format_seconds(step)}"
            yield f"the step waits for data: {waits}, for {fed.limit}"
        first = self.feed.of(plan, priced.placement, first_pass=True)
        if first.seconds > step * (1 + 1e-9):
            yield f"in the first pass over the data a step takes {format_seconds(first.seconds)}: {first.limit}"

    def _switched_off(self, plan: Plan, step: float) -> Iterator[str]:
        """What one network for all groups of ranks takes from nodes that have a faster one in common."""
        fast = self.without_rdma(plan)
        lost = 1.0 - _step_seconds(plan, self.price(plan, own_networks=True)) / step if fast else 0.0
        if lost > 0.0:
            what = (
                f"some nodes share no RDMA fabric and {plan.target} has one network for all groups of ranks"
            )
            share = f"{100 * lost:.1f} %" if lost >= 0.0005 else "less than 0.1 %"
            off = f"RDMA of {', '.join(fast)} is off, which costs {share} of the step"
            yield f"{what}, so that all use sockets: {off}"

    def _warnings(self, plan: Plan, step: float) -> Iterator[str]:
        """Kernels and networks that the runtime lacks, at all or here; what was priced beyond what was measured."""
        pricer, wanted = self.pricer_of(plan), self.model.training.kernels
        if wanted not in (None, pricer.kernels):
            yield f"{plan.target} has no kernel set {wanted}: priced with its own, {pricer.kernels}"
        elif wanted is None and pricer.kernels == pricer.target.unfused_kernels:
            today = pricer.target.kernels[0]
            yield (
                f"unfused attention is priced with {plan.target}'s kernels of its time ({pricer.kernels}): "
                f"write kernels: {today} in the training section for today's"
            )
        groups = {
            (group.pool, group.gpu, group.tp, group.micro_batch)
            for stage in plan.stages
            for group in stage.replicas
        }
        unfused = {
            gpu for pool, gpu, *_ in groups if pricer.runs_unfused(self.topology.device_type(pool, gpu))
        }
        if unfused:
            devices = ", ".join(sorted(unfused))
            yield f"{plan.target} has no fused attention on {devices}: priced with unfused attention there"
        ages = {
            gpu: age
            for pool, gpu, *_ in groups
            if (age := self.topology.device_type(pool, gpu).compute_capability) is not None
        }
        if lacking := wheel_warning(ages):
            yield lacking
        yield from self._switched_off(plan, step)
        yield from self._sends_once(plan)
        own = {gpu: self.topology.device_type(pool, gpu) for pool, gpu, tp, _ in groups if tp > 1}
        buffered = sorted(gpu for gpu, device_type in own.items() if pricer.hides(device_type) == "all")
        bus = sorted(gpu for gpu, device_type in own.items() if not device_type.reaches_memory)
        if plan.sequence_parallel and buffered and bus:
            yield (
                f"tensor-parallel traffic of {', '.join(buffered)} is priced as with user buffers, which are off since "
                f"{', '.join(bus)} cannot reach each other's memory"
            )
        guessed = set()
        for pool, gpu, tp, micro_batch in sorted(groups):
            times = pricer.measured(self.topology.device_type(pool, gpu), tp, micro_batch)
            if times and times.extrapolated:
                guessed.add((gpu, tp, micro_batch))
            collective = tp > 1 and plan.grid is None and (not times or times.without_collectives)
            if collective and self.curves is not None:
                # A layer that was priced for an earlier plan has not asked its curve again.
                ring = tensor_ring(
                    self.topology.device_type(pool, gpu),
                    self.calibration,
                    tp=tp,
                    curves=self.curves,
                )
                ring.reduce_seconds(boundary_bytes(pricer.model, micro_batch))
        for gpu, tp, micro_batch in sorted(guessed):
            yield f"layer times of {gpu} at tp {tp}, micro-batch {micro_batch} lie beyond the measured ones"
        if self.curves is not None:
            yield from self.curves.guesses()

    def _sends_once(self, plan: Plan) -> Iterator[str]:
        """What DeepEP and HybridEP need of nodes and networks, and those of a plan that sends tokens by them have not.

        DeepEP's kernels between nodes are written for eight devices of each (``NUM_MAX_NVL_PEERS``).
        """
        dispatcher, ways = self.model.training.token_dispatcher, plan.folding.ways
        if dispatcher == "alltoall" or ways == 1:
            return
        types = [self.topology.device_type(*key) for key in sorted(devices_of(plan))]
        bus = dict.fromkeys(each.pool for each in types if each.intra_shared)
        if bus:
            yield f"{dispatcher} needs links between the devices of a node, as NVLink: {', '.join(bus)} has a bus"
        across = [each for each in types if ways > each.per_node]
        slow = dict.fromkeys(
            each.pool
            for each in across
            if self.topology.path(each.pool, each.pool).kind not in WITHOUT_SOCKETS
        )
        if slow:
            yield f"{dispatcher} needs RDMA or NVLink between nodes: those of {', '.join(slow)} have none in common"
        odd = dict.fromkeys(each.pool for each in across if each.per_node != 8)
        if odd and dispatcher == "deepep":
            yield f"deepep sends between nodes of 8 devices: those of {', '.join(odd)} have other numbers"

    def _spread(self, plan: Plan) -> float:
        """The widest of the plan's devices: that of their constants, narrower where their layers are measured."""
        pricer = self.pricer_of(plan)
        unlike = {
            (group.pool, group.gpu, group.tp, group.micro_batch): group
            for stage in plan.stages
            for group in stage.replicas
        }
        return max(self._spread_of(pricer, group) for group in unlike.values())

    def _spread_of(self, pricer: Pricer, group: ReplicaGroup) -> float:
        device_type = self.topology.device_type(group.pool, group.gpu)
        work = work_of(self.model, pricer.target)
        products = share_of_products(device_type.peak_flops, self.model.training.precision)
        known = self.calibration.spread((device_type.family,), pricer.kernels, work, products)
        if self.model.states or self.model.tower is not None or self.model.encoder is not None:
            # No run with such layers stands behind the constants.
            known = max(known, self.calibration.default_spread)
        alone = self.calibration.spread_alone(device_type.family, pricer.kernels, device_type.gpu, work)
        constants = hypot(known, alone, device_type.clock_spread)
        times = pricer.measured(device_type, group.tp, group.micro_batch)
        return min(constants, hypot(times.spread, STEP_SPREAD)) if times else constants

    def price(self, plan: Plan, *, own_networks: bool = False) -> Priced:
        """Prices of all stages on their devices; raises PlanError when members of a group cannot talk.

        ``own_networks``: as if the runtime could give each group of ranks its own network.
        """
        self._require_able(plan)
        if not plan.sync.exact:
            return self._price_islands(plan)
        seen = self.of(plan)
        if seen is not self:
            priced = seen.price(plan, own_networks=own_networks)
            return replace(priced, placement=place(plan, self.cluster))
        placement, sockets = place(plan, self.cluster), not own_networks and self.uses_sockets(plan)
        pricer = self.pricer_of(plan, sockets=sockets)
        _, joined = self._network(sockets)
        fed = self.feed.of(plan, placement) if self.feed else NOTHING
        nodes: Placement = joined.placement(placement)
        if plan.grid is not None:
            if faults := [*uneven(plan, plan.grid)]:
                raise PlanError(faults[0].what)
            nodes = tuple(tuple(copies_of(slots, plan.grid)) for slots in nodes)
            plan = plan.copies
        rings = stage_rings(
            nodes,
            plan.shard_size,
            joined.topology,
            self.calibration,
            pricer.kernels,
            self.curves,
            plan.folding.ways,
            plan.zero_plus.secondary,
        )
        if plan.backup or plan.unequal_shards:
            rings = tuple(
                replace(ring.with_shards(stage.shards), dropped=plan.backup)
                for ring, stage in zip(rings, plan.stages, strict=True)
            )
        sends = self._sends(plan, nodes, joined.topology, pricer)
        for index, (ring, sent) in enumerate(zip(rings, sends, strict=True)):
            if not ring.connected:
                raise PlanError(
                    f"stages[{index}]: its replicas stand on pools without a common fabric{self._strangers(plan)}"
                )
            if not sent.link:
                raise PlanError(
                    f"stages[{index}] and the next stand on pools without a common fabric{self._strangers(plan)}"
                )
        shapes = shapes_of(plan)
        stages = tuple(
            pricer.price(shape, stage.replicas, ring)
            for shape, stage, ring in zip(shapes, plan.stages, rings, strict=True)
        )
        forwards = self.model.training.forwards
        seconds = [sent.seconds for sent in sends]
        forward, backward = with_sends(stages, seconds, target(plan.target), forwards, plan.schedule)
        return Priced(
            placement=placement,
            shapes=shapes,
            rings=rings,
            sends=sends,
            stages=stages,
            forward=forward,
            backward=backward,
            weight=tuple(stage.weight for stage in stages if stage.weight),
            held=tuple(stage.held_seconds for stage in stages),
            outer_wait=outer_stages_wait(self.model, target(plan.target), plan.pp),
            fed=fed,
            forwards=forwards,
        )

    def _price_islands(self, plan: Plan) -> Priced:
        """The same of a plan whose islands of replicas exchange rarely, or little."""
        pricer, placement = self.pricer(plan.target), place(plan, self.cluster)
        (stage,), (slots,), (shape,) = plan.stages, placement, shapes_of(plan)
        islands = islands_of(plan.sync, stage, slots)
        between = self.ring_between([island.slots[0] for island in islands], pricer.kernels)
        if not between.connected:
            raise PlanError(
                "stages[0]: its islands stand on pools that no Ethernet and no chain of links joins"
            )
        prices: dict[object, StagePrice] = {}
        exchanges: dict[object, float] = {}
        inside: dict[int, Ring] = {}
        for island in islands:
            key = island.likeness
            if key in prices:
                continue
            ring = self.ring_inside(island.slots, pricer.kernels)
            if not ring.connected:
                raise PlanError(
                    "stages[0]: replicas of an island stand on pools without a common fabric"
                    + self._strangers(plan)
                )
            groups = tuple(stage.replicas[number] for number in island.groups)
            prices[key] = pricer.price(shape, groups, ring)
            exchanges[key] = pricer.exchange_seconds(shape, groups[0], ring, between)
            for number in island.groups:
                inside[number] = max(ring, inside.get(number, ring), key=lambda each: each.size)
        members = {island.likeness: island.groups for island in islands}
        price = islands_price(
            list(prices.values()),
            [members[key] for key in prices],
            list(exchanges.values()),
            plan.sync.every,
        )
        forward, backward = with_sends((price,), (0.0,), target(plan.target), 1)
        return Priced(
            placement=placement,
            shapes=(shape,),
            rings=(replace(inside[price.slowest], copies=between),),
            sends=(Send(seconds=0.0, link="node"),),
            stages=(price,),
            forward=forward,
            backward=backward,
            weight=(),
            held=(0.0,),
            outer_wait=False,
            inside=tuple(inside[number] for number in range(len(stage.replicas))),
            fed=self.feed.of(plan, placement) if self.feed else NOTHING,
        )

    def ring_between(self, first: Sequence[Slot], kernels: str) -> Ring:
        """The ring over hosts of islands, each by where its first replica stands."""
        if self._hosts is None:
            self._hosts = HostTopology(self.cluster)
        return ring_between(first, self._hosts, self.calibration, kernels, self.curves)

    def ring_inside(self, slots: Sequence[Slot], kernels: str) -> Ring:
        """The ring over the replicas of one island, on the network of its own."""
        pools = {slot.pool for slot in slots}
        sockets = spans_nodes(slots) and self.topology.needs_sockets(pools, lone_nodes(slots))
        topology, _ = self._network(sockets)
        return data_ring(slots, crossing_rings([slots]), topology, self.calibration, kernels, self.curves)

    def _strangers(self, plan: Plan) -> str:
        """Why two of the plan's pools cannot talk where it is no fabric that they lack."""
        pools = sorted({group.pool for stage in plan.stages for group in stage.replicas})
        reasons = (self.topology.strangers(*pair) for pair in combinations(pools, 2))
        return next((f": {reason}" for reason in reasons if reason), "")

    def memories(self, plan: Plan, priced: Priced) -> list[list[Memory]]:
        """Bytes on one device of each group, [stage][group]."""
        pricer, plan = self.pricer_of(plan), plan.copies
        return [
            [
                pricer.memory(shape, group, over.ways(group.shard), over.padding)
                for number, group in enumerate(stage.replicas)
                for over in [priced.inside[number] if priced.inside else ring]
            ]
            for shape, stage, ring in zip(priced.shapes, plan.stages, priced.rings, strict=True)
        ]

    def _sends(
        self, plan: Plan, placement: Placement, topology: Topology, pricer: Pricer
    ) -> tuple[Send, ...]:
        """Sends from each stage to the next; from the last to the first only with interleaved chunks."""
        if plan.pp == 1:
            return (Send(seconds=0.0, link="node"),)
        sends, known = [], dict[object, Send]()
        for index, stage in enumerate(plan.stages):
            if index == plan.pp - 1 and not wraps(plan.interleave, plan.schedule):
                sends.append(Send(seconds=0.0, link="node"))
                continue
            first = stage.replicas[0]
            size = exposed_bytes(pricer, first.micro_batch, plan.interleave, plan.schedule)
            size *= whole_copies(pricer.target, first.tp, split=plan.sequence_parallel)
            ends = placement[index], placement[(index + 1) % plan.pp]
            key = size, likeness(*ends)
            if key not in known:
                known[key] = send(*ends, size, topology, self.calibration, self.curves)
            sends.append(known[key])
        return tuple(sends)

    def send_of(self, plan: Plan, stage: int, size_bytes: float) -> Send:
        """A send of so many bytes by each replica of a stage to the next one, on the plan's own network."""
        seen = self.of(plan)
        if seen is not self:
            return seen.send_of(plan, stage, size_bytes)
        _, joined = self._network(self.uses_sockets(plan))
        nodes = joined.placement(place(plan, self.cluster))
        return send(
            nodes[stage], nodes[stage + 1], size_bytes, joined.topology, self.calibration, self.curves
        )

    def _require_able(self, plan: Plan) -> None:
        training = self.model.training
        for stage in plan.stages:
            for group in stage.replicas:
                try:
                    device_type = self.topology.device_type(group.pool, group.gpu)
                except KeyError:
                    raise PlanError(f"the cluster has no {group.gpu} in a pool named {group.pool}") from None
                lacking = lack(device_type, training)
                if lacking is not None:
                    formats = f"it has {', '.join(sorted(device_type.peak_flops))}"
                    raise PlanError(
                        f"{group.gpu} in pool {group.pool} has no {lacking}",
                        hint=formats if lacking == training.precision else ONCE,
                    )

    def _peak(self, plan: Plan) -> float:
        precision = self.model.training.precision
        return sum(
            group.devices * self.topology.device_type(group.pool, group.gpu).peak_flops[precision]
            for stage in plan.stages
            for group in stage.replicas
        )


def boundary_bytes(model: ModelSpec, micro_batch: int) -> float:
    """Bytes one replica sends for one micro-batch; its devices send a part each (arXiv:2104.04473, section 4.1).

    The output of an encoder goes along, and its gradient comes back.
    """
    elements = model.training.sequence_length * model.hidden + model.encoded
    return float(ELEMENT_BYTES[model.training.precision] * micro_batch * elements)


def work_of(model: ModelSpec, target: Capabilities) -> Work:
    """What errors of a step time depend on; unfused attention counts but under kernels of its time."""
    if any(kind.experts for kind in model.kinds):
        return "experts"
    training = model.training
    usual = target.kernels_of(training.kernels, training.attention) == target.unfused_kernels
    return "unfused" if training.attention == "unfused" and not usual else "dense"


def exposed_bytes(pricer: Pricer, micro_batch: int, chunks: int, schedule: Schedule = "1f1b") -> float:
    """The part of them that stages wait for: the runtime may send beside computation in all but plain 1F1B."""
    size = boundary_bytes(pricer.model, micro_batch)
    beside = (chunks > 1 or divides(schedule)) and pricer.kernels in pricer.target.overlaps_sends
    return size * (1.0 - pricer.framework.overlap) if beside else size


def whole_copies(target: Capabilities, tp: int, *, split: bool) -> int:
    """How often a replica of ``tp`` devices sends all of its hidden states; ``split``: by tokens over its devices."""
    return tp if target.sends_whole and not split else 1


class Durations(Protocol):
    """What a stage, or a way to fill one, says of its micro-batches."""

    @property
    def forward(self) -> tuple[float, ...]:
        """Seconds without sends, [chunk]."""

    @property
    def backward(self) -> tuple[float, ...]:
        """Seconds without sends, [chunk]."""


def with_sends(
    stages: Sequence[Durations],
    sends: Sequence[float],
    runtime: Capabilities,
    forwards: int,
    schedule: Schedule = "1f1b",
) -> tuple[list[list[float]], list[list[float]]]:
    """Forward and backward seconds [stage][chunk] with the sends that go with each; ``sends`` to the next, [stage].

    ``forwards`` of a micro-batch are sent.
    """
    depth, chunks = len(stages), len(stages[0].forward)
    forward = [list(stage.forward) for stage in stages]
    backward = [list(stage.backward) for stage in stages]
    for index in range(depth):
        for chunk in range(chunks):
            times = sent_with(
                index,
                chunk,
                depth,
                chunks,
                in_turn=runtime.exchanges_in_turn,
                forwards=forwards,
                schedule=schedule,
            )
            forward[index][chunk] += times.forward_to_next * sends[index]
            backward[index][chunk] += times.backward_to_before * sends[index - 1]
            forward[index][chunk] += (times.forward_from_before + times.forward_to_before) * sends[index - 1]
            backward[index][chunk] += times.backward_to_next * sends[index]
    return forward, backward


def timeline_of(plan: Plan, priced: Priced) -> Timeline:
    """Every operation of a priced plan's pipeline."""
    return simulate(
        priced.forward, priced.backward, plan.micro_batches, priced.held, priced.weight, plan.schedule
    )


def pipeline_ends(plan: Plan, priced: Priced) -> tuple[float, ...]:
    """When each stage begins what follows its last backward, [stage]."""
    if plan.pp == 1:
        return (priced.stages[0].work_seconds + priced.stages[0].waiting_seconds,)
    ends = stage_ends(
        priced.forward, priced.backward, plan.micro_batches, priced.held, priced.weight, plan.schedule
    )
    return together(ends) if priced.outer_wait else ends


def _step_seconds(plan: Plan, priced: Priced) -> float:
    """Until the last stage has ended, with what follows its last backward, and the data of the next step is there."""
    return max(_work_seconds(plan, priced), priced.fed.seconds)


def _work_seconds(plan: Plan, priced: Priced) -> float:
    ends = pipeline_ends(plan, priced)
    return max(end + price.tail_seconds for end, price in zip(ends, priced.stages, strict=True))


def outer_stages_wait(model: ModelSpec, runtime: Capabilities, depth: int) -> bool:
    """True when the first and the last stage wait for each other before they reduce gradients."""
    return runtime.reduces_tied_first and model.embeds_twice and depth > 1


def together(ends: Sequence[float]) -> tuple[float, ...]:
    """Ends of stages whose first and last wait for each other."""
    both = max(ends[0], ends[-1])
    return (both, *ends[1:-1], both)


def _breakdown(plan: Plan, priced: Priced, step: float) -> Breakdown:
    """Causes on the stage that has most to do; what is left of the step is waiting."""
    data = max(0.0, priced.fed.seconds - _work_seconds(plan, priced)) if priced.fed.seconds else 0.0
    price = max(priced.stages, key=lambda stage: stage.work_seconds + stage.tail_seconds)
    micro = price.micro_batches[price.slowest]
    times = price.work_seconds / (micro.forward_seconds + micro.backward_seconds)
    return Breakdown(
        compute_seconds=times * micro.compute_seconds,
        recompute_seconds=times * micro.recompute_seconds,
        tensor_parallel_seconds=times * micro.tensor_parallel_seconds,
        expert_parallel_seconds=times * micro.routing_seconds + price.alone_seconds,
        context_parallel_seconds=times * micro.context_seconds,
        zero_seconds=times * micro.zero_seconds,
        straggler_seconds=times * micro.straggler_seconds,
        bubble_seconds=max(0.0, step - data - price.work_seconds - price.tail_seconds),
        data_seconds=data,
        gradient_sync_seconds=price.sync_seconds,
        exchange_seconds=price.exchange_seconds,
        optimizer_seconds=price.optimizer_seconds,
        offload_seconds=times * micro.offload_seconds + price.copy_seconds,
        hidden_seconds=times * micro.hidden_seconds + price.hidden_sync_seconds - price.alone_seconds,
    )


def _stage(plan: Plan, priced: Priced, index: int, memories: Sequence[Memory]) -> StageEstimate:
    stage, price, ring = plan.stages[index], priced.stages[index], priced.rings[index]
    last = index == plan.pp - 1
    return StageEstimate(
        first_layer=stage.first_layer,
        end_layer=stage.end_layer,
        recompute=stage.recompute,
        groups=_groups(stage, price, memories),
        forward_seconds=sum(price.forward),
        backward_seconds=sum(price.backward) + sum(price.weight),
        send_seconds=0.0 if last else priced.sends[index].seconds,
        sync_seconds=price.sync_seconds,
        crosses=ring.crosses,
        copies_cross=ring.copies.crosses if ring.copies and not priced.inside else "",
        link="" if last else priced.sends[index].link,
    )


def _groups(stage: Stage, price: StagePrice, memories: Sequence[Memory]) -> tuple[GroupEstimate, ...]:
    return tuple(
        GroupEstimate(
            pool=group.pool,
            gpu=group.gpu,
            tp=group.tp,
            count=group.count,
            micro_batch=group.micro_batch,
            share=group.local_batch,
            steps=group.accumulation_steps,
            forward_seconds=micro.forward_seconds,
            backward_seconds=micro.backward_seconds,
            work_seconds=work,
            memory=item,
        )
        for group, micro, work, item in zip(
            stage.replicas, price.micro_batches, price.works, memories, strict=True
        )
    )
