"""Random plans of any runtime, made from its capabilities alone."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from planner.capabilities import RECOMPUTES, Capabilities
from planner.errors import HetplanError
from planner.plan.checks import target_faults
from planner.plan.values import Offload, Plan, ReplicaGroup, Stage
from tests.runtimes.megatron.plans import Case
from tests.worlds import cluster, group, model, nic, pool

IB, ETH = nic("ib", "ib0", "mlx5_0"), nic("eth", "eth0")
ROCE, OPEN = nic("roce", "r0", "mlx5_2"), nic("eth")
CLUSTERS = (
    cluster(pool("a", ("A100",) * 8, 8)),
    cluster(pool("a", ("A100",) * 8, 16, (IB, ETH)), pool("b", ("T4",) * 8, 16, (IB, OPEN))),
    cluster(pool("a", ("A100",) * 8, 16, (IB, ETH)), pool("b", ("T4",) * 8, 16, (ROCE, ETH))),
    cluster(pool("mixed", ("A100",) * 4 + ("T4",) * 4, 32, (ETH,))),
)
MODELS: tuple[dict[str, Any], ...] = (
    {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False},
    {"gated_mlp": True, "qkv_bias": True},
    {"learned_positions": 64},
    {"kind": "encoder", "learned_positions": 16},
)
OFFLOADS = (
    Offload(),
    Offload(),
    Offload(),
    Offload(optimizer="cpu"),
    Offload(optimizer="cpu", parameters="cpu"),
    Offload(activations="cpu"),
)


def cases(row: Capabilities, count: int, seed: int) -> list[Case]:
    """Plans that the capabilities allow: grids, layers, batches, memory, number formats and models all vary."""
    found = [case for case, allowed in drawn(row, 12 * count, seed) if allowed]
    assert len(found) >= count
    return found[:count]


def drawn(row: Capabilities, count: int, seed: int) -> Iterator[tuple[Case, bool]]:
    """Plans of which many break a rule, and whether the capabilities allow each."""
    chance = Random(seed)
    for _ in range(count):
        try:
            case = _one(row, chance)
        except HetplanError:
            continue  # no plan of any runtime
        allowed = case.model.training.precision in row.precisions
        allowed = allowed and (row.sequence_parallel or not case.plan.sequence_parallel)
        yield case, allowed and not target_faults(case.plan, case.model)


def _one(row: Capabilities, chance: Random) -> Case:
    where = chance.choice(CLUSTERS)
    pp = chance.choice((1, 1, 2, 3)) if row.zero_with_pipeline else 1
    dp, steps = chance.choice((1, 2, 2, 4, 6)), chance.randint(1, 3) * pp
    tp = 1 if row.tensor_parallel == "none" else chance.choice((1, 2, 4))
    sequences = dp * steps * chance.randint(1, 3)
    rule = row.batch_without_pipeline if pp == 1 else row.batch_with_pipeline
    recompute = chance.choice(RECOMPUTES)
    stages, first = [], 0
    for _ in range(pp):
        layers = chance.randint(2, 5)
        own = chance.choice(
            [n for n in (dp, 2 * dp) if sequences % (n * steps) == 0] if row.dp_per_stage else [dp]
        )
        degree = chance.choice((1, 2, 4)) if row.tensor_parallel == "per-stage" else tp
        share = sequences // own
        groups = _groups(chance, where.pools[0].name, where.pools[-1].name, own, degree, share, steps)
        if rule == "per-device" and chance.random() < 0.5:
            groups = tuple(
                ReplicaGroup(
                    pool=each.pool,
                    gpu=each.gpu,
                    tp=each.tp,
                    count=each.count,
                    local_batch=share + index,
                    accumulation_steps=steps,
                )
                for index, each in enumerate(groups)
            )
        stages.append(
            Stage(first_layer=first, end_layer=first + layers, replicas=groups, recompute=recompute)
        )
        first += layers
    plan = Plan(
        target=row.name,
        zero=chance.choice(row.zero_without_pipeline if pp == 1 else row.zero_with_pipeline),
        stages=tuple(stages),
        interleave=chance.choice((1, 2)) if row.interleave and pp > 1 else 1,
        sequence_parallel=chance.random() < 0.6 and tp > 1,
        offload=chance.choice(OFFLOADS),
        shard_size=chance.choice((None, 2)) if row.hybrid_zero else None,
    )
    spec = model(
        plan.global_batch,
        layers=first,
        precision=chance.choice(row.precisions),
        optimizer=chance.choice(("adamw", "adamw", "sgd")),
        **chance.choice(MODELS),
    )
    return Case(plan, where, spec)


def _groups(
    chance: Random, first: str, last: str, count: int, tp: int, share: int, steps: int
) -> tuple[ReplicaGroup, ...]:
    """Equal replicas on one device kind, or some on each."""
    at = chance.choice((count, count, chance.randint(0, count)))
    other = "A100" if first == last == "a" else "T4"
    made = (
        group(first, "A100", tp=tp, count=at, share=share, steps=steps) if at else None,
        group(last, other, tp=tp, count=count - at, share=share, steps=steps) if count - at else None,
    )
    return tuple(each for each in made if each)
