"""Runs an emitted folder on emulated nodes and reads what its steps took."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tools.rehearsal.emulation import Node, address, command, emulated, environment, throttle

WARM_UP = 2
"""Steps that are left out: the first ends before the devices are throttled."""
LIMIT_SECONDS = 400.0
PORT = 29500
"""Of the first job's rendezvous; those beside it have the next ones."""
STEP = re.compile(r"^step (\d+) loss (\S+) seconds (\S+)$", re.MULTILINE)


def run(folder: Path, nodes: Sequence[Node], steps: int) -> list[float]:
    """Start ``launch.sh`` on every node that the folder names; seconds of each step after the warm-up."""
    (found,) = together([folder], nodes, steps)
    if len(found) != steps:
        raise RuntimeError(
            f"{folder.name}: {len(found)} steps instead of {steps}\n{_tails([_log(folder, 0)])}"
        )
    return found


def together(folders: Sequence[Path], nodes: Sequence[Node], steps: int) -> list[list[float]]:
    """The same of several folders at once: the steps of each after the warm-up of all, until one has ended."""
    by_name = {node.name: (index, node) for index, node in enumerate(nodes)}
    logs, used = [_log(folder, 0) for folder in folders], set()
    with emulated(nodes):
        throttle(nodes, on=False)
        started = []
        for number, folder in enumerate(folders):
            hosts = [line.split()[1] for line in (folder / "nodes.txt").read_text().splitlines()[1:]]
            used.update(hosts)
            where = {"MASTER_ADDR": address(by_name[hosts[0]][0]), "MASTER_PORT": str(PORT + number)}
            settings = {**environment(), **where}
            for rank, host in enumerate(hosts):
                words = ["bash", str(folder / "launch.sh"), str(rank), "--", "--steps", str(steps + WARM_UP)]
                with _log(folder, rank).open("wb") as output:
                    started.append(
                        subprocess.Popen(
                            command(by_name[host][1], words, settings),
                            stdout=output,
                            stderr=subprocess.STDOUT,
                        )
                    )
        keep_busy([node for node in nodes if node.name not in used], folders[0].parent / "model.yaml")
        warm = _wait(started, logs, nodes)
        seconds = [_seconds(log) for log in logs]
    return [each[first:] for each, first in zip(seconds, warm, strict=True)]


def _log(folder: Path, rank: int) -> Path:
    return folder.parent / f"{folder.name}-{rank}.log"


def _seconds(log: Path) -> list[float]:
    """Of the steps so far."""
    return [float(seconds) for _, _, seconds in STEP.findall(log.read_text())]


def keep_busy(nodes: Sequence[Node], model: Path) -> None:
    """Nodes that are not used train on their own, else their share of the caches would make the others faster."""
    words = [sys.executable, "-m", "tools.rehearsal.busy", str(model)]
    for node in nodes:
        subprocess.Popen(command(node, words, environment()))


def spread(seconds: Sequence[float]) -> float:
    """Half of the distance between the fastest and the slowest step, of the median."""
    return (max(seconds) - min(seconds)) / 2 / median(seconds)


def _wait(
    started: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path], nodes: Sequence[Node]
) -> list[int]:
    """Throttle the devices once all have done a step, then wait until one ends; the steps that are left out."""
    deadline = time.monotonic() + LIMIT_SECONDS
    warm = [WARM_UP] * len(logs)
    throttled = False
    while time.monotonic() < deadline and all(process.poll() is None for process in started):
        if not throttled and all(STEP.search(log.read_text()) for log in logs):
            throttle(nodes)
            throttled = True
            # The step in which the devices become slower is neither fast nor slow.
            warm = [max(WARM_UP, len(_seconds(log)) + 1) for log in logs]
        time.sleep(0.05)
    if len(logs) == 1 and not any(process.poll() for process in started):
        for process in started:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
    return warm if len(logs) > 1 else [WARM_UP]


def _tails(logs: Sequence[Path]) -> str:
    return "\n".join(f"{log.name}:\n{log.read_text()[-1500:]}" for log in logs)
