"""A training script of the user's in every launcher: its words reach each node as they are, and none is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.emit.interface import job_of
from planner.errors import EmitError
from tests.launchers.stand_ins import SSH, folder_of, run
from tests.launchers.test_slurm import SCONTROL, SRUN
from tests.worlds import cluster, group, model, plan, pool

WORDS = (
    "--lr",
    "1e-4",
    "a b",
    "$(touch broken)",
    "`touch broken`",
    "'; touch broken; '",
    "*",
    "ü\nnew line",
    "",
)
"""Arguments with everything in them that a shell could obey."""
RECORD = """#!/bin/bash
printf '%s\\0' "$HETPLAN_NODE" "$PYTHONPATH" "$@" >"$JOURNAL.$HETPLAN_NODE"
"""


def script(tmp_path: Path) -> Path:
    """A file with blanks and more in its name."""
    path = tmp_path / "my $(touch broken) 'train'.py"
    path.write_text("")
    return path


def started(tmp_path: Path, nodes: int) -> list[list[str]]:
    """What each node's launcher was given, by node."""
    texts = [(tmp_path / f"journal.{node}").read_text() for node in range(nodes)]
    return [text.split("\0")[:-1] for text in texts]


def commands(folder: Path, launcher: str) -> list[tuple[list[str], dict[str, str]]]:
    """What starts the job, and with what in the environment."""
    if launcher in ("ssh", "deepspeed"):
        return [([str(folder / "start.sh"), "--", "--more"], {})]
    if launcher == "slurm":
        lists = {
            f"SLURM_JOB_NODELIST_HET_GROUP_{part}": text
            for part, text in enumerate(("big-0,big-1", "small-0"))
        }
        return [
            (["bash", str(folder / "job.sbatch"), "--", "--more"], {"SLURM_SUBMIT_DIR": str(folder), **lists})
        ]
    return [(["bash", str(folder / "launch.sh"), str(node), "--", "--more"], {}) for node in range(3)]


@pytest.mark.parametrize("launcher", ["torchrun", "ssh", "slurm", "deepspeed", "kubernetes"])
def test_every_node_runs_it(tmp_path: Path, launcher: str) -> None:
    """With its arguments as they were given, then those of the start; it finds the runtime in the folder."""
    own = script(tmp_path)
    folder = folder_of(tmp_path, launcher, script=(str(own), *WORDS))
    if launcher == "kubernetes":
        assert "exec ./launch.sh" in (folder / "jobset.yaml").read_text()  # as below
    stand_ins = {"ssh": SSH, "scontrol": SCONTROL, "srun": SRUN, "torchrun": RECORD, "deepspeed": RECORD}
    for command, environment in commands(folder, launcher):
        done = run(tmp_path, stand_ins, command, **environment)
        assert done.returncode == 0, done.stderr
    for node, (number, path, *words) in enumerate(started(tmp_path, 3)):
        assert number == str(node)
        assert path.split(":")[0] == str(folder)
        assert tuple(words[words.index(str(own)) :]) == (str(own), *WORDS, "--more")
    assert not list(tmp_path.rglob("broken"))


def test_it_may_stand_elsewhere_on_a_node(tmp_path: Path) -> None:
    """SCRIPT names its place; a node without it says so."""
    folder = folder_of(tmp_path, "torchrun", script=("/no/such/train.py",))
    done = run(tmp_path, {"torchrun": RECORD}, ["bash", str(folder / "launch.sh"), "0"])
    assert done.returncode == 2
    assert "no script /no/such/train.py on this node; set SCRIPT to its place" in done.stderr
    own = script(tmp_path)
    done = run(tmp_path, {"torchrun": RECORD}, ["bash", str(folder / "launch.sh"), "0"], SCRIPT=str(own))
    assert done.returncode == 0, done.stderr
    assert started(tmp_path, 1)[0][-1] == str(own)


def test_megatron_gives_it_the_plan(tmp_path: Path) -> None:
    """Its own script takes the place of Megatron's and gets the plan's arguments ahead of its own."""
    own = script(tmp_path)
    chosen = plan("megatron", 1, [3, 1], [(group("big", "A100-SXM-80GB", tp=2, share=4, steps=4),)] * 2)
    folder = folder_of(tmp_path, "torchrun", chosen, script=(str(own), "--mine"))
    command = ["bash", str(folder / "launch.sh"), "0"]
    done = run(tmp_path, {"torchrun": RECORD}, command, MEGATRON_PATH="/m")
    assert done.returncode == 0, done.stderr
    words = started(tmp_path, 1)[0]
    assert words[words.index(str(own)) + 1] == "--num-layers"
    assert words[-1] == "--mine"
    assert not any("pretrain_gpt" in word for word in words)


def test_flagscale_has_its_own(tmp_path: Path) -> None:
    """Its runner starts an entry point of its checkout."""
    chosen = plan("flagscale", 0, [4], [(group("a", "T4"),)])
    with pytest.raises(EmitError, match="entry point of its own"):
        job_of(chosen, cluster(pool("a", ("T4",), 1)), model(1), ("/x.py",))
