"""Files in each other's place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planner import catalog
from planner.calibration.file import load_calibration
from planner.cluster.file import load_cluster
from planner.errors import SpecError
from planner.files.document import kind_of, read_document
from planner.model.file import load_model
from planner.plan.file import read
from tests.files.writing import CLUSTERS, MODELS

READERS: dict[str, Callable[[Path], object]] = {
    "cluster": load_cluster,
    "model": load_model,
    "plan": read,
    "calibration": load_calibration,
}


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> dict[str, Path]:
    """A file of each kind; the plan is a short one, which only its readers understand."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("target: megatron\nstages: []\n", encoding="utf-8")
    return {
        "cluster": CLUSTERS / "lab.yaml",
        "model": MODELS / "gpt2_345m.yaml",
        "plan": plan,
        "calibration": Path(catalog.__file__).parent / "constants.yaml",
    }


@pytest.mark.parametrize("wanted", READERS)
def test_a_file_of_another_kind_is_one_error(files: dict[str, Path], wanted: str) -> None:
    """It says what the file is and where it belongs, not what every key is not."""
    for kind, path in files.items():
        if kind != wanted:
            with pytest.raises(SpecError) as caught:
                READERS[wanted](path)
            (problem,) = caught.value.problems
            assert problem.what == f"is a {kind} file, expected a {wanted} file"
            assert "CLUSTER MODEL PLAN" in (problem.hint or "")


def test_every_shipped_file_is_of_its_kind() -> None:
    """As are configurations of Hugging Face."""
    assert {kind_of(read_document(path).data) for path in CLUSTERS.glob("*.yaml")} == {"cluster"}
    assert {kind_of(read_document(path).data) for path in MODELS.glob("*.yaml")} == {"model"}
    assert kind_of({"model_type": "gpt2"}) == "model"
    assert kind_of({"format": "hetplan-plan/7", "layers": 2, "hidden": 4}) == "plan"


def test_files_that_tell_nothing_are_read_as_asked() -> None:
    """Their own reader says what is missing."""
    assert kind_of({}) is None
    assert kind_of({"name": "mine", "format": 3, "layers": 2}) is None
