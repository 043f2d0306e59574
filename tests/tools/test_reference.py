"""The reference page."""

from __future__ import annotations

from planner.cli.schema import DOCUMENTS
from planner.field_metadata import keys
from tests.cli.running import ROOT
from tools.reference import page


def test_the_page_is_up_to_date() -> None:
    """Run `make docs` after changing a command, an option, an exit code or a key."""
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page()


def test_every_key_is_on_the_page() -> None:
    """The tables leave no document out."""
    text = page()
    assert all(f"`{key}`" in text for kind in DOCUMENTS.values() for key in keys(kind))
