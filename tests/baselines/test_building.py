"""Shares and layers by speed, and devices in order."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.baselines.building import balanced_layers, by_speed
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.search.heuristics.even import filled, pipeline
from tests.worlds import cluster, gpt, pool

SPEEDS = st.floats(0.1, 10)


def test_shares_follow_the_speed() -> None:
    """Twice the speed, twice the share; the rest to who finishes it first."""
    assert by_speed([2.0, 1.0], [1, 1], 30) == [[(1, 20)], [(1, 10)]]
    assert by_speed([2.0, 1.0], [2, 1], 11) == [[(1, 5), (1, 4)], [(1, 2)]]
    assert by_speed([3.0, 1.0], [1, 2], 1) == [[(1, 1)], [(2, 0)]]


@given(st.lists(st.tuples(SPEEDS, st.integers(1, 8)), min_size=1, max_size=4), st.integers(1, 200))
def test_shares_add_up_to_the_batch(device_types: list[tuple[float, int]], batch: int) -> None:
    """Nothing lost, every device named, no share a whole sequence away from its proportion."""
    speeds, counts = zip(*device_types, strict=True)
    batches = by_speed(speeds, counts, batch)
    assert sum(count * share for parts in batches for count, share in parts) == batch
    assert [sum(count for count, _ in parts) for parts in batches] == list(counts)
    total = sum(speed * count for speed, count in device_types)
    for (speed, _), parts in zip(device_types, batches, strict=True):
        assert all(share > batch * speed / total - 1.0001 for _, share in parts)


@given(
    st.lists(st.tuples(SPEEDS, st.floats(0, 5), st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_no_layers_are_better_balanced(stages: list[tuple[float, float, int]], layers: int) -> None:
    """As fast as the best of all splits; empty exactly when there is none."""
    seconds, extra, most = zip(*stages, strict=True)
    found = balanced_layers(seconds, extra, layers, most)
    splits = [split for split in product(*(range(1, room + 1) for room in most)) if sum(split) == layers]
    assert bool(found) == bool(splits)
    if found:

        def slowest(split: tuple[int, ...]) -> float:
            return max(float(e + n * s) for s, e, n in zip(seconds, extra, split, strict=True))

        assert sum(found) == layers
        assert slowest(tuple(found)) == pytest.approx(min(slowest(split) for split in splits))


def test_stages_take_the_devices_in_order() -> None:
    """A stage goes on in the next pool where the first is used up."""
    device_types = Estimator(
        cluster(pool("a", per_node=4), pool("b", per_node=8)), gpt()
    ).topology.device_types
    stages = filled(
        [(device_type, device_type.devices) for device_type in device_types], [(1, 6, 8), (2, 3, 16)], 4
    )
    assert [[(group.pool, group.tp, group.count) for group in groups] for groups in stages] == [
        [("a", 1, 4), ("b", 1, 2)],
        [("b", 2, 3)],
    ]
    assert pipeline(stages, [12, 12]).target == "flagscale"


def test_missing_devices_are_an_error() -> None:
    """No stage is made smaller in silence."""
    device_types = Estimator(cluster(pool("a", per_node=4)), gpt()).topology.device_types
    with pytest.raises(PlanError, match="fewer devices"):
        filled(
            [(device_type, device_type.devices) for device_type in device_types], [(1, 3, 8), (1, 3, 8)], 4
        )
