"""What devices and links do for a family at best: seconds, sends and memory that no stage of it improves on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import cast

import numpy as np

from planner.cluster.topology import DeviceType
from planner.cost.communication import Ring, Rings, carried_rates, inside_rate
from planner.cost.estimate import Estimator
from planner.cost.many import Numbers, as_array, as_number, larger, smaller
from planner.cost.shape import Shape
from planner.dims.sequence import splits_sequence
from planner.dims.tensor import tp_degrees
from planner.plan.values import ReplicaGroup
from planner.runtimes.capabilities import Recompute
from planner.runtimes.registry import TARGETS
from planner.search.space.choices import Choice, Family, Islands, usable_device_types
from planner.search.space.sends import Hops
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from planner.units import divisors


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
    room: Room
    first_seconds: float
    """What the embedding adds to a micro-batch."""
    last_seconds: float
    """What the head adds to a micro-batch."""
    forward_seconds: float = 0.0
    """The part of ``layer_seconds`` before the backward, at least."""
    backward_seconds: float = 0.0
    """The rest, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A send between parts of the cluster that the pipeline must do at least once."""

    seconds: float
    parts: tuple[int, ...]
    """The part of each device type, in the order of the speeds."""


_Sends = tuple[dict[tuple[str, str], Hops], float | None, dict[tuple[str, str, int, int], Hops]]
"""Least sends by kind, least send between islands, and least sends by kind, tp and dp."""

ALONE = Ring(size=1, bytes_per_second=float("inf"), latency_seconds=0.0, crosses="device")
"""The ring of one replica."""

_UNLIMITED = Room(free_bytes=float("inf"), layer_bytes=1.0, activation_bytes=0.0)
"""Memory that is not looked at."""


class Rates:
    """Speeds and sends for the families of one search."""

    def __init__(self, estimator: Estimator, islands: Islands) -> None:
        self.estimator = estimator
        self.islands = islands
        self.device_types = usable_device_types(estimator.topology, estimator.model)
        self._speeds: dict[Family, tuple[Speed, ...]] = {}
        self._free: dict[tuple[Family, tuple[str, str]], list[tuple[ReplicaGroup, Speed]]] = {}
        self._hops: dict[tuple[str, int | None, int | None, int], _Sends] = {}
        self._free_rates: dict[tuple[object, ...], list[tuple[int, dict[int, float]]]] = {}
        self._known_rates: dict[tuple[str, tuple[str, str], int], tuple[float, float, int]] = {}

    def speeds(self, family: Family) -> tuple[Speed, ...]:
        """Speeds of all device types, fastest first."""
        if family not in self._speeds:
            self.price((family,))
        return self._speeds[family]

    def price(self, families: Iterable[Family]) -> None:
        """Find the speeds of families; those that do the same work with each micro-batch are priced as arrays."""
        alike: dict[object, list[Family]] = {}
        for family in families:
            if family not in self._speeds:
                work = family.target, family.zero, family.recompute, family.tp, family.micro_batch
                alike.setdefault(family if family.dp is None else work, []).append(family)
        for members in alike.values():
            found: list[list[Speed]] = [[] for _ in members]
            for device_type in self.device_types:
                for each, speed in zip(found, self._each_speed(members, device_type), strict=True):
                    if speed is not None and speed.slots > 0 and speed.most_layers > 0:
                        each.append(speed)
            for family, each in zip(members, found, strict=True):
                self._speeds[family] = tuple(sorted(each, key=lambda speed: speed.layer_seconds))

    def free_rates(self, family: Family) -> list[tuple[int, float]]:
        """(replicas, layers of a micro-batch a second of one) of each device type, whatever they hold."""
        key = family.target, family.recompute, family.tp
        if key not in self._free_rates:
            self._free_rates[key] = list(self._find_free_rates(family))
        assert family.micro_batch is not None
        return [(slots, rates[family.micro_batch]) for slots, rates in self._free_rates[key]]

    def _find_free_rates(self, family: Family) -> Iterator[tuple[int, dict[int, float]]]:
        """The same for all sizes of a micro-batch that divide the batch, by size."""
        assert family.tp is not None
        pricer, sizes = (
            self.estimator.pricer(family.target),
            divisors(self.estimator.model.training.global_batch),
        )
        for device_type in self.device_types:
            slots = device_type.replicas(family.tp) if device_type.per_node >= family.tp else 0
            if slots:
                shape, group = self._shape(family, family.tp), self._group(family, device_type, family.tp, 1)
                micro = pricer.micro_batch(shape, group, cast("int", np.array(sizes)), ALONE)
                rates = as_array(1 / (micro.seconds - micro.host_seconds))
                yield slots, dict(zip(sizes, rates.tolist(), strict=True))

    def crossing(self, family: Family) -> Crossing | None:
        """The cheapest send from island to island; None where stages may stand on several."""
        seconds = self.sends(family)[1]
        if seconds is None:
            return None
        numbers = {pool: number for number, island in enumerate(self.islands) for pool in island}
        return Crossing(
            seconds=seconds, parts=tuple(numbers[speed.device_type[0]] for speed in self.speeds(family))
        )

    def hops(self, family: Family) -> dict[tuple[str, str], Hops]:
        """Least sends of a stage with devices of each device type, by kind."""
        return self.sends(family)[0]

    def sends(self, family: Family) -> _Sends:
        """Least sends by kind, between islands, and by kind and degrees."""
        key = (family.target, family.tp, family.dp, family.batch)
        if key not in self._hops:
            choice = Choice(family=family, depth=2, interleave=1)
            stages = StageOptions(choice, self.estimator, Limits(), self.islands)
            hops = {device_type.key: self._hops_of(stages, device_type) for device_type in self.device_types}
            alone = {
                (groups[0].pool, groups[0].gpu, groups[0].tp, groups[0].count): least
                for groups, least in zip(stages.compositions, stages.hops, strict=True)
                if len(groups) == 1
            }
            self._hops[key] = hops, self._least_crossing(stages), alone
        return self._hops[key]

    def _least_crossing(self, stages: StageOptions) -> float | None:
        everyone = range(len(stages.compositions))
        islands = [stages.used_islands(groups) for groups in stages.compositions]
        if not self.islands or not stages.few_pairs or any(len(found) > 1 for found in islands):
            return None
        sends = (stages.sends(a, b) for a in everyone for b in everyone if islands[a] != islands[b])
        return min((min(item.near_seconds, item.far_seconds) for item in sends), default=float("inf"))

    def _hops_of(self, stages: StageOptions, device_type: DeviceType) -> Hops:
        """The least of all compositions with devices of a type; its host works too."""
        found = [
            hops
            for hops, groups in zip(stages.hops, stages.compositions, strict=True)
            if device_type.key in {(group.pool, group.gpu) for group in groups}
        ]
        inner = min((hops.inner_seconds for hops in found), default=float("inf"))
        outer = min((hops.outer_seconds for hops in found), default=float("inf"))
        host = stages.pricer.host_seconds(device_type)
        return Hops(*(host + (value if value < float("inf") else 0.0) for value in (inner, outer)))

    def _each_speed(self, families: Sequence[Family], device_type: DeviceType) -> Iterator[Speed | None]:
        """What devices of a type do for each of several families of equal work; None where they do nothing."""
        family = families[0]
        if family.tp is None or family.micro_batch is None:
            yield from (self._free_speed(each, device_type) for each in families)
            return
        rates = self._ring_rates(family.target, device_type, family.tp)
        able = [each for each in families if self._talks(rates, each.dp or 1)]
        if device_type.per_node < family.tp or not able:
            yield from (None for _ in families)
            return
        replicas = np.array([float(each.dp or 1) for each in able])
        group = self._group(family, device_type, family.tp, family.dp or 1)
        pace = _columns(self._pace(family, group, self._rings(rates, replicas)), len(able))
        rooms = _columns(self._rooms(family, group, replicas), len(able))
        found = {
            each: self._speed(
                device_type, device_type.replicas(family.tp) / (each.dp or 1), one, Room(**room)
            )
            for each, one, room in zip(able, pace, rooms, strict=True)
        }
        yield from (found.get(each) for each in families)

    def _speed(self, device_type: DeviceType, slots: float, pace: Mapping[str, float], room: Room) -> Speed:
        most = min(self.estimator.model.layers, room.layers(1))
        return Speed(device_type=device_type.key, slots=slots, room=room, most_layers=most, **pace)

    def _free_speed(self, family: Family, device_type: DeviceType) -> Speed | None:
        """Each stage chooses its degrees: slots are devices, seconds are device-seconds at the best degrees."""
        found = [(group.devices, speed) for group, speed in self.free_speeds(family, device_type)]
        best = min((devices * speed.layer_seconds for devices, speed in found), default=None)
        if best is None:
            return None
        ends = min((speed.first_seconds + speed.last_seconds) / speed.layer_seconds for _, speed in found)
        return Speed(
            device_type=device_type.key,
            slots=float(device_type.devices),
            layer_seconds=best,
            forward_seconds=min(devices * speed.forward_seconds for devices, speed in found),
            backward_seconds=min(devices * speed.backward_seconds for devices, speed in found),
            tail_seconds=0.0,
            most_layers=self.estimator.model.layers,
            room=_UNLIMITED,
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
        groups = [
            self._group(family, device_type, tp, dp)
            for tp in tp_degrees(TARGETS[family.target], None, self.estimator.model, (device_type,))
            for dp in divisors(family.batch)
            if tp * dp <= device_type.devices
        ]
        found = []
        for group in groups:
            rates = self._ring_rates(family.target, device_type, group.tp)
            if self._talks(rates, group.count) and self.room(family, group).layers(1):
                [pace] = _columns(
                    self._pace(family, group, self._rings(rates, np.array([float(group.count)]))), 1
                )
                found.append((group, self._speed(device_type, float(device_type.devices), pace, _UNLIMITED)))
        return found

    def _group(self, family: Family, device_type: DeviceType, tp: int, dp: int) -> ReplicaGroup:
        share = family.micro_batches * (family.batch // dp)
        return ReplicaGroup(
            pool=device_type.pool,
            gpu=device_type.gpu,
            tp=tp,
            count=dp,
            local_batch=share,
            accumulation_steps=family.micro_batches,
        )

    def _pace(self, family: Family, group: ReplicaGroup, ring: Ring) -> dict[str, float]:
        """Numbers of a group at best, by field of ``Speed``; arrays where ``ring`` stands for many."""
        pricer = self.estimator.pricer(family.target)
        shape = self._shape(family, group.tp)
        # The traffic of ZeRO 2 and 3 in a micro-batch grows with the layers like their computation.
        micro = pricer.micro_batch(shape, group, group.micro_batch, ring)
        # The computation of an end may hide traffic of layers, and shows with what is left of it.
        shown = 1.0 - pricer.stack.overlap if family.zero >= 2 else 1.0
        embedding, head = pricer.ends_seconds(group)
        return {
            "layer_seconds": micro.seconds - micro.host_seconds,
            "forward_seconds": micro.forward_seconds - micro.host_seconds / 2,
            "backward_seconds": micro.backward_seconds - micro.host_seconds / 2,
            "first_seconds": shown * embedding,
            "last_seconds": shown * head,
            "tail_seconds": pricer.tail_seconds(shape, group, ring, micro),
        }

    def _ring_rates(self, target: str, device_type: DeviceType, tp: int) -> tuple[float, float, int]:
        """Rates of a ring between and inside nodes that none beats, and members that the nodes of one place hold."""
        key = target, device_type.key, tp
        if key not in self._known_rates:
            stack = self.estimator.pricer(target).kernels
            self._known_rates[key] = ring_rates(self.estimator, stack, self.device_types, device_type, tp)
        return self._known_rates[key]

    def _talks(self, rates: tuple[float, float, int], replicas: int) -> bool:
        between, inside, near = rates
        return replicas == 1 or between > 0 or (replicas <= near and inside > 0)

    def _rings(self, rates: tuple[float, float, int], replicas: Numbers) -> Ring:
        """Rings of so many replicas that none beats.

        Through the cards where a node cannot hold all members, else the faster of both. Nothing is known of a ring
        where collectives were measured.
        """
        between, inside, near = rates
        rate = np.where(replicas <= near, max(between, inside), between)
        if self.estimator.curves is not None:
            rate = np.full_like(rate, np.inf)
        rate[replicas == 1] = np.inf
        # Arrays pass for numbers.
        return Rings(
            size=cast("int", replicas),
            bytes_per_second=as_number(rate),
            latency_seconds=0.0,
            crosses="node",
        )

    def room(self, family: Family, group: ReplicaGroup) -> Room:
        """Memory of a stage in the middle, never less than there is whatever it recomputes."""
        return Room(**self._rooms(family, group, group.count))

    def _rooms(self, family: Family, group: ReplicaGroup, replicas: float | Numbers) -> dict[str, float]:
        """The same for each of many numbers of replicas, by field of ``Room``."""
        policies = TARGETS[family.target].recomputes if family.recompute is None else (family.recompute,)
        first, *others = (self._room_with(family, group, replicas, recompute) for recompute in policies)
        for other in others:
            first = {
                "free_bytes": larger(first["free_bytes"], other["free_bytes"]),
                "layer_bytes": smaller(first["layer_bytes"], other["layer_bytes"]),
                "activation_bytes": smaller(first["activation_bytes"], other["activation_bytes"]),
            }
        return first

    def _room_with(
        self, family: Family, group: ReplicaGroup, replicas: float | Numbers, recompute: Recompute
    ) -> dict[str, float]:
        """Bytes are concave in layers: the line through both ends is never above them."""
        pricer, many = self.estimator.pricer(family.target), max(2, self.estimator.model.layers)
        shape = self._shape(family, group.tp, recompute)
        footprint = pricer.footprint(shape, group, cast("int", replicas))
        one, activations = footprint.headroom(1, 1.0), footprint.activation_bytes()
        each = (one - footprint.headroom(many, float(many))) / (many - 1)
        return {
            "free_bytes": one + each,
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
        )


def _columns(rows: Mapping[str, float | Numbers], count: int) -> list[dict[str, float]]:
    """Each of ``count`` cases with its own numbers; what is no array is the same in all."""
    values = (row.tolist() if isinstance(row, np.ndarray) else [row] * count for row in rows.values())
    return [dict(zip(rows, each, strict=True)) for each in zip(*values, strict=True)]


def ring_rates(
    estimator: Estimator, stack: str, device_types: Sequence[DeviceType], device_type: DeviceType, tp: int
) -> tuple[float, float, int]:
    """Bytes per second of a ring of the type's replicas between and inside nodes, at most, and members side by side."""
    topology, calibration = estimator.topology, estimator.calibration
    wire = calibration.stack(stack).wire
    paths = [topology.path(device_type.pool, pool) for pool in {other.pool for other in device_types}]
    between = max(
        (carried_rates(path, calibration)[0] * wire for path in paths if path.fabric not in ("node", "")),
        default=0.0,
    )
    near = sum(other.per_node for other in device_types if other.pool == device_type.pool) // tp
    return between / tp, inside_rate(device_type, calibration), near
