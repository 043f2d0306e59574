"""How close bounds of whole layers come to the fastest of all small pipelines: orders, cuts, memory, nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import combinations, groupby, pairwise, permutations, product

import numpy as np
import pytest

from planner.cost.arrays import Numbers
from planner.cost.pipeline_end import stage_ends
from planner.cost.schedules import alive
from planner.search.bounds.layer_count import LayerCountBound, late
from planner.search.bounds.rates import Policy, RequiredSend, Room, Speed, Work
from planner.search.space.sends import Borders, Hops
from tests.quick import first

FORWARD = 0.4
"""Of a layer's time."""

CASES = 40


class Small:
    """Two device types on which all pipelines of one depth can be listed.

    A quarter of the time more, a layer keeps a fifth of its activations. Sends between nodes take longer than others.
    """

    def __init__(self, seed: int, *, nodes: bool = False, memory: bool = False, slow: bool = False) -> None:
        draw = random.Random(seed)
        self.layers, self.steps, self.depth = (
            draw.randint(4, 6),
            draw.choice((1, 2, 4, 9)),
            draw.randint(2, 4 if nodes else 3),
        )
        self.near, self.far = draw.uniform(0.0, 0.1), draw.uniform(0.2, 0.5)
        if slow:
            self.far *= draw.choice((1.0, 3.0, 6.0))
        self.nodes = [(2, draw.randint(1, 2)), (draw.randint(1, 2), draw.randint(1, 3))] if nodes else []
        slots = [count * most for count, most in self.nodes] or [draw.randint(1, 2), draw.randint(1, 2)]
        self.depth = min(self.depth, sum(slots))
        kinds = [
            _speed(draw, draw.uniform(0.5, 1.5), number, draw.uniform(4.0, 12.0) if memory else 100.0)
            for number in slots
        ]
        order = sorted(range(2), key=lambda index: kinds[index].layer_seconds)
        self.kinds = [kinds[index] for index in order]
        if self.nodes:
            self.nodes = [self.nodes[index] for index in order]
        self.sent = [
            Hops(
                inner_seconds=2 * self.near,
                outer_seconds=self.near,
                borders=Borders(
                    next_seconds=self.near + self.far,
                    before_seconds=self.near + self.far,
                    both_seconds=2 * self.far,
                    first_seconds=self.far,
                    last_seconds=self.far,
                ),
            )
        ] * 2

    def bound(self, crossing: RequiredSend | None = None) -> LayerCountBound:
        """What is tried here."""
        nodes = {kind.device_type[0]: own for kind, own in zip(self.kinds, self.nodes, strict=False)}
        return LayerCountBound(self.kinds, self.sent, self.layers, self.steps, 1, crossing, nodes=nodes)

    def pipelines(self, slow: float | None = None) -> Iterator[tuple[float, float, float]]:
        """(end, seconds of one micro-batch, own ones of the busiest stage) of each; ``slow`` is a send between types.

        A stage's own seconds are those of its step, with what ends it.
        """
        slots = [index for index, kind in enumerate(self.kinds) for _ in range(int(kind.slots))]
        for order in sorted(set(permutations(slots, self.depth))):
            if slow is not None and len(set(order)) == 1:
                continue
            for sends in self._sends(order, slow):
                for cuts in combinations(range(1, self.layers), self.depth - 1):
                    counts = tuple(end - start for start, end in pairwise((0, *cuts, self.layers)))
                    yield from self._ending(order, sends, counts)

    def _sends(self, order: tuple[int, ...], slow: float | None) -> Iterator[tuple[float, ...]]:
        """Seconds of the send behind each stage but the last, for all ways to stand on nodes."""
        if not self.nodes:
            yield tuple(
                self.near if slow is None or here == there else slow for here, there in pairwise(order)
            )
            return
        for leaves in product((False, True), repeat=self.depth - 1):
            if any(
                here != there and not left
                for here, there, left in zip(order[:-1], order[1:], leaves, strict=True)
            ):
                continue
            on_node = [sum(leaves[:stage]) for stage in range(self.depth)]
            stages = [(kind, len(list(own))) for (_, kind), own in groupby(zip(on_node, order, strict=True))]
            if all(number <= self.nodes[kind][1] for kind, number in stages) and all(
                sum(kind == own for own, _ in stages) <= count for kind, (count, _) in enumerate(self.nodes)
            ):
                yield tuple(self.far if left else self.near for left in leaves)

    def _ending(
        self, order: tuple[int, ...], sends: tuple[float, ...], counts: tuple[int, ...]
    ) -> Iterator[tuple[float, float, float]]:
        forward, backward, tails = [], [], []
        for stage, (index, count) in enumerate(zip(order, counts, strict=True)):
            kind = self.kinds[index]
            flights = alive(stage, self.depth, self.steps, 1)
            able = [each for each in kind.policies if each.room.layers(flights) >= count]
            if not able:
                return
            used = min(able, key=lambda each: each.layer_seconds)
            ends, tail = 0.0, count * used.tail_seconds
            if stage == 0:
                ends, tail = kind.first_seconds, tail + kind.first_tail_seconds + kind.tied_seconds
            if stage == self.depth - 1:
                ends, tail = ends + kind.last_seconds, tail + kind.last_tail_seconds + kind.tied_seconds
            busy = count * used.layer_seconds + ends
            forward.append(FORWARD * busy + (sends[stage] if stage < self.depth - 1 else 0.0))
            backward.append((1 - FORWARD) * busy + (sends[stage - 1] if stage else 0.0))
            tails.append(tail)
        found = stage_ends([[each] for each in forward], [[each] for each in backward], self.steps)
        each = [one + two for one, two in zip(forward, backward, strict=True)]
        own = [self.steps * one + tail for one, tail in zip(each, tails, strict=True)]
        yield max(end + tail for end, tail in zip(found, tails, strict=True)), sum(each), max(own)


