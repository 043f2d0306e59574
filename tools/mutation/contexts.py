"""A plugin of pytest that tells coverage which test runs, and notes what each took: frames do not show those that
Hypothesis wraps."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass, field

import coverage
import pytest


@dataclass(frozen=True, slots=True)
class Noted:
    """CPU seconds of each test that ran, its fixtures and child processes included, and those that did not pass."""

    seconds: dict[str, float] = field(default_factory=dict)
    setups: dict[str, float] = field(default_factory=dict)
    """Those of ``seconds`` that its fixtures took."""
    failed: set[str] = field(default_factory=set)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test, with the parameters that it has."""
        current, begin = coverage.Coverage.current(), _cpu_seconds()
        assert current is not None, "run under coverage"
        current.switch_context(item.nodeid)
        result = yield
        current.switch_context("")
        self.seconds[item.nodeid] = _cpu_seconds() - begin
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """What a test needs; a fixture of its file is made for the first one that asks for it."""
        begin = _cpu_seconds()
        result = yield
        self.setups[item.nodeid] = _cpu_seconds() - begin
        return result

    def shared(self) -> dict[str, float]:
        """The seconds of each test, of which all have an equal part of the fixtures: alone, each would need them."""
        each = sum(self.setups.values()) / max(1, len(self.seconds))
        return {test: own - self.setups.get(test, 0.0) + each for test, own in self.seconds.items()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test: its setup, itself or what cleans up."""
        if not report.passed:
            self.failed.add(report.nodeid)


def _cpu_seconds() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)
