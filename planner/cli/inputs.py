"""Reads input files, and applies the overrides of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from math import isclose
from pathlib import Path
from typing import Annotated

from planner.calibration.file import load_calibration, shipped
from planner.calibration.merge import merged, sourced
from planner.calibration.values import Calibration
from planner.cli.options import Precision, SequenceLength, choices, option
from planner.cli.output import typed
from planner.cli.process import warn
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.errors import EmitError, PlanError, Problem, SpecError, UsageError, collecting
from planner.files.document import read_bytes
from planner.files.messages import within
from planner.model.file import batch_at, load_model, unsaid, with_training
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.file import (
    PlanFile,
    Summary,
    UsedCalibration,
    cluster_differences,
    differences_text,
    model_differences,
    read,
)
from planner.ranges import BATCH, CHANCE
from planner.report.doubts import doubts
from planner.report.numbers import duration
from planner.search.values import Goal, Limits, Scored


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What is searched for."""

    cluster: ClusterSpec
    model: ModelSpec
    calibration: Calibration
    used: UsedCalibration | None
    """The user's calibration file."""
    limits: Limits
    goal: Goal
    advice: bool = False
    """Search for faster plans of other runtimes too."""
    simple: bool = False
    """A simpler plan than the fastest one where it is as fast by what is known."""

    @property
    def inputs(self) -> tuple[ClusterSpec, ModelSpec, Calibration, Limits, Goal]:
        """What every search is given first."""
        return self.cluster, self.model, self.calibration, self.limits, self.goal

    def plan_file(self, scored: Scored, summary: Summary | None) -> PlanFile:
        """What ``-o`` writes of a plan."""
        return PlanFile(
            plan=scored.plan,
            cluster=self.cluster,
            model=self.model,
            summary=summary,
            calibration=self.used,
        )


def read_priced(path: Path, calibration: Calibration) -> tuple[PlanFile, Scored]:
    """A plan file and its plan with its estimate."""
    saved = read(path)
    with concerning(path):
        priced = estimate(saved.plan, saved.cluster, saved.model, calibration)
    return saved, Scored(plan=saved.plan, estimate=priced)


def read_plan(path: Path, calibration: Path | None) -> tuple[Calibration, PlanFile, Scored]:
    """The constants, and the same with them; what is to be doubted of them is said on stderr."""
    constants = read_calibration(calibration)
    saved, scored = read_priced(path, constants)
    saved = as_priced(path, saved, scored, calibration)
    warn_of_doubts(calibration, constants, saved.cluster, saved.model)
    return constants, saved, scored


def check_same_inputs(path: Path, saved: PlanFile, cluster: Path | None, model: Path | None) -> None:
    """Raise PlanError when a plan was made for another cluster or model than the files given, naming what differs."""
    parts = []
    if cluster is not None:
        parts.append(("cluster", cluster, cluster_differences(saved.cluster, load_cluster(cluster))))
    if model is not None:
        parts.append(("model", model, model_differences(saved.model, load_model(model))))
    lines = [
        f"{path}: made for another {part} than {file}: {differences_text(differences, str(file))}"
        for part, file, differences in parts
        if differences
    ]
    if lines:
        raise PlanError(
            *lines,
            hint="search again with these files; settings that search was given as options belong in the files",
        )


def as_priced(path: Path, saved: PlanFile, scored: Scored, calibration: Path | None) -> PlanFile:
    """The file without what its search proved and compared where that was with other constants, with a warning.

    It says nothing of the plan as it is priced here.
    """
    if warn_of_other_calibration(path, saved, calibration):
        return replace(saved, summary=None)
    then, now = saved.summary, scored.estimate.step_seconds
    if then is None or isclose(then.step_seconds, now, rel_tol=SAME_STEP):
        return saved
    took = f"{duration(then.step_seconds)} a step by the constants it was found with, {duration(now)} by those of here"
    warn(f"{path}: {took}: search again to know how good it is")
    return replace(saved, summary=None)


SAME_STEP = 1e-3
"""Relative difference of step times up to which constants are taken for the same."""


def warn_of_other_calibration(path: Path, saved: PlanFile, calibration: Path | None) -> bool:
    """Say on stderr when a plan was found with another calibration file than it is priced with; True where it was."""
    used, now = saved.calibration, used_calibration(calibration)
    if (used and used.digest) == (now and now.digest):
        return False
    found = f"with the calibration {used.name} ({used.digest})" if used else "without a calibration file"
    if now is None:
        priced = f"without it: add --calibration {used.name}" if used else ""
    else:
        priced = f"with {'another ' if used else ''}{now.name} ({now.digest})"
    warn(f"{path}: found {found}, priced here {priced}")
    return True


