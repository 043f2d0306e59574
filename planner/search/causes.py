"""Why one plan is slower than another, by component."""

from __future__ import annotations

from planner.search.values import Scored

CAUSES = {
    "compute_seconds": "computation",
    "recompute_seconds": "recomputation",
    "tensor_parallel_seconds": "tensor-parallel collectives",
    "zero_seconds": "ZeRO gathers in every micro-batch",
    "bubble_seconds": "waiting in the pipeline",
    "gradient_sync_seconds": "gradient synchronisation",
    "optimizer_seconds": "the optimizer",
    "offload_seconds": "copies between devices and hosts",
}
"""Exposed causes of step time, as words."""

SAME = 5e-4
"""Share of a step below which two plans are as fast."""


def worst_cause(loser: Scored, winner: Scored) -> tuple[str, float]:
    """The component in which a plan loses most, and how much of the winner's step."""
    worse = {
        cause: getattr(loser.estimate.breakdown, name) - getattr(winner.estimate.breakdown, name)
        for name, cause in CAUSES.items()
    }
    worst = max(worse, key=lambda cause: worse[cause])
    return worst, worse[worst] / winner.estimate.step_seconds


def slower_by(loser: Scored, winner: Scored) -> float:
    """How much more time a step takes, as a share of the winner's; negative when it is faster."""
    return loser.estimate.step_seconds / winner.estimate.step_seconds - 1


def reason_against(loser: Scored, winner: Scored) -> str:
    """``computation +31 %, 8 fewer devices``: the component in which a plan loses most."""
    slower = slower_by(loser, winner)
    if abs(slower) < SAME:
        return "as fast"
    if slower < 0:
        return f"{-100 * slower:.1f} % faster: the search may stop before it"
    cause, share = worst_cause(loser, winner)
    fewer = winner.plan.devices - loser.plan.devices
    idle = f", {fewer} fewer device{'s' if fewer > 1 else ''}" if fewer > 0 else ""
    return f"{cause} {100 * share:+.0f} %{idle if cause == CAUSES['compute_seconds'] else ''}"
