"""``launch.sh --smoke`` of FlagScale: what its runner is asked for, what is waited for, and how it ends.

A stand-in for the runner writes the logs that the real one writes; test_real.py has the real one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from planner.emit.interface import emit, write_folder
from tests.worlds import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", ("T4",) * 2, 2))
RUNNER = """
import os, pathlib, sys
settings = dict(word.split("=", 1) for word in sys.argv if "=" in word)
out = pathlib.Path(settings["experiment.exp_dir"])
with open(os.environ["JOURNAL"], "a") as journal:
    journal.write(" ".join(sys.argv[1:]) + "\\n")
if settings.get("action") != "stop":
    (out / "logs/pids").mkdir(parents=True)
    (out / "logs/host_0_a-0.output").write_text(os.environ["SAID"].replace(";", "\\n"))
    for host in os.environ["PIDS"].split():
        (out / f"logs/pids/{host}.pid").write_text("1")
sys.exit(int(os.environ.get("ENDS", "0")))
"""


def folder_of(tmp_path: Path) -> Path:
    """Two stages on two nodes."""
    own = (group("a", "T4", tp=2, share=2),)
    chosen = plan("flagscale", 0, [1, 1], [own, own], sequence_parallel=True)
    write_folder(emit(chosen, CLUSTER, model(2, layers=2)), tmp_path / "run")
    return tmp_path / "run"


def started(tmp_path: Path, said: str, pids: str = "a b", **environment: str) -> subprocess.Popen[str]:
    """The start script with the stand-in."""
    folder = folder_of(tmp_path)
    (tmp_path / "run.py").write_text(RUNNER)
    paths = {"FLAGSCALE_PATH": str(tmp_path), "JOURNAL": str(tmp_path / "journal"), "PYTHON": "python3"}
    return subprocess.Popen(
        ["bash", str(folder / "launch.sh"), "--smoke", "+train.data.weights=/m"],
        env={**os.environ, **paths, "SAID": said, "PIDS": pids, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def asked(tmp_path: Path) -> list[str]:
    """What the runner was asked for, one line a start."""
    return (tmp_path / "journal").read_text().splitlines()


TABLE = "[default0]:smoke run of tiny;[default0]:check  found;"


@pytest.mark.parametrize(("last", "code"), [("no fault", 0), ("1 fault", 1)])
def test_it_prints_what_was_found(tmp_path: Path, last: str, code: int) -> None:
    """The table without prefixes, and nothing of what torchrun says of the exit code."""
    run = started(tmp_path, f"{TABLE}[default0]:smoke run: {last};Traceback;")
    printed, errors = run.communicate(timeout=60)
    assert (run.returncode, errors) == (code, "")
    assert printed == f"smoke run of tiny\ncheck  found\nsmoke run: {last}\n"
    folder = tmp_path / "run"
    [words] = asked(tmp_path)
    assert f"experiment.task.entrypoint={folder}/hetplan_smoke.py" in words.split()
    assert f"experiment.exp_dir={folder}/outputs/smoke" in words.split()
    assert words.endswith("+train.data.weights=/m")


def test_devices_of_a_shared_node_are_refused(tmp_path: Path) -> None:
    """The experiment says which devices a node gives; others would be another job's."""
    run = started(tmp_path, TABLE, HETPLAN_DEVICES="2,3")
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "devices of conf/experiment.yaml, not HETPLAN_DEVICES=2,3" in errors
    assert not (tmp_path / "journal").exists()


def test_a_rank_that_waits_ends_it(tmp_path: Path) -> None:
    """Its last words are shown, and the runner is told to stop."""
    run = started(tmp_path, "[default0]:fault: rank 0 on a-0: still looking at devices after 110 s;")
    printed, errors = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "still looking" in printed
    assert "did not come to an end" in errors
    assert asked(tmp_path)[1].endswith("action=stop")


@pytest.mark.parametrize(("pids", "stops"), [("a b", True), ("a", False)])
def test_interrupted(tmp_path: Path, pids: str, stops: bool) -> None:
    """The runner stops it, unless that would end other jobs of a node."""
    run = started(tmp_path, TABLE, pids)
    deadline = time.monotonic() + 30
    while not list((tmp_path / "run/outputs/smoke").glob("logs/pids/a.pid")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=30)
    assert run.returncode == 130
    assert [words.endswith("action=stop") for words in asked(tmp_path)] == (
        [False, True] if stops else [False]
    )


def test_a_runner_that_fails(tmp_path: Path) -> None:
    """Its words and its fault."""
    run = started(tmp_path, "", ENDS="3")
    run.communicate(timeout=30)
    assert run.returncode == 1


def test_the_folder_has_all_it_needs(tmp_path: Path) -> None:
    """The plan that it compares with, rank by rank, and hosts in the environment of each node."""
    folder = folder_of(tmp_path)
    ranks = json.loads((folder / "smoke.json").read_text())["ranks"]
    assert [(rank["host"], rank["device"]) for rank in ranks] == [
        ("a-0", 0),
        ("a-0", 1),
        ("a-1", 0),
        ("a-1", 1),
    ]
    assert "HETPLAN_HOST: a-1" in (folder / "conf/experiment.yaml").read_text()
