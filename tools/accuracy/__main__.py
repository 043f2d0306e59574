"""``python -m tools.accuracy``: write docs/accuracy.md and docs/accuracy.png, and its figures in docs/coverage.md."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from planner.report.validation import write_plot
from tools.accuracy.coverage import figures, written
from tools.accuracy.material import ROOT, material
from tools.accuracy.page import page

DOCS = ROOT / "docs"


def main() -> int:
    """Write all; with --check say whether the pages are what would be written."""
    parser = ArgumentParser(prog="python -m tools.accuracy", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare both pages, write nothing")
    accuracy = page(material())
    covered = written((DOCS / "coverage.md").read_text(encoding="utf-8"), figures(accuracy))
    pages = {"accuracy.md": accuracy, "coverage.md": covered}
    if parser.parse_args().check:
        outdated = [name for name, text in pages.items() if (DOCS / name).read_text(encoding="utf-8") != text]
        for name in outdated:
            sys.stderr.write(f"docs/{name} is outdated: make accuracy\n")
        return 1 if outdated else 0
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    write_plot(material().left_out, DOCS / "accuracy.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
