"""Placeholders for hosts that the cluster file does not name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, job_of, unnamed_hosts
from planner.plan.values import Plan
from tests.worlds import cluster, group, model, plan, pool

PLAN = plan("deepspeed", 0, [4], [(group("a", "T4", count=2), group("b", "T4"))])
SPEC = model(3)
UNNAMED = cluster(pool("a", ("T4",), 2), pool("b", ("T4",), 1), pool("idle", ("T4",), 1))


def named(*names: str) -> ClusterSpec:
    """The cluster with hosts of these pools named."""
    hosts = {"a": ("n1", "n2"), "b": ("n3",)}
    pools = tuple(
        each.model_copy(update={"hosts": hosts[each.name]}) if each.name in names else each
        for each in UNNAMED.pools
    )
    return UNNAMED.model_copy(update={"pools": pools})


def text(where: ClusterSpec, launcher: str, path: str, chosen: Plan = PLAN) -> str:
    """A file of the folder."""
    files = emit(chosen, where, model(chosen.global_batch, layers=chosen.layers), launcher)
    return next(file.text for file in files if file.path == path)


def test_placeholders() -> None:
    """Of nodes in use, in short form; none of hosts with names of their own."""
    assert job_of(PLAN, UNNAMED, SPEC).placeholders == ("a-[0-1]", "b-0")
    assert job_of(PLAN, named("a"), SPEC).placeholders == ("b-0",)
    assert job_of(PLAN, named("a", "b"), SPEC).placeholders == ()
    larger = cluster(pool("a", ("T4",), 9), pool("b", ("T4",), 1))
    assert job_of(PLAN, larger, SPEC).placeholders == ("a-[0-1]", "b-0")


@pytest.mark.parametrize("launcher", ["torchrun", "ssh", "deepspeed"])
def test_the_readme_says_it_before_the_start(launcher: str) -> None:
    """With the names and the files that hold them."""
    shown = text(UNNAMED, launcher, "README.md")
    assert "`a-[0-1]` and `b-0`: placeholders in `hostfile` and `nodes.txt`, made" in shown
    assert shown.index("## Name the nodes first") < shown.index("## Before you start")
    assert "placeholder" not in text(named("a", "b"), launcher, "README.md")


def test_slurm_is_asked_for_them_too() -> None:
    """It refuses a job on nodes that it does not know."""
    assert "placeholders in `hostfile`, `job.sbatch` and `nodes.txt`" in text(UNNAMED, "slurm", "README.md")


def test_kubernetes_needs_no_names() -> None:
    """Each pod has its place."""
    assert "placeholder" not in text(UNNAMED, "kubernetes", "README.md")


ALONE = plan("deepspeed", 0, [4], [(group("b", "T4"),)])


def test_one_node_needs_a_name_only_where_something_reaches_it_by_that() -> None:
    """Its processes meet at the loopback address, whatever it is called."""
    assert "placeholder" not in text(UNNAMED, "torchrun", "README.md", ALONE)
    assert "Copy the folder to the node" in text(UNNAMED, "torchrun", "README.md", ALONE)
    for launcher in ("ssh", "slurm", "deepspeed"):
        assert "`b-0`: placeholder" in text(UNNAMED, launcher, "README.md", ALONE)
    for launcher in ("torchrun", "ssh", "slurm", "kubernetes"):
        assert 'MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"' in text(UNNAMED, launcher, "launch.sh", ALONE)
    assert unnamed_hosts(job_of(ALONE, UNNAMED, model(1)), "torchrun") == ()
    assert unnamed_hosts(job_of(ALONE, UNNAMED, model(1)), "ssh") == ("b-0",)


def test_flagscale_reaches_one_node_by_its_name() -> None:
    """Its runner goes by ssh to the hosts of its own hostfile."""
    flagscale = replace(ALONE, target="flagscale")
    assert unnamed_hosts(job_of(flagscale, UNNAMED, model(1)), "torchrun") == ("b-0",)
