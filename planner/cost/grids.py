"""Seconds of layers whose matrices a grid of q x q devices divides by rows and columns: SUMMA, in q rounds.

In a round the devices of each row get one block of the activations and those of each column one of the weight, and add
the product of both to theirs. A backward has two such products: what a round makes is added up over a row, or over a
column, on the device that has the block. So a product of (b s) x h by h x k passes ``b s h / q + h k / q`` elements to
each device forward and twice as much backward: of a GPT's layer 7 b s h + 12 h h over q, backward 14 and 24, and 21 and
36 with recomputation (Optimus, arXiv:2104.05343, table 1, for trees, whose broadcasts take log2 q times as long as
pipelined ones). Each layer of a depth has its part of the sequences and the same blocks (Tesseract, arXiv:2105.14500,
section 3.1): it is priced as a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

from planner.calibration.values import Calibration
from planner.capabilities import Capabilities
from planner.cluster.topology import DeviceType, Topology
from planner.cost.communication import Ring, carried_rates, inside_rate
from planner.cost.compute import (
    FORWARD_KERNELS,
    HOST_JITTER,
    Device,
    EndPass,
    Product,
    attention_seconds,
    element_wise_bytes,
    predicted_tokens,
)
from planner.cost.measured_curves import LinkCurves
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.placement import Slot
from planner.plan.values import Grid

STATISTICS_BYTES = 4.0
"""Of a sum over the channels of a token, in fp32."""

ROUND_KERNELS = 3
"""Launches of a round: two broadcasts and a product; a backward has six."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The devices of a row, or of a column, of a grid."""

    ring: Ring

    def pass_seconds(self, size_bytes: float) -> float:
        """A block from one device to all others of the axis."""
        return self.ring.broadcast_seconds(size_bytes)

    def sum_seconds(self, size_bytes: float) -> float:
        """The sum of what all of them have of a block, on one of them."""
        return self.ring.sum_seconds(size_bytes)


@dataclass(frozen=True, slots=True)
class Axes:
    """Both of them; ``side`` devices each."""

    side: int
    row: Axis
    """Over which the channels of activations are divided."""
    column: Axis
    """Over which sequences, and the inputs of weights, are."""


