"""Published microbenchmarks: matrix products, memory and networks, measured alone; each with its source."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Literal

from planner.cluster.spec import FabricKind
from planner.files.fields import Cards, Devices, Dtype, Frozen, Name, Nodes, Rate

Quantity = Literal[
    "matmul", "sustained", "memory", "host_copy", "copy", "all_reduce", "all_gather", "reduce_scatter"
]
_WHOLE = ("payload_bytes", "members", "nodes", "nics")


class Microbenchmark(Frozen):
    """One rate as its source states it."""

    device: Name | None = None
    """Device type, a name of the catalogue; None where only the network was measured."""
    quantity: Quantity
    """``matmul``: one matrix product; ``sustained``: one of many in a row, at the clock that the power limit leaves;
    ``memory``: reads and writes of device memory; ``host_copy``: copies between host and device in one direction;
    ``copy``: from device to device or node to node in one direction; collectives."""
    precision: Dtype | None = None
    """Number format of the matrices or vectors."""
    shape: str = ""
    """m x n x k of the product."""
    payload_bytes: int | None = None
    """Bytes of the collective's largest buffer (nccl-tests' size) or of the copied vector; None: not stated, large."""
    members: Devices = 1
    """Devices that take part."""
    nodes: Nodes = 1
    """Nodes that they are spread over evenly."""
    intra_node: Name | None = None
    """Network inside the node, a name of the catalogue."""
    fabric: FabricKind | None = None
    """Network between the nodes."""
    nic_gbps: Rate | None = None
    """Bandwidth of one network card, gigabit/s."""
    nics: Cards = 1
    """Network cards of one node."""
    algorithm: Literal["", "ring", "tree", "nvls", "sharp"] = ""
    """NCCL's, where stated. Only a ring's bus bandwidth is what the wire carries: a tree over two nodes and reductions
    inside the switch (nvls in the node, sharp between nodes) move less."""
    value: float
    """FLOP/s of a matrix product; byte/s of everything else, for collectives the bus bandwidth of nccl-tests."""
    reference: str
    """Page that states it."""
    note: str = ""
    """What the source leaves open."""
    measured_by: Literal["", "vendor"] = ""
    """vendor: the maker of the device, with kernels tuned for the occasion."""


@cache
def microbenchmarks() -> tuple[Microbenchmark, ...]:
    """All of them, in the order of the file."""
    text = files("planner.measured").joinpath("data", "microbenchmarks.csv").read_text(encoding="utf-8")
    return tuple(
        Microbenchmark.model_validate({key: _cell(key, cell) for key, cell in row.items() if cell})
        for row in csv.DictReader(text.splitlines())
    )


def _cell(column: str, text: str) -> str | int | float:
    if column in _WHOLE:
        return int(text)
    return float(text) if column in ("value", "nic_gbps") else text
