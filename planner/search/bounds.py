"""Lower bounds of whole families and choices in closed form: what the search orders and cuts by.

For a pipeline with m micro-batches let w be layers per second of a stage slot. In the time V a stage behind k
others can work at most (V - their first and last micro-batch) / m per micro-batch; with the fastest slots
first this gives V >= L / sum_k w_k / m * (1 - 1/(m v))^k. Whole layers give a second bound: no stage can do
more than floor(V / m / seconds per layer) of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import floor

from planner.cost.communication import Ring
from planner.cost.estimate import Estimator
from planner.cost.stage import Shape
from planner.plan import ReplicaGroup
from planner.search.options import StageOptions, fastest_ring
from planner.search.space import MAX_INTERLEAVE, Choice, Family, divisors, tp_degrees, usable_kinds
from planner.search.values import Limits
from planner.targets import TARGETS
from planner.topology import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one kind of device does for a family, at best."""

    kind: tuple[str, str]
    slots: float
    """Stages that its devices could fill, in parts too."""
    layer_seconds: float
    """Forward and backward of one layer for one micro-batch."""
    forward_share: float
    """Part of ``layer_seconds`` that is forward."""
    tail_seconds: float
    """Least end of the step per layer held: optimizer, and synchronisation that nothing can hide."""
    most_layers: int
    """Layers that fit in its memory when least micro-batches are in flight."""
    ends_layers: float
    """What the embedding and the head cost, in layers."""


@dataclass(frozen=True, slots=True)
class Hops:
    """Sends of one micro-batch that a stage must do, at least."""

    inner_seconds: float
    """A stage with a neighbour on both sides."""
    outer_seconds: float
    """The first or the last stage."""


