"""The page on how true the cost model is."""

from __future__ import annotations

import pytest

from planner.calibration.file import shipped
from planner.measured.table import load_table
from tests.measured.examples import published
from tools.accuracy.__main__ import DOCS
from tools.accuracy.errors import CAUSES
from tools.accuracy.goals import ELSEWHERE, EVERY, GOALS, QUANTITIES, REASONS, TERMS, missed
from tools.accuracy.material import correlation, markdown, material, share, signed
from tools.accuracy.page import page
from tools.accuracy.unseen import RUNS, WHAT, found


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    """Run `make accuracy` after changing the cost model, its constants or the published runs; `make lint` checks it."""
    assert (DOCS / "accuracy.md").read_text(encoding="utf-8") == page(material())


def test_unseen_sources_are_in_no_fit() -> None:
    """Each is described, none is among the published ones, and all can be predicted."""
    unseen = {entry.source for entry in found().sources}
    assert unseen == set(WHAT)
    assert not unseen & {run.source for run in published().runs}
    assert not load_table(RUNS).skipped


def test_the_picture_is_there() -> None:
    """Its pixels depend on the machine."""
    assert (DOCS / "accuracy.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_goals_are_about_published_runs() -> None:
    """Every source, quantity and id that is named exists."""
    runs = published().runs
    sources = {run.source for run in runs}
    assert {goal.source for goal in GOALS} <= sources | {*TERMS, EVERY}
    assert {source for told in TERMS.values() for source in told} <= sources
    assert {source for source, *_ in ELSEWHERE} <= sources
    assert set(REASONS) <= sources | {*TERMS, EVERY}
    assert {goal.quantity for goal in GOALS} == set(QUANTITIES)
    assert all(any(run.id.startswith(prefix) for run in runs) for prefix in CAUSES)


@pytest.mark.slow
def test_the_shipped_constants_are_those_of_the_fit() -> None:
    """Run `hetplan calibrate fit -o planner/catalog/constants.yaml --force` and `make accuracy` after new rows."""
    fitted = {item.name: item.value for item in material().fit.calibration.constants}
    known = {item.name: item.value for item in shipped().constants}
    assert fitted.keys() <= known.keys()
    assert all(known[name] == pytest.approx(value, rel=2e-3) for name, value in fitted.items())


@pytest.mark.slow
def test_a_goal_that_is_not_met_has_a_reason() -> None:
    """Silence would look like success."""
    assert {goal.source for goal in missed(material())} <= set(REASONS)


def test_more_is_better_for_correlations_only() -> None:
    """Unknown is never met."""
    assert QUANTITIES["Spearman"].met(0.9, 0.9)
    assert not QUANTITIES["Spearman"].met(0.89, 0.9)
    assert QUANTITIES["step time"].met(0.05, 0.05)
    assert not QUANTITIES["regret"].met(0.051, 0.05)
    assert not any(quantity.met(None, 0.0) for quantity in QUANTITIES.values())


def test_numbers_have_two_digits() -> None:
    """What machines agree on."""
    assert [share(value) for value in (0.0123, 0.123, 0.0, None)] == ["1.2 %", "12 %", "0.0 %", "-"]
    assert [signed(value) for value in (0.0123, -0.123, 0.0001, -0.0001)] == [
        "+1.2 %",
        "-12 %",
        "< 0.1 %",
        "> -0.1 %",
    ]
    assert [correlation(value) for value in (0.987, None)] == ["0.99", "-"]


def test_tables_are_markdown() -> None:
    """Texts to the left, numbers to the right, bars escaped."""
    assert markdown(("name ", "runs"), [("a|b", "3")]) == "| name | runs |\n| :--- | ---: |\n| a\\|b | 3 |\n"
