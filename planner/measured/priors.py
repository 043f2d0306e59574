"""What is known of every constant before any training run: its most likely value, and how far off that may be.

Devices start from published microbenchmarks (``microbenchmarks.csv``): the best matrix product anybody measured, copies
of device memory, ring all-reduces inside the node. A family without one takes what its peers reach, and a wider
spread. Networks start from nccl-tests between nodes. Software starts from what its kernels are: the spread says how
far products, element-wise kernels and overlap of frameworks differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import get_args

from planner import catalog
from planner.calibration.values import Calibration, Constant, Framework, GpuFamily, Link
from planner.cluster.spec import RDMA
from planner.measured.microbenchmarks import Microbenchmark, Quantity, microbenchmarks
from planner.model.spec import Kernels
from planner.targets import REFERENCE, TARGETS
from planner.units import bytes_per_second_from_gigabytes, flops_from_tflops


@dataclass(frozen=True, slots=True)
class Prior:
    """A constant before the fit."""

    value: float
    spread: float
    """Relative standard error, of the logarithm."""


HALF_FORMATS = ("bf16", "fp16")
"""Number formats whose products say what a device can do; their peaks are equal."""

FAMILY = {
    "matmul_efficiency": Prior(0.75, 0.15),
    "vector_efficiency": Prior(0.75, 0.15),
    "attention_efficiency": Prior(0.45, 0.30),
    "memory_efficiency": Prior(0.85, 0.08),
    "kernel_seconds": Prior(4e-6, 0.40),
    "launch_seconds": Prior(4e-5, 0.40),
    "link_efficiency": Prior(0.75, 0.15),
}
"""Of a family that nobody has measured."""

MEASURED = {
    "matmul_efficiency": 0.05,
    "vector_efficiency": 0.05,
    "memory_efficiency": 0.06,
    "link_efficiency": 0.05,
}
"""Spread of a constant that microbenchmarks of its own family tell."""

PRODUCTS = ("matmul_efficiency", "vector_efficiency")
"""Shares that the best product of a family bounds, and that it starts from."""

SUSTAINED_SPREAD = 0.15
"""Of products of a family that lowers its clock under load, where somebody has measured many in a row (a T4 of 70 W,
arXiv:1903.07486): power limits, coolers and what the rows of numbers hold differ from machine to machine."""

ATTENTION = {
    "A100": Prior(0.58, 0.10),
    "H100": Prior(0.55, 0.15),
    "H100-PCIe": Prior(0.55, 0.20),
    "GH200": Prior(0.55, 0.20),
    "H20": Prior(0.80, 0.20),
    "B200": Prior(0.45, 0.30),
    "B300": Prior(0.50, 0.30),
    "MI250X": Prior(0.25, 0.50),
    "MI300X": Prior(0.25, 0.50),
    "MI325X": Prior(0.25, 0.50),
    "MI355X": Prior(0.25, 0.50),
}
"""Vendor's fused attention, forward and backward: about what FlashAttention-2 and -3 claim (arXiv:2307.08691,
arXiv:2407.08608); H20 has the exponents of Hopper beside a seventh of its products. Those of Blackwell are
extrapolated: on B200 exponents of heads of 128 take as long as products of the scores (16 a clock and multiprocessor,
8,192 operations), on B300, which has twice as many, half as long. Of AMD: AITER on an MI355X, 8,192 tokens, causal,
reaches 1,173 TFLOP/s forward and 1,034 backward with as many keys as queries, 0.43 of the peak together, and 1,205 and
272 with fewer keys, 0.14 (HipKittens' analysis/attn, f09e9685): the middle, as wide as both."""

AMDS_OTHER_ATTENTION = Prior(0.15, 0.40)
"""Attention of torch on AMD, by AOTriton's kernels whatever the version of torch: a quarter of 933 TFLOP/s backward on
an MI355X (arXiv:2511.08083) and two thirds of AITER's forward."""

OLDER_ATTENTION = Prior(0.33, 0.30)
"""Attention of eager frameworks, as FlashAttention (arXiv:2205.14135) on the generation it was written for; assumed."""

SECOND_ATTENTION = Prior(0.58, 0.15)
"""That of FlashAttention-2 there: 182 TFLOP/s forward and backward of 65,536 tokens on A100, an eighth of which takes
85 ms (ring-flash-attention's README, the line of one device); 63 % in the backward (arXiv:2307.08691, section 4.1)."""

SECOND_IN = frozenset(kernels for row in TARGETS.values() for kernels in row.second_attention)
"""Kernel sets that have it, as their runtimes say."""

WITHOUT_WGMMA = 335 / 989.4 / (225 / 312)
"""What a kernel without the matrix instructions of Hopper loses there: FlashAttention-2 reaches 225 TFLOP/s on A100 and
335 on H100 (arXiv:2307.08691, section 4.1)."""

AFTER_AMPERE = ("H100", "H100-PCIe", "GH200", "B200", "B300")
"""Families on which such kernels run with the instructions of the generation before; of Blackwell nothing is known."""

AMDS = frozenset(
    catalog.gpu(name).family for name in catalog.gpu_names() if catalog.gpu(name).vendor == "amd"
)
"""Families of AMD's devices."""

FRAMEWORK = {
    "matmul_factor": Prior(0.90, 0.08),
    "stream_factor": Prior(1.0, 0.30),
    "host_factor": Prior(0.5, 0.50),
    "overlap": Prior(0.7, 0.25),
    "link_utilisation": Prior(0.85, 0.20),
    "micro_batch_launches": Prior(20.0, 1.0),
}
"""Of any kernel set."""

FRAMEWORKS = {
    ("megatron-2021", "stream_factor"): Prior(1.0, 0.15),
    ("megatron-2021", "host_factor"): Prior(1.0, 0.01),
    ("megatron-2021", "overlap"): Prior(0.02, 0.50),
    ("megatron", "stream_factor"): Prior(0.8, 0.15),
    ("deepspeed-2021", "overlap"): Prior(0.02, 0.50),
    ("deepspeed-2021", "link_utilisation"): Prior(0.5, 0.70),
    ("torch", "stream_factor"): Prior(1.1, 0.15),
    ("torch-compiled", "stream_factor"): Prior(0.7, 0.15),
    ("torch-compiled", "host_factor"): Prior(0.2, 0.50),
}
"""Where a kernel set is known to differ: unfused kernels are what the cost model counts (by count, a GPT layer of eager
torch streams 24 times its hidden width forward and 34 backward, for 22 and 35), Megatron of 2021 reduces gradients
after the last backward, DeepSpeed of that time waits for the device on either side of ZeRO 3's gathers
(``_allgather_param`` and ``_synchronize_communication`` until January 2022) and has ``overlap_comm`` off with the other
stages, and host time is told in its launches; later ones fuse and compile, and stream no more than
unfused ones."""

RUNTIME = Prior(3e9, 0.7)
"""Bytes of a process beside its tensors, which all kernel sets have in common: half a gigabyte of context on today's
devices, up to two more of kernels that older libraries load whether they are called or not, work space of products,
and buffers of NCCL, some hundreds of megabytes for each of the two to five communicators of a device."""

OWN_RUNTIME = 0.3
"""What a kernel set has of its own next to it, relative."""

SLACK = Prior(0.06, 0.7)
"""What a caching allocator holds beyond its tensors, of these: more where tensors of many sizes come and go than where
most are a few buffers that stay."""

OWN_SLACK = 0.5
"""How far off a source's is from that of its kernel set, relative: sizes of models and versions of the allocator."""

NETWORKS = {
    "nvlink": {"efficiency": Prior(0.82, 0.08), "rail": Prior(1.0, 0.01)},
    "rdma": {"efficiency": Prior(0.82, 0.08), "rail": Prior(0.99, 0.01)},
    "ethernet": {
        "efficiency": Prior(0.70, 0.20),
        "rail": Prior(0.99, 0.01),
        "host_bytes_per_second": Prior(2.5e9, 0.60),
    },
}
"""NVLink between nodes starts from what rings reach inside them, 370 of 450 GB/s (NVIDIA/nccl-tests, issue 212): 72
devices of a rack reach 835 of 900 GB/s, but in all-reduces that the switches sum (coreweave/nccl-tests, pull request
43). Each device has its own. InfiniBand and RoCE are one: at equal wire no published run tells them apart. The rest of
what frameworks lose between nodes is theirs (``Framework.link_utilisation``)."""

KERNEL_SETS: tuple[str, ...] = get_args(Kernels)
"""Kernel sets that have constants of their own."""

OLDER = {"torch-2023": "torch"}
"""Kernel sets that differ in their fused attention alone from a later one, with which they share all else."""

VENDORS_KERNELS = REFERENCE.kernels[0]
"""Its fused attention is the vendor's own, written for each generation."""


def kinds_of(network: str) -> tuple[str, ...]:
    """Kinds of fabric that a network of ``NETWORKS`` stands for."""
    return RDMA if network == "rdma" else (network,)


def owner_of(kernels: str) -> str:
    """The kernel set whose constants a kernel set has."""
    return OLDER.get(kernels, kernels)


def sharing(owner: str) -> tuple[str, ...]:
    """The kernel sets that have the constants of ``owner``, itself first."""
    return (owner, *(name for name, later in OLDER.items() if later == owner))


def family_prior(family: str, constant: str) -> Prior:
    """Of a constant of a family of GPUs, or of ``family.kernels``."""
    name, _, kernels = family.partition(".")
    if kernels and constant == "attention_efficiency":
        if name in AMDS:
            return AMDS_OTHER_ATTENTION
        lost = WITHOUT_WGMMA if name in AFTER_AMPERE else 1.0
        own = SECOND_ATTENTION if kernels in SECOND_IN else OLDER_ATTENTION
        # Where there are no matrix units it is no faster than products.
        return Prior(round(min(own.value * lost, 0.9 * best_share(name)), 3), own.spread)
    if constant == "attention_efficiency" and name in ATTENTION:
        return ATTENTION[name]
    if constant == "matmul_efficiency" and (sustained := _shares(name, "sustained")):
        return Prior(round(median(sustained), 3), SUSTAINED_SPREAD)
    shares = _shares(name, constant, users=True) or _shares(name, constant)
    if not shares:
        return FAMILY[constant]
    return Prior(max(shares) if constant in PRODUCTS else median(shares), MEASURED[constant])


def framework_prior(kernels: str, constant: str) -> Prior:
    """Of a constant of a kernel set."""
    return FRAMEWORKS.get((owner_of(kernels), constant), FRAMEWORK[constant])


@cache
def best_share(family: str, constant: str = "matmul_efficiency") -> float:
    """Most of its peak that any product measured on a family reached, 1 where there is none: no run is faster."""
    return max(_shares(family, constant), default=1.0)


def measured_devices(family: str) -> set[str]:
    """Device types of a family on which somebody has measured products."""
    rows = (row for row in microbenchmarks() if row.device and _matmul(row) is not None)
    names = {catalog.name_of(row.device) for row in rows if row.device}
    return {name for name in names if _device(name).family == family}


@cache
def _device(name: str) -> catalog.CatalogueGpu:
    """The catalogue's entry of a measured device; not a copy of its own for every caller."""
    return catalog.gpu(name)


@cache
def _shares(family: str, constant: str, *, users: bool = False) -> tuple[float, ...]:
    """What microbenchmarks of a family's devices say of a constant, as shares of the datasheet.

    ``users``: without those of its maker, which say what can be reached, less what is.
    """
    readers: dict[str, Callable[[Microbenchmark], float | None]] = {
        "matmul_efficiency": _matmul,
        "vector_efficiency": _vector,
        "sustained": _sustained,
        "memory_efficiency": _memory,
        "link_efficiency": _link,
    }
    reader = readers.get(constant)
    if reader is None:
        return ()
    shares = (
        reader(row)
        for row in microbenchmarks()
        if row.device and _device(row.device).family == family and not (users and row.measured_by == "vendor")
    )
    return tuple(round(min(share, 0.98), 4) for share in shares if share is not None)


def _matmul(row: Microbenchmark, quantity: Quantity = "matmul") -> float | None:
    """Of two bytes, or of fp32 where a device is no faster in those."""
    return _product(row, quantity, HALF_FORMATS if _is_faster_in_two_bytes(row) else ("fp32",))


def _vector(row: Microbenchmark) -> float | None:
    return _product(row, "matmul", ("fp32",) if _is_faster_in_two_bytes(row) else ())


def _is_faster_in_two_bytes(row: Microbenchmark) -> bool:
    peaks = _device(row.device or "").tflops
    return max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) > peaks.get("fp32", 0.0)


