"""The only place where human units become SI units and back."""

from __future__ import annotations

from functools import lru_cache

GIB = 2**30
"""Bytes in a gibibyte (memory sizes are GiB, bandwidths are decimal)."""


def bytes_from_gib(gib: float) -> int:
    """Bytes of a size in GiB."""
    return round(gib * GIB)


def gib_from_bytes(size_bytes: float) -> float:
    """GiB of a size in bytes."""
    return size_bytes / GIB


def bytes_per_second_from_gbps(gbps: float) -> float:
    """Bytes per second of a rate in gigabit/s."""
    return gbps * 1e9 / 8


def bytes_per_second_from_gigabytes(gigabytes_per_second: float) -> float:
    """Bytes per second of a rate in gigabyte/s."""
    return gigabytes_per_second * 1e9


def seconds_from_us(microseconds: float) -> float:
    """Seconds of a duration in microseconds."""
    return microseconds * 1e-6


def flops_from_tflops(tflops: float) -> float:
    """FLOP/s of a rate in TFLOP/s."""
    return tflops * 1e12


def format_seconds(seconds: float) -> str:
    """A duration with three significant digits and its unit: ``412 ms``, ``55.9 s``, ``1.2 h``."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 3600:
        return f"{seconds:.3g} s" if seconds < 999.5 else f"{round(seconds, -1):.0f} s"
    return f"{seconds / 3600:.3g} h"


def format_count(count: float) -> str:
    """A large number with a metric suffix: ``18.8 k``, ``6.74 B``."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.9995 * limit:
            return f"{count / limit:.3g} {suffix}"
    return f"{count:.3g}"


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors in increasing order."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))
