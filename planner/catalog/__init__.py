"""Datasheet facts of devices and of the links inside a node, each with its source.

Names are looked up without regard to case, blanks, dashes and vendor words, so that what nvidia-smi prints
works too (``NVIDIA A100-SXM4-80GB``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

_VENDOR_WORDS = ("nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "radeon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A kind of device."""

    name: str
    memory_gib: float
    """Total that the driver reports, GiB."""
    memory_bandwidth_gBps: float
    """Gigabyte/s."""
    tflops: Mapping[str, float]
    """Dense peak by number format, TFLOP/s; an absent format is not supported."""
    family: str
    """Generation that calibrations are kept for."""
    multiprocessors: int
    """Streaming multiprocessors or compute units."""
    tdp_watts: float | None
    host_link_gBps: float
    """Wire to its host in one direction, gigabyte/s."""
    sources: Mapping[str, str]
    """Where each number was taken from, by key."""
    assumed: tuple[str, ...]
    """Keys whose number no document confirms, e.g. ``memory_gib`` or ``tflops.fp32``."""
    note: str | None
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A network between the devices of one node."""

    name: str
    bandwidth_gBps: float
    """One device in one direction, gigabyte/s."""
    latency_us: float
    """One hop, microseconds."""
    shared: bool
    """True when the devices of the node share the bandwidth."""
    source: str
    assumed: tuple[str, ...]


def gpu(name: str) -> Gpu:
    """The device of that name or alias; raises KeyError."""
    return _gpus_by_key()[_key(name)]


def driver_names(name: str) -> tuple[str, ...]:
    """Names that nvidia-smi may print for a kind of the cluster file; none for a kind that is not in the catalogue."""
    try:
        known = gpu(name)
    except KeyError:
        return ()
    return tuple(dict.fromkeys((*known.aliases, known.name)))


def product_labels(name: str) -> tuple[str, ...]:
    """Values of the node label ``nvidia.com/gpu.product``: the driver's name with dashes for blanks."""
    vendor = ("NVIDIA ", "Tesla ")
    return tuple(each.replace(" ", "-") for each in driver_names(name) if each.startswith(vendor))


def link(name: str) -> Link:
    """The link of that name; raises KeyError."""
    return _links_by_key()[_key(name)]


def gpu_names() -> tuple[str, ...]:
    """Names of all devices, as in the file."""
    return tuple(entry.name for entry in _gpus())


def link_names() -> tuple[str, ...]:
    """Names of all links, as in the file."""
    return tuple(entry.name for entry in _links())


def gpus_like(name: str) -> tuple[str, ...]:
    """Names of the devices whose name begins like ``name``: ``A100`` gives the four A100."""
    key = _key(name)
    return tuple(entry.name for entry in _gpus() if key and _key(entry.name).startswith(key))


@cache
def _gpus() -> tuple[Gpu, ...]:
    return tuple(_gpu(name, entry) for name, entry in _read("gpus.yaml").items())


def _gpu(name: str, entry: dict[str, Any]) -> Gpu:
    return Gpu(
        name=name,
        memory_gib=float(entry["memory_gib"]),
        memory_bandwidth_gBps=float(entry["memory_bandwidth_gBps"]),
        tflops=MappingProxyType({dtype: float(peak) for dtype, peak in entry["tflops"].items()}),
        family=entry["family"],
        multiprocessors=int(entry["multiprocessors"]),
        tdp_watts=float(entry["tdp_watts"]) if "tdp_watts" in entry else None,
        host_link_gBps=float(entry["host_link_gBps"]),
        sources=MappingProxyType(dict(entry["sources"])),
        assumed=tuple(entry.get("assumed", ())),
        note=entry.get("note"),
        aliases=tuple(entry.get("aliases", ())),
    )


@cache
def _links() -> tuple[Link, ...]:
    return tuple(
        Link(
            name=name,
            bandwidth_gBps=float(entry["bandwidth_gBps"]),
            latency_us=float(entry["latency_us"]),
            shared=bool(entry.get("shared", False)),
            source=entry["source"],
            assumed=tuple(entry.get("assumed", ())),
        )
        for name, entry in _read("links.yaml").items()
    )


@cache
def _gpus_by_key() -> dict[str, Gpu]:
    return {_key(name): entry for entry in _gpus() for name in (*entry.aliases, entry.name)}


@cache
def _links_by_key() -> dict[str, Link]:
    return {_key(entry.name): entry for entry in _links()}


def _key(name: str) -> str:
    """The part of a name that counts."""
    words = re.split(r"[\s_/.-]+", name.lower())
    return "".join(word for word in words if word not in _VENDOR_WORDS).removesuffix("gb")


def _read(file: str) -> dict[str, Any]:
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    text = files(__package__).joinpath(file).read_text(encoding="utf-8")
    entries: dict[str, Any] = yaml.load(text, Loader=loader)
    return entries
