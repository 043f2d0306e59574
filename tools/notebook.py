"""The notebook in docs: its cells run anew by ``make docs``, their outputs compared by ``make docs-check``.

``python -m tools.notebook`` runs it in this process, as a reader would in a fresh clone, and writes what cells print
and show. It needs pandas; without it nothing is done.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from planner.search.explain import reasons
from tools.outputs import workplace

PAGE = Path(__file__).parents[1] / "docs" / "example.ipynb"


def executed(cells: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The cells with the outputs of today, all run in one namespace and in a folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found, number = [], 0
    with contextlib.chdir(folder):
        for cell in cells:
            if cell["cell_type"] != "code":
                found.append(cell)
                continue
            number += 1
            found.append(cell | {"execution_count": number, "outputs": _run(cell, names, number)})
    return found


def _run(cell: dict[str, Any], names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    said = io.StringIO()
    shown = None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if said.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(said.getvalue())})
    if shown is not None:
        html = getattr(shown, "_repr_html_", lambda: None)()
        data = {} if html is None else {"text/html": _lines(html)}
        outputs.append(
            {
                "data": data | {"text/plain": _lines(str(shown))},
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the notebook, or with ``--check`` say whether its outputs are those of today."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.notebook", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, fail where an output is outdated"
    )
    check = parser.parse_args(arguments).check
    if importlib.util.find_spec("pandas") is None:
        sys.stderr.write(f"{PAGE.name} is left as it is: there is no pandas\n")
        return 0
    page = json.loads(PAGE.read_text(encoding="utf-8"))
    os.environ["COLUMNS"] = "80"
    reasons.LEAST_SECONDS = inf  # explanations are whole, however slow the machine is
    with workplace() as folder:
        cells = executed(page["cells"], folder)
    if check:
        outdated = [
            new["execution_count"] for old, new in zip(page["cells"], cells, strict=True) if old != new
        ]
        sys.stdout.write(f"{PAGE.name}: outdated cells {outdated}\n" if outdated else "")
        return int(bool(outdated))
    text = json.dumps(page | {"cells": cells}, indent=1, ensure_ascii=False, sort_keys=True)
    PAGE.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
