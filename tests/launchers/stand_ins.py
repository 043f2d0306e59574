"""Programs of a cluster, replaced by scripts that run everything on this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import folder_files, job_of, write_folder
from planner.plan.values import Plan
from tests.worlds import cluster, group, model, nic, plan, pool

TORCHRUN = """#!/bin/bash
[[ ${NODE_THAT_FAILS:-} == "$HETPLAN_NODE" ]] && exit 7
if [[ ${OTHERS_WAIT:-} ]]; then exec sleep 60; fi
echo "node=$HETPLAN_NODE pool=$HETPLAN_POOL devices=$CUDA_VISIBLE_DEVICES socket=${NCCL_SOCKET_IFNAME:-} \\
master=$MASTER_ADDR:$MASTER_PORT arguments=$*" | tee -a "$JOURNAL"
"""
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do if [[ $1 == -o ]]; then shift; fi; shift; done
if [[ " ${DEAD:-} " == *" $1 "* ]]; then echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255; fi
export HOST_OF_SSH=$1
exec bash -c "$2"
"""


def three_nodes() -> ClusterSpec:
    """Two nodes of four A100 and one of two T4, with other names of the same network's interfaces."""
    big = pool("big", ("A100-SXM-80GB",) * 4, 2, (nic("eth", "ens1"),))
    small = pool("small", ("T4",) * 2, 1, (nic("eth", "eth0"),))
    return cluster(big, small)


def uneven_plan() -> Plan:
    """All devices of the three nodes."""
    whole = (group("big", "A100-SXM-80GB", count=8, share=2), group("small", "T4", count=2))
    return plan("deepspeed", 1, [4], [whole])


def folder_of(
    tmp_path: Path,
    launcher: str,
    chosen: Plan | None = None,
    where: ClusterSpec | None = None,
    script: tuple[str, ...] = (),
) -> Path:
    """The folder, in a path with a blank."""
    chosen = chosen or uneven_plan()
    spec = model(chosen.global_batch, layers=chosen.layers)
    folder = tmp_path / "a run"
    write_folder(folder_files(job_of(chosen, where or three_nodes(), spec, script), launcher), folder)
    return folder


def install(tmp_path: Path, scripts: Mapping[str, str]) -> Path:
    """A folder with the scripts, to stand first on PATH."""
    place = tmp_path / "stand ins"
    place.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return place


def run(
    tmp_path: Path, scripts: Mapping[str, str], command: list[str], cwd: Path | str = "/", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with the stand-ins first on PATH and no rendezvous in the environment."""
    place = install(tmp_path, scripts)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "SLURM_"))}
    return subprocess.run(
        command,
        cwd=cwd,
        env={
            **kept,
            "PATH": f"{place}:{os.environ['PATH']}",
            "JOURNAL": str(tmp_path / "journal"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


def journal(tmp_path: Path) -> list[dict[str, str]]:
    """What the stand-in for torchrun was started with, by node rank."""
    found = []
    for line in (tmp_path / "journal").read_text().splitlines():
        head, _, arguments = line.partition(" arguments=")
        found.append({**dict(word.split("=", 1) for word in head.split()), "arguments": arguments})
    return sorted(found, key=lambda entry: int(entry["node"]))
