"""What a run told about its runtime's host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group

from planner.described import told
from planner.logs.trial import Trial
from planner.logs.values import Observed
from planner.report.document import Head
from planner.report.layout import bullets, section
from planner.report.numbers import count, duration


def trial_section(found: Trial, stack: str, seen: Observed, path: Path) -> Group:
    """The constant, what it was found from, and where it is."""
    return section(f"Wrote a constant of {stack} to {path}", bullets([*_lines(found, stack, seen)]))


def _lines(found: Trial, stack: str, seen: Observed) -> Iterator[str]:
    yield (
        f"a step took {duration(found.observed_seconds)} (median of {count(len(seen.seconds), 'record')}), "
        f"predicted without the host's work: {duration(found.before_seconds)}"
    )
    if found.launches:
        yield f"{stack} works as long as {found.launches:.0f} kernel launches for each micro-batch of a stage"
    else:
        yield "the run was no slower than predicted: nothing of the host's work shows"
    if seen.only_warm_up:
        yield "the log has warm-up steps only: run twenty steps and measure again"


@told(inline=("trial",))
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialDocument(Head):
    """The answer of ``calibrate run``."""

    file: str
    """Calibration file that was written."""
    stack: str
    """Framework of the plan."""
    trial: Trial
    """What the run told."""
