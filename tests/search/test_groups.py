"""Families bounded together, before any of them is looked at."""

from __future__ import annotations

import pytest

from planner.cost.estimate import Estimator
from planner.search.bounds.groups import group_bound, grouped, members, of_one_degree, searched
from planner.search.bounds.peak import floor_seconds, least_seconds
from planner.search.deadline import NO_LIMIT
from planner.search.space.choices import families
from planner.search.space.partitions import network_partitions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.search.variants import three_pools
from tests.worlds import cluster, gpt, pool


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target", ["deepspeed", "megatron", "torch", "flagscale"])
def test_a_group_is_never_slower_than_its_families(seed: int, target: str) -> None:
    """Nor is the floor slower than any of them; each family is in one group."""
    estimator, limits = Estimator(*three_pools(seed)), Limits(target=target)
    floor, compared = floor_seconds(estimator), 0
    for _, _, partition, found in searched(estimator, limits, one_degree=False):
        groups = grouped(found)
        assert sorted(map(repr, found)) == sorted(
            repr(family) for group in groups for family in group.families
        )
        for group in groups:
            bound = group_bound(group, partition.bounds)
            for own, _ in members(group, partition, limits, NO_LIMIT):
                assert bound <= own * (1 + 1e-9)
                assert floor <= own
                compared += bound > 0
    assert compared or target == "flagscale"


def test_families_of_per_stage_degrees_have_parts_with_the_same() -> None:
    """Each with a bound."""
    estimator = Estimator(cluster(pool("a"), pool("b", "V100")), gpt(global_batch=16))
    limits = Limits(target="flagscale")
    (partition,) = network_partitions(estimator, TARGETS["flagscale"]).values()
    for family in families(TARGETS["flagscale"], limits, estimator.model, partition.device_types):
        parts = of_one_degree(family, partition, limits, NO_LIMIT)
        assert all(part.dp is not None for _, part in parts)
        assert all(0 < own < float("inf") for own, _ in parts)


def test_without_devices_there_is_no_step() -> None:
    """And measured layers may beat any datasheet."""
    estimator = Estimator(cluster(pool("b", "V100")), gpt(precision="bf16"))
    assert floor_seconds(estimator) == float("inf")
    able = Estimator(cluster(pool("a")), gpt())
    assert least_seconds(able, {("a", "A100"): 8}) == pytest.approx(floor_seconds(able))
