"""The fixture by which a new runtime inherits every test of what all runtimes have in common."""

from __future__ import annotations

import pytest

from planner.targets import NAMES


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Every registered runtime in turn."""
    found: str = request.param
    return found
