"""What a cluster holds: devices, memory and peak speed by number format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group

from planner.cluster.topology import Kind
from planner.model.spec import ModelSpec
from planner.report.layout import section
from planner.report.numbers import MISSING, gib, significant
from planner.report.paragraph import Paragraph
from planner.report.table import number, table, words
from planner.report.understood import memory_text
from planner.units import gib_from_bytes

FORMATS = ("bf16", "fp16", "fp32")
"""Number formats that a model can be trained in, in the order they are shown."""


def inventory_section(kinds: Sequence[Kind]) -> Group:
    """A row per kind of device and one for all together."""
    formats = [name for name in FORMATS if any(name in kind.peak_flops for kind in kinds)]
    columns = (
        words("pool", least=14),
        words("device", least=14),
        number("devices"),
        number("usable\n(GiB)"),
        *(number(f"{name}\n(TFLOP/s)") for name in formats),
    )
    rows = [_row(kind, formats) for kind in kinds]
    return section(
        "Devices (memory and dense peak of one)", table(columns, rows), Paragraph(_total(kinds, formats))
    )


def _row(kind: Kind, formats: Iterable[str]) -> list[str]:
    peaks = [
        significant(kind.peak_flops[name] / 1e12) if name in kind.peak_flops else MISSING for name in formats
    ]
    many = f"{kind.nodes} x {kind.per_node}"
    return [kind.pool, kind.gpu, many, gib(kind.memory_bytes - kind.reserve_bytes), *peaks]


def _total(kinds: Sequence[Kind], formats: Iterable[str]) -> str:
    """Devices, memory and peak of all together."""
    memory = sum(kind.devices * (kind.memory_bytes - kind.reserve_bytes) for kind in kinds)
    peaks = [(name, sum(kind.devices * kind.peak_flops.get(name, 0.0) for kind in kinds)) for name in formats]
    peak = ", ".join(f"{name} {significant(flops / 1e15)} PFLOP/s" for name, flops in peaks)
    devices = sum(kind.devices for kind in kinds)
    return f"together {devices} devices, {memory_text(gib_from_bytes(memory))} usable, {peak}"


def precision_warnings(kinds: Sequence[Kind], model: ModelSpec) -> list[str]:
    """Devices that cannot train in the asked number format, with what they can."""
    asked = model.training.precision
    return [
        f"{kind.gpu} ({kind.pool}) has no {asked} and stays idle; it has {', '.join(sorted(kind.peak_flops))}"
        for kind in kinds
        if asked not in kind.peak_flops
    ]
