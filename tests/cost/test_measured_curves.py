"""Curves through measured points."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import exp, inf, log
from pathlib import Path
from time import perf_counter
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration.values import Calibration, KernelPoint, LayerPoint, LinkPoint
from planner.cost import measured_curves
from planner.cost.arrays import as_array, as_number
from planner.cost.communication import Ring
from planner.cost.measured_curves import (
    LayerCurves,
    LayerFormula,
    LayerTimes,
    LinkCurves,
    OptimizerCurves,
    _logarithmic,
    straight,
    with_host,
)

ROOT = Path(__file__).parents[2]
SECONDS = st.floats(1e-6, 1e3)

about: Any = pytest.approx
"""Inside tuples too."""


def layer(micro_batch: int, seconds: float, **more: Any) -> LayerPoint:
    """A measured layer whose backward takes twice its forward."""
    fields = {"gpu": "A100-SXM-80GB", "model": "opt-350m", "tp": 1, **more}
    return LayerPoint(
        micro_batch=micro_batch, forward_seconds=seconds, backward_seconds=2 * seconds, **fields
    )


HOST = 0.01
"""Seconds that the formula gives the host; the device takes 0.1 for a sequence, and twice that backward."""


def formula(tp: int, micro_batch: int) -> LayerFormula:
    """Proportional to the micro-batch; with collectives of a tenth at a degree above 1."""
    collective = 0.0 if tp == 1 else 0.01 * micro_batch
    return LayerFormula(
        forward_seconds=0.1 * micro_batch / tp + collective,
        backward_seconds=0.2 * micro_batch / tp + collective,
        collective_seconds=collective,
        host_seconds=HOST,
        activation_bytes=100.0 * micro_batch / tp,
        parameters=60.0 / tp,
    )


def layers(*points: LayerPoint, model: str = "opt-350m") -> LayerCurves:
    """Their curves."""
    return LayerCurves(Calibration(layers=points), model)


def asked(
    curves: LayerCurves, micro_batch: int, tp: int = 1, gpu: str = "A100-SXM-80GB"
) -> LayerTimes | None:
    """The layer, next to the formula."""
    return curves.at(("pool", gpu), tp, micro_batch, formula)


def found(curves: LayerCurves, micro_batch: int, tp: int = 1) -> LayerTimes:
    """The layer at a micro-batch."""
    times = asked(curves, micro_batch, tp)
    assert times is not None
    return times


def link(
    size: float, seconds: float, operation: Any = "all-reduce", members: int = 4, concurrent: int = 1
) -> LinkPoint:
    """A measured collective."""
    return LinkPoint(
        link="ib",
        operation=operation,
        members=members,
        size_bytes=size,
        seconds=seconds,
        concurrent=concurrent,
    )


def links(*points: LinkPoint) -> LinkCurves:
    """Their curves."""
    return LinkCurves(Calibration(link_points=points))


def near(curves: LinkCurves, size: float, seconds: float, *, guess: bool) -> bool:
    """Whether an all-reduce of a size takes about as long, and whether the answer says that it is a guess."""
    answer = curves.seconds("ib", "all-reduce", 4, size)
    return answer is not None and answer[0] == pytest.approx(seconds) and answer[1] == guess


def test_other_devices_and_models_have_no_curve() -> None:
    """Nothing is guessed from a neighbour."""
    points = (layer(1, 0.1), layer(2, 0.15))
    assert asked(layers(*points), 1, gpu="V100-SXM-16GB") is None
    assert asked(layers(*points, model="opt-1.3b"), 1) is None


def test_names_compare_without_case_dashes_and_underscores() -> None:
    """As people write them."""
    curves = layers(layer(1, 0.1), layer(2, 0.15), model="OPT_350M")
    assert asked(curves, 2, gpu="a100_sxm_80gb") == asked(curves, 2)
    assert found(curves, 2).forward_seconds == 0.15


def test_one_point_of_a_busy_device_scales_the_device() -> None:
    """A guess that says so, except at the point itself."""
    curves = layers(layer(4, 0.8, activation_bytes=600.0, parameters=66.0))
    here = found(curves, 4)
    assert (here.forward_seconds, here.backward_seconds, here.extrapolated) == (0.8, 1.6, False)
    assert (here.activation_ratio, here.parameter_ratio) == pytest.approx((1.5, 1.1))
    times = found(curves, 12)
    assert times.extrapolated
    assert times.spread > here.spread
    assert times.forward_seconds == pytest.approx(2.4, rel=1e-3)
    assert times.backward_seconds == pytest.approx(4.8, rel=1e-3)
    assert (times.activation_ratio, times.parameter_ratio) == pytest.approx((1.5, 1.1))


def thin(tp: int, micro_batch: int) -> LayerFormula:
    """A layer so small that up to a hundred sequences wait for the host."""
    return replace(
        formula(tp, micro_batch), forward_seconds=1e-4 * micro_batch, backward_seconds=2e-4 * micro_batch
    )


def thinly(micro_batch: int, *points: LayerPoint) -> float:
    """Forward of that layer."""
    times = layers(*points).at(("pool", points[0].gpu), 1, micro_batch, thin)
    assert times is not None
    return times.forward_seconds


def test_one_point_that_waits_for_the_host_scales_the_host() -> None:
    """Not the device: few sequences take what the point says, many about what the formula says."""
    point = replace(layer(2, 0.03), backward_seconds=0.03)
    assert thinly(1, point) == pytest.approx(0.03, rel=1e-3)
    assert thinly(16, point) == pytest.approx(0.03, rel=1e-3)
    assert thinly(4096, point) == pytest.approx(0.41, rel=0.1)


def test_a_small_and_a_large_point_tell_host_and_device() -> None:
    """A host and a device half as fast as the formula's: what lies between and beyond is met."""
    truth = {size: with_host(2e-4 * size, 2 * HOST) for size in (1, 32, 128, 1024, 4096)}
    back = {size: with_host(4e-4 * size, 2 * HOST) for size in truth}
    points = [replace(layer(size, truth[size]), backward_seconds=back[size]) for size in (1, 1024)]
    for size in (32, 128, 4096):
        assert thinly(size, *points) == pytest.approx(truth[size], rel=0.05)


