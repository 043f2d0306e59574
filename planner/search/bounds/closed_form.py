"""Lower bounds of whole families and choices in closed form: what the search orders and cuts by.

For a pipeline with m micro-batches let w be layers per second of a stage slot. In the time V a stage behind k
others can work at most (V - their first and last micro-batch) / m per micro-batch; with the fastest slots
first this gives V >= L / sum_k w_k / m * (1 - 1/(m v))^k. Whole layers give a second bound (counted.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cluster.topology import Kind
from planner.cost.estimate import Estimator
from planner.cost.shape import Shape
from planner.plan.values import ReplicaGroup
from planner.runtimes.capabilities import Recompute
from planner.runtimes.registry import TARGETS
from planner.search.bounds.lagrangian import StagePart, StagePrices
from planner.search.bounds.layer_counts import Counted, Crossing, Room, Speed, fastest_slots, parts
from planner.search.bounds.per_stage_degrees import OwnDegrees
from planner.search.bounds.rings import fastest_ring
from planner.search.space.choices import (
    MAX_INTERLEAVE,
    Choice,
    Family,
    Islands,
    divisors,
    splits_sequence,
    tp_degrees,
    usable_kinds,
)
from planner.search.space.sends import Hops
from planner.search.space.stages import StageOptions
from planner.search.values import Limits

_Sends = tuple[dict[tuple[str, str], Hops], float | None, dict[tuple[str, str, int, int], Hops]]
"""Least sends by kind, least send between islands, and least sends by kind, tp and dp."""

_FREE = Room(free_bytes=float("inf"), layer_bytes=1.0, activation_bytes=0.0)
"""Memory that is not looked at."""


class Bounds:
    """Bounds for the families of one search."""

    def __init__(self, estimator: Estimator, islands: Islands = ()) -> None:
        self.estimator = estimator
        self.islands = islands
        self.kinds = usable_kinds(estimator.topology, estimator.model)
        self._speeds: dict[Family, tuple[Speed, ...]] = {}
        self._prices: dict[Family, StagePrices] = {}
        self._free: dict[tuple[Family, tuple[str, str]], list[tuple[ReplicaGroup, Speed]]] = {}
        self._hops: dict[tuple[str, int | None, int | None, int], _Sends] = {}

    def speeds(self, family: Family) -> tuple[Speed, ...]:
        """Speeds of all kinds, fastest first."""
        if family not in self._speeds:
            found = [self._speed(family, kind) for kind in self.kinds]
            kept = (
                speed for speed in found if speed is not None and speed.slots > 0 and speed.most_layers > 0
            )
            self._speeds[family] = tuple(sorted(kept, key=lambda speed: speed.layer_seconds))
        return self._speeds[family]

    def family_bound(self, family: Family, depth: int) -> float:
        """No plan of the family with at most ``depth`` stages is faster; infinite when it fits in no memory."""
        speeds = self.speeds(family)
        if family.dp is None:
            return self._own_degrees(family).least(depth)
        if not self.holds(family, depth):
            return float("inf")
        free = Hops(inner_seconds=0.0, outer_seconds=0.0)
        return self._ramp_bound(family, depth, MAX_INTERLEAVE, [free] * len(speeds))

    def bound(self, family: Family, depth: int, interleave: int, cutoff: float = float("inf")) -> float:
        """No plan of this choice is faster: like the family, in whole layers and with the sends of its stages.

        From ``cutoff`` on it need not be the best such number.
        """
        speeds = self.speeds(family)
        if family.dp is None:
            least = self._own_degrees(family).bound(depth)
            return least if depth == 1 else self._stage_prices(family).bound(depth, least, cutoff)
        if not self.holds(family, depth):
            return float("inf")
        free = [Hops(inner_seconds=0.0, outer_seconds=0.0)] * len(speeds)
        plain = self._ramp_bound(family, depth, interleave, free)
        if plain >= cutoff:
            return plain
        hops = [self.hops(family).get(speed.kind, free[0]) for speed in speeds] if depth > 1 else free
        counted = Counted(speeds, hops, self.estimator.model.layers, family.micro_batches, interleave)
        whole = counted.bound(depth, self._crossing(family) if depth > 1 else None, cutoff)
        return max(plain, whole, self._ramp_bound(family, depth, interleave, hops))

    def once(self, choice: Choice, cutoff: float) -> float:
        """Seconds of one micro-batch through all stages of plans faster than this, at least, where that is known."""
        if choice.family.dp is not None or choice.depth == 1 or cutoff == float("inf"):
            return 0.0
        return self._stage_prices(choice.family).once(choice.depth, cutoff)

    def free_rate(self, family: Family) -> float:
        """Layers of a micro-batch a second on all devices, each with replicas of its own, whatever they hold."""
        assert family.tp is not None
        rate = 0.0
        for kind in self.kinds:
            slots = kind.replicas(family.tp) if kind.per_node >= family.tp else 0
            if slots:
                speed = self._of_group(family, kind, self._group(family, kind, family.tp, 1), slots, _FREE)
                rate += slots / speed.layer_seconds if speed else 0.0
        return rate

    def holds(self, family: Family, depth: int) -> bool:
        """True when the memory of the roomiest slots holds all layers."""
        roomiest = tuple(sorted(self.speeds(family), key=lambda speed: -speed.most_layers))
        held = sum(count * speed.most_layers for count, speed in fastest_slots(roomiest, depth))
        return held >= self.estimator.model.layers * (1 - 1e-9)

    def _crossing(self, family: Family) -> Crossing | None:
        """The cheapest send from island to island; None where stages may stand on several."""
        seconds = self._sends(family)[1]
        if seconds is None:
            return None
        numbers = {pool: number for number, island in enumerate(self.islands) for pool in island}
        return Crossing(seconds=seconds, parts=tuple(numbers[speed.kind[0]] for speed in self.speeds(family)))

    def hops(self, family: Family) -> dict[tuple[str, str], Hops]:
        """Least sends of a stage with devices of each kind, by kind."""
        return self._sends(family)[0]

    def _sends(self, family: Family) -> _Sends:
        key = (family.target, family.tp, family.dp, family.batch)
        if key not in self._hops:
            choice = Choice(family=family, depth=2, interleave=1)
            stages = StageOptions(choice, self.estimator, Limits(), self.islands)
            hops = {kind.key: self._hops_of(stages, kind) for kind in self.kinds}
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
        if not self.islands or any(len(found) > 1 for found in islands):
            return None
        sends = (stages.sends(a, b) for a in everyone for b in everyone if islands[a] != islands[b])
        return min((min(item.near_seconds, item.far_seconds) for item in sends), default=float("inf"))

    def _hops_of(self, stages: StageOptions, kind: Kind) -> Hops:
        """The least of all compositions with devices of a kind; its host works too."""
        found = [
            hops
            for hops, groups in zip(stages.hops, stages.compositions, strict=True)
            if kind.key in {(group.pool, group.gpu) for group in groups}
        ]
        inner = min((hops.inner_seconds for hops in found), default=float("inf"))
        outer = min((hops.outer_seconds for hops in found), default=float("inf"))
        host = stages.pricer.host_seconds(kind)
        return Hops(*(host + (value if value < float("inf") else 0.0) for value in (inner, outer)))

    def _stage_prices(self, family: Family) -> StagePrices:
        if family not in self._prices:
            built = [part for kind in self.kinds for part in self._parts_of(family, kind)]
            devices = [kind.devices for kind in self.kinds]
            self._prices[family] = StagePrices(
                built, devices, self.estimator.model.layers, family.micro_batches
            )
        return self._prices[family]

    def _parts_of(self, family: Family, kind: Kind) -> Iterator[StagePart]:
        """Stages with devices of one kind; those whose sends are not known cannot be built, or not talk."""
        least, host = self._sends(family)[2], self.estimator.pricer(family.target).host_seconds(kind)
        for group, speed in self._free_speeds(family, kind):
            hops = least.get((group.pool, group.gpu, group.tp, group.count))
            if hops is None or hops.outer_seconds == float("inf"):
                continue
            outer = host + hops.outer_seconds
            yield StagePart(
                kind=self.kinds.index(kind),
                devices=group.devices,
                layer_seconds=speed.layer_seconds,
                backward_seconds=speed.backward_seconds,
                more_seconds=(
                    host + hops.inner_seconds,
                    outer + speed.first_seconds,
                    outer + speed.last_seconds,
                ),
                tail_seconds=speed.tail_seconds,
                most_layers=min(self.estimator.model.layers, self._room(family, group).layers(1)),
            )

    def _own_degrees(self, family: Family) -> OwnDegrees:
        return OwnDegrees(self.speeds(family), self.estimator.model.layers, family.micro_batches)

    def _work_layers(self, speeds: tuple[Speed, ...]) -> float:
        ends = ((item.first_seconds + item.last_seconds) / item.layer_seconds for item in speeds)
        return self.estimator.model.layers + min(ends, default=0.0)

    def _ramp_bound(self, family: Family, depth: int, interleave: int, hops: list[Hops]) -> float:
        speeds, steps = self.speeds(family), family.micro_batches
        if not speeds:
            return float("inf")
        ratio = 1.0 - 1.0 / (steps * interleave)
        reach, done, weight = 0.0, 0.0, 0.0
        for count, speed in fastest_slots(speeds, depth):
            reach += parts(done, count, lambda slot: ratio**slot) / (speed.layer_seconds * steps)
            weight += count / speed.layer_seconds
            done += count
        if not reach:
            return float("inf")
        layers = self._work_layers(speeds)
        plain = layers / reach
        send = interleave * min(item.inner_seconds for item in hops)
        tail = min(speed.tail_seconds for speed in speeds)
        # Trading a slow slot for a fast one pays only while its time exceeds the sends.
        if send > plain * ratio ** (depth - 1) / steps:
            return plain + tail
        return (layers + max(0.0, send * (weight - 2 / speeds[0].layer_seconds))) / reach + tail

    def _speed(self, family: Family, kind: Kind) -> Speed | None:
        if family.tp is None or family.dp is None:
            return self._free_speed(family, kind)
        if kind.per_node < family.tp:
            return None
        group = self._group(family, kind, family.tp, family.dp)
        slots = kind.replicas(family.tp) / family.dp
        return self._of_group(family, kind, group, slots, self._room(family, group))

    def _free_speed(self, family: Family, kind: Kind) -> Speed | None:
        """Each stage chooses its degrees: slots are devices, seconds are device-seconds at the best degrees."""
        found = [(group.devices, speed) for group, speed in self._free_speeds(family, kind)]
        best = min((devices * speed.layer_seconds for devices, speed in found), default=None)
        if best is None:
            return None
        ends = min((speed.first_seconds + speed.last_seconds) / speed.layer_seconds for _, speed in found)
        return Speed(
            kind=kind.key,
            slots=float(kind.devices),
            layer_seconds=best,
            forward_seconds=min(devices * speed.forward_seconds for devices, speed in found),
            backward_seconds=min(devices * speed.backward_seconds for devices, speed in found),
            tail_seconds=0.0,
            most_layers=self.estimator.model.layers,
            room=_FREE,
            first_seconds=ends * best,
            last_seconds=0.0,
        )

    def _free_speeds(self, family: Family, kind: Kind) -> list[tuple[ReplicaGroup, Speed]]:
        """Stages of one kind with all degrees that hold a layer, each with its speed."""
        key = family, kind.key
        if key not in self._free:
            self._free[key] = self._price_freely(family, kind)
        return self._free[key]

    def _price_freely(self, family: Family, kind: Kind) -> list[tuple[ReplicaGroup, Speed]]:
        groups = [
            self._group(family, kind, tp, dp)
            for tp in tp_degrees(TARGETS[family.target], Limits(), self.estimator.model, (kind,))
            for dp in divisors(family.batch)
            if tp * dp <= kind.devices
        ]
        held = [group for group in groups if self._room(family, group).layers(1)]
        slots = float(kind.devices)
        priced = [(group, self._of_group(family, kind, group, slots, _FREE)) for group in held]
        return [(group, speed) for group, speed in priced if speed is not None]

    def _group(self, family: Family, kind: Kind, tp: int, dp: int) -> ReplicaGroup:
        share = family.micro_batches * (family.batch // dp)
        return ReplicaGroup(
            pool=kind.pool, gpu=kind.gpu, tp=tp, count=dp, share=share, steps=family.micro_batches
        )

    def _of_group(
        self, family: Family, kind: Kind, group: ReplicaGroup, slots: float, room: Room
    ) -> Speed | None:
        pricer = self.estimator.pricer(family.target)
        shape, fastest = (
            self._shape(family, group.tp, 1),
            fastest_ring(self.estimator, family.target, self.kinds, group),
        )
        if fastest is None:
            return None
        # The traffic of ZeRO 2 and 3 in a micro-batch grows with the layers like their computation.
        micro = pricer.micro_batch(shape, group, group.micro_batch, fastest)
        layer_seconds = micro.seconds - micro.host_seconds
        # The computation of an end may hide traffic of layers, and shows with what is left of it.
        shown = 1.0 - pricer.stack.overlap if family.zero >= 2 else 1.0
        ends = []
        for stage in (0, 2):
            whole = pricer.micro_batch(replace(shape, stage=stage), group, group.micro_batch, fastest)
            ends.append(max(0.0, shown * (whole.compute_seconds - micro.compute_seconds)))
        return Speed(
            kind=kind.key,
            slots=slots,
            layer_seconds=layer_seconds,
            forward_seconds=micro.forward_seconds - micro.host_seconds / 2,
            backward_seconds=micro.backward_seconds - micro.host_seconds / 2,
            first_seconds=ends[0],
            last_seconds=ends[1],
            tail_seconds=pricer.tail_seconds(shape, group, fastest),
            room=room,
            most_layers=min(self.estimator.model.layers, room.layers(1)),
        )

    def _room(self, family: Family, group: ReplicaGroup) -> Room:
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
        one, all_layers, two = (
            pricer.memory(self._shape(family, group.tp, layers, flights, recompute), group, group.count)
            for layers, flights in ((1, 1), (many, 1), (1, 2))
        )
        activations = two.used_bytes - one.used_bytes
        each = (all_layers.used_bytes - one.used_bytes) / (many - 1)
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
        )
