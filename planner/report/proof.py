"""How good a plan is known to be: the bound, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.report.numbers import at_most, count, duration
from planner.search.values import SearchResult, Status


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
    )


def proof_text(proof: Proof) -> str:
    """One sentence: how much faster the best possible plan could be, and what was looked at."""
    return f"{_claim(proof)}{_effort(proof)}"


def _claim(proof: Proof) -> str:
    within = (
        "nothing is known about the best"
        if _unbounded(proof)
        else f"within {at_most(proof.gap)} of the bound"
    )
    if proof.interrupted:
        return f"interrupted: best so far, {within}"
    if proof.status == "optimal" and proof.gap <= 0:
        return "optimal: no plan of this space is faster by the cost model"
    if proof.status == "optimal":
        return f"optimal: proven within {at_most(proof.gap)} of the best plan of this space by the cost model"
    return f"best found before the search stopped: {within}"


def _unbounded(proof: Proof) -> bool:
    return proof.bound_seconds <= 0 or not math.isfinite(proof.bound_seconds)


def _effort(proof: Proof) -> str:
    """``(412 candidates, 37 solved, 1.8 s)``, as far as known."""
    parts = [count(proof.candidates, "candidate")] if proof.candidates is not None else []
    parts += [f"{proof.solved} solved"] if proof.solved is not None else []
    parts += [duration(proof.seconds)] if proof.seconds is not None else []
    return f" ({', '.join(parts)})" if parts else ""