def test_a_degree_that_was_not_measured_has_the_scales_of_the_nearest() -> None:
    """Twice the formula at 1, three times at 4: twice at 2, three times at 8."""
    curves = layers(layer(8, 1.6), layer(8, 3 * formula(4, 8).forward_seconds, tp=4))
    for tp, scale in ((2, 2.0), (8, 3.0)):
        times = found(curves, 8, tp)
        assert times.extrapolated
        assert times.forward_seconds == pytest.approx(scale * formula(tp, 8).forward_seconds, rel=0.05)
        assert times.spread > found(curves, 16, 4).spread > found(curves, 8, 4).spread


def test_a_shard_measured_alone_is_next_to_a_formula_without_collectives() -> None:
    """Times that lack them, at another micro-batch too."""
    alone = formula(2, 8).forward_seconds - formula(2, 8).collective_seconds
    times = found(layers(layer(8, alone, tp=2, without_collectives=True)), 16, 2)
    assert times.without_collectives
    assert times.forward_seconds == pytest.approx(2 * alone, rel=1e-3)


def test_activations_that_only_some_points_have() -> None:
    """The ratio of the others; beyond them the answer is marked."""
    points = (layer(1, 0.1), layer(2, 0.2, activation_bytes=220.0), layer(4, 0.4, activation_bytes=520.0))
    curves = layers(*points)
    assert 1.1 < found(curves, 3).activation_ratio < 1.3
    assert found(curves, 1).activation_ratio == pytest.approx(1.1)
    assert [found(curves, size).extrapolated for size in (1, 3)] == [True, False]
    assert found(layers(layer(1, 0.1)), 1).activation_ratio == 1.0


def test_the_allocator_is_that_of_the_largest_measured_micro_batch() -> None:
    """Small ones are all blocks of two megabytes."""
    known = (
        layer(1, 0.1, peak_bytes=1e8, reserved_bytes=2e8),
        layer(8, 0.8, peak_bytes=1e10, reserved_bytes=1.1e10),
        layer(16, 1.6),
    )
    assert found(layers(*known), 4).allocator_slack == pytest.approx(0.1)
    assert found(layers(layer(1, 0.1)), 1).allocator_slack is None


CURVE = st.dictionaries(st.integers(1, 64), SECONDS, min_size=1, max_size=6)


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
@settings(deadline=None)
def test_curves_are_positive_and_say_when_they_guess(points: dict[int, float], size: int) -> None:
    """Everywhere; a guess is what lies outside the points."""
    times = found(layers(*(layer(at, seconds) for at, seconds in points.items())), size)
    assert times.forward_seconds > 0
    assert times.extrapolated == (not min(points) <= size <= max(points))