def axes(
    side: int,
    device_type: DeviceType,
    topology: Topology,
    calibration: Calibration,
    framework: str,
    curves: LinkCurves | None = None,
) -> Axes:
    """Rows are consecutive devices, columns every ``side``-th; a grid lies in a node or fills nodes.

    Rings that leave a node at once share its cards: one of each column that has devices there, or of the row.
    """
    here = min(side * side, device_type.per_node)
    inside = inside_rate(device_type, calibration)

    def axis(together: int, rings: int) -> Axis:
        """``together`` devices of the axis on a node, ``rings`` such axes through its cards."""
        nodes = ceil(side / together)
        rate, latency = inside, (together - 1) * nodes * device_type.intra_latency_seconds
        crosses, link = "node", f"node:{device_type.gpu}"
        if nodes > 1:
            path = topology.path(device_type.pool, device_type.pool)
            utilisation = calibration.framework(framework).link_utilisation
            carried = carried_rates(path, calibration, utilisation)[0] / rings
            rate = min(rate, carried) if together > 1 else carried
            latency += (nodes - 1) * path.latency_seconds
            crosses = link = path.fabric
        return Axis(
            Ring(
                size=side,
                bytes_per_second=rate,
                latency_seconds=latency,
                crosses=crosses,
                curves=curves,
                link=link,
                sharing=rings if nodes > 1 else 1,
            )
        )

    return Axes(
        side,
        row=axis(min(side, here), max(1, here // side)),
        column=axis(max(1, here // side), min(side, here)),
    )


def copies_of(slots: Sequence[Slot], grid: Grid) -> list[Slot]:
    """Where the layers of all depths stand, as replicas: of those that fill several nodes the first alone."""
    made = []
    for slot in slots:
        nodes = max(1, grid.layer // slot.tp)
        on_node = max(1, slot.tp // grid.layer)
        made.append(
            slot._replace(
                tp=min(slot.tp, grid.layer),
                nodes=slot.nodes // nodes,
                replicas_per_node=slot.replicas_per_node * on_node,
            )
        )
    return made


def matrices_of(model: ModelSpec) -> list[tuple[int, int]]:
    """(inputs, outputs) of each weight of a layer, as the runtime multiplies by it: keys and values are one."""
    pairs = model.projected_pairs
    queries = model.heads * model.head_dim
    mlp = [(model.hidden, model.common_ffn)] * (model.mlp_matrices - 1) + [(model.common_ffn, model.hidden)]
    return [(model.hidden, queries), (model.hidden, pairs), (queries, model.hidden), *mlp]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPass:
    """Seconds of one layer for one micro-batch."""

    forward_seconds: float
    backward_seconds: float
    collective_forward: float
    collective_backward: float
    host_seconds: float
    """Seconds the host needs to launch one forward; a backward needs twice as many."""


def linear_seconds(
    inputs: int, outputs: float, rows: float, device: Device, axes: Axes
) -> tuple[float, float, float, float]:
    """(forward, backward) of the products with one weight, and (forward, backward) of what goes round for them."""
    side = axes.side
    products = device.products((Product(rows, outputs / side, inputs / side),))
    left, right = device.size * rows * inputs / side, device.size * inputs * outputs / side**2
    moved = side * (axes.row.pass_seconds(left) + axes.column.pass_seconds(right))
    # Backward the blocks go round again, and the gradients of both are added up.
    summed = side * (axes.row.sum_seconds(left) + axes.column.sum_seconds(right))
    return side * products[0], side * products[1], moved, moved + summed


def layer(model: ModelSpec, device: Device, target: Capabilities, axes: Axes, micro_batch: int) -> GridPass:
    """A layer for ``micro_batch`` sequences of one layer of the depth."""
    side, kernels = axes.side, 0
    rows = micro_batch * model.training.sequence_length / side
    tokens = micro_batch * model.training.sequence_length
    sums = [0.0] * 4
    for inputs, outputs in matrices_of(model):
        parts = linear_seconds(inputs, outputs, rows, device, axes)
        sums = [one + part for one, part in zip(sums, parts, strict=True)]
        kernels += side * ROUND_KERNELS
    forward, backward, moved, moved_back = sums
    # Each row has its own sequences, and each column its own heads.
    core, core_back = attention_seconds(model, device, target, tp=side, micro_batch=micro_batch // side)
    wide, narrow = element_wise_bytes(model, device.size, tp=side**2, tokens=tokens, split=True)
    part = model.sublayers / 2
    forward += core + device.element_wise(wide + narrow, 7 * part)
    backward += core_back + device.element_wise(1.6 * (wide + narrow), 8 * part)
    statistics = model.layer_norms * axes.row.ring.reduce_seconds(STATISTICS_BYTES * rows)
    centred = 1 if model.norm == "rms" else 2
    launches = part * FORWARD_KERNELS + kernels + model.layer_norms * centred
    return GridPass(
        forward_seconds=forward,
        backward_seconds=backward,
        collective_forward=moved + centred * statistics,
        collective_backward=moved_back + model.layer_norms * axes.row.ring.reduce_seconds(8.0 * rows),
        host_seconds=launches
        * device.family.launch_seconds
        * device.framework.host_factor
        * (1.0 + HOST_JITTER * log2(side**2)),
    )


def embedding(model: ModelSpec, device: Device, axes: Axes, micro_batch: int) -> EndPass:
    """Blocks of the table go round a column, and each device looks up the tokens that are in them."""
    side = axes.side
    tokens = micro_batch * model.training.sequence_length / side
    block = device.size * model.vocab * model.hidden / side**2
    passes, sums = side * axes.column.pass_seconds(block), side * axes.column.sum_seconds(block)
    forward = device.stream(4.0 * device.size * tokens * model.hidden / side, 3 * side)
    return EndPass(
        forward_seconds=forward,
        backward_seconds=2 * forward + side * device.stream(2 * block),
        collective_forward=passes,
        collective_backward=sums,
    )


def head(model: ModelSpec, device: Device, axes: Axes, micro_batch: int) -> EndPass:
    """One more product, whose outputs are parts of the vocabulary, and three sums of the loss over a row.

    A tied weight has its rows by the rows of the grid: devices swap blocks with those across the diagonal.
    """
    side = axes.side
    tokens = predicted_tokens(model, micro_batch * model.training.sequence_length) / side
    columns = model.vocab / side
    forward, backward, moved, moved_back = linear_seconds(model.hidden, model.vocab, tokens, device, axes)
    ahead, back = device.loss(tokens * columns)
    loss = 3 * axes.row.ring.reduce_seconds(STATISTICS_BYTES * tokens)
    swap = axes.column.pass_seconds(device.size * model.vocab * model.hidden / side**2)
    swap *= model.tied_embeddings
    return EndPass(
        forward_seconds=forward + ahead,
        backward_seconds=backward + back,
        collective_forward=moved + loss + swap,
        collective_backward=moved_back + swap,
    )


def block_bytes(model: ModelSpec, size: int, side: int, micro_batch: int) -> float:
    """Blocks on their way in the product with the largest weight: of both factors, and of their gradients."""
    rows = micro_batch * model.training.sequence_length / side
    widths = [*matrices_of(model), (model.hidden, model.vocab)]
    return max(size * 2.0 * (rows * inputs / side + inputs * outputs / side**2) for inputs, outputs in widths)
