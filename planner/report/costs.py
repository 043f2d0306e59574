"""What idle devices and the user's limits cost, in words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group

from planner.report.layout import bullets, section
from planner.report.numbers import duration, percent
from planner.search.explain.sensitivity import option_text
from planner.search.values import IdleCost, LimitCost


def idle_text(entry: IdleCost) -> str:
    """``idle: 4 T4 (t4): using them costs +7 % (bubble and sends)``."""
    head = f"idle: {entry.idle} {entry.gpu} ({entry.pool})"
    if entry.slower is None:
        return f"{head}: {entry.reason}"
    which = "it" if entry.idle == 1 else "them" if entry.taken == entry.idle else f"{entry.taken} of them"
    if not entry.reason:
        return f"{head}: using {which} costs nothing"
    return f"{head}: using {which} costs +{percent(entry.slower)} ({entry.reason})"


def limits_section(entries: Sequence[LimitCost], step_seconds: float) -> Group:
    """A line for each limit that costs much, and what to allow instead."""
    return section("What the limits cost", bullets(limit_text(entry, step_seconds) for entry in entries))


def limit_text(entry: LimitCost, step_seconds: float) -> str:
    """``--tp 1 costs 12 %: with --tp 2 the step is 3.1 s instead of 3.5 s``."""
    given, instead = option_text(entry.limit, entry.given), option_text(entry.limit, entry.instead)
    faster, slower = duration(entry.scored.estimate.step_seconds), duration(step_seconds)
    return f"{given} costs {percent(entry.costs)}: with {instead} the step is {faster} instead of {slower}"
