"""``python -m tools.accuracy``: write docs/accuracy.md and docs/accuracy.png."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from planner.report.validation import write_plot
from tools.accuracy.material import ROOT, material
from tools.accuracy.page import page

DOCS = ROOT / "docs"


def main() -> int:
    """Write both; with --check say whether the page is what would be written."""
    parser = ArgumentParser(prog="python -m tools.accuracy", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare docs/accuracy.md, write nothing")
    wanted = page(material())
    if parser.parse_args().check:
        if (DOCS / "accuracy.md").read_text(encoding="utf-8") != wanted:
            sys.stderr.write("docs/accuracy.md is outdated: make accuracy\n")
            return 1
        return 0
    (DOCS / "accuracy.md").write_text(wanted, encoding="utf-8")
    write_plot(material().left_out, DOCS / "accuracy.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
