"""Merges calibrations, and decides when two points measure the same thing."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from hashlib import sha256
from math import hypot, inf, log
from typing import Any, Literal, NamedTuple, TypeVar

from planner.calibration.values import (
    ASSUMED,
    ASSUMED_FAMILY,
    ASSUMED_FRAMEWORK,
    ASSUMED_LINK,
    Calibration,
    Constant,
    Framework,
    GpuFamily,
    KernelPoint,
    LayerPoint,
    Link,
    LinkPoint,
)
from planner.frozen import record

FAR = 5.0
"""Two values contradict each other from this many of their standard deviations on."""
LEAST_SPREAD = 0.05
"""Standard deviation of a value at least: two runs on one device differ by more than the repeats of one."""
MODEL_FACT = "model."
"""Begins the facts that say the shape of a model's measured layers."""
PRECISION_FACT = "precision"
"""The fact that says to which number format's kernels the shares of peak FLOP/s were fitted; old files lack it."""

SPREADS = ("default_spread", "family_spread", "device_spread", "sibling_spread", "memory_spread")
"""Fields that say how far predictions are off."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

Sourced = LayerPoint | LinkPoint | KernelPoint | Constant


def sourced(calibration: Calibration, facts: Mapping[str, str] | None = None) -> Calibration:
    """Points and constants that name no source name these facts; the file's own provenance without them."""
    told = dict(calibration.provenance if facts is None else facts)
    parts = ("layers", "link_points", "kernel_points", "constants")
    if not told or all(item.source for part in parts for item in getattr(calibration, part)):
        return calibration
    key = "m" + sha256(repr(sorted(told.items())).encode()).hexdigest()[:8]
    with_source: dict[str, Any] = {
        part: tuple(replace(item, source=item.source or key) for item in getattr(calibration, part))
        for part in parts
    }
    return replace(calibration, **with_source, sources={**calibration.sources, key: told})


def shapes(calibration: Calibration, points: Iterable[LayerPoint] | None = None) -> dict[str, set[str]]:
    """By name of a model, the shapes that its measured layers had, in words; models of unknown shape are absent."""
    by_model: dict[str, set[str]] = {}
    for point in calibration.layers if points is None else points:
        for name, text in calibration.sources.get(point.source, {}).items():
            if name_key(name) == name_key(MODEL_FACT + point.model):
                by_model.setdefault(name_key(point.model), set()).add(text)
    return by_model


def share_formats(calibration: Calibration, precision: str) -> dict[str, set[str]]:
    """By GPU family, the number formats that its shares of peak FLOP/s were fitted to, where that is known.

    Of those that a model in this format asks for: fp32 has a share of its own.
    """
    formats: dict[str, set[str]] = {}
    for constant in calibration.constants:
        section, _, rest = constant.name.partition(".")
        family, _, key = rest.rpartition(".")
        fitted_to = calibration.sources.get(constant.source, {}).get(PRECISION_FACT)
        shares = ("vector_efficiency" if precision == "fp32" else "matmul_efficiency", "attention_efficiency")
        if section == "families" and key in shares and fitted_to:
            formats.setdefault(family, set()).add(fitted_to)
    return formats


@record(frozen=True, slots=True, kw_only=True)
class Clash:
    """Two values of one thing that cannot both be right."""

    what: str
    first: str
    last: str
    newer: Literal["first", "last", "unknown"]


@record(frozen=True, slots=True)
class _Item:
    """One measured value."""

    what: str
    value: float
    unit: str
    spread: float
    date: str

    def told(self) -> str:
        """The value with its date."""
        return f"{self.value:.4g}{self.unit} ({self.date or 'no date'})"


def clashes(first: Calibration, last: Calibration) -> Iterator[Clash]:
    """What two calibrations contradict each other in: facts of a model's layers, then values by their spreads."""
    yield from _shape_clashes(first, last)
    others = _items(last)
    for key, item in _items(first).items():
        other = others.get(key)
        if other is not None and _far(item, other):
            yield Clash(what=item.what, first=item.told(), last=other.told(), newer=_newer(item, other))


def combined(first: Calibration, last: Calibration) -> Calibration:
    """Both; of two values of one thing the newer, the last where nobody can tell."""
    before, after = _items(first), _items(last)
    old = {key for key, item in after.items() if key in before and _newer(before[key], item) == "first"}
    return merged(first, _without(last, old))


