"""Stages that cannot send to each other, or of which a node holds only one, are left out wherever plans are built."""

from __future__ import annotations

import pytest

from planner.cluster.spec import ClusterSpec, FabricLinkSpec
from planner.cost.estimate import Estimator
from planner.search.heuristics.greedy import greedy, layered
from planner.search.heuristics.quick import everywhere, quick_plan
from planner.search.solve import search
from planner.search.space.choices import Choice, depths, families
from planner.search.space.partitions import network_partitions
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.quick import every, first
from tests.worlds import cluster, gpt, pool

SMALL = gpt(4, 512, 8, global_batch=4, vocab=1000, sequence_length=512)

GATEWAY = cluster(
    pool("a", nodes=2, per_node=1, fabric="eth", gbps=10, cards=1),
    pool("b", "V100", per_node=1, fabric="roce", gbps=25, cards=1),
    links=(FabricLinkSpec(between=("eth", "roce"), bandwidth_gbps=5, latency_us=100),),
)
"""Without RDMA between the two, a job on sockets does not reach ``b``."""

ODD_NODES = cluster(
    pool("a", nodes=2, per_node=3, cards=1),
    pool("b", per_node=2, cards=1),
    pool("d", "V100", per_node=2, cards=1),
)
"""Groups of two leave a device of each node of ``a`` over."""


@pytest.mark.parametrize("spec", first(1, [GATEWAY, ODD_NODES]))
@pytest.mark.parametrize("target", every(2, ["deepspeed", "megatron", "torch", "flagscale"]))
def test_every_target_has_an_answer_with_its_reasons(spec: ClusterSpec, target: str) -> None:
    """Quick plans, families and idle devices included."""
    found = search(spec, SMALL, limits=Limits(target=target))
    assert found.status == "optimal"
    assert found.best is not None
    assert found.best.estimate.step_seconds < float("inf")


@pytest.mark.parametrize(
    ("spec", "target"),
    first(
        4,
        [
            *((GATEWAY, "deepspeed"), (ODD_NODES, "megatron"), (GATEWAY, "torch"), (ODD_NODES, "flagscale")),
            *((ODD_NODES, "deepspeed"), (GATEWAY, "megatron"), (ODD_NODES, "torch"), (GATEWAY, "flagscale")),
        ],
    ),
)
def test_quick_plans_of_every_choice(spec: ClusterSpec, target: str) -> None:
    """Each takes a finite time, or there is none."""
    whole, limits = Estimator(spec, SMALL), Limits(target=target)
    for partition in network_partitions(whole, TARGETS[target]).values():
        for family in families(TARGETS[target], limits, SMALL, partition.device_types):
            for depth in depths(family, limits, SMALL, partition.device_types):
                scored = greedy(
                    Choice(family=family, depth=depth, interleave=1),
                    partition.estimator,
                    limits,
                    scorer=whole,
                )
                assert scored is None or scored.estimate.step_seconds < float("inf")
    quick = quick_plan(whole, limits, everywhere(whole))
    assert quick is None or quick.estimate.step_seconds < float("inf")


def test_stages_that_cannot_talk_have_no_layers() -> None:
    """Two pools of which only one is on the network that a job of DeepSpeed has."""
    partition = network_partitions(Estimator(GATEWAY, SMALL), TARGETS["deepspeed"])["sockets"]
    family = next(
        item
        for item in families(TARGETS["deepspeed"], Limits(), SMALL, partition.device_types)
        if (item.tp, item.dp) == (1, 1)
    )
    stages = StageOptions(Choice(family=family, depth=2, interleave=1), partition.estimator, Limits())
    pools = [groups[0].pool for groups in stages.compositions]
    a, b = pools.index("a"), pools.index("b")
    assert stages.talks([a, a])
    assert not stages.talks([a, b])
    assert layered(stages, [a, a], partition.estimator) is not None
    assert layered(stages, [a, b], partition.estimator) is None
