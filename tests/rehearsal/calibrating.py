"""Calibrates emulated devices and networks with the program's own commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from planner.calibration import ASSUMED, Calibration
from planner.calibration_file import load_calibration
from planner.calibration_merge import merged
from tests.rehearsal.clusters import Pool, Rehearsed
from tests.rehearsal.emulation import Node, address, command, emulated, environment, throttle

HETPLAN = (sys.executable, "-c", "from planner.cli.app import main; main()")
PORT = 29600


def measure_devices(pools: Iterable[Pool], model: Path, folder: Path) -> tuple[dict[str, Any], Calibration]:
    """Every kind of device, one at a time: its lines for a cluster file, and its curves."""
    gpus: dict[str, Any] = {}
    found = ASSUMED
    for device, share in sorted({(pool.device, pool.share) for pool in pools}):
        declared, calibration = _measure_device(device, share, model, folder)
        gpus |= declared
        found = merged(found, calibration)
    return gpus, found


def _measure_device(
    device: str, share: float, model: Path, folder: Path
) -> tuple[dict[str, Any], Calibration]:
    import yaml

    node, output = Node(device, 1000, share), folder / f"{device}.yaml"
    words = [*HETPLAN, "calibrate", "device", "--device", "cpu", "--name", device, "--model", str(model)]
    words += ["--largest-micro-batch", "8", "-o", str(output), "--force", "--json"]
    with emulated((node,)):
        throttle((node,))
        done = subprocess.run(command(node, words, environment()), check=True, capture_output=True, text=True)
    lines = json.loads(done.stdout)["declaration"]
    return yaml.safe_load("\n".join(lines))["gpus"], load_calibration(output)


def measure_networks(cluster: Rehearsed, folder: Path, largest_mib: float) -> Calibration:
    """Every network of the cluster, among its two slowest nodes and among all that are on it."""
    found = ASSUMED
    for name, rate in cluster.fabrics.items():
        nodes = [node for node in cluster.nodes if node.mbit >= rate]
        output = folder / f"{cluster.name}-{name}.yaml"
        _measure_network(nodes, cluster.nodes, name, output, largest_mib)
        found = merged(found, load_calibration(output))
    return found


def _measure_network(
    members: Sequence[Node], nodes: Sequence[Node], fabric: str, output: Path, largest_mib: float
) -> None:
    with emulated(nodes):
        throttle(nodes)
        master = address(nodes.index(members[0]))
        started = []
        for rank, node in enumerate(members):
            words = [*HETPLAN, "calibrate", "network", "--device", "cpu", "--fabric", fabric]
            words += ["--largest-mib", str(largest_mib), "-o", str(output), "--force"]
            ranks = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": len(members), "MASTER_PORT": PORT}
            settings = {**environment(), "MASTER_ADDR": master, **{key: str(it) for key, it in ranks.items()}}
            with output.with_suffix(f".{rank}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(command(node, words, settings), stdout=log, stderr=subprocess.STDOUT)
                )
        ends = [process.wait(timeout=600) for process in started]
    if any(ends):
        raise RuntimeError(f"calibrate network ended with {ends}, see {output.with_suffix('.0.log')}")
