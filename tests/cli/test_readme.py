"""README.md says what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.outputs import README, ROOT, Shown, commands, run, structure, workplace


def page() -> str:
    """The README."""
    return README.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Shown, str]]:
    """Every command of the README with what it prints today."""
    folder = tmp_path_factory.mktemp("readme")
    workplace(folder)
    return {shown.command: (shown, run(shown, folder)) for shown in commands(page())}


@pytest.mark.parametrize("command", [shown.command for shown in commands(page())])
def test_a_command_prints_what_the_readme_shows(outputs: dict[str, tuple[Shown, str]], command: str) -> None:
    """The same sections and columns; numbers may move with the cost model until `make docs`."""
    shown, printed = outputs[command]
    assert structure(printed) == structure(shown.output)


def test_links_lead_somewhere() -> None:
    """Files that the README points to exist."""
    for target in re.findall(r"\]\(([^)#]+)\)", page()):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_every_command_is_mentioned() -> None:
    """A reader learns of all commands."""
    from tests.cli.test_app import SURFACE

    assert all(f"hetplan {command}" in page() for command in SURFACE)


def test_make_targets_exist() -> None:
    """What the README tells to make can be made."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in set(re.findall(r"`?make ([a-z-]+)`?", page())) | {"demo", "test", "check"}:
        assert re.search(rf"^(?:[a-z-]+ )*{name}\b[^:\n]*:", makefile, re.MULTILINE), name


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """The same words."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "\nmake test\n" in script
    assert "make test" in page()
    assert Path(ROOT / ".ci" / "run").stat().st_mode & 0o111