def _speed(draw: random.Random, seconds: float, slots: int, free: float) -> Speed:
    tails = draw.choice(((0.0, 0.0), (0.3, 0.3), (0.3, 0.1)))
    policies = [
        Policy(seconds * factor, tail, Room(free_bytes=free, layer_bytes=1.0, activation_bytes=held))
        for factor, held, tail in ((1.0, 1.0, tails[0]), (1.25, 0.2, tails[1]))
    ]
    return Speed(
        device_type=(f"{seconds}", "gpu"),
        slots=float(slots),
        layer_seconds=seconds,
        tail_seconds=min(tails),
        most_layers=6,
        policies=tuple(policies),
        first_seconds=draw.uniform(0.0, 0.3),
        last_seconds=draw.uniform(0.0, 0.3),
        first_tail_seconds=draw.choice((0.0, 0.5, 2.0)),
        last_tail_seconds=draw.choice((0.0, 0.5, 2.0)),
        tied_seconds=draw.choice((0.0, 1.0)),
    )


KINDS: dict[str, dict[str, bool]] = {
    "plain": {},
    "memory": {"memory": True},
    "nodes": {"nodes": True},
    "both": {"nodes": True, "memory": True},
    "slow": {"nodes": True, "memory": True, "slow": True},
}


@cache
def listed(name: str) -> tuple[tuple[Small, tuple[tuple[float, float, float], ...]], ...]:
    """Cases that have a pipeline, with all they have."""
    cases = [Small(seed, **KINDS[name]) for seed in range(CASES)]
    return tuple((case, every) for case in cases if (every := tuple(case.pipelines())))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", (0.873399, 0.970541)),
        ("memory", (0.872716, 0.959144)),
        ("nodes", (0.827823, 0.965994)),
        ("both", (0.822273, 0.959751)),
        ("slow", (0.827428, 0.948243)),
    ],
)
def test_ends_and_micro_batches_of_all_cuts(name: str, expected: tuple[float, float]) -> None:
    """Mean shares of the least end, and of the least time of one micro-batch that ends soon; none is above."""
    ends, onces = [], []
    for case, every in listed(name):
        least = min(every)[0]
        soon = 1.1 * least
        bound = case.bound()
        ends.append(bound.bound(case.depth) / least)
        onces.append(bound.once(case.depth, soon) / min(once for end, once, _ in every if end <= soon))
        # What is asked below a cutoff is known up to it.
        for cutoff in (0.1, 0.5, 0.9):
            cut = bound.bound(case.depth, cutoff=cutoff * ends[-1] * least)
            assert cutoff * ends[-1] * least <= cut <= ends[-1] * least
        # Above it, more may be: what does not end by the cutoff is left out.
        for cutoff in (least * (1 + 1e-6), soon):
            within = bound.bound(case.depth, cutoff=cutoff)
            assert ends[-1] * least * (1 - 1e-9) <= within <= least * (1 + 1e-9)
    assert max(*ends, *onces) <= 1 + 1e-9
    assert (_mean(ends), _mean(onces)) == pytest.approx(expected, abs=1e-6)


