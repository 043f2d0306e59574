"""What a second costs on given devices."""

from __future__ import annotations

import pytest

from planner.calibration.values import ASSUMED, Calibration, LayerPoint
from planner.cost.estimate import Estimator
from planner.search.objectives.candidates import GoalRates, seconds_at
from planner.search.values import Goal
from tests.worlds import cluster, gpt, pool

PRICED = pool("a").model_copy(update={"price_per_gpu_hour": 3.6, "watts_per_gpu": 250.0})
DEVICES = {("a", "A100"): 4}


def rates(goal: Goal, calibration: Calibration = ASSUMED) -> GoalRates:
    """64 sequences of 1024 tokens a step."""
    return GoalRates(Estimator(cluster(PRICED), gpt(), calibration), goal)


def test_weights() -> None:
    """4 devices at 3.6 an hour are 0.004 a second; at 250 W they are 1 kW."""
    tokens = 64 * 1024
    assert rates(Goal()).weight(DEVICES) == 1.0
    assert rates(Goal(objective="cost")).weight(DEVICES) == pytest.approx(0.004 / tokens * 1e6)
    assert rates(Goal(objective="energy")).weight(DEVICES) == pytest.approx(1000 / tokens)


def test_the_longest_step() -> None:
    """The tighter of both limits; none is no limit."""
    assert rates(Goal()).most_seconds(DEVICES) == float("inf")
    assert rates(Goal(min_tokens_per_second=32 * 1024)).most_seconds(DEVICES) == 2.0
    cost = 0.004 / (64 * 1024) * 1e6
    both = Goal(min_tokens_per_second=32 * 1024, max_cost_per_million_tokens=cost)
    assert rates(both).most_seconds(DEVICES) == pytest.approx(1.0)


def test_the_shortest_step() -> None:
    """Useful operations at the peak; nothing where measured layers may beat it."""
    goal = Goal()
    one, two = rates(goal).least_seconds({("a", "A100"): 1}), rates(goal).least_seconds({("a", "A100"): 2})
    assert one == pytest.approx(2 * two)
    point = LayerPoint(
        gpu="A100", model="gpt", tp=1, micro_batch=1, forward_seconds=1e-9, backward_seconds=1e-9
    )
    assert rates(goal, Calibration(layers=(point,))).least_seconds(DEVICES) == 0.0


def test_free_devices_never_reach_a_price() -> None:
    """No division by zero."""
    assert seconds_at(3.0, 0.0) == float("inf")
    assert seconds_at(3.0, 2.0) == 1.5
