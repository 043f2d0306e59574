"""Numbers as people read them: one unit for a column, no more digits than the error deserves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from planner.frozen import record
from planner.units import format_seconds, gib_from_bytes

T = TypeVar("T")

MISSING = "-"
"""Stands in a table where there is no number."""


@record(frozen=True, slots=True)
class TimeUnit:
    """The unit of a column of durations."""

    name: str
    seconds: float

    def heading(self, what: str) -> str:
        """The heading of the column: ``step`` and, on its own line, ``(ms)``."""
        return f"{what}\n({self.name})"

    def show(self, seconds: float | None) -> str:
        """A duration in this unit with three digits, without the unit."""
        return MISSING if seconds is None else significant(seconds / self.seconds)

    def part(self, seconds: float, whole_seconds: float) -> str:
        """A part of a duration with the decimals of the whole, so that parts add up as they are read."""
        _, _, decimals = significant(whole_seconds / self.seconds).partition(".")
        return f"{seconds / self.seconds:.{len(decimals)}f}"


_UNITS = (TimeUnit("h", 3600.0), TimeUnit("s", 1.0), TimeUnit("ms", 1e-3), TimeUnit("µs", 1e-6))


def time_unit(durations: Iterable[float | None]) -> TimeUnit:
    """The unit in which the shortest of the durations that matter still reads well."""
    known = [seconds for seconds in durations if seconds and math.isfinite(seconds)]
    middle = sorted(known)[len(known) // 2] if known else 1.0
    limits = (10 * 3600.0, 1.0, 1e-3)
    return next((unit for unit, limit in zip(_UNITS, limits, strict=False) if middle >= limit), _UNITS[-1])


def or_missing(value: T | None, show: Callable[[T], str]) -> str:
    """A value as ``show`` writes it; a dash where there is none."""
    return MISSING if value is None else show(value)


def plus_minus(spread: float | None) -> str:
    """A relative error: ``±15 %``; a dash where it is not known."""
    return MISSING if spread is None else f"±{percent(spread)}"


def significant(value: float, digits: int = 3) -> str:
    """A number rounded to some digits, never in scientific notation."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return MISSING
    decimals = digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


def rounded(value: float, digits: int = 3, *, up: bool) -> float:
    """The next number of so many digits in one direction: a need rounded up can be asked for."""
    if value == 0 or not math.isfinite(value):
        return value
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    near = round(value, decimals)
    if math.isclose(near, value, rel_tol=1e-12) or (near > value) == up:
        return near
    return round(near + (1 if up else -1) * 10.0**-decimals, decimals)


def percent(fraction: float, digits: int = 2) -> str:
    """A fraction as ``8.1 %``; small ones keep one decimal."""
    shown = 100 * fraction
    if shown and abs(shown) < 0.05:
        return "< 0.1 %" if shown > 0 else "> -0.1 %"
    return f"{shown:.0f} %" if abs(shown) >= 10 ** (digits - 1) - 0.05 else f"{shown:.1f} %"


def chance(probability: float) -> str:
    """A chance as ``22 %``; never 0, as no error is known that well."""
    return percent(max(probability, 1e-9))


def at_most(fraction: float) -> str:
    """A fraction that must not be understated, rounded upwards: ``0.8 %``; never less than ``0.1 %``."""
    tenths = max(1, math.ceil(fraction * 1000 - 1e-9))
    return f"{tenths / 10:.1f} %" if tenths < 100 else f"{math.ceil(tenths / 10)} %"


def proof(gap: float, status: str) -> str:
    """``proven within 0.8 %`` where the status is optimal, else ``within 0.8 % of the bound``."""
    return f"proven within {at_most(gap)}" if status == "optimal" else f"within {at_most(gap)} of the bound"


def duration(seconds: float, spread: float = 0.0) -> str:
    """A duration with its error: ``412 ms ±15 %``."""
    if not math.isfinite(seconds):
        return MISSING
    return f"{format_seconds(seconds)} ±{percent(spread)}" if spread else format_seconds(seconds)


DAYS_FROM = 2 * 86400
"""Seconds from which on a duration is told in days."""


def limit_time(seconds: float, *, up: bool) -> str:
    """A long duration as a limit, rounded in one direction."""
    unit = 86400 if seconds >= DAYS_FROM else 3600 if seconds >= 3600 else 1
    return long_text(rounded(seconds / unit, up=up) * unit)


def limit_money(price: float, *, up: bool) -> str:
    """A price of a whole run as a limit, rounded in one direction."""
    whole = len(f"{int(price)}") if math.isfinite(price) else 0
    return money(rounded(price, max(3, whole), up=up))


def long_text(seconds: float) -> str:
    """A long duration: ``144 days``, ``9.2 h``."""
    if not math.isfinite(seconds):
        return "for ever"
    if seconds < DAYS_FROM:
        return format_seconds(seconds)
    days = significant(seconds / 86400)
    return f"{days.rstrip('0').rstrip('.') if '.' in days else days} days"


def money(price: float) -> str:
    """A price of a whole run, without its currency: ``12,300``, ``0.43``."""
    if not math.isfinite(price):
        return MISSING
    return f"{price:,.0f}" if price >= 100 else significant(price)


def gib(size_bytes: float) -> str:
    """Bytes as GiB with one decimal, without the unit."""
    return f"{gib_from_bytes(size_bytes):.1f}"


@record(frozen=True, slots=True)
class CountUnit:
    """The unit of a column of large numbers."""

    name: str
    """Metric suffix; empty for ones."""
    size: float

    def heading(self, what: str) -> str:
        """The heading of the column: ``tokens/s`` and, on its own line, ``(k)``."""
        return f"{what}\n({self.name})" if self.name else what

    def show(self, number: float | None) -> str:
        """A number in this unit with three digits, without the unit."""
        return MISSING if number is None else significant(number / self.size)


_SIZES = (CountUnit("G", 1e9), CountUnit("M", 1e6), CountUnit("k", 1e3))


def count_unit(numbers: Iterable[float | None]) -> CountUnit:
    """The unit in which the largest of the numbers has at most four digits before the point."""
    largest = max((number for number in numbers if number), default=0.0)
    return next((unit for unit in _SIZES if largest >= 2 * unit.size), CountUnit("", 1.0))


def rate(tokens_per_second: float) -> str:
    """Tokens per second with a metric suffix."""
    unit = count_unit([tokens_per_second])
    return f"{unit.show(tokens_per_second)} {unit.name}".rstrip()


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: ``1 node``, ``3 nodes``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def runs(numbers: Sequence[int]) -> str:
    """Whole numbers with runs shortened: ``0-3, 6``."""
    ranges: list[list[int]] = []
    for value in sorted(numbers):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    return ", ".join(span(first, last + 1) for first, last in ranges)


def span(first: int, end: int) -> str:
    """``3``, or ``3-17`` for an end of 18."""
    return str(first) if end == first + 1 else f"{first}-{end - 1}"


def names(words: Sequence[str]) -> str:
    """Names in order; more than three are shortened to the first and last with their number."""
    if len(words) <= 3:
        return ", ".join(words)
    return f"{words[0]} .. {words[-1]} ({len(words)})"
