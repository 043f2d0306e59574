"""Parts of a cluster that are searched on their own."""

from __future__ import annotations

import pytest

from planner.catalog import GpuSpec
from planner.cluster.spec import ClusterSpec, NicSpec
from planner.cost.estimate import Estimator
from planner.plan.placement import Slot
from planner.search.bounds.device_rates import DeviceRates
from planner.search.explorer import Explorer
from planner.search.milp.export import _partition
from planner.search.solve import search
from planner.search.space.partitions import (
    NetworkPartition,
    network_partitions,
    whole_partition,
    wide_partitions,
)
from planner.search.values import Limits, Silent
from planner.targets import TARGETS
from tests.quick import first
from tests.worlds import cluster, gpt, group, nic, plan, pool


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


@pytest.mark.parametrize("target", first(0, ["deepspeed", "torch"]))
def test_one_node_of_a_pool_whose_nodes_ethernet_joins_uses_rdma(target: str) -> None:
    """With another pool, as it would if it were a pool of its own."""
    here = pool("a", per_node=2, gbps=100)
    there = pool("b", "V100", nodes=2, per_node=2, fabric="eth", gbps=25)
    there = there.model_copy(update={"nics": (*there.nics, NicSpec(fabric="ib", bandwidth_gbps=9, count=2))})
    apart = tuple(
        there.model_copy(update={"name": f"b{index}", "hosts": (host,)})
        for index, host in enumerate(there.hosts)
    )
    assert {"sockets", "a+b"} <= {*names(cluster(here, there), target)}
    model, limits = gpt(3, 1024, 8, global_batch=600), Limits(gap=0.0, target=target)
    as_one, as_two = (
        search(cluster(here, *others), model, limits=limits, explain=False) for others in ((there,), apart)
    )
    assert as_one.status == as_two.status == "optimal"
    assert as_one.best is not None
    assert as_two.best is not None
    assert as_one.best.plan.devices == 4
    assert not Estimator(cluster(here, there), model).uses_sockets(as_one.best.plan)
    assert as_one.best.estimate.step_seconds == pytest.approx(as_two.best.estimate.step_seconds, rel=1e-9)


def test_stages_apart_share_a_node_that_rdma_reaches() -> None:
    """As they do where each node is a pool of its own, so that both ways to write the nodes have one answer."""
    here = pool("b", "B", per_node=1, gbps=100, cards=1)
    here = here.model_copy(update={"nics": (*here.nics, NicSpec(fabric="eth", bandwidth_gbps=1, count=1))})
    there = pool("a", "T4", nodes=2, per_node=2, fabric="eth", gbps=25, cards=1)
    there = there.model_copy(update={"nics": (*there.nics, NicSpec(fabric="ib", bandwidth_gbps=18, count=1))})
    apart = [
        there.model_copy(update={"name": f"a{index}", "hosts": (host,)})
        for index, host in enumerate(there.hosts)
    ]
    # It has no room for the embedding, nor for the head.
    gpus = {"B": GpuSpec(name="B", memory_gib=4, memory_bandwidth_gBps=2039, tflops={"fp16": 312})}
    model, limits = (
        gpt(8, 1024, 8, global_batch=4, vocab=100000),
        Limits(gap=0.0, target="deepspeed", pp=(3,)),
    )
    found = [
        search(cluster(here, *others, gpus=gpus), model, limits=limits, explain=False).best
        for others in ((there,), apart)
    ]
    assert all(best is not None for best in found)
    one, two = (best for best in found if best is not None)
    assert one.estimate.step_seconds == pytest.approx(two.estimate.step_seconds, rel=1e-9)
    assert not Estimator(cluster(here, there, gpus=gpus), model).uses_sockets(one.plan)
    for best in (one, two):
        assert "".join(stage.replicas[0].pool[0] for stage in best.plan.stages) == "aba"


def two_networks() -> ClusterSpec:
    """Pools with cards on two networks: nodes of ``b`` reach each other by Ethernet, all others by InfiniBand."""
    a, b = (
        pool("a", nodes=2, per_node=2, gbps=50, cards=2),
        pool("b", nodes=2, per_node=2, fabric="eth", gbps=110),
    )
    slow, narrow = (
        NicSpec(fabric="eth", bandwidth_gbps=10, count=1),
        NicSpec(fabric="ib", bandwidth_gbps=8, count=2),
    )
    return cluster(
        a.model_copy(update={"nics": (*a.nics, slow)}), b.model_copy(update={"nics": (*b.nics, narrow)})
    )


