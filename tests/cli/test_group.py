"""What a reader of the help sees first."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
import typer

from planner.cli import app as app_module
from planner.cli.app import Registered, app, needed
from tests.cli.running import Command
from tools import reference

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


@pytest.mark.parametrize(("name", "entry"), [*app_module.COMMANDS.items(), *app_module.CALIBRATE.items()])
def test_the_list_says_what_the_command_says(name: str, entry: Registered) -> None:
    """The line in the table is the first of the docstring: the list is printed without the command's module."""
    command = getattr(import_module(f"planner.cli.{entry.module}"), entry.function)
    assert entry.summary == (command.__doc__ or "").splitlines()[0]


def imported(code: str) -> list[str]:
    """Modules that a program of its own has imported at its end."""
    tell = "import sys; print(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()


def test_listing_commands_imports_none() -> None:
    """Nor does the answer to a word that is none."""
    modules = {
        f"planner.cli.{each.module}" for each in {**app_module.COMMANDS, **app_module.CALIBRATE}.values()
    }
    answers = [["--help"], ["calibrate", "--help"], ["--version"], ["serch"]]
    found = imported(f"from planner.cli.app import run; [run(words) for words in {answers}]")
    assert not modules & set(found)


def test_commands_do_without_what_is_optional() -> None:
    """Every command's module can be imported, and its help be read, where torch and matplotlib are missing."""
    modules = {each.module for each in {**app_module.COMMANDS, **app_module.CALIBRATE}.values()}
    found = imported("\n".join(f"import planner.cli.{module}" for module in modules))
    assert not {"torch", "matplotlib", "deepspeed"} & set(found)
