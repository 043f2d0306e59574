"""Constants of the cost model: what was fitted to measurements, what is assumed; and measured curves.

Every constant has a physical meaning and belongs to a GPU family, to a training framework, or to a kind of link;
none belongs to a model, a run or a paper. ``planner/calibration/file.py`` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from planner import catalog
from planner.field_metadata import json_fields
from planner.files.fields import (
    Batch,
    Bytes,
    Count,
    DefaultSpread,
    Factor,
    Flops,
    Fraction,
    Name,
    NodeDevices,
    OptionalBytes,
    OverheadSeconds,
    Seconds,
    Share,
    Spread,
    strict,
    whole,
)
from planner.frozen import record
from planner.ranges import DEVICES

Work = Literal["dense", "experts", "unfused"]
"""What errors of a step time depend on beside devices and kernels."""
Provenance = Literal["measured", "fitted", "datasheet", "assumed"]
Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "send"]
Kernel = Literal[
    "matmul",
    "attention",
    "copy",
    "triad",
    "floor",
    "launch",
    "optimizer",
    "bf16",
    "fp8",
    "int8",
    "factors",
    "largest",
    "average",
    "diloco",
]
"""floor: a kernel without work; launch: host time per kernel of a layer without work; from bf16 on what an exchange
between islands costs beside its network: gradients in a format, by factors or their largest elements, and weights."""


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
LINK_PATTERN = rf"^(node:{_NAME}|{_NAME}(\+{_NAME})*)$"
"""``node:`` and a device, a fabric, or fabrics joined by +."""


def in_node(link: str) -> bool:
    """True of what curves call the network inside a node."""
    return link.startswith("node:")


LONGEST_LINK = 110
LinkName = Annotated[str, Field(min_length=1, max_length=LONGEST_LINK, pattern=LINK_PATTERN)]
KernelShape = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,11}(x[1-9][0-9]{0,11}){0,7}$")]


@record(frozen=True, slots=True, kw_only=True)
class GpuFamily:
    """Constants of one generation of GPUs; the defaults hold for a family that nobody has fitted."""

    matmul_efficiency: Share = 0.75
    """Share of the dense peak that a large, well-shaped matrix product reaches."""
    vector_efficiency: Share = 0.75
    """The same of fp32 on the vector units of a device that has faster ones for two bytes."""
    attention_efficiency: Share = 0.50
    """Share of the dense peak that fused (flash) attention reaches."""
    memory_efficiency: Share = 0.80
    """Share of the datasheet memory bandwidth that a streaming kernel reaches."""
    kernel_seconds: OverheadSeconds = 5e-6
    """Device seconds that every kernel costs before and after its work: ramp, tail, cold caches."""
    launch_seconds: OverheadSeconds = 4e-5
    """Host seconds per kernel of an eager framework; a layer takes at least its kernels times this."""
    link_efficiency: Share = 0.75
    """Share of the nominal rate inside a node that a collective's ring carries."""
    sigma: Fraction = 0.0
    """Standard deviation of a device's seconds of a step over their mean, among steps and devices; 0 counts none."""


@record(frozen=True, slots=True, kw_only=True)
class Framework:
    """Constants of one training framework."""

    matmul_factor: Share = 1.0
    """Share of a family's matmul efficiency that the products of a training step reach."""
    stream_factor: Factor = 1.0
    """Traffic of its layers' element-wise kernels over that of unfused ones."""
    host_factor: Factor = 0.5
    """Host time per layer over that of Megatron without captured graphs: below 1 thin, compiled or captured code."""
    overlap: Fraction = 0.70
    """Share of gradient and parameter traffic that is free while it runs under a computation."""
    runtime_bytes: OptionalBytes = 1.5 * 2**30
    """Device context and libraries of one process."""
    allocator_slack: Factor = 0.06
    """What the allocator holds beyond its tensors over these, as long as the device has room."""
    unit_slack: Factor = 0.06
    """The same where parameters come and go in units, so that tensors of many sizes do."""
    link_utilisation: Share = 1.0
    """Share of a fabric's rate that the framework's own collectives between nodes reach: 1 for large buckets."""
    micro_batch_launches: Factor = 0.0
    """What the host does for a micro-batch of a pipeline stage and its messages and nothing hides, in launches."""
    layer_factor: Factor = 1.0
    """What a measured layer takes in a training run over what it took alone: the runtime's hooks, colder caches."""


