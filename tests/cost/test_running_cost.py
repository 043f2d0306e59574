"""Price and power of devices."""

from __future__ import annotations

import pytest

from planner.cost.estimate import estimate
from planner.cost.training import devices_of, price_per_hour, watts
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests.worlds import cluster, gpt, pool


def test_only_used_devices_are_paid() -> None:
    """Four of eight, each at the price of its pool; none without a price."""
    item = pool("a").model_copy(update={"price_per_gpu_hour": 2.0})
    spec = cluster(item, pool("b", "V100"))
    assert price_per_hour({("a", "A100"): 4}, spec) == 8.0
    assert price_per_hour({("a", "A100"): 4, ("b", "V100"): 1}, spec) is None


def test_power() -> None:
    """The pool's own, else the board power of the kind, else unknown."""
    board = cluster(pool("a"), pool("b", "V100"))
    gpus = {name: gpu.model_copy(update={"tdp_watts": 400.0}) for name, gpu in board.gpus.items()}
    own = board.pools[1].model_copy(update={"watts_per_gpu": 250.0})
    spec = board.model_copy(update={"gpus": gpus, "pools": (board.pools[0], own)})
    assert watts({("a", "A100"): 2, ("b", "V100"): 4}, spec) == 1800.0
    assert watts({("a", "A100"): 2}, board) is None


def test_an_estimate_knows_what_it_costs() -> None:
    """Price and energy of a step and of its tokens agree."""
    item = pool("a").model_copy(update={"price_per_gpu_hour": 3.6, "watts_per_gpu": 250.0})
    model = gpt(global_batch=8)
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=4, local_batch=2, accumulation_steps=2)
    plan = Plan(target="megatron", zero=0, stages=(Stage(first_layer=0, end_layer=24, replicas=(group,)),))
    found = estimate(plan, cluster(item), model)
    assert devices_of(plan) == {("a", "A100"): 4}
    assert (found.price_per_hour, found.watts) == (14.4, 1000.0)
    assert found.cost_per_step == pytest.approx(0.004 * found.step_seconds)
    assert found.cost_per_million_tokens == pytest.approx(0.004 * found.step_seconds / (8 * 1024) * 1e6)
    assert found.joules_per_token == pytest.approx(1000 * found.step_seconds / (8 * 1024))
    unknown = estimate(plan, cluster(pool("a")), model)
    assert (unknown.cost_per_step, unknown.cost_per_million_tokens, unknown.joules_per_token) == (None,) * 3
