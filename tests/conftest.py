"""What holds for all tests, and what those need that import DeepSpeed."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Every worker has a core of its own: more threads of torch would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Of the ranks that are forks of a worker, and of what DeepSpeed decides while it is imported.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
# No test waits for a disk; what is no open file is an error all the same.
vars(os)["fsync"] = os.fstat
# How long an example takes says how busy the machine is, and how many are left out is chance.
settings.register_profile(
    "hetplan",
    deadline=None,
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("hetplan")
gc.disable()  # until all is imported and collected
# Programs that a shell starts in the background ignore Ctrl-C, and so would those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""``gw0``, ``gw1``, ...; empty without workers."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Every second worker imports the tests from the last to the first.

    In a fresh clone all modules are compiled when they are imported: from two ends, each is by one of two workers.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and WORKER[-1:] in tuple("13579"):
        report.result.reverse()
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order is that of all workers again."""
    if WORKER:
        items.sort(key=lambda item: item.path.parts)


def pytest_collection_finish() -> None:
    """What was imported and collected stays; to look for garbage in it would take CPU time.

    What starts the ranks of training runs is made now, ahead of the first test, where a test needs it.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 50, 50)
    if "tests.training.ranks" in sys.modules:
        sys.modules["tests.training.ranks"].starter()


@pytest.fixture
def no_third_party_warnings() -> Iterator[None]:
    """transformers, DeepSpeed and torch warn about each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def without_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches whose answers stand alone: to look at what else there was takes longer than a small search."""
    from planner.search.explain.reasons import Found, Reasons

    nothing = Found(alternatives=(), advice=(), idle_costs=(), limit_costs=(), cut=False)
    monkeypatch.setattr(Reasons, "run", lambda reasons: nothing)