@pytest.mark.parametrize(("count", "network"), [(2, "a+b"), (4, "sockets")])
def test_the_model_that_is_exported_is_on_the_network_of_the_plan(count: int, network: str) -> None:
    """With as many nodes of a pool as the plan has."""
    spec, row = two_networks(), TARGETS["deepspeed"]
    estimator = Estimator(spec, gpt())
    stages = ((group("a", "A100", share=6, count=count),), (group("b", "A100", share=6, count=count),))
    chosen = plan("deepspeed", 0, [12, 12], stages)
    assert estimator.uses_sockets(chosen) == (network == "sockets")
    assert _partition(chosen, estimator) is network_partitions(estimator, row)[network]


def test_an_island_with_one_node_of_such_a_pool_uses_rdma() -> None:
    """As plans without islands do; with two it is on sockets."""
    estimator = Estimator(two_networks(), gpt())
    for nodes, link in ((1, "ib"), (2, "eth")):
        slots = [
            Slot(pool=name, gpu="A100", tp=1, first_node=0, nodes=used, first_device=0, replicas_per_node=2)
            for name, used in (("a", 1), ("b", nodes))
        ]
        assert estimator.ring_inside(slots, "torch").crosses == link


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


def test_replicas_on_several_nodes_talk_over_the_network_of_the_job() -> None:
    """Where InfiniBand answers late, jobs on sockets are the faster ones: no bound may assume the other network."""
    both = (nic("ib", gbps=400), nic("lan", gbps=400))
    slow = cluster(pool("a", nodes=4, per_node=2, nics=both), pool("b", "V100", per_node=4, nics=both[1:]))
    late = slow.fabrics["ib"].model_copy(update={"latency_us": 100_000})
    spec = slow.model_copy(update={"fabrics": {**slow.fabrics, "ib": late}})
    estimator, limits = Estimator(spec, gpt(8, global_batch=16)), Limits(target="torch", tp=(4,))
    devices = {each.key: each.devices for each in estimator.topology.device_types}
    least = DeviceRates(estimator, limits).least_over_nodes(devices)["torch", 4]
    explorer = Explorer(estimator, limits, Silent())
    explorer.run()
    ways = wide_partitions(estimator, TARGETS["torch"], 4)
    floors = [_least(way, limits) for way in ways.values()]
    assert least <= min(floors) < max(floors)
    assert explorer.best is not None
    assert min(floors) <= explorer.best.estimate.step_seconds < max(floors)


def test_networks_in_which_a_replica_fits_a_node_hide_no_others() -> None:
    """Of the sockets, an island of whole nodes and one of halves, the first and the last are asked over nodes."""
    halves = pool("b", "V100", nodes=2, per_node=2, nics=(nic("roce"), nic("eth", gbps=25)))
    spec = cluster(pool("a", per_node=4, nodes=2, nics=(nic("ib"), nic("eth", gbps=25))), halves)
    estimator = Estimator(spec, gpt(precision="fp16"))
    assert names(spec, "torch")[:3] == ["sockets", "a", "b"]
    ways = wide_partitions(estimator, TARGETS["torch"], 4)
    assert {name.split(" over")[0] for name in ways} >= {"sockets", "b"}
    assert not any(name.startswith("a ") for name in ways)


def test_islands_in_which_a_replica_fits_a_node_hide_no_others() -> None:
    """Of two islands behind a slow link only that of halves is asked over nodes, whichever comes first."""
    for halved in ("a", "b"):
        pools = (
            pool(
                name, gpu, nodes=2, per_node=2 if name == halved else 4, nics=(nic("ib"), nic("eth", gbps=1))
            )
            for name, gpu in (("a", "A100"), ("b", "V100"))
        )
        first, second = pools
        second = second.model_copy(update={"nics": (nic("roce"), nic("eth", gbps=1))})
        estimator = Estimator(cluster(first, second), gpt(precision="fp16"))
        ways = wide_partitions(estimator, TARGETS["megatron"], 4)
        assert list(ways) == [" over nodes, tp 4", f":{halved} over nodes, tp 4"]


def _least(way: NetworkPartition, limits: Limits) -> float:
    """By the rates of the devices of a partition."""
    own = {each.key: each.devices for each in way.estimator.topology.device_types}
    return DeviceRates(way.estimator, limits).least_seconds(own)


def test_the_whole_cluster_with_all_its_networks() -> None:
    """Is one part without islands, on equal pools as one."""
    spec = cluster(pool("a"), pool("b"), pool("c", "V100", fabric="eth", gbps=10, cards=1))
    found = whole_partition(Estimator(spec, gpt()))
    assert (found.whole, found.islands) == (True, ())
    assert [(each.pool, each.devices) for each in found.device_types] == [("a", 16), ("c", 8)]
    unlike = Estimator(cluster(pool("a"), pool("c", "V100")), gpt())
    assert whole_partition(unlike).estimator is unlike
