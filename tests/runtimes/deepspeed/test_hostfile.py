"""DeepSpeed's launcher reads the hostfile as it is meant, or the README says that it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit
from planner.plan.placement import agents, ranks
from planner.plan.values import Plan
from planner.runtimes.deepspeed.hostfile import hostfile, include, keeps_types
from tests.worlds import cluster, group, model, plan, pool

UNEVEN = cluster(pool("a", ("A100",) * 4, 2), pool("b", ("T4",) * 2, 1))
MIXED = cluster(pool("m", ("A100", "T4", "A100"), 1), pool("b", ("T4",), 1))


pytestmark = pytest.mark.usefixtures("no_third_party_warnings")


def chosen_slots(tmp_path: Path, chosen: Plan, where: ClusterSpec) -> dict[str, list[int]]:
    """The devices of each host that DeepSpeed's launcher takes from the hostfile and ``--include``."""
    runner = pytest.importorskip("deepspeed.launcher.runner")
    launchers = agents(ranks(chosen, where))
    (tmp_path / "hostfile").write_text(str(hostfile(launchers)))
    found = runner.fetch_hostfile(str(tmp_path / "hostfile"))
    return dict(runner.parse_inclusion_exclusion(found, include(launchers) or "", ""))


def readme(chosen: Plan, where: ClusterSpec) -> str:
    """The README of the folder."""
    made = emit(chosen, where, model(chosen.global_batch))
    return next(file.text for file in made if file.path == "README.md")


def test_uneven_slots_in_rank_order(tmp_path: Path) -> None:
    """As many slots as the plan uses on each host, and nothing to include."""
    replicas = (group("a", "A100", count=8, share=5, steps=2), group("b", "T4", count=2, share=1))
    chosen = plan("deepspeed", 1, [4], [replicas])
    slots = chosen_slots(tmp_path, chosen, UNEVEN)
    assert list(slots.items()) == [("a-0", [0, 1, 2, 3]), ("a-1", [0, 1, 2, 3]), ("b-0", [0, 1])]
    assert "deepspeed --hostfile hostfile train.py" in readme(chosen, UNEVEN)
    assert "--master_addr a-0 train.py" in readme(chosen, UNEVEN)


def test_devices_that_are_not_the_first(tmp_path: Path) -> None:
    """The launcher can be told to leave out those ahead of them."""
    chosen = plan("deepspeed", 0, [4], [(group("m", "T4", share=2), group("b", "T4", share=2))])
    assert chosen_slots(tmp_path, chosen, MIXED) == {"m-0": [1], "b-0": [0]}
    assert "--include m-0:1@b-0:0 train.py" in readme(chosen, MIXED)


def test_a_host_that_comes_twice() -> None:
    """DeepSpeed refuses it, so there is no hostfile and the README says why."""
    replicas = (group("m", "A100", share=2), group("b", "T4"), group("m", "T4"))
    chosen = plan("deepspeed", 0, [4], [replicas])
    made = {file.path: file.text for file in emit(chosen, MIXED, model(4))}
    assert "hostfile" not in made
    assert "uses a host twice" in made["README.md"]
    assert made["nodes.txt"].splitlines()[1:] == ["0 m-0 m 0 0", "1 b-0 b 0 1", "2 m-0 m 1 2"]


def test_kinds_that_the_launcher_would_swap() -> None:
    """It gives rank r the device r modulo the slots: the ranks 1 and 2 of a node of two come the other way round."""
    one = plan("deepspeed", 0, [4], [(group("b", "T4"), group("m", "A100", share=3), group("m", "T4"))])
    first = plan("deepspeed", 0, [4], [(group("m", "A100", share=3), group("m", "T4"), group("b", "T4"))])
    everyone = ranks(one, MIXED), ranks(first, MIXED)
    assert [keeps_types(agents(found), found) for found in everyone] == [False, True]
    assert "Do not use it here" in readme(one, MIXED)
    assert "Do not use it here" not in readme(first, MIXED)
