"""The calibration file as plain records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from planner.calibration.values import (
    ASSUMED,
    ASSUMED_FAMILY,
    ASSUMED_LINK,
    ASSUMED_STACK,
    Kernel,
    Operation,
    Provenance,
)
from planner.files.fields import (
    Batch,
    Bytes,
    Count,
    DefaultSpread,
    Factor,
    Flops,
    Fraction,
    Frozen,
    Name,
    NodeDevices,
    OptionalBytes,
    OverheadSeconds,
    Seconds,
    Share,
    Spread,
    whole,
)
from planner.ranges import DEVICES

FORMAT = "hetplan-calibration/1"
"""Name and version of the calibration file's format."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
LINK_PATTERN = rf"^(node:{_NAME}|{_NAME}(\+{_NAME})*)$"
"""``node:`` and a device, a fabric, or fabrics joined by +."""
LONGEST_LINK = 110
LinkName = Annotated[str, Field(min_length=1, max_length=LONGEST_LINK, pattern=LINK_PATTERN)]


class Entry(Frozen):
    """A constant and how well it is known."""

    value: float
    spread: Spread | None = None
    """Relative standard error of the value; unknown when absent."""
    provenance: Provenance = "measured"
    """measured, fitted, datasheet or assumed."""
    source: Name | None = None
    """Key of sources."""


class ShareEntry(Entry):
    """A share above 0 and how well it is known."""

    value: Share


class FractionEntry(Entry):
    """A share, 0 included, and how well it is known."""

    value: Fraction


class OverheadEntry(Entry):
    """Seconds of an overhead and how well they are known."""

    value: OverheadSeconds


class BytesEntry(Entry):
    """Bytes, 0 included, and how well they are known."""

    value: OptionalBytes


class FactorEntry(Entry):
    """A factor and how well it is known."""

    value: Factor


def _written(value: Any) -> str:
    return "<entry>" if isinstance(value, (dict, Entry)) else "<number>"


_Share = Annotated[
    Annotated[Share, Tag("<number>")] | Annotated[ShareEntry, Tag("<entry>")], Discriminator(_written)
]
_Fraction = Annotated[
    Annotated[Fraction, Tag("<number>")] | Annotated[FractionEntry, Tag("<entry>")], Discriminator(_written)
]
_Overhead = Annotated[
    Annotated[OverheadSeconds, Tag("<number>")] | Annotated[OverheadEntry, Tag("<entry>")],
    Discriminator(_written),
]
_Bytes = Annotated[
    Annotated[OptionalBytes, Tag("<number>")] | Annotated[BytesEntry, Tag("<entry>")], Discriminator(_written)
]
_Factor = Annotated[
    Annotated[Factor, Tag("<number>")] | Annotated[FactorEntry, Tag("<entry>")], Discriminator(_written)
]


class FamilyRecord(Frozen):
    """Constants of one generation of GPUs."""

    matmul_efficiency: _Share = ASSUMED_FAMILY.matmul_efficiency
    """Share of the dense peak that a large, well-shaped matrix product reaches."""
    attention_efficiency: _Share = ASSUMED_FAMILY.attention_efficiency
    """Share of the dense peak that fused (flash) attention reaches."""
    memory_efficiency: _Share = ASSUMED_FAMILY.memory_efficiency
    """Share of the datasheet memory bandwidth that a streaming kernel reaches."""
    kernel_seconds: _Overhead = ASSUMED_FAMILY.kernel_seconds
    """Device seconds that every kernel costs before and after its work."""
    launch_seconds: _Overhead = ASSUMED_FAMILY.launch_seconds
    """Host seconds per kernel of an eager framework."""
    link_efficiency: _Share = ASSUMED_FAMILY.link_efficiency
    """Share of the in-node wire that a collective's ring carries."""


class StackRecord(Frozen):
    """Constants of one training framework."""

    host_factor: _Factor = ASSUMED_STACK.host_factor
    """Host time per layer over that of Megatron without captured graphs."""
    overlap: _Fraction = ASSUMED_STACK.overlap
    """Share of gradient and parameter traffic that is free while it runs under a computation."""
    runtime_bytes: _Bytes = ASSUMED_STACK.runtime_bytes
    """Device context, libraries and allocator slack of one process, bytes."""
    wire: _Share = ASSUMED_STACK.wire
    """Share of a fabric's rate that the framework's own collectives between nodes reach."""
    micro_batch_launches: _Factor = ASSUMED_STACK.micro_batch_launches
    """Host work for a micro-batch of a pipeline stage that nothing hides, in kernel launches."""


