"""What devices and links do for a family at best: seconds, sends and memory that no stage of it improves on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor

from planner.cluster.topology import DeviceType
from planner.cost.communication import Ring, carried_rates, inside_rate
from planner.cost.estimate import Estimator
from planner.cost.shape import Shape
from planner.cost.values import Memory
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
        self._hops: dict[tuple[str, int | None, int | None, int, int], _Sends] = {}
        self._free_rates: dict[Family, list[tuple[int, float]]] = {}
        self._rings: dict[tuple[str, str, str, int, int, int], Ring | None] = {}
        self._activations: dict[tuple[object, ...], float] = {}
        """Bytes of one more micro-batch of one layer."""

    def speeds(self, family: Family) -> tuple[Speed, ...]:
        """Speeds of all device types, fastest first."""
        if family not in self._speeds:
            found = [self._speed(family, device_type) for device_type in self.device_types]
            kept = (
                speed for speed in found if speed is not None and speed.slots > 0 and speed.most_layers > 0
            )
            self._speeds[family] = tuple(sorted(kept, key=lambda speed: speed.layer_seconds))
        return self._speeds[family]

    def free_rates(self, family: Family) -> list[tuple[int, float]]:
        """(replicas, layers of a micro-batch a second of one) of each device type, whatever they hold."""
        if family not in self._free_rates:
            self._free_rates[family] = list(self._find_free_rates(family))
        return self._free_rates[family]

    def _find_free_rates(self, family: Family) -> Iterator[tuple[int, float]]:
        assert family.tp is not None
        for device_type in self.device_types:
            slots = device_type.replicas(family.tp) if device_type.per_node >= family.tp else 0
            if slots:
                speed = self._of_group(
                    family, device_type, self._group(family, device_type, family.tp, 1), slots, _UNLIMITED
                )
                if speed is not None:
                    yield slots, 1 / speed.layer_seconds

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
        key = (family.target, family.tp, family.dp, family.batch, family.ep)
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

    def _speed(self, family: Family, device_type: DeviceType) -> Speed | None:
        if family.tp is None or family.dp is None:
            return self._free_speed(family, device_type)
        if device_type.per_node < family.tp:
            return None
        group = self._group(family, device_type, family.tp, family.dp)
        slots = device_type.replicas(family.tp) / family.dp
        return self._of_group(family, device_type, group, slots, self.room(family, group))

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
        held = [group for group in groups if self.room(family, group).layers(1)]
        slots = float(device_type.devices)
        priced = [(group, self._of_group(family, device_type, group, slots, _UNLIMITED)) for group in held]
        return [(group, speed) for group, speed in priced if speed is not None]

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

    def _of_group(
        self, family: Family, device_type: DeviceType, group: ReplicaGroup, slots: float, room: Room
    ) -> Speed | None:
        pricer = self.estimator.pricer(family.target)
        shape, fastest = (
            self._shape(family, group.tp, 1),
            self._fastest_ring(pricer.kernels, group, family.ep),
        )
        if fastest is None:
            return None
        # The traffic of ZeRO 2 and 3 in a micro-batch grows with the layers like their computation.
        micro = pricer.micro_batch(shape, group, group.micro_batch, fastest)
        layer_seconds = micro.seconds - micro.host_seconds
        # The computation of an end may hide traffic of layers, and shows with what is left of it.
        shown = 1.0 - pricer.stack.overlap if family.zero >= 2 else 1.0
        embedding, head = pricer.ends_seconds(group)
        return Speed(
            device_type=device_type.key,
            slots=slots,
            layer_seconds=layer_seconds,
            forward_seconds=micro.forward_seconds - micro.host_seconds / 2,
            backward_seconds=micro.backward_seconds - micro.host_seconds / 2,
            first_seconds=shown * embedding,
            last_seconds=shown * head,
            tail_seconds=pricer.tail_seconds(shape, group, fastest, micro),
            room=room,
            most_layers=min(self.estimator.model.layers, room.layers(1)),
        )

    def _fastest_ring(self, stack: str, group: ReplicaGroup, ep: int) -> Ring | None:
        key = stack, group.pool, group.gpu, group.tp, group.count, ep
        if key not in self._rings:
            self._rings[key] = fastest_ring(self.estimator, stack, self.device_types, group, ep)
        return self._rings[key]

    def room(self, family: Family, group: ReplicaGroup) -> Room:
        """Memory of a stage in the middle, never less than there is whatever it recomputes."""
        policies = TARGETS[family.target].recomputes if family.recompute is None else (family.recompute,)
        found = [self._room_with(family, group, recompute) for recompute in policies]
        return Room(
            free_bytes=max(room.free_bytes for room in found),
            layer_bytes=min(room.layer_bytes for room in found),
            activation_bytes=min(room.activation_bytes for room in found),
        )

    def _room_with(self, family: Family, group: ReplicaGroup, recompute: Recompute) -> Room:
        """Bytes are concave in layers: the line through both ends is never above them."""
        pricer, many = self.estimator.pricer(family.target), max(2, self.estimator.model.layers)

        def memory(layers: int, flights: int) -> Memory:
            shape = self._shape(family, group.tp, layers, flights, recompute)
            return pricer.memory(shape, group, group.count)

        one = memory(1, 1)
        each = (memory(many, 1).used_bytes - one.used_bytes) / (many - 1)
        # Sharding the states and the number of replicas change nothing of them.
        key = family.target, group.pool, group.gpu, group.tp, group.micro_batch, recompute, family.ep
        if key not in self._activations:
            self._activations[key] = memory(1, 2).activations_bytes - one.activations_bytes
        activations = self._activations[key]
        return Room(
            free_bytes=one.headroom_bytes + each,
            layer_bytes=max(0.0, each - activations),
            activation_bytes=activations,
        )

    def _shape(
        self,
        family: Family,
        tp: int,
        layers: int,
        micro_batches: int = 1,
        recompute: Recompute | None = None,
    ) -> Shape:
        """A stage in the middle with the least in flight: the last but one of a pipeline that has no head."""
        return Shape(
            chunks=(layers,),
            stage=1,
            depth=3,
            micro_batches=micro_batches,
            zero=family.zero,
            recompute=recompute or family.recompute or "none",
            sequence_parallel=splits_sequence(TARGETS[family.target], self.estimator.model, tp),
            ep=family.ep,
        )


def fastest_ring(
    estimator: Estimator, stack: str, device_types: Sequence[DeviceType], group: ReplicaGroup, ep: int = 1
) -> Ring | None:
    """A ring that no ring of the group's replicas beats, nor one of its experts; None where they cannot talk.

    Through the cards where a node cannot hold all members, else the faster of both. Nothing is known of a ring where
    collectives were measured.
    """
    topology, calibration = estimator.topology, estimator.calibration
    device_type = topology.device_type(group.pool, group.gpu)
    wire = calibration.stack(stack).wire
    paths = [topology.path(device_type.pool, pool) for pool in {other.pool for other in device_types}]
    between = max(
        (carried_rates(path, calibration)[0] * wire for path in paths if path.fabric not in ("node", "")),
        default=0.0,
    )
    rate = between / group.tp
    if (
        group.count
        <= sum(other.per_node for other in device_types if other.pool == device_type.pool) // group.tp
    ):
        rate = max(rate, inside_rate(device_type, calibration))
    if not rate and group.count > 1:
        return None
    if estimator.curves is not None:
        rate = float("inf")
    ring = Ring(size=group.count, bytes_per_second=rate, latency_seconds=0.0, crosses="node")
    if ep in (1, group.tp):
        return ring
    # Those with the same experts are fewer, and no closer together than replicas.
    return replace(ring, experts=replace(ring, size=max(1, group.devices // ep)))


def fastest_slots(speeds: Sequence[Speed], depth: int) -> list[tuple[float, Speed]]:
    """The first ``depth`` slots of sorted speeds as (number, speed); parts of several types may share a stage."""
    found, left = [], float(depth)
    for speed in speeds:
        count = min(speed.slots, left)
        if count > 0:
            found.append((count, speed))
        left -= count
    return found
