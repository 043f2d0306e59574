"""Pools and devices in the order of what they are."""

from __future__ import annotations

from itertools import permutations

from planner.catalog import GpuSpec
from planner.search.ranking import ranked
from tests.worlds import cluster, nic, pool

GPUS = {
    name: GpuSpec(name=name, memory_gib=memory, memory_bandwidth_gBps=1000, tflops={"fp16": peak})
    for name, memory, peak in (("fast", 40, 300), ("large", 80, 200), ("small", 40, 200))
}


def test_pools_are_ordered_by_what_they_are() -> None:
    """The fastest device first, then the one with most memory, then most nodes; whatever the file's order."""
    pools = (
        pool("d", "fast", per_node=2),
        pool("a", "large", per_node=2),
        pool("c", "small", nodes=2, per_node=2),
        pool("b", "small", per_node=2),
    )
    for order in permutations(pools):
        assert "".join(item.name for item in ranked(cluster(*order, gpus=GPUS)).pools) == "dacb"


def test_devices_of_a_node_are_ordered_alike() -> None:
    """Also where the memory alone differs."""
    for order in permutations(GPUS):
        spec = cluster(pool("a", order, nics=(nic("ib"),)), gpus=GPUS)
        assert ranked(spec).pools[0].devices == ("fast", "large", "small")
