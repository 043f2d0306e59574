"""Predictions of measured runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.values import ASSUMED, Framework
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator, estimate
from planner.measured.predictions import predict
from tests.measured.examples import GIB, failed, prediction, run
from tests.plan.examples import CLUSTER, MODEL, group, plan, stage


def test_errors_are_relative_to_what_was_measured() -> None:
    """Above 0 is too slow, below is too fast; 16.3 GiB are predicted."""
    slow = prediction(10.0, 12.0, peak_memory_bytes=32.6 * GIB)
    assert slow.error == pytest.approx(0.2)
    assert slow.memory_error == pytest.approx(-0.5)
    assert (slow.predicted_seconds, slow.spread, slow.fits) == (12.0, 0.15, True)
    assert slow.predicted_bytes == pytest.approx(16.3 * GIB)
    assert prediction(10.0, 8.0, fits=False).error == pytest.approx(-0.2)
    assert prediction(10.0, 8.0, fits=False).fits is False


def test_what_is_unknown_has_no_error() -> None:
    """Neither side is made up."""
    unmeasured = prediction(None, 12.0)
    assert (unmeasured.error, unmeasured.memory_error) == (None, None)
    broken = failed("x", "no fp8")
    assert (broken.predicted_seconds, broken.predicted_bytes, broken.fits, broken.spread) == (None,) * 4
    assert (broken.error, broken.memory_error) == (None, None)


def test_every_run_is_priced_on_its_own_cluster() -> None:
    """As the cost model prices it, with the calibration that was asked for."""
    small = run("a", cluster=CLUSTER, model=MODEL, plan=plan(zero=0))
    large = run("b")
    heavy = replace(ASSUMED, frameworks={"megatron": Framework(runtime_bytes=9e9)})
    for calibration in (ASSUMED, heavy):
        found = predict([small, large], calibration)
        assert [entry.run.id for entry in found] == ["a", "b"]
        assert found[0].estimate == estimate(small.plan, CLUSTER, MODEL, calibration)
        assert found[1].estimate == estimate(large.plan, large.cluster, large.model, calibration)
        assert [entry.failure for entry in found] == ["", ""]
    assert predict([small], heavy)[0].predicted_bytes != predict([small], ASSUMED)[0].predicted_bytes


def test_a_plan_that_cannot_be_priced_says_why() -> None:
    """The others are priced all the same."""
    nowhere = plan(stage(0, 8, group(pool="moon")))
    runs = [run("a", cluster=CLUSTER, model=MODEL, plan=nowhere), run("b")]
    found = predict(runs, ASSUMED)
    assert (found[0].estimate, found[1].failure) == (None, "")
    assert "moon" in found[0].failure


def test_equal_inputs_share_an_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    """By equality, not by identity or name."""
    made: list[ClusterSpec] = []

    class Counted(Estimator):
        """An estimator that is counted."""

        def __init__(self, cluster: ClusterSpec, *others: object) -> None:
            made.append(cluster)
            super().__init__(cluster, *others)  # type: ignore[arg-type]

    monkeypatch.setattr("planner.measured.predictions.Estimator", Counted)
    other = run().cluster.model_copy(update={"reserve_gib": 0.0})
    predict([run("a"), run("b"), run("c", cluster=other), run("d")], ASSUMED)
    assert made == [run().cluster, other]


def test_progress_counts_every_run() -> None:
    """Priced or not."""
    seen: list[tuple[int, int]] = []
    predict([run("a"), run("b")], ASSUMED, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
