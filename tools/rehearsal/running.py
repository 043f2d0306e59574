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
STEP = re.compile(r"^step (\d+) loss (\S+) seconds (\S+)$", re.MULTILINE)


def run(folder: Path, nodes: Sequence[Node], steps: int) -> list[float]:
    """Start ``launch.sh`` on every node that the folder names; seconds of each step after the warm-up."""
    hosts = [line.split()[1] for line in (folder / "nodes.txt").read_text().splitlines()[1:]]
    by_name = {node.name: (index, node) for index, node in enumerate(nodes)}
    logs = [folder.parent / f"{folder.name}-{rank}.log" for rank in range(len(hosts))]
    settings = {**environment(), "MASTER_ADDR": address(by_name[hosts[0]][0])}
    with emulated(nodes):
        throttle(nodes, on=False)
        keep_busy([node for node in nodes if node.name not in hosts], folder.parent / "model.yaml")
        started = []
        for rank, (host, log) in enumerate(zip(hosts, logs, strict=True)):
            words = ["bash", str(folder / "launch.sh"), str(rank), "--", "--steps", str(steps + WARM_UP)]
            with log.open("wb") as output:
                started.append(
                    subprocess.Popen(
                        command(by_name[host][1], words, settings), stdout=output, stderr=subprocess.STDOUT
                    )
                )
        _wait(started, logs[0], nodes)
    found = [float(seconds) for _, _, seconds in STEP.findall(logs[0].read_text())]
    if len(found) != steps + WARM_UP:
        raise RuntimeError(f"{folder.name}: {len(found)} steps instead of {steps + WARM_UP}\n{_tails(logs)}")
    return found[WARM_UP:]


def keep_busy(nodes: Sequence[Node], model: Path) -> None:
    """Nodes that are not used train on their own, else their share of the caches would make the others faster."""
    words = [sys.executable, "-m", "tools.rehearsal.busy", str(model)]
    for node in nodes:
        subprocess.Popen(command(node, words, environment()))


def spread(seconds: Sequence[float]) -> float:
    """Half of the distance between the fastest and the slowest step, of the median."""
    return (max(seconds) - min(seconds)) / 2 / median(seconds)


def _wait(started: Sequence[subprocess.Popen[bytes]], log: Path, nodes: Sequence[Node]) -> None:
    """Throttle the devices once the first step is done, then wait for the end."""
    deadline = time.monotonic() + LIMIT_SECONDS
    throttled = False
    while time.monotonic() < deadline and any(process.poll() is None for process in started):
        if any(process.poll() for process in started):
            return
        if not throttled and STEP.search(log.read_text()):
            throttle(nodes)
            throttled = True
        time.sleep(0.05)


def _tails(logs: Sequence[Path]) -> str:
    return "\n".join(f"{log.name}:\n{log.read_text()[-1500:]}" for log in logs)
