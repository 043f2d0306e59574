"""Ranks, hosts and idle devices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.spec import ClusterSpec
from planner.plan.placement import ranks
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.report.ranks import idle_devices, idle_lines, idle_section, rank_runs, ranks_section
from tests.report import examples
from tests.report.drawing import drawn


def test_runs_of_equal_ranks_share_a_row() -> None:
    """Ranks, hosts and device indices of each stage."""
    assert drawn(ranks_section(examples.plan(), examples.cluster())) == (
        "Ranks\n"
        "  ranks  stage  hosts    devices  replicas on a host\n"
        "  ──────────────────────────────────────────────────\n"
        "  0-3    0      a100-01  0-3      1 x tp 4 on A100\n"
        "  4-7    1      v100-01  0-3      1 x tp 4 on V100\n"
        "\n"
    )


def test_idle_devices_are_named() -> None:
    """Pool, host and device indices; nothing when all work."""
    assert idle_lines(examples.plan(), examples.cluster()) == [
        "4 A100 (a100): a100-02, devices 0-3",
        "4 V100 (v100): v100-01, devices 4-7",
    ]
    assert drawn(idle_section(data_parallel(8, 8), examples.cluster())) == ""


def data_parallel(a100: int, v100: int) -> Plan:
    """One stage with so many devices of each pool."""
    counts = (("a100", "A100", a100), ("v100", "V100", v100))
    groups = tuple(
        ReplicaGroup(pool=pool, gpu=gpu, tp=1, count=count, local_batch=4, accumulation_steps=2)
        for pool, gpu, count in counts
        if count
    )
    return Plan(target="deepspeed", zero=1, stages=(Stage(first_layer=0, end_layer=32, replicas=groups),))


def mixed() -> ClusterSpec:
    """The example with nodes that mix both device types."""
    cluster = examples.cluster()
    pool = cluster.pools[0].model_copy(update={"devices": ("A100", "V100", "A100", "V100")})
    return cluster.model_copy(update={"pools": (pool, cluster.pools[1])})


@given(a100=st.integers(0, 4), v100=st.integers(0, 8), nodes=st.sampled_from([examples.cluster(), mixed()]))
def test_runs_are_the_ranks_and_idle_is_the_rest(a100: int, v100: int, nodes: ClusterSpec) -> None:
    """Every device is in exactly one run or idle, and the runs say what the placement says."""
    if a100 + v100 == 0:
        return
    plan = data_parallel(a100, v100)
    shown = [
        (run.first_rank + run.ranks, host, device)
        for run in rank_runs(plan, nodes)
        for host in run.hosts
        for device in run.devices
    ]
    assert [(host, device) for _, host, device in shown] == [
        (rank.host, rank.device) for rank in ranks(plan, nodes)
    ]
    idle = {
        (host, device)
        for entry in idle_devices(plan, nodes)
        for host in entry.hosts
        for device in entry.devices
    }
    used = {(host, device) for _, host, device in shown}
    everything = {
        (host, index) for pool in nodes.pools for host in pool.hosts for index in range(len(pool.devices))
    }
    assert used | idle == everything
    assert not used & idle
