"""Plans, where they stand, what is next to them and what is refused are those of the tables.

`python -m tests.plan.plans` writes both anew.
"""

from __future__ import annotations

import pytest

from tests.cases import CASES
from tests.plan.plans import CHANGED, PLANS, REFUSALS, model_rows, named_models, plan_rows, refusal_rows
from tests.tables import by_case, differences, read

WRITTEN, REFUSED = (by_case(read(path)) for path in (PLANS, REFUSALS))
MODELS = named_models()


@pytest.mark.parametrize("name", CASES)
def test_plans_are_those_of_the_table(name: str) -> None:
    """Decisions, launchers, neighbours and why these are refused."""
    assert not differences(plan_rows(name, CASES[name]), WRITTEN[name])


@pytest.mark.parametrize("name", CHANGED)
def test_changes_are_refused_as_the_table_says(name: str) -> None:
    """Those that are not refused have no row."""
    written = [row for row in REFUSED[name] if row[1] == "changed"]
    assert not differences(refusal_rows(name), written)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_refused_as_the_table_says(name: str) -> None:
    """By each target, in plans of many kinds."""
    written = [row for row in REFUSED.get(name, ()) if row[1] != "changed"]
    assert not differences(model_rows(name), written)


def test_the_tables_have_rows_for_nothing_else() -> None:
    """A case that is gone takes its rows with it."""
    assert [*WRITTEN] == [*CASES]
    assert {*REFUSED} <= {*CHANGED, *MODELS}
