"""Kinds of devices: those of the catalogue, and entries for those that it lacks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from planner import catalog
from planner.probe.entry import ASSUMED, Entry, flow, number, remark
from planner.probe.nvidia_smi import SeenGpu

MEMORY_TOLERANCE = 0.03
"""Drivers differ by about 1 % in the total that they report; ECC on GDDR memory takes 6 %."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of device of the draft."""

    name: str
    entries: tuple[Entry, ...] = ()
    """Its numbers under ``gpus``; none when the catalogue has them."""
    known: catalog.Gpu | None = field(default=None, compare=False)
    """The device of the catalogue that it is, or is a variant of."""


def kinds_of(gpus: tuple[SeenGpu, ...]) -> tuple[Kind, ...]:
    """Kind of every device in order; a device cut by MIG gives one for each of its MIG devices."""
    return tuple(kind for gpu in gpus for kind in (_mig(gpu) if gpu.mig else (_kind(gpu),)))


def _kind(gpu: SeenGpu) -> Kind:
    known = _known(gpu.name)
    if known is None:
        return _unknown(gpu)
    if gpu.memory_mib is None:
        return Kind(known.name, known=known)
    gib = gpu.memory_mib / 1024
    if abs(gib / known.memory_gib - 1) <= MEMORY_TOLERANCE:
        return Kind(known.name, known=known)
    return _variant(gpu, known, gib)


def _known(name: str) -> catalog.Gpu | None:
    try:
        return catalog.gpu(name)
    except KeyError:
        return None


def _variant(gpu: SeenGpu, known: catalog.Gpu, gib: float) -> Kind:
    """A device of the catalogue with another amount of memory, as ECC or a vendor's version makes it."""
    ecc = {None: "", True: ", ECC on", False: ", ECC off"}[gpu.ecc]
    note = f"seen: {gpu.memory_mib:g} MiB{ecc}; the catalogue's {known.name} has {known.memory_gib:g} GiB"
    rest = {
        "memory_bandwidth_gBps": number(known.memory_bandwidth_gBps),
        "tflops": {dtype: number(peak) for dtype, peak in known.tflops.items()},
        "family": known.family,
        "multiprocessors": known.multiprocessors,
        "tdp_watts": known.tdp_watts and number(known.tdp_watts),
        "host_link_gBps": number(known.host_link_gBps),
    }
    assumed = f"{ASSUMED}as the catalogue's {known.name}"
    entries = [Entry(key, flow(value), assumed) for key, value in rest.items() if value is not None]
    memory = Entry("memory_gib", flow(number(gib)), note)
    return Kind(f"{known.name}-{number(gib)}GiB", (memory, *entries), known)


def _unknown(gpu: SeenGpu) -> Kind:
    memory = None if gpu.memory_mib is None else flow(number(gpu.memory_mib / 1024))
    note = "memory.total of nvidia-smi divided by 1024" if memory is None else "seen"
    return Kind(_name(gpu.name), (Entry("memory_gib", memory, note), *_data_sheet()))


def _data_sheet() -> tuple[Entry, ...]:
    """What only a data sheet says."""
    return (
        Entry("memory_bandwidth_gBps", None, "of the data sheet, gigabyte/s"),
        Entry("tflops", None, "{bf16: N, fp16: N, fp32: N}, dense peaks of the data sheet"),
        remark("optional: family, multiprocessors, tdp_watts, host_link_gBps; see docs/formats.md"),
    )


def _mig(gpu: SeenGpu) -> tuple[Kind, ...]:
    """Kinds of the MIG devices: their memory by their profile, nothing of their speed."""
    known = _known(gpu.name)
    base = known.name if known else _name(gpu.name)
    if not gpu.profiles:
        memory = Entry("memory_gib", None, "the MIG devices were not listed, add nvidia-smi -L")
        return (Kind(f"{base}-mig", (memory, *_data_sheet())),)
    return tuple(_slice(base, profile) for profile in gpu.profiles)


def _slice(base: str, profile: str) -> Kind:
    size = re.search(r"\.(\d+)gb", profile)
    note = f"{ASSUMED}by the name of the profile, GB taken as 10^9 bytes"
    memory = Entry("memory_gib", flow(number(int(size[1]) * 1e9 / 2**30)), note) if size else None
    missing = Entry("memory_gib", None, "memory of the MIG device, GiB")
    return Kind(_name(f"{base}-{profile}"), (memory or missing, *_data_sheet()))


def _name(text: str) -> str:
    """A product name in the letters that names may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or "gpu"
