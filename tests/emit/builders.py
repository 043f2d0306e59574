"""Small clusters, models and plans made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.cluster.spec import ClusterSpec, FabricSpec, GpuSpec, IntraNodeSpec, NicSpec, PoolSpec
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.values import Plan, ReplicaGroup, Stage

GPU_MEMORY_GIB = {"A100": 80.0, "A100-SXM-80GB": 80.0, "T4": 16.0}


def gpu(name: str) -> GpuSpec:
    """A device kind; its numbers do not matter to emitters."""
    return GpuSpec(
        name=name, memory_gib=GPU_MEMORY_GIB[name], memory_bandwidth_gBps=1000.0, tflops={"bf16": 100.0}
    )


def pool(name: str, devices: tuple[str, ...], nodes: int, nics: tuple[NicSpec, ...] = ()) -> PoolSpec:
    """A pool of nodes called name-0, name-1, ..."""
    hosts = tuple(f"{name}-{index}" for index in range(nodes))
    return PoolSpec(
        name=name, devices=devices, hosts=hosts, intra_node=IntraNodeSpec(bandwidth_gBps=300.0), nics=nics
    )


def cluster(*pools: PoolSpec, **fabrics: str) -> ClusterSpec:
    """A cluster of the pools, with fabrics by kind."""
    return ClusterSpec(
        name="test",
        gpus={name: gpu(name) for name in GPU_MEMORY_GIB},
        pools=pools,
        fabrics={name: FabricSpec(kind=kind, latency_us=5.0) for name, kind in fabrics.items()},  # type: ignore[arg-type]
    )


def nic(fabric: str, interface: str | None = None, hca: str | None = None, gbps: float = 100.0) -> NicSpec:
    """A card."""
    return NicSpec(fabric=fabric, bandwidth_gbps=gbps, interface=interface, hca=hca)


def model(global_batch: int, layers: int = 4, **changes: Any) -> ModelSpec:
    """A tiny decoder; ``changes`` go to the model, or to its training under their own name."""
    training = {
        name: changes.pop(name)
        for name in ("precision", "optimizer", "attention", "dropout")
        if name in changes
    }
    values: dict[str, Any] = {
        "name": "tiny",
        "layers": layers,
        "hidden": 32,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 8,
        "ffn": 64,
        "vocab": 64,
        "training": TrainingSpec(sequence_length=16, global_batch=global_batch, **training),
    }
    return ModelSpec(**{**values, **changes})


def group(
    pool: str, gpu: str, *, count: int = 1, share: int = 1, steps: int = 1, tp: int = 1
) -> ReplicaGroup:
    """Replicas of a stage."""
    return ReplicaGroup(pool=pool, gpu=gpu, tp=tp, count=count, share=share, steps=steps)


def stages(
    layers: Sequence[int], replicas: Sequence[tuple[ReplicaGroup, ...]], recompute: str = "none"
) -> tuple[Stage, ...]:
    """Stages with these numbers of layers."""
    found, first = [], 0
    for count, groups in zip(layers, replicas, strict=True):
        found.append(
            Stage(first_layer=first, end_layer=first + count, replicas=groups, recompute=recompute)  # type: ignore[arg-type]
        )
        first += count
    return tuple(found)


def plan(
    target: str,
    zero: int,
    layers: Sequence[int],
    replicas: Sequence[tuple[ReplicaGroup, ...]],
    **changes: Any,
) -> Plan:
    """A plan; ``recompute`` holds for all stages."""
    made = stages(layers, replicas, changes.pop("recompute", "none"))
    return Plan(target=target, zero=zero, stages=made, **changes)
