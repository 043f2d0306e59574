"""The shipped profile of OPT-350M's layers: points that are left out, and the steps that were measured beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean

import pytest

from planner.calibration.tables import import_layers_csv
from planner.calibration.values import LayerPoint
from planner.catalog import gpu_spec, link_spec
from planner.cli.inputs import read_calibration
from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cluster.topology import Topology
from planner.cost.measured_curves import BETWEEN, BEYOND, ELSEWHERE
from planner.cost.stage import Pricer
from planner.measured.predictions import predict
from planner.measured.table import PUBLISHED
from planner.measured.values import Run
from planner.targets import TARGETS
from tests.measured.examples import published
from tests.quick import every, first

POINTS = import_layers_csv(PUBLISHED.with_name("opt350m_layers.csv"))
DEVICES = {
    "V100-SXM-16GB": ("V100-SXM-16GB", "nvlink2", "fp32"),
    "A100-SXM-40GB": ("A100-SXM-40GB", "nvlink3", "tf32"),
    "A100-SXM-80GB": ("A100-SXM-80GB", "nvlink3", "tf32"),
    "GH200-96GB": ("GH200-96GB", "nvlink4", "tf32"),
    "Titan-RTX": ("Titan-RTX", "pcie3", "fp32"),
    "RTX-2080": ("RTX-2080-Ti", "pcie3", "fp32"),
    "RTX-3090": ("RTX-3090", "pcie3", "tf32"),
}
"""Names in the catalogue, links inside a node, and number formats; the links of the last three are not known."""

Left = tuple[LayerPoint, Sequence[LayerPoint]]
"""A point, and those that it is predicted from."""


@cache
def runs() -> tuple[Run, ...]:
    """Steps on GH200 with the layers of the profile."""
    return tuple(run for run in published().runs if run.source == "sailor-gh200")


def predicted(point: LayerPoint, others: Sequence[LayerPoint]) -> float:
    """Forward and backward of a point over the measured ones, less 1."""
    gpu, link, precision = DEVICES[point.gpu]
    model = runs()[0].model
    model = model.model_copy(update={"training": model.training.model_copy(update={"precision": precision})})
    pool = PoolSpec(name="p", devices=(point.gpu,) * 8, hosts=("p-0",), intra_node=link_spec(link), nics=())
    known = gpu_spec(gpu).model_copy(update={"name": point.gpu})
    spec = ClusterSpec(name="test", gpus={point.gpu: known}, pools=(pool,), fabrics={}, links=())
    shipped = read_calibration(None)
    pricer = Pricer(Topology(spec), model, replace(shipped, layers=tuple(others)), TARGETS["megatron"], None)
    times = pricer.measured(pricer.topology.device_type("p", point.gpu), point.tp, point.micro_batch)
    assert times is not None
    measured = point.forward_seconds + point.backward_seconds
    return (times.forward_seconds + times.backward_seconds) / measured - 1.0


def curves(gpus: Sequence[str] = tuple(DEVICES)) -> Iterator[list[LayerPoint]]:
    """The points of each device and degree, by micro-batch."""
    for gpu, tp in sorted({(point.gpu, point.tp) for point in POINTS if point.gpu in gpus}):
        own = [point for point in POINTS if (point.gpu, point.tp) == (gpu, tp)]
        yield sorted(own, key=lambda point: point.micro_batch)


def between() -> Iterator[Left]:
    """Points with a smaller and a larger one."""
    for own in curves():
        yield from ((point, [other for other in own if other is not point]) for point in own[1:-1])


def from_ends() -> Iterator[Left]:
    """All from the smallest and the largest."""
    for own in curves():
        yield from ((point, (own[0], own[-1])) for point in own[1:-1])


def from_smallest() -> Iterator[Left]:
    """All from the smallest, which often waits for the host."""
    for own in curves():
        yield from ((point, own[:1]) for point in own[1:])


def from_largest() -> Iterator[Left]:
    """All from the largest."""
    for own in curves():
        yield from ((point, own[-1:]) for point in own[:-1])


def from_other_degrees() -> Iterator[Left]:
    """A degree from the nearest one."""
    known = tuple(DEVICES)[:4]
    for own in curves(known):
        others = [point for point in POINTS if point.gpu == own[0].gpu and point.tp != own[0].tp]
        yield from ((point, others) for point in own)


@pytest.mark.parametrize(
    ("left", "most", "spread"),
    every(
        2,
        [
            (between, 0.025, BETWEEN),
            (from_ends, 0.04, BETWEEN),
            (from_smallest, 0.09, BEYOND),
            (from_largest, 0.06, BEYOND),
            (from_other_degrees, 0.08, ELSEWHERE),
        ],
    ),
)
def test_points_that_are_left_out(left: Callable[[], Iterator[Left]], most: float, spread: float) -> None:
    """Their mean error, and half of them or more inside the spread of such an answer."""
    errors = [predicted(point, others) for point, others in left()]
    assert mean(map(abs, errors)) < most
    assert sum(abs(error) < spread for error in errors) > 0.5 * len(errors)


def test_more_points_do_not_mislead() -> None:
    """What lies between is predicted no worse from all others than from the ends, but for the spread of the points."""
    ends = {id(point): abs(predicted(point, others)) for point, others in from_ends()}
    worse = [abs(predicted(point, others)) - ends[id(point)] for point, others in between()]
    assert sum(more > BEYOND for more in worse) <= len(worse) / 20
    assert mean(worse) < 0


def test_steps_beside_their_profile() -> None:
    """GH200 with the constants that ship: the profile brings time and memory nearer, and narrows the bar."""
    shipped = read_calibration(None)
    anchored = replace(shipped, layers=POINTS)
    time, bytes_, inside = {}, {}, {}
    for name, calibration in (("constants", shipped), ("profile", anchored)):
        found = predict(runs(), calibration)
        time[name] = mean(abs(item.error or 0.0) for item in found)
        bytes_[name] = mean(abs(item.memory_error or 0.0) for item in found)
        inside[name] = mean(abs(item.error or 0.0) <= (item.spread or 0.0) for item in found)
        assert all((item.spread or 1.0) < 0.13 for item in found) == (name == "profile")
    assert time["profile"] < min(0.085, time["constants"])
    assert bytes_["profile"] < min(0.05, bytes_["constants"])
    assert inside["profile"] >= 0.6


@pytest.mark.parametrize(("tp", "micro_batch"), first(2, [(4, 1), (1, 1), (4, 8)]))
def test_steps_beside_a_single_point(tp: int, micro_batch: int) -> None:
    """One layer, bound by the host or by the device, at the degree of the runs or another, is no worse than none."""
    own = tuple(
        point
        for point in POINTS
        if (point.gpu, point.tp, point.micro_batch) == ("GH200-96GB", tp, micro_batch)
    )
    assert len(own) == 1
    found = predict(runs(), replace(read_calibration(None), layers=own))
    assert mean(abs(item.error or 0.0) for item in found) < 0.13
    assert mean(abs(item.memory_error or 0.0) for item in found) < 0.05
