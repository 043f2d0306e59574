"""Pipelines of runs on nodes: next to every row of runs, as plans, and what a search does with them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import floor, inf

import pytest

from planner.cost.estimate import Estimator
from planner.plan.values import ReplicaGroup
from planner.search.bounds.lagrangian import StagePart
from planner.search.bounds.node_runs import Nodes
from planner.search.bounds.rates import Room
from planner.search.explorer import Explorer
from planner.search.heuristics.greedy import _Layers, greedy
from planner.search.heuristics.runs import MOST_TIMES, Held, RunsOnNodes, best_of_runs
from planner.search.space.choices import Choice, families
from planner.search.space.partitions import network_partitions
from planner.search.space.sends import Sides
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Silent
from planner.targets import TARGETS
from tests.worlds import cluster, gpt, pool

LAYERS = 6


def part(draw: random.Random, kind: int, devices: int, room: float, *, spread: bool = False) -> StagePart:
    """A stage of so many devices that sends quickly on its node and slowly to others."""
    far = draw.uniform(0.1, 0.6)
    return StagePart(
        device_type=kind,
        devices=devices,
        layer_seconds=draw.uniform(0.5, 1.5) / devices,
        backward_seconds=0.2,
        inner_seconds=(0.0, 0.0, 0.0, 0.0),
        first_seconds=(0.0, 0.0),
        last_seconds=(0.0, 0.0),
        nodes=0.5,
        tail_seconds=draw.uniform(0.0, 0.5),
        room=Room(free_bytes=room, layer_bytes=1.0, activation_bytes=1.0),
        sides=Sides(next_seconds=(0.01, far, far), before_seconds=(0.02, far, far), spread=spread),
        ends=(0.0, draw.uniform(0.0, 0.2), draw.uniform(0.0, 0.4)),
        group=ReplicaGroup(
            pool="ab"[kind], gpu="A100", tp=1, count=devices, local_batch=8, accumulation_steps=8
        ),
    )


def runs_of(seed: int) -> RunsOnNodes:
    """One or two device types, with stages of one and of two devices on nodes of two or four."""
    draw = random.Random(seed)
    sizes = draw.choice(((4,), (2,), (4, 2), (2, 2)))
    nodes = [Nodes(draw.randint(1, 2), size) for size in sizes]
    parts = [
        part(draw, kind, devices, draw.choice((9.0, 30.0)))
        for kind, size in enumerate(sizes)
        for devices in (1, 2, 4)
        if devices <= size
    ]
    parts += [part(draw, kind, 2 * size, 30.0, spread=True) for kind, size in enumerate(sizes)]
    return RunsOnNodes(
        parts, nodes, LAYERS, 8, lambda first, last: first.devices == last.devices or seed % 2 == 0
    )


Block = tuple[tuple[StagePart, ...], bool]
"""Stages on a node, or the one on two; whether they take all devices."""


def stages_on(parts: list[StagePart], left: int) -> Iterator[tuple[StagePart, ...]]:
    """All rows of stages on so many devices of a node, which leave none or some."""
    yield ()
    for each in parts:
        if each.devices <= left:
            for others in stages_on(parts, left - each.devices):
                yield (each, *others)


def blocks(runs: RunsOnNodes, nodes: list[int]) -> Iterator[list[Block]]:
    """All rows of runs on these nodes, of which any may be left out."""
    if not nodes:
        yield []
        return
    room, alike = (
        runs._nodes[nodes[0]].devices,
        [each for each in runs._parts if each.device_type == nodes[0]],
    )
    small = [each for each in alike if each.sides and not each.sides.spread]
    own = [(1, row, sum(each.devices for each in row) == room) for row in stages_on(small, room) if row]
    if nodes[1:2] == nodes[:1]:
        own += [(2, (each,), True) for each in alike if each.devices == 2 * room]
    yield from blocks(runs, nodes[1:])
    for taken, row, full in own:
        for others in blocks(runs, nodes[taken:]):
            yield [(row, full), *others]


def every_row(runs: RunsOnNodes) -> Iterator[list[tuple[StagePart, ...]]]:
    """All rows of runs that fill their nodes, all but the last one of them."""
    kinds = range(len(runs._nodes))
    for order in ([*kinds], [*kinds][::-1]):
        for found in blocks(runs, [kind for kind in order for _ in range(runs._nodes[kind].count)]):
            if len(found) > 1 and all(full for _, full in found[:-1]):
                yield [row for row, _ in found]


def least_seconds(runs: RunsOnNodes, busy: float) -> float:
    """Of one micro-batch through any such pipeline whose stages hold what they can, and all layers together."""
    least = inf
    for row in every_row(runs):
        stages = [stage for run in row for stage in run]
        if not runs._joined(stages[0], stages[-1]):
            continue
        ends = {id(run): (index == 0, index == len(row) - 1) for index, run in enumerate(row)}
        seconds, held = 0.0, 0
        for run in row:
            opens, closes = ends[id(run)]
            for index, stage in enumerate(run):
                assert stage.sides is not None
                first, last = opens and index == 0, closes and index == len(run) - 1
                before = 0.0 if first else stage.sides.before_seconds[int(index == 0)]
                after = 0.0 if last else stage.sides.next_seconds[int(index == len(run) - 1)]
                more = stage.ends[1 if first else 2 if last else 0] + before + after
                alive = sum(nodes.count for nodes in runs._nodes)
                tail = stage.tail_seconds
                layers = min(
                    LAYERS,
                    stage.room.layers(alive),
                    floor((busy - more) / (stage.layer_seconds + tail / runs._steps) + 1e-9),
                )
                if layers < 1:
                    seconds = inf
                    break
                each = stage.layer_seconds + (tail if first or last else 0.0)
                seconds, held = seconds + more + layers * each, held + layers
        if held >= LAYERS:
            least = min(least, seconds)
    return least


@pytest.mark.parametrize("seed", range(24))
def test_the_quickest_row_of_runs(seed: int) -> None:
    """As quick as the best of all rows of runs, for short and for long times of the busiest stage."""
    runs = runs_of(seed)
    times = runs._times()
    for time in times[:: max(1, len(times) // 8)]:
        best, least = runs._pipeline(time), least_seconds(runs, time)
        assert (best is None) == (least == inf)
        if best is not None:
            assert best.seconds == pytest.approx(least)
            assert best.layers == sum(stage.layers for stage in best.stages) >= LAYERS
            assert runs._joined(best.stages[0].part, best.stages[-1].part)


@pytest.mark.parametrize("seed", range(12))
def test_the_pipelines_of_a_family(seed: int) -> None:
    """The quickest first, none twice, all below the limit; the least time that holds all layers is among them."""
    runs = runs_of(seed)
    found = runs.pipelines(1e9)
    seconds = [each for each, _ in found]
    assert seconds == sorted(seconds)
    assert len({run.stages for _, run in found}) == len(found) <= MOST_TIMES
    able = [time for time in runs._times() if runs._pipeline(time) is not None]
    assert bool(found) == bool(able)
    if able:
        quickest = runs._pipeline(able[0])
        assert quickest is not None
        assert quickest.stages in {run.stages for _, run in found}
        limit = seconds[len(seconds) // 2]
        assert [each for each, _ in runs.pipelines(limit)] == [each for each in seconds if each < limit]
        assert all(isinstance(stage, Held) for stage in quickest.stages)


def slow_ethernet() -> Estimator:
    """Nodes of eight devices that are far from each other."""
    pools = [pool("a", nodes=4, per_node=8, fabric="eth", gbps=50, cards=1)]
    return Estimator(cluster(*pools), gpt(18, 4096, 16, global_batch=128))


@pytest.mark.slow
def test_plans_of_runs_are_faster_than_any_of_equal_degrees() -> None:
    """On slow Ethernet, stages with few layers send and those between them hold more; the search has these plans."""
    estimator, limits = slow_ethernet(), Limits(target="flagscale", gap=0.05)
    equal = Explorer(estimator, limits, Silent(), one_degree=True)
    equal.run(rounds=20)
    assert equal.best is not None
    partition = next(
        each for each in network_partitions(estimator, TARGETS["flagscale"]).values() if each.whole
    )
    kinds = partition.device_types
    every = families(TARGETS["flagscale"], limits, estimator.model, kinds, "")
    own = [family for family in every if family.dp is None]
    plans = list(best_of_runs(own, partition, estimator, limits, inf))
    steps = [scored.estimate.step_seconds for scored in plans]
    assert steps == sorted(steps, reverse=True)
    assert all(scored.estimate.fits for scored in plans)
    assert steps[-1] < equal.best.estimate.step_seconds * 0.9
    assert list(best_of_runs(own, partition, estimator, limits, steps[-1])) == []
    found = Explorer(estimator, limits, Silent())
    found.run(rounds=1)
    assert found.best is not None
    assert found.bound <= found.best.estimate.step_seconds <= steps[-1] * (1 + 1e-9)


def test_sends_are_priced_where_stages_stand() -> None:
    """Of four stages on nodes with room for two each, the second one sends to another node."""
    estimator = Estimator(
        cluster(pool("a", nodes=2, per_node=2, fabric="eth", gbps=1, cards=1)),
        gpt(8, 1024, 8, global_batch=8),
    )
    limits = Limits(tp=(1,), recompute=("none",))
    every = families(TARGETS["megatron"], limits, estimator.model, estimator.topology.device_types)
    family = next(item for item in every if (item.dp, item.batch) == (1, 1))
    stages = StageOptions(Choice(family=family, depth=4, interleave=1), estimator, limits)
    sends = stages.sends(0, 0)
    assert sends.near_seconds < sends.far_seconds < inf
    near, far = sends.near_seconds, sends.far_seconds
    assert _Layers(stages, [0, 0, 0, 0]).sends == [near, far, near, 0.0]
    found = greedy(stages.choice, estimator, limits)
    assert found is not None
    assert found.plan.pp == 4
