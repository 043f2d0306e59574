"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import CLUSTER, MODEL, SHORT_PLAN, Command


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports as on a terminal of 80 columns, without colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("HETPLAN_DEBUG", raising=False)


@pytest.fixture(autouse=True)
def few_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time for what few of the tests look at, which takes longer than a small search."""
    monkeypatch.setattr("planner.search.explain.reasons.LEAST_SECONDS", 0.05)


@pytest.fixture
def hetplan(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command."""
    return Command(capsys)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cluster, a model and a short plan, and the current directory."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "short.yaml").write_text(SHORT_PLAN)
    monkeypatch.chdir(tmp_path)
    return tmp_path
