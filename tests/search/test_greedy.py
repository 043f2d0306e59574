"""Quick plans of a choice, next to every order of the device types and every cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise, permutations, product
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import pytest

from planner.cluster.spec import PoolSpec
from planner.cost.estimate import Estimator
from planner.search.deadline import Deadline
from planner.search.heuristics import greedy as greedies
from planner.search.heuristics.greedy import (
    QUICK,
    Effort,
    _filled,
    _Layers,
    _moved,
    _orders,
    fastest,
    greedy,
    layered,
)
from planner.search.pipeline import score
from planner.search.space.choices import Choice, families
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.worlds import cluster, gpt, pool

TWO = (pool("a", per_node=2), pool("b", "V100", per_node=2, gbps=10))
THREE = (*(pool(name, "V100", per_node=1, gbps=speed) for name, speed in (("b", 10), ("c", 200))), pool("a"))


def options(
    pools: tuple[PoolSpec, ...], depth: int, layers: int = 7, chunks: int = 1, dp: int = 1
) -> StageOptions:
    """Stages of so many devices each, for eight micro-batches, or half as many with two."""
    estimator = Estimator(cluster(*pools), gpt(layers, 1024, 8, global_batch=8))
    limits = Limits(tp=(1,), recompute=("none",))
    every = families(TARGETS["megatron"], limits, estimator.model, estimator.topology.device_types)
    family = next(item for item in every if (item.dp, item.batch) == (dp, dp))
    return StageOptions(Choice(family=family, depth=depth, interleave=chunks), estimator, limits)


def cuts(layers: int, depth: int, least: int) -> Iterator[tuple[int, ...]]:
    """All numbers of layers of the stages."""
    for ends in product(range(least, layers + 1), repeat=depth - 1):
        bounds = (0, *ends, layers)
        if all(after - before >= least for before, after in pairwise(bounds)):
            yield tuple(after - before for before, after in pairwise(bounds))


@pytest.mark.parametrize(("depth", "chunks"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_the_layers_end_about_as_soon_as_the_best_cut(depth: int, chunks: int) -> None:
    """Whatever the order of two device types along the pipeline."""
    stages, compared = options(TWO, depth, chunks=chunks), 0
    for slots in product(range(2), repeat=depth):
        if max(slots.count(0), slots.count(1)) <= 2:
            layers = _Layers(stages, list(slots))
            found = layers.best()
            assert found is not None
            least = min(layers._ending(cut).seconds for cut in cuts(7, depth, chunks))
            assert least * (1 - 1e-12) <= found.seconds <= 1.02 * least
            assert sum(option.layers for option in found.options) == 7
            compared += 1
    assert compared > 1


@pytest.mark.parametrize(("depth", "chunks"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_no_cut_ends_before_the_longest_path_of_the_table(depth: int, chunks: int) -> None:
    """Hence what is left out for its sake is no better; most of one chunk a stage end with it."""
    stages, ratios = options(TWO, depth, chunks=chunks), []
    for slots in ([0, 1, 1, 0][:depth], [1, 0, 0, 1][:depth]):
        layers = _Layers(stages, slots)
        every = list(cuts(7, depth, chunks))
        ends = [layers._ending(cut).seconds for cut in every]
        ratios += [least / end for least, end in zip(layers._least_seconds(every), ends, strict=True)]
        assert layers._soonest(every, None) == layers._ending(every[ends.index(min(ends))])
    assert max(ratios) <= 1
    assert chunks > 1 or sum(ratio > 1 - 1e-6 for ratio in ratios) > len(ratios) / 2


@pytest.mark.parametrize(("depth", "chunks"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_any_cut_becomes_about_as_good_as_the_best(depth: int, chunks: int) -> None:
    """Layer by layer, by moves that all make it better; none where there is no time for any."""
    stages = options(TWO, depth, chunks=chunks)
    layers = _Layers(stages, [0, 1, 1, 0][:depth])
    every = [layers._ending(cut) for cut in cuts(7, depth, chunks)]
    least, moved = min(found.seconds for found in every), 0
    for found in every:
        better = layers.climbed(found)
        ending = layers._ending([option.layers for option in better.options]).seconds
        assert better.seconds == ending
        assert least * (1 - 1e-12) <= ending <= min(found.seconds, 1.02 * least)
        assert sum(option.layers for option in better.options) == 7
        with patch("planner.search.heuristics.greedy.CLIMBS", 0):
            assert layers.climbed(found) == found
        moved += ending < found.seconds
    assert moved > len(every) / 2


@pytest.mark.parametrize("giving", [1, 3])
def test_no_layer_of_a_busy_or_late_stage_is_better_elsewhere(giving: int) -> None:
    """Where moves end; those of late stages alone make some plans better."""
    slow = (pool("a", per_node=1, nodes=4, gbps=10), pool("b", "V100", per_node=1, nodes=4, gbps=1))
    stages = options(slow, 4, layers=12, dp=2)
    look, late_only = _Layers(stages, [0, 1, 1, 0]), 0
    with patch("planner.search.heuristics.greedy.GIVING", giving):
        for cut in cuts(12, 4, 1):
            end = look.climbed(look._ending(cut))
            layers = [option.layers for option in end.options]
            busy = sorted(range(4), key=lambda stage: -end.options[stage].busy_seconds)[:giving]
            late = sorted(range(4), key=lambda stage: -end.finish[stage])[:giving]
            for giver, taker in product({*busy, *late}, range(4)):
                if giver != taker and layers[giver] > 1 and layers[taker] < look.most[taker]:
                    assert look._ending(_moved(layers, giver, taker)).seconds >= end.seconds
            late_only += bool({*late} - {*busy})
    assert late_only or giving == 3


def test_what_ends_much_later_than_wanted_is_left_alone() -> None:
    """A twentieth is what moves of layers may make of it."""
    stages = options(TWO, 2)
    best = _Layers(stages, [0, 1]).best()
    assert best is not None
    plan = layered(stages, [0, 1], stages.estimator)
    assert plan is not None
    assert layered(stages, [0, 1], stages.estimator, wanted_seconds=best.seconds / 1.04) == plan
    assert layered(stages, [0, 1], stages.estimator, wanted_seconds=best.seconds / 1.06) is None


def test_the_quick_plan_is_the_best_of_all_orders() -> None:
    """Of a small pipeline of two devices of the faster type and one of the other, however it is cut."""
    stages = options(TWO, 3)
    every = [
        score(
            stages.estimator,
            stages,
            [stages.option(*place) for place in zip(range(3), slots, cut, strict=True)],
        )
        for slots in ((0, 0, 1), (1, 0, 0), (0, 1, 0))
        for cut in cuts(7, 3, 1)
    ]
    best, found = fastest(every), greedy(stages.choice, stages.estimator, Limits())
    assert best is not None
    assert found is not None
    least, seconds = best.estimate.step_seconds, found.estimate.step_seconds
    assert least * (1 - 1e-12) <= seconds <= 1.02 * least
    assert fastest([None]) is None


def test_stages_stand_on_the_fastest_devices_in_every_order() -> None:
    """As long as they last, and at both ends; of three types all orders, each once."""
    assert list(_orders(options(TWO, 4))) == [[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]]
    assert list(_orders(options(TWO, 2))) == [[0, 0]]
    stages = options(TWO, 3)
    assert _filled(stages, [[0, 1]]) == _filled(stages, [[1, 0]]) == {0: 2, 1: 1}
    assert _filled(stages, [[1], [0]]) == {1: 2, 0: 1}
    three = options((pool("a", per_node=1), *THREE[:2]), 3)
    assert sorted(map(tuple, _orders(three))) == sorted(permutations(range(3)))


def test_quick_plans_have_stages_of_whole_nodes_with_the_fastest_at_both_ends() -> None:
    """On nodes of five and six: two and three stages of two devices on each, none on what they leave over."""
    odd = pool("a", per_node=5, nodes=2, gbps=10), pool("b", "V100", per_node=6, nodes=3, gbps=10)
    stages = options(odd, 12, layers=24, dp=2)
    whole = {
        groups[0].pool: index
        for index, groups in enumerate(stages.compositions)
        if len(groups) == 1 and index not in stages.divided
    }
    fast, slow = whole["a"], whole["b"]
    assert any(stages.compositions[index][0].pool == "a" for index in stages.divided)
    looked = [*islice(_orders(stages), 2 * QUICK.orders)]
    assert looked[:2] == [[fast] * 4 + [slow] * 8, [slow] * 8 + [fast] * 4]
    assert [fast] * 2 + [slow] * 8 + [fast] * 2 in looked
    assert [fast] * 3 + [slow] * 8 + [fast] in looked
    assert [fast] + [slow] * 8 + [fast] * 3 in looked


def test_layers_that_are_too_many_are_taken_from_one_end_or_the_other() -> None:
    """Or where the end of the step is longest; each stage keeps one for each chunk."""

    def trimmed(counts: list[int], total: int, tails: list[float], chunks: int = 1) -> list[list[int]]:
        options = SimpleNamespace(
            option=lambda stage, slot, layers: SimpleNamespace(tail_seconds=tails[stage])
        )
        layers = cast("_Layers", SimpleNamespace(stages=options, slots=tails, chunks=chunks, total=total))
        return list(_Layers._trimmed(layers, counts))

    assert trimmed([3, 3, 3], 9, [1, 2, 1]) == [[3, 3, 3]] * 3
    assert trimmed([3, 3, 3], 8, [1, 2, 1]) == [[3, 3, 2], [2, 3, 3], [3, 2, 3]]
    assert trimmed([3, 3, 3], 7, [1, 1, 1]) == [[3, 2, 2], [2, 2, 3], [3, 2, 2]]
    assert trimmed([1, 4, 1], 4, [2, 1, 2]) == [[1, 2, 1]] * 3
    assert trimmed([2, 3, 2], 6, [1, 1, 1], chunks=2) == [[2, 2, 2]] * 3
    assert trimmed([1, 1, 1], 2, [1, 1, 1]) == []


def test_types_of_one_pool_are_tried_by_turns() -> None:
    """Beside one after the other, and both the other way round."""
    nics = pool("x", gbps=10, cards=1).nics
    stages = options((pool("m", ("A100", "V100"), nodes=2, nics=nics),), 4)
    gpus = [groups[0].gpu[0] for groups in stages.compositions]
    assert {"".join(gpus[slot] for slot in slots) for slots in _orders(stages)} == {
        "AAVV",
        "VVAA",
        "AVVA",
        "VAAV",
        "AVAV",
        "VAVA",
    }


def test_stages_change_places_where_that_is_faster() -> None:
    """A large tied embedding is reduced over 1 Gbit/s unless both ends of the pipeline stand on the V100."""
    pools = (pool("a", "V100", per_node=3, gbps=10), pool("b", "T4", per_node=3, gbps=1))
    estimator, limits = (
        Estimator(cluster(*pools), gpt(7, 1024, 8, global_batch=8, vocab=200_000)),
        Limits(tp=(1,), recompute=("none",)),
    )
    every = families(TARGETS["megatron"], limits, estimator.model, estimator.topology.device_types)
    family = next(item for item in every if (item.dp, item.batch) == (1, 1))
    stages = StageOptions(Choice(family=family, depth=5, interleave=1), estimator, limits)
    # Two orders alone: of more some have the V100 at both ends.
    plain, swapped = (
        greedy(stages.choice, estimator, limits, effort=Effort(1, 8, swaps)) for swaps in (0, 60)
    )
    orders = (slots for slots in product(range(2), repeat=5) if max(map(slots.count, (0, 1))) <= 3)
    best = fastest(layered(stages, list(slots), estimator) for slots in orders)
    assert plain is not None
    assert swapped is not None
    assert best is not None
    least = best.estimate.step_seconds
    assert least <= swapped.estimate.step_seconds <= 1.05 * least < 0.5 * plain.estimate.step_seconds
    # It is left alone where it is not near what is wanted.
    known = plain.estimate.step_seconds
    again = greedy(stages.choice, estimator, limits, effort=Effort(1, 8, 60, known))
    assert again is not None
    assert again.estimate.step_seconds == known
    # After the limit one plan is priced, and none changed.
    with patch.object(greedies, "layered") as changed, patch.object(greedies, "score", wraps=score) as priced:
        late = greedy(stages.choice, estimator, limits, effort=Effort(1, 8, 60), deadline=Deadline(at=0.0))
    assert late is not None
    assert priced.call_count == 1
    changed.assert_not_called()


def test_exchanges_of_stages_come_to_an_end() -> None:
    """No more are tried than said, and none of equal compositions."""
    stages = options(TWO, 4)
    choice, every = stages.choice, list[list[int]]()

    def same(_: StageOptions, slots: list[int], *parts: object, **wanted: object) -> None:
        every.append(slots)

    with patch.object(greedies, "layered", same):
        assert greedy(choice, stages.estimator, Limits(), effort=Effort(4, 8, 3)) is not None
    assert len(every) == 3
    assert all(sorted(slots) == [0, 0, 1, 1] for slots in every)
    with patch.object(greedies, "layered", same):
        every.clear()
        greedy(choice, stages.estimator, Limits(), effort=Effort(4, 8, 60))
    # Of six pairs of stages two are alike.
    assert len(every) == 4
