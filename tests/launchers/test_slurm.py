"""The batch script, with stand-ins for srun and scontrol that run everything here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec
from planner.plan.values import Plan
from tests.launchers.stand_ins import TORCHRUN, folder_of, journal, run
from tests.worlds import cluster, group, nic, plan, pool

SCONTROL = '#!/bin/bash\n[[ "$1 $2" == "show hostnames" ]] && tr , "\\n" <<<"$3"\n'
SRUN = """#!/bin/bash
# Runs each component's command once for each of its nodes.
part=0 command=()
one_component() {
  local list="SLURM_JOB_NODELIST_HET_GROUP_$part" words=() node
  while [[ ${command[0]} == --* ]]; do words+=("${command[0]}"); command=("${command[@]:1}"); done
  echo "component ${words[*]}" >>"$JOURNAL.steps"
  for node in $(scontrol show hostnames "${!list:-$SLURM_JOB_NODELIST}"); do
    SLURMD_NODENAME=$node "${command[@]}" || exit $?
  done
}
for word in "$@"; do
  if [[ $word == : ]]; then one_component; part=$((part + 1)); command=(); else command+=("$word"); fi
done
one_component
"""
STAND_INS = {"srun": SRUN, "scontrol": SCONTROL, "torchrun": TORCHRUN}


def submitted(
    tmp_path: Path, folder: Path, *lists: str, words: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the script as Slurm does: a copy elsewhere, with the node list of each component."""
    copy = tmp_path / "spool" / "slurm_script"
    copy.parent.mkdir(exist_ok=True)
    copy.write_text((folder / "job.sbatch").read_text())
    given = (
        {"SLURM_JOB_NODELIST": lists[0]}
        if len(lists) == 1
        else {f"SLURM_JOB_NODELIST_HET_GROUP_{part}": text for part, text in enumerate(lists)}
    )
    return run(tmp_path, STAND_INS, ["bash", str(copy), *words], SLURM_SUBMIT_DIR=str(folder), **given)


def test_components_ask_for_the_nodes_of_each_pool(tmp_path: Path) -> None:
    """One component for each pool, separated by hetjob, each with its own nodes and GPUs."""
    text = (folder_of(tmp_path, "slurm") / "job.sbatch").read_text()
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    both = ["--ntasks-per-node=1"]
    assert options == [
        *(
            "--job-name=tiny",
            "--nodes=2",
            *both,
            "--gpus-per-node=4",
            "--exclusive",
            "--mem=0",
            "--nodelist=big-0,big-1",
        ),
        "hetjob",
        *("--nodes=1", *both, "--gpus-per-node=2", "--exclusive", "--mem=0", "--nodelist=small-0"),
    ]


def test_every_node_rank_once_by_name(tmp_path: Path) -> None:
    """Slurm gives the planned hosts, in any order and with full names."""
    folder = folder_of(tmp_path, "slurm")
    names = ("big-1.example.org,big-0.example.org", "small-0")
    done = submitted(tmp_path, folder, *names, words=("--", "--text", "my file"))
    assert done.returncode == 0, done.stderr
    started = journal(tmp_path)
    assert [entry["node"] for entry in started] == ["0", "1", "2"]
    assert [entry["socket"] for entry in started] == ["=ens1", "=ens1", "=eth0"]
    assert {entry["master"] for entry in started} == {"big-0.example.org:29500"}
    assert all(entry["arguments"].endswith("train.py --text my file") for entry in started)
    assert (tmp_path / "journal.steps").read_text().splitlines() == [
        "component --label --kill-on-bad-exit=1 --het-group=0 --ntasks-per-node=1 --gpus-per-node=4",
        "component --het-group=1 --ntasks-per-node=1 --gpus-per-node=2",
    ]


