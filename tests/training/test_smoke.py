"""The smoke run, whole on processors with gloo: nothing wrong, faults planted, and interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.api import predict
from planner.calibration.file import load_calibration
from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from planner.model.spec import ExpertsSpec, ModelSpec
from planner.plan.values import Plan
from tests.training.launching import free_port
from tests.worlds import cluster, group, model, plan, pool

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

PLANTED = Path(__file__).with_name("planted.py")
SLOW = GpuSpec(name="T4", memory_gib=16, memory_bandwidth_gBps=0.001, tflops={"bf16": 1e-4})
"""A device that any processor outruns."""


def world(
    gpu: GpuSpec | None, link: float, experts: ExpertsSpec | None = None
) -> tuple[Plan, ClusterSpec, ModelSpec]:
    """Three replicas on one node, whose planned memory is more than the planted fault leaves; they divide experts.

    Any link has less latency than the one of a node with this device, and more than the one of a real T4.
    """
    only = pool("a", ("T4",) * 3, 1).model_copy(
        update={"intra_node": IntraNodeSpec(bandwidth_gBps=link, latency_us=50_000 if gpu else 1)}
    )
    chosen = plan("torch", 1, [2], [(group("a", "T4", count=3, share=2),)], ep=3 if experts else 1)
    where = cluster(only, gpus=None if gpu is None else {"T4": gpu})
    gated = {"gated_mlp": True, "experts": experts} if experts else {}
    return chosen, where, model(6, layers=2, vocab=400_000, **gated)


def smoke(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """``launch.sh --smoke``, with torchrun starting the planted program where faults are planted."""
    starter = folder.parent / "torchrun"
    program = str(PLANTED) if "PLANTED" in environment else "hetplan_smoke.py"
    starter.write_text(
        f'#!/bin/bash\nwords=("${{@/#hetplan_smoke.py/{program}}}")\n'
        f'exec {Path(sys.executable).parent}/torchrun "${{words[@]}}"\n'
    )
    starter.chmod(0o755)
    return subprocess.Popen(
        ["bash", str(folder / "launch.sh"), "--smoke", "--", "--cpu"],
        env={
            **os.environ,
            "TORCHRUN": str(starter),
            "OMP_NUM_THREADS": "1",
            "MASTER_PORT": str(free_port()),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def emitted(tmp_path: Path, gpu: GpuSpec | None, link: float, experts: ExpertsSpec | None = None) -> Path:
    """The folder, in a path with a blank."""
    folder = tmp_path / "a run"
    write_folder(emit(*world(gpu, link, experts)), folder)
    return folder


def test_nothing_wrong(tmp_path: Path) -> None:
    """Links and devices that keep their promise: no fault, and a calibration that plans read."""
    folder = emitted(tmp_path, SLOW, 0.001)
    run = smoke(folder, PLANTED="devices=1")
    printed, _ = run.communicate(timeout=170)
    assert run.returncode == 0, printed
    assert "smoke run: no fault" in printed
    assert "FAULT" not in printed
    chosen, where, spec = world(SLOW, 0.001)
    own = load_calibration(folder / "smoke-calibration.yaml")
    assert {point.operation for point in own.link_points} == {"all-reduce", "all-gather"}
    assert own.layers[0].gpu == "T4"
    found = predict(chosen, where, spec, calibration=folder / "smoke-calibration.yaml")
    assert found.step_seconds > 0


def test_all_to_alls(tmp_path: Path) -> None:
    """Where devices hold different experts; their measured times price the plan."""
    experts = ExpertsSpec(number=3, top_k=1, ffn=32)
    folder = emitted(tmp_path, SLOW, 0.001, experts)
    printed, _ = smoke(folder, PLANTED="devices=1").communicate(timeout=170)
    assert re.search(r"all-to-all \S+ MiB +stage 0, over experts on T4: ranks 0,1,2 .* ok", printed), printed
    path = folder / "smoke-calibration.yaml"
    points = [each for each in load_calibration(path).link_points if each.operation == "all-to-all"]
    assert {(each.link, each.members) for each in points} == {("node:T4", 3)}
    planned, found = (predict(*world(SLOW, 0.001, experts), calibration=each) for each in (None, path))
    assert found.breakdown.expert_parallel_seconds < planned.breakdown.expert_parallel_seconds


def test_planted_faults(tmp_path: Path) -> None:
    """Each of them is found, on the rank that has it, and the run fails."""
    folder = emitted(tmp_path, None, 300.0)
    run = smoke(folder, PLANTED="devices=1 order=2 memory=1 weights=2")
    printed, _ = run.communicate(timeout=170)
    assert run.returncode != 0, printed
    faults = [line for line in printed.splitlines() if line.startswith("fault: ")]
    for wanted in (
        "rank 2: a-0 GPU 2: PCI slot: 0:1b:00, the plan has index 2 at 0:3c:00",
        "rank 2: a-0 GPU 2: device: that of rank 1 (0:1b:00)",
        "rank 2: a-0 GPU 2: weights: ",
        "rank 1: a-0 GPU 1: memory: 0.",
        "stage 0, over replicas: ranks 0,1,2: all-reduce ",
    ):
        assert any(line.startswith(f"fault: {wanted}") for line in faults), (wanted, printed)
    assert not any("rank 0: a-0 GPU 0: PCI" in line or "rank 0: a-0 GPU 0: memory" in line for line in faults)


def test_wrong_device_type(tmp_path: Path) -> None:
    """A device of another type is told before anything is measured."""
    run = smoke(emitted(tmp_path, None, 300.0), PLANTED="devices=1 names=1")
    printed, _ = run.communicate(timeout=170)
    assert run.returncode != 0
    assert "fault: rank 1: a-0 GPU 1: GPU: Tesla V100-SXM2-16GB, the plan has T4" in printed
    assert "all-reduce" not in printed


def inside(folder: Path) -> list[int]:
    """Processes that work in the folder."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and (each / "cwd").resolve() == folder.resolve():
                found.append(int(each.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_interrupted(tmp_path: Path, how: signal.Signals) -> None:
    """Asked to end or killed, the launcher leaves no rank behind."""
    folder = emitted(tmp_path, None, 300.0)
    run = smoke(folder)
    until = time.monotonic() + 100
    while len(inside(folder)) < 4 and time.monotonic() < until:
        time.sleep(0.2)
    assert len(inside(folder)) >= 4
    time.sleep(3.0)  # each has asked to die with its parent
    os.kill(run.pid, how)
    run.communicate(timeout=100)
    until = time.monotonic() + 40
    while inside(folder) and time.monotonic() < until:
        time.sleep(0.2)
    assert inside(folder) == []
