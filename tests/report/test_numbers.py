"""Numbers in reports."""

from __future__ import annotations

import math

import pytest

from planner.report.numbers import (
    at_most,
    chance,
    count,
    count_unit,
    duration,
    limit_money,
    limit_time,
    names,
    percent,
    rate,
    rounded,
    runs,
    significant,
    time_unit,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.0301, "0.0301"),
        (2.0, "2.00"),
        (27.16, "27.2"),
        (411.6, "412"),
        (99.96, "100"),
        (9.996, "10.0"),
        (16384.0, "16400"),
        (-3.25, "-3.25"),
        (float("inf"), "-"),
    ],
)
def test_three_digits_without_exponent(value: float, shown: str) -> None:
    """Three digits are kept, never in scientific notation."""
    assert significant(value) == shown


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [
        (0.15, "15 %"),
        (0.0081, "0.8 %"),
        (0.0996, "10 %"),
        (0.00001, "< 0.1 %"),
        (-0.00001, "> -0.1 %"),
        (0.0, "0.0 %"),
        (-0.033, "-3.3 %"),
        (1.0, "100 %"),
    ],
)
def test_percent_keeps_one_decimal_below_ten(fraction: float, shown: str) -> None:
    """Small shares keep a decimal, large ones none."""
    assert percent(fraction) == shown


def test_a_gap_is_never_understated() -> None:
    """Rounded upwards."""
    assert [at_most(gap) for gap in (0.0, 0.0071, 0.008, 0.0091, 0.0991, 0.311)] == [
        *("0.1 %", "0.8 %", "0.8 %", "1.0 %", "10 %", "32 %")
    ]


@pytest.mark.parametrize(
    ("value", "below", "above"),
    [
        (53.2498, 53.2, 53.3),
        (0.00532498, 0.00532, 0.00533),
        (294_700, 294_000, 295_000),
        (9.96, 9.96, 9.96),
        (0, 0, 0),
    ],
)
def test_limits_are_rounded_in_one_direction(value: float, below: float, above: float) -> None:
    """What is shown is kept; a number of three digits stays as it is."""
    assert (rounded(value, up=False), rounded(value, up=True)) == (below, above)


def test_times_and_prices_as_limits() -> None:
    """Whole amounts from a hundred on; three digits in the unit that is shown."""
    assert (limit_money(999.4, up=False), limit_money(999.4, up=True)) == ("999", "1,000")
    assert (limit_money(53_249.2, up=False), limit_money(53_249.2, up=True)) == ("53,249", "53,250")
    assert (limit_time(33_966.0, up=False), limit_time(33_966.0, up=True)) == ("9.43 h", "9.44 h")
    assert (limit_time(33_948.0, up=False), limit_time(33_948.0, up=True)) == ("9.43 h", "9.43 h")
    assert limit_time(144.2 * 86400, up=True) == "145 days"
    assert (limit_time(math.inf, up=True), limit_money(math.inf, up=True)) == ("for ever", "-")


def test_a_duration_carries_its_error() -> None:
    """The error stands beside the number; no digits beyond three."""
    assert duration(0.4123, 0.15) == "412 ms ±15 %"
    assert duration(55.94, 0.09) == "55.9 s ±9.0 %"
    assert duration(float("inf")) == "-"


def test_a_column_of_times_has_one_unit() -> None:
    """The unit fits the middle of the column; unknown times do not count."""
    unit = time_unit([0.12, None, 0.3, 12.0])
    assert unit.name == "ms"
    assert [unit.show(0.12), unit.show(None), unit.show(12.0)] == ["120", "-", "12000"]
    assert time_unit([]).name == "s"
    assert time_unit([40_000.0]).name == "h"
    assert time_unit([2e-6]).name == "µs"


def test_a_column_of_rates_has_one_suffix() -> None:
    """Thousands, millions, or none, for all."""
    unit = count_unit([102_000.0, None, 96_000.0])
    assert unit.heading("tokens/s") == "tokens/s\n(k)"
    assert [unit.show(102_000.0), unit.show(None), unit.show(96_000.0)] == ["102", "-", "96.0"]
    assert count_unit([]).heading("tokens/s") == "tokens/s"
    assert [rate(950.0), rate(19_275.0), rate(2_110_000.0)] == ["950", "19.3 k", "2.11 M"]


def test_parts_of_a_time_share_its_decimals() -> None:
    """Parts read with the decimals of the whole add up as they are read."""
    unit = time_unit([27.2])
    assert [unit.part(seconds, 27.2) for seconds in (19.0, 5.17, 0.03)] == ["19.0", "5.2", "0.0"]


def test_lists_are_shortened() -> None:
    """Runs of numbers and long lists of names take little room."""
    assert runs([0, 1, 2, 3, 6, 8, 9]) == "0-3, 6, 8-9"
    assert names(["a", "b", "c"]) == "a, b, c"
    assert names([f"n{index}" for index in range(40)]) == "n0 .. n39 (40)"
    assert [count(1, "node"), count(2, "node"), count(2, "family", "families")] == [
        "1 node",
        "2 nodes",
        "2 families",
    ]


@pytest.mark.parametrize(("probability", "shown"), [(0.0, "< 0.1 %"), (1e-12, "< 0.1 %"), (0.224, "22 %")])
def test_a_chance_is_never_nothing(probability: float, shown: str) -> None:
    """Memory far from full has one that is too small for a number of this size."""
    assert chance(probability) == shown
