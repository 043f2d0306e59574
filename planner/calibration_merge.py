"""Two calibrations as one, and when two measured points are of the same thing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from planner.calibration import (
    ASSUMED,
    ASSUMED_FAMILY,
    ASSUMED_LINK,
    ASSUMED_STACK,
    Calibration,
    Constant,
    Family,
    KernelPoint,
    LayerPoint,
    Link,
    LinkPoint,
    Stack,
)

T = TypeVar("T")
Part = TypeVar("Part", Family, Stack, Link)
Section = tuple[str, dict[str, Any], Any]
"""Name, parts by their names, defaults of a part."""


@lru_cache(maxsize=10_000)
def name_key(name: str) -> str:
    """The part of a GPU's or a model's name that counts: ``OPT_350M`` is ``opt-350m``."""
    return name.lower().replace("-", "").replace("_", "")


@lru_cache(maxsize=10_000)
def link_name_key(name: str) -> str:
    """The part of a link's name that counts: a GPU's name as elsewhere, fabrics as written, from either end."""
    kind, colon, gpu = name.partition(":")
    if colon:
        return f"{kind}:{name_key(gpu)}"
    fabrics = name.split("+")
    return "+".join(min(fabrics, fabrics[::-1]))


def layer_key(point: LayerPoint) -> Hashable:
    """What a layer point is of: device, model, tp, micro-batch."""
    return name_key(point.gpu), name_key(point.model), point.tp, point.micro_batch


def link_key(point: LinkPoint) -> Hashable:
    """What a link point is of: link, operation, members, size."""
    return link_name_key(point.link), point.operation, point.members, point.size_bytes


def kernel_key(point: KernelPoint) -> Hashable:
    """What a kernel point is of: device, kernel, precision, shape."""
    return name_key(point.gpu), point.kernel, point.precision, point.shape


def merged(base: Calibration, own: Calibration) -> Calibration:
    """Both; ``own`` wins constant by constant, point by point, and for the residual of a family and stack."""
    given = {constant.name for constant in own.constants}
    spread = base.default_spread if own.default_spread == ASSUMED.default_spread else own.default_spread
    return replace(
        base,
        families=_parts("families", base.families, own.families, ASSUMED_FAMILY, given),
        stacks=_parts("stacks", base.stacks, own.stacks, ASSUMED_STACK, given),
        links=_parts("links", base.links, own.links, ASSUMED_LINK, given),
        layers=_points(layer_key, base.layers, own.layers),
        link_points=_points(link_key, base.link_points, own.link_points),
        kernel_points=_points(kernel_key, base.kernel_points, own.kernel_points),
        curve_errors=_points(lambda item: item.curve, base.curve_errors, own.curve_errors),
        residuals=_points(lambda item: (item.family, item.stack), base.residuals, own.residuals),
        constants=_constants(base, own),
        default_spread=spread,
        notes=own.notes or base.notes,
        provenance={**base.provenance, **own.provenance},
        sources={**base.sources, **own.sources},
    )


def gives(section: str, name: str, part: Part, assumed: Part, given: Iterable[str]) -> tuple[str, ...]:
    """Constants that a calibration says of a part: those with a provenance and those that are not assumed."""
    return tuple(
        field.name
        for field in fields(part)
        if f"{section}.{name}.{field.name}" in given
        or getattr(part, field.name) != getattr(assumed, field.name)
    )


def _parts(
    section: str, base: dict[str, Part], own: dict[str, Part], assumed: Part, given: set[str]
) -> dict[str, Part]:
    found = dict(base)
    for name, part in own.items():
        changes = {key: getattr(part, key) for key in gives(section, name, part, assumed, given)}
        found[name] = replace(found.get(name, assumed), **changes)
    return found


def _points(key: Callable[[T], Hashable], base: tuple[T, ...], own: tuple[T, ...]) -> tuple[T, ...]:
    return tuple({key(point): point for point in (*base, *own)}.values())


def _constants(base: Calibration, own: Calibration) -> tuple[Constant, ...]:
    """Provenance of every constant; what ``own`` assumes of its own has none."""
    given = {constant.name for constant in own.constants}
    assumed = {
        f"{section}.{name}.{key}"
        for section, parts, default in sections(own)
        for name, part in parts.items()
        for key in gives(section, name, part, default, given)
    } - given
    kept = [constant for constant in base.constants if constant.name not in assumed]
    return _points(lambda constant: constant.name, tuple(kept), own.constants)


def sections(calibration: Calibration) -> tuple[Section, ...]:
    """Every section of constants."""
    return (
        ("families", calibration.families, ASSUMED_FAMILY),
        ("stacks", calibration.stacks, ASSUMED_STACK),
        ("links", calibration.links, ASSUMED_LINK),
    )
