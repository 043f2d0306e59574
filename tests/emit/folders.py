"""What is written into the launch folders of the cases of ``tests/cases.py``: ``folders.csv``.

Of a first folder of each runtime the table has all lines, of others those that this one has not.
Modules that folders have copies of are no part of it. ``python -m tests.emit.folders`` writes it anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from planner.emit.interface import LAUNCHERS, folder_files, job_of
from planner.errors import HetplanError
from planner.job.files import EmittedFile
from planner.runtimes.interface import runtime_of
from tests.cases import CASES
from tests.tables import Row, written

FOLDERS = Path(__file__).with_name("folders.csv")

WHOLE = (
    *(
        "one device",
        "hsdp",
        "tp with sequences split",
        "tp over nodes",
        "grid over nodes",
        "interleaved",
        "zb-v",
        "ring",
        "stacked layers",
    ),
    *(
        "experts divided with tp",
        "lora",
        "packed",
        "pairs",
        "a share on the host",
        "powersgd",
        "data from storage",
    ),
)
"""Cases whose whole folder is here; of others there are the runtime's own files."""

STARTED = (
    "pipeline",
    "zero 3 torch",
    "zero 2 deepspeed",
    "sockets of dp",
    "nodes of two types",
    "bf16 between sites",
)
"""Cases that are started by each launcher."""

FIRST = {
    "torch": ("zero 3 torch", "torchrun"),
    "megatron": ("pipeline", "torchrun"),
    "deepspeed": ("zero 2 deepspeed", "torchrun"),
}
"""What others are compared with."""

FOLDER_NAMES = (
    *((name, "") for name in CASES if name not in WHOLE),
    *((name, "torchrun") for name in WHOLE),
    *((name, launcher) for name in STARTED for launcher in LAUNCHERS),
)
"""Cases, and what starts them; nothing where only the runtime's own files are looked at."""


def folder_rows(name: str, launcher: str) -> Iterator[Row]:
    """The lines of a folder."""
    place = f"{name} by {launcher}" if launcher else name
    files = _files(name, launcher)
    if isinstance(files, str):
        yield place, "", "refused", files
        return
    for path, file in files.items():
        known = _known(name, launcher, path)
        yield place, path, "lines", f"{len(file.text.splitlines())}{' x' if file.executable else ''}"
        for number, line in enumerate(file.text.splitlines(), 1):
            if line not in known:
                yield place, path, str(number), _REAL.sub(_rounded, line)


_REAL = re.compile(r"\b\d+\.\d+(e[-+]?\d+)?\b")


def _rounded(number: re.Match[str]) -> str:
    """Seconds that are predicted differ in their last bits from machine to machine."""
    return f"{float(number[0]):.6g}" if len(number[0]) > 9 else number[0]


@cache
def _files(name: str, launcher: str) -> dict[str, EmittedFile] | str:
    """By path, or why there is no such folder."""
    case = CASES[name]
    try:
        job = job_of(case.whole, case.on, case.model)
        found = folder_files(job, launcher) if launcher else runtime_of(job).files(job)
    except HetplanError as error:
        return " ".join(str(error).split())
    own = {file.path: file for file in found}
    return {path: file for path, file in own.items() if not path.endswith(".py") or path == "ray_start.py"}


def _known(name: str, launcher: str, path: str) -> frozenset[str]:
    """Lines that are in the table with the first folder of the runtime."""
    first = FIRST.get(CASES[name].whole.target)
    if first is None or first == (name, launcher):
        return frozenset()
    files = _files(*first)
    assert not isinstance(files, str), files
    return frozenset(files[path].text.splitlines() if path in files else ())


def table() -> Iterator[Row]:
    """Of all folders."""
    for name, launcher in FOLDER_NAMES:
        yield from folder_rows(name, launcher)


def main() -> None:
    """Write the table of today."""
    FOLDERS.write_text(written(table()), encoding="utf-8")


if __name__ == "__main__":
    main()
