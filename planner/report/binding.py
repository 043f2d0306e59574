"""What binds a plan, in words: the device with least room, the links that the step waits for."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group

from planner.cost.binding import Binding, BusyLink, TightDevice
from planner.report.layout import bullets, section
from planner.report.memory import largest_component
from planner.report.numbers import duration, gib, percent


def binding_section(found: Binding) -> Group:
    """The device first, then the links, the most expensive first."""
    links = [_link_line(link) for link in found.links] or ["links: the step waits for none"]
    return section("What binds", bullets([_memory_line(found.device), *links]))


def _memory_line(device: TightDevice) -> str:
    """Free space of the fullest device, its largest component, and what more work would need."""
    name, size = largest_component(device.memory)
    room = device.memory.headroom_bytes
    left = f"{gib(room)} GiB free" if room >= 0 else f"lacks {gib(-room)} GiB"
    parts = [
        f"memory: stage {device.stage} on {device.gpu} ({device.pool}), {left} of "
        f"{gib(device.memory.capacity_bytes)}",
        f"most is {name}, {gib(size)} GiB",
        *_more(device),
    ]
    return "; ".join(parts)


def _more(device: TightDevice) -> Iterator[str]:
    if device.next_micro_batch_bytes is not None:
        what = f"micro-batches of {device.next_micro_batch} need"
        yield f"{what} {_against(device.next_micro_batch_bytes, device.memory.headroom_bytes)}"
    if device.layer_bytes is not None:
        yield f"one layer more needs {_against(device.layer_bytes, device.memory.headroom_bytes)}"


def _against(size: float, room: float) -> str:
    """``+4.1 GiB, which do not fit``."""
    return f"{size / 2**30:+.1f} GiB, {'which fit' if size <= room else 'which do not fit'}"


def _link_line(link: BusyLink) -> str:
    path = "the links inside a node" if link.path == "node" else link.path
    where = f"from stage {link.stage}" if link.traffic == "sends" else f"in stage {link.stage}"
    return f"{link.traffic} over {path}: {duration(link.seconds)} of the step ({percent(link.share)}), most {where}"
