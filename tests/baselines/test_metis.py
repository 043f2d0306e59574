"""Metis' search, and what it overlooks."""

from __future__ import annotations

import pytest

from planner.baselines.building import layer_seconds
from planner.baselines.metis import MEMORY_FACTOR, StageGroup, cost, gpu_types, group_sizes, metis
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from tests.worlds import cluster, gpt, pool


def chosen(spec: ClusterSpec, model: ModelSpec) -> Plan:
    """The plan of least Metis cost."""
    (plan,) = metis(Estimator(spec, model))
    return plan


def sizes(*pools: object, layers: int = 24) -> list[list[int]]:
    """Devices of the groups of each candidate, fastest type first."""
    spec = cluster(*pools)  # type: ignore[arg-type]
    types = gpu_types(Estimator(spec, gpt()))
    return [[devices for _, devices in groups] for groups in group_sizes(types, layers)]


def test_groups_are_powers_of_two_and_what_is_left() -> None:
    """Any total; never two types in one group."""
    assert sizes(pool("a", nodes=3, per_node=4)) == [[1] * 12, [2] * 6, [4] * 3, [8, 4], [12]]
    assert sizes(pool("v", "V100", per_node=4), pool("a", per_node=8), layers=4)[-2:] == [[4, 4, 4], [8, 4]]


def test_types_are_profiled_whatever_their_pool() -> None:
    """Two pools of A100 are one type; faster types come first."""
    spec = cluster(pool("v", "V100"), pool("ib"), pool("roce", fabric="roce"))
    types = gpu_types(Estimator(spec, gpt()))
    assert [[device_type.pool for device_type in item.device_types] for item in types] == [
        ["ib", "roce"],
        ["v"],
    ]
    assert [item.devices for item in types] == [16, 8]


def test_the_network_between_nodes_is_ignored() -> None:
    """1 or 1000 Gbit/s: the same plan, as with the published code."""
    plans = [
        chosen(cluster(pool("a", nodes=2, gbps=gbps), pool("v", "V100", gbps=gbps)), gpt(global_batch=64))
        for gbps in (1.0, 1000.0)
    ]
    assert plans[0] == plans[1]


def test_large_groups_are_overfilled() -> None:
    """64 devices: five times one device's bytes pass against the memory of all; the estimate says what is missing."""
    spec, model = cluster(pool("a", nodes=8)), gpt(48, 8192, 64, global_batch=512)
    estimate = Estimator(spec, model).estimate(chosen(spec, model))
    assert not estimate.fits


def test_a_small_group_has_too_little_by_its_check() -> None:
    """One device of 80 GiB may hold a fifth of it, so a model of 30 GiB has no plan."""
    with pytest.raises(PlanError, match="memory check"):
        chosen(cluster(pool("a", per_node=1)), gpt(global_batch=8))


def test_its_check_leaves_out_the_runtime() -> None:
    """Profiles have the memory of layers alone: of this model they pass, with the runtime they would not."""
    spec, model = cluster(pool("a", per_node=1)), gpt(14, global_batch=8)
    memory = Estimator(spec, model).estimate(chosen(spec, model)).stages[0].groups[0].memory
    room = memory.capacity_bytes / MEMORY_FACTOR
    assert memory.used_bytes - memory.runtime_bytes <= room < memory.used_bytes


def test_layers_follow_the_speed() -> None:
    """Four A100 and four V100 as two stages: the faster type gets more layers."""
    spec = cluster(pool("a", per_node=4), pool("v", "V100", per_node=4, gbps=1, cards=1))
    estimator = Estimator(spec, gpt(48, global_batch=512, vocab=1000))
    (plan,) = metis(estimator)
    layers = {stage.replicas[0].pool: stage.layers for stage in plan.stages}
    speed = {
        device_type.pool: 1
        / layer_seconds(estimator, device_type, 1, plan.stages[0].replicas[0].micro_batch).layer
        for device_type in estimator.topology.device_types
    }
    assert plan.pp == 2
    assert layers["a"] / layers["v"] == pytest.approx(speed["a"] / speed["v"], rel=0.15)


def test_stages_of_unequal_width_need_flagscale() -> None:
    """Sixteen and four devices: dp 16 and 4."""
    spec = cluster(pool("a", nodes=4, per_node=4), pool("v", "V100", per_node=4))
    plan = chosen(spec, gpt(24, 1024, global_batch=256))
    assert plan.target == "flagscale"
    assert sorted(stage.dp for stage in plan.stages) == [4, 16]
    assert len({stage.sequences for stage in plan.stages}) == 1


def test_cost_by_hand() -> None:
    """One device: every micro-batch all layers."""
    estimator = Estimator(cluster(pool("a", per_node=1)), gpt(global_batch=8))
    (item,) = gpu_types(estimator)
    one = layer_seconds(estimator, item.device_types[0], 1, 2)
    whole = 24 * one.layer + one.embedding + one.head
    assert cost(estimator, [StageGroup(item, 1, 1)], [24], 4) == pytest.approx(4 * whole)
