"""Saved outputs of made-up nodes."""

from __future__ import annotations

from pathlib import Path

from planner.probe.text import Text

SAMPLES = Path(__file__).parent / "samples"
"""Folder with a sub-folder for each node."""
HEAD = "index, name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max, ecc.mode.current\n"


def sample(path: str) -> Text:
    """A saved output of a sample node."""
    return Text((SAMPLES / path).read_text(encoding="utf-8"), path)


def text(content: str) -> Text:
    """A text as if it came from a file ``seen.txt``."""
    return Text(content, "seen.txt")


def matrix(rows: list[str]) -> Text:
    """The output of topo -m for rows of connections."""
    head = "\t".join(f"GPU{index}" for index in range(len(rows)))
    lines = [f"GPU{index}\t{row}\t0-15\t0" for index, row in enumerate(rows)]
    return text("\n".join([f"\t{head}\tCPU Affinity\tNUMA Affinity", *lines]) + "\n")
