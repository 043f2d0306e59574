"""Random clusters of up to three pools, of any size and mix, and models for them."""

from __future__ import annotations

import random

from planner.catalog import GpuSpec
from planner.cluster.spec import ClusterSpec, FabricLinkSpec, NicSpec, PoolSpec
from planner.model.spec import ModelSpec
from tests.worlds import cluster, gpt, pool

FABRICS = ("ib", "eth")


def problem(seed: int) -> tuple[ClusterSpec, ModelSpec]:
    """Nodes of 1 to 16 devices, equal or mixed, often on networks of their own, and a batch of any size."""
    draw = random.Random(seed)
    gpus = {
        "A100": _gpu("A100", draw.choice([24, 40, 80]), 2000, draw.choice([150, 312])),
        "V100": _gpu("V100", draw.choice([11, 16, 32]), 900, draw.choice([60, 125])),
        "T4": _gpu("T4", 16, 320, 65),
    }
    pools = tuple(_pool(draw, name) for name in "abc"[: draw.choice([1, 2, 2, 3])])
    links = (FabricLinkSpec(between=FABRICS, bandwidth_gbps=10.0, latency_us=100.0),)
    used = {nic.fabric for item in pools for nic in item.nics}
    return cluster(*pools, links=links if used == set(FABRICS) else (), gpus=gpus), _model(draw)


def _gpu(name: str, memory: float, rate: float, peak: float) -> GpuSpec:
    return GpuSpec(
        name=name, memory_gib=memory, memory_bandwidth_gBps=rate, tflops={"fp16": peak, "fp32": peak / 8}
    )


def _pool(draw: random.Random, name: str) -> PoolSpec:
    gpu = draw.choice(["A100", "V100", "T4"])
    per_node = draw.choice([1, 2, 3, 4, 5, 6, 8, 16])
    nodes, fabric = draw.choice([1, 1, 2, 3, 5]), draw.choice(FABRICS)
    item = pool(name, gpu, nodes, per_node=per_node, fabric=fabric, gbps=100, cards=1)
    if item.nics[0].fabric == "ib" and draw.random() < 0.7:
        item = item.model_copy(update={"nics": (*item.nics, NicSpec(fabric="eth", bandwidth_gbps=25.0))})
    if per_node > 1 and draw.random() < 0.2:
        other = draw.choice(["A100", "V100", "T4"])
        item = item.model_copy(update={"devices": (gpu,) * (per_node - 1) + (other,)})
    return item


def _model(draw: random.Random) -> ModelSpec:
    return gpt(
        layers=draw.choice([2, 8, 24, 31]),
        hidden=draw.choice([512, 1024, 2048, 4096]),
        global_batch=draw.choice([1, 3, 16, 60, 64, 97, 256]),
    )
