"""From paths to specs, with what the command line overrides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.options import choices
from planner.cli.output import typed, warn

if TYPE_CHECKING:
    from planner.calibration.values import Calibration
    from planner.cluster.spec import ClusterSpec
    from planner.model.spec import ModelSpec
    from planner.plan.file import UsedCalibration

PRECISIONS = ("bf16", "fp16", "fp32", "tf32", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Training settings given on the command line; None keeps the file's."""

    precision: str | None = None
    global_batch: int | None = None
    sequence_length: int | None = None

    def given(self) -> dict[str, str | int]:
        """The settings that are not None, by the name of their field."""
        found = {
            "precision": self.precision,
            "global_batch": self.global_batch,
            "sequence_length": self.sequence_length,
        }
        return {name: value for name, value in found.items() if value is not None}


@contextmanager
def concerning(*paths: Path) -> Iterator[None]:
    """Errors about what these files hold begin with their names."""
    from planner.errors import EmitError, PlanError, UsageError

    names = ", ".join(str(path) for path in paths)
    try:
        yield
    except (EmitError, PlanError, UsageError) as error:
        named = tuple(f"{path}:" for path in paths)
        lines = (
            line if line.startswith(named) else f"{names}: {line}" for line in error.message.splitlines()
        )
        raise type(error)("\n".join(lines), hint=error.hint) from None


def read_inputs(cluster: Path, model: Path, overrides: Overrides) -> tuple[ClusterSpec, ModelSpec]:
    """Both files; every problem of both is reported at once."""
    from planner.cluster.file import load_cluster
    from planner.errors import Problem, SpecError
    from planner.model.file import load_model

    problems: list[Problem] = []
    found_cluster = found_model = None
    try:
        found_cluster = load_cluster(cluster)
    except SpecError as error:
        problems += error.problems
    try:
        found_model = overridden(load_model(model), overrides)
    except SpecError as error:
        problems += error.problems
    if found_cluster is None or found_model is None:
        raise SpecError(tuple(problems))
    return found_cluster, found_model


def read_calibration(path: Path | None) -> Calibration:
    """What ships with the package; what the file says, where there is one, wins over it."""
    from planner.calibration.file import load_calibration, shipped
    from planner.calibration.merge import merged, sourced

    return shipped() if path is None else merged(shipped(), sourced(load_calibration(path)))


def warn_of_doubts(path: Path | None, read: Calibration, cluster: ClusterSpec, model: ModelSpec) -> None:
    """Say on stderr where the user's calibration was measured with something else than what it is used for."""
    from planner.report.calibration_doubts import doubts

    if path is None:
        return
    for line in doubts(read, cluster, model):
        warn(f"{path}: {line}")


def used_calibration(path: Path | None) -> UsedCalibration | None:
    """What a plan file keeps of a calibration file: its name and the SHA-256 of its bytes."""
    from hashlib import sha256

    from planner.plan.file import UsedCalibration

    if path is None:
        return None
    return UsedCalibration(name=path.name, digest=sha256(path.read_bytes()).hexdigest()[:16])


def with_calibration(command: str, path: Path | None) -> str:
    """A command that goes on with the same calibration file."""
    return command if path is None else f"{command} {typed('--calibration', path)}"


def overridden(model: ModelSpec, overrides: Overrides) -> ModelSpec:
    """The model with the training settings of the command line."""
    from planner.model.spec import TrainingSpec

    if overrides.precision is not None:
        choices("--precision", overrides.precision, PRECISIONS)
    training = TrainingSpec.model_validate({**model.training.model_dump(), **overrides.given()})
    return model.model_copy(update={"training": training})
