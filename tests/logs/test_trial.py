"""The constant that a run gives is the one that the run was made with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration.merge import merged
from planner.calibration.values import ASSUMED, LayerPoint
from planner.cost.estimate import Estimator, estimate
from planner.errors import UsageError
from planner.logs.fits import Trial, fit_trial, with_constant
from planner.model.spec import DocumentsSpec
from tests.logs import jobs
from tests.report import examples


@settings(max_examples=25, deadline=None)
@given(st.floats(1.0, 1e4))
def test_a_run_gives_its_launches(launches: float) -> None:
    """Whatever they are."""
    plan, spec = jobs.pipeline(), examples.cluster()
    slow = with_constant(ASSUMED, plan.target, "micro_batch_launches", launches)
    seconds = estimate(plan, spec, jobs.MODEL, slow).step_seconds
    found = fit_trial(plan, spec, jobs.MODEL, ASSUMED, seconds)
    assert found.launches == pytest.approx(launches, rel=1e-3)
    assert found.before_seconds < found.observed_seconds == seconds


def test_every_micro_batch_of_a_stage_takes_as_long_more() -> None:
    """Half in the forward, half in the backward, in launches of the device's own host."""
    plan, spec = jobs.pipeline(), examples.cluster()
    without, with_host = (
        Estimator(
            spec, jobs.MODEL, with_constant(ASSUMED, plan.target, "micro_batch_launches", launches)
        ).price(plan)
        for launches in (0.0, 100.0)
    )
    for before, after in zip(without.stages, with_host.stages, strict=True):
        host = 100 * ASSUMED.family("").launch_seconds
        assert sum(after.forward) - sum(before.forward) == pytest.approx(host / 2)
        assert sum(after.backward) - sum(before.backward) == pytest.approx(host / 2)


def test_it_is_a_measured_constant_of_its_stack() -> None:
    """Beside what the calibration knew."""
    found = Trial(kernels="torch", launches=80.0, before_seconds=1.0, observed_seconds=1.1).measured()
    together = merged(ASSUMED, found)
    assert together.framework("torch").micro_batch_launches == 80.0
    assert together.framework("torch").overlap == ASSUMED.framework("torch").overlap
    assert [(each.name, each.provenance) for each in together.constants] == [
        ("frameworks.torch.micro_batch_launches", "measured")
    ]


def test_a_fast_run_has_none() -> None:
    """The constant does not become negative."""
    plan, spec = jobs.pipeline(), examples.cluster()
    seconds = estimate(plan, spec, jobs.MODEL, ASSUMED).step_seconds
    assert fit_trial(plan, spec, jobs.MODEL, ASSUMED, 0.9 * seconds).launches == 0.0


def test_a_run_faster_than_the_peak_is_refused() -> None:
    """It was of another plan, or its seconds are not of a step; just below the peak it is a fast run."""
    plan, spec = jobs.pipeline(), examples.cluster()
    known = estimate(plan, spec, jobs.MODEL, ASSUMED)
    least = known.mfu * known.step_seconds
    assert fit_trial(plan, spec, jobs.MODEL, ASSUMED, 1.01 * least).launches == 0.0
    with pytest.raises(UsageError, match="is 2 times as fast as the peak of its devices allows"):
        fit_trial(plan, spec, jobs.MODEL, ASSUMED, 0.5 * least)


def test_what_shows_nothing_is_refused() -> None:
    """One stage of layers that nobody measured, and a run of an hour."""
    with pytest.raises(UsageError, match="was measured on"):
        fit_trial(jobs.data_parallel(), examples.cluster(), jobs.MODEL, ASSUMED, 1.0)
    with pytest.raises(UsageError, match="slower than any work"):
        fit_trial(jobs.pipeline(), examples.cluster(), jobs.MODEL, ASSUMED, 1e9)
    graphs = jobs.MODEL.trained_with(cuda_graphs="step")
    with pytest.raises(UsageError, match="CUDA graphs launch whole steps"):
        fit_trial(jobs.pipeline(), examples.cluster(), graphs, ASSUMED, 1.0)


def test_one_stage_gives_what_layers_take_more() -> None:
    """Found again, whatever it is, and only where layers were measured; without it they are as measured."""
    plan, spec = jobs.data_parallel(), examples.cluster()
    gpus = {each.gpu for each in plan.stages[0].replicas}
    layers = tuple(
        LayerPoint(
            gpu=gpu,
            model=jobs.MODEL.name,
            tp=1,
            micro_batch=1,
            forward_seconds=0.02,
            backward_seconds=0.04,
        )
        for gpu in sorted(gpus)
    )
    measured = replace(ASSUMED, layers=layers)
    for factor in (0.8, 1.25):
        slow = with_constant(measured, plan.target, "layer_factor", factor)
        seconds = estimate(plan, spec, jobs.MODEL, slow).step_seconds
        found = fit_trial(plan, spec, jobs.MODEL, measured, seconds)
        assert found.layer_factor == pytest.approx(factor, rel=1e-3)
        assert (found.before_seconds < seconds) == (factor > 1)
        again = merged(measured, found.measured())
        assert estimate(plan, spec, jobs.MODEL, again).step_seconds == pytest.approx(seconds, rel=1e-3)
    assert estimate(
        plan, spec, jobs.MODEL, with_constant(ASSUMED, plan.target, "layer_factor", 2.0)
    ) == estimate(plan, spec, jobs.MODEL, ASSUMED)
    with pytest.raises(UsageError, match="faster than any pace"):
        fit_trial(plan, spec, jobs.MODEL, measured, 1e-6)
    packed = jobs.MODEL.training.model_copy(update={"documents": DocumentsSpec(mean_length=256)})
    with pytest.raises(UsageError, match="uses no measured layer"):
        fit_trial(plan, spec, jobs.MODEL.model_copy(update={"training": packed}), measured, 1.0)


def test_the_constant_is_that_of_the_kernels_of_the_run() -> None:
    """Which are not named like the runtime where it has several sets."""
    plan, spec = jobs.pipeline(), examples.cluster()
    unfused = jobs.MODEL.training.model_copy(update={"attention": "unfused"})
    model = jobs.MODEL.model_copy(update={"training": unfused})
    found = fit_trial(plan, spec, model, ASSUMED, 1.5 * estimate(plan, spec, model, ASSUMED).step_seconds)
    assert found.kernels != plan.target
    assert found.launches
    again = merged(ASSUMED, found.measured())
    assert estimate(plan, spec, model, again).step_seconds == pytest.approx(found.observed_seconds, rel=1e-3)
