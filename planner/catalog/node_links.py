"""The link that usually connects the devices of a node."""

from __future__ import annotations

from planner import catalog

NVLINK: dict[str, tuple[str, int]] = {
    "P100-SXM": ("nvlink1", 4),
    "V100-SXM": ("nvlink2", 6),
    "A100-SXM": ("nvlink3", 12),
    "A100-PCIe": ("nvlink-bridge-a100", 12),
    "A30": ("nvlink-bridge-a30", 4),
    "A800-SXM": ("nvlink3-a800", 8),
    "A40": ("nvlink-bridge", 4),
    "RTX-A6000": ("nvlink-bridge", 4),
    "RTX-A5000": ("nvlink-bridge", 4),
    "RTX-3090": ("nvlink-bridge", 4),
    "RTX-2080-Ti": ("nvlink-bridge-turing", 2),
    "Titan-RTX": ("nvlink-bridge-turing", 2),
    "Quadro-RTX-6000": ("nvlink-bridge-turing", 2),
    "Quadro-RTX-8000": ("nvlink-bridge-turing", 2),
    "RTX-2080": ("nvlink-bridge-tu104", 1),
    "Quadro-RTX-5000": ("nvlink-bridge-tu104", 1),
    "H100-SXM": ("nvlink4", 18),
    "H100-PCIe": ("nvlink-bridge-a100", 12),
    "H100-NVL": ("nvlink-bridge-a100", 12),
    "H800-SXM": ("nvlink4-h800", 8),
    "H20": ("nvlink4", 18),
    "H200-NVL": ("nvlink-bridge-h200", 18),
    "H200": ("nvlink4", 18),
    "GH200": ("nvlink4", 18),
    "B200": ("nvlink5", 18),
    "B300": ("nvlink5", 18),
    "GB200": ("nvlink5", 18),
    "GB300": ("nvlink5", 18),
}
"""Beginning of a catalogue name -> link of the catalogue, and how many NVLinks of a device make it up; the longer
beginning first."""


RACKS = ("GB200", "GB300")
"""Device types that are sold in racks whose NVLink joins the devices of all nodes."""

XGMI = {
    "MI300X": "xgmi-mi300x",
    "MI325X": "xgmi-mi300x",
    "MI300A": "xgmi-mi300a",
    "MI350X": "xgmi-mi355x",
    "MI355X": "xgmi-mi355x",
    "MI250X-GCD": "xgmi-mi250x",
    "MI250-GCD": "xgmi-mi250x",
}
"""Catalogue name -> link of the catalogue, of AMD's boards and sockets."""


def nvlink_of(gpu: str) -> tuple[str, int] | None:
    """The entry of NVLINK for a name of the catalogue; None for a device without NVLink."""
    return next(
        (entry for begin, entry in NVLINK.items() if gpu == begin or gpu.startswith(f"{begin}-")), None
    )


def usual_link(gpu: str) -> str:
    """NVLink of SXM boards, else PCIe as the device has it, shared; ``gpu`` is a name of the catalogue."""
    nvlink, _ = nvlink_of(gpu) or ("", 0)
    if nvlink and "bridge" not in nvlink:
        return nvlink
    if gpu in XGMI:
        return XGMI[gpu]
    wire = catalog.gpu(gpu).host_link_gBps or 0.0
    return "pcie5" if wire > 60 else "pcie4" if wire > 30 else "pcie3"
