"""What closed-form bounds are worth: on examples worked out by hand, and next to the least of what they bound."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import numpy as np
import pytest

from planner.cost.schedules import each_alive
from planner.search.bounds.lagrangian import LagrangianBound, StagePart
from planner.search.bounds.layer_count import LayerCountBound
from planner.search.bounds.node_runs import Nodes
from planner.search.bounds.per_stage_degrees import PerStageDegreesBound
from planner.search.bounds.ramp import RampBound
from planner.search.bounds.rates import Policy, RequiredSend, Room, Speed
from planner.search.space.sends import Borders, Hops, Sides
from tests.search.test_layer_count import fastest
from tests.search.test_layer_count import speed as of_layers

ROOMY = Room(free_bytes=1e9, layer_bytes=1.0, activation_bytes=0.0)


def speed(
    layer: float, slots: float = 4.0, *, first: float = 0.0, last: float = 0.0, tail: float = 0.0
) -> Speed:
    """A device type with room for all layers; a third of a layer's time is its forward."""
    return Speed(
        device_type=("pool", f"{layer}"),
        slots=slots,
        layer_seconds=layer,
        tail_seconds=tail,
        most_layers=100,
        policies=(Policy(layer, tail, ROOMY),),
        first_seconds=first,
        last_seconds=last,
        forward_seconds=layer / 3,
        backward_seconds=layer * 2 / 3,
    )


def hops(inner: float, outer: float) -> Hops:
    """Sends that are the same whoever the neighbours are."""
    return Hops(inner_seconds=inner, outer_seconds=outer)


def test_the_ramp_by_hand() -> None:
    """Two layers a second on two slots and one on the others; embedding and head are 0.2 and 0.4 layers at least."""
    bound = RampBound(
        [speed(0.5, 2.0, first=0.2, last=0.2, tail=0.05), speed(1.0, first=0.2, last=0.5)], 8, 4, 4
    )
    # 8.6 layers in 4 micro-batches; a stage leaves the next one 3/4 of what it has itself, or 7/8 with two chunks.
    expected = [8.6 * 4 / rate for rate in (2, 2 + 1.5, 2 + 1.5 + 9 / 16, 2 + 1.5 + 9 / 16 + 27 / 64)]
    # A layer takes 2.05 s of the step on one slot, with its tail: a stage alone, whose way back is no longer, has all.
    alone = (8 + 0.2 + 0.8 / 2.05) * 2.05
    assert alone > expected[0]
    assert bound.bounds(1) == pytest.approx([alone, *expected[1:]])
    assert bound.bounds(2)[2] == pytest.approx(8.6 * 4 / (2 + 7 / 4 + 49 / 64))
    whole = 2 / 2.05 + 2 / 4
    assert bound.bounds(1, divided=True)[3] == pytest.approx((8 + 0.2 + 0.8 / 2.05) / whole)


def test_the_ramp_with_long_tails_by_hand() -> None:
    """A layer takes 4 s of work and 4 s of tail on the first two slots, 8 s of work on the others.

    The forward of a micro-batch is a 24th of the 8 s, at least: a stage has 23/24 of the time of the one before it.
    """
    kinds = [speed(1.0, 2.0, tail=4.0), speed(2.0, tail=0.0)]
    bound = RampBound(kinds, 8, 4, 4)
    left = np.cumsum([(23 / 24) ** stage for stage in range(4)])
    assert bound.bounds(1) == pytest.approx(8 * 8 / left)
    half = np.cumsum([(47 / 48) ** stage for stage in range(4)])
    assert bound.bounds(2) == pytest.approx(8 * 8 / half)
    assert bound.bounds(1, divided=True) == pytest.approx(8 * 8 / np.arange(1.0, 5.0))
    # Each micro-batch is sent for 0.1 s by all slots but two: so many eighths of a layer less.
    assert bound.bounds(1, [hops(0.1, 0.05)] * 2)[3] == pytest.approx((8 + 0.4 * 2 / 8) * 8 / left[3])


