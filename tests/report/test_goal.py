"""What was asked, and what comes nearest."""

from __future__ import annotations

from collections import Counter

from planner.cost.training import devices_of
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
    cluster = examples.cluster()
    assert devices_text(devices_of(examples.plan()), cluster) == "4 a100 + 4 v100"
    mixed, other = cluster.pools
    mixed = mixed.model_copy(update={"devices": ("A100", "V100")})
    cluster = cluster.model_copy(update={"pools": (mixed, other)})
    used = Counter({("a100", "V100"): 1, ("v100", "V100"): 2})
    assert devices_text(used, cluster) == "1 V100 (a100) + 2 v100"


def test_the_nearest_plans() -> None:
    """One sentence a limit."""
    assert drawn(nearest_section(examples.out_of_reach(), examples.cluster())) == (
        "No plan meets the goal (proven over 39 sub-clusters, 12 ms)\n"
        "  no plan reaches 40.0 k tokens/s; the fastest within the other limits reaches\n"
        "  19.2 k tokens/s, on 4 a100 + 4 v100\n"
        "  no plan takes at most 0.100 per million tokens; the cheapest that was found in\n"
        "  time, without the other limits, takes 0.145, on 4 a100 + 4 v100\n"
        "\n"
    )
