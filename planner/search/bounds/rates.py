"""Best rates of devices and links for a family: seconds, sends and memory that none of its stages improves on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from math import floor, inf
from typing import NamedTuple, cast

import numpy as np

from planner.capabilities import Recompute, Schedule
from planner.cluster.topology import DeviceType
from planner.cost.arrays import Numbers, as_array, as_number, larger, smaller
from planner.cost.communication import ALONE, Ring, Rings, carried_rates, inside_rate
from planner.cost.compute import ELEMENT_BYTES
from planner.cost.estimate import Estimator
from planner.cost.shape import Shape, Whole, whole_model
from planner.cost.stage import Pricer
from planner.cost.stage_price import MicroBatch
from planner.dims.sharding import fills_node
from planner.dims.tensor import splits_sequence, tp_degrees
from planner.frozen import dataclass
from planner.plan.placement import replicas_on
from planner.plan.values import ON_DEVICE, WHOLE, WHOLE_EXPERTS, ReplicaGroup
from planner.search.bounds.node_runs import Nodes, countable
from planner.search.space.choices import MAX_DEPTH, Choice, Family, Islands, stays_whole, usable_device_types
from planner.search.space.rings import inside_at_most, measured_between
from planner.search.space.sends import Borders, Hops, Sides
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from planner.units import divisors


class FreeRate(NamedTuple):
    """What replicas on one device type do with micro-batches of one size, without traffic between them."""

    replicas: int
    """As many as there are devices for."""
    layers: float
    """Layers of a micro-batch a second, of one of them."""
    embedding: float
    """Layers that take as long as the embedding of a micro-batch."""
    head: float
    """The same of the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory of one device of a stage, at most: bytes of a layer and of its activations for each micro-batch alive."""

    free_bytes: float
    layer_bytes: float
    activation_bytes: float

    def layers(self, in_flight: float) -> int:
        """Layers that fit with the activations of so many micro-batches of each."""
        if self.free_bytes <= 0:
            return 0
        return floor(
            min(1e9, self.free_bytes / (self.layer_bytes + in_flight * self.activation_bytes)) + 1e-6
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """What a recomputation takes and leaves."""

    layer_seconds: float
    """Forward and backward of one layer for one micro-batch."""
    tail_seconds: float
    """Least end of the step per layer held: a longer backward hides more of it."""
    room: Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one device type does for a family, at best."""

    device_type: tuple[str, str]
    slots: float
    """Stages that its devices could fill, in parts too."""
    layer_seconds: float
    """Forward and backward of one layer for one micro-batch."""
    tail_seconds: float
    """Least end of the step per layer held: optimizer, and synchronisation that nothing can hide."""
    most_layers: int
    """Layers that fit in its memory when least micro-batches are in flight."""
    policies: tuple[Policy, ...]
    """What a stage may recompute, the fastest first; further ones have more room."""
    first_seconds: float
    """What the embedding adds to a micro-batch."""
    last_seconds: float
    """What the head adds to a micro-batch."""
    first_tail_seconds: float = 0.0
    """What the embedding adds to the end of the step, at least, where another stage has the head."""
    last_tail_seconds: float = 0.0
    """What the head adds to it, likewise."""
    tied_seconds: float = 0.0
    """What each of the two stages takes besides to add up the gradients of a tied embedding."""
    forward_seconds: float = 0.0
    """The part of ``layer_seconds`` before the backward, at least."""
    backward_seconds: float = 0.0
    """The rest, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The same of many families at once."""

    slots: Numbers
    """[family][device type]."""
    ends: Numbers
    """``first_seconds`` and ``last_seconds``, [family][device type][end]."""
    end_tails: Numbers
    """What both add to the end of the step where they are on two stages, [family][device type][end]."""
    policies: Numbers
    """Seconds and tail of a layer, and the fields of its ``Room``, [family][device type][recomputation][field]."""