def test_the_ramp_with_sends_by_hand() -> None:
    """All slots but two send twice, and a slow slot is worth its sends while it does more than they take."""
    bound = RampBound([speed(0.5, 2.0, tail=0.5), speed(1.0, tail=0.5)], 8, 4, 4)
    reach = np.array([2, 2 + 1.5, 2 + 1.5 + 9 / 16, 2 + 1.5 + 9 / 16 + 27 / 64])
    sent = 0.1 * np.array([0, 0, 1, 2])  # of the layers a second of all slots but two of the fastest
    expected = (8 * 4 + 4 * sent) / reach + 0.5
    assert bound.bounds(1, [hops(0.1, 0.05), hops(0.3, 0.2)])[2:] == pytest.approx(expected[2:])
    # 1.5 s of the second slot's 7.86 s are its own, 2.5 s of sends are more than that.
    assert bound.bounds(1, [hops(2.5, 2.0)] * 2)[2:] == pytest.approx((8 * 4 / reach + 0.5)[2:])


def counted(
    speeds: list[Speed], sent: list[Hops], layers: int, steps: int, **more: object
) -> LayerCountBound:
    """The bound of plain pipelines unless something else is said."""
    return LayerCountBound(speeds, sent, layers, steps, **{"chunks": 1, **more})  # type: ignore[arg-type]


def test_room_by_hand() -> None:
    """Ten bytes hold three layers of three, two with an activation of two each, and none is held where none is free."""
    room = Room(free_bytes=10.0, layer_bytes=3.0, activation_bytes=1.0)
    assert [room.layers(alive) for alive in (0, 1, 2, 7, 8)] == [3, 2, 2, 1, 0]
    assert replace(room, free_bytes=0.0).layers(0) == replace(room, free_bytes=-1.0).layers(0) == 0
    assert Room(free_bytes=inf, layer_bytes=1.0, activation_bytes=0.0).layers(5) == 10**9


def test_whole_layers_by_hand() -> None:
    """Eight layers of a second on four stages: two each, and three on one of them for nine."""
    plain = [speed(1.0, first=0.5, last=0.25, tail=0.125)]
    free = [hops(0.0, 0.0)]
    # 2 once + (m - p - 1) b, and a tail for each of the layers that the emptiest stage has at least
    even = counted(plain, free, 8, 16)
    assert even.bound(4) == pytest.approx(2 * 8.75 + 11 * 2.5 + 0.125 * 2)
    # The end stages hold one layer less than those in the middle, which have three: 1 + 3 + 3 + 1.
    assert even.bound(2) == pytest.approx(2 * 8.75 + 13 * 4.5 + 0.125 * 4)
    assert even.bound(1) == pytest.approx(16 * 8.75 + 0.125 * 8)
    sent = counted(plain, [hops(0.2, 0.1)], 8, 16)
    assert sent.bound(4) == pytest.approx(2 * (8.75 + 2 * 0.2 + 2 * 0.1) + 11 * 2.6 + 0.125 * 2)
    # Of two micro-batches the first alone takes all stages' time, whichever stage has how many layers.
    assert counted(plain, free, 8, 2).bound(4) == pytest.approx(8.75 + 0.125)


def test_chunks_and_ends_on_one_stage_by_hand() -> None:
    """Of several chunks, and of V-shaped pipelines, only the busiest stage's own work is known."""
    plain, sent = [speed(1.0, first=0.5, last=0.25)], [hops(0.2, 0.1)]
    # Two chunks send twice: 2 layers and 0.4 s in the middle, 2 layers, 0.2 s and 0.5 s at the ends.
    assert counted(plain, sent, 8, 16, chunks=2).bound(4) == pytest.approx(16 * 2.7)
    # Both ends on the first stage.
    shaped = counted(plain, sent, 8, 16, chunks=2, schedule="zb-v")
    assert shaped.bound(4) == pytest.approx(16 * 2.95)
    assert counted(plain, sent, 8, 16, schedule="zero-bubble").bound(4) == pytest.approx(16 * 2.6)


def test_borders_of_nodes_by_hand() -> None:
    """Four stages on two nodes of two: somewhere one send leaves the node, and the stages beside it hold less."""
    borders = Borders(
        next_seconds=1.1, before_seconds=1.1, both_seconds=2.0, first_seconds=1.0, last_seconds=1.0
    )
    sent = [Hops(inner_seconds=0.2, outer_seconds=0.1, borders=borders)]
    one = counted([speed(1.0)], sent, 8, 8, nodes={"pool": (2, 2)})
    # A border is 0.9 s on each side. Two layers take 3 s on an end beside it, 3.1 s on a stage in the middle.
    once = 8 + 2 * 0.2 + 2 * 0.1 + 2 * 0.9
    assert one.bound(4, cutoff=100.0) == pytest.approx(2 * once + 3 * 3.1)
    # Nodes of one stage have three borders.
    each = counted([speed(1.0)], sent, 8, 8, nodes={"pool": (4, 1)})
    assert each.bound(4, cutoff=100.0) == pytest.approx(2 * (8 + 0.6 + 3 * 1.8) + 3 * 3.1)
    # A stage of several device types may be anywhere between two pure ones.
    mixed = counted([speed(1.0)], sent, 8, 8, nodes={"pool": (2, 2)}, mixed=1)
    assert mixed.bound(4, cutoff=100.0) == pytest.approx(2 * 8.6 + 3 * 2.2)


