"""Islands of replicas: their members, and what they exchange.

The first replica of each island exchanges with the others through the processors of their hosts, and tells its own
island. Nothing hides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from planner.calibration.values import Calibration
from planner.cluster.topology import DeviceType, Topology
from planner.cost.communication import Ring, crossing_rings, data_ring
from planner.cost.compute import Device
from planner.cost.measured_curves import ExchangeCurves, LinkCurves
from planner.dims.sync import factors, matrices
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.placement import Slot
from planner.plan.values import Stage, Sync

BLOCK = 1024
"""Elements that share a scale in fp8 and int8; the emitted runtime has the same."""

BUCKET = 2**24
"""Elements that an island is told in one message; the emitted runtime has the same."""

SENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0 + 4.0 / BLOCK, "int8": 1.0 + 4.0 / BLOCK}
"""Bytes of an element between islands."""

INDEXED_BYTES = 8.0
"""Bytes of an element that travels with its place."""

ADAM_BYTES = 28.0
"""What AdamW moves of a parameter, by which processors of a host that update so many a second stream."""

PARAMETERS_PER_SECOND = 0.72e9
"""Updates of torch's own AdamW on processors (arXiv:2101.06840, table 4), where the cluster file does not tell."""

HOST_PASSES = {"average": 70.0, "diloco": 110.0}
"""Bytes of host memory that one element of an exchange of weights reads and writes: its change, and the outer update.

As counted by time beside AdamW on one core, like those below.
"""

CODING = {"fp32": 15.0, "bf16": 40.0, "fp8": 190.0, "int8": 115.0}
"""The same of what is put in a row, brought to a format and back, and added up; of gradients on the device."""

OUTER_BYTES = {"average": 16.0, "diloco": 20.0}
"""Bytes of an element that an island keeps in host memory: weights of the last exchange, their change, what is
received, and of an outer optimizer its momentum."""

ERROR_BYTES = 4.0
"""Bytes of an element that has not been sent yet, with PowerSGD and top-k."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """Replicas that are exact among themselves."""

    slots: tuple[Slot, ...]
    groups: tuple[int, ...]
    """Numbers of the groups that its replicas belong to."""

    @property
    def likeness(self) -> object:
        """Equal for islands that take equally long."""
        return self.groups, tuple(
            (slot.pool, slot.gpu, slot.nodes, slot.replicas_per_node) for slot in self.slots
        )


def islands_of(sync: Sync, stage: Stage, slots: Sequence[Slot]) -> list[Island]:
    """The islands of a stage, in the order of their first replicas."""
    islands: dict[object, tuple[list[Slot], list[int]]] = {}
    group, left = 0, stage.replicas[0].count
    for slot in slots:
        if not left:
            group += 1
            left = stage.replicas[group].count
        left -= slot.replicas
        parts = [slot]
        if not sync.islands:
            nodes = range(slot.first_node, slot.first_node + slot.nodes)
            parts = [slot._replace(first_node=node, nodes=1) for node in nodes]
        for part in parts:
            own = islands.setdefault(sync.island_of(part.pool, part.first_node), ([], []))
            own[0].append(part)
            own[1].extend([group] if group not in own[1] else [])
    return [Island(slots=tuple(own), groups=tuple(groups)) for own, groups in islands.values()]


def ring_between(
    first: Iterable[Slot],
    topology: Topology,
    calibration: Calibration,
    kernels: str,
    curves: LinkCurves | None,
) -> Ring:
    """The ring over one device of each island; ``topology`` is that of the hosts."""
    slots = [slot._replace(tp=1, nodes=1, replicas_per_node=1) for slot in first]
    return data_ring(slots, crossing_rings([slots]), topology, calibration, kernels, curves)


def exchange_seconds(sync: Sync, model: ModelSpec, elements: float, ring: Ring) -> float:
    """Seconds of an exchange of so many ``elements`` between hosts; less with fewer islands and faster links."""
    if ring.alone:
        return 0.0
    if sync.ratio is not None:
        return ring.gather_seconds(ring.size * sync.ratio * elements * INDEXED_BYTES)
    if sync.rank is not None:
        rows, columns, whole = factors(sync.rank, model, elements)
        # The first island's basis goes to all others.
        bases = ring.broadcast_seconds(4.0 * rows)
        return bases + ring.reduce_seconds(4.0 * (rows + whole)) + ring.reduce_seconds(4.0 * columns)
    return ring.reduce_seconds(elements * SENT_BYTES[sync.format])


def local_seconds(
    sync: Sync,
    model: ModelSpec,
    elements: float,
    device: Device,
    ring: Ring,
    *,
    sharded: bool,
    measured: ExchangeCurves,
) -> float:
    """Seconds of an exchange inside an island: kernels, copies and processors where it is made, then all others.

    What was measured of the device stands for the first three; formats of weights are counted beside it.
    """
    host = device.device_type.host
    sent, streamed, kernels, passes = _moved(sync, model, elements)
    rate = host.parameters_per_second
    streams = ADAM_BYTES * (rate * host.devices if rate else PARAMETERS_PER_SECOND)
    copied = 2 * sent / host.bytes_per_second if host.bytes_per_second else 0.0
    # The emitted runtime gathers each parameter by itself, and tells as many as a bucket has.
    told = ring.broadcast_seconds(4.0 * elements, max(1, ceil(elements / BUCKET)))
    gathered = ring.gather_seconds(4.0 * elements, parameters_of(model)) if sharded else 0.0
    made = measured.seconds(device.device_type.gpu, sync, elements)
    if made is not None:
        coded = CODING[sync.format] - CODING["fp32"] if sync.local else 0.0
        return gathered + made + coded * elements / streams + told
    return gathered + device.stream(streamed, kernels) + copied + passes * elements / streams + told


def _moved(sync: Sync, model: ModelSpec, elements: float) -> tuple[float, float, int, float]:
    """Bytes between device and host one way, bytes and kernels on the device, passes over elements on the host."""
    if sync.local:
        return 4.0 * elements, 0.0, 0, HOST_PASSES[sync.method] + CODING[sync.format]
    if sync.ratio is not None:
        # The error is added, its largest elements are found in four passes, taken off and added to the sum.
        return sync.ratio * elements * INDEXED_BYTES, 64.0 * elements, 12, 0.0
    if sync.rank is not None:
        rows, columns, whole = factors(sync.rank, model, elements)
        # The error is added; four products read each matrix or write it; the new error is what is left.
        return 4.0 * (rows + columns + whole), 64.0 * elements, 16 * model.layers, CODING["fp32"]
    # Parts of all islands come in, and sums of parts go out, before all sums come in.
    return 2.0 * SENT_BYTES[sync.format] * elements, CODING[sync.format] * elements, 16, 0.0


def parameters_of(model: ModelSpec) -> int:
    """Matrices and vectors of a model."""
    norms = model.layer_norms * (1 if model.norm == "rms" else 2)
    biases = 2 * model.qkv_bias + model.output_bias + model.mlp_matrices * model.mlp_bias
    return model.layers * (len(matrices(model)) + norms + biases) + (1 if model.tied_embeddings else 2)


def kept_on_device(sync: Sync) -> float:
    """Bytes of an element of a gradient that a device keeps for the next exchange."""
    return ERROR_BYTES if sync.rank is not None or sync.ratio is not None else 0.0


def kept_on_host(sync: Sync, elements: float, device_type: DeviceType) -> float:
    """The part of a host's memory for an island's exchange that falls on each of its devices."""
    return OUTER_BYTES[sync.method] * elements / device_type.host.devices if sync.local else 0.0
