"""The README of a folder says what the plan is, how to start it and what to fill in."""

from __future__ import annotations

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit
from planner.job.files import layers_of, sizes_text
from planner.plan.values import Plan
from tests.worlds import cluster, group, model, nic, plan, pool


def readme(chosen: Plan, where: ClusterSpec, **changes: str) -> str:
    """The text for a plan."""
    spec = model(chosen.global_batch, layers=chosen.layers, **changes)
    return next(file.text for file in emit(chosen, where, spec) if file.path == "README.md")


def uneven(zero: int = 1) -> Plan:
    """Two groups with different batches."""
    return plan("deepspeed", zero, [4], [(group("a", "A100", share=5, steps=2), group("b", "T4"))])


def on_ethernet(interface: str | None) -> ClusterSpec:
    """Two pools joined by Ethernet."""
    pools = (pool(name, (kind,), 1, (nic("eth", interface),)) for name, kind in (("a", "A100"), ("b", "T4")))
    return cluster(*pools)


def test_plan_in_a_table() -> None:
    """Each group has a row with its batch."""
    text = readme(uneven(), on_ethernet("ens1"))
    assert "| 0 | 0-3 | a / A100 | 1 | 1 | 3, 2 | 5 | none |" in text
    assert "2 ranks on 2 nodes: no pipeline, ZeRO 1, 6 sequences of 16 tokens in a step, bf16." in text


def test_layers_are_those_that_a_stage_holds() -> None:
    """Interleaved stages have several ranges, V-shaped ones the first and the last; a single layer is no range."""
    replicas = [(group("a", "A100", share=8, steps=8),), (group("b", "T4", share=8, steps=8),)]
    assert layers_of(plan("megatron", 1, [3, 1], replicas)) == ["0-2", "3"]
    assert layers_of(plan("megatron", 1, [4, 4], replicas, interleave=2)) == ["0-1, 4-5", "2-3, 6-7"]
    v_shaped = plan("torch", 1, [2, 5], replicas, interleave=2, schedule="zb-v")
    assert layers_of(v_shaped) == ["0, 6", "1-2, 3-5"]


def test_what_to_fill_in() -> None:
    """Files with open lines are named, and there is no such section when none is open."""
    assert "`env/a.sh`, `env/b.sh`" in readme(uneven(), on_ethernet(None))
    assert "Edit first" not in readme(uneven(), on_ethernet("ens1"))


def test_own_script_by_kind() -> None:
    """Without a pipeline the weight is shown, with one the stages."""
    assert "* micro.weight" in readme(uneven(), on_ethernet("ens1"))
    pipeline = plan("deepspeed", 1, [3, 1], [(group("a", "A100"),), (group("b", "T4"),)])
    text = readme(pipeline, on_ethernet("ens1"))
    assert "plan.pipeline_class(" in text
    assert "micro.weight" not in text


def test_sockets_are_explained() -> None:
    """Where RDMA exists but cannot serve the job, the README says so."""
    where = cluster(
        pool("a", ("A100",), 1, (nic("ib", "ib0", "mlx5_0"), nic("eth", "ens1"))),
        pool("b", ("T4",), 1, (nic("eth", "ens1"),)),
    )
    assert "share no RDMA fabric, and DeepSpeed cannot" in readme(uneven(), where)
    both = (group("a", "A100"), group("b", "T4"))
    assert "no process group stays inside one" in readme(plan("megatron", 1, [4], [both]), where)


def test_devices_that_are_not_the_first() -> None:
    """DeepSpeed's launcher is told which devices to use."""
    where = cluster(pool("a", ("T4", "A100"), 1))
    text = readme(plan("deepspeed", 0, [4], [(group("a", "A100"),)]), where)
    assert "--include a-0:1 --no_ssh" in text


@pytest.mark.parametrize(("sizes", "text"), [((4, 4, 3), "4 x 2, 3"), ((1,), "1"), ((), "")])
def test_sizes(sizes: tuple[int, ...], text: str) -> None:
    """Runs of equal micro-batches are a product."""
    assert sizes_text(sizes) == text
