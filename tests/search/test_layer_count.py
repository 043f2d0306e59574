"""Bounds of whole layers against every way to cut them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from math import inf

import numpy as np
import pytest

from planner.capabilities import V_SHAPED, Schedule
from planner.cost.pipeline_end import stage_ends
from planner.search.bounds.layer_count import BEYOND, LayerCountBound, late
from planner.search.bounds.rates import Policy, RequiredSend, Room, Speed, Work
from planner.search.space.sends import Hops
from tests.quick import first


def speed(seconds: float, slots: int, most: int, tail: float, backward: float = 0.0) -> Speed:
    """A kind whose memory holds ``most`` layers at any position."""
    return Speed(
        device_type=("pool", f"{seconds}"),
        slots=slots,
        layer_seconds=seconds,
        tail_seconds=tail,
        most_layers=most,
        first_seconds=0.1 * seconds,
        last_seconds=0.2 * seconds,
        backward_seconds=backward * seconds,
        policies=(
            Policy(seconds, tail, Room(free_bytes=float(most), layer_bytes=1.0, activation_bytes=0.0)),
        ),
    )


def fastest(
    speeds: list[Speed],
    layers: int,
    depth: int,
    steps: int,
    share: float,
    send: Sequence[float],
    crossing: float | None,
) -> float:
    """The least end over all orders of the types and all cuts; with ``crossing``, of those that use two types."""
    slots = [index for index, item in enumerate(speeds) for _ in range(int(item.slots))]
    best = float("inf")
    for order in set(permutations(slots, depth)):
        if crossing is not None and len(set(order)) == 1:
            continue
        for counts in product(range(1, layers + 1), repeat=depth):
            if sum(counts) != layers or any(
                c > speeds[k].most_layers for c, k in zip(counts, order, strict=True)
            ):
                continue
            best = min(best, _end(speeds, order, counts, steps, share, send, crossing))
    return best


def _end(
    speeds: list[Speed],
    order: tuple[int, ...],
    counts: tuple[int, ...],
    steps: int,
    share: float,
    send: Sequence[float],
    crossing: float | None,
) -> float:
    forward, backward = [], []
    for stage, (device_type, count) in enumerate(zip(order, counts, strict=True)):
        item = speeds[device_type]
        extra = item.first_seconds if stage == 0 else 0.0
        extra += item.last_seconds if stage == len(order) - 1 else 0.0
        busy = count * item.layer_seconds + extra
        sends = [
            0.0
            if not 0 <= other < len(order)
            else send[device_type]
            if order[other] == device_type or crossing is None
            else crossing
            for other in (stage + 1, stage - 1)
        ]
        forward.append([share * busy + sends[0]])
        backward.append([(1 - share) * busy + sends[1]])
    ends = stage_ends(forward, backward, steps)
    tails = [
        count * speeds[device_type].tail_seconds for device_type, count in zip(order, counts, strict=True)
    ]
    return max(end + tail for end, tail in zip(ends, tails, strict=True))


@pytest.mark.parametrize("seed", first(60, range(300)))
def test_no_cut_ends_sooner(seed: int) -> None:
    """Two device types, any order, any layers, with and without a slow link between the device types."""
    draw = random.Random(seed)
    share, layers = draw.uniform(0.2, 0.5), draw.randint(3, 6)
    speeds = sorted(
        (
            speed(
                draw.uniform(0.5, 2),
                draw.randint(1, 2),
                draw.randint(2, 6),
                draw.choice((0.0, 0.3)),
                1 - share,
            )
            for _ in range(2)
        ),
        key=lambda item: item.layer_seconds,
    )
    depth = draw.randint(2, min(3, int(speeds[0].slots + speeds[1].slots)))
    steps, send = draw.choice((1, 2, 4, 9)), [draw.choice((0.0, 0.2))] * 2
    send[1] += random.Random(f"sends {seed}").choice((0.0, 0.1, 1.0))
    hops = [Hops(inner_seconds=2 * each, outer_seconds=each) for each in send]
    counted = LayerCountBound(speeds, hops, layers, steps, 1)
    least = fastest(speeds, layers, depth, steps, share, send, None)
    for cutoff in (inf, *((0.9 * least, least * (1 + 1e-9), 1.3 * least) if least < inf else ())):
        assert counted.bound(depth, cutoff=cutoff) <= least * (1 + 1e-9)
    slow = max(send) + draw.uniform(0.1, 2)
    crossing = RequiredSend(seconds=slow, parts=(0, 1))
    found = LayerCountBound(speeds, hops, layers, steps, 1, crossing).bound(depth)
    assert found <= fastest(speeds, layers, depth, steps, share, send, slow) * (1 + 1e-9)
    assert found >= counted.bound(depth) * (1 - 1e-9)


@pytest.mark.parametrize("v_shaped", [False, True])
@pytest.mark.parametrize("seed", first(25, range(100)))
def test_quick_looks_leave_out_no_cut(seed: int, v_shaped: bool) -> None:
    """What the busiest stage of any cut takes at least is not above it, of both looks and at any depth."""
    draw = random.Random(seed)
    layers, steps = draw.randint(3, 7), draw.choice((1, 2, 4, 9))
    kinds = [
        speed(draw.uniform(0.5, 2), draw.randint(1, 2), draw.randint(1, 4), 0.0)
        for _ in range(draw.randint(1, 2))
    ]
    most = sum(int(item.slots) for item in kinds)
    least = {depth: _busiest(kinds, layers, depth, v_shaped) * steps for depth in range(2, most + 1)}
    able = [seconds for seconds in least.values() if seconds < inf]
    if able:
        cutoff = min(able) * (1 + 1e-6) / BEYOND
        assert late(work(kinds), layers, [steps], [most], cutoff, [v_shaped]).tolist() == [0.0]
    free = [Hops(inner_seconds=0.0, outer_seconds=0.0)] * len(kinds)
    chunks = 2 if v_shaped else 1
    schedule: Schedule = V_SHAPED[seed % 2] if v_shaped else "1f1b"
    counted = LayerCountBound(kinds, free, layers, steps, chunks, schedule=schedule)
    for depth, seconds in least.items():
        if seconds < inf:
            assert counted.beyond([depth], seconds * (1 + 1e-6) / BEYOND).tolist() == [0.0]
        # Stages of one type are known exactly.
        if len(kinds) == 1:
            short = min(seconds, 1e6) * (1 - 1e-6) / BEYOND
            assert counted.beyond([depth], short)[0] > 0
            if depth == most and not v_shaped:
                assert late(work(kinds), layers, [steps], [most], short, [False])[0] > 0


def work(kinds: list[Speed]) -> Work:
    """What these do, as of one family."""
    return Work(
        slots=np.array([[item.slots for item in kinds]]),
        ends=np.array([[[item.first_seconds, item.last_seconds] for item in kinds]]),
        end_tails=np.array(
            [
                [
                    [item.tied_seconds + item.first_tail_seconds, item.tied_seconds + item.last_tail_seconds]
                    for item in kinds
                ]
            ]
        ),
        policies=np.array(
            [
                [
                    [
                        (
                            policy.layer_seconds,
                            policy.tail_seconds,
                            policy.room.free_bytes,
                            policy.room.layer_bytes,
                            0.0,
                        )
                    ]
                    for item in kinds
                    for policy in item.policies
                ]
            ]
        ),
    )


def _busiest(kinds: list[Speed], layers: int, depth: int, v_shaped: bool) -> float:
    """Seconds of the busiest stage of one micro-batch, the least of all orders of the types and all cuts."""
    last = 0 if v_shaped else depth - 1
    slots = [index for index, item in enumerate(kinds) for _ in range(int(item.slots))]
    return min(
        (
            max(
                count * kinds[kind].layer_seconds
                + (kinds[kind].first_seconds if place == 0 else 0.0)
                + (kinds[kind].last_seconds if place == last else 0.0)
                for place, (count, kind) in enumerate(zip(counts, order, strict=True))
            )
            for order in set(permutations(slots, depth))
            for counts in product(range(1, layers + 1), repeat=depth)
            if sum(counts) == layers
            and all(count <= kinds[kind].most_layers for count, kind in zip(counts, order, strict=True))
        ),
        default=inf,
    )


def test_late_stages_have_all_forwards_to_do_when_the_first_micro_batch_is_back() -> None:
    """Four stages of equal devices and as many micro-batches, ten layers of half a second in either direction.

    One micro-batch takes 10 s. Then three backwards are left, and 0, 1, 2 or 3 forwards: 1.5, 2, 2.5 or 3 s for each
    layer. Within 15 s the stages hold 3 + 2 + 2 + 1 layers, within 16 s 4 + 3 + 2 + 2: as 4 + 2 + 2 + 2 ends then.
    """
    kinds = [speed(1.0, 4, 10, 0.0, 0.5)]
    kinds = [replace(kinds[0], first_seconds=0.0, last_seconds=0.0)]
    counted = LayerCountBound(kinds, [Hops(inner_seconds=0.0, outer_seconds=0.0)], 10, 4, 1)
    halves = [[2.0], [1.0], [1.0], [1.0]]
    assert stage_ends(halves, halves, 4)[0] == 16.0
    assert [counted.bound(4, cutoff=cutoff) for cutoff in (inf, 15.0, 16.0)] == [12.0, 15.0, 12.0]


def test_equal_stages_are_bounded_exactly() -> None:
    """(m + p - 1) layers of time, when layers divide evenly: the bound is the answer."""
    even = [
        Speed(
            device_type=("pool", "gpu"),
            slots=4.0,
            layer_seconds=1.0,
            tail_seconds=0.0,
            most_layers=8,
            first_seconds=0.0,
            last_seconds=0.0,
            policies=(Policy(1.0, 0.0, Room(free_bytes=8.0, layer_bytes=1.0, activation_bytes=0.0)),),
        )
    ]
    free = [Hops(inner_seconds=0.0, outer_seconds=0.0)]
    assert LayerCountBound(even, free, 8, 16, 1).bound(4) == pytest.approx((16 + 3) * 2.0)
    assert LayerCountBound(even, free, 9, 16, 1).bound(4) > (16 + 3) * 2.25
    assert LayerCountBound(even, free, 40, 16, 1).bound(4) == float("inf")


def test_mixed_stages_and_the_runs_beside_them_lose_nothing() -> None:
    """Eight slots of a pool of which a node holds four, and four of one whose stages fill nodes; ten layers each.

    A run of the first loses two layers on either side, so that each of its stages bears one; one of the other loses
    three. Six stages of the first hold 54, and get back 3 at either end. A mixed stage bears three, a run beside it 4.
    """
    kinds = [
        replace(speed(1.0 + index, slots, 10, 0.0), device_type=(pool, "gpu"))
        for index, (pool, slots) in enumerate((("p", 8), ("q", 4)))
    ]
    free = [Hops(inner_seconds=0.0, outer_seconds=0.0)] * 2
    nodes = {"p": (2, 4), "q": (4, 1)}
    own = np.full((1, 2, 6), 10.0)
    side, both = (own - np.array(lost)[:, None] for lost in ((2.0, 3.0), (5.0, 3.0)))
    for mixed, held in ((0, 60), (1, 71), (2, 82)):
        counted = LayerCountBound(kinds, free, 60, 16, 1, nodes=nodes, mixed=mixed)
        assert counted._in_runs(own, side, side, both, np.array([[8.0, 4.0]])).tolist() == [held]
