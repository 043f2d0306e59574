"""The published runs; runs and predictions with made-up numbers, which need no cost model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from planner.measured.predictions import Prediction
from planner.measured.table import PUBLISHED, load_table
from planner.measured.values import Run, Skipped, Table
from planner.model.spec import ModelSpec
from tests.report import examples

GIB = 2**30


@cache
def published() -> Table:
    """All published rows."""
    return load_table(PUBLISHED)


def run(name: str = "lab-1", model: str | ModelSpec = "llama-7b", **fields: Any) -> Run:
    """A run of the example's plan in 10 s without a known peak; a text names the example's model."""
    named = examples.model().model_copy(update={"name": model}) if isinstance(model, str) else model
    defaults: dict[str, Any] = {
        "id": name,
        "source": "lab",
        "reference": "a notebook",
        "stack": "Megatron-LM",
        "cluster": examples.cluster(),
        "model": named,
        "plan": examples.plan(),
        "step_seconds": 10.0,
        "peak_memory_bytes": None,
        "fits": True,
        "doubt": "",
    }
    return Run(**{**defaults, **fields})


def prediction(
    measured: float | None,
    predicted: float,
    name: str = "lab-1",
    *,
    spread: float = 0.15,
    fits: bool = True,
    ran: bool = True,
    **fields: Any,
) -> Prediction:
    """A run of ``measured`` seconds that ``ran`` or not, and an estimate that ``fits`` or not."""
    found = run(name, step_seconds=measured, fits=ran, **fields)
    activations_gib = 6.8 if fits else 40.0
    estimate = examples.estimate(found.plan, predicted, activations_gib)
    return Prediction(run=found, estimate=replace(estimate, spread=spread))


def group(*seconds: tuple[float, float], **fields: Any) -> list[Prediction]:
    """Predictions of one group from (measured, predicted) seconds, named in their order."""
    prefix = f"{fields.get('source', 'lab')}-{fields.get('model', 'llama-7b')}"
    return [
        prediction(measured, predicted, f"{prefix}-{index}", **fields)
        for index, (measured, predicted) in enumerate(seconds)
    ]


def failed(name: str, reason: str, **fields: Any) -> Prediction:
    """A run whose plan cannot be priced."""
    return Prediction(run=run(name, **fields), estimate=None, failure=reason)


def several() -> tuple[Prediction, ...]:
    """Two sources, three groups, memory, every combination of fitting, a plan that cannot be priced."""
    return (
        *group((10.0, 11.0), (20.0, 19.0), (30.0, 33.0), (40.0, 36.0)),
        *group((1.0, 1.5), (1.1, 1.4), model="gpt-1b", peak_memory_bytes=20 * GIB),
        *group(
            (5.0, 5.0), source="vtrain-single-node", model="megatron-18b", doubt="seconds read from a figure"
        ),
        prediction(None, 9.0, "lab-out", fits=False, ran=False),
        prediction(None, 9.0, "lab-missed", ran=False),
        prediction(50.0, 50.0, "lab-alarm", fits=False, model="gpt-20b"),
        failed("lab-torn", "a100 has no fp8"),
    )


SKIPPED = (
    Skipped(id="a", source="lab", reason="context parallelism is not modelled"),
    Skipped(id="b", source="lab", reason="context parallelism is not modelled"),
    Skipped(id="c", source="lab", reason="no step time and no memory"),
)