def test_runs_on_nodes_by_hand() -> None:
    """Four stages on two nodes beside four on one: of the former, each run loses a layer where it begins and ends."""
    slow, fast = replace(speed(1.0), device_type=("a", "gpu")), replace(speed(1.0), device_type=("b", "gpu"))
    apart = Borders(
        next_seconds=1.0, before_seconds=1.0, both_seconds=2.0, first_seconds=1.0, last_seconds=1.0
    )
    sent = [replace(hops(0.0, 0.0), borders=apart), hops(0.0, 0.0)]
    nodes, steps = {"a": (2, 2), "b": (1, 4)}, 1000
    # Eight stages hold three layers each in 3 s; two runs have four ends, but for those of the pipeline.
    for layers, busy in ((22, 3.0), (23, 4.0)):
        found = counted([slow, fast], sent, layers, steps, nodes=nodes).bound(8, cutoff=1e9)
        assert found == pytest.approx(2 * layers + (steps - 9) * busy)
    # A stage of several device types may be a neighbour of any.
    assert counted([slow, fast], sent, 23, steps, nodes=nodes, mixed=1).bound(8, cutoff=1e9) < found
    # Runs that reach no other node are of no use, but with the end of the pipeline on that side.
    alone = Borders(*[inf] * 5)
    never = counted([slow, fast], [replace(sent[0], borders=alone), sent[1]], 12, steps, nodes=nodes)
    assert [never.bound(depth) < inf for depth in (4, 5)] == [True, False]
    ahead = replace(alone, next_seconds=1.0, first_seconds=1.0)
    begins = counted([slow, fast], [replace(sent[0], borders=ahead), sent[1]], 12, steps, nodes=nodes)
    assert [begins.bound(depth) < inf for depth in (5, 6, 7)] == [True, True, False]


def test_crossings_by_hand() -> None:
    """One send of two seconds each way between a fast and a slow part: two stages lose two layers each."""
    kinds, sent = [speed(1.0, 2.0), speed(1.5, 2.0)], [hops(0.0, 0.0)] * 2
    plain = counted(kinds, sent, 8, 8).bound(4)
    cross = RequiredSend(seconds=2.0, parts=(0, 1))
    found = counted(kinds, sent, 8, 8, crossing=cross).bound(4)
    # once = 2 x 1 + 2 x 1.5 for a layer each, 4 more on the fastest slots, and 2 s up and 2 s down
    assert plain == pytest.approx(2 * 9.0 + 3 * 3.0)
    assert found == pytest.approx(2 * 13.0 + 3 * 3.5)
    never = counted(kinds, sent, 8, 8, crossing=RequiredSend(seconds=inf, parts=(0, 1)))
    assert never.bound(4) == never.once(4, 100.0) == inf


def test_quick_looks_by_hand() -> None:
    """Five fast stages, one of them at each end, and a slow one: 22 layers in 4 s of each micro-batch, 27 in 5 s."""
    kinds = [speed(1.0, 3.0), speed(2.0, 3.0)]
    bound = counted(kinds, [hops(0.0, 0.0)] * 2, 24, 8)
    # Two percent above the cutoff.
    assert bound.beyond([6], 8 * 4 / 1.02) == pytest.approx([8 * 4])
    assert bound.beyond([6], 8 * 5 / 1.02).tolist() == [0.0]
    # Of all depths at once the same as of each: two stages do no more than 2 x 12.
    for seconds in (4, 5, 6, 8, 11.9, 12):
        depths, cutoff = [2, 3, 4, 5, 6], 8 * seconds / 1.02
        found = bound.beyond(depths, cutoff).tolist()
        assert found == [bound.beyond([depth], cutoff)[0] for depth in depths]
        assert (found[0] > 0) == (seconds < 12)
    # Thousands of layers in exactly their time.
    long = counted(kinds[:1], [hops(0.0, 0.0)], 4000, 8)
    assert long.beyond([2], 8 * 2000 / 1.02).tolist() == [0.0]
    assert long.beyond([2], 8 * 1999.9 / 1.02)[0] > 0