class Bounds:
    """Bounds for the families of one search."""

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self.kinds = usable_kinds(estimator.topology, estimator.model)
        self._speeds: dict[Family, tuple[Speed, ...]] = {}
        self._hops: dict[tuple[int | None, int | None, int], dict[tuple[str, str], Hops]] = {}

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
            return self._device_seconds_bound(speeds, family.micro_batches)
        free = Hops(inner_seconds=0.0, outer_seconds=0.0)
        return self._bound(family, depth, MAX_INTERLEAVE, [free] * len(speeds))

    def bound(self, family: Family, depth: int, interleave: int) -> float:
        """No plan of this choice is faster: as for the family, and with the sends that its stages must do."""
        speeds = self.speeds(family)
        if family.dp is None:
            return self._device_seconds_bound(speeds, family.micro_batches)
        free = Hops(inner_seconds=0.0, outer_seconds=0.0)
        plain = self._bound(family, depth, interleave, [free] * len(speeds))
        if depth == 1:
            return plain
        hops = [self.hops(family).get(speed.kind, free) for speed in speeds]
        return max(plain, self._bound(family, depth, interleave, hops))

    def _bound(self, family: Family, depth: int, interleave: int, hops: list[Hops]) -> float:
        speeds, steps = self.speeds(family), family.micro_batches
        if not speeds:
            return float("inf")
        ramp = self._ramp_bound(speeds, depth, steps, interleave, hops)
        if interleave == 1:
            ramp = max(ramp, self._round_trip_bound(speeds, depth, steps, hops))
        return max(ramp, self._whole_layers_bound(speeds, depth, steps, interleave, hops))

    def hops(self, family: Family) -> dict[tuple[str, str], Hops]:
        """Least sends of a stage with devices of each kind, by kind."""
        key = (family.tp, family.dp, family.batch)
        if key not in self._hops:
            stages = StageOptions(Choice(family=family, depth=2, interleave=1), self.estimator, Limits())
            self._hops[key] = {kind.key: self._hops_of(stages, kind) for kind in self.kinds}
        return self._hops[key]

    def _hops_of(self, stages: StageOptions, kind: Kind) -> Hops:
        """Up to one neighbour of a stage shares its node where two fit, both where three do."""
        both, one = [], []
        everyone = range(len(stages.compositions))
        for composition in everyone:
            groups = stages.compositions[composition]
            if kind.key not in {(group.pool, group.gpu) for group in groups}:
                continue
            found = [
                stages.sends(*pair)
                for other in everyone
                for pair in ((composition, other), (other, composition))
            ]
            far = min((sends.far_seconds for sends in found), default=float("inf"))
            near = min(far, min((sends.near_seconds for sends in found), default=float("inf")))
            fitting = kind.per_node // sum(group.devices for group in groups) if kind.nodes > 1 else 3
            one.append(near)
            both.append(2 * near if fitting >= 3 else near + far if fitting == 2 else 2 * far)
        least = min(both, default=float("inf")), min(one, default=float("inf"))
        return Hops(*(value if value < float("inf") else 0.0 for value in least))

    def _device_seconds_bound(self, speeds: tuple[Speed, ...], steps: int) -> float:
        """Where each stage has its own degrees: all devices at their best, without a ramp."""
        rate = sum(speed.slots / speed.layer_seconds for speed in speeds)
        return steps * self._work_layers(speeds) / rate if rate else float("inf")

    def _work_layers(self, speeds: tuple[Speed, ...]) -> float:
        return self.estimator.model.layers + min((speed.ends_layers for speed in speeds), default=0.0)

    def _ramp_bound(
        self, speeds: tuple[Speed, ...], depth: int, steps: int, interleave: int, hops: list[Hops]
    ) -> float:
        ratio = 1.0 - 1.0 / (steps * interleave)
        reach, done, weight = 0.0, 0.0, 0.0
        for count, speed in fastest_slots(speeds, depth):
            reach += _parts(done, count, lambda slot: ratio**slot) / (speed.layer_seconds * steps)
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

    def _round_trip_bound(self, speeds: tuple[Speed, ...], depth: int, steps: int, hops: list[Hops]) -> float:
        """One micro-batch through everything and back, then what each stage has still to do after it.

        A stage with k behind it has done depth - k forwards by then: its remaining time per second of
        micro-batch is (m - 1) - forward share x (depth - 1 - k).
        """
        forward = max(speed.forward_share for speed in speeds)
        layers = self._work_layers(speeds)
        reach, done = 0.0, 0.0
        for count, speed in fastest_slots(speeds, depth):
            reach += (
                _parts(done, count, lambda slot: _remaining(steps, depth, slot, forward))
                / speed.layer_seconds
            )
            done += count
        if not reach:
            return float("inf")
        inner, outer = (
            min(getattr(item, name) for item in hops) for name in ("inner_seconds", "outer_seconds")
        )
        sends = (depth - 2) * inner + 2 * outer if depth > 1 else 0.0
        tail = min(speed.tail_seconds for speed in speeds)
        return layers * speeds[0].layer_seconds + sends + layers / reach + tail

    def _whole_layers_bound(
        self, speeds: tuple[Speed, ...], depth: int, steps: int, interleave: int, hops: list[Hops]
    ) -> float:
        """Least time in which ``depth`` stages can hold all layers, none of them in parts."""
        layers = self.estimator.model.layers
        inner, outer = (
            [
                [
                    steps * (count * speed.layer_seconds + interleave * send) + count * speed.tail_seconds
                    for count in range(1, min(speed.most_layers, layers) + 1)
                ]
                for speed, send in zip(speeds, sends, strict=True)
            ]
            for sends in ([item.inner_seconds for item in hops], [item.outer_seconds for item in hops])
        )
        times = sorted({seconds for row in inner + outer for seconds in row})

        def enough(seconds: float) -> bool:
            counts = [bisect_right(row, seconds) for row in inner]
            extra = max(bisect_right(row, seconds) - count for row, count in zip(outer, counts, strict=True))
            slots = sorted(
                ((count, speed.slots) for count, speed in zip(counts, speeds, strict=True)), reverse=True
            )
            return _layers_of_slots(slots, depth) + 2 * extra >= layers - 1e-9

        if not times or not enough(times[-1]):
            return float("inf")
        return times[bisect_left(times, True, key=enough)]

    def _speed(self, family: Family, kind: Kind) -> Speed | None:
        if family.tp is None or family.dp is None:
            return self._free_speed(family, kind)
        if kind.per_node < family.tp:
            return None
        group = self._group(family, kind, family.tp, family.dp)
        return self._of_group(family, kind, group, kind.replicas(family.tp) / family.dp)

    def _free_speed(self, family: Family, kind: Kind) -> Speed | None:
        """Each stage chooses its degrees: slots are devices, seconds are device-seconds at the best degrees."""
        model, row = self.estimator.model, TARGETS[family.target]
        groups = [
            self._group(family, kind, tp, dp)
            for tp in tp_degrees(row, Limits(), model, (kind,))
            for dp in divisors(family.batch)
            if tp * dp <= kind.devices
        ]
        priced = [(group, self._of_group(family, kind, group, float(kind.devices))) for group in groups]
        found = [(group.devices, speed) for group, speed in priced if speed is not None]
        best = min((devices * speed.layer_seconds for devices, speed in found), default=None)
        if best is None:
            return None
        ends = min(speed.ends_layers for _, speed in found)
        return Speed(
            kind=kind.key,
            slots=float(kind.devices),
            layer_seconds=best,
            forward_share=1.0,
            tail_seconds=0.0,
            most_layers=model.layers,
            ends_layers=ends,
        )

    def _group(self, family: Family, kind: Kind, tp: int, dp: int) -> ReplicaGroup:
        share = family.micro_batches * (family.batch // dp)
        return ReplicaGroup(
            pool=kind.pool, gpu=kind.gpu, tp=tp, count=dp, share=share, steps=family.micro_batches
        )

    def _of_group(self, family: Family, kind: Kind, group: ReplicaGroup, slots: float) -> Speed | None:
        pricer = self.estimator.pricer(family.target)
        shape, fastest = (
            self._shape(family, group.tp, 1),
            fastest_ring(self.estimator, family.target, self.kinds, group),
        )
        if fastest is None:
            return None
        ring = Ring(size=1, bytes_per_second=float("inf"), latency_seconds=0.0, crosses="device")
        micro = pricer.micro_batch(shape, group, group.micro_batch, ring)
        layer_seconds = micro.forward_seconds + micro.backward_seconds
        ends = 0.0
        for stage in (0, 2):
            whole = pricer.micro_batch(replace(shape, stage=stage), group, group.micro_batch, ring)
            ends += whole.forward_seconds + whole.backward_seconds - layer_seconds
        return Speed(
            kind=kind.key,
            slots=slots,
            layer_seconds=layer_seconds,
            forward_share=micro.forward_seconds / layer_seconds,
            ends_layers=ends / layer_seconds,
            tail_seconds=pricer.tail_seconds(shape, group, fastest),
            most_layers=self._most_layers(family, group),
        )

    def _most_layers(self, family: Family, group: ReplicaGroup) -> int:
        """Layers that fit between the ends of a pipeline with one micro-batch in flight; one stage may hold all."""
        pricer = self.estimator.pricer(family.target)
        layers = range(1, self.estimator.model.layers + 1)
        dp = group.count

        def too_many(count: int) -> bool:
            return not pricer.memory(self._shape(family, group.tp, count), group, dp).fits

        return bisect_left(layers, True, key=too_many)

    def _shape(self, family: Family, tp: int, layers: int) -> Shape:
        """A stage in the middle with the least in flight: the last but one of a pipeline that has no head."""
        return Shape(
            chunks=(layers,),
            stage=1,
            depth=3,
            micro_batches=1,
            zero=family.zero,
            recompute=family.recompute,
            sequence_parallel=TARGETS[family.target].sequence_parallel and tp > 1,
        )


def fastest_slots(speeds: tuple[Speed, ...], depth: int) -> list[tuple[float, Speed]]:
    """The ``depth`` fastest stage slots as (number, speed); parts of slots of several kinds may share a stage."""
    found, left = [], float(depth)
    for speed in speeds:
        count = min(speed.slots, left)
        if count > 0:
            found.append((count, speed))
        left -= count
    return found


def _remaining(steps: int, depth: int, slot: int, forward: float) -> float:
    """Inverse of the micro-batches that a stage has still to do when the first one is back."""
    kept = max(0, steps - (depth - slot))
    return 1.0 / (kept * forward + (steps - 1) * (1 - forward)) if steps > 1 else float("inf")


def _parts(start: float, count: float, weight: Callable[[int], float]) -> float:
    """Sum of the weights of ``count`` slots from ``start`` on; a part of a slot weighs in proportion."""
    total, position, left = 0.0, start, count
    while left > 1e-12:
        slot = floor(position + 1e-12)
        part = min(left, slot + 1 - position)
        total += part * weight(slot)
        position += part
        left -= part
    return total


def _layers_of_slots(counts: list[tuple[int, float]], depth: int) -> float:
    """Layers that the ``depth`` best slots hold, of (layers, slots) with most layers first."""
    total, left = 0.0, float(depth)
    for layers, slots in counts:
        used = min(slots, left)
        total += used * layers
        left -= used
    return total
