"""What a stage sends at least."""

from __future__ import annotations

import pytest

from planner.cost.estimate import Estimator
from planner.search.space.choices import Choice, Family
from planner.search.space.sends import Hops
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from tests.worlds import cluster, gpt, pool


def options(estimator: Estimator) -> StageOptions:
    """All stages of one FlagScale choice."""
    family = Family(target="flagscale", zero=1, recompute=None, tp=None, dp=None, batch=8, micro_batches=8)
    return StageOptions(Choice(family=family, depth=3, interleave=1), estimator, Limits())


def of(stages: StageOptions, devices: int) -> Hops:
    """Least sends of the stage of so many replicas of one device."""
    for groups, hops in zip(stages.compositions, stages.hops, strict=True):
        if (groups[0].tp, groups[0].count) == (1, devices):
            return hops
    raise AssertionError(devices)


def test_a_stage_that_fills_its_node_sends_to_other_nodes() -> None:
    """Both ways in the middle; a smaller one has neighbours on its node, one or two of them."""
    stages = options(
        Estimator(cluster(pool("p", nodes=4, per_node=4, cards=1, gbps=10)), gpt(global_batch=64))
    )
    full, part, single = (of(stages, devices) for devices in (4, 2, 1))
    assert full.inner_seconds >= 2 * full.outer_seconds
    assert part.outer_seconds < full.outer_seconds / 10
    assert part.inner_seconds < full.inner_seconds / 10
    assert single.inner_seconds < full.inner_seconds / 10


def test_half_a_node_leaves_room_for_one_neighbour() -> None:
    """Where all stages are that large, the other one is on another node, so that one send is dear."""
    estimator = Estimator(cluster(pool("p", nodes=4, cards=1, gbps=10)), gpt(global_batch=64))
    family = Family(target="megatron", zero=1, recompute="none", tp=1, dp=4, batch=4, micro_batches=16)
    (half,) = StageOptions(Choice(family=family, depth=3, interleave=1), estimator, Limits()).hops
    assert half.inner_seconds > 10 * half.outer_seconds


def test_many_compositions_send_nothing() -> None:
    """Twelve device types mix in more ways than there is time for: the bound of their sends is nothing at all."""
    pools = [pool(f"p{index}", nodes=2, per_node=index + 1) for index in range(12)]
    estimator = Estimator(cluster(*pools), gpt(global_batch=64))
    family = Family(target="megatron", zero=1, recompute="none", tp=1, dp=8, batch=8, micro_batches=8)
    stages = StageOptions(Choice(family=family, depth=3, interleave=1), estimator, Limits())
    assert not stages.few_pairs
    assert set(stages.hops) == {Hops(inner_seconds=0.0, outer_seconds=0.0)}


def test_no_pair_of_stages_sends_less() -> None:
    """The least of the first and the last stage is that of some pair."""
    stages = options(Estimator(cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)), gpt()))
    everyone = range(len(stages.compositions))
    for own in everyone:
        pairs = [stages.sends(*pair) for other in everyone for pair in ((own, other), (other, own))]
        least = min(min(item.near_seconds, item.far_seconds) for item in pairs)
        assert stages.hops[own].outer_seconds == pytest.approx(least)
