"""Calibrates emulated devices and networks with the program's own commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from planner.calibration import ASSUMED, Calibration
from planner.calibration_file import load_calibration
from planner.calibration_merge import merged
from tests.rehearsal.clusters import Rehearsed
from tests.rehearsal.emulation import Node, address, command, emulated, environment, throttle

HETPLAN = (sys.executable, "-c", "from planner.cli.app import main; main()")
PORT = 29600
LIMIT_SECONDS = 900.0


def measure_devices(cluster: Rehearsed, model: Path, folder: Path) -> tuple[dict[str, Any], Calibration]:
    """Every kind of device: its lines for a cluster file, and its curves.

    All nodes measure at the same time, as they will train: they have caches and memory of one processor in common.
    """
    nodes = cluster.nodes
    with emulated(nodes):
        throttle(nodes)
        started = [_start_measuring(node, device, model, folder) for node, device in cluster.devices]
        told = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"calibrate device ended with {[process.returncode for process in started]}")
    gpus: dict[str, Any] = {}
    found = ASSUMED
    for (node, device), text in zip(cluster.devices, told, strict=True):
        if device not in gpus:
            gpus |= yaml.safe_load("\n".join(json.loads(text)["declaration"]))["gpus"]
            found = merged(found, load_calibration(folder / f"{node.name}.yaml"))
    return gpus, found


def _start_measuring(node: Node, device: str, model: Path, folder: Path) -> subprocess.Popen[str]:
    words = [*HETPLAN, "calibrate", "device", "--device", "cpu", "--name", device, "--model", str(model)]
    words += ["--largest-micro-batch", "32", "-o", str(folder / f"{node.name}.yaml"), "--force", "--json"]
    return subprocess.Popen(
        command(node, words, environment()), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def measure_networks(cluster: Rehearsed, cluster_file: Path, output: Path, largest_mib: float) -> Calibration:
    """Every network of the cluster, under the names by which plans look them up."""
    nodes = cluster.nodes
    logs = [output.with_suffix(f".{rank}.log") for rank in range(len(nodes))]
    words = [*HETPLAN, "calibrate", "network", "--device", "cpu", "--cluster", str(cluster_file)]
    words += ["--largest-mib", str(largest_mib), "-o", str(output), "--force"]
    common = {**environment(), "MASTER_ADDR": address(0), "MASTER_PORT": str(PORT), "LOCAL_RANK": "0"}
    with emulated(nodes):
        throttle(nodes)
        started = []
        for rank, (node, log) in enumerate(zip(nodes, logs, strict=True)):
            settings = {**common, "RANK": str(rank), "WORLD_SIZE": str(len(nodes))}
            with log.open("wb") as file:
                started.append(
                    subprocess.Popen(command(node, words, settings), stdout=file, stderr=subprocess.STDOUT)
                )
        ends = [process.wait(timeout=LIMIT_SECONDS) for process in started]
    if any(ends):
        raise RuntimeError(f"calibrate network ended with {ends}:\n{logs[0].read_text()[-2000:]}")
    return load_calibration(output)