def test_other_names_take_the_places_in_order(tmp_path: Path) -> None:
    """Without the planned hosts the order of a component's nodes decides."""
    done = submitted(tmp_path, folder_of(tmp_path, "slurm"), "gpu7,gpu9", "gpu3")
    assert done.returncode == 0, done.stderr
    started = journal(tmp_path)
    assert [entry["node"] for entry in started] == ["0", "1", "2"]
    assert [entry["devices"] for entry in started] == ["0,1,2,3", "0,1,2,3", "0,1"]
    assert {entry["master"] for entry in started} == {"gpu7:29500"}


def test_wrong_number_of_nodes(tmp_path: Path) -> None:
    """Fewer nodes than planned are one message, and nothing starts."""
    done = submitted(tmp_path, folder_of(tmp_path, "slurm"), "gpu7", "gpu3")
    assert done.returncode == 2
    assert "pool big has 2 nodes in nodes.txt, Slurm gave 1: gpu7" in done.stderr
    assert not (tmp_path / "journal").exists()


def test_one_pool_is_a_plain_job(tmp_path: Path) -> None:
    """No component and no group for a cluster of one type; addresses are no Slurm names."""
    named = pool("big", ("T4",) * 2, 2, (nic("eth", "ens1"),)).model_copy(
        update={"hosts": ("10.0.0.1", "10.0.0.2")}
    )
    chosen = plan("deepspeed", 1, [4], [(group("big", "T4", count=4),)])
    folder = folder_of(tmp_path, "slurm", chosen, cluster(named))
    text = (folder / "job.sbatch").read_text()
    assert not re.search(r"^#SBATCH (hetjob|--nodelist)", text, re.MULTILINE)
    done = submitted(tmp_path, folder, "gpu1,gpu2")
    assert done.returncode == 0, done.stderr
    assert [entry["node"] for entry in journal(tmp_path)] == ["0", "1"]
    assert "--het-group" not in (tmp_path / "journal.steps").read_text()


def test_submitted_elsewhere(tmp_path: Path) -> None:
    """Outside its folder the script says where to submit it."""
    folder = folder_of(tmp_path, "slurm")
    done = run(tmp_path, STAND_INS, ["bash", str(folder / "job.sbatch")], SLURM_SUBMIT_DIR=str(tmp_path))
    assert done.returncode == 2
    assert "submit in the folder that hetplan wrote" in done.stderr


def twice() -> tuple[Plan, ClusterSpec]:
    """A host with two runs of ranks and another between."""
    where = cluster(pool("a", ("T4",) * 2, 1), pool("b", ("T4",), 1))
    return plan("deepspeed", 0, [4], [(group("a", "T4"), group("b", "T4"), group("a", "T4"))]), where


@pytest.mark.parametrize("names", [("a-0", "b-0"), ("n1", "n2")])
def test_a_host_with_two_runs_of_ranks(tmp_path: Path, names: tuple[str, str]) -> None:
    """One task on the node starts both."""
    done = submitted(tmp_path, folder_of(tmp_path, "slurm", *twice()), *names)
    assert done.returncode == 0, done.stderr
    assert [(entry["node"], entry["devices"]) for entry in journal(tmp_path)] == [
        ("0", "0"),
        ("1", "0"),
        ("2", "1"),
    ]


def test_check_on_each_node(tmp_path: Path) -> None:
    """--check reaches launch.sh, which starts nothing where preflight.sh finds a fault."""
    folder = folder_of(tmp_path, "slurm")
    (folder / "preflight.sh").write_text('#!/bin/bash\necho "$@" >>"$JOURNAL.checks"\nexit "$2"\n')
    done = submitted(tmp_path, folder, "big-0,big-1", "small-0", words=("--check", "--", "--steps", "5"))
    assert done.returncode == 1
    assert (tmp_path / "journal.checks").read_text() == "--local 0\n--local 1\n"
    assert [(entry["node"], entry["arguments"][-9:]) for entry in journal(tmp_path)] == [("0", "--steps 5")]
