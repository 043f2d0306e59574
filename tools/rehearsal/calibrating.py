"""Calibrates emulated devices and networks with the program's own commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from planner.calibration.file import load_calibration
from planner.calibration.merge import merged
from planner.calibration.values import ASSUMED, Calibration
from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from planner.logs.fits import Trial, fit_trial
from planner.model.file import load_model
from planner.plan.file import load_plan
from tools.rehearsal.clusters import MODEL, Rehearsed, pipeline, replicas, yaml_text
from tools.rehearsal.emulation import Node, address, command, emulated, environment, throttle
from tools.rehearsal.running import keep_busy, run

HETPLAN = (sys.executable, "-c", "from planner.cli.app import main; main()")
PORT = 29600
LIMIT_SECONDS = 1800.0
LARGEST_MIB = 16.0
"""Largest message that networks are measured with."""
LAYER_STEPS, HOST_STEPS = 5, 12
"""Of the two trials."""


def measure_devices(cluster: Rehearsed, model: Path, folder: Path) -> tuple[dict[str, Any], Calibration]:
    """Every kind of device: its lines for a cluster file, and its curves."""
    gpus: dict[str, Any] = {}
    found = ASSUMED
    for node, device in cluster.devices:
        if device not in gpus:
            output = folder / f"{device}.yaml"
            told = json.loads(_measured(node, device, cluster.nodes, model, output))
            gpus |= yaml.safe_load("\n".join(told["declaration"]))["gpus"]
            found = merged(found, load_calibration(output))
    return gpus, found


def _measured(node: Node, device: str, nodes: Sequence[Node], model: Path, output: Path) -> str:
    """What the program says of a device while all others train: they have a processor's caches in common."""
    words = [*HETPLAN, "calibrate", "device", "--device", "cpu", "--name", device, "--model", str(model)]
    words += ["--largest-micro-batch", "32", "-o", str(output), "--force", "--json"]
    with emulated(nodes):
        throttle(nodes)
        keep_busy([other for other in nodes if other != node], model)
        measuring = subprocess.run(
            command(node, words, environment()),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    if measuring.returncode:
        raise RuntimeError(f"calibrate device ended with {measuring.returncode} on {device}")
    return measuring.stdout


def measure_networks(cluster: Rehearsed, cluster_file: Path, output: Path) -> Calibration:
    """Every network of the cluster, under the names by which plans look them up."""
    nodes = cluster.nodes
    logs = [output.with_suffix(f".{rank}.log") for rank in range(len(nodes))]
    words = [*HETPLAN, "calibrate", "network", "--device", "cpu", "--cluster", str(cluster_file)]
    words += ["--largest-mib", str(LARGEST_MIB), "-o", str(output), "--force"]
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


def measure_layers(
    cluster: Rehearsed, target: str, spec: ClusterSpec, calibration: Calibration, folder: Path
) -> Trial:
    """What layers take in the runtime over what they took alone: one device of the first pool trains the model."""
    return _tried(
        cluster, target, MODEL, replicas(0, ("a", 1, 6, 48)), spec, calibration, folder, LAYER_STEPS
    )


def measure_host(
    cluster: Rehearsed, target: str, spec: ClusterSpec, calibration: Calibration, folder: Path
) -> Trial:
    """What the runtime's host does for a micro-batch: a pipeline of two layers and many small micro-batches is run."""
    stages = pipeline(0, 1, 1, ("a", 1), ("a", 1))
    return _tried(cluster, target, {**MODEL, "layers": 2}, stages, spec, calibration, folder, HOST_STEPS)


def _tried(
    cluster: Rehearsed,
    target: str,
    shape: Mapping[str, Any],
    stages: Mapping[str, Any],
    spec: ClusterSpec,
    calibration: Calibration,
    folder: Path,
    steps: int,
) -> Trial:
    """A run of a plan by hand, and what makes the prediction agree with it."""
    model_file, plan_file = folder / "trial-model.yaml", folder / "trial.yaml"
    model_file.write_text(yaml_text(shape), encoding="utf-8")
    plan_file.write_text(yaml_text({"target": target, **stages}), encoding="utf-8")
    model = load_model(model_file)
    plan = load_plan(plan_file, spec, model)
    launched = folder / f"{cluster.name}-{target}-trial"
    write_folder(emit(plan, spec, model), launched, force=True)
    seconds = median(run(launched, cluster.nodes, steps))
    return fit_trial(plan, spec, model, calibration, seconds)
