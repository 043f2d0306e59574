"""README.md names what there is, and links in the pages lead somewhere; tools/outputs.py compares their outputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.outputs import ROOT

README = ROOT / "README.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def page() -> str:
    """The README, which sends its readers on for what makers need."""
    development = ROOT / "docs" / "development.md"
    return README.read_text(encoding="utf-8") + development.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Files, and headings of pages, that a page points to exist."""
    for target, _, heading in (
        link.partition("#") for link in LINK.findall(path.read_text(encoding="utf-8"))
    ):
        if "://" in target:
            continue
        there = path.parent / target if target else path
        assert there.exists(), target
        if heading:
            assert heading in {anchor(line) for line in HEADING.findall(there.read_text(encoding="utf-8"))}


def anchor(heading: str) -> str:
    """What a heading is called in a link."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def test_the_cluster_file_of_the_readme_is_the_one_that_it_plans_for() -> None:
    """Without its comments."""
    (shown,) = re.findall(
        r"^```yaml\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    file = (ROOT / "cluster_specs" / "lab.yaml").read_text(encoding="utf-8")
    assert shown == re.sub(r"^#.*\n|\s+#.*$", "", file, flags=re.MULTILINE)


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
