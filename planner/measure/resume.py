"""Going on with a calibration that exists: what it was measured with, and what of it still holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from planner.calibration.merge import MODEL_FACT, PRECISION_FACT, name_key, shapes, sourced
from planner.calibration.values import Calibration, KernelPoint, LayerPoint
from planner.model.spec import ModelSpec

if TYPE_CHECKING:
    from planner.measure.backend import Backend


def run_facts(command: str) -> dict[str, str]:
    """When and by what something was measured."""
    return {"date": datetime.now(UTC).date().isoformat(), "command": command}


def facts_of(backend: Backend, model: ModelSpec | None, command: str) -> dict[str, str]:
    """What a calibration says of how a device was measured."""
    shape = {} if model is None else {MODEL_FACT + model.name: shape_text(model)}
    precision = backend.precision if model is None else model.training.precision
    return {**backend.facts, **shape, PRECISION_FACT: precision, **run_facts(command)}


def with_facts(calibration: Calibration, facts: dict[str, str]) -> Calibration:
    """The calibration with what its new points were measured with, which are those without a source."""
    known = sourced(calibration, facts)
    return replace(known, provenance={**calibration.provenance, **facts})


def resumable(
    before: Calibration, facts: dict[str, str], gpu: str | None = None, model: ModelSpec | None = None
) -> tuple[Calibration, list[str]]:
    """What of an earlier calibration is kept, and what to know of it; for one device, or for links without one."""
    warnings = [
        f"was measured with {key} {', '.join(others)}, now {facts[key]}: its points are kept, "
        "--force measures all again"
        for key, others in _others(before, facts, gpu)
    ]
    if gpu is None or model is None or not before.layers:
        return before, warnings
    strangers = sorted(
        {point.model for point in before.layers if name_key(point.model) != name_key(model.name)}
    )
    if strangers:
        warnings.append(
            f"holds layers of {', '.join(strangers)}, which are kept beside those of {model.name}"
        )
    own = [
        point
        for point in before.layers
        if (name_key(point.gpu), name_key(point.model)) == (name_key(gpu), name_key(model.name))
    ]
    shapes_before = shapes(before, own).get(name_key(model.name), set()) - {facts[MODEL_FACT + model.name]}
    if not shapes_before:
        return before, warnings
    warnings.append(
        f"its layers of {model.name} are of another shape ({'; '.join(sorted(shapes_before))}): measured again"
    )
    return replace(before, layers=tuple(point for point in before.layers if point not in own)), warnings


def _others(before: Calibration, facts: dict[str, str], gpu: str | None) -> Iterator[tuple[str, list[str]]]:
    """(fact, what it was) where the device's points, or the links, were measured with something else."""
    every: tuple[LayerPoint | KernelPoint, ...] = (*before.layers, *before.kernel_points)
    used = {point.source for point in every if gpu is not None and name_key(point.gpu) == name_key(gpu)}
    if gpu is None:
        used = {point.source for point in before.link_points}
    sources = [before.sources[key] for key in used if key in before.sources]
    for key in ("device", "driver", "torch"):
        others = {source[key] for source in sources if key in source} - {facts.get(key)}
        if others and key in facts:
            yield key, sorted(others)


def shape_text(model: ModelSpec) -> str:
    """What the times of a layer depend on, in words."""
    training = model.training
    return (
        f"hidden {model.hidden}, heads {model.heads}/{model.kv_heads}, ffn {model.ffn}, "
        f"sequence {training.sequence_length}, {training.precision}, {training.attention}"
    )
