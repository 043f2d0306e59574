"""From paths to specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.inputs import concerning
from planner.errors import EmitError, HetplanError, PlanError, UsageError
from tests.cli.running import Command, write_plan


@pytest.mark.parametrize("kind", [EmitError, PlanError, UsageError])
def test_errors_begin_with_the_file(kind: type[HetplanError]) -> None:
    """Each line does, once; kind and hint stay."""
    with pytest.raises(kind) as raised, concerning(Path("p.yaml")):
        raise kind("no room\np.yaml:3: dp: too large", hint="fewer")
    assert raised.value.message == "p.yaml: no room\np.yaml:3: dp: too large"
    assert raised.value.hint == "fewer"


def test_a_plan_that_cannot_be_emitted_is_named(hetplan: Command, files: Path) -> None:
    """The rule that it breaks belongs to the plan, an unknown launcher to the command line."""
    write_plan(files / "plan.yaml")
    done = hetplan("emit", "plan.yaml", "-o", "run", "--launcher", "deepspeed")
    assert done.code == 2
    assert done.err.startswith("error: plan.yaml: ")
    assert hetplan("emit", "plan.yaml", "-o", "run", "--launcher", "x").err.startswith("error: launcher x: ")
