"""How good a plan is known to be: the bound, in words."""

from __future__ import annotations

from dataclasses import dataclass

from planner.report.goal import BEST, BETTER
from planner.report.numbers import at_most, count, duration
from planner.search.values import Objective, SearchResult, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a search, or the plan file it wrote, says about the best possible plan."""

    status: Status
    bound_seconds: float
    gap: float
    candidates: int | None = None
    """Outer choices considered; None when only the plan file is known."""
    solved: int | None = None
    seconds: float | None = None
    """How long the search took."""
    interrupted: bool = False
    objective: Objective = "time"
    subclusters: int | None = None
    """Sub-clusters that the proof is over; None for the whole space at once."""
    outside: tuple[str, ...] = ()
    """Plans that the space leaves out."""


def proof_of(result: SearchResult) -> Proof:
    """The proof that came with a search."""
    return Proof(
        status=result.status,
        bound_seconds=result.bound_seconds,
        gap=result.gap,
        candidates=result.candidates,
        solved=result.solved,
        seconds=result.seconds,
        interrupted=result.interrupted,
        objective=result.goal.objective,
        subclusters=result.subclusters,
        outside=result.outside,
    )


def proof_text(proof: Proof) -> str:
    """How much faster the best possible plan could be, and what was looked at and what not."""
    return f"{_claim(proof)}{_effort(proof)}{_outside(proof)}"


def _claim(proof: Proof) -> str:
    within = (
        "nothing is known about the best" if proof.gap >= 1 else f"within {at_most(proof.gap)} of the bound"
    )
    if proof.interrupted:
        return f"interrupted: best so far, {within}"
    if proof.status == "optimal" and proof.gap <= 0:
        return f"optimal: no plan of {_space(proof)} {BETTER[proof.objective]} by the cost model"
    if proof.status == "optimal":
        best = "best" if proof.objective == "time" else BEST[proof.objective]
        return f"optimal: proven within {at_most(proof.gap)} of the {best} plan of {_space(proof)} by the cost model"
    return f"best found before the search stopped: {within}"


def _space(proof: Proof) -> str:
    return "this space" if proof.subclusters is None else count(proof.subclusters, "sub-cluster")


def _effort(proof: Proof) -> str:
    """``(412 candidates, 37 solved, 1.8 s)``, as far as known."""
    parts = [count(proof.candidates, "candidate")] if proof.candidates is not None else []
    parts += [f"{proof.solved} solved"] if proof.solved is not None else []
    parts += [duration(proof.seconds)] if proof.seconds is not None else []
    return f" ({', '.join(parts)})" if parts else ""


def _outside(proof: Proof) -> str:
    return f"; not in this space: {', '.join(proof.outside)}" if proof.outside else ""
