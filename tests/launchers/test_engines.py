"""SkyPilot's task and Ray's script: what they ask for, and that every node takes its planned place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cluster.spec import ClusterSpec
from planner.errors import EmitError
from planner.plan.values import Plan
from tests.launchers.stand_ins import TORCHRUN, folder_of, journal, run
from tests.worlds import GPUS, cluster, group, nic, plan, pool

RAY = """
import os, subprocess
def get_node_ip_address(): return os.environ["NODE_IP"]
class util: pass
util.get_node_ip_address = staticmethod(get_node_ip_address)
class Task:
    def __init__(self, function): self.function, self.given = function, {}
    def options(self, **given): self.given = given; return self
    def remote(self, *given):
        index = self.given["scheduling_strategy"].index
        os.environ["NODE_IP"] = f"10.0.0.{index}"
        with open(os.environ["JOURNAL"] + ".asked", "a") as asked:
            words = (self.function.__name__, index, self.given.get("num_gpus"), self.given.get("resources"))
            print(*words, file=asked)
        return self.function(*given)
def remote(**_): return Task
def init(address): pass
def get(value): return value
def wait(tasks): return tasks[:1], tasks[1:]
def cancel(task, force): pass
"""
GROUPS = """
class Group:
    def __init__(self, bundles, strategy): print("bundles", bundles, strategy)
    def ready(self): return True
placement_group = Group
def remove_placement_group(group): pass
"""
STRATEGIES = """
class PlacementGroupSchedulingStrategy:
    def __init__(self, group, placement_group_bundle_index): self.index = placement_group_bundle_index
"""


def stand_in(tmp_path: Path) -> Path:
    """A package that runs Ray's tasks one by one in this process."""
    place = tmp_path / "modules" / "ray"
    (place / "util").mkdir(parents=True)
    (place / "__init__.py").write_text(RAY)
    (place / "util" / "__init__.py").write_text("from ray import get_node_ip_address\n")
    (place / "util" / "placement_group.py").write_text(GROUPS)
    (place / "util" / "scheduling_strategies.py").write_text(STRATEGIES)
    return place.parent


def one_pool(gpu: str = "A100-SXM-80GB") -> tuple[Plan, ClusterSpec]:
    """Two nodes of two devices."""
    own = {gpu: GPUS["A100"].model_copy(update={"name": gpu})}
    where = cluster(pool("big", (gpu,) * 2, 2, (nic("eth", "ens1"),)), gpus=own)
    return plan("torch", 1, [4], [(group("big", gpu, count=4, share=2),)]), where


def task(folder: Path) -> dict[str, Any]:
    """The task as YAML has it."""
    found: dict[str, Any] = yaml.safe_load((folder / "task.yaml").read_text())
    return found


def test_a_task_of_skypilot(tmp_path: Path) -> None:
    """It asks for whole machines by SkyPilot's names, and each takes its place by its rank."""
    folder = folder_of(tmp_path, "skypilot", *one_pool())
    found = task(folder)
    assert (found["num_nodes"], found["resources"]) == (2, {"accelerators": "A100-80GB:2"})
    for rank in (1, 0):
        done = run(
            tmp_path,
            {"torchrun": TORCHRUN},
            ["bash", "-c", found["run"]],
            folder,
            SKYPILOT_NODE_RANK=str(rank),
            SKYPILOT_NODE_IPS="10.0.0.7\n10.0.0.8",
            FLAGS="--smoke",
        )
        assert done.returncode == 0, done.stderr
    started = journal(tmp_path)
    assert [entry["node"] for entry in started] == ["0", "1"]
    assert {entry["master"] for entry in started} == {"10.0.0.7:29500"}
    assert all(entry["arguments"].endswith("hetplan_smoke.py") for entry in started)


def test_devices_that_skypilot_may_not_know(tmp_path: Path) -> None:
    """Their line is marked; several pools are refused."""
    folder = folder_of(tmp_path, "skypilot", *one_pool("mine"))
    assert "# EDIT: what SkyPilot calls this device" in (folder / "task.yaml").read_text()
    assert task(folder)["resources"] == {"accelerators": "mine:2"}
    with pytest.raises(EmitError, match="machines of one type"):
        folder_of(tmp_path, "skypilot")


@pytest.mark.parametrize("several", [False, True])
def test_ray(tmp_path: Path, several: bool) -> None:
    """A bundle for each node, by its pool's resource where there are several; the first is the rendezvous."""
    folder = folder_of(tmp_path, "ray", *(() if several else one_pool()))
    modules = stand_in(tmp_path)
    words = ["--", "--text", "a $(touch broken) b"]
    command = [sys.executable, str(folder / "ray_start.py"), *words]
    done = run(tmp_path, {"torchrun": TORCHRUN}, command, PYTHONPATH=str(modules))
    assert done.returncode == 0, done.stderr
    started = journal(tmp_path)
    assert [entry["node"] for entry in started] == (["0", "1", "2"] if several else ["0", "1"])
    assert {entry["master"] for entry in started} == {"10.0.0.0:29500"}
    assert all(entry["arguments"].endswith("--text a $(touch broken) b") for entry in started)
    asked = (tmp_path / "journal.asked").read_text().splitlines()
    assert asked[0].startswith("address 0")
    assert asked[-1] == ("start 2 2 {'small': 1}" if several else "start 1 2 {}")
    assert "STRICT_SPREAD" in done.stdout
    failed = run(tmp_path, {"torchrun": TORCHRUN}, command, PYTHONPATH=str(modules), NODE_THAT_FAILS="1")
    assert failed.returncode == 7
    assert not list(tmp_path.rglob("broken"))
    subprocess.run([sys.executable, "-m", "py_compile", str(folder / "ray_start.py")], check=True)
    assert json.dumps("big-0") in (folder / "ray_start.py").read_text()
