"""What was asked, and what comes nearest."""

from __future__ import annotations

from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.report.goal import devices_text, goal_text, nearest_section
from planner.search.values import Goal
from tests.report import examples
from tests.report.drawing import drawn


def test_goals_in_words() -> None:
    """Objective first, then limits; the plain goal needs no words."""
    assert goal_text(Goal()) == ""
    assert goal_text(Goal(objective="energy")) == "the lowest energy per token"
    assert goal_text(Goal(objective="cost"), pareto=True) == "time against cost"
    limited = Goal(
        objective="cost",
        max_cost_per_million_tokens=0.5,
        min_tokens_per_second=20_000,
        use_at_most=(("a100", 8), ("", 16)),
    )
    assert goal_text(limited) == (
        "the lowest cost per token; at most 0.500 per million tokens; at least 20.0 k tokens/s; "
        "at most 8 a100; at most 16 devices in all"
    )


def test_devices_in_words() -> None:
    """By pool, and by kind where a pool mixes device types."""
    assert devices_text(examples.plan()) == "4 a100 + 4 v100"
    groups = tuple(
        ReplicaGroup(pool="lab", gpu=gpu, tp=1, count=1, local_batch=1, accumulation_steps=1)
        for gpu in ("T4", "P100")
    )
    plan = Plan(target="deepspeed", zero=0, stages=(Stage(first_layer=0, end_layer=2, replicas=groups),))
    assert devices_text(plan) == "1 P100 (lab) + 1 T4 (lab)"


def test_the_nearest_plans() -> None:
    """One sentence a limit."""
    assert drawn(nearest_section(examples.out_of_reach())) == (
        "No plan meets the goal (proven over 39 sub-clusters, 12 ms)\n"
        "  no plan reaches 40.0 k tokens/s; the fastest within the other limits reaches\n"
        "  19.3 k tokens/s, on 4 a100 + 4 v100\n"
        "  no plan takes at most 0.100 per million tokens; the cheapest that was found in\n"
        "  time, without the other limits, takes 0.144, on 4 a100 + 4 v100\n"
        "\n"
    )
