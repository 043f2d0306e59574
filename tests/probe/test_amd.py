"""AMD's devices and the links between them."""

from __future__ import annotations

import pytest

from planner.errors import SpecError
from planner.probe.devices import parse_amd_gpus, parse_amd_topo
from planner.probe.draft import draft
from planner.probe.node import parse_node
from tests.probe.seen import text

STATIC = """\
GPU: {index}
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
        VENDOR_ID: 0x1002
        NUM_COMPUTE_UNITS: 304
    BUS:
        BDF: 0000:05:00.0
        MAX_PCIE_WIDTH: 16
        MAX_PCIE_SPEED: 32 GT/s
        PCIE_LEVELS: N/A
        PCIE_INTERFACE_VERSION: Gen 5
    VRAM:
        TYPE: HBM
        SIZE: {size}
"""
TABLE = """\
device,VRAM Total Memory (B),VRAM Total Used Memory (B),Card {title},Card Model,Card Vendor,GFX Version
card1,206141652992,297308160,AMD Instinct MI300X OAM,0x74a1,Advanced Micro Devices Inc. [AMD/ATI],gfx942
card0,206141652992,297308160,AMD Instinct MI300X OAM,0x74a1,Advanced Micro Devices Inc. [AMD/ATI],gfx942
card2,67108864,26079232,Raphael,0x164e,Advanced Micro Devices Inc. [AMD/ATI],gfx1036
"""
TOPO = """\
============================ ROCm System Management Interface ============================
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            {link}
GPU1   {link}         0
================================== End of ROCm SMI Log ===================================
"""


def test_amd_smi() -> None:
    """Name, memory and lanes of each device; N/A is unknown."""
    found = parse_amd_gpus(
        text(STATIC.format(index=1, size="N/A") + STATIC.format(index=0, size="196592 MB"))
    )
    assert [(gpu.index, gpu.memory_mib) for gpu in found] == [(0, 196592), (1, None)]
    assert (found[0].name, found[0].pcie_generation, found[0].pcie_width) == ("AMD Instinct MI300X", 5, 16)
    assert found[0].vendor == "amd"


@pytest.mark.parametrize("title", ["Series", "series"])
def test_rocm_smi(title: str) -> None:
    """Columns by their titles; graphics inside the processor are left out."""
    found = parse_amd_gpus(text(TABLE.format(title=title)))
    assert [(gpu.index, gpu.memory_mib) for gpu in found] == [(0, 196592), (1, 196592)]
    assert {gpu.vendor for gpu in found} == {"amd"}


def test_links() -> None:
    """Every pair once."""
    assert parse_amd_topo(text(TOPO.format(link="XGMI"))).joined_by_xgmi()
    assert parse_amd_topo(text(TOPO.format(link="PCIE"))).connections == {(0, 1): "SYS"}


@pytest.mark.parametrize("seen", [TABLE.format(title="Series"), STATIC.format(index=0, size="196592 MB") * 1])
@pytest.mark.parametrize(
    ("link", "line"), [("XGMI", "intra_node: xgmi-mi300x"), ("PCIE", "intra_node: pcie5")]
)
def test_a_node_of_them(seen: str, link: str, line: str) -> None:
    """The devices are the catalogue's, and so is what joins them."""
    if seen.startswith("GPU"):
        seen += STATIC.format(index=1, size="196592 MB")
    made = draft([parse_node("a", {"nvidia_smi": text(seen), "topo": text(TOPO.format(link=link))})], [], "c")
    assert line in made
    assert "gpu: MI300X" in made
    assert "gpus_per_node: 2" in made


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("device,Card Model\ncard0,x\n", "seen.txt:1: expected a header with Card Series"),
        ("device,Card Series\ncardX,MI300X\n", "seen.txt:2: expected card0,... as in the header"),
        ("GPU: 0\n    ASIC:\n", "seen.txt:1: GPU 0: expected a line MARKET_NAME"),
        (STATIC.format(index=0, size="much"), "seen.txt:1: GPU 0: SIZE: expected a number, got 'much'"),
    ],
)
def test_what_is_damaged_is_named(content: str, message: str) -> None:
    """With the line."""
    with pytest.raises(SpecError) as caught:
        parse_amd_gpus(text(content))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TOPO.split("GPU1   ")[0], "expected 2 rows below, got 1"),
        (TOPO.format(link="NVL"), "expected GPU0 and 2 of 0, XGMI, PCIE"),
        ("Link Type between two GPUs\n", "expected a header GPU0 GPU1"),
    ],
)
def test_damaged_links(content: str, message: str) -> None:
    """With the line."""
    with pytest.raises(SpecError, match=message):
        parse_amd_topo(text(content.format(link="XGMI")))
