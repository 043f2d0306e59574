"""The plan file of a search: written as soon as there is a plan, at every better one, and whole at the end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from planner.calibration.values import Calibration
from planner.cli.inputs import summary_of
from planner.cluster.spec import ClusterSpec
from planner.errors import OutputError
from planner.model.spec import ModelSpec
from planner.plan.file import PlanFile, Summary, UsedCalibration, write
from planner.search.values import Goal, Limits, Scored, SearchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is searched for."""

    cluster: ClusterSpec
    model: ModelSpec
    calibration: Calibration
    used: UsedCalibration | None
    """The user's calibration file."""
    limits: Limits
    goal: Goal


PAUSE_SECONDS = 0.5
"""Least time between two plans that are written while better ones keep coming."""


class KeptPlan:
    """A plan file that holds the best plan, whatever ends the program."""

    def __init__(self, asked: Asked, path: Path) -> None:
        self._asked, self._path = asked, path
        self._written = -PAUSE_SECONDS
        self._waiting: Scored | None = None

    def better(self, scored: Scored) -> None:
        """A better plan; the first one is written at once."""
        self._waiting = scored
        self.catch_up()

    def catch_up(self) -> None:
        """Write what waits, unless something was written a moment ago."""
        if self._waiting is None or monotonic() - self._written < PAUSE_SECONDS:
            return
        scored, self._waiting = self._waiting, None
        with suppress(OutputError):  # said at the end, where it is tried again
            self._write(scored, self._unproven(scored))
        self._written = monotonic()

    def finish(self, result: SearchResult) -> OutputError | None:
        """Write the answer with what the search says of it; a failure is returned, so that the report comes first."""
        if result.best is None:
            return None
        try:
            self._write(result.best, summary_of(result))
        except OutputError as error:
            return error
        return None

    def _unproven(self, scored: Scored) -> Summary:
        """What is known of a plan while the search goes on."""
        objective = self._asked.goal.objective
        return Summary(
            status="feasible",
            step_seconds=scored.estimate.step_seconds,
            bound_seconds=0.0,
            gap=1.0,
            tokens_per_second=scored.estimate.tokens_per_second,
            objective=None if objective == "time" else objective,
        )

    def _write(self, scored: Scored, summary: Summary | None) -> None:
        file = PlanFile(
            plan=scored.plan,
            cluster=self._asked.cluster,
            model=self._asked.model,
            summary=summary,
            calibration=self._asked.used,
        )
        write(file, self._path)
