"""Devices of a node and the links between them, as ``nvidia-smi``, ``amd-smi`` and ``rocm-smi`` list them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from planner.catalog import Vendor
from planner.probe.text import Text, short

_COLUMN = re.compile(r"GPU(\d{1,4})")
_CONNECTION = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_TOPO_HINT = "save the output of: nvidia-smi topo -m"
_SWITCHED = {"PIX", "PXB"}


@dataclass(frozen=True, slots=True)
class Topo:
    """The connection of every pair of devices."""

    devices: tuple[int, ...]
    """Indices of the devices, ascending."""
    connections: dict[tuple[int, int], str]
    """(lower index, higher index) -> NV12, XGMI, PIX, PXB, PHB, NODE or SYS."""

    def nvlinks(self, one: int, other: int) -> int:
        """NVLinks between two devices, or to the switch between them; 0 without."""
        connection = self.connections[min(one, other), max(one, other)]
        return int(connection[2:]) if connection.startswith("NV") else 0

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

    def joined_by_xgmi(self) -> bool:
        """True when every pair of devices is joined by AMD's xGMI."""
        return set(self.connections.values()) == {"XGMI"}

    def behind_switches(self) -> bool:
        """True when PCIe switches alone, and no host bridge, lie between any two devices."""
        return set(self.connections.values()) <= _SWITCHED


def parse_topo(text: Text) -> Topo | None:
    """The matrix without its NICs; None for an empty text. Raises SpecError."""
    rows = list(text.lines())
    if not rows:
        return None
    at = next((at for at, (_, line) in enumerate(rows) if _COLUMN.fullmatch(line.split()[0])), None)
    if at is None or (at == 0 and len(rows[0][1].split()) == 1):
        raise text.broken(rows[0][0], f"expected a header GPU0 GPU1 ..., got {short(rows[0][1])}", _TOPO_HINT)
    columns = rows[at][1].split("CPU")[0].split()
    table: dict[int, dict[int, str]] = {}
    last = rows[at][0]
    for number, line in rows[at + 1 :]:
        cells = line.split()
        row = _COLUMN.fullmatch(cells[0])
        if row:
            last = number
            table[int(row[1])] = _row(text, number, columns, cells[1:])
    return Topo(tuple(sorted(table)), _pairs(text, last, columns, table))


def _row(text: Text, number: int, columns: list[str], cells: list[str]) -> dict[int, str]:
    """Connections of one device to the devices of the columns."""
    if len(cells) < len(columns):
        raise text.broken(number, f"expected {len(columns)} connections, got {len(cells)}", _TOPO_HINT)
    cells_by_gpu: dict[int, str] = {}
    for column, cell in zip(columns, cells, strict=False):
        gpu = _COLUMN.fullmatch(column)
        if gpu and not _CONNECTION.fullmatch(cell):
            what = f"expected X, NV12, PIX, PXB, PHB, NODE or SYS below {column}, got {short(cell)}"
            raise text.broken(number, what, _TOPO_HINT)
        if gpu:
            cells_by_gpu[int(gpu[1])] = "SYS" if cell == "SOC" else cell
    return cells_by_gpu


def _pairs(
    text: Text, last: int, columns: list[str], table: dict[int, dict[int, str]]
) -> dict[tuple[int, int], str]:
    """Each pair once; the matrix must be whole and the same both ways."""
    named = {int(match[1]) for match in map(_COLUMN.fullmatch, columns) if match}
    if not table or named != set(table):
        what = f"expected a row for each of the {len(named)} devices of the header, got {len(table)}"
        raise text.broken(last, what, _TOPO_HINT)
    pairs = {(one, other): table[one][other] for one, other in combinations(sorted(table), 2)}
    for (one, other), connection in pairs.items():
        if table[other][one] != connection or connection == "X":
            what = f"GPU{one} and GPU{other}: {connection} one way, {table[other][one]} the other"
            raise text.broken(last, what, _TOPO_HINT)
    return pairs


