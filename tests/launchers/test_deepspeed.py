"""DeepSpeed's launcher under the emitted scripts: its arguments, and the real one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec
from planner.errors import EmitError
from planner.plan.values import Plan
from tests.launchers.stand_ins import SSH, folder_of, run
from tests.worlds import cluster, group, plan, pool

DEEPSPEED = """#!/bin/bash
echo "node=$HETPLAN_NODE socket=${NCCL_SOCKET_IFNAME:-}" \\
  "visible=${CUDA_VISIBLE_DEVICES-unset} order=$CUDA_DEVICE_ORDER $*" \\
  >>"$JOURNAL"
"""
REAL = importlib.util.find_spec("deepspeed") is not None


def test_every_node_has_its_environment(tmp_path: Path) -> None:
    """The launcher gets the hostfile and the node's rank, never a number of GPUs, and no devices of ours."""
    folder = folder_of(tmp_path, "deepspeed")
    done = run(
        tmp_path, {"ssh": SSH, "deepspeed": DEEPSPEED}, [str(folder / "start.sh"), "--", "--text", "my file"]
    )
    assert done.returncode == 0, done.stderr
    end = "--master_addr big-0 --master_port 29500 train.py --text my file"
    assert sorted((tmp_path / "journal").read_text().splitlines()) == [
        f"node={node} socket=={card} visible=unset order=PCI_BUS_ID "
        f"--hostfile hostfile --no_ssh --node_rank {node} {end}"
        for node, card in enumerate(("ens1", "ens1", "eth0"))
    ]
    assert (folder / "hostfile").read_text() == "big-0 slots=4\nbig-1 slots=4\nsmall-0 slots=2\n"


def test_devices_of_a_shared_node_are_refused(tmp_path: Path) -> None:
    """The launcher would take the first ones, which are another job's."""
    folder = folder_of(tmp_path, "deepspeed")
    command, shared = [str(folder / "launch.sh"), "0"], {"HETPLAN_DEVICES": "3,2,1,0"}
    done = run(tmp_path, {"deepspeed": DEEPSPEED}, command, TORCHRUN="./deepspeed.sh", **shared)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "deepspeed.sh: the launcher takes the devices of its hostfile, not HETPLAN_DEVICES"
    )
    assert not (tmp_path / "journal").exists()


def test_devices_that_are_not_the_first(tmp_path: Path) -> None:
    """They are named to the launcher, which would else take the first."""
    where = cluster(pool("a", ("T4", "A100"), 1), pool("b", ("A100",), 1))
    chosen = plan("deepspeed", 0, [4], [(group("a", "A100"), group("b", "A100"))])
    folder = folder_of(tmp_path, "deepspeed", chosen, where)
    assert "--hostfile hostfile --include a-0:1@b-0:0 --no_ssh" in (folder / "deepspeed.sh").read_text()


def refused() -> list[tuple[Plan, ClusterSpec, str]]:
    """Plans that the launcher cannot start, and why."""
    two_kinds = cluster(pool("a", ("T4", "A100"), 1), pool("b", ("T4",), 1))
    return [
        (
            plan("megatron", 1, [4], [(group("b", "T4"),)]),
            two_kinds,
            "for the target deepspeed, this one is for megatron",
        ),
        (
            plan("deepspeed", 0, [4], [(group("a", "T4"), group("b", "T4"), group("a", "A100"))]),
            two_kinds,
            "uses a-0 twice",
        ),
        (
            plan("deepspeed", 0, [4], [(group("a", "A100"), group("a", "T4"))]),
            two_kinds,
            "would give some ranks another device type",
        ),
    ]


@pytest.mark.parametrize(("chosen", "where", "why"), refused())
def test_refusals_name_the_rule(tmp_path: Path, chosen: Plan, where: ClusterSpec, why: str) -> None:
    """Nothing is written, and the hint names a launcher that can."""
    with pytest.raises(EmitError, match=why) as caught:
        folder_of(tmp_path, "deepspeed", chosen, where)
    assert "--launcher ssh" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="DeepSpeed is not installed")
def test_the_real_launcher_numbers_ranks_as_planned(tmp_path: Path) -> None:
    """Uneven slots under the real launcher: each node starts its own ranks, in a path with a blank."""
    where = cluster(pool("a", ("A100",) * 2, 1), pool("b", ("T4",), 1))
    chosen = plan("deepspeed", 1, [4], [(group("a", "A100", count=2), group("b", "T4"))])
    folder = folder_of(tmp_path, "deepspeed", chosen, where)
    (folder / "train.py").write_text(
        "import os, pathlib\n"
        "names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'HETPLAN_HOST')\n"
        "words = ' '.join(os.environ[name] for name in names)\n"
        "pathlib.Path('rank' + os.environ['RANK']).write_text(words)\n"
    )
    starter = {
        "ssh": SSH,
        "deepspeed": f'#!/bin/bash\nexec "{sys.executable}" -m deepspeed.launcher.runner "$@"\n',
    }
    done = run(tmp_path, starter, [str(folder / "start.sh")], DS_ACCELERATOR="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    found = [(folder / f"rank{rank}").read_text() for rank in range(3)]
    assert found == ["0 0 3 a-0", "1 1 3 a-0", "2 0 3 b-0"]
