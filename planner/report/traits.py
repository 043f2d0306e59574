"""A plan as short texts by decision, for telling two plans apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby

from planner.plan.values import Plan, Stage


def traits(plan: Plan) -> dict[str, str]:
    """Decision to text; stages are separated by ``|``, runs of equal ones written once with their number."""
    stages = plan.stages
    return {
        "target": plan.target,
        "ZeRO": str(plan.zero),
        "sharded over": f"groups of {plan.shard_size}" if plan.shard_size else "all replicas",
        "stages": str(plan.pp),
        "layers": by_stage(str(stage.layers) for stage in stages),
        "devices": by_stage(_devices(stage) for stage in stages),
        "tp": by_stage(_by_group(str(group.tp) for group in stage.replicas) for stage in stages),
        "replicas": by_stage(str(stage.dp) for stage in stages),
        "micro-batch": by_stage(
            _by_group(str(group.micro_batch) for group in stage.replicas) for stage in stages
        ),
        "micro-batches": by_stage(
            _by_group(str(group.steps) for group in stage.replicas) for stage in stages
        ),
        "recomputation": recompute_text(plan),
        "interleaved chunks": str(plan.interleave),
        "sequence parallel": "yes" if plan.sequence_parallel else "no",
        "offload": offload_text(plan) if plan.offload.anything else "none",
    }


def in_short(plan: Plan) -> str:
    """``megatron, ZeRO 1, 2 stages, dp 8, tp 4, layers 7|5, micro-batch 4, on 32 a|32 b``, without what is 1 or no."""
    found = traits(plan)
    pipeline = plan.pp > 1
    parts = [
        plan.target,
        plan.zero_text,
        f"{plan.pp} stages" if pipeline else "",
        f"dp {found['replicas']}",
        f"tp {found['tp']}" if found["tp"] != "1" else "",
        f"layers {found['layers']}" if pipeline else "",
        f"micro-batch {found['micro-batch']}",
        f"{found['recomputation']} recomputation" if found["recomputation"] != "no" else "",
        f"{plan.interleave} interleaved chunks" if plan.interleave > 1 else "",
        "sequence parallel" if plan.sequence_parallel else "",
        f"on {found['devices']}",
    ]
    return ", ".join(part for part in parts if part)


def recompute_text(plan: Plan) -> str:
    """The recomputation of all stages: ``no``, ``full``, or ``none|full (x 3)`` where they differ."""
    text = by_stage(stage.recompute for stage in plan.stages)
    return "no" if text == "none" else text


def offload_text(plan: Plan) -> str:
    """What is kept where: ``optimizer + parameters offloaded to cpu``; empty when all is on the devices."""
    places: dict[str, list[str]] = {}
    for name, place in asdict(plan.offload).items():
        if place != "none":
            places.setdefault(place, []).append(name)
    return "; ".join(f"{' + '.join(names)} offloaded to {place}" for place, names in places.items())


def by_stage(texts: Iterable[str]) -> str:
    """Texts of all stages: ``23|9``; equal neighbours as ``12 (x 7)|8``; all equal as one."""
    grouped = [(text, len(list(same))) for text, same in groupby(texts)]
    if len(grouped) == 1:
        return grouped[0][0]
    return "|".join(text if length == 1 else f"{text} (x {length})" for text, length in grouped)


def _by_group(texts: Iterable[str]) -> str:
    """Texts of the groups of one stage: ``4+1``; all equal as one."""
    found = list(texts)
    return found[0] if len(set(found)) == 1 else "+".join(found)


def _devices(stage: Stage) -> str:
    """Devices by pool: ``4 mixed + 2 titan``."""
    pools: Counter[str] = Counter()
    for group in stage.replicas:
        pools[group.pool] += group.devices
    return " + ".join(f"{devices} {pool}" for pool, devices in pools.items())


def differences(plan: Plan, other: Plan) -> list[str]:
    """What the first plan decides differently: ``layers 23|9 instead of 16``."""
    ours, theirs = traits(plan), traits(other)
    return [f"{name} {text} instead of {theirs[name]}" for name, text in ours.items() if text != theirs[name]]
