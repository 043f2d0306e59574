"""Memory of one device of every group, by component, in GiB."""

from __future__ import annotations

from rich.console import Group

from planner.cost.values import COMPONENTS, Estimate, GroupEstimate, Memory
from planner.report.layout import section
from planner.report.numbers import gib
from planner.report.paragraph import Paragraph
from planner.report.table import number, table, words


def memory_section(estimate: Estimate) -> Group:
    """A row per group of replicas; components, the fixed part and free space add up to the capacity."""
    groups = [group for stage in estimate.stages for group in stage.groups]
    offloads = any(group.memory.host_bytes for group in groups)
    columns = (
        number("stage"),
        words("device", least=14),
        *(number(label.heading) for label in COMPONENTS.values()),
        number("fixed"),
        number("free"),
        number("of"),
        *([number("host")] if offloads else []),
    )
    rows = [
        [str(index), device_text(group), *_cells(group.memory, offloads)]
        for index, stage in enumerate(estimate.stages)
        for group in stage.groups
    ]
    note = "fixed: runtime (device context, libraries) and the reserve"
    note += "; host: kept in host memory for one device" if offloads else ""
    return section("Memory of one device (GiB)", table(columns, rows, gap=1), Paragraph(note))


def device_text(group: GroupEstimate) -> str:
    """Kind and pool of a group's devices."""
    return f"{group.gpu} ({group.pool})"


def _cells(memory: Memory, offloads: bool) -> list[str]:
    parts = [gib(getattr(memory, name)) for name in COMPONENTS]
    fixed = memory.runtime_bytes + memory.reserve_bytes
    host = [gib(memory.host_bytes)] if offloads else []
    return [*parts, gib(fixed), gib(memory.headroom_bytes), gib(memory.capacity_bytes), *host]


def largest_component(memory: Memory) -> tuple[str, float]:
    """Label and bytes of the component that takes most."""
    name = max(COMPONENTS, key=lambda name: float(getattr(memory, name)))
    return COMPONENTS[name].text, float(getattr(memory, name))