class LinkRecord(Frozen):
    """Constants of one kind of network between nodes."""

    efficiency: _Share = ASSUMED_LINK.efficiency
    """Share of the wire that a collective or a send carries."""
    rail: _Share = ASSUMED_LINK.rail
    """What is left of that share each time the cards of a node are doubled."""


class LinksRecord(Frozen):
    """Constants of the networks between nodes, by kind."""

    infiniband: LinkRecord = LinkRecord()
    roce: LinkRecord = LinkRecord()
    ethernet: LinkRecord = LinkRecord()


class ResidualRecord(Frozen):
    """How far the fit is from the measurements it was fitted to."""

    family: Name
    """Generation of GPUs."""
    stack: Name
    """Training framework."""
    rows: Count
    """Measurements."""
    spread: Spread
    """Robust relative standard error of the step time."""


class LayerRecord(Frozen):
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
    """Forward of one layer with its tensor-parallel collectives, seconds."""
    backward_seconds: Seconds
    """Backward of one layer, seconds."""
    activation_bytes: Bytes | None = None
    """Kept on the device for the backward, bytes."""
    parameters: Bytes | None = None
    """Parameters of the layer on the device."""
    spread: Spread | None = None
    """Robust relative standard deviation of the repeats."""
    peak_bytes: Bytes | None = None
    """Most that was allocated on the device, bytes."""
    reserved_bytes: Bytes | None = None
    """Most that the allocator held of the device, bytes."""
    without_collectives: bool = False
    """true when the times lack the tensor-parallel collectives."""


class KernelRecord(Frozen):
    """Measured seconds of one kernel."""

    gpu: Name
    """Catalogue name of the device."""
    kernel: Kernel
    """Kind of kernel."""
    precision: Name
    """Number format."""
    shape: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,11}(x[1-9][0-9]{0,11}){0,7}$")]
    """Sizes of at most 12 digits joined by x, at most 8 of them."""
    flops: Flops
    """Floating-point operations."""
    moved_bytes: OptionalBytes
    """Least traffic with the device's memory, bytes."""
    seconds: Seconds
    """Seconds of one kernel."""
    spread: Spread | None = None
    """Robust relative standard deviation of the repeats."""


class CurveErrorRecord(Frozen):
    """How well a fitted curve predicts each of its points from the others."""

    curve: str
    """The curve in words."""
    points: Count
    """Its points."""
    mean: Spread
    """Mean relative error of the points left out one by one."""
    largest: Spread
    """Largest of these errors."""


class LinkPointRecord(Frozen):
    """Measured seconds of one collective or send of a size."""

    link: LinkName
    """node:<gpu> inside a node, or the name of a fabric; fabrics joined by + through gateways."""
    operation: Operation
    """The collective, or a send."""
    members: Annotated[int, whole(DEVICES, least=2)]
    """Devices of the group."""
    size_bytes: Bytes
    """Bytes of the whole tensor."""
    seconds: Seconds
    """Seconds of one operation."""
    spread: Spread | None = None
    """Robust relative standard deviation of the repeats."""


class LayerEntry(LayerRecord):
    """A measured layer of a calibration file."""

    source: Name | None = None
    """Key of sources."""


class KernelEntry(KernelRecord):
    """A measured kernel of a calibration file."""

    source: Name | None = None
    """Key of sources."""


class LinkPointEntry(LinkPointRecord):
    """A measured collective or send of a calibration file."""

    source: Name | None = None
    """Key of sources."""


class CalibrationRecord(Frozen):
    """A calibration file."""

    format: Literal["hetplan-calibration/1"]
    """Name and version of the format."""
    notes: str = ""
    """Free text."""
    provenance: dict[Name, str] = Field(default_factory=dict)
    """What the last measurements were made with; free text by name."""
    sources: dict[Name, dict[Name, str]] = Field(default_factory=dict)
    """The same for each source that points and constants name."""
    default_spread: DefaultSpread = ASSUMED.default_spread
    """Relative standard error of a step time where no residual is known."""
    families: dict[Name, FamilyRecord] = Field(default_factory=dict)
    """Constants of generations of GPUs, by name."""
    stacks: dict[Name, StackRecord] = Field(default_factory=dict)
    """Constants of training frameworks, by name."""
    links: LinksRecord = LinksRecord()
    """Constants of networks between nodes, by kind."""
    residuals: tuple[ResidualRecord, ...] = ()
    """How far the fit is from its measurements, by family and stack."""
    layers: tuple[LayerEntry, ...] = ()
    """Measured layers."""
    link_points: tuple[LinkPointEntry, ...] = ()
    """Measured collectives and sends."""
    kernel_points: tuple[KernelEntry, ...] = ()
    """Measured kernels."""
    curve_errors: tuple[CurveErrorRecord, ...] = ()
    """Leave-one-out errors of fitted curves."""
