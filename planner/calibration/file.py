"""Calibration files: read with every problem named by its line, written whole, and the one that ships."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, TypeVar, get_type_hints

from pydantic import ConfigDict, Discriminator, Field, Tag, create_model

from planner import catalog
from planner.calibration.merge import (
    SPREADS,
    Part,
    depth,
    gives,
    link_name_key,
    name_key,
    parent,
    said,
    sections,
)
from planner.calibration.values import (
    ASSUMED,
    ASSUMED_FAMILY,
    Calibration,
    Constant,
    CurveError,
    Framework,
    GpuFamily,
    KernelPoint,
    LayerPoint,
    Link,
    LinkPoint,
    Provenance,
    Residual,
    curve_name,
    in_node,
)
from planner.errors import Problem
from planner.files.document import MOST_BYTES, Document, fail_on, mappings, read_as
from planner.files.fields import DefaultSpread, Frozen, Name, Spread, describe, form
from planner.files.nodes import MOST_NODES, YamlNode
from planner.files.writing import dump, write_whole

FORMAT = "hetplan-calibration/1"
"""Name and version of the calibration file's format."""
V = TypeVar("V")


class Entry(Frozen, Generic[V]):
    """A constant and how well it is known."""

    value: V
    spread: Spread | None = None
    """Relative standard error of the value; unknown when absent."""
    provenance: Provenance = "measured"
    """measured, fitted, datasheet or assumed."""
    source: Name | None = None
    """Key of sources."""


def _shape(value: Any) -> str:
    return "<entry>" if isinstance(value, (dict, Entry)) else "<number>"


def _entries(part: type) -> Any:
    """How constants stand in a file: each field of ``part`` a bare number, or an entry, within its range."""

    class Described(Frozen):
        model_config = ConfigDict(json_schema_extra=lambda schema: describe(schema, part))

    hints = get_type_hints(part, include_extras=True)
    entries: dict[str, Any] = {}
    for field in fields(part):
        kind = hints[field.name]
        either = Annotated[
            Annotated[kind, Tag("<number>")] | Annotated[Entry[kind], Tag("<entry>")],  # type: ignore[valid-type]
            Discriminator(_shape),
        ]
        entries[field.name] = (either, field.default)
    return create_model(part.__name__, __base__=Described, __doc__=part.__doc__, **entries)


if TYPE_CHECKING:
    FamilyEntries: TypeAlias = Frozen
    FrameworkEntries: TypeAlias = Frozen
    LinkEntries: TypeAlias = Frozen
else:
    FamilyEntries, FrameworkEntries, LinkEntries = (_entries(part) for part in (GpuFamily, Framework, Link))


class LinksEntries(Frozen):
    """Constants of the networks between nodes, by kind."""

    nvlink: LinkEntries = LinkEntries.model_construct()
    infiniband: LinkEntries = LinkEntries.model_construct()
    roce: LinkEntries = LinkEntries.model_construct()
    ethernet: LinkEntries = LinkEntries.model_construct()


class WrittenCalibration(Frozen):
    """The whole file: a calibration whose constants carry their provenance."""

    format: Literal["hetplan-calibration/1"]
    """Name and version of the format."""
    notes: str = ""
    """Free text."""
    provenance: dict[Name, str] = Field(default_factory=dict)
    """What the last measurements were made with; free text by name."""
    sources: dict[Name, dict[Name, str]] = Field(default_factory=dict)
    """The same for each source that points and constants name."""
    default_spread: DefaultSpread = ASSUMED.default_spread
    """Relative standard error of a step time where no residual is known."""
    family_spread: DefaultSpread | None = None
    """The same of a family without one under kernels that other devices of its maker have one with."""
    device_spread: DefaultSpread | None = None
    """The part of it that a family has of its own, kernels alike."""
    sibling_spread: DefaultSpread | None = None
    """What a device type has of its own within its family."""
    memory_spread: DefaultSpread = ASSUMED.memory_spread
    """Relative standard error of the peak memory of a device."""
    families: dict[Name, FamilyEntries] = Field(default_factory=dict)
    """Constants of generations of GPUs, by name."""
    frameworks: dict[Name, FrameworkEntries] = Field(default_factory=dict)
    """Constants of training frameworks, by name."""
    links: LinksEntries = LinksEntries.model_construct()
    """Constants of networks between nodes, by kind."""
    residuals: tuple[Residual, ...] = ()
    """How far the fit is from its measurements, by family and framework."""
    layers: tuple[LayerPoint, ...] = ()
    """Measured layers."""
    link_points: tuple[LinkPoint, ...] = ()
    """Measured collectives and sends."""
    kernel_points: tuple[KernelPoint, ...] = ()
    """Measured kernels."""
    curve_errors: tuple[CurveError, ...] = ()
    """Leave-one-out errors of fitted curves."""


