"""The published microbenchmarks: what each row says, and that physics allows it."""

from __future__ import annotations

import pytest

from planner import catalog
from planner.measured.microbenchmarks import COLLECTIVES, Microbenchmark, microbenchmarks

_ABOVE_THE_WIRE = ("tree", "nvls", "sharp")
"""They move less than a ring: the bus bandwidth of nccl-tests overstates what the wire carries."""


def rows(quantity: str, device: str | None = None) -> list[Microbenchmark]:
    """The rows of one quantity, of one device if given."""
    return [row for row in microbenchmarks() if row.quantity == quantity and device in (None, row.device)]


def test_names_are_those_of_the_catalogue() -> None:
    """A row of an unknown device or link would never be found."""
    devices, links = set(catalog.gpu_names()), set(catalog.link_names())
    assert {row.device for row in microbenchmarks()} - {None} <= devices
    assert {row.intra_node for row in microbenchmarks()} - {None} <= links


def test_no_matrix_product_beats_the_peak_by_more_than_boosted_clocks() -> None:
    """Data sheets of GeForce cards count a clock that good cards exceed."""
    for row in rows("matmul"):
        assert row.precision is not None, row
        peak = catalog.gpu(row.device or "").tflops.get(row.precision)
        assert peak is not None, row
        assert 0.1 * peak < row.value / 1e12 < 1.1 * peak, row


def test_memory_and_copies_stay_below_their_wire() -> None:
    """What the data sheet gives bounds them; caches are no memory."""
    for row in rows("memory"):
        peak = catalog.gpu(row.device or "").memory_bandwidth_gBps
        assert 0.5 * peak < row.value / 1e9 < 1.001 * peak, row
    for row in rows("host_copy"):
        wire = catalog.gpu(row.device or "").host_link_gBps
        assert wire is not None, row
        assert 0.5 < row.value / 1e9 / wire < 1, row


def test_rings_stay_below_the_slowest_wire() -> None:
    """Between nodes all cards of a node together bound the ring; inside, the link of one device."""
    for row in [item for quantity in COLLECTIVES for item in rows(quantity)]:
        if row.algorithm in _ABOVE_THE_WIRE:
            continue
        if row.nodes > 1:
            assert row.fabric is not None, row
            assert row.nic_gbps is not None, row
            assert row.value <= row.nics * row.nic_gbps / 8 * 1e9, row
        elif row.intra_node is not None:
            assert row.value <= catalog.link(row.intra_node).bandwidth_gBps * 1e9, row


def test_collectives_name_their_network() -> None:
    """Between nodes the fabric and its cards; their members are spread evenly."""
    for row in microbenchmarks():
        assert row.members % row.nodes == 0, row
        assert (row.fabric is not None) == (row.nic_gbps is not None) == (row.nodes > 1), row


@pytest.mark.parametrize(
    "family", ["A100", "B200", "H100", "L40S", "A40", "V100", "T4", "P100", "MI250X", "MI300X"]
)
def test_every_family_has_a_matrix_product(family: str) -> None:
    """What constants of a family without runs are derived from."""
    named = {row.device for row in rows("matmul")}
    assert any(catalog.gpu(name).family == family for name in named if name)