FIELDS = (
    "index",
    "name",
    "memory.total",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "ecc.mode.current",
    "mig.mode.current",
    "power.limit",
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
    power_limit_watts: float | None = None
    """Limit that is set (``nvidia-smi -pl``); the board's own where nobody set one."""
    mig: bool = False
    """True when the device is cut into MIG devices."""
    profiles: tuple[str, ...] = ()
    """Its MIG devices, e.g. ``3g.20gb``; empty when unknown."""
    vendor: Vendor | None = None
    """Whose tool lists it; None for nvidia-smi, whose format torch prints too."""


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
    gpus: dict[int, SeenGpu] = {}
    for position, (number, line) in enumerate(rows[1:]):
        gpu = _gpu(text, number, columns, line, position)
        if gpu.index in gpus:
            raise text.broken(number, f"index: the device {gpu.index} is listed twice", _HINT)
        gpus[gpu.index] = gpu
    return tuple(gpus[index] for index in sorted(gpus))


def parse_mig(text: Text, gpus: tuple[SeenGpu, ...]) -> tuple[SeenGpu, ...]:
    """The devices with the MIG devices that ``nvidia-smi -L`` lists below them; raises SpecError.

    One in MIG mode without any is left out, as nothing can run on it.
    """
    profiles: dict[int, list[str]] = {}
    index: int | None = None
    for number, line in text.lines():
        gpu, mig = _GPU.fullmatch(line), _MIG.fullmatch(line)
        if gpu:
            index = int(gpu[1])
            profiles[index] = []
        elif mig and index is not None:
            profiles[index].append(mig[1])
        elif line.strip() != _NONE:
            raise text.broken(number, f"expected a line GPU 0: ... or MIG ..., got {short(line)}", _LIST_HINT)
    return tuple(
        replace(gpu, mig=True, profiles=tuple(profiles[gpu.index])) if profiles.get(gpu.index) else gpu
        for gpu in gpus
        if not (gpu.mig and profiles.get(gpu.index) == [])
    )


def _gpu(text: Text, number: int, columns: list[str], line: str, index: int) -> SeenGpu:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(columns):
        what = f"expected {len(columns)} values as in the header, got {len(cells)}: {short(line)}"
        raise text.broken(number, what, _HINT)
    row = {name: cell for name, cell in zip(columns, cells, strict=True) if cell not in _UNKNOWN}
    if "name" not in row:
        raise text.broken(number, "the device has no name", _HINT)
    number_of = _whole(text, number, row, "index")
    return SeenGpu(
        index=index if number_of is None else number_of,
        name=row["name"],
        memory_mib=_amount(text, number, row, "memory.total", "MiB", "81920"),
        pcie_generation=_whole(text, number, row, "pcie.link.gen.max"),
        pcie_width=_whole(text, number, row, "pcie.link.width.max"),
        ecc=_switch(text, number, row, "ecc.mode.current"),
        power_limit_watts=_amount(text, number, row, "power.limit", "W", "400.00"),
        mig=_switch(text, number, row, "mig.mode.current") or False,
    )


def _amount(text: Text, number: int, row: dict[str, str], column: str, unit: str, such: str) -> float | None:
    """What a column has of a unit, with its name or without."""
    cell = row.get(column)
    if cell is None:
        return None
    match = re.fullmatch(rf"(\d{{1,9}}(?:\.\d{{1,9}})?)(?: {unit})?", cell)
    if not match or float(match[1]) <= 0:
        raise text.broken(
            number, f"{column}: expected {unit} such as {such} {unit}, got {short(cell)}", _HINT
        )
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


_AMD_HINT = "save the output of: amd-smi static --asic --bus --vram"
_CSV_HINT = "save the output of: rocm-smi --showproductname --showmeminfo vram --csv"
_AMD_TOPO_HINT = "save the output of: rocm-smi --showtopotype"
_AMD_GPU = re.compile(r"GPU: (\d{1,4})")
_FIELD = re.compile(r"\s+(MARKET_NAME|SIZE|MAX_PCIE_WIDTH|PCIE_INTERFACE_VERSION): (.+)")
_NUMBER = re.compile(r"(?:Gen )?(\d{1,9})(?: MB)?")
_CARD = re.compile(r"card(\d{1,4})")
LEAST_MIB = 1024
"""Graphics inside a processor are given less memory than that."""
TITLE = "Link Type between two GPUs"


def is_amd(text: Text) -> bool:
    """True for what AMD's tools print."""
    first = next((line for _, line in text.lines()), "")
    return _AMD_GPU.fullmatch(first) is not None or first.lower().startswith("device,")


def parse_amd_gpus(text: Text) -> tuple[SeenGpu, ...]:
    """Devices of ``amd-smi static`` or of ``rocm-smi --csv`` by index; raises SpecError."""
    rows = list(text.lines())
    gpus = _table(text, rows) if rows[0][1].lower().startswith("device,") else _sections(text, rows)
    return tuple(
        sorted((gpu for gpu in gpus if (gpu.memory_mib or LEAST_MIB) >= LEAST_MIB), key=lambda gpu: gpu.index)
    )


def _sections(text: Text, rows: list[tuple[int, str]]) -> Iterator[SeenGpu]:
    """A section for each device; what it does not know is N/A."""
    fields: dict[int, dict[str, str]] = {}
    index, began = -1, {}
    for number, line in rows:
        gpu, entry = _AMD_GPU.fullmatch(line), _FIELD.fullmatch(line)
        if gpu:
            index = int(gpu[1])
            fields[index], began[index] = {}, number
        elif entry and entry[2] != "N/A":
            fields[index][entry[1]] = entry[2]
    for index, own in fields.items():
        if "MARKET_NAME" not in own:
            raise text.broken(began[index], f"GPU {index}: expected a line MARKET_NAME: ...", _AMD_HINT)
        numbers: dict[str, int] = {}
        for key in ("SIZE", "MAX_PCIE_WIDTH", "PCIE_INTERFACE_VERSION"):
            match = _NUMBER.fullmatch(own.get(key, "0"))
            if not match:
                raise text.broken(
                    began[index], f"GPU {index}: {key}: expected a number, got {short(own[key])}", _AMD_HINT
                )
            numbers[key] = int(match[1])
        yield SeenGpu(
            index=index,
            name=own["MARKET_NAME"],
            memory_mib=numbers["SIZE"] or None,
            pcie_generation=numbers["PCIE_INTERFACE_VERSION"] or None,
            pcie_width=numbers["MAX_PCIE_WIDTH"] or None,
            vendor="amd",
        )


def _table(text: Text, rows: list[tuple[int, str]]) -> Iterator[SeenGpu]:
    """Columns by their titles, whose case differs between versions."""
    columns = [column.strip().lower() for column in rows[0][1].split(",")]
    if "card series" not in columns:
        raise text.broken(
            rows[0][0], f"expected a header with Card Series, got {short(rows[0][1])}", _CSV_HINT
        )
    for number, line in rows[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        card = _CARD.fullmatch(cells[0])
        if not card or len(cells) != len(columns):
            raise text.broken(number, f"expected card0,... as in the header, got {short(line)}", _CSV_HINT)
        row = dict(zip(columns, cells, strict=True))
        size = row.get("vram total memory (b)", "")
        yield SeenGpu(
            index=int(card[1]),
            name=row["card series"],
            memory_mib=int(size) / 2**20 if re.fullmatch(r"[1-9]\d{0,15}", size) else None,
            vendor="amd",
        )


def parse_amd_topo(text: Text) -> Topo:
    """The matrix of link types; raises SpecError."""
    rows = list(text.lines())
    at = next(at for at, (_, line) in enumerate(rows) if TITLE in line)
    head = rows[at + 1][1].split() if at + 1 < len(rows) else []
    if not head or not all(map(_COLUMN.fullmatch, head)):
        raise text.broken(rows[at][0], "expected a header GPU0 GPU1 ... below", _AMD_TOPO_HINT)
    table: dict[str, list[str]] = {}
    for number, line in rows[at + 2 : at + 2 + len(head)]:
        name, *cells = line.split()
        if name not in head or len(cells) != len(head) or not set(cells) <= {"0", "XGMI", "PCIE"}:
            raise text.broken(
                number, f"expected GPU0 and {len(head)} of 0, XGMI, PCIE, got {short(line)}", _AMD_TOPO_HINT
            )
        table[name] = cells
    if set(table) != set(head):
        raise text.broken(rows[at][0], f"expected {len(head)} rows below, got {len(table)}", _AMD_TOPO_HINT)
    index = {name: int(name.removeprefix("GPU")) for name in head}
    pairs = {
        (index[one], index[other]): "XGMI" if table[one][head.index(other)] == "XGMI" else "SYS"
        for one, other in combinations(sorted(head, key=index.__getitem__), 2)
    }
    return Topo(tuple(sorted(index.values())), pairs)