def _shape_clashes(first: Calibration, last: Calibration) -> Iterator[Clash]:
    """One name for layers of two shapes: neither is a newer measurement of the other."""
    known, others = shapes(first), shapes(last)
    for model in sorted(known.keys() & others.keys()):
        if known[model] != others[model]:
            texts = ["; ".join(sorted(side[model])) for side in (known, others)]
            yield Clash(what=f"layers of {model}", first=texts[0], last=texts[1], newer="unknown")
    sizes: dict[Hashable, list[float]] = {}
    for point in first.layers:
        if point.parameters:
            sizes.setdefault(_curve(point), []).append(point.parameters)
    told: set[Hashable] = set()
    for point in last.layers:
        curve = _curve(point)
        known_sizes = sizes.get(curve, [])
        if known_sizes and point.parameters and point.parameters not in known_sizes and curve not in told:
            told.add(curve)
            what = f"parameters of a layer of {point.model}, tp {point.tp}"
            yield Clash(
                what=what, first=f"{known_sizes[-1]:.0f}", last=f"{point.parameters:.0f}", newer="unknown"
            )


def _curve(point: LayerPoint) -> Hashable:
    return name_key(point.gpu), name_key(point.model), point.tp


def _items(calibration: Calibration) -> dict[Hashable, _Item]:
    """Every measured value by what it is of."""
    items: dict[Hashable, _Item] = {}
    for layer in calibration.layers:
        what = f"layer of {layer.model} on {layer.gpu}, tp {layer.tp}, micro-batch {layer.micro_batch}"
        seconds = layer.forward_seconds + layer.backward_seconds
        items["layer", layer_key(layer)] = _item(calibration, layer, what, seconds, " s")
    for link in calibration.link_points:
        what = f"{link.curve}, {link.size_bytes:g} bytes"
        items["link", link_key(link)] = _item(calibration, link, what, link.seconds, " s")
    for kernel in calibration.kernel_points:
        what = f"{kernel.kernel} {kernel.shape} {kernel.precision} on {kernel.gpu}"
        items["kernel", kernel_key(kernel)] = _item(calibration, kernel, what, kernel.seconds, " s")
    for constant in calibration.constants:
        items["constant", constant.name] = _item(calibration, constant, constant.name, constant.value, "")
    return items


def _item(calibration: Calibration, item: Sourced, what: str, value: float, unit: str) -> _Item:
    date = calibration.sources.get(item.source, {}).get("date", "")
    return _Item(what, value, unit, max(item.spread or 0.0, LEAST_SPREAD), date)


def _far(one: _Item, other: _Item) -> bool:
    """True when the spreads do not explain the difference."""
    low, high = sorted((one.value, other.value))
    distance = 0.0 if low == high else log(high / low) if low > 0 else inf
    return distance > FAR * hypot(one.spread, other.spread)


def _newer(first: _Item, last: _Item) -> Literal["first", "last", "unknown"]:
    """By their dates, where both are written year first."""
    if not (_DATE.match(first.date) and _DATE.match(last.date)) or first.date == last.date:
        return "unknown"
    return "first" if first.date > last.date else "last"


def _without(calibration: Calibration, old: set[Hashable]) -> Calibration:
    """The calibration without some of its values."""
    gone = {item.name for item in calibration.constants if ("constant", item.name) in old}
    given = {item.name for item in calibration.constants} - gone
    parts: dict[str, dict[str, GpuFamily | Framework | Link]] = {}
    for section, own, assumed in sections(calibration):
        kept: dict[str, GpuFamily | Framework | Link] = {}
        for name in sorted(own, key=depth):
            said = gives(section, name, own[name], parent(section, name, own, assumed), given)
            kept[name] = replace(
                parent(section, name, kept, assumed),
                **{key: getattr(own[name], key) for key in said if f"{section}.{name}.{key}" not in gone},
            )
        parts[section] = {name: kept[name] for name in own}
    return replace(
        calibration,
        layers=tuple(item for item in calibration.layers if ("layer", layer_key(item)) not in old),
        link_points=tuple(item for item in calibration.link_points if ("link", link_key(item)) not in old),
        kernel_points=tuple(
            item for item in calibration.kernel_points if ("kernel", kernel_key(item)) not in old
        ),
        constants=tuple(item for item in calibration.constants if item.name not in gone),
        **parts,  # type: ignore[arg-type]
    )


T = TypeVar("T")
Part = TypeVar("Part", GpuFamily, Framework, Link)
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
    """What a link point is of: its curve, and the size."""
    return *curve_key(point), point.size_bytes


class CurveKey(NamedTuple):
    """What a curve of link points is of."""

    link: str
    """Its name as ``link_name_key`` has it."""
    operation: str
    members: int
    concurrent: int = 1


