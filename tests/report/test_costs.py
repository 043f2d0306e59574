"""What idle devices and the user's limits cost, in words."""

from __future__ import annotations

from dataclasses import replace

from planner.report.goal import idle_text, limits_section
from planner.report.plan_table import plan_section
from tests.report import examples
from tests.report.drawing import drawn


def test_idle_devices_with_what_using_them_costs() -> None:
    """All of them, some, one, for nothing, or not at all."""
    entry, impossible = examples.IDLE_COSTS
    assert idle_text(entry) == "idle: 4 V100 (v100): using them costs +7.0 % (bubble and sends)"
    assert "using 2 of them costs" in idle_text(replace(entry, taken=2))
    assert "1 V100 (v100): using it costs" in idle_text(replace(entry, idle=1, taken=1))
    assert idle_text(replace(entry, reason="")) == "idle: 4 V100 (v100): using them costs nothing"
    assert idle_text(impossible) == "idle: 4 A100 (a100): no plan found that fits and uses them"


def test_idle_devices_stand_in_the_plan_section_once() -> None:
    """Those with a line of their own are not named again."""
    scored, cluster = examples.scored(), examples.cluster()
    shown = drawn(plan_section(scored, cluster, idle=examples.IDLE_COSTS[:1]), 120)
    assert "uses 8 of 16 devices; idle: 4 A100 (a100)\n" in shown
    assert "\n  idle: 4 V100 (v100): using them costs +7.0 % (bubble and sends)\n" in shown


def test_limits_with_what_to_allow_instead() -> None:
    """A line each."""
    assert drawn(limits_section(examples.LIMIT_COSTS, 27.2)) == (
        "Cost of the limits\n"
        "  - --tp 4 costs at least 12 %: with --tp 1,2 the step is 24.3 s instead of\n"
        "    27.2 s\n"
        "  - --recompute selective costs at least 6.0 %: with --recompute none the step\n"
        "    is 25.7 s instead of 27.2 s\n"
        "\n"
    )
