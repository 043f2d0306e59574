"""The network between the devices of a node, from their connections and what their kinds can do."""

from __future__ import annotations

from planner import catalog
from planner.probe.entry import ASSUMED, Entry, flow, number, remark
from planner.probe.kinds import Kind
from planner.probe.nvidia_smi import SeenGpu
from planner.probe.topo import Topo

_NVLINK: dict[str, tuple[str, int]] = {
    "P100-SXM": ("nvlink1", 4),
    "V100-SXM": ("nvlink2", 6),
    "A100-SXM": ("nvlink3", 12),
    "A100-PCIe": ("nvlink-bridge-a100", 12),
    "A800-SXM": ("nvlink3-a800", 8),
    "A40": ("nvlink-bridge", 4),
    "RTX-A6000": ("nvlink-bridge", 4),
    "RTX-3090": ("nvlink-bridge", 4),
    "RTX-2080-Ti": ("nvlink-bridge-turing", 2),
    "Titan-RTX": ("nvlink-bridge-turing", 2),
    "H100-SXM": ("nvlink4", 18),
    "H100-PCIe": ("nvlink-bridge-a100", 12),
    "H100-NVL": ("nvlink-bridge-a100", 12),
    "H800-SXM": ("nvlink4-h800", 8),
    "H20": ("nvlink4", 18),
    "H200": ("nvlink4", 18),
    "GH200": ("nvlink4", 18),
    "B200": ("nvlink5", 18),
    "B300": ("nvlink5", 18),
    "GB200": ("nvlink5", 18),
    "GB300": ("nvlink5", 18),
}
"""Beginning of a catalogue name -> link of the catalogue, and how many NVLinks of a device make it up."""
_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 15.75 / 16, 4: 31.5 / 16, 5: 63 / 16}
"""Gigabyte/s of one PCIe lane in one direction by generation."""
_NAMED = (3, 4, 5)
"""PCIe generations that the catalogue has."""


def intra_node(gpus: tuple[SeenGpu, ...], kinds: tuple[Kind, ...], topo: Topo | None) -> tuple[Entry, ...]:
    """The line ``intra_node`` with remarks; nothing for a node of one device."""
    if len(kinds) < 2:
        return ()
    if any(gpu.mig for gpu in gpus):
        return (
            _missing("MIG devices have no peer access; measure what their copies through the host reach"),
        )
    if topo is None:
        return (_missing("the link of nvidia-smi topo -m, e.g. nvlink3 or pcie4"),)
    if set(topo.devices) != {gpu.index for gpu in gpus}:
        return (_missing(f"nvidia-smi lists {len(gpus)} devices, its topo -m {len(topo.devices)}"),)
    if topo.has_nvlink() and topo.joined_by_nvlink():
        return (_nvlink(kinds, topo.fewest_nvlinks()),)
    note = "NVLink joins some devices only; one number stands for the node, that of PCIe"
    return (*((remark(note),) if topo.has_nvlink() else ()), _pcie(gpus, kinds, topo.behind_switches()))


def _missing(note: str) -> Entry:
    return Entry("intra_node", None, note)


def _nvlink(kinds: tuple[Kind, ...], count: int) -> Entry:
    """The slowest device's NVLinks; a switch shows all links of a device at each of its peers."""
    found = [_nvlink_of(kind) for kind in kinds]
    known = [entry for entry in found if entry is not None]
    if len(known) < len(found):
        lost = kinds[found.index(None)].name
        return _missing(f"{{bandwidth_gBps: N}}, gigabyte/s of the NVLinks of one {lost} in one direction")
    link, most = min(known, key=lambda each: each[0].bandwidth_gBps / each[1] * min(each[1], count))
    if count >= most:
        return Entry("intra_node", link.name)
    bandwidth = number(link.bandwidth_gBps / most * count)
    value = {"bandwidth_gBps": bandwidth, "latency_us": link.latency_us}
    return Entry("intra_node", flow(value), f"{count} of {most} links of {link.name}")


def _nvlink_of(kind: Kind) -> tuple[catalog.Link, int] | None:
    if kind.known is None:
        return None
    for beginning, (name, most) in _NVLINK.items():
        if kind.known.name == beginning or kind.known.name.startswith(f"{beginning}-"):
            return catalog.link(name), most
    return None


def _pcie(gpus: tuple[SeenGpu, ...], kinds: tuple[Kind, ...], switched: bool) -> Entry:
    """The slowest device's PCIe link; one host bridge for all unless switches join them."""
    suffix = "-switch" if switched else ""
    seen = [
        (gpu.pcie_generation, gpu.pcie_width)
        for gpu in gpus
        if gpu.pcie_width and gpu.pcie_generation in _LANE_GBPS
    ]
    if len(seen) < len(gpus):
        return _pcie_of_the_kinds(kinds, suffix)
    generation, width = min(seen, key=lambda lanes: _LANE_GBPS[lanes[0]] * lanes[1])
    if width == 16 and generation in _NAMED:
        return Entry("intra_node", f"pcie{generation}{suffix}")
    value = {"bandwidth_gBps": number(_LANE_GBPS[generation] * width), "latency_us": 5.7}
    shared = {} if switched else {"shared": True}
    return Entry("intra_node", flow({**value, **shared}), f"PCIe {generation}, {width} lanes")


def _pcie_of_the_kinds(kinds: tuple[Kind, ...], suffix: str) -> Entry:
    """Generations that the data sheets give, for devices that do not say theirs."""
    wires = [kind.known.host_link_gBps if kind.known else None for kind in kinds]
    slowest = min((wire for wire in wires if wire is not None), default=None)
    named = {_LANE_GBPS[generation] * 16: generation for generation in _NAMED}
    if None in wires or slowest not in named:
        return _missing(
            f"pcie3{suffix}, pcie4{suffix} or pcie5{suffix}; nvidia-smi did not say the generation"
        )
    note = f"{ASSUMED}x16 of the generation that the data sheet gives"
    return Entry("intra_node", f"pcie{named[slowest]}{suffix}", note)
