"""A node's processes are killed, and training goes on under the prepared plan with the losses of an unbroken run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planner.cluster.change import without_hosts
from planner.cluster.spec import ClusterSpec
from planner.emit.interface import Prepared, emit, prepared_files, write_folder
from planner.model.spec import ModelSpec
from planner.plan.file import PlanFile
from planner.plan.values import Plan
from tests.training.launching import free_port, launch, losses
from tests.worlds import cluster, group, model, plan, pool

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

STEPS = 60
TRAINED = model(12, precision="fp32", optimizer="adamw")
HERE = cluster(pool("a", ("A100",), 3))


def data_parallel(count: int, zero: int) -> Plan:
    """A replica a node, all with the same batch."""
    return plan("torch", zero, [4], [(group("a", "A100", count=count, share=12 // count, steps=2),)])


def stages(layers: list[int]) -> Plan:
    """A stage a node."""
    return plan("torch", 1, layers, [(group("a", "A100", share=12, steps=4),)] * len(layers))


def prepared(host: str, chosen: Plan, where: ClusterSpec = HERE, trained: ModelSpec = TRAINED) -> Prepared:
    """A plan without a node."""
    left = without_hosts(where, [host])
    return Prepared(host=host, plan_file=PlanFile(plan=chosen, cluster=left, model=trained), step_seconds=1.0)


Running = dict[str, "subprocess.Popen[bytes]"]
"""Start scripts by host."""


@contextmanager
def nodes(folder: Path, *arguments: str) -> Iterator[tuple[Running, Callable[[str], None]]]:
    """``elastic.sh`` of every node, each with its log in ``HOST.log``; and what starts one again."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "ADDRESS": "127.0.0.1",
        "LAST_CALL": "3",
        "KEEP_ALIVE": "1",
    }
    started: Running = {}

    def start(host: str) -> None:
        command = ["bash", str(folder / "elastic.sh"), host, "--", *arguments]
        with (folder.parent / f"{host}.log").open("ab") as log:
            started[host] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    for host in HERE.pools[0].hosts:
        start(host)
    try:
        yield started, start
    finally:
        for process in started.values():
            kill(process.pid)
            process.wait()


def kill(process: int) -> None:
    """End a process and all that it has started, at once: as a node that loses its power."""
    for child in children(process):
        kill(child)
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def children(process: int) -> list[int]:
    """What a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if parent == str(process):
                found.append(int(entry.name))
    return found


def told(folder: Path) -> dict[int, list[float]]:
    """The losses of each step, as often as it was trained, from whichever node printed it."""
    found: dict[int, list[float]] = {}
    for line in said(folder).splitlines():
        words = line.split()
        if words[:1] == ["step"]:
            found.setdefault(int(words[1]), []).append(float(words[3]))
    return found


def said(folder: Path) -> str:
    """What all nodes printed."""
    return "".join(log.read_text() for log in folder.parent.glob("a-*.log"))


def wait_for(condition: Callable[[], bool], seconds: float, folder: Path) -> None:
    """Until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            logs = (f"{log.name}:\n{log.read_text()[-4000:]}" for log in folder.parent.glob("*.log"))
            pytest.fail("\n".join(logs))
        time.sleep(0.2)


CASES = {
    "fewer-replicas": (data_parallel(3, 3), "a-2", data_parallel(2, 1)),
    "other-stages": (stages([2, 1, 1]), "a-1", stages([1, 3])),
    "the-first-node": (data_parallel(3, 1), "a-0", stages([2, 2])),
}


@pytest.mark.parametrize("name", CASES)
def test_training_goes_on_without_a_node(tmp_path: Path, name: str) -> None:
    """From the last checkpoint, under the plan without the node: the losses are those of one plan that goes through."""
    before, gone, after = CASES[name]
    whole = tmp_path / "whole"
    write_folder(emit(before, HERE, TRAINED), whole)
    expected = losses(launch(whole, 3, "--steps", str(STEPS), "--lr", "0.01"))

    folder = tmp_path / "run"
    others = [prepared(gone, after)]
    write_folder(prepared_files(PlanFile(plan=before, cluster=HERE, model=TRAINED), 1.0, others), folder)
    kept = tmp_path / "kept"
    arguments = ("--steps", str(STEPS), "--lr", "0.01", "--keep", str(kept), "--every", "10")
    with nodes(folder, *arguments) as (running, _):
        wait_for(lambda: (kept / "last").exists(), 120.0, folder)
        kill(running[gone].pid)
        running[gone].wait()
        others_left = [process for host, process in running.items() if host != gone]
        wait_for(lambda: all(process.poll() is not None for process in others_left), 240.0, folder)
        assert [process.returncode for process in others_left] == [0, 0]
    assert f"plan without/{gone} on" in said(folder)
    assert (kept / "last").read_text() == f"step-{STEPS}"
    found = told(folder)
    assert sorted(found) == list(range(STEPS))
    for step, loss in enumerate(expected):
        assert found[step] == pytest.approx([loss] * len(found[step]), rel=1e-4)
    again = [step for step, losses_of_step in found.items() if len(losses_of_step) > 1]
    assert len(again) <= 10 + 1, "only what lies behind the last checkpoint is trained again"


def test_a_node_comes_back(tmp_path: Path) -> None:
    """All go on under the first plan; nobody stops the job for it."""
    before, gone, after = CASES["fewer-replicas"]
    folder = tmp_path / "run"
    others = [prepared(gone, after)]
    write_folder(prepared_files(PlanFile(plan=before, cluster=HERE, model=TRAINED), 1.0, others), folder)
    arguments = ("--steps", "100000", "--keep", str(tmp_path / "kept"), "--every", "10")
    with nodes(folder, *arguments) as (running, start):
        wait_for(lambda: (tmp_path / "kept" / "last").exists(), 120.0, folder)
        kill(running[gone].pid)
        running[gone].wait()
        wait_for(lambda: f"plan without/{gone} on" in said(folder), 120.0, folder)
        steps = len(told(folder))
        wait_for(lambda: len(told(folder)) > steps + 20, 120.0, folder)
        start(gone)
        wait_for(lambda: said(folder).count("plan . on a-0, a-1, a-2") == 2, 120.0, folder)
        steps = len(told(folder))
        wait_for(lambda: len(told(folder)) > steps + 10, 120.0, folder)
