"""Processes that measure together."""

from __future__ import annotations

import pytest

from planner.errors import UsageError

pytest.importorskip("torch")

from planner.measure.network import open_world


def test_outside_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process measures no network."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="started by torchrun"):
        open_world("cpu")
