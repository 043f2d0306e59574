"""What hetplan knows of devices and of the links inside nodes, with where each number is from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group

from planner.catalog import CatalogueGpu, CatalogueLink
from planner.field_metadata import Json, JsonDocument
from planner.files.fields import Dtype
from planner.report.layout import Paragraph, number, pairs, section, table, words
from planner.report.numbers import MISSING, significant

FORMATS: tuple[Dtype, ...] = ("fp8", "bf16", "fp16", "tf32", "fp32")
ASSUMED = "~ is a number that no document confirms"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusDocument(JsonDocument):
    """The answer of ``gpus``."""

    gpus: tuple[dict[str, Json], ...]
    """Devices by the keys of a cluster file's ``gpus``, with sources, aliases and assumed numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksDocument(JsonDocument):
    """The answer of ``links``."""

    links: tuple[dict[str, Json], ...]
    """Links by the keys of ``intra_node``, with source and assumed numbers."""


def gpus_document(entries: Sequence[CatalogueGpu]) -> GpusDocument:
    """The answer of ``gpus``."""
    return GpusDocument(
        command="gpus", gpus=tuple(entry.model_dump(mode="json", exclude_none=True) for entry in entries)
    )


def links_document(entries: Sequence[CatalogueLink]) -> LinksDocument:
    """The answer of ``links``."""
    return LinksDocument(command="links", links=tuple(entry.model_dump(mode="json") for entry in entries))


def gpus_section(entries: Sequence[CatalogueGpu]) -> Group:
    """A row for each device."""
    columns = (
        words("device", least=16),
        number("memory\n(GiB)"),
        number("GB/s"),
        *(number(f"{name}\nTFLOP/s") for name in FORMATS),
        number("W"),
    )
    rows = [
        [
            entry.name,
            _shown(entry.memory_gib, "memory_gib", entry),
            _shown(entry.memory_bandwidth_gBps, "memory_bandwidth_gBps", entry),
            *(_shown(entry.tflops.get(name), f"tflops.{name}", entry) for name in FORMATS),
            _shown(entry.tdp_watts, "tdp_watts", entry),
        ]
        for entry in entries
    ]
    return section("Devices", table(columns, rows, gap=1), Paragraph(ASSUMED))


def gpu_section(entry: CatalogueGpu) -> Group:
    """All that is known of one device."""
    return section(entry.name, pairs(_facts(entry)))


def _facts(entry: CatalogueGpu) -> Iterator[tuple[str, str]]:
    peaks = [
        f"{name} {_shown(value, f'tflops.{name}', entry)} TFLOP/s" for name, value in entry.tflops.items()
    ]
    yield "memory", f"{_shown(entry.memory_gib, 'memory_gib', entry)} GiB"
    yield "bandwidth", f"{_shown(entry.memory_bandwidth_gBps, 'memory_bandwidth_gBps', entry)} GB/s"
    yield "dense peaks", ", ".join(peaks)
    yield "family", entry.family or MISSING
    yield "multiprocessors", str(entry.multiprocessors or MISSING)
    yield "board power", f"{_shown(entry.tdp_watts, 'tdp_watts', entry)} W" if entry.tdp_watts else MISSING
    if entry.host_link_gBps:
        yield "host link", f"{_shown(entry.host_link_gBps, 'host_link_gBps', entry)} GB/s"
    if entry.aliases:
        yield "also called", ", ".join(entry.aliases)
    for name, source in entry.sources.items():
        yield f"source of {name}", source
    if entry.assumed:
        yield "assumed", ", ".join(entry.assumed)
    if entry.note:
        yield "note", entry.note


def links_section(entries: Sequence[CatalogueLink]) -> Group:
    """A row for each link, as its devices see it in one direction."""
    columns = (
        words("link", least=19),
        number("GB/s"),
        number("µs"),
        words("shared", least=6),
        words("source", least=24),
    )
    rows = [
        [
            entry.name,
            _shown(entry.bandwidth_gBps, "bandwidth_gBps", entry),
            significant(entry.latency_us, 2),
            f"by {entry.shared_by}" if entry.shared_by else "yes" if entry.shared else "no",
            entry.source,
        ]
        for entry in entries
    ]
    note = f"one device in one direction, at the wire; shared: by all devices of a node, or by so many; {ASSUMED}"
    return section("Links inside nodes", table(columns, rows), Paragraph(note))


def _shown(value: float | None, key: str, entry: CatalogueGpu | CatalogueLink) -> str:
    """A number as the datasheet has it, marked where it is assumed."""
    if value is None:
        return MISSING
    assumed = key in entry.assumed or key.partition(".")[0] in entry.assumed
    return f"{'~' if assumed else ''}{value:g}"