ENDS = ("first_seconds", "last_seconds")
END_TAILS = ("first_tail_seconds", "last_tail_seconds")
ROOM = ("free_bytes", "layer_bytes", "activation_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredSend:
    """A send between parts of the cluster that the pipeline must do at least once."""

    seconds: float
    parts: tuple[int, ...]
    """The part of each device type, in the order of the speeds."""


_Sends = tuple[
    dict[tuple[str, str], Hops],
    float | None,
    dict[tuple[str, str, int, int], Hops],
    int,
    dict[tuple[str, str, int, int], Sides],
]
"""Least sends by kind, least send between islands, least sends by kind, tp and dp, stages of several kinds, and sends
by kind, tp and dp, and by where neighbours are, where these are known."""

_UNLIMITED = Room(free_bytes=inf, layer_bytes=1.0, activation_bytes=0.0)
"""Memory that is not looked at."""


class Rates:
    """Speeds and sends for the families of one search."""

    def __init__(self, estimator: Estimator, islands: Islands) -> None:
        self.estimator = estimator
        self.islands = islands
        self.device_types = usable_device_types(estimator.topology, estimator.model)
        self._speeds: dict[Family, tuple[Speed, ...]] = {}
        self._free: dict[tuple[Family, tuple[str, str]], list[tuple[ReplicaGroup, Speed]]] = {}
        self._hops: dict[tuple[object, ...], _Sends] = {}
        self._free_rates: dict[tuple[object, ...], dict[int, list[FreeRate]]] = {}
        self._cases: dict[Family, list[tuple[_Cases, int]]] = {}
        """What each device type does."""
        self._expected: dict[object, list[Family]] = {}
        self._known_rates: dict[tuple[str, tuple[str, str], int], RingRates] = {}

    def speeds(self, family: Family) -> tuple[Speed, ...]:
        """Speeds of all device types, fastest first."""
        if family not in self._speeds:
            if family.dp is None:
                each = [self._free_speed(family, device_type) for device_type in self.device_types]
            else:
                each = [cases.speed(number) for cases, number in self._cases_of(family)]
            kept = (speed for speed in each if speed is not None)
            self._speeds[family] = tuple(sorted(kept, key=lambda speed: speed.layer_seconds))
        return self._speeds[family]

    def _types(self, family: Family) -> list[DeviceType]:
        """Those on which replicas of the family's degree can be, one degree everywhere."""
        return [each for each in self.device_types if each.holds(family.tp or 1)]

    def rooms(self, family: Family) -> list[tuple[float, int]]:
        """(slots, layers that one holds when least micro-batches are in flight) of each device type; one degree."""
        rooms = (cases.room(number) for cases, number in self._cases_of(family))
        return [(slots, most) for slots, most in rooms if slots and most]

    def expect(self, families: Iterable[Family]) -> None:
        """Families that are priced with the first one like them that somebody asks for."""
        for family in families:
            if family.dp is not None:
                self._expected.setdefault(_alike(family), []).append(family)

    def _cases_of(self, family: Family) -> list[tuple[_Cases, int]]:
        if family not in self._cases:
            self.price((family, *self._expected.pop(_alike(family), ())))
        return self._cases[family]

    def work(self, families: Sequence[Family]) -> Work:
        """What stages of families of one target, tp and recomputation do and hold."""
        each = [self._cases_of(family) for family in families]
        slots = [[cases.slots[number] for cases, number in row] for row in each]
        ends, tails, tied = (
            np.array(
                [[[cases.pace[name][number] for name in names] for cases, number in row] for row in each]
            )
            for names in (ENDS, END_TAILS, ("tied_seconds",))
        )
        policies = [
            [
                [
                    (own.seconds[number], own.tails[number], *(own.room[name][number] for name in ROOM))
                    for own in cases.policies
                ]
                for cases, number in row
            ]
            for row in each
        ]
        return Work(
            slots=np.array(slots),
            ends=ends,
            end_tails=tails + tied,
            policies=np.array(policies),
        )

    def pricer(self, family: Family) -> Pricer:
        """What prices the stages of a family."""
        return self.estimator.pricer(family.target, context=family.context)

    def price(self, families: Iterable[Family]) -> None:
        """Price what the speeds of families consist of, all that differ in numbers only at once."""
        alike: dict[object, list[Family]] = {}
        for family in families:
            if family.dp is not None and family not in self._cases:
                alike.setdefault(_alike(family), []).append(family)
        for members in (list(dict.fromkeys(kin)) for kin in alike.values()):
            first = members[0]
            assert first.tp is not None
            replicas = np.array([float(family.dp or 1) for family in members])
            sequences = np.array([family.micro_batch for family in members])
            shards = None
            if first.shard_size is not None:
                shards = np.array([float(family.shard_size or 1) for family in members])
            each = [
                self._priced(first, device_type, first.tp, replicas, sequences, shards)
                for device_type in self._types(first)
            ]
            for number, family in enumerate(members):
                self._cases[family] = [(cases, number) for cases in each]

    def free_rates(self, family: Family) -> list[FreeRate]:
        """What each device type does, whatever its devices hold."""
        key = family.target, family.recompute, family.tp, family.folding, family.context
        if key not in self._free_rates:
            self._free_rates[key] = self._find_free_rates(family)
        assert family.micro_batch is not None
        return self._free_rates[key][family.micro_batch]

    def _find_free_rates(self, family: Family) -> dict[int, list[FreeRate]]:
        """The same for all sizes of a micro-batch that divide the batch, by size."""
        assert family.tp is not None
        # Families of a group shard and keep on hosts what they like.
        least = family._replace(zero=0, offload=ON_DEVICE)
        sizes = divisors(self.estimator.model.training.global_batch)
        found: dict[int, list[FreeRate]] = {size: [] for size in sizes}
        for device_type in self.device_types:
            slots = device_type.replicas(family.tp) if device_type.holds(family.tp) else 0
            if slots:
                rates = self._replica_rates(least, device_type, sizes)
                for each, rate in zip(found.values(), rates, strict=True):
                    each.append(FreeRate(slots, *rate))
        return found

    def _replica_rates(
        self, family: Family, device_type: DeviceType, sizes: Sequence[int]
    ) -> list[tuple[float, float, float]]:
        """The fields of ``FreeRate`` but the first, whatever the number of devices, by size of a micro-batch."""
        assert family.tp is not None
        alike = family._replace(dp=None, batch=0, micro_batches=0, network="", shard_size=None, stage_nodes=1)
        key, known = ("free rates", alike, device_type.kind), self.estimator.of_devices
        # What is divided over several replicas travels between nodes, too.
        alone = family.context == WHOLE and family.folding == WHOLE_EXPERTS
        if key not in known or not alone:
            pricer, shape = self.pricer(family), self._shape(family, family.tp)
            sequences = cast("int", np.array(sizes))
            group = self._group(family, device_type, family.tp, 1)
            micro = pricer.micro_batch(shape, group, sequences, ALONE)
            seconds = as_array(micro.seconds - micro.host_seconds)
            ends = (as_array(end) / seconds for end in pricer.ends_seconds(shape, group, sequences))
            columns = (column.tolist() for column in np.broadcast_arrays(1 / seconds, *ends))
            known[key] = list(zip(*columns, strict=True))
        return cast("list[tuple[float, float, float]]", known[key])

    def nodes_of(self, group: ReplicaGroup) -> float:
        """The part of a node that a stage on these devices takes at least; 1 for one on several nodes."""
        each: dict[str, int] = {}
        for device_type in self.device_types:
            each[device_type.pool] = each.get(device_type.pool, 0) + device_type.per_node
        own = next(item for item in self.device_types if item.key == (group.pool, group.gpu))
        return group.devices / each[group.pool] if group.count <= own.per_node // group.tp else 1.0

    def mixed(self, family: Family) -> int:
        """Stages of several device types that a pipeline may have."""
        return self.sends(family)[3] if family.shard_size is None else 0

    def nodes(self, family: Family) -> dict[str, tuple[int, int]]:
        """(nodes, stages that one holds at most) of each pool; those of several nodes leave theirs to other types."""
        assert family.tp is not None, "of a family with the same degrees everywhere"
        assert family.dp is not None
        pools: dict[str, tuple[int, int, int]] = {}
        for device_type in self.device_types:
            nodes, types, replicas = pools.get(device_type.pool, (0, 0, 0))
            pools[device_type.pool] = (
                max(nodes, device_type.nodes),
                types + 1,
                replicas + device_type.per_node // family.tp,
            )
        return {
            pool: (nodes, max(types, replicas // family.dp))
            for pool, (nodes, types, replicas) in pools.items()
        }

    def crossing(self, family: Family, chunks: int, schedule: Schedule) -> RequiredSend | None:
        """The cheapest send from island to island; None where stages may stand on several."""
        seconds = self.sends(family, chunks, schedule)[1]
        if seconds is None:
            return None
        numbers = {pool: number for number, island in enumerate(self.islands) for pool in island}
        return RequiredSend(
            seconds=seconds, parts=tuple(numbers[speed.device_type[0]] for speed in self.speeds(family))
        )

    def hops(self, family: Family, chunks: int, schedule: Schedule) -> dict[tuple[str, str], Hops]:
        """Least sends of a stage with devices of each device type, by kind."""
        return self.sends(family, chunks, schedule)[0]

    def sides(self, family: Family) -> dict[tuple[str, str, int, int], Sides]:
        """Sends by kind and degrees, and by where neighbours are, of a family with per-stage degrees.

        Empty where a pipeline may come back to a node, where a node may hold a part of a stage of less than one, or
        where there are too many pairs of stages.
        """
        return self.sends(family)[4]

    def _sides_of(self, stages: StageOptions) -> dict[tuple[str, str, int, int], Sides]:
        pools = [device_type.pool for device_type in self.device_types]
        known = stages.few_pairs and stages.pricer.target.hosts_once and countable(self.node_counts, pools)
        return {
            (group.pool, group.gpu, group.tp, group.count): each
            for group, each in (stages.node_sides() if known else ())
        }

    @property
    def node_counts(self) -> list[Nodes]:
        """Nodes of each device type."""
        return [Nodes(device_type.nodes, device_type.per_node) for device_type in self.device_types]

    def sends(self, family: Family, chunks: int = 1, schedule: Schedule = "1f1b") -> _Sends:
        """Least sends of one chunk by kind, between islands, by kind and degrees, and by where neighbours are."""
        # A runtime may send beside computation in all but plain 1F1B, whatever the schedule.
        chunks = 1 if chunks == 1 and schedule == "1f1b" else 2
        key = (family.target, family.tp, family.dp, family.batch, family.folding, family.context, chunks)
        if key not in self._hops:
            # Only the deepest pipelines have all ways to build a stage, and those whose replicas all share one copy.
            every = family._replace(shard_size=None)
            choice = Choice(family=every, depth=MAX_DEPTH, interleave=chunks)
            stages = StageOptions(choice, self.estimator, Limits(), self.islands)
            hops = {device_type.key: self._hops_of(stages, device_type) for device_type in self.device_types}
            alone = {
                (groups[0].pool, groups[0].gpu, groups[0].tp, groups[0].count): least
                for groups, least in zip(stages.compositions, stages.hops, strict=True)
                if len(groups) == 1
            }
            mixed = any(stages.is_mixed(slot) for slot in range(len(stages.compositions)))
            least = self._least_crossing(stages)
            sides = self._sides_of(stages) if family.dp is None else {}
            self._hops[key] = hops, least, alone, stages.most_mixed if mixed else 0, sides
        return self._hops[key]

    def _least_crossing(self, stages: StageOptions) -> float | None:
        everyone = range(len(stages.compositions))
        islands = [stages.used_islands(groups) for groups in stages.compositions]
        if not self.islands or not stages.few_pairs or any(len(numbers) > 1 for numbers in islands):
            return None
        sends = (stages.sends(a, b) for a in everyone for b in everyone if islands[a] != islands[b])
        return min((min(item.near_seconds, item.far_seconds) for item in sends), default=inf)

    def _hops_of(self, stages: StageOptions, device_type: DeviceType) -> Hops:
        """The least of all compositions with devices of a type; its host works too."""
        own_hops = [
            hops
            for hops, groups in zip(stages.hops, stages.compositions, strict=True)
            if device_type.key in {(group.pool, group.gpu) for group in groups}
        ]
        inner = min((hops.inner_seconds for hops in own_hops), default=inf)
        outer = min((hops.outer_seconds for hops in own_hops), default=inf)
        host = stages.pricer.host_seconds(device_type)
        alone = [
            hops.borders.each
            for hops, groups in zip(stages.hops, stages.compositions, strict=True)
            if [(group.pool, group.gpu) for group in groups] == [device_type.key]
        ]
        apart = (min(column) for column in zip(*alone, strict=True)) if alone else [inf] * 5
        return Hops(
            inner_seconds=host + (inner if inner < inf else 0.0),
            outer_seconds=host + (outer if outer < inf else 0.0),
            borders=Borders(*(host + value for value in apart)),
        )

    def _priced(
        self,
        family: Family,
        device_type: DeviceType,
        tp: int,
        replicas: Numbers,
        sequences: Whole,
        shards: Numbers | None = None,
    ) -> _Cases:
        """Stages of a type with so many replicas, each with a micro-batch of so many sequences, [case].

        ``shards``: replicas that share a copy of what is sharded, where these are not all.
        """
        rates = self._ring_rates(family.target, device_type, tp)
        between, inside = rates.between, rates.inside
        able = (replicas == 1) | (between > 0) | ((replicas <= rates.near) & (inside > 0))
        group = self._group(family, device_type, tp, 1)
        if shards is None:
            stages = np.maximum(1.0, device_type.per_node // (replicas * tp)) if device_type.dealt > 1 else 1
            ring = self._rings(rates, np.where(able, replicas, 1.0), family.folding.ways // tp, stages)
        else:
            here = device_type.per_node // tp
            # All replicas are of one type here, which may have a part of its nodes alone.
            able &= (between > 0) | (replicas <= here)
            able &= [fills_node(device_type, int(size), tp) for size in shards]
            ring = self._hybrid_rings(
                rates,
                here,
                *(np.where(able, each, 1.0) for each in (replicas, shards)),
                together=family.folding.ways // tp,
            )
        sharing = replicas if shards is None else shards
        return _Cases(
            device_type=device_type.key,
            most_layers=self.estimator.model.layers,
            slots=(device_type.replicas(tp) / replicas).tolist(),
            able=able.tolist(),
            find_rooms=lambda: [
                _columns(self._room_with(family, group, sharing, sequences, recompute), len(replicas))
                for recompute in policies_of(family)
            ],
            find_paces=lambda: self._paces(family, group, ring, sequences, len(replicas)),
        )

    def _paces(self, family: Family, group: ReplicaGroup, ring: Ring, sequences: Whole, count: int) -> _Paces:
        """Fields of ``Speed``, and seconds and tail of a layer with each recomputation."""
        pricer = self.pricer(family)
        each = []
        for recompute in policies_of(family):
            shape = self._shape(family, group.tp, recompute)
            # The traffic of ZeRO 2 and 3 in a micro-batch grows with the layers like their computation.
            micro = pricer.micro_batch(shape, group, cast("int", sequences), ring)
            each.append((micro, self._tail(family, shape, group, ring, sequences, micro)))
        # The least recomputation is the fastest; the computation of an end may hide traffic of layers, and shows with
        # what is left of it.
        micro, shown = each[0][0], 1.0 - pricer.framework.overlap if family.zero >= 2 else 1.0
        shape = self._shape(family, group.tp)
        embedding, head = pricer.ends_seconds(shape, group, cast("int", sequences))
        pace: dict[str, float | Numbers] = {
            "layer_seconds": micro.seconds - micro.host_seconds,
            "forward_seconds": micro.forward_seconds - micro.host_seconds / 2,
            "backward_seconds": micro.backward_seconds - micro.host_seconds / 2,
            "first_seconds": shown * embedding,
            "last_seconds": shown * head,
        }
        for name in _Tail._fields:
            pace[name] = reduce(smaller, (getattr(tail, name) for _, tail in each))
        policies = [
            _columns({"seconds": micro.seconds - micro.host_seconds, "tails": tail.tail_seconds}, count)
            for micro, tail in each
        ]
        return _columns(pace, count), policies

    def _free_speed(self, family: Family, device_type: DeviceType) -> Speed | None:
        """Each stage chooses its degrees: slots are devices, seconds are device-seconds at the best degrees."""
        speeds = [(group.devices, speed) for group, speed in self.free_speeds(family, device_type)]
        best = min((devices * speed.layer_seconds for devices, speed in speeds), default=None)
        if best is None:
            return None
        ends = min((speed.first_seconds + speed.last_seconds) / speed.layer_seconds for _, speed in speeds)
        return Speed(
            device_type=device_type.key,
            slots=float(device_type.devices),
            layer_seconds=best,
            forward_seconds=min(devices * speed.forward_seconds for devices, speed in speeds),
            backward_seconds=min(devices * speed.backward_seconds for devices, speed in speeds),
            tail_seconds=0.0,
            most_layers=self.estimator.model.layers,
            policies=(Policy(best, 0.0, _UNLIMITED),),
            first_seconds=ends * best,
            last_seconds=0.0,
        )

    def free_speeds(self, family: Family, device_type: DeviceType) -> list[tuple[ReplicaGroup, Speed]]:
        """Stages of one type with all degrees that hold a layer, each with its speed."""
        key = family, device_type.key
        if key not in self._free:
            self._free[key] = self._price_freely(family, device_type)
        return self._free[key]

    def _price_freely(self, family: Family, device_type: DeviceType) -> list[tuple[ReplicaGroup, Speed]]:
        speeds = []
        for tp in tp_degrees(TARGETS[family.target], None, self.estimator.model, (device_type,)):
            degrees = [dp for dp in divisors(family.batch) if tp * dp <= device_type.devices]
            sequences = np.array([family.batch // dp for dp in degrees])
            cases = self._priced(family, device_type, tp, np.array(degrees, dtype=float), sequences)
            for number, dp in enumerate(degrees):
                speed = cases.speed(number)
                if speed is not None:
                    slots = float(device_type.devices)
                    layers = self.estimator.model.layers
                    free = replace(speed, slots=slots, most_layers=layers)
                    speeds.append((self._group(family, device_type, tp, dp), free))
        return speeds

    def _group(self, family: Family, device_type: DeviceType, tp: int, dp: int) -> ReplicaGroup:
        share = family.micro_batches * (family.batch * family.context.ways // dp)
        return replicas_on(device_type, tp, dp, share, family.micro_batches)

    def _tail(
        self,
        family: Family,
        shape: Shape,
        group: ReplicaGroup,
        ring: Ring,
        sequences: Whole,
        micro: MicroBatch,
    ) -> _Tail:
        """Least end of the step of stages with one recomputation; ``micro`` is the micro-batch of a layer.

        With x and y seconds of traffic at the end and of what may hide it, a share o of it at most, x - o min(x, y)
        shows. Layers add r to x and b to y, an end of the model R and B. What shows of k layers is k t, of k layers and
        an end at least k t + E: the difference falls in k, as t = max((1 - o) r, r - o b), and E is that of all layers.

        A slower ring than the best may make y longer and hide more, but no more than the micro-batch takes longer: the
        bounds count a micro-batch of a stage with its tail.
        """
        pricer, layers = self.pricer(family), self.estimator.model.layers
        if stays_whole(family, self.estimator.model):
            return self._whole_tail(family, shape.recompute, group, ring, sequences)

        def update(shape: Shape) -> float:
            """Of optimizer and copies, which nothing hides."""
            seconds = pricer.update_seconds(shape, group, ring, part=True)
            return seconds + pricer.step_copy_seconds(shape, group, ring.size)

        own, sync = update(shape), pricer.sync_seconds(shape, group, ring, micro)
        least, more, tied = sync + own, [], 0.0
        for stage in (0, shape.depth - 1):
            one = replace(shape, stage=stage)
            every = replace(one, chunks=(layers,))
            end = pricer.micro_batch(one, group, cast("int", sequences), ring)
            # k layers and an end take no longer than one layer with it and k - 1 without.
            longest = replace(
                end,
                forward_seconds=end.forward_seconds + (layers - 1) * micro.forward_seconds,
                backward_seconds=end.backward_seconds + (layers - 1) * micro.backward_seconds,
            )
            tied = pricer.tied_seconds(every, group)
            shows = pricer.sync_seconds(every, group, ring, longest) - tied - layers * sync
            # max(u, v) of k layers and an end less k max(u, v) falls too; what was measured is a line through all.
            shows += smaller(update(one) - own, update(every) - layers * own)
            more.append(larger(0.0, shows))
            # k t + E >= k (t + E) where E < 0
            least = least + smaller(0.0, shows)
        return _Tail(larger(own, least), more[0], more[1], tied)

    def _whole_tail(
        self, family: Family, recompute: Recompute, group: ReplicaGroup, ring: Ring, sequences: Whole
    ) -> _Tail:
        """The same of a family without pipelines: the whole model hides more.

        The first micro-batch finds no gradients on the host yet: what it saves of its copies is taken off.
        """
        pricer, model = self.pricer(family), self.estimator.model
        shape = whole_model(model, family.zero, recompute, family.offload)
        shape = replace(shape, folding=family.folding)
        last = pricer.micro_batch(shape, group, cast("int", sequences), ring)
        tail = (
            pricer.sync_seconds(shape, group, ring, last) + last.step_copy_seconds - last.first_saves_seconds
        )
        return _Tail((tail + pricer.update_seconds(shape, group, ring)) / model.layers, 0.0, 0.0, 0.0)

    def _ring_rates(self, target: str, device_type: DeviceType, tp: int) -> RingRates:
        key = target, device_type.key, tp
        if key not in self._known_rates:
            kernels = self.estimator.pricer(target).kernels
            self._known_rates[key] = ring_rates(self.estimator, kernels, self.device_types, device_type, tp)
        return self._known_rates[key]

    def _rings(
        self, rates: RingRates, replicas: Numbers, together: int = 1, stages: int | Numbers = 1
    ) -> Ring:
        """Rings of so many replicas that none beats, of so many stages that share the cards of their nodes.

        ``together`` replicas share the experts where several do.

        Through the cards where a node cannot hold all members, else the faster of both.
        """
        through_cards, anywhere = rates.of(replicas, stages)
        rate = np.where(replicas <= rates.near, anywhere, through_cards)
        rate[replicas == 1] = np.inf
        # Those with the same experts are fewer, and no closer together than replicas.
        experts = (
            self._rings(rates, np.maximum(1.0, replicas / together), 1, stages) if together > 1 else None
        )
        if experts is not None:
            experts = replace(
                experts, bytes_per_second=as_number(np.where(replicas <= together, np.inf, rate))
            )
        # Arrays pass for numbers.
        return Rings(
            size=cast("int", replicas),
            bytes_per_second=as_number(rate),
            latency_seconds=0.0,
            crosses="node",
            experts=experts,
        )

    def _hybrid_rings(
        self, rates: RingRates, here: int, replicas: Numbers, shards: Numbers, *, together: int
    ) -> Ring:
        """The same of replicas of which so many share a copy, with the rings between copies; a node holds ``here``.

        Those of all members of a copy on a node leave it side by side, where it cannot hold all replicas.
        """
        copies = replicas / shards
        through_cards, anywhere = rates.of(copies, np.minimum(shards, here))
        rate = np.where(replicas <= here, anywhere, through_cards)
        rate[copies == 1] = np.inf
        between_copies = Rings(
            size=cast("int", copies),
            bytes_per_second=as_number(rate),
            latency_seconds=0.0,
            crosses="node",
        )
        shared = self._rings(rates._replace(near=here), shards, together)
        experts = None if shared.experts is None else replace(shared.experts, copies=between_copies)
        return replace(shared, copies=between_copies, experts=experts)

    def _room_with(
        self,
        family: Family,
        group: ReplicaGroup,
        replicas: float | Numbers,
        sequences: int | Whole,
        recompute: Recompute,
    ) -> dict[str, float]:
        """Bytes are concave in layers but for the optimizer's copy: the line through both ends is never above them.

        Those of ``lone`` micro-batches are convex. Where all layers are on one device this takes nothing from the line,
        and pipelines have them not at all. What the allocator holds beyond its tensors is no part of them, as it gives
        that back before it runs out.
        """
        pricer, many = self.pricer(family), max(2, self.estimator.model.layers)
        shape = self._shape(family, group.tp, recompute)
        footprint = pricer.footprint(shape, group, cast("int", replicas), cast("int", sequences))
        one = footprint.most_room(1, 1.0)
        each = (one - footprint.most_room(many, float(many))) / (many - 1)
        # Gradients of a lone micro-batch may grow less than its activations do.
        activations = smaller(footprint.activation_bytes(), larger(0.0, each))
        # A stage at an end passes no hidden states of a reference on that side, a single stage none.
        model, training = self.estimator.model, self.estimator.model.training
        hidden = training.sequence_length * model.hidden * ELEMENT_BYTES[training.precision]
        passed = cast("float", (2.0 * hidden if training.forwards > 1 else 0.0) * sequences)
        return {
            "free_bytes": one + each + passed,
            "layer_bytes": larger(0.0, each - activations),
            "activation_bytes": activations,
        }

    def _shape(self, family: Family, tp: int, recompute: Recompute | None = None) -> Shape:
        """One layer in the middle with the least in flight: the last but one stage of a pipeline that has no head."""
        return Shape(
            chunks=(1,),
            stage=1,
            depth=3,
            micro_batches=1,
            zero=family.zero,
            recompute=recompute or family.recompute or "none",
            sequence_parallel=splits_sequence(TARGETS[family.target], self.estimator.model, tp),
            folding=family.folding,
            offload=family.offload,
            lone=family.micro_batches == 1,
        )


class _Tail(NamedTuple):
    """The fields of ``Speed`` about the end of the step."""

    tail_seconds: float
    first_tail_seconds: float
    last_tail_seconds: float
    tied_seconds: float


_Paces = tuple[dict[str, list[float]], list[dict[str, list[float]]]]
"""Seconds by field of ``Speed``, and ``seconds`` and ``tails`` of a layer with each recomputation, each [case]."""


class _Policies(NamedTuple):
    """``Policy`` of many cases, [case]."""

    seconds: list[float]
    tails: list[float]
    room: dict[str, list[float]]


class _Cases:
    """What devices of one type do in many cases; ``Speed`` of one, column by column.

    Rooms are found before paces: a model that fits nowhere needs no more.
    """

    def __init__(
        self,
        device_type: tuple[str, str],
        most_layers: int,
        slots: list[float],
        able: list[bool],
        find_rooms: Callable[[], list[dict[str, list[float]]]],
        find_paces: Callable[[], _Paces],
    ) -> None:
        """``able`` is False where replicas cannot talk."""
        self.device_type, self.most_layers = device_type, most_layers
        self.slots = [count * one for count, one in zip(slots, able, strict=True)]
        self._find_rooms, self._find_paces = find_rooms, find_paces

    @cached_property
    def rooms(self) -> list[dict[str, list[float]]]:
        """Fields of ``Room`` with each recomputation."""
        return self._find_rooms()

    @cached_property
    def _paces(self) -> _Paces:
        return self._find_paces()

    @property
    def pace(self) -> dict[str, list[float]]:
        """Seconds by field of ``Speed``."""
        return self._paces[0]

    @property
    def policies(self) -> Iterator[_Policies]:
        """What each recomputation takes and leaves."""
        for paces, room in zip(self._paces[1], self.rooms, strict=True):
            yield _Policies(**paces, room=room)

    def room(self, number: int) -> tuple[float, int]:
        """Slots and the layers that one holds when least micro-batches are in flight, of one case."""
        return self.slots[number], self._most(self._rooms(number))

    def _rooms(self, number: int) -> list[Room]:
        return [Room(**{name: column[number] for name, column in room.items()}) for room in self.rooms]

    def _most(self, rooms: Sequence[Room]) -> int:
        return min(self.most_layers, max(room.layers(1) for room in rooms))

    def speed(self, number: int) -> Speed | None:
        """That of one case; None where it cannot be."""
        slots, rooms = self.slots[number], self._rooms(number)
        most = self._most(rooms)
        if not slots or not most:
            return None
        policies = tuple(
            Policy(own.seconds[number], own.tails[number], room)
            for own, room in zip(self.policies, rooms, strict=True)
        )
        return Speed(
            device_type=self.device_type,
            slots=slots,
            policies=policies,
            most_layers=most,
            **{name: column[number] for name, column in self.pace.items()},
        )


def _alike(family: Family) -> object:
    """What families have in common that are priced at once."""
    same = family.target, family.zero, family.recompute, family.tp, family.folding
    return *same, family.context, family.offload, family.shard_size is None, family.micro_batches == 1


def policies_of(family: Family) -> tuple[Recompute, ...]:
    """What stages of a family may recompute, the fastest first."""
    return TARGETS[family.target].recomputes if family.recompute is None else (family.recompute,)


def _columns(rows: Mapping[str, float | Numbers], count: int) -> dict[str, list[float]]:
    """The numbers of ``count`` cases; what is no array is the same in all."""
    return {
        name: row.tolist() if isinstance(row, np.ndarray) else [row] * count for name, row in rows.items()
    }


class RingRates(NamedTuple):
    """What rings of a type's replicas carry at most, in bytes per second."""

    estimator: Estimator
    between: float
    """Between nodes, by formula; 0 where nothing joins them."""
    inside: float
    """Inside a node, by formula."""
    near: int
    """Members that the nodes of one place hold."""
    together: int
    """Rings of one replica that share the cards of a node."""

    def of(self, members: Numbers, beside: float | Numbers = 1.0) -> tuple[Numbers, Numbers]:
        """By formula or measurement, of rings through the cards and of rings anywhere, [ring].

        ``beside``: rings that leave a node side by side for each ring of a replica.
        """
        if self.estimator.curves is None:
            through_cards = self.between / beside * np.ones_like(members)
            return through_cards, np.maximum(through_cards, self.inside)
        cards, alone, inside, narrowest = (
            np.array(column)
            for column in zip(*(self._measured(int(number)) for number in members.tolist()), strict=True)
        )
        # Where the network inside a node is the narrowest hop, its measurements count, which no other ring shares.
        through_cards = np.maximum(np.minimum(cards / beside, alone), narrowest)
        return through_cards, np.maximum(through_cards, inside)

    def _measured(self, members: int) -> tuple[float, float, float, float]:
        """Through the cards: of a replica's rings each, and of one that shares them with no other; inside a node, and
        where the network inside is the narrowest hop of several nodes."""
        inside = inside_at_most(self.estimator, members)
        if not self.between:
            return 0.0, 0.0, inside, 0.0
        measured = measured_between(self.estimator, members, max(1, self.near) * self.together)
        formula = 0.0 if measured.covers else self.between
        cards, alone = max(measured.together / self.together, formula), max(measured.alone, formula)
        return cards, alone, inside, inside_at_most(self.estimator, members, self.between)


def ring_rates(
    estimator: Estimator, kernels: str, device_types: Sequence[DeviceType], device_type: DeviceType, tp: int
) -> RingRates:
    """Those of a type of these, with replicas of so many devices."""
    topology, calibration = estimator.topology, estimator.calibration
    utilisation = calibration.framework(kernels).link_utilisation
    paths = [topology.path(device_type.pool, pool) for pool in {other.pool for other in device_types}]
    between = max(
        (
            carried_rates(path, calibration, utilisation)[0]
            for path in paths
            if path.fabric not in ("node", "")
        ),
        default=0.0,
    )
    here = sum(other.per_node for other in device_types if other.pool == device_type.pool) // tp
    return RingRates(
        estimator=estimator,
        between=between / tp,
        inside=inside_rate(device_type, calibration),
        # A stage that is dealt over nodes has a replica on each at least.
        near=here if device_type.dealt == 1 else 1,
        together=max(1, tp // device_type.nodes_each),
    )
