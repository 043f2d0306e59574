"""Even splits."""

from __future__ import annotations

import pytest

from planner.cost.estimate import Estimator
from planner.search.heuristics.even import equal_batches, even_pipelines
from tests.worlds import cluster, gpt, pool


def test_equal_batches_differ_by_at_most_one() -> None:
    """17 devices of two device types, 64 sequences: 13 get 4, 4 get 3."""
    spec = cluster(pool("a", per_node=16), pool("b", "V100", per_node=1))
    for plan in equal_batches(Estimator(spec, gpt(global_batch=64))):
        shares = [(group.count, group.local_batch) for group in plan.stages[0].replicas]
        assert shares == [(13, 4), (3, 3), (1, 3)]


def test_a_small_batch_leaves_devices_idle() -> None:
    """No device without a sequence takes part."""
    spec = cluster(pool("a", per_node=16), pool("b", "V100", per_node=4))
    plans = list(equal_batches(Estimator(spec, gpt(global_batch=6))))
    assert [plan.devices for plan in plans] == [6] * 8


@pytest.mark.parametrize(("layers", "per_node", "used"), [(24, 17, 17), (24, 12, 12), (17, 17, 17)])
def test_pipelines_are_even(layers: int, per_node: int, used: int) -> None:
    """Equal layers on every stage; some of the grid uses all devices."""
    plans = list(
        even_pipelines(Estimator(cluster(pool("a", per_node=per_node)), gpt(layers, global_batch=408)))
    )
    assert {len({stage.layers for stage in plan.stages}) for plan in plans} == {1}
    assert max(plan.devices for plan in plans) == used
