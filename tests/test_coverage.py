"""docs/coverage.md names commands that exist, and figures that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from planner.cli.app import app
from planner.cost.pipeline_end import stage_ends

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """Every command of the page, as it is typed."""
    return sorted(set(re.findall(r"`hetplan ([^`]+)`", PAGE)))


@pytest.mark.parametrize("text", commands())
def test_every_command_exists(text: str) -> None:
    """With its options."""
    command, words = typer.main.get_command(app), text.split()
    while words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        if not hasattr(command, "commands"):
            break
    known = {name for entry in command.params for name in entry.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_pages_and_tests_are_there() -> None:
    """Whatever the page points to."""
    for path in re.findall(r"\]\(([\w.]+\.md)", PAGE):
        assert (ROOT / "docs" / path).exists(), path
    for path in re.findall(r"`(tests/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path


def speed(stages: int, micro_batches: int) -> float:
    """Of a pipeline of equal stages, in whole models a second, without sends."""
    each = 1.0 / (stages * micro_batches)
    return 1.0 / max(stage_ends([[each / 3]] * stages, [[2 * each / 3]] * stages, micro_batches))


@pytest.mark.parametrize(("stages", "published", "ours"), [(2, 1.8, 1.94), (4, 3.4, 3.66), (8, 6.3, 6.56)])
def test_gpipe(stages: int, published: float, ours: float) -> None:
    """Table 2 of the paper, Transformer-48 with 32 micro-batches, over two stages with one: sends make it slower."""
    ratio = speed(stages, 32) / speed(2, 1)
    assert ratio == pytest.approx(ours, abs=0.005)
    assert published < ratio < 1.1 * published


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_one_micro_batch_is_the_naive_partition(stages: int) -> None:
    """One stage works at a time: more of them are no faster."""
    assert speed(stages, 1) == pytest.approx(1.0)
