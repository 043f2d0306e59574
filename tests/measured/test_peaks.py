"""The memory of a process, fitted to peaks that were made with a known one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log, sqrt
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED, Calibration, Constant, Framework
from planner.cost.estimate import Estimator
from planner.cost.memory import FRAGMENTS
from planner.measured.peaks import BOUNDS_BYTES, GUESSED, fit_memory, memory_spread
from planner.measured.priors import KERNEL_SETS, OWN_RUNTIME, OWN_SLACK, RUNTIME, SLACK
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


def from_two(runs: Sequence[Run]) -> list[Run]:
    """The runs as of two sources, of which each has every second."""
    return [replace(item, source=str(index % 2)) for index, item in enumerate(runs)]


def test_it_is_recovered() -> None:
    """Within its spread, to three digits, and the same in both places."""
    found = fit_memory(from_two(peaks(list(unmeasured()), truth(), 0.02)), ASSUMED)
    item = told(found)
    assert item.spread is not None
    assert abs(log(item.value / TRUE_BYTES)) < item.spread < 0.5
    assert item.provenance == "fitted"
    assert found.framework("megatron").runtime_bytes == item.value == float(f"{item.value:.3g}")


def test_more_sources_are_surer_than_more_runs() -> None:
    """What a source has of its own does not become less by its runs."""
    runs = peaks(list(unmeasured()), truth())
    one, many = (
        told(
            fit_memory([replace(item, source=name) for name, item in zip(names, runs, strict=True)], ASSUMED)
        )
        for names in (["one"] * len(runs), [str(number) for number in range(len(runs))])
    )
    assert one.value == pytest.approx(TRUE_BYTES, rel=0.05)
    assert (many.spread or 0.0) < 0.7 * (one.spread or 0.0)


def test_an_outlier_hardly_moves_it() -> None:
    """It counts for less the farther off it is."""
    runs = from_two(peaks(list(unmeasured())[:9], truth(), 0.01))
    before = told(fit_memory(runs, ASSUMED)).value
    runs[4] = replace(runs[4], peak_memory_bytes=5 * (runs[4].peak_memory_bytes or 0.0))
    assert told(fit_memory(runs, ASSUMED)).value == pytest.approx(before, rel=0.15)


def test_doubts_about_what_is_held_weigh_less() -> None:
    """Of the same peaks, those in doubt move it less."""
    sure = peaks(list(unmeasured())[:6], truth(runtime_bytes=9e9))
    unsure = [replace(item, doubt=f"{GUESSED[0]}; rounded") for item in sure]
    values = [told(fit_memory(runs, ASSUMED)).value for runs in (unsure, sure)]
    assert RUNTIME.value < values[0] < values[1]


@pytest.mark.parametrize("factor", [0.05, 20.0])
def test_bounds_hold(factor: float) -> None:
    """A process takes something, and not half of the device, whatever was measured."""
    runs = [
        replace(item, source=str(index), peak_memory_bytes=factor * (item.peak_memory_bytes or 0.0))
        for index, item in enumerate(peaks(list(unmeasured()), truth()))
    ]
    low, high = BOUNDS_BYTES
    value = told(fit_memory(runs, ASSUMED)).value
    assert low <= value <= high
    assert (value < RUNTIME.value) == (factor < 1)


def test_without_peaks_nothing_changes() -> None:
    """Those of tensors alone, or without a price, are none."""
    (one,) = peaks(list(unmeasured())[:1], truth())
    silent = replace(one, peak_memory_bytes=None)
    narrow = replace(one, peak_memory_of="tensors")
    unpriced = replace(one, cluster=ONE.model_copy(update={"pools": ()}))
    assert fit_memory([silent, narrow, unpriced], ASSUMED) is ASSUMED
    assert fit_memory([one], ASSUMED) is not ASSUMED


@pytest.mark.parametrize("slack", [0.02, 0.06, 0.3])
def test_what_allocators_hold_is_told_by_sources(slack: float) -> None:
    """By their medians, between the prior and what it is, nearer to that with more of them; where units come and go."""
    model = named(2048)
    plans = [plan(model, 8, 1, 1, size, target="torch", zero=2) for size in (1, 2, 4)]
    items = [run(f"t{index}", ONE, model, item) for index, item in enumerate(plans)]

    def held(item: Run, part: float, source: str) -> Run:
        """A run whose allocator held so much."""
        memory = Estimator(item.cluster, item.model, ASSUMED).estimate(item.plan).stages[0].groups[0].memory
        tensors = memory.used_bytes - memory.runtime_bytes
        peak = tensors * (1 + FRAGMENTS + part)
        return replace(item, source=source, peak_memory_of="reserved", peak_memory_bytes=peak)

    found = []
    for sources in (1, 4):
        runs = [held(item, slack, str(number)) for number in range(sources) for item in items]
        # One run of three is far off.
        runs[0] = held(items[0], 3 * slack, "0")
        fitted = fit_memory(runs, ASSUMED)
        found.append(fitted.framework("torch").unit_slack)
        assert fitted.framework("torch-2023").unit_slack == found[-1]
        assert fitted.framework("megatron").unit_slack == ASSUMED.framework("megatron").unit_slack
        assert fitted.framework("torch").allocator_slack == ASSUMED.framework("torch").allocator_slack
    assert abs(log(found[1] / slack)) <= abs(log(found[0] / slack)) <= abs(log(SLACK.value / slack))
    # The mean of one prior and four sources by their precision.
    weights = SLACK.spread**-2, 4 * OWN_SLACK**-2
    mean = (weights[0] * log(SLACK.value) + weights[1] * log(slack)) / sum(weights)
    assert log(found[1]) == pytest.approx(mean, abs=0.01)
    full = replace(runs[1], peak_memory_bytes=0.95 * 2**30 * runs[1].cluster.gpus["A100"].memory_gib)
    buffers = replace(held(next(iter(unmeasured())), slack, "m"), peak_memory_of="reserved")
    assert fit_memory([full, buffers], ASSUMED) is ASSUMED


def test_kernel_sets_have_a_part_in_common() -> None:
    """One without peaks takes what the others have, and is less sure of it; one that is known keeps what it has."""
    models = [named(hidden) for hidden in (1024, 2048)]
    chosen = [
        (model, plan(model, 8, 1, 1, size, target="torch", zero=2)) for model in models for size in (1, 2, 4)
    ]
    others = [run(f"t{index}", ONE, model, item) for index, (model, item) in enumerate(chosen)]
    both = from_two([*peaks(list(unmeasured())[:6], truth()), *peaks(others, truth("torch", 6e9))])
    found = fit_memory(both, ASSUMED)
    values = {name: told(found, f"frameworks.{name}.runtime_bytes") for name in KERNEL_SETS}
    assert RUNTIME.value < values["megatron"].value < values["deepspeed"].value < values["torch"].value
    assert values["deepspeed"].provenance == "assumed"
    assert OWN_RUNTIME < (values["deepspeed"].spread or 0.0) < RUNTIME.spread
    known = Constant(name="frameworks.deepspeed.runtime_bytes", value=2e9, provenance="fitted", spread=0.1)
    base = Calibration(frameworks={"deepspeed": Framework(runtime_bytes=2e9)}, constants=(known,))
    again = fit_memory(both, base)
    assert told(again, known.name) == known
    assert told(again).value == values["megatron"].value


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
    assert other in found.constants
    assert TRUE_BYTES < told(found).value < 6e9
    assert found.notes == "kept"


def test_the_error_of_peaks_is_that_of_sources_left_out() -> None:
    """Three sources that are off by 0.2, 0.1 and 0.1, beside one with what was known before; none says nothing."""
    runs = list(unmeasured())[:15]
    off = {"one": 0.2, "two": -0.1, "three": 0.1}
    parts = [(name, runs[index::3]) for index, name in enumerate(off)]
    measured = [
        replace(item, source=name, peak_memory_bytes=peak(item, ASSUMED) * exp(off[name]))
        for name, part in parts
        for item in part
    ]
    with patch("planner.measured.peaks._fitted", lambda peaks, base: base):
        found = memory_spread(measured, ASSUMED)
    assert found == pytest.approx(sqrt((0.04 + 0.01 + 0.01 + 0.04) / 4), rel=0.01)
    assert memory_spread(runs, ASSUMED) == ASSUMED.memory_spread
    assert memory_spread(measured, ASSUMED) > 0.05
