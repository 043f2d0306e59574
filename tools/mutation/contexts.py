"""A plugin of pytest that tells coverage which test runs: frames do not show those that Hypothesis wraps."""

from __future__ import annotations

from collections.abc import Iterator

import coverage
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The test's function, whatever its parameters, its fixtures included."""
    current = coverage.Coverage.current()
    assert current is not None, "run under coverage"
    current.switch_context(item.nodeid.split("[")[0])
    result = yield
    current.switch_context("")
    return result