def _product(row: Microbenchmark, quantity: Quantity, formats: Collection[str]) -> float | None:
    if row.quantity != quantity or row.precision is None or row.precision not in formats:
        return None
    peak = _device(row.device or "").tflops.get(row.precision)
    return row.value / flops_from_tflops(peak) if peak else None


def _sustained(row: Microbenchmark) -> float | None:
    return _matmul(row, "sustained")


def _memory(row: Microbenchmark) -> float | None:
    nominal = bytes_per_second_from_gigabytes(_device(row.device or "").memory_bandwidth_gBps)
    return row.value / nominal if row.quantity == "memory" else None


LARGE_BYTES = 2**30
"""Size from which on latency is no part of a bus bandwidth."""


def _link(row: Microbenchmark) -> float | None:
    """Of ring all-reduces of large messages among at least four devices of a node; switches that reduce move less."""
    large = row.payload_bytes is None or row.payload_bytes >= LARGE_BYTES
    if row.quantity != "all_reduce" or row.nodes > 1 or row.members < 4 or not row.intra_node or not large:
        return None
    link = catalog.link(row.intra_node)
    if row.algorithm in ("nvls", "sharp") or link.shared:
        return None
    return row.value / bytes_per_second_from_gigabytes(link.bandwidth_gBps)