def test_one_micro_batch_in_time_by_hand() -> None:
    """Three rounds: the longer one micro-batch takes, the less the busiest stage may, and the fewer fast layers.

    Of 40 layers on slots of 1, 2, 3 and 3 s each has one at least; 2 once + 11 b <= T.
    """
    kinds = [speed(1.0, 1.0), speed(2.0, 1.0), speed(3.0, 2.0)]
    bound = counted(kinds, [hops(0.0, 0.0)] * 3, 40, 16)
    # b <= T / 16 = 22.2, then (T - 2 x 65) / 11 = 20.4, then (T - 2 x 70) / 11 = 19.5
    assert [one + 2 * two + 3 * (40 - one - two) for one, two in ((22, 11), (20, 10), (19, 9))] == [
        65,
        70,
        73,
    ]
    assert bound.once(4, 354.9) == pytest.approx(73.0)


def test_memory_that_is_taken_holds_no_layer() -> None:
    """Nor less than none."""
    taken = replace(speed(1.0), policies=(Policy(1.0, 0.0, replace(ROOMY, free_bytes=-5.0)),))
    bound = counted([taken, speed(2.0)], [hops(0.0, 0.0)] * 2, 8, 8)
    assert bound._rooms(2).tolist() == [[[0.0, 0.0], [1e9, 1e9]]]


def test_layers_are_counted_close_to_the_fastest_cut() -> None:
    """Mean shares of the least end over all orders and cuts: free, with a send, and with a slow link as well."""
    shares: dict[str, list[float]] = {"plain": [], "slow": []}
    for seed in range(24):
        draw = random.Random(seed)
        layers, steps, send = draw.randint(3, 5), draw.choice((1, 2, 4, 9)), draw.choice((0.0, 0.2))
        kinds = sorted(
            (
                of_layers(
                    draw.uniform(0.5, 2), draw.randint(1, 2), draw.randint(2, 6), draw.choice((0.0, 0.3))
                )
                for _ in range(2)
            ),
            key=lambda item: item.layer_seconds,
        )
        depth = draw.randint(2, min(3, int(kinds[0].slots + kinds[1].slots)))
        slow = RequiredSend(seconds=send + draw.uniform(0.1, 2), parts=(0, 1))
        for name, crossing in (("plain", None), ("slow", slow)):
            least = fastest(
                kinds, layers, depth, steps, 0.4, [send] * 2, crossing.seconds if crossing else None
            )
            bound = counted(kinds, [hops(2 * send, send)] * 2, layers, steps, crossing=crossing).bound(depth)
            if least < inf:
                shares[name].append(bound / least)
    means = {name: sum(each) / len(each) for name, each in shares.items()}
    assert means == pytest.approx({"plain": 0.954672, "slow": 0.902896}, abs=1e-6)


def test_devices_dealt_to_layers_in_any_part() -> None:
    """The least over all parts of the rate for the busiest stage, of those with one layer each for the others."""
    kinds = [speed(1.0, 6.0, first=0.3, last=0.5), speed(2.0, 4.0, first=0.4, last=0.8)]
    bound = PerStageDegreesBound(kinds, 12, 8)
    # 8 devices' worth of a layer a second; embedding and head are 0.6 layers on the second type, 0.8 on the first.
    assert bound.bound(1) == pytest.approx(8 * 12.6 / 6)
    rate, work, depth = 8.0, 12.6, 3
    shares = np.linspace(work / rate, 4 * work / rate, 400_001)[1:]
    left = rate - (work - depth + 1) / shares

    def least(once: float, busy: float, layers: float) -> float:
        others = (depth - 1) ** 2 / (rate - (layers - depth + 1) / shares)
        able = rate - (layers - depth + 1) / shares > 0
        held = np.where(able & (shares * rate >= layers), (once + busy) * shares + once * others, inf)
        return max(float(held.min()), once * layers / 6 + busy * layers / rate)

    assert (left > 0).any()
    # once + (m - 1) B + (m - p) F, and 2 once + (m - p - 1) b, with forwards of a third
    trip = least(1, 7 * 2 / 3 + 5 / 3, 12) + 0.6 / rate
    twice = least(2, 4, work)
    own = 8 * work / rate
    assert bound.bound(depth) == pytest.approx(max(own, trip, twice), rel=1e-4)
    assert bound.least(3) == pytest.approx(min(bound.bound(depth) for depth in (1, 2, 3)))
    assert bound.bound(13) == inf
    assert PerStageDegreesBound((), 12, 8).bound(2) == inf


