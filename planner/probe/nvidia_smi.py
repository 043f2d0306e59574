"""Devices of a node, as ``nvidia-smi`` lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from planner.probe.text import Text, short

FIELDS = (
    "index",
    "name",
    "memory.total",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "ecc.mode.current",
    "mig.mode.current",
)
"""What ``--query-gpu`` asks for."""
_HINT = f"save the output of: nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv"
_LIST_HINT = "save the output of: nvidia-smi -L"
_UNKNOWN = ("", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]")
_NONE = "No devices were found"
_GPU = re.compile(r"GPU (\d{1,4}): .+")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+:.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGpu:
    """One device of a node."""

    index: int
    name: str
    """Product name, e.g. ``NVIDIA A100-SXM4-80GB``."""
    memory_mib: float | None = None
    """Total memory, MiB."""
    pcie_generation: int | None = None
    """Best generation that device and slot share; the current one drops while a device idles."""
    pcie_width: int | None = None
    """Lanes."""
    ecc: bool | None = None
    """True when error correction is on; with GDDR memory it costs capacity."""
    mig: bool = False
    """True when the device is cut into MIG devices."""
    profiles: tuple[str, ...] = ()
    """Its MIG devices, e.g. ``3g.20gb``; empty when unknown."""


def parse_gpus(text: Text) -> tuple[SeenGpu, ...] | None:
    """Devices of ``nvidia-smi --query-gpu=... --format=csv`` by index; None for an empty text.

    Columns may come in any order; only ``name`` must be there. Raises SpecError.
    """
    rows = list(text.lines())
    if not rows:
        return None
    number, head = rows[0]
    if head.strip() == _NONE:
        return ()
    columns = [column.partition("[")[0].strip() for column in head.split(",")]
    if "name" not in columns:
        raise text.broken(number, f"expected a header with the column name, got {short(head)}", _HINT)
    found: dict[int, SeenGpu] = {}
    for position, (number, line) in enumerate(rows[1:]):
        gpu = _gpu(text, number, columns, line, position)
        if gpu.index in found:
            raise text.broken(number, f"index: the device {gpu.index} is listed twice", _HINT)
        found[gpu.index] = gpu
    return tuple(found[index] for index in sorted(found))


def parse_mig(text: Text, gpus: tuple[SeenGpu, ...]) -> tuple[SeenGpu, ...]:
    """The devices with the MIG devices that ``nvidia-smi -L`` lists below them; raises SpecError."""
    profiles: dict[int, list[str]] = {}
    index: int | None = None
    for number, line in text.lines():
        gpu, mig = _GPU.fullmatch(line), _MIG.fullmatch(line)
        if gpu:
            index = int(gpu[1])
        elif mig and index is not None:
            profiles.setdefault(index, []).append(mig[1])
        elif line.strip() != _NONE:
            raise text.broken(number, f"expected a line GPU 0: ... or MIG ..., got {short(line)}", _LIST_HINT)
    return tuple(
        replace(gpu, mig=True, profiles=tuple(profiles[gpu.index])) if gpu.index in profiles else gpu
        for gpu in gpus
    )


def _gpu(text: Text, number: int, columns: list[str], line: str, index: int) -> SeenGpu:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(columns):
        what = f"expected {len(columns)} values as in the header, got {len(cells)}: {short(line)}"
        raise text.broken(number, what, _HINT)
    row = {name: cell for name, cell in zip(columns, cells, strict=True) if cell not in _UNKNOWN}
    if "name" not in row:
        raise text.broken(number, "the device has no name", _HINT)
    found = _whole(text, number, row, "index")
    return SeenGpu(
        index=index if found is None else found,
        name=row["name"],
        memory_mib=_mib(text, number, row.get("memory.total")),
        pcie_generation=_whole(text, number, row, "pcie.link.gen.max"),
        pcie_width=_whole(text, number, row, "pcie.link.width.max"),
        ecc=_switch(text, number, row, "ecc.mode.current"),
        mig=_switch(text, number, row, "mig.mode.current") or False,
    )


def _mib(text: Text, number: int, cell: str | None) -> float | None:
    if cell is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(?: MiB)?", cell)
    if not match or float(match[1]) <= 0:
        raise text.broken(number, f"memory.total: expected MiB such as 81920 MiB, got {short(cell)}", _HINT)
    return float(match[1])


def _whole(text: Text, number: int, row: dict[str, str], column: str) -> int | None:
    cell = row.get(column)
    if cell is None:
        return None
    if not re.fullmatch(r"\d{1,4}", cell):
        raise text.broken(number, f"{column}: expected a whole number, got {short(cell)}", _HINT)
    return int(cell)


def _switch(text: Text, number: int, row: dict[str, str], column: str) -> bool | None:
    cell = row.get(column)
    if cell is None:
        return None
    if cell not in ("Enabled", "Disabled"):
        raise text.broken(number, f"{column}: expected Enabled or Disabled, got {short(cell)}", _HINT)
    return cell == "Enabled"
