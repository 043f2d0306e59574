"""Clusters and models with real numbers, for tests of costs and searches."""

from __future__ import annotations

import random
from typing import Any

from planner.cluster.spec import ClusterSpec, FabricSpec, GpuSpec, IntraNodeSpec, NicSpec, PoolSpec
from planner.model.spec import ModelSpec, TrainingSpec

GPUS = {
    "A100": GpuSpec(
        name="A100",
        memory_gib=80,
        memory_bandwidth_gBps=2039,
        tflops={"bf16": 312, "fp16": 312, "fp32": 19.5},
    ),
    "V100": GpuSpec(
        name="V100", memory_gib=32, memory_bandwidth_gBps=900, tflops={"fp16": 125, "fp32": 15.7}
    ),
}
KINDS = {"ib": "infiniband", "roce": "roce", "eth": "ethernet"}


def pool(
    name: str,
    gpu: str = "A100",
    nodes: int = 1,
    per_node: int = 8,
    fabric: str = "ib",
    gbps: float = 200,
    nics: int = 8,
) -> PoolSpec:
    """Nodes of equal devices on one fabric."""
    return PoolSpec(
        name=name,
        devices=(gpu,) * per_node,
        hosts=tuple(f"{name}-{index}" for index in range(nodes)),
        intra_node=IntraNodeSpec(bandwidth_gBps=300 if gpu == "A100" else 150),
        nics=(NicSpec(fabric=fabric, bandwidth_gbps=gbps, count=nics),),
    )


def cluster(
    *pools: PoolSpec, links: tuple[Any, ...] = (), gpus: dict[str, GpuSpec] | None = None
) -> ClusterSpec:
    """The pools with every fabric they name."""
    known = {**GPUS, **(gpus or {})}
    return ClusterSpec(
        name="test",
        gpus={name: known[name] for item in pools for name in item.devices},
        pools=pools,
        fabrics={
            nic.fabric: FabricSpec(kind=KINDS.get(nic.fabric, "ethernet"), latency_us=5)  # type: ignore[arg-type]
            for item in pools
            for nic in item.nics
        },
        links=links,
    )


def gpt(
    layers: int = 24,
    hidden: int = 2048,
    heads: int = 16,
    *,
    global_batch: int = 64,
    vocab: int = 51200,
    **training: Any,
) -> ModelSpec:
    """A GPT; ``training`` overrides fp16, length 1024 and flash attention."""
    values = {"sequence_length": 1024, "precision": "fp16", **training}
    return ModelSpec(
        name="gpt",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=vocab,
        learned_positions=values["sequence_length"],
        training=TrainingSpec(global_batch=global_batch, **values),
    )


def small_problem(seed: int) -> tuple[ClusterSpec, ModelSpec]:
    """A random cluster of at most 4 devices of 2 kinds and a model of at most 8 layers."""
    draw = random.Random(seed)
    gpus = {
        "A": (draw.choice([8, 16, 24]), draw.choice([900, 2000]), draw.choice([100, 312])),
        "B": (draw.choice([6, 8, 16]), draw.choice([320, 900]), draw.choice([30, 65, 125])),
    }
    specs = {
        name: GpuSpec(name=name, memory_gib=memory, memory_bandwidth_gBps=rate, tflops={"fp16": peak})
        for name, (memory, rate, peak) in gpus.items()
    }
    counts = draw.choice([(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (3, 1), (0, 2), (4, 0), (2, 0)])
    pools = tuple(_small_pool(draw, gpu, count) for gpu, count in zip("AB", counts, strict=True) if count)
    if len(pools) == 2 and draw.random() < 0.15:
        devices = ("A",) * counts[0] + ("B",) * counts[1]
        pools = (pools[0].model_copy(update={"devices": devices, "hosts": ("node",), "nics": ()}),)
    if len(pools) == 2 and draw.random() < 0.3:
        fast = (NicSpec(fabric=fabric, bandwidth_gbps=200) for fabric in ("ib", "roce"))
        pools = tuple(
            item.model_copy(update={"nics": (*item.nics, card)})
            for item, card in zip(pools, fast, strict=True)
        )
    return cluster(*pools, gpus=specs).model_copy(update={"reserve_gib": 0.5}), _small_model(draw)


def _small_pool(draw: random.Random, gpu: str, count: int) -> PoolSpec:
    per_node = draw.choice([size for size in (1, 2, 3, 4) if count % size == 0])
    return PoolSpec(
        name=f"pool-{gpu}",
        devices=(gpu,) * per_node,
        hosts=tuple(f"{gpu}{index}" for index in range(count // per_node)),
        intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([12, 64, 300]), shared=draw.random() < 0.3),
        nics=(NicSpec(fabric="eth", bandwidth_gbps=draw.choice([10, 100, 200])),),
    )


def _small_model(draw: random.Random) -> ModelSpec:
    hidden = draw.choice([512, 1024, 2048])
    model = gpt(
        layers=draw.randint(1, 8),
        hidden=hidden,
        heads=draw.choice([4, 8]),
        global_batch=draw.choice([4, 6, 7, 8]),
        vocab=draw.choice([1000, 32000]),
        sequence_length=draw.choice([256, 1024]),
        attention=draw.choice(["flash", "unfused"]),
    )
    return model.model_copy(update={"tied_embeddings": draw.random() < 0.5})
