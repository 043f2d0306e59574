"""Layers on tensor grids by hand, with devices and links whose seconds are counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType, Topology
from planner.cost.communication import Ring
from planner.cost.compute import Device, Product
from planner.cost.grids import (
    Axes,
    Axis,
    axes,
    block_bytes,
    copies_of,
    embedding,
    head,
    layer,
    linear_seconds,
    matrices_of,
)
from planner.plan.placement import Slot
from planner.plan.values import Grid
from planner.targets import TARGETS
from tests.worlds import cluster, model, pool

PASS, SUM = 1e3, 1e6
"""Seconds of a byte that goes round a row; along a column they are ten times those."""


def on(side: int) -> Axes:
    """A grid whose links take time for bytes alone."""

    def axis(factor: float) -> Axis:
        ring = SimpleNamespace(
            broadcast_seconds=lambda size: PASS * factor * size,
            sum_seconds=lambda size: SUM * factor * size,
            reduce_seconds=lambda size: 1e9 * factor * size,
        )
        return Axis(cast("Ring", ring))

    return Axes(side, row=axis(1.0), column=axis(10.0))


def counting() -> Device:
    """Two bytes an element; a product takes a second for each multiplication, backward twice as long."""

    def products(every: tuple[Product, ...]) -> tuple[float, float]:
        work = sum(each.rows * each.columns * each.inner for each in every)
        return work, 2 * work

    def stream(moved_bytes: float, kernels: float = 1) -> float:
        return moved_bytes + kernels

    def loss(logits: float) -> tuple[float, float]:
        return 24 * logits, 20 * logits

    return cast(
        "Device",
        SimpleNamespace(size=2, products=products, stream=stream, element_wise=stream, loss=loss),
    )


def test_a_product_goes_round_in_as_many_rounds_as_a_side() -> None:
    """Of 6 x 8 weights and 4 rows of a device: each round has blocks of 4 x 3 and 3 x 4."""
    forward, backward, moved, moved_back = linear_seconds(6, 8.0, 4.0, counting(), on(2))
    assert (forward, backward) == (2 * 4 * 3 * 4, 2 * 2 * 4 * 3 * 4)
    left, right = 2 * 4 * 3, 2 * 3 * 4
    assert moved == 2 * (PASS * left + 10 * PASS * right)
    assert moved_back == moved + 2 * (SUM * left + 10 * SUM * right)


def test_ends_of_a_model_on_a_grid() -> None:
    """Blocks of the table go round a column; the head's outputs are parts of the vocabulary, and its loss is summed."""
    small = model(8, 3, hidden=8, heads=2, vocab=16, tied_embeddings=False)
    tokens = 4 * small.training.sequence_length / 2
    table = 2 * 16 * 8 / 4
    first = embedding(small, counting(), on(2), 4)
    assert (first.collective_forward, first.collective_backward) == (20 * PASS * table, 20 * SUM * table)
    assert first.forward_seconds == 4 * 2 * tokens * 4 + 6
    assert first.backward_seconds == 2 * first.forward_seconds + 2 * (2 * table + 1)
    last = head(small, counting(), on(2), 4)
    forward, backward, moved, moved_back = linear_seconds(8, 16.0, tokens, counting(), on(2))
    loss = 3 * 1e9 * 4 * tokens
    assert last.collective_forward == pytest.approx(moved + loss)
    assert last.collective_backward == pytest.approx(moved_back)
    assert last.forward_seconds == forward + 24 * tokens * 8
    assert last.backward_seconds == backward + 20 * tokens * 8
    tied = head(model(8, 3, hidden=8, heads=2, vocab=16, tied_embeddings=True), counting(), on(2), 4)
    swap = 10 * PASS * 2 * 16 * 8 / 4
    assert tied.collective_forward - last.collective_forward == pytest.approx(swap)
    assert tied.collective_backward - last.collective_backward == pytest.approx(swap)


def test_matrices_of_a_layer() -> None:
    """Queries, keys with values, outputs, and those of the feed-forward; the largest blocks are held twice."""
    small = model(8, 3, hidden=8, heads=4, kv_heads=2, head_dim=4, ffn=32, gated_mlp=True, vocab=16)
    assert matrices_of(small) == [(8, 16), (8, 16), (16, 8), (8, 32), (8, 32), (32, 8)]
    rows = 4 * small.training.sequence_length / 2
    assert block_bytes(small, 2, 2, 4) == 2 * 2 * (rows * 32 / 2 + 8 * 32 / 4)
    wide = small.model_copy(update={"vocab": 10**6})
    assert block_bytes(wide, 2, 2, 4) == 2 * 2 * (rows * 8 / 2 + 8 * 10**6 / 4)


