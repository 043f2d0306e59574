"""AMP's search and cost."""

from __future__ import annotations

import pytest

from planner.baselines.amp import amp, cost, degrees
from planner.baselines.building import layer_seconds
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.search.heuristics.even import filled, pipeline
from tests.worlds import cluster, gpt, pool


def test_as_many_candidates_as_the_published_script() -> None:
    """GPT-2 of 24 layers, batch 32, 16 devices in nodes of 4: het_cluster.py costs 53."""
    spec = cluster(pool("p3", "V100", nodes=3, per_node=4), pool("g4", "V100", nodes=1, per_node=4))
    estimator = Estimator(spec, gpt(24, 1024, 16, global_batch=32))
    found = list(degrees(estimator.topology.device_types, estimator.model))
    assert len(found) == len(set(found)) == 53
    assert {tp * dp * depth for tp, dp, depth, _ in found} == {16}


def test_one_device_costs_all_layers_for_every_micro_batch() -> None:
    """No sends, no reduction, no bubble."""
    estimator = Estimator(cluster(pool("a", per_node=1)), gpt(global_batch=8))
    (device_type,) = estimator.topology.device_types
    one = layer_seconds(estimator, device_type, 1, 1)
    plan = pipeline(filled([(device_type, 1)], [(1, 1, 8)], 4), [24])
    whole = 24 * one.layer + one.embedding + one.head
    assert cost(estimator, plan, one) == pytest.approx(4 * 2 * whole)


def test_layers_ignore_the_speed_of_devices() -> None:
    """Layer times are averages, so the slow half of a pipeline gets as many layers as the fast one."""
    spec = cluster(
        pool("a", per_node=1, fabric="eth", gbps=1, cards=1),
        pool("v", "V100", per_node=1, fabric="eth", gbps=1, cards=1),
    )
    (plan,) = amp(Estimator(spec, gpt(global_batch=64, vocab=1000)))
    assert [stage.layers for stage in plan.stages] == [12, 12]


def test_a_slow_link_turns_replicas_into_stages() -> None:
    """Data parallelism over a fast network, a pipeline over a slow one."""
    depths = []
    for gbps in (400.0, 0.5):
        spec = cluster(*(pool(name, per_node=4, gbps=gbps, cards=1) for name in "ab"))
        (plan,) = amp(Estimator(spec, gpt(global_batch=64)))
        depths.append(plan.pp)
    assert depths[0] < depths[1]


def test_memory_is_not_looked_at() -> None:
    """The plan of a model that fits nowhere is the same as that with all the memory in the world."""
    model = gpt(32, 4096, 32, global_batch=64)
    spec = cluster(pool("a", per_node=8))
    large = {name: gpu.model_copy(update={"memory_gib": 4000.0}) for name, gpu in spec.gpus.items()}
    plans = [
        next(iter(amp(Estimator(item, model)))) for item in (spec, spec.model_copy(update={"gpus": large}))
    ]
    assert plans[0] == plans[1]
    assert not Estimator(spec, model).estimate(plans[0]).fits
    assert plans[0].zero == 0


def test_degrees_that_do_not_divide_are_the_reason() -> None:
    """17 devices, 8 layers, 64 sequences."""
    with pytest.raises(PlanError, match="all 17 devices"):
        list(amp(Estimator(cluster(pool("a", per_node=17)), gpt(8, global_batch=64))))
