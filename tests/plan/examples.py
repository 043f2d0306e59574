"""A small cluster, a small model and plans for them."""

from __future__ import annotations

from typing import Any

from planner.catalog import GpuSpec
from planner.cluster.spec import FabricSpec
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests.worlds import cluster, nic, pool

T4 = GpuSpec(name="T4", memory_gib=15, memory_bandwidth_gBps=320, tflops={"fp16": 65})
A100 = GpuSpec(name="A100", memory_gib=80, memory_bandwidth_gBps=2000, tflops={"bf16": 312, "fp16": 312})
FABRICS = {
    "ib": FabricSpec(kind="infiniband", latency_us=2),
    "eth": FabricSpec(kind="ethernet", latency_us=30),
}
CARDS = (nic("ib", gbps=200),)
CLUSTER = cluster(
    pool("slow", ("T4",) * 4, 1, CARDS),
    pool("fast", ("A100",) * 4, 2, CARDS),
    gpus={"T4": T4, "A100": A100},
).model_copy(update={"name": "c", "fabrics": FABRICS})
MODEL = ModelSpec(
    name="m",
    layers=8,
    hidden=64,
    heads=8,
    kv_heads=2,
    head_dim=8,
    ffn=256,
    vocab=100,
    training=TrainingSpec(sequence_length=128, global_batch=32, precision="fp16"),
)
UNTIED = MODEL.model_copy(update={"tied_embeddings": False})


def group(**fields: Any) -> ReplicaGroup:
    """Two A100 replicas that take 16 sequences each in 4 steps."""
    defaults = {
        "pool": "fast",
        "gpu": "A100",
        "tp": 1,
        "count": 2,
        "local_batch": 16,
        "accumulation_steps": 4,
    }
    return ReplicaGroup(**{**defaults, **fields})


def stage(first: int, end: int, *groups: ReplicaGroup, **fields: Any) -> Stage:
    """A stage of these layers."""
    return Stage(first_layer=first, end_layer=end, replicas=groups or (group(),), **fields)


def plan(*stages: Stage, **fields: Any) -> Plan:
    """A Megatron plan of two stages unless other stages are given."""
    both = stages or (stage(0, 5), stage(5, 8, group(pool="slow", gpu="T4")))
    return Plan(**{"target": "megatron", "zero": 1, "stages": both, **fields})
