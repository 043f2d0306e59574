"""Curves through measured points."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.calibration.values import Calibration, KernelPoint, LayerPoint, LinkPoint
from planner.cost.measured_curves import LayerCurves, LayerTimes, LinkCurves, OptimizerCurves

ROOT = Path(__file__).parents[2]
SECONDS = st.floats(1e-6, 1e3)


def layer(micro_batch: int, seconds: float, **more: Any) -> LayerPoint:
    """A measured layer whose backward takes twice its forward."""
    fields = {"gpu": "A100-SXM-80GB", "model": "opt-350m", "tp": 1, **more}
    return LayerPoint(
        micro_batch=micro_batch, forward_seconds=seconds, backward_seconds=2 * seconds, **fields
    )


def layers(*points: LayerPoint) -> LayerCurves:
    """Their curves."""
    return LayerCurves(Calibration(layers=points))


def found(curves: LayerCurves, micro_batch: int) -> LayerTimes:
    """The layer at a micro-batch."""
    times = curves.at("A100-SXM-80GB", "opt-350m", 1, micro_batch)
    assert times is not None
    return times


def link(size: float, seconds: float, operation: Any = "all-reduce", members: int = 4) -> LinkPoint:
    """A measured collective."""
    return LinkPoint(link="ib", operation=operation, members=members, size_bytes=size, seconds=seconds)


def links(*points: LinkPoint) -> LinkCurves:
    """Their curves."""
    return LinkCurves(Calibration(link_points=points))


def near(curves: LinkCurves, size: float, seconds: float, *, guess: bool) -> bool:
    """Whether an all-reduce of a size takes about as long, and whether the answer says that it is a guess."""
    answer = curves.seconds("ib", "all-reduce", 4, size)
    return answer is not None and answer[0] == pytest.approx(seconds) and answer[1] == guess


def test_other_devices_models_and_degrees_have_no_curve() -> None:
    """Nothing is guessed from a neighbour."""
    curves = layers(layer(1, 0.1), layer(2, 0.15))
    assert curves.at("V100-SXM-16GB", "opt-350m", 1, 1) is None
    assert curves.at("A100-SXM-80GB", "opt-1.3b", 1, 1) is None
    assert curves.at("A100-SXM-80GB", "opt-350m", 2, 1) is None


def test_names_compare_without_case_dashes_and_underscores() -> None:
    """As people write them."""
    curves = layers(layer(1, 0.1), layer(2, 0.15))
    assert curves.at("a100_sxm_80gb", "OPT_350M", 1, 2) == curves.at("A100-SXM-80GB", "opt-350m", 1, 2)


def test_one_point_scales_with_the_micro_batch() -> None:
    """A guess that says so, except at the point itself."""
    curves = layers(layer(2, 0.2, activation_bytes=100.0, parameters=7.0))
    assert found(curves, 2) == LayerTimes(
        forward_seconds=0.2, backward_seconds=0.4, activation_bytes=100.0, parameters=7.0, extrapolated=False
    )
    times = found(curves, 6)
    assert times.extrapolated
    assert times.parameters == 7.0
    assert times.forward_seconds == pytest.approx(0.6)
    assert times.backward_seconds == pytest.approx(1.2)
    assert times.activation_bytes == pytest.approx(300.0)
    assert found(curves, 1).forward_seconds == pytest.approx(0.1)


def test_beyond_the_points_a_line() -> None:
    """With the slope of the last two above, of the first two below."""
    curves = layers(layer(2, 0.2), layer(4, 0.3), layer(8, 0.7))
    assert found(curves, 12).forward_seconds == pytest.approx(1.1)
    assert found(curves, 1).forward_seconds == pytest.approx(0.15)
    assert found(curves, 12).extrapolated
    assert found(curves, 1).extrapolated
    assert not found(curves, 5).extrapolated


def test_noise_at_the_ends_does_not_run_away() -> None:
    """More sequences never take less than the last point, fewer never more than the first, nor nothing."""
    assert found(layers(layer(2, 0.2), layer(4, 0.15)), 64).forward_seconds == 0.15
    assert found(layers(layer(4, 0.3), layer(8, 0.2)), 1).forward_seconds == 0.3
    steep = layers(layer(4, 0.1), layer(5, 10.0))
    assert found(steep, 1).forward_seconds == pytest.approx(0.025)


def test_activations_that_only_some_points_have() -> None:
    """A curve of their own; beyond it the answer is marked."""
    curves = layers(layer(1, 0.1), layer(2, 0.2, activation_bytes=20.0), layer(4, 0.4, activation_bytes=40.0))
    assert found(curves, 3).activation_bytes == pytest.approx(30.0)
    assert found(curves, 1).activation_bytes == pytest.approx(10.0)
    assert [found(curves, size).extrapolated for size in (1, 3)] == [True, False]
    assert found(layers(layer(1, 0.1)), 1).activation_bytes is None


CURVE = st.dictionaries(st.integers(1, 64), SECONDS, min_size=2, max_size=6)


@given(CURVE)
def test_curves_pass_through_their_points(points: dict[int, float]) -> None:
    """Exactly."""
    curves = layers(*(layer(size, seconds) for size, seconds in points.items()))
    for size, seconds in points.items():
        times = found(curves, size)
        assert (times.forward_seconds, times.backward_seconds, times.extrapolated) == (
            seconds,
            2 * seconds,
            False,
        )


@given(CURVE, st.integers(1, 200))
def test_curves_are_positive_and_say_when_they_guess(points: dict[int, float], size: int) -> None:
    """Everywhere; a guess is what lies outside the points."""
    times = found(layers(*(layer(at, seconds) for at, seconds in points.items())), size)
    assert times.forward_seconds > 0
    assert times.extrapolated == (not min(points) <= size <= max(points))


@given(CURVE)
def test_curves_stay_between_neighbouring_points(points: dict[int, float]) -> None:
    """Monotone between two points whatever the others do: no overshoot."""
    curves = layers(*(layer(size, seconds) for size, seconds in points.items()))
    for low, high in pairwise(sorted(points)):
        values = [found(curves, size).forward_seconds for size in range(low, high + 1)]
        rises = points[high] >= points[low]
        tolerance = 1e-9 * max(points[low], points[high])
        assert all((b - a if rises else a - b) >= -tolerance for a, b in pairwise(values))


SIZES = st.dictionaries(st.floats(1, 1e12), SECONDS, min_size=2, max_size=6)


@given(SIZES, st.floats(0, 1e14))
def test_link_curves_are_positive_and_say_when_they_guess(points: dict[float, float], size: float) -> None:
    """Everywhere, and exact at the points."""
    curves = links(*(link(at, seconds) for at, seconds in points.items()))
    for at, seconds in points.items():
        assert curves.seconds("ib", "all-reduce", 4, at) == (seconds, False)
    answer = curves.seconds("ib", "all-reduce", 4, size)
    assert answer is not None
    assert answer[0] > 0
    assert answer[1] == (not min(points) <= size <= max(points))


@given(st.floats(1, 1e12), st.floats(1, 1e12), SECONDS, SECONDS, st.floats(0, 1))
def test_link_curves_stay_between_neighbouring_points(
    low: float, high: float, first: float, second: float, at: float
) -> None:
    """A size between two has seconds between theirs."""
    low, high = sorted((low, high))
    answer = links(link(low, first), link(high, second)).seconds(
        "ib", "all-reduce", 4, low * (high / low) ** at
    )
    assert answer is not None
    assert min(first, second) * (1 - 1e-6) <= answer[0] <= max(first, second) * (1 + 1e-6) or low == high


def test_link_curves_are_straight_on_logarithmic_axes() -> None:
    """And beyond the points between constant and proportional to the size."""
    curves = links(link(1e3, 1e-3), link(1e5, 1e-2))
    assert near(curves, 1e4, 10**-2.5, guess=False)
    assert near(curves, 1e7, 0.1, guess=True)
    assert near(curves, 1e1, 1e-4, guess=True)
    steep = links(link(1e3, 1e-3), link(1e4, 1.0))
    assert near(steep, 1e5, 10.0, guess=True)
    falling = links(link(1e3, 1.0), link(1e4, 0.1))
    assert near(falling, 1e5, 0.1, guess=True)
    assert near(falling, 0.0, 1.0, guess=True)
    alone = links(link(1e3, 1.0))
    assert near(alone, 2e3, 2.0, guess=True)


def test_links_without_a_curve() -> None:
    """Another link, operation or number of members."""
    curves = links(link(1e3, 1e-3), link(1e5, 1e-2))
    assert curves.seconds("eth", "all-reduce", 4, 1e4) is None
    assert curves.seconds("ib", "all-gather", 4, 1e4) is None
    assert curves.seconds("ib", "all-reduce", 8, 1e4) is None


def test_an_all_reduce_is_its_two_halves() -> None:
    """When it has no curve of its own and both of them have one."""
    halves = [link(1e3, 1.0, "reduce-scatter"), link(1e5, 2.0, "reduce-scatter")]
    assert links(*halves).seconds("ib", "all-reduce", 4, 1e3) is None
    halves += [link(1e3, 3.0, "all-gather"), link(1e4, 4.0, "all-gather")]
    assert links(*halves).seconds("ib", "all-reduce", 4, 1e3) == (4.0, False)
    answer = links(*halves).seconds("ib", "all-reduce", 4, 1e5)
    assert answer is not None
    assert answer[1]
    whole = links(*halves, link(1e3, 9.0), link(1e5, 9.0))
    assert whole.seconds("ib", "all-reduce", 4, 1e3) == (9.0, False)


@given(SECONDS, SECONDS, st.lists(st.integers(2, 64), min_size=3, max_size=3, unique=True))
def test_a_number_of_members_between_two_measured_ones(
    first: float, second: float, members: list[int]
) -> None:
    """Lies between them, by the share of the bytes that a ring moves; nothing is a guess."""
    low, own, high = sorted(members)
    curves = links(link(1e6, first, members=low), link(1e6, second, members=high))
    answer = curves.seconds("ib", "all-reduce", own, 1e6)
    assert answer is not None
    part = (1 / low - 1 / own) / (1 / low - 1 / high)
    assert answer[0] == pytest.approx(first + part * (second - first))
    assert not answer[1]
    assert list(curves.guesses()) == []


def test_an_all_reduce_among_members_between_two_measured_ones() -> None:
    """May be its two halves there too; its size may be a guess."""
    halves = [
        link(1e6, float(members), operation, members)
        for operation in ("reduce-scatter", "all-gather")
        for members in (2, 4)
    ]
    answer = links(*halves).seconds("ib", "all-reduce", 3, 1e6)
    assert answer is not None
    assert answer[0] == pytest.approx(4 + 4 * (2 / 3 - 1 / 2) / (3 / 4 - 1 / 2))
    assert not answer[1]
    beyond = links(*halves).seconds("ib", "all-reduce", 3, 1e7)
    assert beyond is not None
    assert beyond[1]


def test_more_members_take_at_least_what_fewer_took() -> None:
    """For the bytes that more of them move; which is said."""
    curves = links(link(1e6, 3.0, members=2), link(1e6, 6.0, members=4))
    assert curves.seconds("ib", "all-reduce", 8, 1e6) is None
    assert curves.least("ib", "all-reduce", 8, 1e6) == pytest.approx(6.0 * (7 / 8) / (3 / 4))
    assert list(curves.guesses()) == ["all-reduce among 8 over ib: measured among 4 at most"]
    curves.forget_guesses()
    assert list(curves.guesses()) == []
    assert curves.least("ib", "all-gather", 8, 1e6) == 0.0
    assert curves.least("ib", "all-reduce", 2, 1e6) == 0.0


def test_guesses_are_listed_once_a_curve() -> None:
    """With the largest size asked and the range that every curve behind the answer knows; then forgotten."""
    mib = 2.0**20
    halves = [link(size * mib, size, "reduce-scatter") for size in (1, 8)]
    halves += [link(size * mib, size, "all-gather") for size in (2, 4)]
    curves = links(*halves)
    assert curves.seconds("ib", "all-reduce", 4, 3 * mib) is not None
    assert list(curves.guesses()) == []
    for size in (6, 5, 1):
        curves.seconds("ib", "all-reduce", 4, size * mib)
    assert list(curves.guesses()) == ["all-reduce among 4 over ib: 6 MiB lie beyond the measured 2 to 4 MiB"]
    curves.forget_guesses()
    assert list(curves.guesses()) == []
    curves.seconds("ib", "all-reduce", 4, 5 * mib)
    assert len(list(curves.guesses())) == 1


def test_links_inside_nodes_go_by_their_device() -> None:
    """As people write its name."""
    points = [
        LinkPoint(link="node:A100-SXM", operation="send", members=2, size_bytes=size, seconds=1.0)
        for size in (1.0, 2.0)
    ]
    assert LinkCurves(Calibration(link_points=tuple(points))).seconds("node:a100_sxm", "send", 2, 1.0)


def update(elements: int, seconds: float, gpu: str = "A100") -> KernelPoint:
    """A measured AdamW update."""
    return KernelPoint(
        gpu=gpu,
        kernel="optimizer",
        precision="fp32",
        shape=str(elements),
        flops=0.0,
        moved_bytes=28.0 * elements,
        seconds=seconds,
    )


def test_updates_between_and_beyond_the_measured_shares() -> None:
    """Exact at the points, at the rate of the largest beyond them, shorter for less; by device."""
    curves = OptimizerCurves(
        Calibration(
            kernel_points=(update(100, 2.0), update(200, 3.0), update(400, 5.0), update(100, 9.0, "T4"))
        )
    )
    assert [curves.seconds("a100", size) for size in (100, 200, 400)] == [2.0, 3.0, 5.0]
    assert curves.seconds("A100", 4000.0) == pytest.approx(50.0)
    assert 2.0 < (curves.seconds("A100", 150.0) or 0.0) < 3.0
    assert 0.0 < (curves.seconds("A100", 50.0) or 0.0) < 2.0
    assert curves.seconds("V100", 100) is None


def test_asking_again_is_quick() -> None:
    """Far below a millisecond."""
    curves = layers(layer(1, 0.1), layer(8, 0.5))
    found(curves, 3)
    start = perf_counter()
    for _ in range(1000):
        found(curves, 3)
    assert perf_counter() - start < 0.1


def test_scipy_waits_for_the_first_curve() -> None:
    """Points need none."""
    code = (
        "import sys; from tests.cost.test_measured_curves import found, layer, layers\n"
        "curves = layers(layer(1, 0.1), layer(8, 0.5)); found(curves, 1); found(curves, 9)\n"
        "before = 'scipy.interpolate' in sys.modules; found(curves, 4)\n"
        "print(before, 'scipy.interpolate' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False True\n"
