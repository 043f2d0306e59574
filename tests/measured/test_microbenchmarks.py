"""The published microbenchmarks: what each row says, and that physics allows it."""

from __future__ import annotations

import pytest

from planner import catalog
from planner.calibration.file import shipped
from planner.cluster.topology import Topology
from planner.cost.compute import Device, Product, layer_pass
from planner.files.fields import Dtype
from planner.measured.microbenchmarks import Microbenchmark, microbenchmarks
from planner.measured.priors import HALF_FORMATS, KERNEL_SETS, best_share
from planner.targets import target
from planner.units import flops_from_tflops
from tests.worlds import cluster, gpt, pool

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
        assert 0.1 * peak < row.value / 1e12 < 1.16 * peak, row


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
    for row in [
        item for quantity in ("all_reduce", "all_gather", "reduce_scatter") for item in rows(quantity)
    ]:
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


CARDS_DIFFER = 1.01
"""Two cards of a kind, at least by this."""


def best_product(name: str, precision: Dtype) -> float:
    """FLOP/s of the best product measured on a device; else on its family, as a share of the peak; else the peak.

    Both half formats say what a device can do in either: their peaks are equal.
    """
    alike = HALF_FORMATS if precision in HALF_FORMATS else (precision,)
    measured = [row.value for row in rows("matmul", name) if row.precision in alike]
    facts = catalog.gpu(name)
    share = best_share(facts.family) if precision in HALF_FORMATS else 1.0
    return max(measured, default=share * flops_from_tflops(facts.tflops[precision]))


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_no_device_is_predicted_above_the_best_product_measured_on_it(name: str) -> None:
    """A product as large as it can be, and whole layers, short ones and ones that are nearly all attention; with the
    shipped constants under every kernel set."""
    facts = catalog.gpu(name)
    spec = cluster(pool("p", name), gpus={name: facts})
    (device_type,) = Topology(spec).device_types
    size = 2**16
    for precision in facts.tflops:
        best = CARDS_DIFFER * best_product(name, precision)
        for kernels in KERNEL_SETS:
            device = Device(device_type, shipped(), precision, kernels)
            seconds = device.product(Product(size, size, size))
            assert 2 * size**3 / seconds < best, (precision, kernels)
            for length in (2048, 131_072):
                model = gpt(hidden=8192, heads=64, sequence_length=length, precision=precision)
                done = layer_pass(
                    model, device, target("torch"), tp=1, micro_batch=1, sequence_parallel=False
                )
                flops = 2 * length * 12 * 8192**2 + 2 * length**2 * 8192
                assert flops / done.forward_seconds < best, (precision, kernels, length)
                assert 2 * flops / done.backward_seconds < best, (precision, kernels, length)
