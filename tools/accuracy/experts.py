"""Steps and memory of models with experts, run by run, next to what was published of them."""

from __future__ import annotations

from collections.abc import Sequence

from planner.measured.predictions import Prediction
from planner.plan.values import Plan
from planner.report.numbers import MISSING, significant
from planner.report.plan_table import traits
from tools.accuracy.goals import TERMS
from tools.accuracy.material import markdown, paragraph, signed

HEADINGS = ("model ", "devices ", "format ", "plan ", "step (s)", "predicted", "error", "GiB", "predicted")
DIGITS = 3
"""Significant digits of seconds and GiB."""


def experts_section(left_out: Sequence[Prediction]) -> str:
    """A line for each run, those of a model together, the fastest first."""
    sources = TERMS["experts"]
    runs = [each for each in left_out if each.run.source in sources and each.run.model.experts is not None]
    runs.sort(key=lambda entry: (entry.run.model.name, entry.run.devices, entry.run.step_seconds or 0.0))
    head = (
        f"All {len(runs)} runs of `experts`, each predicted with its source left out. Models whose names end in",
        "`_even` spread tokens evenly over their experts by force, those in `_capacity_` drop what one has no room",
        "for. GiB are those of the fullest device, where they were published. Shapes are those of the shipped model",
        "files, but that DeepSeek-V3 has experts in its first three layers too; Kimi K2 and Moonlight do not ship.",
    )
    return f"{paragraph(*head)}\n{markdown(HEADINGS, map(_line, runs))}"


def _line(entry: Prediction) -> tuple[str, ...]:
    run = entry.run
    kinds = {pool.devices[0] for pool in run.cluster.pools}
    seconds, memory = entry.predicted_seconds, entry.predicted_bytes
    error = seconds / run.step_seconds - 1 if seconds and run.step_seconds else None
    return (
        run.model.name,
        f"{run.devices} {', '.join(sorted(kinds))}",
        run.model.training.precision,
        _in_words(run.plan),
        _figure(run.step_seconds),
        _figure(seconds),
        MISSING if error is None else signed(error),
        _figure(run.peak_memory_bytes and run.peak_memory_bytes / 2**30),
        _figure(memory / 2**30 if run.peak_memory_bytes and memory else None),
    )


def _in_words(plan: Plan) -> str:
    """Its degrees, micro-batch and recomputation."""
    group, decisions = plan.stages[0].replicas[0], traits(plan)
    degrees = {"tp": group.tp, "pp": plan.pp, "cp": plan.cp, "ep": plan.ep, "etp": plan.etp}
    parts = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    recomputed = sorted({stage.recompute for stage in plan.stages} - {"none"})
    parts += [f"micro-batch {decisions['micro-batch']}", *(f"{each} recomputation" for each in recomputed)]
    return ", ".join(parts)


def _figure(value: float | None) -> str:
    return significant(value, DIGITS) if value else MISSING