@record(frozen=True, slots=True, kw_only=True)
class Link:
    """Constants of one type of network between nodes."""

    efficiency: Share = 0.75
    """Share of the nominal rate that a collective or a send reaches on nodes with one card."""
    rail: Share = 0.85
    """What is left of that share each time the cards of a node are doubled: bridges, rings that miss a card."""
    host_bytes_per_second: Bytes = float("inf")
    """What the host of a node moves at most where every byte passes its processors; with RDMA none does."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class LayerPoint:
    """Measured seconds and bytes of one transformer layer on one device."""

    gpu: Name
    """Catalogue name of the device."""
    model: Name
    """Name of the model that the layer belongs to."""
    tp: NodeDevices
    """Devices that share the layer."""
    micro_batch: Batch
    """Sequences."""
    forward_seconds: Seconds
    """Forward of one layer with its tensor-parallel collectives."""
    backward_seconds: Seconds
    """Backward of one layer."""
    activation_bytes: Bytes | None = None
    """Kept for the backward; None when not measured."""
    parameters: Bytes | None = None
    """Elements on one device; None when not measured."""
    spread: Spread | None = None
    """Robust relative standard deviation of the repeats, the wider direction; None when unknown."""
    peak_bytes: Bytes | None = None
    """Most that the device had allocated for tensors during the measurement; None when not measured."""
    reserved_bytes: Bytes | None = None
    """Most that the allocator held of the device; None when not measured."""
    without_collectives: bool = False
    """True when one device alone ran its share of the layer: the cost model adds the collectives."""
    source: Name = ""
    """Key of the calibration's ``sources``; empty when unknown."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class KernelPoint:
    """Measured seconds of one kernel, which the constants of a family are fitted to."""

    gpu: Name
    """Catalogue name of the device."""
    kernel: Kernel
    """What it does."""
    precision: Name
    """Number format."""
    shape: KernelShape
    """Sizes joined by x: rows, columns, inner of a matmul; batch, heads, length, width of attention; elements."""
    flops: Flops
    """Floating-point operations."""
    moved_bytes: OptionalBytes
    """Least traffic with the device's memory."""
    seconds: Seconds
    """Seconds of one kernel."""
    spread: Spread | None = None
    """Robust relative standard deviation of the repeats."""
    source: Name = ""
    """Key of the calibration's ``sources``; empty when unknown."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of the shape."""
        return tuple(int(size) for size in self.shape.split("x"))


def curve_name(link: str, operation: str, members: int, concurrent: int = 1) -> str:
    """A curve of link points, for readers."""
    beside = f", {concurrent} groups at once" if concurrent > 1 else ""
    return f"{operation} of {members} over {link}{beside}"


