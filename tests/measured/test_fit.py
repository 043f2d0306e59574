"""Constants fitted to runs that were made with known ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import log

import pytest

from planner.calibration.values import Calibration, Constant, Residual, Stack
from planner.errors import UsageError
from planner.measured.fit import BARE, BOUNDS, Fit, fit
from planner.measured.values import Run
from tests.measured.synthetic import ONE, TRUTH, measured, named, plan, predicted, run, unmeasured

MATMUL = "families.A100.matmul_efficiency"
TOLD = {
    MATMUL: TRUTH.family("A100").matmul_efficiency,
    "families.A100.launch_seconds": TRUTH.family("A100").launch_seconds,
    "families.A100.link_efficiency": TRUTH.family("A100").link_efficiency,
    "stacks.megatron.overlap": TRUTH.stack("megatron").overlap,
    "links.infiniband.efficiency": TRUTH.link("infiniband").efficiency,
}
"""Constants that the runs tell, and what they were made with."""


@cache
def whole() -> Fit:
    """Fitted to all runs, from the assumed constants."""
    return fit(measured(), BARE)


def few(count: int = 9) -> tuple[Run, ...]:
    """Some of the runs, of one model."""
    return measured()[8 : 8 + count]


def constants(found: Fit) -> dict[str, Constant]:
    """By name."""
    return {item.name: item for item in found.calibration.constants}


def test_constants_are_recovered_within_their_spreads() -> None:
    """Nearer to the truth than three of them, none so wide that this says nothing."""
    found = constants(whole())
    for name, true in TOLD.items():
        item = found[name]
        assert item.spread is not None
        assert abs(log(item.value / true)) < 3 * item.spread, name
        assert item.spread < 0.15
        assert item.provenance == "fitted"
    assert (found[MATMUL].spread or 1.0) < 0.04


def test_the_calibration_says_what_the_constants_say() -> None:
    """The same numbers in both places, and nothing fitted outside the runs' family, stack and fabric."""
    found = whole().calibration
    owners = {"families": found.families, "stacks": found.stacks, "links": found.links}
    for name, item in constants(whole()).items():
        section, owner, constant = name.split(".")
        assert getattr(owners[section][owner], constant) == item.value  # type: ignore[index]
    assert set(found.families) == {"A100"}
    assert found.stack("megatron").host_factor == 1.0
    assert found.stack("megatron").wire == 1.0


def test_errors_are_those_of_the_fitted_constants() -> None:
    """As large as the noise; a run's name stands at the same place as its error."""
    found = whole()
    assert [item.id for item in found.runs] == [item.id for item in measured()]
    for item, error in zip(found.runs, found.errors, strict=True):
        assert item.step_seconds is not None
        assert error == pytest.approx(log(predicted(item, found.calibration) / item.step_seconds))
    assert 0.01 < mean_size(found.errors) < 0.03


def mean_size(errors: tuple[float, ...]) -> float:
    """Mean without signs."""
    return sum(map(abs, errors)) / len(errors)


def test_errors_of_left_out_models_are_larger() -> None:
    """On average: each model is foreign to the fit then."""
    found = whole()
    assert len(found.left_out_errors) == len(found.errors)
    assert mean_size(found.left_out_errors) >= mean_size(found.errors)


def test_an_outlier_hardly_moves_the_constants() -> None:
    """A run three times as slow as the others say, as least squares would never shrug off."""
    runs = list(measured())
    runs[10] = replace(runs[10], step_seconds=3 * (runs[10].step_seconds or 0.0))
    before, after = constants(whole()), constants(fit(runs, BARE))
    for name in (MATMUL, "families.A100.launch_seconds", "links.infiniband.efficiency"):
        assert after[name].value == pytest.approx(before[name].value, rel=0.05), name


def test_bounds_hold() -> None:
    """However slow or fast the runs are."""
    for factor in (30.0, 1 / 30):
        runs = [replace(item, step_seconds=factor * (item.step_seconds or 0.0)) for item in few(5)]
        found = constants(fit(runs, BARE))
        assert found
        for name, item in found.items():
            section, _, constant = name.split(".")
            low, high = BOUNDS[f"{section}.{constant}"]
            assert low * 0.999 <= item.value <= high * 1.001, name


def test_a_constant_that_no_run_tells_keeps_its_value() -> None:
    """Runs on one node say nothing of the network between nodes; ``rail`` is nothing to a single card."""
    inside = [item for item in measured() if item.cluster is ONE]
    found = fit(inside, BARE).calibration
    assert found.link("infiniband") == BARE.link("infiniband")
    assert not [item.name for item in found.constants if item.name.startswith("links.")]
    assert whole().calibration.link("infiniband").rail == BARE.link("infiniband").rail
    assert "links.infiniband.rail" not in constants(whole())


