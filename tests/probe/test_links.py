"""The network between the devices of a node."""

from __future__ import annotations

import pytest

from planner import catalog
from planner.probe.devices import SeenGpu, parse_topo
from planner.probe.entries import device_types_of, intra_node
from planner.probe.text import Text
from tests.probe.seen import matrix


def line(
    product: str, topo: Text | None, generation: int | None = None, width: int | None = 16, count: int = 0
) -> str:
    """The entries for equal devices."""
    parsed = parse_topo(topo) if topo else None
    count = count or (len(parsed.devices) if parsed else 1)
    gpus = tuple(
        SeenGpu(index=index, name=product, pcie_generation=generation, pcie_width=width)
        for index in range(count)
    )
    return "\n".join(entry.line() for entry in intra_node(gpus, device_types_of(gpus), parsed))


def all_pairs(connection: str, count: int) -> Text:
    """The same connection between any two devices."""
    return matrix(["\t".join("X" if i == j else connection for j in range(count)) for i in range(count)])


@pytest.mark.parametrize(
    ("product", "connection", "count", "link"),
    [
        ("NVIDIA A100-SXM4-80GB", "NV12", 8, "nvlink3"),
        ("NVIDIA A100-SXM4-40GB", "NV4", 4, "nvlink3"),
        ("NVIDIA H100 80GB HBM3", "NV18", 8, "nvlink4"),
        ("NVIDIA H200", "NV18", 8, "nvlink4"),
        ("NVIDIA B200", "NV18", 8, "nvlink5"),
        ("Tesla V100-SXM3-32GB", "NV6", 16, "nvlink2"),
        ("NVIDIA A800-SXM4-80GB", "NV8", 8, "nvlink3-a800"),
        ("NVIDIA H800", "NV8", 8, "nvlink4-h800"),
        ("NVIDIA A100 80GB PCIe", "NV12", 2, "nvlink-bridge-a100"),
        ("NVIDIA GeForce RTX 3090", "NV4", 2, "nvlink-bridge"),
        ("NVIDIA TITAN RTX", "NV2", 2, "nvlink-bridge-turing"),
        ("Quadro RTX 6000", "NV2", 2, "nvlink-bridge-turing"),
        ("Quadro RTX 8000", "NV2", 2, "nvlink-bridge-turing"),
        ("NVIDIA GeForce RTX 2080 Ti", "NV2", 2, "nvlink-bridge-turing"),
        ("NVIDIA GeForce RTX 2080", "NV1", 2, "nvlink-bridge-tu104"),
        ("Quadro RTX 5000", "NV1", 2, "nvlink-bridge-tu104"),
        ("NVIDIA RTX A5000", "NV4", 2, "nvlink-bridge"),
        ("NVIDIA A30", "NV4", 2, "nvlink-bridge-a30"),
        ("NVIDIA H200 NVL", "NV6", 4, "nvlink-bridge-h200"),
    ],
)
def test_nvlink_by_generation(product: str, connection: str, count: int, link: str) -> None:
    """The device says which link, the matrix that all of it is there."""
    assert line(product, all_pairs(connection, count)) == f"intra_node: {link}"
    assert link in catalog.link_names()


def test_a_mesh_of_v100_has_the_links_of_a_device_in_its_row() -> None:
    """DGX-1 joins some pairs by one link, some by two, and some not at all; six leave each device."""
    rows = ["X\tNV2\tNV2\tNV2", "NV2\tX\tNV2\tNV2", "NV2\tNV2\tX\tNV2", "NV2\tNV2\tNV2\tX"]
    assert line("Tesla V100-SXM2-16GB", matrix(rows)) == "intra_node: nvlink2"
    ring = ["X\tNV2\tSYS\tNV1", "NV2\tX\tNV1\tSYS", "SYS\tNV1\tX\tNV2", "NV1\tSYS\tNV2\tX"]
    assert line("Tesla V100-SXM2-16GB", matrix(ring)) == (
        "intra_node: {bandwidth_gBps: 75, latency_us: 3.4}  # 3 of 6 links of nvlink2"
    )


def test_bridges_between_pairs_leave_the_node_to_pcie() -> None:
    """With a remark."""
    rows = ["X\tNV4\tSYS\tSYS", "NV4\tX\tSYS\tSYS", "SYS\tSYS\tX\tNV4", "SYS\tSYS\tNV4\tX"]
    assert line("NVIDIA RTX A6000", matrix(rows), 4).splitlines() == [
        "# NVLink joins some devices only; one number stands for the node, that of PCIe",
        "intra_node: pcie4",
    ]


@pytest.mark.parametrize(
    ("connection", "generation", "width", "expected"),
    [
        ("SYS", 3, 16, "intra_node: pcie3"),
        ("NODE", 4, 16, "intra_node: pcie4"),
        ("PHB", 5, 16, "intra_node: pcie5"),
        ("PIX", 4, 16, "intra_node: pcie4-switch"),
        ("PXB", 3, 16, "intra_node: pcie3-switch"),
        ("PIX", 3, 8, "intra_node: {bandwidth_gBps: 7.88, latency_us: 5.7}  # PCIe 3, 8 lanes"),
        (
            "PHB",
            2,
            16,
            "intra_node: {bandwidth_gBps: 8, latency_us: 5.7, shared: true, shared_by: 4}  # PCIe 2, 16 lanes",
        ),
        ("SYS", None, None, "intra_node: pcie3  # assumed: x16 of the generation that the data sheet gives"),
    ],
)
def test_pcie(connection: str, generation: int | None, width: int | None, expected: str) -> None:
    """Generation and lanes from nvidia-smi, bridge or switch from the matrix."""
    assert line("Tesla T4", all_pairs(connection, 4), generation, width) == expected


def test_what_cannot_be_known_is_left_to_fill_in() -> None:
    """No matrix, a matrix of other devices, an unknown device on NVLink or without a PCIe generation."""
    assert line("Tesla T4", None, count=2).startswith(
        "# not seen: intra_node: the link of nvidia-smi topo -m"
    )
    assert line("Tesla T4", all_pairs("SYS", 4), count=2).startswith(
        "# not seen: intra_node: nvidia-smi lists 2 devices, its topo -m 4"
    )
    assert line("NVIDIA X100", all_pairs("NV20", 2)).startswith("# not seen: intra_node: {bandwidth_gBps: N}")
    assert line("NVIDIA X100", all_pairs("SYS", 2), None, None).startswith(
        "# not seen: intra_node: pcie3, pcie4"
    )


def test_one_device_needs_no_network() -> None:
    """Nothing is written."""
    assert line("Tesla T4", None) == ""
