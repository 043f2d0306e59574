"""Constants that are known come back from kernels that obey them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.values import ASSUMED_FAMILY, KernelPoint
from planner.cost.compute import TILE_FILL
from planner.measure.fits import Peaks, fit_family, measured_peaks

PEAKS = Peaks(flops={"bf16": 3e14, "fp32": 2e13}, memory_bytes_per_second=2e12, multiprocessors=0)
RAMP = 3e-6


def point(kernel: str, shape: str, seconds: float, flops: float = 0.0, moved: float = 0.0) -> KernelPoint:
    """A kernel in bf16."""
    return KernelPoint(
        gpu="A100",
        kernel=kernel,  # type: ignore[arg-type]
        precision="bf16",
        shape=shape,
        flops=flops,
        moved_bytes=moved,
        seconds=seconds,
        spread=0.01,
    )


def obedient(memory: float = 0.9) -> list[KernelPoint]:
    """Kernels of a device: products reach 80 % of its peak, attention 50 %, copies this share of its bandwidth."""
    found = [point("floor", "64", RAMP), point("launch", "64", 1e-5)]
    for side in (512, 1024, 4096):
        flops = 2.0 * side**3
        rate = 3e14 * 0.8 * side / (side + 256)
        found.append(point("matmul", f"{side}x{side}x{side}", flops / rate + RAMP, flops, 6.0 * side**2))
    for length in (512, 1024, 2048):
        flops = 2.0 * 4 * 8 * 64 * length**2
        found.append(point("attention", f"4x8x{length}x64", flops / (3e14 * 0.5) + RAMP, flops))
    for elements in (2**24, 2**26, 2**28):
        found.append(
            point("copy", f"{elements}", 8 * elements / (2e12 * memory) + RAMP, moved=8.0 * elements)
        )
    return found


def test_the_constants_come_back() -> None:
    """With no spread and no error, and the framework's host time taken out."""
    fit = fit_family("A100", obedient(), PEAKS, "bf16", host_factor=0.5)
    assert fit.family.matmul_efficiency == pytest.approx(0.8)
    assert fit.family.attention_efficiency == pytest.approx(0.5)
    assert fit.family.memory_efficiency == pytest.approx(0.9)
    assert (fit.family.kernel_seconds, fit.family.launch_seconds) == (RAMP, 2e-5)
    assert {constant.name.rpartition(".")[2] for constant in fit.constants} == {
        "matmul_efficiency",
        "attention_efficiency",
        "memory_efficiency",
        "kernel_seconds",
        "launch_seconds",
    }
    assert all(error.largest == pytest.approx(0, abs=1e-9) for error in fit.errors)
    assert len(fit.errors) == 3


def test_a_size_out_of_line_shows_in_the_error() -> None:
    """Not in the constant: the median of three."""
    points = obedient()
    points[2] = replace(points[2], seconds=RAMP + 2 * (points[2].seconds - RAMP))
    fit = fit_family("A100", points, PEAKS, "bf16", 0.5)
    assert fit.family.matmul_efficiency == pytest.approx(0.8)
    error = next(item for item in fit.errors if item.curve.startswith("matmul"))
    assert error.largest > 0.3


def test_another_format_tells_nothing() -> None:
    """A family keeps the assumed shares of what was not measured."""
    fit = fit_family("A100", obedient(), PEAKS, "fp32", 0.5)
    assert {constant.name for constant in fit.constants} == {
        f"families.A100.{name}" for name in ("kernel_seconds", "launch_seconds", "memory_efficiency")
    }


def test_fp32_beside_faster_units_tells_its_own_share() -> None:
    """And where it is the fastest format, that of products."""
    points = [replace(item, precision="fp32") for item in obedient()]
    vector = fit_family("V100", points, PEAKS, "fp32", 0.5).family
    alone = fit_family("V100", points, replace(PEAKS, flops={"fp32": 2e13}), "fp32", 0.5).family
    assert vector.matmul_efficiency == alone.vector_efficiency == ASSUMED_FAMILY.matmul_efficiency
    assert vector.vector_efficiency == alone.matmul_efficiency == 1.0


def test_filling_tiles_is_no_part_of_a_peak() -> None:
    """On slower units it takes as long as in two bytes."""
    filling = 2.0 * 4096**2 * TILE_FILL / PEAKS.flops["bf16"]
    points = [
        replace(
            point(
                "matmul", f"4096x4096x{inner}", 2.0 * 4096**2 * inner / peak + filling, 2.0 * 4096**2 * inner
            ),
            precision=precision,
        )
        for precision, peak in reversed(PEAKS.flops.items())
        for inner in (1024, 8192)
    ]
    assert measured_peaks(points).flops == pytest.approx(PEAKS.flops)


def test_the_peaks_of_an_unknown_device_are_its_best() -> None:
    """So that its best product reaches them."""
    points = obedient(memory=1.0)
    peaks = measured_peaks(points)
    assert peaks.flops["bf16"] == pytest.approx(0.8 * 3e14, rel=0.1)
    fit = fit_family("A100", points, peaks, "bf16", 0.5)
    assert 0.85 < fit.family.matmul_efficiency <= 1
    assert measured_peaks([]).flops == {}