@pytest.mark.parametrize(
    ("side", "per_node", "row", "column"),
    [
        (2, 4, (1, 1), (1, 1)),
        (2, 2, (1, 1), (2, 2)),
        (4, 4, (1, 1), (4, 4)),
        (4, 8, (1, 1), (2, 4)),
        (4, 2, (2, 1), (4, 2)),
    ],
)
def test_links_of_rows_and_columns(
    side: int, per_node: int, row: tuple[int, int], column: tuple[int, int]
) -> None:
    """Rows lie in a node as far as it is large; (nodes of an axis, such axes that share its cards)."""
    spec = cluster(pool("a", nodes=8, per_node=per_node, gbps=100, cards=1))
    device_type, topology = kind(spec), Topology(spec)
    found = axes(side, device_type, topology, ASSUMED, "torch")
    carried = ASSUMED.link("infiniband").efficiency * 100e9 / 8 * ASSUMED.framework("torch").link_utilisation
    inside = found_inside(device_type)
    for axis, (nodes, rings) in ((found.row, row), (found.column, column)):
        together = side // nodes
        rate = inside if nodes == 1 else min(inside, carried / rings) if together > 1 else carried / rings
        assert axis.ring.size == side
        assert axis.ring.bytes_per_second == pytest.approx(rate)
        path = topology.path("a", "a")
        latency = (together - 1) * nodes * device_type.intra_latency_seconds
        assert axis.ring.latency_seconds == pytest.approx(latency + (nodes - 1) * path.latency_seconds)
        assert (axis.ring.crosses, axis.ring.sharing) == (("node", 1) if nodes == 1 else ("ib", rings))


def kind(spec: ClusterSpec) -> DeviceType:
    """The only device type."""
    (found,) = Topology(spec).device_types
    return found


def found_inside(device_type: DeviceType) -> float:
    """Bytes a second between devices of a node."""
    return axes(1, device_type, Topology(cluster(pool("a"))), ASSUMED, "torch").row.ring.bytes_per_second


def test_layers_of_a_depth_are_replicas() -> None:
    """A replica of eight devices with grids of four has two of them; one that fills four nodes counts on its first."""
    slot = Slot(pool="a", gpu="A100", tp=8, first_node=0, nodes=2, first_device=0, replicas_per_node=1)
    grid = Grid(rows=2, columns=2, depth=2)
    (two,) = copies_of([slot], grid)
    assert (two.tp, two.nodes, two.replicas_per_node) == (4, 2, 2)
    (wide,) = copies_of([slot._replace(tp=1, nodes=8)], grid)
    assert (wide.tp, wide.nodes, wide.replicas_per_node) == (1, 2, 1)


def test_a_layer_on_a_grid_moves_what_its_matrices_do() -> None:
    """And sums of its norms over rows: one of RMSNorm, two with a mean."""
    spec = cluster(pool("a"))
    small = model(8, 3, hidden=64, heads=4, ffn=128, norm="rms")
    mean = small.model_copy(update={"norm": "layer"})
    device = Device(kind(spec), ASSUMED, small.training.precision, "torch")
    each = [layer(item, device, TARGETS["torch"], on(2), 4) for item in (small, mean)]
    rows = 4 * small.training.sequence_length / 2
    parts = [linear_seconds(one, two, rows, device, on(2)) for one, two in matrices_of(small)]
    statistics = small.layer_norms * 1e9 * 4 * rows
    assert each[0].collective_forward == pytest.approx(sum(part[2] for part in parts) + statistics)
    summed = small.layer_norms * 1e9 * 8 * rows
    assert each[0].collective_backward == pytest.approx(sum(part[3] for part in parts) + summed)
    products = [sum(part[at] for part in parts) for at in (0, 1)]
    # 20 kernels of a layer, three in each of two rounds of five products, and the sums of both norms.
    each_launch = device.family.launch_seconds * device.framework.host_factor * (1 + 0.06 * 2)
    assert [one.host_seconds / each_launch for one in each] == pytest.approx(
        [20 + 5 * 2 * 3 + 2, 20 + 5 * 2 * 3 + 4]
    )
    assert each[0].forward_seconds > products[0] > 0
    assert each[0].backward_seconds > products[1] > products[0]
    assert each[1].collective_forward == pytest.approx(sum(part[2] for part in parts) + 2 * statistics)
