"""The door of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from planner.emit.interface import EMITTERS, emit
from planner.errors import EmitError, PlanError
from planner.launchers.registry import LAUNCHERS
from planner.runtimes.registry import TARGETS
from tests.emit.builders import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", ("A100",) * 4, 2))
REPLICAS = [(group("a", "A100", count=4, share=2),)]


def test_targets_that_emit_have_an_emitter() -> None:
    """Every row of the capability table has one."""
    assert set(TARGETS) == set(EMITTERS)


@pytest.mark.parametrize("target", sorted(EMITTERS))
def test_sorted_and_repeatable(target: str) -> None:
    """The same plan gives the same files in the same order."""
    made = [emit(plan(target, 1, [4], REPLICAS), CLUSTER, model(8)) for _ in range(2)]
    assert made[0] == made[1]
    paths = [file.path for file in made[0]]
    assert paths == sorted(paths)
    own = {"hostfile"} if target == "flagscale" else {"nodes.txt", "env/a.sh", "preflight.sh", "devices.txt"}
    assert {"README.md", "launch.sh", *own} <= set(paths)
    assert all(file.text.endswith("\n") for file in made[0])


@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
@pytest.mark.parametrize("target", sorted(EMITTERS))
def test_every_launcher_of_every_target(target: str, launcher: str) -> None:
    """The README starts with the launcher, and NCCL is never told to go on when networks differ."""
    if launcher == "deepspeed" != target or EMITTERS[target].starts_itself:
        return
    files = emit(plan(target, 1, [4], REPLICAS), CLUSTER, model(8), launcher)
    assert len({file.path for file in files}) == len(files)
    assert not [file.path for file in files if "NCCL_IGNORE_NET_MISMATCH" in file.text]
    readme = next(file.text for file in files if file.path == "README.md")
    headings = [line for line in readme.splitlines() if line.startswith("## ")]
    own = {
        "deepspeed": "## Start with DeepSpeed's launcher",
        "slurm": "## Start with Slurm",
        "kubernetes": "## Start with Kubernetes",
        "ssh": "## Start over ssh",
    }
    start = [own[launcher], "## Start node by node"] if launcher in own else ["## Start"]
    at = headings.index("## Before you start")
    assert headings[at + 1 : at + 1 + len(start)] == start


def test_a_runtime_that_starts_itself_takes_no_launcher() -> None:
    """FlagScale's runner reaches the nodes; the error says so."""
    with pytest.raises(EmitError, match="launcher slurm: flagscale starts the nodes by its own runner"):
        emit(plan("flagscale", 1, [4], REPLICAS), CLUSTER, model(8), "slurm")


def test_other_launcher_is_named() -> None:
    """An unknown launcher is an error that lists the known ones."""
    with pytest.raises(EmitError, match=r"launcher mpirun: .* torchrun"):
        emit(plan("deepspeed", 1, [4], REPLICAS), CLUSTER, model(8), launcher="mpirun")


def test_cluster_too_small() -> None:
    """A plan for more devices than the cluster has is a plan error."""
    with pytest.raises(PlanError):
        emit(plan("deepspeed", 1, [4], [(group("a", "A100", count=9, share=1),)]), CLUSTER, model(9))


def test_torch_is_not_imported() -> None:
    """Emitting reads the runtime's source and does not import it."""
    code = "import sys, planner.emit.interface; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
