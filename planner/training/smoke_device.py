"""What the smoke run sees of one rank's device and node: name, PCI slot, architecture, clocks; and what is wrong."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""Bits of nvidia-smi's clocks_event_reasons.active that mean a device is slower than it should be."""
LEAST_CLOCK = 0.6
"""Share of the highest clock below which a busy device is warned of."""
VENDOR_WORDS = re.compile(r"\b(nvidia|geforce|tesla|quadro|amd|instinct|radeon|oam)\b")


@dataclass(frozen=True)
class Seen:
    """One rank's process and device."""

    rank: int
    host: str
    """Where launch.sh thinks it is."""
    machine: str
    """What tells this machine from others."""
    name: str
    """Of the device, as torch has it; empty without one."""
    bus: str
    """PCI address of torch's device; empty when unknown."""
    slot_bus: str
    """The same of the planned index, by the driver's list; empty when unknown."""
    architecture: str
    """``sm_90`` or ``gfx942``; empty without a device."""
    wheel: tuple[str, ...]
    """Architectures that this torch was built for."""
    versions: str
    """Of Python, torch, its CUDA or ROCm, and the collective library."""
    weights: str = ""
    """Checksum of what weights start from."""
    clocks: str = ""
    """Clock under load, in words; empty when unknown."""
    slowed: str = ""
    """Why the driver slows the device down; empty where it does not."""


def smi(fields: str) -> list[list[str]]:
    """Rows of nvidia-smi's answer; none where there is no nvidia-smi, or it knows no such field."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return (
        [re.split(r",\s*", line.strip()) for line in done.stdout.splitlines()] if done.returncode == 0 else []
    )


def address(text: str) -> str:
    """A PCI address without the leading zeros of its domain: ``00000000:1B:00.0`` is ``0:1b:00``."""
    match = re.fullmatch(r"([0-9A-Fa-f]*):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(\.\d)?", text.strip())
    return f"{int(match[1] or '0', 16):x}:{match[2].lower()}:{match[3].lower()}" if match else ""


def machine() -> str:
    """What tells this machine from others, whatever it is called."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}".strip()


def versions() -> str:
    """What has to be alike on all ranks."""
    library = ""
    if torch.cuda.is_available():
        library = ".".join(str(part) for part in torch.cuda.nccl.version())
    built = torch.version.cuda or getattr(torch.version, "hip", None) or "no GPU"
    parts = [f"python {platform.python_version()}", f"torch {torch.__version__}", built]
    return ", ".join([*parts, *([f"nccl {library}"] if library else [])])


def device_facts(index: int) -> dict[str, Any]:
    """Name, PCI addresses and architectures of this rank's device; ``index`` is the planned one on the node."""
    if not torch.cuda.is_available():
        return {"name": "", "bus": "", "slot_bus": "", "architecture": "", "wheel": ()}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    bus = ""
    if hasattr(properties, "pci_bus_id"):
        domain = getattr(properties, "pci_domain_id", 0)
        bus = f"{domain:x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"
    slots = {row[0]: address(row[1]) for row in smi("index,pci.bus_id") if len(row) == 2}
    hip = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    return {
        "name": properties.name,
        "bus": bus,
        "slot_bus": slots.get(str(index), ""),
        "architecture": hip.split(":")[0] or f"sm_{properties.major}{properties.minor}",
        "wheel": tuple(torch.cuda.get_arch_list()),
    }


def look(rank: int, index: int) -> Seen:
    """What this rank sees before it computes anything."""
    facts = device_facts(index)
    host = os.environ.get("HETPLAN_HOST", socket.gethostname())
    return Seen(rank=rank, host=host, machine=machine(), versions=versions(), **facts)


def plain(name: str) -> str:
    """A device's name without vendor words, blanks and dashes, as preflight.sh compares it."""
    return re.sub(r"[^a-z0-9]", "", VENDOR_WORDS.sub("", name.lower())).removesuffix("gb")


def is_kind(name: str, names: list[str]) -> bool:
    """True when a driver's name is one of those of the planned type."""
    return plain(name) in {plain(each) for each in names}


def runs_on(architecture: str, wheel: tuple[str, ...]) -> bool:
    """True when a torch built for ``wheel`` has kernels for the device, or can compile them.

    Code of one compute capability runs on later minor ones of the same major; PTX (``compute_80``) on all later ones.
    """
    if architecture in wheel or not architecture or not wheel:
        return True
    own = re.fullmatch(r"sm_(\d+)(\d)", architecture)
    if own is None:
        return False
    for each in wheel:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)", each)
        if match is None:
            continue
        major, minor = int(match[2]), int(match[3])
        if match[1] == "sm" and major == int(own[1]) and minor <= int(own[2]):
            return True
        if match[1] == "compute" and (major, minor) <= (int(own[1]), int(own[2])):
            return True
    return False


def under_load(bus: str) -> tuple[str, str]:
    """Clock of this rank's busy device in words, and why it is slowed down; both empty when unknown."""
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        rows = smi(f"pci.bus_id,clocks.sm,clocks.max.sm,temperature.gpu,{reasons}")
        mine = next((row for row in rows if len(row) == 5 and address(row[0]) == bus), None)
        if mine is not None:
            return _clocks(mine)
    return "", ""


def _clocks(row: list[str]) -> tuple[str, str]:
    _, now, most, temperature, reasons = row
    try:
        clock, highest, bits = float(now), float(most), int(reasons, 16)
    except ValueError:
        return "", ""
    slowed = [what for bit, what in THROTTLED.items() if bits & bit]
    if not slowed and clock < LEAST_CLOCK * highest:
        slowed = ["low clock"]
    return f"{clock:.0f} of {highest:.0f} MHz, {temperature} C", ", ".join(slowed)