@given(CURVE)
@settings(deadline=None)
def test_more_sequences_never_take_less(points: dict[int, float]) -> None:
    """Where the points rise, between, below and beyond them."""
    risen = dict(zip(sorted(points), sorted(points.values()), strict=True))
    curves = layers(*(layer(size, seconds) for size, seconds in risen.items()))
    values = [found(curves, size).forward_seconds for size in range(1, 100)]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(values))


@given(CURVE)
@settings(deadline=None)
def test_curves_stay_between_neighbouring_points(points: dict[int, float]) -> None:
    """Monotone between two points whatever the others do: no overshoot."""
    curves = layers(*(layer(size, seconds) for size, seconds in points.items()))
    for low, high in pairwise(sorted(points)):
        values = [found(curves, size).forward_seconds for size in range(low, high + 1)]
        rises = points[high] >= points[low]
        tolerance = 1e-9 * max(points[low], points[high])
        assert all((b - a if rises else a - b) >= -tolerance for a, b in pairwise(values))


def test_a_formula_that_is_higher_between_two_points_leads_no_farther_than_the_next() -> None:
    """As one of a host's time, flat but at a size between: the way along it had no end."""
    heights = {4: 1.0, 11: 1.4, 16: 1.0 + 1e-10}

    def shape(size: int) -> float:
        sizes = np.atleast_1d(size)
        return as_number(np.array([heights[one] for one in sizes.tolist()]).reshape(np.shape(size)))

    points = {4: 0.02, 16: 0.1}
    assert measured_curves._along(points, lambda size: heights[size], 11) == (0.1, False)
    many, _ = measured_curves._along(points, shape, cast("int", np.array([4, 11, 16])))
    assert many == pytest.approx([0.02, 0.1, 0.1])


SIZES = st.dictionaries(st.integers(1, 10**12).map(float), SECONDS, min_size=2, max_size=6)


@given(SIZES, st.integers(0, 10**14).map(float))
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


def test_a_byte_beyond_the_largest_message_takes_what_the_formula_says() -> None:
    """At least, as small messages wait for latency; but never more than all bytes before it took."""

    def guessed(curves: LinkCurves, size: float, per_byte: float) -> float:
        answer = curves.seconds("ib", "all-reduce", 4, size, per_byte)
        assert answer is not None
        assert answer[1]
        return answer[0]

    points = (1e3, 2e-5), (4e3, 2.02e-5)
    late = links(*(link(*point) for point in points))
    assert guessed(late, 64e6, 1e-11) == about(2.02e-5 + 1e-11 * (64e6 - 4e3))
    assert late.seconds("ib", "all-reduce", 4, 4e3, 1e-11) == (2.02e-5, False)
    quick = links(link(1e6, 1e-4), link(1e8, 1e-3))
    assert guessed(quick, 1e9, 1e-10) == about(1e-2)
    halves = links(*(link(*point, half) for half in ("reduce-scatter", "all-gather") for point in points))
    assert guessed(halves, 64e6, 1e-11) == about(2 * 2.02e-5 + 1e-11 * (64e6 - 4e3))


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
    assert list(curves.guesses()) == ["all-reduce of 8 over ib: measured of 4 at most"]
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
    assert list(curves.guesses()) == ["all-reduce of 4 over ib: 6 MiB lie beyond the measured 2 to 4 MiB"]
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
    # The largest update is the fastest for each element: 80 elements take 1 s of its 5.
    assert curves.least_seconds("A100", 80.0) == pytest.approx(1.0)
    assert curves.least_seconds("A100", 400.0) == 5.0
    assert curves.least_seconds("V100", 100.0) is None


def test_asking_again_is_quick() -> None:
    """Far below a millisecond."""
    curves = layers(layer(1, 0.1), layer(8, 0.5))
    found(curves, 3)
    start = perf_counter()
    for _ in range(1000):
        found(curves, 3)
    assert perf_counter() - start < 0.1


