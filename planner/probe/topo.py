"""How the devices of a node are joined, as ``nvidia-smi topo -m`` prints it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations

from planner.probe.text import Text, short

_GPU = re.compile(r"GPU(\d{1,4})")
_CONNECTION = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_HINT = "save the output of: nvidia-smi topo -m"
_SWITCHED = {"PIX", "PXB"}


@dataclass(frozen=True, slots=True)
class Topo:
    """The connection of every pair of devices."""

    devices: tuple[int, ...]
    """Indices of the devices, ascending."""
    connections: dict[tuple[int, int], str]
    """(lower index, higher index) -> NV12, PIX, PXB, PHB, NODE or SYS."""

    def nvlinks(self, one: int, other: int) -> int:
        """NVLinks between two devices, or to the switch between them; 0 without."""
        found = self.connections[min(one, other), max(one, other)]
        return int(found[2:]) if found.startswith("NV") else 0

    def fewest_nvlinks(self) -> int:
        """Sum of a device's entries, for the device with the fewest."""
        others = {one: [other for other in self.devices if other != one] for one in self.devices}
        return min(sum(self.nvlinks(one, other) for other in others[one]) for one in self.devices)

    def joined_by_nvlink(self) -> bool:
        """True when NVLink alone leads from each device to all others."""
        reached, waiting = {self.devices[0]}, [self.devices[0]]
        while waiting:
            here = waiting.pop()
            near = {other for other in self.devices if other not in reached and self.nvlinks(here, other)}
            reached |= near
            waiting += near
        return len(reached) == len(self.devices)

    def has_nvlink(self) -> bool:
        """True when any two devices are joined by NVLink."""
        return any(self.nvlinks(*pair) for pair in self.connections)

    def behind_switches(self) -> bool:
        """True when PCIe switches alone, and no host bridge, lie between any two devices."""
        return set(self.connections.values()) <= _SWITCHED


def parse_topo(text: Text) -> Topo | None:
    """The matrix without its NICs; None for an empty text. Raises SpecError."""
    rows = list(text.lines())
    if not rows:
        return None
    at = next((at for at, (_, line) in enumerate(rows) if _GPU.fullmatch(line.split()[0])), None)
    if at is None or (at == 0 and len(rows[0][1].split()) == 1):
        raise text.broken(rows[0][0], f"expected a header GPU0 GPU1 ..., got {short(rows[0][1])}", _HINT)
    columns = rows[at][1].split("CPU")[0].split()
    table: dict[int, dict[int, str]] = {}
    last = rows[at][0]
    for number, line in rows[at + 1 :]:
        cells = line.split()
        row = _GPU.fullmatch(cells[0])
        if row:
            last = number
            table[int(row[1])] = _row(text, number, columns, cells[1:])
    return Topo(tuple(sorted(table)), _pairs(text, last, columns, table))


def _row(text: Text, number: int, columns: list[str], cells: list[str]) -> dict[int, str]:
    """Connections of one device to the devices of the columns."""
    if len(cells) < len(columns):
        raise text.broken(number, f"expected {len(columns)} connections, got {len(cells)}", _HINT)
    found: dict[int, str] = {}
    for column, cell in zip(columns, cells, strict=False):
        gpu = _GPU.fullmatch(column)
        if gpu and not _CONNECTION.fullmatch(cell):
            what = f"expected X, NV12, PIX, PXB, PHB, NODE or SYS below {column}, got {short(cell)}"
            raise text.broken(number, what, _HINT)
        if gpu:
            found[int(gpu[1])] = "SYS" if cell == "SOC" else cell
    return found


def _pairs(
    text: Text, last: int, columns: list[str], table: dict[int, dict[int, str]]
) -> dict[tuple[int, int], str]:
    """Each pair once; the matrix must be whole and the same both ways."""
    named = {int(match[1]) for match in map(_GPU.fullmatch, columns) if match}
    if not table or named != set(table):
        what = f"expected a row for each of the {len(named)} devices of the header, got {len(table)}"
        raise text.broken(last, what, _HINT)
    found = {(one, other): table[one][other] for one, other in combinations(sorted(table), 2)}
    for (one, other), connection in found.items():
        if table[other][one] != connection or connection == "X":
            what = f"GPU{one} and GPU{other}: {connection} one way, {table[other][one]} the other"
            raise text.broken(last, what, _HINT)
    return found