def test_ends_across_a_slow_link() -> None:
    """The same where the two types are joined by one link of several layers' time."""
    ends, onces = [], []
    for seed in range(2 * CASES):
        case = Small(seed, memory=seed % 2 == 0)
        slow = case.near + 0.25 * (1 + seed % 4)
        every = list(case.pipelines(slow))
        bound = case.bound(RequiredSend(seconds=slow, parts=(0, 1)))
        if not every:
            continue
        least = min(every)[0]
        ends.append(bound.bound(case.depth) / least)
        onces.append(
            bound.once(case.depth, 1.1 * least) / min(once for end, once, _ in every if end <= 1.1 * least)
        )
    assert max(*ends, *onces) <= 1 + 1e-9
    assert (_mean(ends), _mean(onces)) == pytest.approx((0.859901, 0.962574), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"), first(1, [("plain", (0.973265, 0.961408)), ("memory", (0.958381, 0.943978))])
)
def test_a_quick_look_at_all_cuts(name: str, expected: tuple[float, float]) -> None:
    """Mean shares of the busiest stage's least work, from which on the looks know nothing: at a depth, and at any."""
    depths, families = [], []
    for case, every in listed(name):
        least = min(own for _, _, own in every)
        bound = case.bound()
        depths.append(_last(partial(bound.beyond, [2, case.depth]), least) / least)
        families.append(_last(partial(_late, case), least) / least)
        # Two percent above the cutoff, so that what is hardly above it is not looked at again.
        assert bound.beyond([case.depth], 0.1 * least).tolist() == pytest.approx([0.102 * least])
    assert max(*depths, *families) <= 1 + 1e-6
    assert (_mean(depths), _mean(families)) == pytest.approx(expected, abs=1e-6)


def _late(case: Small, cutoff: float) -> Numbers:
    """What is known of all pipelines of a case and of shallower ones."""
    return late(_work(case.kinds), case.layers, [case.steps], [case.depth], cutoff, [False])


def _last(look: Callable[[float], Numbers], least: float) -> float:
    """Seconds up to which a look knows something of what takes ``least``."""
    low, high = 0.0, 2 * least
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if look(middle)[-1] > 0 else (low, middle)
    return 1.02 * low


def _work(kinds: list[Speed]) -> Work:
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
                            each.layer_seconds,
                            each.tail_seconds,
                            each.room.free_bytes,
                            each.room.layer_bytes,
                            each.room.activation_bytes,
                        )
                        for each in item.policies
                    ]
                    for item in kinds
                ]
            ]
        ),
    )


def test_hundreds_of_layers_on_two_stages() -> None:
    """Steps of the busiest stage's time are looked at in parts: the least is found wherever it is."""
    shares, onces = [], []
    for seed in range(12):
        draw = random.Random(seed)
        case = Small(seed)
        case.layers, case.depth, case.steps = 300 + seed, 2, 32
        case.kinds = [_speed(draw, draw.uniform(0.01, 0.03), 1, draw.uniform(300, 1200)) for _ in range(2)]
        case.kinds.sort(key=lambda kind: kind.layer_seconds)
        every, bound = list(case.pipelines()), case.bound()
        least = min(every)[0]
        shares.append(bound.bound(2) / least)
        soon = 1.3 * least
        onces.append(bound.once(2, soon) / min(once for end, once, _ in every if end <= soon))
        for cutoff in (0.3, 0.7, 0.9):
            cut = bound.bound(2, cutoff=cutoff * least)
            assert min(cutoff, shares[-1]) * (1 - 1e-9) <= cut / least <= max(cutoff, shares[-1]) * (1 + 1e-9)
    assert max(*shares, *onces) <= 1 + 1e-9
    assert (_mean(shares), _mean(onces)) == pytest.approx((0.776160, 0.938884), abs=1e-6)


def _mean(shares: list[float]) -> float:
    return sum(shares) / len(shares)
