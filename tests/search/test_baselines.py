"""What people do today."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.search.baselines import baselines, holmes_partition, proportional_shares
from planner.search.solve import search
from planner.search.values import Limits
from tests.clusters import cluster, gpt, pool


@pytest.mark.parametrize(("layers", "expected"), [(48, [26, 22]), (30, [16, 14])])
def test_holmes_split_is_that_of_its_scripts(layers: int, expected: list[int]) -> None:
    """Speeds 197 and 160 give the splits the authors ship."""
    assert holmes_partition([197, 160], layers) == expected


def test_shares_follow_the_flops() -> None:
    """Twice the speed, twice the share, while memory lasts."""
    assert proportional_shares([2.0, 1.0], [1, 1], [100, 100], 30) == [[(1, 20)], [(1, 10)]]


def test_what_overflows_a_memory_moves_to_the_least_loaded() -> None:
    """Whale's algorithm 1."""
    assert proportional_shares([2.0, 1.0], [1, 1], [12, 100], 30) == [[(1, 12)], [(1, 18)]]
    assert proportional_shares([2.0, 1.0], [1, 1], [12, 12], 30) == []


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.integers(1, 8), st.integers(1, 50)), min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_shares_add_up_to_the_batch(kinds: list[tuple[float, int, int]], batch: int) -> None:
    """Nothing lost, no limit broken; empty exactly when the limits cannot hold the batch."""
    speeds, counts, limits = zip(*kinds, strict=True)
    dealt = proportional_shares(speeds, counts, limits, batch)
    if not dealt:
        assert sum(count * limit for count, limit in zip(counts, limits, strict=True)) < batch
        return
    assert sum(count * share for parts in dealt for count, share in parts) == batch
    for parts, count, limit in zip(dealt, counts, limits, strict=True):
        assert sum(number for number, _ in parts) <= count
        assert all(share <= limit for _, share in parts)


def test_every_practice_is_priced_and_none_beats_the_search() -> None:
    """The plans people use lie in the space, so the best plan is at least as fast."""
    spec, model = cluster(pool("a", per_node=4), pool("b", "V100", per_node=4)), gpt(global_batch=64)
    best = search(spec, model, limits=Limits(gap=0.0), explain=False).best
    assert best is not None
    found = baselines(spec, model)
    assert [item.family for item in found] == [
        "equal batches (DeepSpeed)",
        "even pipeline (Megatron-LM)",
        "FLOPs-proportional (Whale)",
        "a stage per network (Holmes)",
        "only a",
    ]
    for item in found:
        assert item.scored is not None
        assert item.scored.plan.global_batch == 64
        assert item.scored.estimate.step_seconds >= best.estimate.step_seconds * (1 - 1e-6)


def test_a_practice_that_does_not_fit_says_by_how_much() -> None:
    """The nearest plan is shown with its shortage."""
    found = baselines(cluster(pool("a", "V100", per_node=1)), gpt(32, 4096, 32, global_batch=8))
    assert found[0].scored is not None
    assert not found[0].scored.estimate.fits
    assert "needs" in found[0].reason
    assert "GiB" in found[0].reason