def test_what_is_told_comes_on_top_of_what_was_known() -> None:
    """Other families' constants and error bars stay; equal names are replaced, and once."""
    known = Constant(name="families.V100.matmul_efficiency", value=0.7, provenance="measured", spread=0.01)
    old = Constant(name=MATMUL, value=0.4, provenance="datasheet", spread=0.3)
    bars = (
        Residual(family="V100", stack="megatron", rows=7, spread=0.09),
        Residual(family="A100", stack="megatron", rows=7, spread=0.5),
    )
    base = replace(BARE, constants=(known, old), residuals=bars, notes="kept")
    found = fit(few(), base).calibration
    names = [item.name for item in found.constants]
    assert len(names) == len(set(names))
    assert known in found.constants
    assert old not in found.constants
    assert found.notes == "kept"
    assert found.residuals[0] == bars[0]
    assert [(item.family, item.rows) for item in found.residuals] == [("V100", 7), ("A100", 9)]


def test_guessed_runs_are_left_out() -> None:
    """Absurd seconds of runs whose plan is a guess change nothing."""
    guessed = [
        replace(item, id=f"guessed-{item.id}", doubt="micro-batch 1 assumed", step_seconds=1e6)
        for item in few(3)
    ]
    assert fit([*few(), *guessed], BARE) == fit(few(), BARE)


def test_runs_without_seconds_or_price_are_left_out() -> None:
    """Memory alone tells no step time; a plan on a pool that is not there has none."""
    unpriced = replace(few()[0], cluster=ONE.model_copy(update={"pools": ()}))
    silent = replace(few()[0], step_seconds=None)
    assert fit([*few(), unpriced, silent], BARE) == fit(few(), BARE)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_runs(count: int) -> None:
    """Too few for anything; the message counts what was given and what can be used."""
    silent = replace(few()[0], step_seconds=None)
    with pytest.raises(UsageError) as caught:
        fit([*few(count), silent], BARE)
    assert caught.value.message == f"{count} of {count + 1} runs can be fitted to, expected at least 3"
    assert "step time" in str(caught.value.hint)


def test_few_runs_give_a_cautious_error_bar() -> None:
    """Below five runs none of their own; then wider than the errors of the fit, the wider the fewer there are."""
    assert fit(few(4), BARE).calibration.residuals == ()
    spreads = []
    for found in (fit(few(5), BARE), whole()):
        (bar,) = found.calibration.residuals
        assert (bar.family, bar.stack, bar.rows) == ("A100", "megatron", len(found.runs))
        assert mean_size(found.errors) < bar.spread < BARE.default_spread
        assert found.calibration.spread(["A100"], "megatron") == bar.spread
        spreads.append(bar.spread)
    assert spreads[0] > spreads[1]
    assert fit(few(4), BARE).calibration.spread(["A100"], "megatron") == BARE.default_spread


def test_sources_weigh_alike() -> None:
    """Nine runs 2 % too slow and three 2 % too fast of the same plans: the middle, not the mean of runs."""
    three = measured(list(unmeasured())[8:14:2], TRUTH, 0.0)
    slow = [scaled(item, f"{item.id}-{copy}", 1.02, "many") for copy in range(3) for item in three]
    fast = [scaled(item, item.id, 0.98, "few") for item in three]
    found = fit([*slow, *fast], BARE)
    assert abs(sum(found.errors[:9]) / 9 + sum(found.errors[9:]) / 3) < 0.008


def scaled(item: Run, name: str, factor: float, source: str) -> Run:
    """A run of a source that took so much longer."""
    return replace(item, id=name, source=source, step_seconds=factor * (item.step_seconds or 0.0))


def test_a_second_stack_is_told_from_the_first() -> None:
    """Its host time is a multiple of the reference's."""
    slow = replace(TRUTH, stacks={**TRUTH.stacks, "deepspeed": Stack(host_factor=2.5)})
    model = named(1024, sequence_length=256, global_batch=256)
    others = [
        run(f"d{size}", ONE, model, plan(model, 8, 1, 1, size, target="deepspeed")) for size in (1, 2, 4, 8)
    ]
    found = fit([*few(), *measured(others, slow)], BARE)
    item = constants(found)["stacks.deepspeed.host_factor"]
    assert abs(log(item.value / 2.5)) < max(3 * (item.spread or 0.0), 0.1)


def test_every_round_is_told() -> None:
    """Rounds in order, and an error that ends where the fit ends."""
    told: list[tuple[int, float]] = []
    found = fit(few(), BARE, lambda rounds, error: told.append((rounds, error)))
    assert [rounds for rounds, _ in told] == list(range(1, len(told) + 1))
    assert min(error for _, error in told) == pytest.approx(mean_size(found.errors), rel=0.2)


def test_equal_runs_give_equal_fits() -> None:
    """Nothing is drawn by lot; the order of runs moves no constant by more than its last digits."""
    again = fit(tuple(reversed(few())), Calibration(stacks=dict(BARE.stacks)))
    first = fit(few(), BARE)
    assert first == fit(few(), BARE)
    for name, item in constants(first).items():
        assert constants(again)[name].value == pytest.approx(item.value, rel=5e-3)