PRECISIONS = ("bf16", "fp16", "fp32", "tf32", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Settings given on the command line; None keeps those of the files."""

    precision: Precision = None
    global_batch: Annotated[
        int | None,
        option(
            "--global-batch", "N", "Sequences per optimizer step, overriding the model file.", allowed=BATCH
        ),
    ] = None
    sequence_length: SequenceLength = None
    safe: Annotated[
        float | None,
        option(
            "--safe",
            "P",
            "Only plans whose chance of running out of memory is at most P, e.g. 0.05, given the error of "
            "predicted memory; overrides the cluster file.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise UsageError for a chance that is none."""
        within("--safe", self.safe, CHANCE)

    def given(self) -> dict[str, str | int]:
        """The training settings that are not None, by the name of their field."""
        settings = {
            "precision": self.precision,
            "global_batch": self.global_batch,
            "sequence_length": self.sequence_length,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def words(self) -> list[str]:
        """The options as they are typed."""
        named = {**self.given(), "safe": self.safe}
        return [
            word
            for name, value in named.items()
            if value is not None
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]


@contextmanager
def concerning(*paths: Path) -> Iterator[None]:
    """Errors about what these files hold begin with their names."""
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
    problems: list[Problem] = []
    cluster_spec = model_spec = None
    with collecting(problems):
        cluster_spec = read_cluster(cluster)
        if overrides.safe is not None:
            cluster_spec = cluster_spec.model_copy(update={"safe": overrides.safe})
    with collecting(problems):
        model_spec = read_model(model, overrides)
    if cluster_spec is None or model_spec is None:
        raise SpecError(tuple(problems))
    return cluster_spec, model_spec


def read_given(cluster: Path, model: Path | None) -> tuple[ClusterSpec, ModelSpec | None]:
    """The files that are given; every problem of both is reported at once."""
    return (read_cluster(cluster), None) if model is None else read_inputs(cluster, model, Overrides())


def read_cluster(path: Path) -> ClusterSpec:
    """The cluster; limits on power that change nothing are said on stderr."""
    cluster = load_cluster(path)
    for pool in cluster.pools:
        limits = [(cluster.power_limit_of(pool, gpu), cluster.gpus[gpu].tdp_watts) for gpu in pool.devices]
        above = [(limit, board) for limit, board in limits if limit and board and limit > board]
        if above and len(above) == len(limits):
            limit, board = max(above, key=lambda item: item[1])
            what = f"power_limit_watts {limit:g} is above the board power, {board:g}, and changes nothing"
            warn(f"{path}: pool {pool.name}: {what}")
    return cluster


def read_model(model: Path, overrides: Overrides) -> ModelSpec:
    """The model with the training settings of the command line; what its file leaves open is said on stderr."""
    loaded, given = load_model(model), overrides
    if overrides.sequence_length is not None and overrides.global_batch is None:
        given = replace(overrides, global_batch=batch_at(model, overrides.sequence_length))
    model_spec = overridden(loaded, given)
    note = unsaid(model, overrides.given())
    if note is not None:
        warn(note)
    return model_spec


def read_calibration(path: Path | None) -> Calibration:
    """What ships with the package; what the file says, where there is one, wins over it."""
    return shipped() if path is None else merged(shipped(), sourced(load_calibration(path, warn)))


def constants_for(path: Path | None, cluster: ClusterSpec, model: ModelSpec) -> Calibration:
    """The constants for a cluster and a model; what is to be doubted of them is said on stderr."""
    constants = read_calibration(path)
    warn_of_doubts(path, constants, cluster, model)
    return constants


def warn_of_doubts(path: Path | None, read: Calibration, cluster: ClusterSpec, model: ModelSpec) -> None:
    """Say on stderr where the user's calibration was measured with something else than what it is used for."""
    if path is None:
        return
    for line in doubts(read, cluster, model):
        warn(f"{path}: {line}")


def used_calibration(path: Path | None) -> UsedCalibration | None:
    """What a plan file keeps of a calibration file: its name and the SHA-256 of its bytes."""
    if path is None:
        return None
    return UsedCalibration(name=path.name, digest=sha256(read_bytes(path)).hexdigest()[:16])


def with_calibration(command: str, path: Path | None) -> str:
    """A command that goes on with the same calibration file."""
    return command if path is None else f"{command} {typed('--calibration', path)}"


def search_command(
    cluster: Path, model: Path, overrides: Overrides, calibration: Path | None, *more: str
) -> str:
    """The search that a report leads to, with the same settings and the same calibration file."""
    words = ("hetplan", "search", cluster, model, *overrides.words(), *more, "-o", "plan.yaml")
    return with_calibration(typed(*words), calibration)


def overridden(model: ModelSpec, overrides: Overrides) -> ModelSpec:
    """The model with the training settings of the command line."""
    if overrides.precision is not None:
        choices("--precision", overrides.precision, PRECISIONS)
    training = TrainingSpec.model_validate({**model.training.model_dump(), **overrides.given()})
    return with_training(model, training)
