"""Runs of stages on nodes: what they hold and how long they take, next to every pipeline on small nodes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from math import inf
from unittest.mock import patch

import numpy as np
import pytest

from planner.cost.arrays import Numbers
from planner.cost.estimate import Estimator
from planner.search.bounds import node_runs
from planner.search.bounds.node_runs import NodeRuns, Nodes, countable
from planner.search.heuristics.greedy import layered
from planner.search.space.choices import Choice, families
from planner.search.space.partitions import network_partitions
from planner.search.space.sends import Sides
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.quick import first
from tests.worlds import cluster, gpt, pool

Stand = tuple[int, ...]
"""Nodes that a stage stands on."""


class Pipelines:
    """Stages of one device up to one and a half nodes, with every way to stand in a row."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.nodes, self.depth, self.layers = draw.choice(((4,), (4, 2), (2, 2), (2,))), draw.randint(2, 3), 6
        kinds = [
            (kind, size)
            for kind, room in enumerate(self.nodes)
            for size in sorted(
                {1, room // 2, room, room + room // 2, *([2 * room] if self.nodes == (2,) else [])}
            )
        ]
        self.kind, self.devices = [kind for kind, _ in kinds], [size for _, size in kinds]
        # On four nodes two stages may stand on several each.
        self.count = [draw.randint(1, 2) if self.nodes != (2,) else 4 for _ in self.nodes]
        self.sides = [
            self._sides(draw, spread=size > self.nodes[kind])
            for kind, size in zip(self.kind, self.devices, strict=True)
        ]
        self.ends = [(0.0, draw.uniform(0, 0.3), draw.uniform(0, 0.3)) for _ in kinds]
        self.layer_seconds = np.array([draw.uniform(0.5, 1.5) / size for size in self.devices])
        nodes = [Nodes(count, room) for count, room in zip(self.count, self.nodes, strict=True)]
        self.runs = NodeRuns(self.kind, self.devices, self.sides, self.ends, nodes)
        with patch.object(node_runs, "MOST_MIXES", 0):
            self.paid = NodeRuns(self.kind, self.devices, self.sides, self.ends, nodes)
        """Where stages on several nodes are too many to be looked at one by one."""
        budget = draw.uniform(1.0, 3.0)
        self.caps = [self._caps(more, budget) for more in self.runs.more]

    def _sides(self, draw: random.Random, *, spread: bool) -> Sides:
        def side() -> tuple[float, float, float]:
            far = draw.uniform(0.2, 1.0)
            several = draw.uniform(0.3, 1.0) * far
            return (far, far, several) if spread else (0.05, far, several)

        return Sides(next_seconds=side(), before_seconds=side(), spread=spread)

    def _caps(self, more: Numbers, budget: float) -> Numbers:
        held = np.minimum(np.floor((budget - more) / self.layer_seconds), self.layers)
        caps: Numbers = np.where(held >= 1, held, -inf)
        return caps

    def stands(self, part: int) -> Iterator[tuple[int, Stand]]:
        """(type, nodes) of a stage: one node, or the first whole and a part of another."""
        kind, count = self.kind[part], self.count[self.kind[part]]
        for node in range(count):
            if not self.sides[part].spread:
                yield kind, (node,)
            else:
                yield from ((kind, (node, other)) for other in range(count) if other != node)

    def all(self) -> Iterator[tuple[list[int], list[int]]]:
        """(part, role) of each stage, of every pipeline that there is room for and that comes to no node again."""
        for parts in product(range(len(self.devices)), repeat=self.depth):
            for row in product(*(list(self.stands(part)) for part in parts)):
                if self._room(parts, row) and self._once(row):
                    yield list(parts), [self._role(stage, parts, row) for stage in range(self.depth)]

    def _room(self, parts: tuple[int, ...], row: tuple[tuple[int, Stand], ...]) -> bool:
        used: dict[tuple[int, int], int] = {}
        for part, (kind, nodes) in zip(parts, row, strict=True):
            whole, rest = (self.nodes[kind], self.devices[part] - self.nodes[kind])
            for node, size in zip(
                nodes, (whole, rest) if len(nodes) > 1 else (self.devices[part],), strict=True
            ):
                used[kind, node] = used.get((kind, node), 0) + size
        return all(size <= self.nodes[kind] for (kind, _), size in used.items())

    def _once(self, row: tuple[tuple[int, Stand], ...]) -> bool:
        """Stages that touch a node are neighbours."""
        touched: dict[tuple[int, int], list[int]] = {}
        for stage, (kind, nodes) in enumerate(row):
            for node in nodes:
                touched.setdefault((kind, node), []).append(stage)
        return all(stages[-1] - stages[0] < len(stages) for stages in touched.values())

    def _role(self, stage: int, parts: tuple[int, ...], row: tuple[tuple[int, Stand], ...]) -> int:
        def side(other: int) -> int:
            if self.sides[parts[other]].spread:
                return 2
            return 0 if row[other] == row[stage] else 1

        if stage == 0:
            return side(1)
        if stage == self.depth - 1:
            return side(stage - 1)
        return 3 * side(stage - 1) + side(stage + 1)

    def place(self, stage: int) -> int:
        """Of the middle, the first stage and the last one."""
        return 1 if stage == 0 else 2 if stage == self.depth - 1 else 0

    def caps_of(self, parts: Sequence[int], roles: Sequence[int]) -> list[float]:
        """Layers that each stage of a pipeline holds, at most."""
        return [
            float(self.caps[self.place(stage)][role, part])
            for stage, (part, role) in enumerate(zip(parts, roles, strict=True))
        ]


@cache
def pipelines(seed: int) -> tuple[Pipelines, list[tuple[list[int], list[int]]]]:
    """A few stages, and all pipelines of them."""
    item = Pipelines(seed)
    return item, list(item.all())


def most_held(item: Pipelines, found: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float:
    """The most layers that any of these pipelines holds."""
    return max((sum(item.caps_of(parts, roles)) for parts, roles in found), default=-inf)


SEEDS = first(16, range(80))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_pipeline_holds_more(seed: int) -> None:
    """The most layers that any pipeline holds, stage by stage."""
    item, found = pipelines(seed)
    most = most_held(item, found)
    for runs, depths in product((item.runs, item.paid), ((item.depth, item.depth), (2, 4))):
        assert runs.held(item.caps, depths) >= most - 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_no_micro_batch_is_faster(seed: int) -> None:
    """The least seconds of a micro-batch through a pipeline that holds all layers within its caps."""
    item, found = pipelines(seed)
    least = inf
    for parts, roles in found:
        caps = item.caps_of(parts, roles)
        if min(caps) < 1 or sum(caps) < item.layers:
            continue
        seconds = sum(
            float(item.runs.more[item.place(stage)][role, part]) + float(item.layer_seconds[part])
            for stage, (part, role) in enumerate(zip(parts, roles, strict=True))
        )
        # Further layers go where they take least.
        left = item.layers - item.depth
        for each, cap in sorted(
            (float(item.layer_seconds[part]), cap) for part, cap in zip(parts, caps, strict=True)
        ):
            more = min(left, int(cap) - 1)
            seconds, left = seconds + more * each, left - more
        least = min(least, seconds)
    prices = float(item.layer_seconds.min()) * np.geomspace(1.0, 48.0, 9)
    for runs in (item.runs, item.paid):
        assert (
            runs.once(item.caps, (item.depth, item.depth), item.layers, item.layer_seconds, prices)
            <= least + 1e-9
        )


def test_the_bounds_are_near() -> None:
    """Mean shares of what they bound, where stages hold something: nobody loosens them unawares."""
    shares = []
    for seed in range(12):
        item, found = pipelines(seed)
        held = most_held(item, found)
        if held > 0:
            shares.append(held / item.runs.held(item.caps, (item.depth, item.depth)))
    assert len(shares) > 6
    assert sum(shares) / len(shares) == pytest.approx(0.883747, abs=1e-6)


def test_borders_by_hand() -> None:
    """Two nodes of four devices, stages of two with two layers inside a node, and one where they send to another.

    Four stages hold 2 + 1 + 1 + 2 layers, whatever prices say of stages alone.
    """
    far = Sides(next_seconds=(0.0, 1.0, 1.0), before_seconds=(0.0, 1.0, 1.0), spread=False)
    runs = NodeRuns([0], [2], [far], [(0.0, 0.0, 0.0)], [Nodes(2, 4)])
    caps = [np.maximum(np.floor(2.0 - more), 1.0) for more in runs.more]
    assert runs.held(caps, (4, 4)) == pytest.approx(6.0)
    # A layer takes half a second; both borders a second each.
    seconds = runs.once(caps, (4, 4), 6, np.array([0.5]), np.array([0.5, 1.0, 1.5]))
    assert seconds == pytest.approx(6 * 0.5 + 2.0)


def caps_of(parts: int, *held: tuple[int, int, int, float]) -> list[Numbers]:
    """Layers [place][role][part] where these are (place, role, part, layers), and nothing is held elsewhere."""
    caps = [np.full((roles, parts), -inf) for roles in (9, 3, 3)]
    for place, role, part, layers in held:
        caps[place][role, part] = layers
    return caps


ONE, SEVERAL = 1, 2
"""Places of a neighbour."""
FREE = (0.0, 0.0, 0.0)


def test_both_ends_on_several_nodes_are_no_neighbours_where_a_run_is_between() -> None:
    """Beside each other they would hold five layers each; in a pipeline of two stages they are."""
    sides = [Sides(next_seconds=FREE, before_seconds=FREE, spread=spread) for spread in (False, True)]
    runs = NodeRuns([0, 0], [2, 4], sides, [FREE] * 2, [Nodes(5, 2)])
    caps = caps_of(
        2,
        (0, 3 * SEVERAL + SEVERAL, 0, 1.0),
        *((place, ONE, 1, 1.0) for place in (1, 2)),
        *((place, SEVERAL, 1, 5.0) for place in (1, 2)),
    )
    assert runs.held(caps, (3, 3)) == pytest.approx(3.0)
    assert runs.held(caps, (2, 2)) == pytest.approx(10.0)


def test_a_part_of_a_node_pays_for_that_part() -> None:
    """The first stage takes one node and a half, the last one the other half, and one in the middle a node."""
    kinds = [(6, True), (4, False), (2, False)]
    sides = [Sides(next_seconds=FREE, before_seconds=FREE, spread=spread) for _, spread in kinds]
    runs = NodeRuns([0] * 3, [size for size, _ in kinds], sides, [FREE] * 3, [Nodes(3, 4)])
    middle = ((0, 3 * before + after, 1, 4.0) for before in (ONE, SEVERAL) for after in (ONE, SEVERAL))
    caps = caps_of(3, (1, ONE, 0, 5.0), *middle, (2, SEVERAL, 2, 3.0))
    assert runs.held(caps, (3, 3)) == pytest.approx(12.0)
    turned = [caps[0], caps[2][:, ::1], caps[1]]
    assert runs.held(turned, (3, 3)) == pytest.approx(12.0)


def test_which_nodes_are_counted() -> None:
    """Powers of two up to 16 devices, one type a pool."""
    assert countable([Nodes(2, 8), Nodes(3, 16)], ["a", "b"])
    assert not countable([Nodes(2, 8), Nodes(3, 8)], ["a", "a"])
    assert not countable([Nodes(2, 6)], ["a"])
    assert not countable([Nodes(2, 32)], ["a"])


def slow_nodes(seed: int) -> Estimator:
    """Nodes of two to eight devices in one or two pools, joined by slow Ethernet; batches of dp 3 and 6 too."""
    draw = random.Random(seed)
    room, gbps = draw.choice((2, 4, 8)), draw.choice((5, 10, 25, 100))
    pools = [pool("a", nodes=draw.randint(2, 4), per_node=room, fabric="eth", gbps=gbps, cards=1)]
    if draw.random() < 0.5:
        number, room = draw.randint(1, 3), draw.choice((2, 4))
        pools.append(pool("b", "V100", nodes=number, per_node=room, fabric="eth", gbps=gbps, cards=1))
    layers, batch = draw.choice((6, 9, 12)), draw.choice((12, 24, 48))
    return Estimator(cluster(*pools), gpt(layers, draw.choice((512, 2048)), 8, global_batch=batch))


def of_flagscale(estimator: Estimator, draw: random.Random) -> Iterator[tuple[float, float]]:
    """(bound of the choice, step) of plans with good layers on devices drawn at random."""
    model, limits = estimator.model, Limits()
    for name, partition in network_partitions(estimator, TARGETS["flagscale"]).items():
        found = list(families(TARGETS["flagscale"], limits, model, partition.device_types, name))
        for family in draw.sample(found, min(6, len(found))):
            for depth in draw.sample(range(2, model.layers + 1), 3):
                choice, seen = Choice(family=family, depth=depth, interleave=1), partition.estimator
                if depth not in partition.depths(family, limits):
                    continue
                stages, bound = StageOptions(choice, seen, limits), partition.bounds.bound(family, depth, 1)
                weights = [1 / groups[0].devices for groups in stages.compositions]
                for _ in range(12):
                    slots = draw.choices(range(len(stages.compositions)), weights, k=depth)
                    scored = layered(stages, slots, estimator) if stages.obeys(slots) else None
                    if scored is not None:
                        yield bound, scored.estimate.step_seconds


@pytest.mark.parametrize("seed", first(0, range(80)))
def test_no_plan_is_faster(seed: int) -> None:
    """The bound of a choice next to plans of it."""
    found = list(of_flagscale(slow_nodes(seed), random.Random(seed)))
    assert found
    for bound, step in found:
        assert bound <= step * (1 + 1e-9)
