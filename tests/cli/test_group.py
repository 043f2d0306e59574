"""What a reader of the help sees first."""

from __future__ import annotations

import pytest
import typer

from planner.cli import reference
from planner.cli.app import app
from planner.cli.group import needed
from tests.cli.running import Command

COMMANDS = dict(reference.commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_usage_is_that_of_the_page(hetplan: Command, name: str) -> None:
    """Arguments as they are named, then what has to be given; at most 80 columns."""
    shown = hetplan(*name.split(), "--help").out
    words = ["Usage: hetplan", name, *needed(COMMANDS[name]), "[OPTIONS]"]
    assert shown.startswith(f"{' '.join(words)}\n")
    assert max(map(len, shown.splitlines())) <= 80


def test_arguments_have_no_decoration(hetplan: Command) -> None:
    """Neither braces nor types of Python."""
    assert "Arguments:\n  CLUSTER  Cluster file (YAML).\n  [MODEL]  Model" in hetplan("check", "--help").out
    assert "Arguments:\n  PLAN...  Plan files" in hetplan("compare", "--help").out


@pytest.mark.parametrize("group", [(), ("calibrate",)])
def test_the_list_of_commands_cuts_no_sentence(hetplan: Command, group: tuple[str, ...]) -> None:
    """Each command's first sentence fits its line."""
    listed = hetplan(*group, "--help").out.rpartition("Commands:\n")[2].splitlines()
    assert listed
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)
