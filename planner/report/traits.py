"""A plan as short texts by decision, for telling two plans apart."""

from __future__ import annotations

from planner.dims import DIMENSIONS
from planner.plan.values import Plan


def traits(plan: Plan) -> dict[str, str]:
    """Decision to text; stages are separated by ``|``, runs of equal ones written once with their number."""
    found = {"target": plan.target}
    for dimension in DIMENSIONS:
        found |= dimension.traits(plan)
    return found


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
        *(dimension.words(plan) for dimension in DIMENSIONS),
        f"on {found['devices']}",
    ]
    return ", ".join(part for part in parts if part)


def differences(plan: Plan, other: Plan) -> list[str]:
    """What the first plan decides differently: ``layers 23|9 instead of 16``."""
    ours, theirs = traits(plan), traits(other)
    return [f"{name} {text} instead of {theirs[name]}" for name, text in ours.items() if text != theirs[name]]
