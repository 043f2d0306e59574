"""AMD's devices of a node as ``amd-smi`` and ``rocm-smi`` list them, and the links between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from planner.probe.nvidia_smi import SeenGpu, Topo
from planner.probe.text import Text, short

_HINT = "save the output of: amd-smi static --asic --bus --vram"
_CSV_HINT = "save the output of: rocm-smi --showproductname --showmeminfo vram --csv"
_TOPO_HINT = "save the output of: rocm-smi --showtopotype"
_GPU = re.compile(r"GPU: (\d{1,4})")
_FIELD = re.compile(r"\s+(MARKET_NAME|SIZE|MAX_PCIE_WIDTH|PCIE_INTERFACE_VERSION): (.+)")
_NUMBER = re.compile(r"(?:Gen )?(\d{1,9})(?: MB)?")
_CARD = re.compile(r"card(\d{1,4})")
LEAST_MIB = 1024
"""Graphics inside a processor are given less memory than that."""
TITLE = "Link Type between two GPUs"
_COLUMN = re.compile(r"GPU(\d{1,4})")


def is_amd(text: Text) -> bool:
    """True for what AMD's tools print."""
    first = next((line for _, line in text.lines()), "")
    return _GPU.fullmatch(first) is not None or first.lower().startswith("device,")


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
        gpu, entry = _GPU.fullmatch(line), _FIELD.fullmatch(line)
        if gpu:
            index = int(gpu[1])
            fields[index], began[index] = {}, number
        elif entry and entry[2] != "N/A":
            fields[index][entry[1]] = entry[2]
    for index, own in fields.items():
        if "MARKET_NAME" not in own:
            raise text.broken(began[index], f"GPU {index}: expected a line MARKET_NAME: ...", _HINT)
        numbers: dict[str, int] = {}
        for key in ("SIZE", "MAX_PCIE_WIDTH", "PCIE_INTERFACE_VERSION"):
            match = _NUMBER.fullmatch(own.get(key, "0"))
            if not match:
                raise text.broken(
                    began[index], f"GPU {index}: {key}: expected a number, got {short(own[key])}", _HINT
                )
            numbers[key] = int(match[1])
        yield SeenGpu(
            index=index,
            name=own["MARKET_NAME"],
            memory_mib=numbers["SIZE"] or None,
            pcie_generation=numbers["PCIE_INTERFACE_VERSION"] or None,
            pcie_width=numbers["MAX_PCIE_WIDTH"] or None,
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
        )


def parse_amd_topo(text: Text) -> Topo:
    """The matrix of link types; raises SpecError."""
    rows = list(text.lines())
    at = next(at for at, (_, line) in enumerate(rows) if TITLE in line)
    head = rows[at + 1][1].split() if at + 1 < len(rows) else []
    if not head or not all(map(_COLUMN.fullmatch, head)):
        raise text.broken(rows[at][0], "expected a header GPU0 GPU1 ... below", _TOPO_HINT)
    table: dict[str, list[str]] = {}
    for number, line in rows[at + 2 : at + 2 + len(head)]:
        name, *cells = line.split()
        if name not in head or len(cells) != len(head) or not set(cells) <= {"0", "XGMI", "PCIE"}:
            raise text.broken(
                number, f"expected GPU0 and {len(head)} of 0, XGMI, PCIE, got {short(line)}", _TOPO_HINT
            )
        table[name] = cells
    if set(table) != set(head):
        raise text.broken(rows[at][0], f"expected {len(head)} rows below, got {len(table)}", _TOPO_HINT)
    index = {name: int(name.removeprefix("GPU")) for name in head}
    pairs = {
        (index[one], index[other]): "XGMI" if table[one][head.index(other)] == "XGMI" else "SYS"
        for one, other in combinations(sorted(head, key=index.__getitem__), 2)
    }
    return Topo(tuple(sorted(index.values())), pairs)
