"""The commands in README.md with their outputs: found, run, and written anew by ``make docs``.

A block of kind ``console`` holds commands after ``$`` with what they print. ``$ cat FILE`` shows a file that
the reader writes; it is written before the commands that follow it run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """One command of the page and the output that stands under it."""

    command: str
    output: str


def commands(page: str) -> Iterator[Shown]:
    """Every command of a page in order."""
    for block in _BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Shown(command, output)


def workplace(folder: Path) -> None:
    """What a fresh clone offers the commands."""
    for name in ("cluster_specs", "model_specs"):
        (folder / name).symlink_to(ROOT / name)


def run(shown: Shown, folder: Path) -> str:
    """What the command prints today."""
    words = shlex.split(shown.command)
    if words[0] == "cat":
        (folder / words[1]).write_text(shown.output)
        return shown.output
    if words[0] != "hetplan":
        return shown.output
    code = "from planner.cli.app import main; main()"
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    command = [sys.executable, "-c", code, *words[1:]]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=True, encoding="utf-8"
    )
    return done.stdout


def refreshed(page: str) -> str:
    """The page with today's outputs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workplace(folder)
        outputs = iter([(shown.command, run(shown, folder)) for shown in commands(page)])

        def block(found: re.Match[str]) -> str:
            count = len(re.findall(r"^\$ ", found.group(1), flags=re.MULTILINE))
            parts = [next(outputs) for _ in range(count)]
            return "```console\n" + "".join(f"$ {command}\n{output}" for command, output in parts) + "```"

        return _BLOCK.sub(block, page)


def structure(output: str) -> list[str]:
    """Headings of an output without their numbers: lines at the left edge, and the heads of tables."""
    lines = output.splitlines()
    heads = [line for line, rule in pairwise(lines) if rule.strip().startswith("──")]
    titles = [line for line in lines if line and not line.startswith(" ")]
    return [_plain(line) for line in (*titles, *heads)]


def _plain(line: str) -> str:
    """A line without numbers, units of time, and details behind a colon."""
    line = re.sub(r"\((?:h|s|ms|µs)\)", "(t)", line.partition(": ")[0])
    return " ".join(re.sub(r"\d[\d.,]*", "#", line).split())


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text(encoding="utf-8")), encoding="utf-8")
