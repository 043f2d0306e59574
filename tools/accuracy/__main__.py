"""``python -m tools.accuracy``: write docs/accuracy.md and docs/accuracy.png."""

from __future__ import annotations

from planner.report.validation import write_plot
from tools.accuracy.material import ROOT, material
from tools.accuracy.page import page

DOCS = ROOT / "docs"


def main() -> None:
    """Write both."""
    found = material()
    (DOCS / "accuracy.md").write_text(page(found), encoding="utf-8")
    write_plot(found.left_out, DOCS / "accuracy.png")


if __name__ == "__main__":
    main()
