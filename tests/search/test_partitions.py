"""Parts of a cluster that are searched on their own."""

from __future__ import annotations

from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.search.space.partitions import network_partitions
from planner.targets import TARGETS
from tests.worlds import cluster, gpt, pool


def names(spec: ClusterSpec, target: str, precision: str = "fp16") -> list[str]:
    """Partitions of a target in order."""
    return list(network_partitions(Estimator(spec, gpt(precision=precision)), TARGETS[target]))


def test_one_network_is_one_view() -> None:
    """Nothing slow, nothing to split."""
    spec = cluster(pool("a", nodes=2), pool("b", "V100", nodes=2))
    assert names(spec, "megatron") == [""]


def test_a_slow_link_makes_islands() -> None:
    """The whole, which must cross, and each side on its own."""
    spec = cluster(
        pool("a", nodes=2, fabric="ib"),
        pool("b", nodes=2, per_node=4, fabric="ib"),
        pool("c", "V100", nodes=2, fabric="eth", gbps=10, cards=1),
    )
    spec = spec.model_copy(update={"pools": tuple(_also_slow(item) for item in spec.pools)})
    found = network_partitions(Estimator(spec, gpt()), TARGETS["megatron"])
    assert list(found) == ["", ":c", ":a+b"]
    assert found[""].islands == (("a", "b"), ("c",))
    assert [partition.whole for partition in found.values()] == [True, False, False]
    assert {device_type.pool for device_type in found[":a+b"].device_types} == {"a", "b"}
    # Stages with degrees of their own have no bound that knows of sends, so islands would tell nothing; the pools
    # on one fabric stand apart because one network serves all groups.
    assert names(spec, "flagscale") == ["sockets", "a+b"]


def test_pools_that_cannot_train_are_on_no_island() -> None:
    """V100 have no bf16."""
    spec = cluster(pool("a", nodes=2), pool("b", "V100", nodes=2, fabric="eth", gbps=1, cards=1))
    assert names(spec, "megatron") == ["", ":b", ":a"]
    assert names(spec, "megatron", "bf16") == [""]


def _also_slow(item: object) -> object:
    """Every node has a slow card too."""
    from planner.cluster.spec import NicSpec, PoolSpec

    assert isinstance(item, PoolSpec)
    if any(nic.fabric == "eth" for nic in item.nics):
        return item
    slow = NicSpec(fabric="eth", bandwidth_gbps=10, count=1)
    return item.model_copy(update={"nics": (*item.nics, slow)})
