"""The jobs file: what is trained on one cluster at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

from pydantic import Field

from planner.cluster.spec import ClusterSpec
from planner.errors import Problem, SpecError, collecting
from planner.files.document import Document, fail_on, file_beside, read_as
from planner.files.fields import Devices, Frozen, Hours, Name, Steps, Tokens, Weight
from planner.files.messages import nearest
from planner.model.file import load_model
from planner.model.hub import HUB
from planner.model.spec import ModelSpec
from planner.targets import NAMES, in_words

MOST_JOBS = 20
"""Jobs of one file."""


class SharedJob(Frozen):
    """One training run."""

    name: Name
    """Name of the job; its files are called after it."""
    model: Annotated[str, Field(min_length=1)]
    """Model file, relative to this file; or the name of one that ships with hetplan, e.g. ``gpt2_345m``."""
    tokens: Tokens | None = None
    """Tokens that are left to train on; or give ``steps``. Needed for the objective makespan and for a deadline."""
    steps: Steps | None = None
    """Optimizer steps that are left; or give ``tokens``."""
    weight: Weight = 1.0
    """How much a token/s of it counts, next to the other jobs: for throughput and fairness."""
    target: str | None = None
    """Runtime that it must run on; any of the usual ones when absent."""
    least_gpus: Devices = 1
    """It gets at least so many devices."""
    most_gpus: Devices | None = None
    """It gets at most so many devices; all of them when absent."""
    deadline_hours: Hours | None = None
    """Hours in which it must end, all jobs beginning now."""


class JobsFile(Frozen):
    """Jobs that share one cluster."""

    name: Name = "jobs"
    """Name of the set of jobs."""
    notes: str | None = None
    """Free text."""
    jobs: Annotated[tuple[SharedJob, ...], Field(min_length=1, max_length=MOST_JOBS)]
    """The jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedJob:
    """A job with its model."""

    job: SharedJob
    model: ModelSpec

    @property
    def tokens(self) -> float | None:
        """Tokens that are left; None where the file does not say."""
        training = self.model.training
        if self.job.steps is not None:
            return float(self.job.steps * training.tokens)
        return self.job.tokens

    @property
    def least_rate(self) -> float:
        """Tokens a second that its deadline asks for."""
        if self.job.deadline_hours is None or self.tokens is None:
            return 0.0
        return self.tokens / (3600 * self.job.deadline_hours)


def load_jobs(path: Path, cluster: ClusterSpec, *, need_tokens: bool = False) -> tuple[LoadedJob, ...]:
    """The jobs of a file, for this cluster; raises SpecError with every problem of the file."""
    document = read_as(path, "jobs")
    problems = document.problems(JobsFile)
    fail_on(problems)
    jobs = document.to(JobsFile).jobs
    devices = cluster.devices
    if len(jobs) > devices:
        what = f"expected at most one for each of the {devices} devices of the cluster, got {len(jobs)}"
        problems.append(document.problem(("jobs",), what))
    problems += _problems(document, jobs, devices, need_tokens)
    loaded = []
    for index, job in enumerate(jobs):
        with collecting(problems):
            loaded.append(LoadedJob(job=job, model=_model(document, index, job.model)))
    fail_on(problems)
    return tuple(loaded)


def _problems(
    document: Document, jobs: tuple[SharedJob, ...], devices: int, need_tokens: bool
) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, job in enumerate(jobs):
        at = ("jobs", index)
        if job.name in first:
            line = document.line(("jobs", first[job.name], "name"))
            what = f"{job.name} is already on line {line}"
            yield document.problem((*at, "name"), what, "give each job its own name")
        first.setdefault(job.name, index)
        if job.tokens is not None and job.steps is not None:
            what = "given beside tokens, which says the same, expected one of them"
            yield document.problem((*at, "steps"), what)
        unsaid = job.tokens is None and job.steps is None
        if unsaid and (need_tokens or job.deadline_hours is not None):
            why = "a deadline" if job.deadline_hours is not None else "the objective makespan"
            what = f"missing: {why} needs what is left to do"
            yield document.problem((*at, "tokens"), what, "for example tokens: 1000000000, or steps: 1000")
        if job.target is not None and job.target not in NAMES:
            what = f"expected {in_words(NAMES, 'or')}, got {job.target!r}"
            yield document.problem((*at, "target"), what)
        if job.least_gpus > devices:
            what = f"expected at most the {devices} devices of the cluster, got {job.least_gpus}"
            yield document.problem((*at, "least_gpus"), what)
        if job.most_gpus is not None and job.most_gpus < job.least_gpus:
            what = f"expected at least least_gpus, {job.least_gpus}, got {job.most_gpus}"
            yield document.problem((*at, "most_gpus"), what)


def _model(document: Document, index: int, named: str) -> ModelSpec:
    """The model of a job; one that is nowhere is a problem of the jobs file."""
    if named.startswith(HUB):
        return load_model(Path(named))
    path = file_beside(Path(document.file), named)
    if os.path.exists(path):
        return load_model(path)
    shipped = files("planner.examples").joinpath("model_specs")
    names = sorted(
        each.name.removesuffix(".yaml") for each in shipped.iterdir() if each.name.endswith(".yaml")
    )
    if named in names:
        with as_file(shipped.joinpath(f"{named}.yaml")) as file:
            return load_model(file)
    what = f"{path}: no such file, and no model of that name ships with hetplan"
    raise SpecError((document.problem(("jobs", index, "model"), what, nearest(named, names)),))