def curve_key(point: LinkPoint) -> CurveKey:
    """The curve that a link point is of."""
    return CurveKey(link_name_key(point.link), point.operation, point.members, point.concurrent)


def kernel_key(point: KernelPoint) -> Hashable:
    """What a kernel point is of: device, kernel, precision, shape."""
    return name_key(point.gpu), point.kernel, point.precision, point.shape


def merged(base: Calibration, own: Calibration) -> Calibration:
    """Both; ``own`` wins constant by constant, point by point, and for the residual of a family and framework."""
    given = {constant.name for constant in own.constants}
    spreads = {name: getattr(own if said(own, name) else base, name) for name in SPREADS}
    return replace(
        base,
        families=_parts("families", base.families, own.families, ASSUMED_FAMILY, given),
        frameworks=_parts("frameworks", base.frameworks, own.frameworks, ASSUMED_FRAMEWORK, given),
        links=_parts("links", base.links, own.links, ASSUMED_LINK, given),
        layers=_points(layer_key, base.layers, own.layers),
        link_points=_points(link_key, base.link_points, own.link_points),
        kernel_points=_points(kernel_key, base.kernel_points, own.kernel_points),
        curve_errors=_points(lambda item: item.curve, base.curve_errors, own.curve_errors),
        residuals=_points(lambda item: item.key, base.residuals, own.residuals),
        constants=_constants(base, own),
        **spreads,
        notes=own.notes or base.notes,
        provenance={**base.provenance, **own.provenance},
        sources={**base.sources, **own.sources},
    )


def said(calibration: Calibration, spread: str) -> bool:
    """Whether a calibration has a spread of its own, in place of the one that is assumed."""
    return bool(getattr(calibration, spread) != getattr(ASSUMED, spread))


def gives(section: str, name: str, part: Part, assumed: Part, given: Iterable[str]) -> tuple[str, ...]:
    """Constants that a calibration says of a part: those with a provenance and those that are not assumed."""
    return tuple(
        field.name
        for field in fields(part)
        if f"{section}.{name}.{field.name}" in given
        or getattr(part, field.name) != getattr(assumed, field.name)
    )


def parent(section: str, name: str, parts: Mapping[str, Part], assumed: Part) -> Part:
    """What a part has that says nothing of its own: for ``family.kernels`` that of the family, else the assumed."""
    return parts.get(name.rpartition(".")[0], assumed) if section == "families" else assumed


def _parts(
    section: str, base: dict[str, Part], own: dict[str, Part], assumed: Part, given: set[str]
) -> dict[str, Part]:
    """What ``own`` says of a family holds under all kernels: ``base`` does not know its devices better."""
    known = dict(base)
    for owner in sorted(own, key=depth):
        part: Part = own[owner]
        above: Part = parent(section, owner, own, assumed)
        changes = {key: getattr(part, key) for key in gives(section, owner, part, above, given)}
        for name in _and_under_kernels(section, owner, base):
            known[name] = replace(known.get(name, parent(section, name, known, assumed)), **changes)
    return known


def depth(name: str) -> int:
    """0 for a family, 1 for what it has under one kernel set."""
    return name.count(".")


def _and_under_kernels(section: str, name: str, parts: Iterable[str]) -> tuple[str, ...]:
    """The name, and those of what a family has under one kernel set each."""
    if section != "families":
        return (name,)
    return (name, *(other for other in parts if other.startswith(f"{name}.")))


def _points(key: Callable[[T], Hashable], base: tuple[T, ...], own: tuple[T, ...]) -> tuple[T, ...]:
    return tuple({key(point): point for point in (*base, *own)}.values())


def _constants(base: Calibration, own: Calibration) -> tuple[Constant, ...]:
    """Provenance of every constant; what ``own`` assumes of its own has none, and what it says of a family ends what
    ``base`` said of the family under one kernel set."""
    given = {constant.name for constant in own.constants}
    changed = {
        f"{section}.{known}.{key}"
        for (section, parts, assumed), (_, before, _) in zip(sections(own), sections(base), strict=True)
        for name, part in parts.items()
        for key in gives(section, name, part, parent(section, name, parts, assumed), given)
        for known in _and_under_kernels(section, name, before)
    } - given
    kept = [constant for constant in base.constants if constant.name not in changed]
    return _points(lambda constant: constant.name, tuple(kept), own.constants)


def sections(calibration: Calibration) -> tuple[Section, ...]:
    """Every section of constants."""
    return (
        ("families", calibration.families, ASSUMED_FAMILY),
        ("frameworks", calibration.frameworks, ASSUMED_FRAMEWORK),
        ("links", calibration.links, ASSUMED_LINK),
    )
