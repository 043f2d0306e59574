"""How long `hetplan search` takes, whole process: `python -m tools.benchmarks.search [case ...]`.

Clusters are the shipped ones with other numbers of nodes, so that size is all that changes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]

CONSOLE = Console(width=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One search and how long it may take."""

    name: str
    cluster: str
    model: str
    goal_seconds: float
    nodes: tuple[int, ...] | None = None
    """Nodes of each pool; None leaves the file's."""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one search answered and took."""

    gpus: int
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    answer: dict[str, Any]
    """What ``--json`` prints."""


SAILOR = ("--global-batch", "1024")
"""As in the comparison of planners of Sailor (SOSP 2025)."""

CASES = (
    Case(
        name="16, 2 kinds",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(1, 1),
        goal_seconds=1.5,
    ),
    Case(name="128, 2 kinds", cluster="a100_v100_128", model="opt_350m", arguments=SAILOR, goal_seconds=2),
    Case(
        name="512, 2 kinds",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(16, 48),
        goal_seconds=3,
    ),
    Case(
        name="1024, 2 kinds",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(32, 96),
        goal_seconds=3,
    ),
    Case(
        name="96, 3 kinds", cluster="a100_v100_gh200_96", model="opt_350m", arguments=SAILOR, goal_seconds=4
    ),
    Case(
        name="192, 3 kinds",
        cluster="a100_v100_gh200_96",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(8, 8, 64),
        goal_seconds=4,
    ),
    Case(name="16384, 6 kinds", cluster="three_sites", model="llama_3_405b", goal_seconds=20),
    Case(
        name="131072, 6 kinds",
        cluster="three_sites",
        model="llama_3_405b",
        nodes=(4096, 1024, 4096, 3072, 2048, 2048),
        goal_seconds=30,
    ),
    Case(name="64, Holmes 3.6B", cluster="holmes_hybrid", model="gpt_3.6b", goal_seconds=4),
    Case(name="64, Holmes 7.5B", cluster="holmes_hybrid", model="gpt_7.5b", goal_seconds=4),
    Case(name="64, Holmes 39.1B", cluster="holmes_hybrid", model="gpt_39.1b", goal_seconds=4),
)
"""The first eight are the goals; the last three, the hardest of the shipped pairs, have none of their own."""


def scaled(cluster: str, nodes: tuple[int, ...] | None) -> dict[str, Any]:
    """A shipped cluster with so many nodes in each pool."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "cluster_specs" / f"{cluster}.yaml").read_text())
    for pool, count in zip(document["pools"], nodes or (), strict=nodes is not None):
        pool["nodes"] = count
    return document


def measure(case: Case) -> Outcome:
    """Run one search in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{case.cluster}.yaml"
        document = scaled(case.cluster, case.nodes)
        path.write_text(yaml.safe_dump(document))
        command = [sys.executable, "-c", "from planner.cli.app import main; main()", "search", str(path)]
        command += [str(ROOT / "model_specs" / f"{case.model}.yaml"), "--json", *case.arguments]
        start = monotonic()
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            text = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        wall = monotonic() - start
    if child.returncode:
        raise SystemExit(f"{case.name}: exit {child.returncode}: {' '.join(command)}")
    return Outcome(
        gpus=sum(pool["nodes"] * pool["gpus_per_node"] for pool in document["pools"]),
        wall_seconds=wall,
        cpu_seconds=_cpu(usage),
        peak_bytes=usage.ru_maxrss * 1024,
        answer=json.loads(text),
    )


def _cpu(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def main(names: list[str]) -> None:
    """Measure the cases whose names start with one of ``names``, or all, and print one table."""
    table = Table(title="hetplan search, whole process")
    for heading in (
        "case",
        "GPUs",
        "choices",
        "solved",
        "search s",
        "wall s",
        "CPU s",
        "goal s",
        "gap",
        "step s",
        "MB",
    ):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in CASES:
        if names and not any(case.name.startswith(name) for name in names):
            continue
        CONSOLE.print(f"{case.name} ...", style="dim")
        outcome = measure(case)
        found = outcome.answer
        table.add_row(
            case.name,
            f"{outcome.gpus:,}",
            str(found["candidates"]),
            str(found["solved"]),
            f"{found['search_seconds']:.1f}",
            f"{outcome.wall_seconds:.1f}",
            f"{outcome.cpu_seconds:.1f}",
            f"{case.goal_seconds:g}",
            f"{found['gap']:.1%}",
            f"{found['step_seconds']:.4g}" if "step_seconds" in found else "",
            f"{outcome.peak_bytes / 1e6:.0f}",
        )
    CONSOLE.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
