"""Datasheet facts of devices and of the links inside a node, each with its source.

Names are looked up without regard to case, blanks, dashes and vendor words, so that what nvidia-smi prints
works too (``NVIDIA A100-SXM4-80GB``).
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import Field

from planner.files.fields import (
    Dtype,
    Frozen,
    Gib,
    Latency,
    Name,
    OptionalName,
    Rate,
    ReserveGib,
    Source,
    Watts,
    number,
    whole,
)
from planner.ranges import COMPUTE_CAPABILITY, MULTIPROCESSORS, NODE_DEVICES

_VENDOR_WORDS = ("nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "rtx", "gtx", "generation", "oam")

_WITHOUT_TARGET = {
    "Intel Gaudi": re.compile(r"(intel|habana)*(gaudi|hl[23]\d\d)"),
    "Huawei Ascend": re.compile(r"(huawei)?(ascend|910[a-d])"),
    "Google TPU": re.compile(r"(google|cloud)*(tpu|v5e$|v5p$|v6e$|trillium|ironwood)"),
    "AWS Trainium": re.compile(r"(aws|amazon)*(trainium|trn[123]|inferentia)"),
    "Apple silicon": re.compile(r"apple|mac(studio|mini|book|pro)|m[1-5](pro|max|ultra)?$"),
}


Vendor = Literal["nvidia", "amd", "intel", "huawei"]
LIBRARIES: dict[Vendor, str] = {"nvidia": "NCCL", "amd": "RCCL", "intel": "oneCCL", "huawei": "HCCL"}
"""Collective library of each vendor's devices: those of two libraries cannot be in one communicator."""


class GpuSpec(Frozen):
    """A device type, by its numbers: of the catalogue, of the file's ``gpus``, or written where it is used."""

    name: Name = ""
    """What to call it; the pool's name when absent."""
    memory_gib: Gib
    """Memory of one device, GiB; what nvidia-smi calls memory.total."""
    memory_bandwidth_gBps: Rate
    """Memory bandwidth, gigabyte/s."""
    tflops: Annotated[dict[Dtype, Rate], Field(min_length=1)]
    """Dense peak by number format (bf16, fp16, fp32, tf32, fp8), TFLOP/s; an absent one is not supported."""
    family: OptionalName = ""
    """Generation whose calibrated constants hold for it (A100, H100, ...); assumed ones when absent."""
    multiprocessors: Annotated[int, whole(MULTIPROCESSORS, least=0)] = 0
    """Streaming multiprocessors or compute units; matrix products are not cut into waves when absent."""
    compute_capability: Annotated[float, number(COMPUTE_CAPABILITY)] | None = None
    """NVIDIA's compute capability (7.0 for V100, 8.0 for A100): older devices lack some runtimes' fused attention."""
    vendor: Vendor | None = None
    """Who made it, which decides its collective library; NVIDIA where there is a compute capability."""
    tdp_watts: Watts | None = None
    """Board power, watt."""
    power_limit_watts: Watts | None = None
    """Limit set on each device of this type (``nvidia-smi -pl``), watt; a pool's own value wins over it."""
    reserve_gib: ReserveGib | None = None
    """Memory kept free on each device of this type, GiB; a pool's own value wins over it."""
    host_link_gBps: Rate | None = None
    """Link between the device and its host in one direction, gigabyte/s; needed to offload."""
    source: Source = None

    @property
    def library(self) -> str:
        """Collective library that its communicators need; empty when nothing tells the vendor."""
        known = self.vendor or ("nvidia" if self.compute_capability is not None else None)
        return "" if known is None else LIBRARIES[known]


class IntraNodeSpec(Frozen):
    """The network between the devices of one node."""

    bandwidth_gBps: Rate
    """Bandwidth of one device in one direction, gigabyte/s."""
    latency_us: Latency = 3.0
    """Latency of one message, microseconds."""
    shared: bool = False
    """True when devices of the node share the bandwidth (a PCIe host bridge)."""
    shared_by: Annotated[int, whole(NODE_DEVICES, least=2)] | None = None
    """How many at most, where it is shared; all of the node when absent."""

    def sharing(self, devices: int) -> int:
        """How many of so many devices of a node share the bandwidth."""
        return min(devices, self.shared_by or devices) if self.shared else 1


class CatalogueGpu(GpuSpec):
    """A device of the catalogue, with where its numbers are from."""

    sources: dict[str, str]
    """Where each number was taken from, by key."""
    assumed: tuple[str, ...] = ()
    """Keys whose number no document confirms, e.g. ``memory_gib`` or ``tflops.fp32``."""
    note: str | None = None
    aliases: tuple[str, ...] = ()


class CatalogueLink(IntraNodeSpec):
    """A network inside nodes of the catalogue."""

    name: str
    source: str
    assumed: tuple[str, ...] = ()


Entry = TypeVar("Entry", CatalogueGpu, CatalogueLink)


