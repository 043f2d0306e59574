"""The outputs in README.md and docs: run, written anew by ``make docs``, compared whole by ``make docs-check``.

A ``console`` block holds commands after ``$`` with what they print; ``$ cat FILE`` shows a file that the reader
writes. A ``python`` block before a ``text`` block is a program and what it prints. All blocks of all pages run in
one folder, in order, as a reader would run them after the one before.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = tuple(ROOT / name for name in ("README.md", "docs/guide.md", "docs/api.md", "docs/share.md"))
PATIENT = "from planner.search.explain import reasons; reasons.LEAST_SECONDS = float('inf')\n"
"""Before every program: explanations are whole, however slow the machine is that writes the pages."""
SEARCHED = re.compile(r"(?<=solved, )[\d.]+ (?:ms|s|min)(?P<rest>\).*?)(?=\n\n|\Z)", re.DOTALL)
"""What differs from run to run: how long a search took, and where the lines of its paragraph break after it."""
_BLOCK = re.compile(
    r"(?P<head>^```console\n)(?P<console>.*?)(?=^```$)"
    r"|(?P<before>^```python\n(?P<program>(?:(?!^```$).)*)^```\n(?:(?!^```).)*^```text\n)(?P<printed>.*?)(?=^```$)",
    re.MULTILINE | re.DOTALL,
)


def refreshed(page: str, folder: Path) -> str:
    """The page with the outputs of today; raises CalledProcessError where a command fails.

    An output that differs in nothing but measured times stays as it is.
    """

    def block(found: re.Match[str]) -> str:
        if found["head"]:
            parts = re.split(r"^\$ ", found["console"], flags=re.MULTILINE)[1:]
            return found["head"] + "".join(_command(part, folder) for part in parts)
        python = [sys.executable, "-c", PATIENT + found["program"]]
        return str(found["before"]) + _newer(found["printed"], _printed(python, folder))

    return _BLOCK.sub(block, page)


def compared(text: str) -> str:
    """The text without what differs from run to run."""
    return SEARCHED.sub(lambda found: f"TIME{' '.join(found['rest'].split())}", text)


def changes(page: Path, folder: Path) -> list[str]:
    """Lines of a page that are not what the program prints, as a diff."""
    shown = page.read_text(encoding="utf-8")
    texts = (shown.splitlines(), refreshed(shown, folder).splitlines())
    return list(
        difflib.unified_diff(*texts, f"{page.name}", f"{page.name} as printed today", lineterm="", n=1)
    )


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder with what a fresh clone offers the commands."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for given in ("cluster_specs", "model_specs", "job_specs"):
            (folder / given).symlink_to(ROOT / given)
        yield folder


def _command(part: str, folder: Path) -> str:
    """A command with what it prints; a file that ``cat`` shows is written."""
    command, _, output = part.partition("\n")
    program, *words = shlex.split(command)
    if program == "cat":
        (folder / words[0]).write_text(output, encoding="utf-8")
        return f"$ {command}\n{output}"
    if program != "hetplan":
        raise ValueError(f"{command}: only hetplan and cat can be run")
    hetplan = [sys.executable, "-c", f"{PATIENT}from planner.cli.app import main; main()", *words]
    return f"$ {command}\n{_newer(output, _printed(hetplan, folder))}"


def _printed(command: Sequence[str], folder: Path) -> str:
    """Standard output on a terminal of 80 columns without colour."""
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True, encoding="utf-8"
    )
    return done.stdout


def _newer(shown: str, printed: str) -> str:
    return shown if compared(shown) == compared(printed) else printed


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or with ``--check`` say what differs; 1 when something does."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.outputs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page is outdated")
    check = parser.parse_args(arguments).check
    outdated = False
    with workplace() as folder:
        for page in PAGES:
            if check:
                lines = changes(page, folder)
                outdated = outdated or bool(lines)
                sys.stdout.write("".join(f"{line}\n" for line in lines))
            else:
                page.write_text(refreshed(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
    return int(outdated)


if __name__ == "__main__":
    sys.exit(main())