_SAME = (
    *("notes", "provenance", "sources", *SPREADS),
    *("residuals", "layers", "link_points", "kernel_points", "curve_errors"),
)
"""Fields that a file holds as the calibration does."""

Row = tuple[int, Mapping[str, Any]]
"""Where the row stands (its index, or its line), and its values by key, as far as they can be read."""

LAYER_KEYS = ("gpu", "model", "tp", "micro_batch")
LINK_KEYS = ("link", "operation", "members", "concurrent", "size_bytes")
KERNEL_KEYS = ("gpu", "kernel", "precision", "shape")
RESIDUAL_KEYS = ("family", "framework", "work")
_CURVE_KEYS = LINK_KEYS[:4]
_UNLESS = {"work": "dense", "concurrent": 1}
"""Values of keys that rows may leave out."""
_NORMAL = {"gpu": name_key, "model": name_key, "link": link_name_key}


def repeated(rows: Iterable[Row], keys: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """(where, where before) of every row that measures what an earlier one has measured."""
    first: dict[Hashable, int] = {}
    for where, row in rows:
        key = _key(row, keys)
        if key is not None and first.setdefault(key, where) != where:
            yield where, first[key]


def lonely(rows: Iterable[Row]) -> Iterator[tuple[int, str]]:
    """(where, curve in words) of every link point whose curve has no second size."""
    known = [(where, row, _key(row, _CURVE_KEYS)) for where, row in rows]
    sizes = Counter(key for _, _, key in known)
    for where, row, key in known:
        if key is not None and sizes[key] == 1:
            yield where, curve_name(*(row.get(name, _UNLESS.get(name)) for name in _CURVE_KEYS))


def shared_inside(rows: Iterable[Row]) -> Iterator[tuple[int, str]]:
    """(where, what was expected) of every link point inside a node that is of several groups."""
    for where, row in rows:
        number, link = row.get("concurrent", 1), row.get("link")
        if isinstance(link, str) and in_node(link) and isinstance(number, int) and number > 1:
            yield (
                where,
                f"expected 1 for {link}, where all groups of a node are measured at once, got {number}",
            )


def _key(row: Mapping[str, Any], keys: tuple[str, ...]) -> Hashable | None:
    """The values of the keys, None when one cannot be read."""
    values: list[Hashable] = []
    for key in keys:
        value = row.get(key, _UNLESS.get(key))
        if not isinstance(value, str | int | float):
            return None
        values.append(_NORMAL[key](value) if key in _NORMAL and isinstance(value, str) else value)
    return tuple(values)


SHIPPED = Path(catalog.__file__).with_name("constants.yaml")
"""The calibration that ships with the package."""

_HEADER = """\
# A calibration of hetplan: constants that were fitted or measured, and measured layers and collectives. Whatever
# is absent keeps its assumed value. docs/formats.md says what every key means.
"""
PART = 1000
"""Points whose records are checked at once."""
_LARGEST_EXACT = 2**53
_TWO_SIZES = ("factors", "largest")
"""Kernels whose shape is what travels of the elements, and these."""
_KEYS = {
    "residuals": RESIDUAL_KEYS,
    "layers": LAYER_KEYS,
    "link_points": LINK_KEYS,
    "kernel_points": KERNEL_KEYS,
    "curve_errors": ("curve",),
}
"""What makes an entry of a section the same as another."""


def load_calibration(path: Path, warn: Callable[[str], object] | None = None) -> Calibration:
    """The calibration of a file; raises SpecError with every problem of the file.

    Keys that had another name up to hetplan 0.2 are read as well: ``warn`` is told so, once.
    """
    document = read_as(path, "calibration")
    if _with_new_keys(document.root) and warn is not None:
        warn(f"{path}: {_OLD_KEYS}")
    fail_on(_version(document))
    fail_on([*document.problems(WrittenCalibration), *_conflicts(document)])
    return _calibration(document.to(WrittenCalibration))


_OLD_KEYS = "stacks, wire and stack are now called frameworks, link_utilisation and framework (still read)"


def _with_new_keys(root: YamlNode) -> bool:
    """True when a key had its old name."""
    renamed = root.rename("stacks", "frameworks")
    for section, old, new in (
        ("frameworks", "wire", "link_utilisation"),
        ("residuals", "stack", "framework"),
    ):
        entries = root.children[section].children.values() if section in root.children else ()
        for entry in entries:
            renamed |= entry.rename(old, new)
    return renamed


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write the file whole or not at all.

    Raises OutputError when it cannot be written, ValueError when it could not be read back.
    """
    text = to_text(calibration)
    write_whole(text, path, "calibration.yaml")


def too_large(calibration: Calibration, path: Path) -> str | None:
    """Why ``load_calibration`` will refuse the file that was written of a calibration; None when it will not."""
    size = path.stat().st_size if path.is_file() else 0
    if size > MOST_BYTES:
        return f"is {size / 2**20:.1f} MiB, more than the {MOST_BYTES >> 20} MiB that hetplan reads"
    points = (point for section in _KEYS for point in _points(calibration, section))
    values = sum(1 + len(point) for point in points)
    return (
        f"has {values:,} values, more than the {MOST_NODES:,} that hetplan reads"
        if values > MOST_NODES
        else None
    )


def to_text(calibration: Calibration) -> str:
    """The file's content; raises ValueError for numbers that ``load_calibration`` refuses."""
    data = _data(calibration)
    for part in _in_parts(data):
        form(WrittenCalibration).validate_json(json.dumps(part))
    return _HEADER + dump(data)


def _in_parts(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The file without its lists, then each list in pieces, so that the records need little memory."""
    yield {key: value for key, value in data.items() if key not in _KEYS}
    for section in _KEYS:
        items = data.get(section, [])
        for start in range(0, len(items), PART):
            yield {"format": FORMAT, section: items[start : start + PART]}


@cache
def shipped() -> Calibration:
    """The calibration that ships with the package; everything assumed when there is none."""
    return load_calibration(SHIPPED) if SHIPPED.exists() else ASSUMED


def _version(document: Document) -> Iterator[Problem]:
    version = document.data.get("format")
    if version is None:
        yield document.problem(("format",), f"missing, expected {FORMAT}", f"begin with: format: {FORMAT}")
    elif str(version).startswith("hetplan-calibration/") and version != FORMAT:
        what = f"the file is {version}, this hetplan reads {FORMAT}"
        yield document.problem(("format",), what, "use the hetplan that wrote the file, or measure again")
    elif version != FORMAT:
        yield document.problem(("format",), f"expected {FORMAT}, got {version}")


def _conflicts(document: Document) -> Iterator[Problem]:
    """Points and residuals that are there twice, and link curves of one size."""
    for section, keys in _KEYS.items():
        for where, before in repeated(_rows(document, section), keys):
            what = f"the same {', '.join(keys)} as {section}[{before}] on line "
            line = document.line((section, before))
            yield document.problem((section, where), f"{what}{line}", "remove one of the two")
    for where, curve in lonely(_rows(document, "link_points")):
        what = f"the only size of {curve}, expected at least two"
        yield document.problem(("link_points", where, "size_bytes"), what, "measure a second size")
    for where, what in shared_inside(_rows(document, "link_points")):
        yield document.problem(("link_points", where, "concurrent"), what, "leave it out")
    known = document.data.get("sources")
    for section in ("layers", "link_points", "kernel_points"):
        for where, row in _rows(document, section):
            source = row.get("source")
            if isinstance(source, str) and not (isinstance(known, dict) and source in known):
                what = f"expected a key of sources, got {source}"
                yield document.problem((section, where, "source"), what, "leave it out if nobody knows")
    for where, row in _rows(document, "kernel_points"):
        shape, kernel = row.get("shape"), row.get("kernel")
        sizes = shape.split("x") if isinstance(shape, str) and isinstance(kernel, str) else []
        whole = all(size.isascii() and size.isdigit() and size[0] != "0" for size in sizes)
        if sizes and kernel in _TWO_SIZES and whole and len(sizes) != 2:
            what = f'expected a rank or a number of elements, x, and all elements, got "{shape}"'
            yield document.problem(("kernel_points", where, "shape"), what)


def _rows(document: Document, section: str) -> Iterator[Row]:
    return mappings(document.data.get(section))


def _calibration(record: WrittenCalibration) -> Calibration:
    links = {name: getattr(record.links, name) for name in _given(record.links)}
    records = {"families": record.families, "frameworks": record.frameworks, "links": links}
    calibration = Calibration(
        families=_families({name: _values(part) for name, part in record.families.items()}),
        frameworks={name: Framework(**_values(part)) for name, part in record.frameworks.items()},
        links={name: Link(**_values(part)) for name, part in links.items()},
        **{name: getattr(record, name) for name in _SAME},
    )
    constants = (
        constant
        for section, parts, assumed in sections(calibration)
        for name, part in records[section].items()
        for constant in _constants(f"{section}.{name}", part, parent(section, name, parts, assumed))
    )
    return replace(calibration, constants=tuple(constants))


def _families(given: dict[str, dict[str, float]]) -> dict[str, GpuFamily]:
    """Families, and what differs under one set of kernels on top of them."""
    families: dict[str, GpuFamily] = {}
    for name in sorted(given, key=depth):
        families[name] = replace(parent("families", name, families, ASSUMED_FAMILY), **given[name])
    return {name: families[name] for name in given}


def _given(record: Frozen) -> list[str]:
    """Keys that the file has, in the order of the record."""
    return [key for key in type(record).model_fields if key in record.model_fields_set]


def _entry(record: Frozen, key: str) -> Entry[float]:
    """A constant of the file; a bare number is a measured one."""
    value = getattr(record, key)
    return value if isinstance(value, Entry) else Entry.model_construct(value=value)


def _values(record: Frozen) -> dict[str, float]:
    return {key: _entry(record, key).value for key in _given(record)}


def _constants(name: str, record: Frozen, above: Part) -> Iterator[Constant]:
    """Provenance of each constant of the file that is not plainly assumed; ``above`` is what silence would mean."""
    for key in _given(record):
        entry = _entry(record, key)
        if entry.provenance != "assumed" or entry.spread is not None or entry.value == getattr(above, key):
            yield Constant(
                name=f"{name}.{key}",
                value=entry.value,
                provenance=entry.provenance,
                spread=entry.spread,
                source=entry.source or "",
            )


def _data(calibration: Calibration) -> dict[str, Any]:
    """The file as plain data; absent what is empty."""
    known = {constant.name: constant for constant in calibration.constants}
    data: dict[str, Any] = {
        "notes": calibration.notes,
        "provenance": calibration.provenance,
        "sources": calibration.sources,
    }
    data |= {name: _number(getattr(calibration, name)) for name in SPREADS if said(calibration, name)}
    for section, parts, assumed in sections(calibration):
        data[section] = {
            name: {
                key: _constant(getattr(part, key), known.get(f"{section}.{name}.{key}"))
                for key in gives(section, name, part, parent(section, name, parts, assumed), known)
            }
            for name, part in parts.items()
        }
    for section in _KEYS:
        data[section] = list(_points(calibration, section))
    return {"format": FORMAT, **{key: value for key, value in data.items() if value}}


def _constant(value: float, known: Constant | None) -> dict[str, Any]:
    entry = {"value": _number(value), "provenance": known.provenance if known else "assumed"}
    if known is not None and known.spread is not None:
        entry["spread"] = _number(known.spread)
    return entry | ({"source": known.source} if known is not None and known.source else {})


def _points(calibration: Calibration, section: str) -> Iterator[dict[str, Any]]:
    """The entries of a section, absent what is empty."""
    points = getattr(calibration, section)
    names = [field.name for field in fields(points[0])] if points else []
    for point in points:
        values = ((name, getattr(point, name)) for name in names)
        yield {
            key: _number(value)
            for key, value in values
            if value is not None and value is not False and value != () and (key, value) != ("source", "")
        }


def _number(value: Any) -> Any:
    """A whole number without its point."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_EXACT
    return int(value) if whole else list(value) if isinstance(value, tuple) else value
