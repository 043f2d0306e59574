"""The memory of a process, fitted to peaks that were made with a known one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log, sqrt
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED, Calibration, Constant, Framework
from planner.cost.estimate import Estimator
from planner.measured.fit import BOUNDS_BYTES, FEWEST, fit_memory, memory_spread
from planner.measured.values import Run
from tests.measured.synthetic import ONE, named, plan, run, unmeasured

NAME = "frameworks.megatron.runtime_bytes"
TRUE_BYTES = 4.2e9


def truth(framework: str = "megatron", runtime_bytes: float = TRUE_BYTES) -> Calibration:
    """Nothing but this constant."""
    return Calibration(frameworks={framework: Framework(runtime_bytes=runtime_bytes)})


def peaks(runs: Sequence[Run], calibration: Calibration, noise: float = 0.0) -> list[Run]:
    """The runs with the peaks that the constants make of them, alternately above and below."""
    return [
        replace(item, peak_memory_bytes=peak(item, calibration) * exp(noise * (-1) ** index))
        for index, item in enumerate(runs)
    ]


def peak(item: Run, calibration: Calibration) -> float:
    """Bytes on the fullest device."""
    return Estimator(item.cluster, item.model, calibration).estimate(item.plan).peak_memory_bytes


def told(calibration: Calibration, name: str = NAME) -> Constant:
    """The only constant of the name."""
    (found,) = (item for item in calibration.constants if item.name == name)
    return found


def test_it_is_recovered() -> None:
    """Within its spread, to three digits, and the same in both places."""
    found = fit_memory(peaks(list(unmeasured()), truth(), 0.02), ASSUMED)
    item = told(found)
    assert item.spread is not None
    assert abs(log(item.value / TRUE_BYTES)) < 3 * item.spread < 0.15
    assert item.provenance == "fitted"
    assert found.framework("megatron").runtime_bytes == item.value == float(f"{item.value:.3g}")
    assert fit_memory(peaks(list(unmeasured()), truth()), ASSUMED).framework("megatron") == truth().framework(
        "megatron"
    )


def test_an_outlier_hardly_moves_it() -> None:
    """The errors count, not their squares."""
    runs = peaks(list(unmeasured())[:9], truth(), 0.01)
    runs[4] = replace(runs[4], peak_memory_bytes=5 * (runs[4].peak_memory_bytes or 0.0))
    assert told(fit_memory(runs, ASSUMED)).value == pytest.approx(TRUE_BYTES, rel=0.1)


@pytest.mark.parametrize("factor", [0.05, 20.0])
def test_bounds_hold(factor: float) -> None:
    """A process takes something, and not half of the device, whatever was measured."""
    runs = [
        replace(item, peak_memory_bytes=factor * (item.peak_memory_bytes or 0.0))
        for item in peaks(list(unmeasured())[:FEWEST], truth())
    ]
    low, high = BOUNDS_BYTES
    value = told(fit_memory(runs, ASSUMED)).value
    assert 0.99 * low <= value <= 1.01 * high
    assert (value < 1.1 * low) == (factor < 1)


def test_too_few_peaks_change_nothing() -> None:
    """Those without a peak, or without a price, are none."""
    runs = peaks(list(unmeasured())[:FEWEST], truth())
    assert fit_memory(runs[1:], ASSUMED) is ASSUMED
    silent = replace(runs[0], peak_memory_bytes=None)
    unpriced = replace(runs[0], cluster=ONE.model_copy(update={"pools": ()}))
    assert fit_memory([*runs[1:], silent, unpriced], ASSUMED) is ASSUMED
    assert fit_memory(runs, ASSUMED) is not ASSUMED
    assert fit_memory([], ASSUMED) is ASSUMED


def test_each_stack_has_its_own() -> None:
    """A framework without peaks keeps what is assumed."""
    models = [named(hidden) for hidden in (1024, 2048)]
    chosen = [
        (model, plan(model, 8, 1, 1, size, target="torch", zero=2)) for model in models for size in (1, 2, 4)
    ]
    others = [run(f"t{index}", ONE, model, item) for index, (model, item) in enumerate(chosen)]
    runs = [*peaks(list(unmeasured())[:6], truth()), *peaks(others, truth("torch", 6e9))]
    found = fit_memory(runs, ASSUMED)
    assert told(found).value == pytest.approx(TRUE_BYTES, rel=0.01)
    assert told(found, "frameworks.torch.runtime_bytes").value == pytest.approx(6e9, rel=0.01)
    assert "deepspeed" not in found.frameworks


def test_what_was_known_is_replaced_once() -> None:
    """Of this constant alone."""
    old = Constant(name=NAME, value=6e9, provenance="fitted", spread=0.1)
    other = Constant(name="frameworks.megatron.overlap", value=0.4, provenance="fitted", spread=0.1)
    base = Calibration(
        frameworks={"megatron": Framework(overlap=0.4, runtime_bytes=6e9)},
        constants=(old, other),
        notes="kept",
    )
    found = fit_memory(peaks(list(unmeasured())[:6], truth()), base)
    assert found.framework("megatron") == Framework(overlap=0.4, runtime_bytes=told(found).value)
    assert found.constants == (other, told(found))
    assert found.notes == "kept"


def test_the_error_of_peaks_is_that_of_sources_left_out() -> None:
    """Three sources that are off by 0.2, 0.1 and 0.1, beside one with what was known before; none says nothing."""
    runs = list(unmeasured())[: 3 * FEWEST]
    off = {"one": 0.2, "two": -0.1, "three": 0.1}
    parts = [(name, runs[index::3]) for index, name in enumerate(off)]
    measured = [
        replace(item, source=name, peak_memory_bytes=peak(item, ASSUMED) * exp(off[name]))
        for name, part in parts
        for item in part
    ]
    with patch("planner.measured.fit._with_runtime_bytes", lambda peaks, base: base):
        found = memory_spread(measured, ASSUMED)
    assert found == pytest.approx(sqrt((0.04 + 0.01 + 0.01 + 0.04) / 4), rel=0.01)
    assert memory_spread(runs, ASSUMED) == ASSUMED.memory_spread
    assert memory_spread(measured, ASSUMED) > 0.05
