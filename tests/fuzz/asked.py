"""The command and the search, asked about a world in this process."""

from __future__ import annotations

import contextlib
import io
import json
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from planner.calibration.values import Calibration
from planner.cli.app import run
from planner.cli.inputs import read_calibration
from planner.cluster.spec import ClusterSpec
from planner.model.spec import ModelSpec
from planner.search.solve import search
from planner.search.values import SearchResult
from tests.fuzz.worlds import World, read

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """What a command did."""

    code: int
    document: Json
    """Its answer as JSON; empty where it gave none."""
    errors: str
    cpu_seconds: float


def tell(*words: object) -> Said:
    """Run ``hetplan`` with these words."""
    out, err = io.StringIO(), io.StringIO()
    start = _cpu()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(word) for word in words])
    seconds = _cpu() - start
    text = out.getvalue()
    return Said(code, json.loads(text) if text.startswith("{") else {}, err.getvalue().strip(), seconds)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True)
class Answer:
    """One world, what the search found for it, and its files."""

    world: World
    cluster: ClusterSpec
    model: ModelSpec
    calibration: Calibration
    result: SearchResult
    files: tuple[Path, Path]
    measured: Path | None
    """The calibration file, if there is one."""

    @property
    def constants(self) -> tuple[object, ...]:
        """The option of commands that names it."""
        return () if self.measured is None else ("--calibration", self.measured)

    @property
    def step(self) -> float:
        """Seconds of the plan's step; infinite without a plan."""
        return self.result.best.estimate.step_seconds if self.result.best else float("inf")

    @property
    def bound(self) -> float:
        """No plan takes less."""
        return self.result.bound_seconds


def ask(world: World, folder: Path, seconds: float) -> Answer:
    """Search without reasons, on files that are read as the command reads them."""
    files = world.write(folder)
    cluster, model = read(files)
    measured = world.calibration(folder)
    calibration = read_calibration(measured)
    result = search(cluster, model, calibration, world.searched(seconds), explain=False)
    return Answer(world, cluster, model, calibration, result, files, measured)


def plan_of(path: Path) -> Json:
    """A plan file as plain YAML."""
    found: Json = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found
