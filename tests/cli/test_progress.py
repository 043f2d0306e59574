"""Progress on stderr."""

from __future__ import annotations

import io
import sys
from itertools import pairwise

import pytest

from planner.cli.progress import MOST_MOMENTS, History, ProgressBar, reporter, state
from planner.search.values import Silent


def test_silence_without_a_terminal() -> None:
    """A log file sees nothing."""
    with reporter() as talk:
        assert isinstance(talk, Silent)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far, how good, and nothing left behind on stdout."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with reporter() as talk:
        talk.progress(done=3, total=12, best_seconds=55.94, bound_seconds=54.2)
    assert "3/12" in stream.getvalue()
    assert "best 55.9 s, within 3.2 %" in stream.getvalue()


def test_the_line_never_counts_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the begin it names the phase and the best plan so far, before any choice is solved."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with reporter() as talk:
        assert isinstance(talk, ProgressBar)
        talk._bar.refresh()
        assert "bounds: no plan yet" in stream.getvalue()
        talk.phase("searching")
        talk.better(0.4123)
        talk._bar.refresh()
        assert "proving: best 412 ms" in stream.getvalue()
        talk.progress(done=0, total=12, best_seconds=0.4123, bound_seconds=0.4)
        talk._bar.refresh()
    assert "within 3.0 %" in stream.getvalue()
    assert "0/" not in stream.getvalue()


def test_what_is_known_so_far() -> None:
    """No plan, a plan without a bound, a plan with one."""
    assert state(None, 0.0) == "no plan yet"
    assert state(0.4123, 0.0) == "best 412 ms"
    assert state(0.4123, 0.4) == "best 412 ms, within 3.0 %"


def test_a_history_keeps_what_moved_most() -> None:
    """Of many moments those with small changes go; a space without plans leaves no bound; the last is the highest."""
    history = History(since=0.0)
    history.progress(done=1, total=400, best_seconds=None, bound_seconds=50.0)
    for best in (90.0, 80.0, 85.0, 60.0):
        history.better(best)
    for step in range(300):
        history.progress(done=step, total=400, best_seconds=60.0, bound_seconds=40 + step / 30)
    moments = history.until(60.0, 49.5)
    assert len(moments) == MOST_MOMENTS
    assert [moment.step_seconds for moment in moments[:3]] == [90.0, 80.0, 60.0]
    assert [moment.bound_seconds for moment in moments[:3]] == [0.0, 0.0, 0.0]
    assert (moments[-1].step_seconds, moments[-1].bound_seconds) == (60.0, 49.5)
    assert all(first.seconds <= then.seconds for first, then in pairwise(moments))
    assert all(first.bound_seconds <= then.bound_seconds for first, then in pairwise(moments))
