"""The best plan of each family that a search has priced on its way, for what is said beside the answer."""

from __future__ import annotations

from planner.search.values import Scored
from planner.targets import target


def family_of(scored: Scored) -> str:
    """The name of the family a plan belongs to."""
    plan = scored.plan
    row = target(plan.target)
    wide = any(group.tp > 1 for stage in plan.stages for group in stage.replicas)
    if plan.pp > 1:
        return f"{row.name}: pipeline + tensor" if wide else f"{row.name}: pipeline"
    if plan.grid is not None:
        return f"{row.name}: data + tensor grids"
    if wide:
        return f"{row.name}: data + tensor"
    if row.batch_without_pipeline == "per-device":
        apart = "" if plan.sync.exact else " in islands"
        return f"{row.name}: ZeRO-{plan.zero}{apart}{' with backups' if plan.backup else ''}"
    return f"{row.name}: data parallel"


def families_of(scored: Scored) -> tuple[str, ...]:
    """Its family, and the pool where it stays on one."""
    pools = {group.pool for stage in scored.plan.stages for group in stage.replicas}
    return family_of(scored), *(f"only {pool}" for pool in pools if len(pools) == 1)


class Met:
    """Keeps the fastest plan of each family, and of each pool alone."""

    def __init__(self) -> None:
        self.plans: dict[str, Scored] = {}
        """By family; ``only POOL`` for plans that stay on one pool."""

    def take(self, scored: Scored) -> None:
        """A plan that fits."""
        for name in families_of(scored):
            known = self.plans.get(name)
            if known is None or scored.estimate.step_seconds < known.estimate.step_seconds:
                self.plans[name] = scored
