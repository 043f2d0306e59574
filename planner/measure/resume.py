"""Going on with a calibration that exists: what it was measured with, and what of it still holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from planner.calibration import Calibration
from planner.calibration_merge import name_key
from planner.spec.model import ModelSpec

if TYPE_CHECKING:
    from planner.measure.backend import Backend


def facts_of(backend: Backend, model: ModelSpec | None, command: str) -> dict[str, str]:
    """What a calibration says of how it was measured."""
    date = datetime.now(UTC).date().isoformat()
    shape = {} if model is None else {_shape_key(model): _shape(model)}
    return {**backend.facts, **shape, "date": date, "command": command}


def with_facts(calibration: Calibration, facts: dict[str, str]) -> Calibration:
    """The calibration with what it was measured with."""
    return replace(calibration, provenance={**calibration.provenance, **facts})


def resumable(
    before: Calibration, gpu: str, facts: dict[str, str], model: ModelSpec | None
) -> tuple[Calibration, list[str]]:
    """What of an earlier calibration is kept, and what to know of it."""
    warnings = [
        f"was measured with {key} {before.provenance[key]}, now {facts[key]}: its points are kept, "
        "--force measures all again"
        for key in ("device", "driver", "torch")
        if key in before.provenance and key in facts and before.provenance[key] != facts[key]
    ]
    if model is None or not before.layers:
        return before, warnings
    others = sorted({point.model for point in before.layers if name_key(point.model) != name_key(model.name)})
    if others:
        warnings.append(f"holds layers of {', '.join(others)}, which are kept beside those of {model.name}")
    key = _shape_key(model)
    if key not in before.provenance or before.provenance[key] == facts[key]:
        return before, warnings
    kept = [
        point
        for point in before.layers
        if (name_key(point.gpu), name_key(point.model)) != (name_key(gpu), name_key(model.name))
    ]
    warnings.append(
        f"its layers of {model.name} are of another shape ({before.provenance[key]}): measured again"
    )
    return replace(before, layers=tuple(kept)), warnings


def _shape_key(model: ModelSpec) -> str:
    return f"model.{model.name}"


def _shape(model: ModelSpec) -> str:
    """What the times of a layer depend on, in words."""
    training = model.training
    return (
        f"hidden {model.hidden}, heads {model.heads}/{model.kv_heads}, ffn {model.ffn}, "
        f"sequence {training.sequence_length}, {training.precision}, {training.attention}"
    )