@pytest.mark.slow
def test_scipy_waits_for_the_first_guess() -> None:
    """Points need none."""
    code = (
        "import sys; from tests.cost.test_measured_curves import found, layer, layers\n"
        "curves = layers(layer(1, 0.1), layer(8, 0.5)); found(curves, 1); found(curves, 8)\n"
        "before = 'scipy.optimize' in sys.modules; found(curves, 4)\n"
        "print(before, 'scipy.optimize' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False True\n"


def test_curves_by_hand() -> None:
    """(value, guessed): straight beyond the points, never shorter above, nor negative or longer below."""
    for points, at, expected in (
        ({1: 1.0, 3: 5.0}, 1, (1.0, False)),
        ({1: 1.0, 3: 5.0}, 2, (3.0, False)),
        ({1: 1.0, 3: 5.0}, 4, (7.0, True)),
        ({2: 5.0, 4: 7.0}, 1, (4.0, True)),
        ({2: 1.0, 4: 7.0}, 1, (0.5, True)),
        ({2: 3.0, 4: 2.0}, 1, (3.0, True)),
        ({2: 3.0, 4: 2.0}, 8, (2.0, True)),
        ({2: 4.0}, 3, (6.0, True)),
        ({2: 4.0}, 1, (2.0, True)),
    ):
        assert straight(points)(at) == (about(expected[0]), expected[1])
    for sizes, size, known in (
        ({10.0: 1.0, 1000.0: 10.0}, 100.0, (10**0.5, False)),
        ({10.0: 1.0, 1000.0: 10.0}, 10.0, (1.0, False)),
        ({10.0: 1.0, 1000.0: 10.0}, 1e5, (100.0, True)),
        ({10.0: 1.0, 1000.0: 10.0}, 1.0, (10**-0.5, True)),
        # Less than a byte is a byte.
        ({10.0: 1.0, 1000.0: 10.0}, 0.0, (10**-0.5, True)),
        ({10.0: 2.0}, 20.0, (4.0, True)),
        ({10.0: 2.0}, 5.0, (1.0, True)),
        # In proportion to the size at most, and never less.
        ({10.0: 1.0, 100.0: 1000.0}, 1000.0, (10000.0, True)),
        ({10.0: 1.0, 100.0: 1000.0}, 1.0, (0.1, True)),
        ({10.0: 2.0, 100.0: 1.0}, 1000.0, (1.0, True)),
        ({10.0: 2.0, 100.0: 1.0}, 1.0, (2.0, True)),
    ):
        assert _logarithmic(sizes)(size) == (about(known[0]), known[1])


def alone(times: tuple[float, float], host: float = 1e-9, device: float = 1.0) -> LayerTimes:
    """A layer at twice the degree that took these times at one, of a formula that halves with the degree."""

    def halves(tp: int, micro_batch: int) -> LayerFormula:
        return LayerFormula(
            forward_seconds=device / tp,
            backward_seconds=2 * device / tp,
            collective_seconds=0.0,
            host_seconds=host,
            activation_bytes=1.0,
            parameters=1.0,
        )

    point = replace(layer(1, times[0]), backward_seconds=times[1])
    found = layers(point).at(("pool", point.gpu), 2, 1, halves)
    assert found is not None
    return found


def test_the_most_likely_scales_of_one_point() -> None:
    """Means of the point (5 % off) and of what is known without it, weighted by their squared spreads.

    The logarithm of the scale of both directions may be 25 % off, that of their ratio and of the host's work 50 %.
    """
    known, both, ratio, host = 1 / 0.05**2, 1 / 0.25**2, 1 / 0.5**2, 1 / 0.5**2
    twice = alone((2.0, 4.0))
    scale = 2 ** (2 * known / (2 * known + both))
    assert (twice.forward_seconds, twice.backward_seconds) == pytest.approx((scale / 2, scale), rel=1e-5)
    unlike = alone((3.0, 2.0))
    mean = log(3) / 2 * 2 * known / (2 * known + both)
    apart = log(3) * known / 2 / (known / 2 + ratio)
    assert unlike.forward_seconds == pytest.approx(exp(mean + apart / 2) / 2, rel=1e-5)
    assert unlike.backward_seconds == pytest.approx(exp(mean - apart / 2), rel=1e-5)
    waiting = alone((3.0, 3.0), host=1.0, device=1e-6)
    assert waiting.forward_seconds == pytest.approx(3 ** (2 * known / (2 * known + host)), rel=1e-4)
    # However far a point is off, the scale is no more than e^12.
    assert alone((exp(20), 2 * exp(20))).forward_seconds == pytest.approx(exp(12) / 2, rel=1e-3)


def test_how_far_measured_layers_are_off() -> None:
    """Between points, beyond them and at another degree; what the points themselves say where that is more."""
    points = (layer(1, 0.1), layer(4, 0.4))
    curves = layers(*points)
    assert [found(curves, size).spread for size in (1, 2, 8)] == [0.03, 0.03, 0.07]
    assert found(curves, 2, 2).spread == 0.10
    assert found(layers(layer(1, 0.1, spread=0.2), points[1]), 2).spread == 0.2
    assert LayerCurves(Calibration(layers=points), "opt-350m", 1.5).at(
        ("pool", points[0].gpu), 1, 4, formula
    ) == replace(found(curves, 4), forward_seconds=about(0.6), backward_seconds=about(1.2))


POINTS = st.lists(
    st.tuples(
        st.sampled_from(("all-reduce", "all-gather", "reduce-scatter", "broadcast", "send")),
        st.sampled_from((2, 3, 4, 8)),
        st.sampled_from((1e3, 1e5, 1e6, 1e8)),
        st.floats(1e-5, 1e-1),
        st.sampled_from((1, 1, 2, 4)),
    ),
    min_size=1,
    max_size=12,
)
GROUPS = st.sampled_from((1, 1, 2, 3, 4, 8))


def measured(points: list[tuple[Any, int, float, float, int]]) -> LinkCurves:
    """Their curves."""
    return links(
        *(link(bytes_, seconds, what, members, groups) for what, members, bytes_, seconds, groups in points)
    )


@given(POINTS, st.integers(2, 10), st.integers(0, 10), st.floats(1e2, 1e9), GROUPS)
@settings(max_examples=400)
def test_no_ring_is_faster_than_its_measurements(
    points: list[tuple[Any, int, float, float, int]], fewest: int, more: int, size: float, sharing: int
) -> None:
    """Of so many members or more, up to the largest message, beside others or not; also where a formula is free."""
    curves = measured(points)
    together, alone = curves.fastest("ib", sharing * 1e9, fewest)
    assert alone <= together
    most = min(alone, together / sharing)
    if not curves.covers("ib", fewest):
        return
    members = fewest + more
    ring = Ring(
        size=members,
        bytes_per_second=inf,
        latency_seconds=0.0,
        crosses="ib",
        curves=curves,
        link="ib",
        sharing=sharing,
    )
    one_pass = (members - 1) / members * size / most * (1 - 1e-9)
    assert ring.gather_seconds(size) >= one_pass
    assert ring.scatter_seconds(size) >= one_pass
    assert ring.reduce_seconds(size) >= 2 * one_pass
    assert ring.broadcast_seconds(size) >= one_pass


@given(POINTS, st.integers(2, 8), st.floats(1e2, 1e9), GROUPS, GROUPS)
@settings(max_examples=200)
def test_more_groups_take_no_less_time(
    points: list[tuple[Any, int, float, float, int]], members: int, size: float, one: int, other: int
) -> None:
    """Whatever was measured of them, where more bytes take longer."""
    latency = {(what, group, groups): seconds for what, group, _, seconds, groups in points}
    curves = measured(
        [
            (what, group, sent, sent / 1e9 + latency[what, group, groups], groups)
            for what, group, sent, _, groups in points
        ]
    )
    fewer, more = (
        curves.seconds("ib", "all-gather", members, size, concurrent=number)
        for number in sorted((one, other))
    )
    assert (fewer is None) == (more is None)
    if fewer and more:
        assert more[0] >= fewer[0] * (1 - 1e-9)


def test_groups_that_share_the_cards_of_their_nodes() -> None:
    """As measured; between two numbers on the line; more than any fill the cards; fewer take no longer than any."""
    one = link(1e6, 1e-3), link(1e8, 1e-1)
    eight = link(1e6, 2e-3, concurrent=8), link(1e8, 2e-1, concurrent=8)
    seconds = partial(links(*one, *eight).seconds, "ib", "all-reduce", 4)
    assert seconds(1e6) == (1e-3, False)
    assert seconds(1e6, concurrent=8) == (2e-3, False)
    assert seconds(1e6, concurrent=4.5) == (about(1.5e-3), False)
    assert seconds(1e7, concurrent=80) == (about(2e-1), False)
    assert links(*one).seconds("ib", "all-reduce", 4, 1e6, concurrent=8) == (about(8e-3), False)
    assert links(*eight).seconds("ib", "all-reduce", 4, 1e6) == (2e-3, False)
    # What differs by chance makes no group faster beside others.
    chance = link(1e6, 0.9e-3, concurrent=2), link(1e8, 0.9e-1, concurrent=2)
    assert links(*one, *chance).seconds("ib", "all-reduce", 4, 1e6, concurrent=2) == (1e-3, False)
    # Two members were measured in eight groups, but alone four at least.
    lone = link(1e6, 3e-3, members=2, concurrent=8), link(1e8, 3e-1, members=2, concurrent=8)
    assert links(*one, *eight, *lone).seconds("ib", "all-reduce", 2, 1e6) == (3e-3, False)


def test_the_fastest_rate_is_reached() -> None:
    """At a point, between points where seconds rise like bytes, or with the largest message."""
    gathers = link(1e6, 1e-3, "all-gather"), link(1e8, 1.0, "all-gather")
    assert links(*gathers).fastest("ib", 1e9) == (about(0.75e9), about(0.75e9))
    beside = link(1e8, 0.2, "all-gather", concurrent=8), link(1e9, 2.0, "all-gather", concurrent=8)
    assert links(*gathers, *beside).fastest("ib", 1e9) == (about(3e9), about(0.75e9))
    steep = links(link(1e6, 1e-3), link(1e7, 2e-3), link(1e8, 1.0))
    sizes = np.geomspace(1e6, 1e8, 999)
    times = steep.seconds("ib", "all-reduce", 4, as_number(sizes))
    assert times is not None
    reached = float((1.5 * sizes / as_array(times[0])).max())
    assert steep.fastest("ib", 1e8) == pytest.approx((reached, reached), rel=1e-3)
    flat = links(link(1e6, 1e-3), link(1e8, 1e-3))
    assert flat.fastest("ib", 1e9)[0] == about(1.5 * 1e9 / 1e-3)
    assert flat.fastest("eth", 1e9) == (0, 0)


def test_a_link_is_covered_by_passes_among_fewer_members() -> None:
    """More members than measured are priced no lower; where all-reduces alone were measured, gathers go by formula."""
    assert links(link(1e6, 1e-3, "all-gather")).covers("ib", 4)
    assert links(link(1e6, 1e-3, "all-gather")).covers("ib", 64)
    assert not links(link(1e6, 1e-3, "all-gather")).covers("ib", 3)
    assert not links(link(1e6, 1e-3)).covers("ib", 4)
    assert not links(link(1e6, 1e-3, "all-gather")).covers("eth", 4)


@given(
    st.dictionaries(st.integers(1, 40), SECONDS, min_size=1, max_size=4),
    st.sampled_from((1, 2)),
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
)
def test_layers_of_many_micro_batches_at_once(values: dict[int, float], tp: int, sizes: list[int]) -> None:
    """As each alone."""
    points = [
        layer(size, seconds, activation_bytes=90.0 * size, parameters=50.0)
        for size, seconds in values.items()
    ]

    calls = []

    def sized(tp: int, size: Any) -> LayerFormula:
        calls.append(size)
        one = formula(tp, 1)
        names = ("forward_seconds", "backward_seconds", "collective_seconds", "activation_bytes")
        return replace(one, **{name: getattr(one, name) * size for name in names})

    where = ("pool", "A100-SXM-80GB")
    many = layers(*points).at(where, tp, np.array(sizes), sized)  # type: ignore[arg-type]
    # A few for each point, however many sizes there are.
    assert len(calls) < 40
    each = [layers(*points).at(where, tp, size, sized) for size in sizes]
    assert many is not None
    for name in ("forward_seconds", "backward_seconds", "activation_ratio", "parameter_ratio"):
        alone = [getattr(one, name) for one in each]
        assert np.broadcast_to(getattr(many, name), len(sizes)).tolist() == pytest.approx(alone, rel=1e-9)
    assert many.extrapolated == any(one.extrapolated for one in each if one)


def test_an_unknown_curve_is_looked_for_once() -> None:
    """However many sizes are asked for at once."""
    curves = links(link(1e6, 1e-3), link(1e8, 1e-1))
    with patch.object(curves, "_concurrent", wraps=curves._concurrent) as looked:
        assert curves.seconds("ib", "broadcast", 4, as_number(np.arange(1.0, 1001.0))) is None
    assert looked.call_count == 1


def test_collectives_of_many_sizes_at_once() -> None:
    """As each alone, by measurement or by formula; guesses are noted."""
    curves = links(link(1e6, 1e-3), link(1e8, 1e-1))
    sizes = np.array([1e5, 1e6, 3e7, 1e9])
    for members in (2, 4, 6):
        ring = Ring(
            size=members, bytes_per_second=1e10, latency_seconds=1e-5, crosses="ib", curves=curves, link="ib"
        )
        for many in (ring.reduce_seconds, ring.gather_seconds, ring.broadcast_seconds):
            assert as_array(many(as_number(sizes))).tolist() == pytest.approx(list(map(many, sizes.tolist())))
    assert len(list(curves.guesses())) == 2