def priors(families: Iterable[str]) -> Calibration:
    """Every constant before any run: of these families, of all kernel sets and networks."""
    known = {
        name: GpuFamily(**{constant: family_prior(name, constant).value for constant in FAMILY})
        for name in families
    }
    pairs = {
        pair: replace(
            known[pair.partition(".")[0]],
            attention_efficiency=family_prior(pair, "attention_efficiency").value,
        )
        for pair in _pairs(known)
    }
    return Calibration(
        families={**known, **pairs},
        frameworks={
            name: Framework(**{constant: framework_prior(name, constant).value for constant in FRAMEWORK})
            for name in KERNEL_SETS
        },
        links={
            kind: Link(**{constant: prior.value for constant, prior in known.items()})
            for network, known in NETWORKS.items()
            for kind in kinds_of(network)
        },
        constants=tuple(_constants(families)),
    )


def _pairs(families: Iterable[str]) -> Iterator[str]:
    """Families under kernel sets whose fused attention is not the vendor's."""
    for family in families:
        yield from (f"{family}.{kernels}" for kernels in KERNEL_SETS if kernels != VENDORS_KERNELS)


def _constants(families: Iterable[str]) -> Iterator[Constant]:
    """The spread of each."""

    def assumed(name: str, prior: Prior) -> Constant:
        return Constant(name=name, value=prior.value, provenance="assumed", spread=prior.spread)

    for family in families:
        for constant in FAMILY:
            yield assumed(f"families.{family}.{constant}", family_prior(family, constant))
    for pair in _pairs(families):
        yield assumed(f"families.{pair}.attention_efficiency", family_prior(pair, "attention_efficiency"))
    for name in KERNEL_SETS:
        for constant in FRAMEWORK:
            yield assumed(f"frameworks.{name}.{constant}", framework_prior(name, constant))
    for network, known in NETWORKS.items():
        for kind in kinds_of(network):
            for constant, prior in known.items():
                yield assumed(f"links.{kind}.{constant}", prior)


def catalogue_families() -> tuple[str, ...]:
    """Families of all devices of the catalogue, sorted."""
    return tuple(sorted({catalog.gpu(name).family for name in catalog.gpu_names()}))