def gpu(name: str) -> CatalogueGpu:
    """The device of that name or alias; raises KeyError."""
    return _gpus_by_key()[_key(name)].model_copy(deep=True)


def find_gpu(name: str) -> CatalogueGpu | None:
    """The same; None for a device that it lacks."""
    return gpu(name) if _key(name) in _gpus_by_key() else None


@cache
def library_of(family: str) -> str:
    """Collective library of a family's devices, which tells their maker; empty for one that it lacks."""
    return next((each.library for each in _gpus() if each.family == family), "")


@cache
def name_of(name: str) -> str:
    """The catalogue's name of a device by name or alias; the same for one that it lacks."""
    known = _gpus_by_key().get(_key(name))
    return name if known is None else known.name


def gpu_spec(name: str) -> GpuSpec:
    """The numbers of a device by name or alias; raises KeyError."""
    return GpuSpec.model_validate(gpu(name).model_dump(include=set(GpuSpec.model_fields)))


def driver_names(name: str) -> tuple[str, ...]:
    """Names that nvidia-smi may print for a device type of a cluster file; none for one that the catalogue lacks."""
    try:
        known = gpu(name)
    except KeyError:
        return ()
    return tuple(dict.fromkeys((*known.aliases, known.name)))


def product_labels(name: str) -> tuple[str, ...]:
    """Values of the node label ``nvidia.com/gpu.product``: the driver's name with dashes for blanks."""
    vendor = ("NVIDIA ", "Tesla ", "Quadro ")
    return tuple(each.replace(" ", "-") for each in driver_names(name) if each.startswith(vendor))


def link(name: str) -> CatalogueLink:
    """The link of that name; raises KeyError."""
    return _links_by_key()[_key(name)]


def link_spec(name: str) -> IntraNodeSpec:
    """The numbers of a link by name; raises KeyError."""
    return IntraNodeSpec.model_validate(link(name).model_dump(include=set(IntraNodeSpec.model_fields)))


def gpu_names() -> tuple[str, ...]:
    """Names of all devices, as in the file."""
    return tuple(entry.name for entry in _gpus())


def link_names() -> tuple[str, ...]:
    """Names of all links, as in the file."""
    return tuple(entry.name for entry in _links())


def gpus_like(name: str) -> tuple[str, ...]:
    """Names of the devices that begin like ``name`` or have all its words: ``A100`` gives four, ``A100-80GB`` two.

    A longer number is another device (``P40`` is no ``P4``), and so is a Ti.
    """
    key, words = _key(name), set(_words(name))
    return tuple(
        entry.name
        for entry in _gpus()
        if key
        and (_begins(entry.name, key) or words <= set(_words(entry.name)))
        and ("ti" in key or "ti" not in _words(entry.name))
    )


def _begins(name: str, key: str) -> bool:
    """Whether the name begins with the key, and its next character is not of the same number."""
    whole, words = _key(name), _words(name)
    ends = {len("".join(words[:count])) for count in range(1, len(words) + 1)}
    return whole.startswith(key) and (len(key) in ends or not whole[len(key) : len(key) + 1].isdigit())


def without_target(name: str) -> str:
    """What kind of device this is where none of the targets runs on it, e.g. Intel Gaudi; empty for others."""
    return next((kind for kind, names in _WITHOUT_TARGET.items() if names.match(_key(name))), "")


@cache
def _gpus() -> tuple[CatalogueGpu, ...]:
    return _entries("gpus.yaml", CatalogueGpu)


@cache
def _links() -> tuple[CatalogueLink, ...]:
    return _entries("links.yaml", CatalogueLink)


@cache
def _gpus_by_key() -> dict[str, CatalogueGpu]:
    return {_key(name): entry for entry in _gpus() for name in (*entry.aliases, entry.name)}


@cache
def _links_by_key() -> dict[str, CatalogueLink]:
    return {_key(entry.name): entry for entry in _links()}


def _words(name: str) -> list[str]:
    """The words of a name that count; sizes without their unit, SXM without the generation of its slot.

    RTX tells one Titan from the others.
    """
    words = re.split(r"[\s_/.-]+|(?<=[rg]tx)(?=[a-z\d])|(?<=titan)(?=rtx)|(?<=quadro)(?=rtx)", name.lower())
    plain = (re.sub(r"^(\d+)gb?$", r"\1", re.sub(r"^sxm\d$", "sxm", word)) for word in words)
    kept = [word for word in plain if word and (word not in _VENDOR_WORDS or word == "rtx")]
    return [word for word in kept if word != "rtx" or "titan" in kept]


def _key(name: str) -> str:
    """The part of a name that counts."""
    return "".join(_words(name)).removesuffix("gb")


def _entries(file: str, cls: type[Entry]) -> tuple[Entry, ...]:
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    entries = yaml.load(files(__package__).joinpath(file).read_text(encoding="utf-8"), Loader=loader)
    return tuple(cls.model_validate({"name": name, **entry}, strict=False) for name, entry in entries.items())