class Parts:
    """A few ways to fill a stage, and every pipeline of them."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.layers, self.steps, self.depth = draw.randint(4, 7), draw.choice((1, 3, 6)), draw.randint(2, 3)
        self.devices, self.whole = (draw.randint(2, 4), draw.randint(2, 4)), draw.random() < 0.5
        self.parts = [
            part(draw, kind, count, draw.uniform(0.8, 3.0) / count, whole=self.whole)
            for kind, count in product((0, 1), (1, 2))
        ]
        self.bound = LagrangianBound(self.parts, self.devices, self.layers, self.steps)

    def pipelines(self) -> Iterator[tuple[float, float]]:
        """(end, seconds of one micro-batch) by the documented paths, of all pipelines that there is room for."""
        for chosen in product(range(len(self.parts)), repeat=self.depth):
            used = [
                sum(self.parts[index].devices * (self.parts[index].device_type == kind) for index in chosen)
                for kind in (0, 1)
            ]
            if any(count > most for count, most in zip(used, self.devices, strict=True)):
                continue
            for counts in product(range(1, self.layers + 1), repeat=self.depth):
                if sum(counts) == self.layers and self._fit(chosen, counts):
                    yield self._end(chosen, counts)

    def latest(self, least: float) -> float:
        """The longest time in which the bound knows that no pipeline ends."""
        low, high = 0.0, 1.01 * least
        for _ in range(30):
            middle = (low + high) / 2
            later = self.bound.once(self.depth, middle) == inf
            low, high = (middle, high) if later else (low, middle)
        return low

    def _fit(self, chosen: tuple[int, ...], counts: tuple[int, ...]) -> bool:
        alive = each_alive(np.arange(self.depth), np.array(self.depth), self.steps, 1)[::-1]
        return all(
            count <= self.parts[index].room.layers(float(held))
            for index, count, held in zip(chosen, counts, alive, strict=True)
        )

    def _end(self, chosen: tuple[int, ...], counts: tuple[int, ...]) -> tuple[float, float]:
        last, apart = self.depth - 1, self.whole
        parts = [self.parts[index] for index in chosen]
        more = [
            each.first_seconds[apart]
            if stage == 0
            else each.last_seconds[apart]
            if stage == last
            else each.inner_seconds[3 * apart]
            for stage, each in enumerate(parts)
        ]
        busy = [
            each.layer_seconds * count + sent for each, count, sent in zip(parts, counts, more, strict=True)
        ]
        back = [each.backward_seconds * count for each, count in zip(parts, counts, strict=True)]
        once, most = sum(busy), self.depth - 1
        ends = [
            self.steps * own + each.tail_seconds * count
            for own, each, count in zip(busy, parts, counts, strict=True)
        ]
        ends += [
            once + max(0, self.steps - self.depth) * own + min(most, self.steps - 1) * behind
            for own, behind in zip(busy, back, strict=True)
        ]
        if self.steps > self.depth:
            ends.append(2 * once + (self.steps - self.depth - 1) * max(busy))
        return max(ends), once


def part(draw: random.Random, kind: int, count: int, seconds: float, *, whole: bool) -> StagePart:
    """A stage of so many devices that stands on a node of its own, or on next to nothing of one."""
    near, far, first, last = 0.05, draw.uniform(0.1, 0.6), draw.uniform(0, 0.3), draw.uniform(0, 0.3)
    return StagePart(
        device_type=kind,
        devices=count,
        nodes=1.0 if whole else 0.0,
        layer_seconds=seconds,
        backward_seconds=seconds * 2 / 3,
        inner_seconds=(2 * near, near + far, near + far, 2 * far),
        first_seconds=(first + near, first + far),
        last_seconds=(last + near, last + far),
        tail_seconds=draw.choice((0.0, 0.2)),
        room=Room(free_bytes=draw.uniform(4, 12), layer_bytes=1.0, activation_bytes=0.3),
    )


def on_nodes(devices: int, layers: int, *, spread: bool) -> StagePart:
    """A stage with up to so many layers of a second each, without sends; one on several nodes ends with a tail."""
    free = (0.0, 0.0, 0.0)
    return StagePart(
        device_type=0,
        devices=devices,
        nodes=1.0,
        layer_seconds=1.0,
        backward_seconds=0.5,
        inner_seconds=(0.0, 0.0, 0.0, 0.0),
        first_seconds=(0.0, 0.0),
        last_seconds=(0.0, 0.0),
        tail_seconds=0.4 if spread else 0.0,
        room=Room(free_bytes=float(layers), layer_bytes=1.0, activation_bytes=0.0),
        sides=Sides(next_seconds=free, before_seconds=free, spread=spread),
    )


@pytest.mark.parametrize(
    ("layers", "ends_wait", "seconds"),
    # 2 once + 7 busy of 4 + 4 layers, and the tail of one of them at least; of 3 + 4 layers, or 4 + 3.
    [(8, False, 2 * 8 + 7 * 4 + 0.4), (8, True, 44.4), (7, False, 2 * 7 + 7 * 4), (7, True, 42.4)],
)
def test_ends_on_several_nodes_reduce_after_all_else(layers: int, ends_wait: bool, seconds: float) -> None:
    """The first stage does in any case, the last one where the first waits for it."""
    parts = [on_nodes(2, 3, spread=False), on_nodes(4, 4, spread=True)]
    bound = LagrangianBound(parts, [8], layers, 10, [Nodes(4, 2)], ends_wait)
    assert bound.bound(2, cutoff=100.0) == pytest.approx(seconds, rel=0.002)


def test_the_last_stage_has_fewest_micro_batches_in_memory() -> None:
    """The first one holds two layers, with two alive, and the last one three, with one; all take three seconds.

    T >= 2 once + 7 busy.
    """
    one = replace(
        on_nodes(2, 6, spread=False),
        first_seconds=(1.0, 1.0),
        ends=(0.0, 1.0, 0.0),
        room=Room(free_bytes=6.0, layer_bytes=1.0, activation_bytes=1.0),
    )
    bound = LagrangianBound([one], [4], 5, 10, [Nodes(2, 2)])
    assert bound.bound(2, cutoff=100.0) == pytest.approx(2 * 6 + 7 * 3, rel=0.002)


@pytest.mark.slow
def test_pipelines_of_several_depths_are_looked_at_together() -> None:
    """None of them ends before; mean part of the least end in which a quick look sees that none does."""
    shares = []
    for item in of_parts():
        ends = [end for depth in (2, 3) for end, _ in replace_depth(item, depth).pipelines()]
        if not ends:
            continue
        assert not item.bound.none_within((2, 3), min(ends) * (1 + 1e-9))
        tried = np.linspace(0.5, 1.0, 51)
        shares.append(max(part for part in tried if item.bound.none_within((2, 3), part * min(ends))))
    assert len(shares) == 20
    assert sum(shares) / len(shares) == pytest.approx(0.9055, abs=1e-6)


def replace_depth(item: Parts, depth: int) -> Parts:
    """The same parts in pipelines of another depth."""
    other = copy(item)
    other.depth = depth
    return other


@cache
def of_parts() -> tuple[Parts, ...]:
    """Those that are compared."""
    return tuple(Parts(seed) for seed in range(20))


@pytest.mark.slow
def test_prices_come_close_to_the_least_of_all_pipelines() -> None:
    """Mean shares of the least end, and of the least time of one micro-batch within it; none is above."""
    ends, onces = [], []
    for item in of_parts():
        every = list(item.pipelines())
        if not every:
            assert item.bound.bound(item.depth, known=1.0) == inf
            continue
        least = min(end for end, _ in every)
        once = min(once for end, once in every if end <= 1.05 * least)
        latest = item.latest(least)
        ends.append(latest / least)
        onces.append(item.bound.once(item.depth, 1.05 * least) / once)
        assert max(ends[-1], onces[-1]) <= 1 + 1e-9
        # More layers find room below a later cutoff; prices are others, and may be better ones.
        for found in (
            item.bound.bound(item.depth, known=0.5 * latest, cutoff=1.1 * least),
            item.bound.bound(item.depth, known=0.6 * latest),
        ):
            assert latest * (1 - 1 / 50) <= found <= least * (1 + 1e-9)
        assert item.bound.bound(item.depth, cutoff=0.9 * latest) == pytest.approx(0.9 * latest)
        assert item.bound.bound(item.depth, known=2 * least, cutoff=least) == 2 * least
    assert len(ends) == 20
    means = sum(ends) / len(ends), sum(onces) / len(onces)
    assert means == pytest.approx((0.947577, 0.943032), abs=1e-6)