@strict()
@record(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """Measured seconds of one collective or send of a size."""

    link: LinkName
    """``node:<gpu>`` inside a node, or the name of a fabric."""
    operation: Operation
    """The collective, or a send."""
    members: Annotated[int, whole(DEVICES, least=2)]
    """Devices of the group."""
    size_bytes: Bytes
    """Bytes of the whole tensor."""
    seconds: Seconds
    """Seconds of one operation."""
    concurrent: Annotated[int, whole(DEVICES)] = 1
    """Groups of the same nodes that did this at the same time, each with a tensor of its own."""
    spread: Spread | None = None
    """Robust relative standard deviation of the repeats; None when unknown."""
    source: Name = ""
    """Key of the calibration's ``sources``; empty when unknown."""

    @property
    def curve(self) -> str:
        """What it is a point of, for readers."""
        return curve_name(self.link, self.operation, self.members, self.concurrent)


@strict()
@json_fields(names={"rows": "runs", "framework": "stack"})
@record(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far the fit is from the measurements it was fitted to."""

    family: Name
    """Family of GPUs."""
    framework: Name
    """Kernel set, for example ``megatron-2021``."""
    work: Work = "dense"
    """Kind of layers: with experts, with unfused attention, or dense."""
    rows: Count
    """Runs that used both."""
    spread: Spread
    """Robust relative standard error of the step time."""
    devices: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """Its device types with a measured run or matrix product; empty where unknown."""

    @property
    def key(self) -> tuple[str, str, Work]:
        """What no other residual of a calibration has."""
        return self.family, self.framework, self.work


@strict()
@json_fields(names={"mean": "mean_error", "largest": "largest_error"})
@record(frozen=True, slots=True, kw_only=True)
class CurveError:
    """How well a fitted curve predicts each of its points from the others."""

    curve: str
    """A fitted curve or constant, in words."""
    points: Count
    """Its points."""
    mean: Spread
    """Mean relative error of the points left out one by one."""
    largest: Spread
    """The largest of these errors."""


@json_fields(nulls=("source",))
@record(frozen=True, slots=True, kw_only=True)
class Constant:
    """Where one constant comes from."""

    name: str
    """Dotted, as ``families.A100.matmul_efficiency``."""
    value: float
    """In the unit of the calibration file."""
    provenance: Provenance
    """measured, fitted, datasheet or assumed."""
    spread: float | None = None
    """Relative standard error; None when unknown."""
    source: str = ""
    """Key of the calibration's ``sources``; empty when unknown."""


@record(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything the cost model takes from measurements; anything absent has an assumed default."""

    families: dict[str, GpuFamily] = field(default_factory=dict)
    frameworks: dict[str, Framework] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    """By kind of fabric: nvlink, infiniband, roce, ethernet."""
    layers: tuple[LayerPoint, ...] = ()
    link_points: tuple[LinkPoint, ...] = ()
    kernel_points: tuple[KernelPoint, ...] = ()
    """What the constants of families were fitted to; the cost model reads those of the optimizer alone."""
    curve_errors: tuple[CurveError, ...] = ()
    residuals: tuple[Residual, ...] = ()
    constants: tuple[Constant, ...] = ()
    """Provenance and spread of the constants that are not assumed."""
    default_spread: DefaultSpread = 0.20
    """Relative standard error of a step time on a family and framework without measurements."""
    family_spread: DefaultSpread | None = None
    """The same of a family without measurements under kernels that other devices of its maker have some with."""
    device_spread: DefaultSpread | None = None
    """The part of it that a family has of its own, kernels alike, all of it when None: ratios between device types rest
    on this part alone, since what is unknown of kernels is common to all that run them."""
    sibling_spread: DefaultSpread | None = None
    """What a device type has of its own within its family; the bar of one whose siblings alone were measured has it."""
    memory_spread: DefaultSpread = 0.20
    """Relative standard error of the peak memory of a device."""
    notes: str = ""
    """Free text for readers."""
    provenance: dict[str, str] = field(default_factory=dict)
    """What the last measurements were made with, for readers: device, driver, torch, date, command."""
    sources: dict[str, dict[str, str]] = field(default_factory=dict)
    """The same for each source that points and constants name."""

    def family(self, name: str, kernels: str = "") -> GpuFamily:
        """Constants of a GPU family under a kernel set; the defaults for an unknown one.

        ``families`` holds those that the family has with all kernels by its name, and those of one set, where they
        differ, as ``family.set``.
        """
        known = self.families
        return known.get(f"{name}.{kernels}") or known.get(name, ASSUMED_FAMILY)

    def framework(self, name: str) -> Framework:
        """Constants of a framework; the defaults for an unknown one."""
        return self.frameworks.get(name, ASSUMED_FRAMEWORK)

    def link(self, kind: str) -> Link:
        """Constants of a type of fabric; the defaults for an unknown one."""
        return self.links.get(kind, ASSUMED_LINK)

    def spread(
        self,
        families: Iterable[str],
        framework: str,
        work: Work = "dense",
        products: str = "matmul_efficiency",
    ) -> float:
        """Relative standard error of a step time on these families: the widest that applies.

        ``products`` is the constant that products in the model's format reach a share of their peak by.
        """
        return max(
            self._foreign(family, framework, work, products)
            if (item := self._residual(family, framework, work)) is None
            else item.spread
            for family in families
        )

    def _residual(self, family: str, framework: str, work: Work) -> Residual | None:
        for item in self.residuals:
            if item.family == family and item.framework == framework and item.work == work:
                return item
        return None

    def _foreign(self, family: str, framework: str, work: Work, products: str) -> float:
        """That of a pair without a residual: kernels that its maker's other devices have run are half of it."""
        library = catalog.library_of(family)
        own = [item.spread for item in self.residuals if (item.family, item.work) == (family, work)]
        alike = [item for item in self.residuals if item.work == work]
        others = [
            item.spread
            for item in alike
            if item.framework == framework and catalog.library_of(item.family) == library
        ]
        if library and own and others:
            # Sources that were alone with their pair tell of such ones: no surer than either half.
            return max(min(own), min(others))
        if not library or not others or self.family_spread is None:
            # No kernels are surer than those that somebody has run at such layers.
            return max(self.default_spread, min((item.spread for item in alike), default=0.0))
        # Nor is it surer than what is known of its products, or than the families that somebody has measured.
        name = f"families.{family}.{products}"
        of_products = next((item.spread for item in self.constants if item.name == name), None)
        return max(self.family_spread, of_products or 0.0, min(others))

    def spread_alone(self, family: str, framework: str, gpu: str, work: Work = "dense") -> float:
        """What comes to that of a family, of the same kind, for a device type of which its siblings alone tell."""
        known = self._residual(family, framework, work)
        own = known is None or not known.devices or catalog.name_of(gpu) in known.devices
        return 0.0 if own else self.sibling_spread or 0.0


ASSUMED_FAMILY = GpuFamily()
ASSUMED_FRAMEWORK = Framework()
ASSUMED_LINK = Link()
ASSUMED = Calibration()
"""Nothing measured: every constant at its assumed value."""
