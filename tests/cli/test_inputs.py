"""From paths to specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.inputs import concerning
from planner.errors import EmitError, HetplanError, PlanError, UsageError
from tests.cli.running import ROOT, Command, write_plan


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


@pytest.mark.parametrize(
    "words", [("search", "--sequence-length", "64"), ("what-if", "--change", "training.sequence_length=64")]
)
def test_images_need_room_in_a_sequence(hetplan: Command, words: tuple[str, ...]) -> None:
    """Also where the length is not that of the file: no plan file that nobody can read."""
    command, *rest = words
    cluster, llava = ROOT / "cluster_specs" / "dgx_a100.yaml", ROOT / "model_specs" / "llava_1.5_7b.yaml"
    done = hetplan(command, cluster, llava, *rest)
    assert done.code == 2
    assert "sequence_length: expected at least 576, the tokens of the images of" in " ".join(done.err.split())
