"""``python -m tests.measured.accuracy``: write docs/accuracy.md and docs/accuracy.png."""

from __future__ import annotations

from pathlib import Path

from planner.report.validation_plot import write_plot
from tests.measured.accuracy.material import material
from tests.measured.accuracy.page import page

DOCS = Path(__file__).parents[3] / "docs"


def main() -> None:
    """Write both."""
    found = material()
    (DOCS / "accuracy.md").write_text(page(found), encoding="utf-8")
    write_plot(found.held_out, DOCS / "accuracy.png")


if __name__ == "__main__":
    main()
