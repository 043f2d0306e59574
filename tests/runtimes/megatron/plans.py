"""Plans for Megatron of many shapes, made from a seed, and those that searches of shipped files return."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from planner.calibration.values import ASSUMED
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.model.file import load_model
from planner.model.spec import ModelSpec
from planner.plan.values import ON_DEVICE, Offload, Plan, ReplicaGroup
from planner.search.solve import search
from planner.search.values import Limits
from tests.worlds import cluster, group, model, plan, pool

REPOSITORY = Path(__file__).parents[3]
MIXED_NODES = cluster(pool("mixed", ("A100",) * 4 + ("T4",) * 4, 32))
POOLS = cluster(pool("a", ("A100",) * 8, 32), pool("b", ("T4",) * 8, 32))
MODELS: tuple[dict[str, Any], ...] = (
    {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False},
    {"gated_mlp": True, "kv_heads": 1, "qkv_bias": True},
    {"gated_mlp": True, "qk_norm": True, "head_dim": 16, "tied_embeddings": False},
    {"learned_positions": 64},
    {"kind": "encoder", "learned_positions": 16},
)
SHIPPED = (
    ("lab", "gpt2_345m"),
    ("poplar_a100", "llama_1.1b"),
    ("poplar_v100_t4", "llama_0.5b"),
    ("holmes_hybrid", "gpt_7.5b"),
    ("v100_t4_10g", "llama_1.1b"),
    ("dgx_a100", "llama_13b"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A plan and what it is for."""

    plan: Plan
    cluster: ClusterSpec
    model: ModelSpec


def generated(count: int, seed: int) -> list[Case]:
    """Random plans that Megatron runs: grids, layers, batches, memory, number formats and models all vary."""
    chance = Random(seed)
    return [_one(chance) for _ in range(count)]


def _one(chance: Random) -> Case:
    tp, dp, pp = chance.choice((1, 2, 4)), chance.randint(1, 6), chance.randint(1, 5)
    interleave = chance.choice((1, 2)) if pp > 1 else 1
    steps = pp * chance.randint(1, 3) if interleave > 1 else chance.randint(1, 9)
    layers = [chance.randint(interleave, 6) for _ in range(pp)]
    zero, optimizer = chance.choice(((0, "adamw"), (0, "sgd"), (1, "adamw")))
    where = chance.choice((MIXED_NODES, POOLS))
    share = steps * chance.randint(1, 3)
    replicas = [_replicas(chance, where, tp, dp, share, steps) for _ in range(pp)]
    chosen = plan(
        "megatron",
        zero,
        layers,
        replicas,
        recompute=chance.choice(("none", "selective", "full")),
        interleave=interleave,
        sequence_parallel=tp > 1 and chance.random() < 0.5,
        offload=_offload(chance) if zero else ON_DEVICE,
    )
    spec = model(
        chosen.global_batch,
        layers=chosen.layers,
        precision=chance.choice(("bf16", "fp16", "fp32", "tf32")),
        optimizer=optimizer,
        attention=chance.choice(("flash", "unfused")),
        dropout=chance.choice((None, True, False)),
        **chance.choice(MODELS),
    )
    return Case(chosen, where, spec)


def _offload(chance: Random) -> Offload:
    """All or a part of the optimizer on hosts, now and then."""
    return (
        Offload(optimizer="cpu", ratio=chance.choice((0.1, 0.6, 1.0))) if chance.random() < 0.2 else ON_DEVICE
    )


def _replicas(
    chance: Random, where: ClusterSpec, tp: int, dp: int, share: int, steps: int
) -> tuple[ReplicaGroup, ...]:
    """Equal replicas on one device kind, or some on each."""
    first = chance.choice((0, dp, dp, chance.randint(0, dp)))
    kinds = [(pool.name, gpu) for pool in where.pools for gpu in dict.fromkeys(pool.devices)]
    counts = zip(kinds, (first, dp - first), strict=True)
    return tuple(
        group(name, gpu, tp=tp, count=count, share=share, steps=steps)
        for (name, gpu), count in counts
        if count
    )


def searched() -> list[Case]:
    """The best plan of each family that searches of shipped files find."""
    found = []
    for cluster_name, model_name in SHIPPED:
        where = load_cluster(REPOSITORY / "cluster_specs" / f"{cluster_name}.yaml")
        spec = load_model(REPOSITORY / "model_specs" / f"{model_name}.yaml")
        result = search(where, spec, ASSUMED, Limits(target="megatron", time_limit_seconds=20.0))
        plans = [result.best, *(other.scored for other in result.alternatives)]
        found += [Case(item.plan, where, spec) for item in plans if item and item.plan.target == "megatron"]
    return found
