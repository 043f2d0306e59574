"""One screen of a search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.report.brief import answer_line, bar, brief
from planner.report.explain import considered
from planner.search.values import Goal, Limits
from tests.report import examples
from tests.report.drawing import drawn


def shown(**changes: object) -> list[str]:
    """Its lines."""
    result = replace(examples.found(), **changes)  # type: ignore[arg-type]
    best = result.best
    assert best is not None
    parts = brief(result, best, examples.cluster(), examples.model(), None)
    return "".join(drawn(part) for part in parts).splitlines()


def test_stages_with_their_load() -> None:
    """Layers, devices, memory, and a bar of the work relative to the busiest group."""
    lines = shown()
    assert lines[0].startswith(
        "llama-7b (6.74 B parameters, 256 x 2048 tokens, fp16) on example (16 devices)"
    )
    assert lines[1] == "Plan: megatron, 2 stages, ZeRO 1, selective recomputation, sequence parallel"
    stages = [line for line in lines if "█" in line]
    assert len(stages) == 2
    assert stages[0].split()[:2] == ["0", "0-23"]
    assert "4 A100 (a100) by tp 4" in stages[0]
    assert any(line.endswith("██████████ 100 %") for line in stages)


@pytest.mark.parametrize(("rows", "text"), [(0, "and 2 more rows: -v"), (1, "and 1 more row: -v"), (2, "")])
def test_rows_of_a_screen(rows: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many are left out, where some are."""
    monkeypatch.setattr("planner.report.brief.ROWS", rows)
    found = [line.strip() for line in shown() if " more row" in line]
    assert found == ([f"{text} shows them"] if text else [])


def test_six_families_and_how_many_there_are() -> None:
    """All of them stand with -v."""
    one = examples.found().alternatives[1]
    many = (*examples.found().alternatives, *(replace(one, family=f"family {n}") for n in range(9)))
    lines = shown(alternatives=many)
    start = next(index for index, line in enumerate(lines) if line.startswith("  family ("))
    assert f"  family (6 of {len(considered(many))}, -v: all)" in lines[start]
    assert "chosen" in lines[start + 1]


def test_what_to_know_before_trusting_it() -> None:
    """The proof's limits, warnings, idle devices, limits that cost, other runtimes, speeds."""
    lines = shown(
        outside=("offloading", "more"),
        idle_costs=examples.IDLE_COSTS,
        limit_costs=examples.LIMIT_COSTS,
        ratios=examples.RATIOS * 2,
    )
    notes = [line for line in lines if line.startswith("! ")]
    assert notes[0] == "! the proof leaves out 2 kinds of plans: -v lists them"
    for part in ("stay idle", "using them costs +7.0 %", "--tp 4 costs at least 12 %", "needs flagscale"):
        assert any(part in note for note in notes), part
    assert notes[-1] == "! 2 splits of work depend on speeds known to ±30 %: at worst 14 % slower"


def test_the_goal_is_named() -> None:
    """Where it is not the fastest plan."""
    goal = Goal(objective="energy")
    assert "goal: the lowest energy per token" in shown(goal=goal)
    result = replace(examples.found(), goal=goal, subclusters=8)
    line = answer_line(result, examples.model(), examples.cluster(), Limits())
    assert line.endswith("of the most energy-efficient of 8 sub-clusters")
    result = replace(examples.found(), subclusters=8)
    line = answer_line(result, examples.model(), examples.cluster(), Limits())
    assert line.endswith("proven within 0.8 % of the fastest of 8 sub-clusters")


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, ""), (1.0, "█" * 10), (0.5, "█" * 5), (0.53, "█" * 5 + "▎"), (7.0, "█" * 10)]
)
def test_bars(share: float, text: str) -> None:
    """Eighths of a cell, always of one length."""
    assert bar(share) == text.ljust(10)


def test_idle_devices_are_named_where_nothing_says_what_they_cost() -> None:
    """Also when the time for explanations ran out; not where --use-at-most asks for them."""
    (line,) = [line for line in shown(idle_costs=()) if line.startswith("! idle: ")]
    assert line == "! idle: 4 A100 (a100), 4 V100 (v100)"
    assert not any("! idle: " in line for line in shown(idle_costs=(), goal=Goal(use_at_most=(("", 8),))))
