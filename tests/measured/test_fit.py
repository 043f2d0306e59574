"""Constants fitted to runs that were made with known ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import hypot, log, sqrt

import numpy as np
import pytest

from planner.calibration.values import Constant, Residual
from planner.cost.estimate import estimate
from planner.errors import UsageError
from planner.measured.dual import Dual, slopes_of
from planner.measured.fit import HELD, MOST, Fit, _bars, _Problem, fit, robust_spread, robust_variance
from planner.measured.priors import KERNEL_SETS, best_share
from planner.measured.values import Run
from tests.measured.synthetic import BEFORE, ONE, TRUTH, measured, named, plan, predicted, run, unmeasured

MATMUL = "families.A100.matmul_efficiency"
TOLD = {
    "families.A100.launch_seconds": TRUTH.family("A100").launch_seconds,
    "families.A100.link_efficiency": TRUTH.family("A100").link_efficiency,
    "frameworks.megatron.host_factor": TRUTH.framework("megatron").host_factor,
    "links.infiniband.efficiency": TRUTH.link("infiniband").efficiency,
}
"""Constants that the runs say something of, and what they were made with."""


@cache
def whole() -> Fit:
    """Fitted to all runs, from the assumed constants."""
    return fit(measured(), BEFORE)


def few(count: int = 9) -> tuple[Run, ...]:
    """Some of the runs, of one model."""
    return measured()[8 : 8 + count]


def constants(found: Fit) -> dict[str, Constant]:
    """By name."""
    return {item.name: item for item in found.calibration.constants}


def test_constants_are_recovered_within_their_spreads() -> None:
    """Nearer to the truth than three of them; products of constants are known better than each alone."""
    found = constants(whole())
    for name, true in TOLD.items():
        item = found[name]
        assert item.spread is not None
        assert abs(log(item.value / true)) < 3 * item.spread, name
    calibration = whole().calibration
    for owner in (calibration, TRUTH):
        assert owner.framework("megatron").matmul_factor > 0
    host = calibration.family("A100").launch_seconds * calibration.framework("megatron").host_factor
    true = TRUTH.family("A100").launch_seconds * TRUTH.framework("megatron").host_factor
    assert abs(log(host / true)) < 0.05
    assert (
        abs(log(true / (BEFORE.family("A100").launch_seconds * BEFORE.framework("megatron").host_factor)))
        > 0.5
    )


def test_the_calibration_says_what_the_constants_say() -> None:
    """The same numbers in both places, and nothing fitted outside the runs' family, framework and network."""
    found = whole().calibration
    owners = {"families": found.families, "frameworks": found.frameworks, "links": found.links}
    for name, item in constants(whole()).items():
        section, _, rest = name.partition(".")
        owner, _, constant = rest.rpartition(".")
        assert getattr(owners[section][owner], constant) == item.value  # type: ignore[index]
    fitted = {name.split(".")[1] for name, item in constants(whole()).items() if item.provenance == "fitted"}
    assert fitted <= {"A100", "megatron", "infiniband", "roce"}
    assert found.framework("torch") == BEFORE.framework("torch")
    assert found.link("infiniband") == found.link("roce")


def test_derivatives_are_exact() -> None:
    """Those of numbers that carry them, next to differences."""
    for item in few(6):
        for constant in ("matmul_efficiency", "launch_seconds", "link_efficiency"):
            family = TRUTH.family("A100")
            value = getattr(family, constant)

            def seconds(changed: float, item: Run = item, constant: str = constant) -> float:
                part = replace(TRUTH.family("A100"), **{constant: changed})
                return predicted(item, replace(TRUTH, families={**TRUTH.families, "A100": part}))

            exact = seconds(Dual(value, np.ones(1)))
            step = 1e-6 * value
            assert float(exact) == pytest.approx(seconds(value), rel=1e-12)
            assert slopes_of(exact, 1)[0] == pytest.approx(
                (seconds(value + step) - seconds(value - step)) / (2 * step), rel=1e-3, abs=1e-9
            )


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


def test_errors_of_left_out_sources_are_larger() -> None:
    """A source is foreign to the fit then; the only one leaves nothing but what was known before."""
    found = whole()
    assert len(found.left_out_errors) == len(found.errors)
    assert mean_size(found.left_out_errors) > mean_size(found.errors)
    before = [log(predicted(item, BEFORE) / (item.step_seconds or 1.0)) for item in measured()]
    assert mean_size(tuple(before)) == pytest.approx(mean_size(found.left_out_errors), rel=0.25)


def test_an_outlier_hardly_moves_the_constants() -> None:
    """A run three times as slow as the others say, as least squares would never shrug off."""
    runs = list(measured())
    runs[10] = replace(runs[10], step_seconds=3 * (runs[10].step_seconds or 0.0))
    before, after = constants(whole()), constants(fit(runs, BEFORE))
    for name in (MATMUL, "families.A100.launch_seconds", "links.infiniband.efficiency"):
        assert after[name].value == pytest.approx(before[name].value, rel=0.05), name


def test_what_is_far_off_counts_for_less() -> None:
    """The variance of an error grows with what is found of it, in proportion where that is far off."""
    usual, far, farther = (float(robust_variance(0.05, np.array(found))) for found in (0.0, 1.0, 2.0))
    assert usual == pytest.approx(0.05**2)
    assert farther / far == pytest.approx(2, rel=0.01)


def test_bounds_hold() -> None:
    """However fast the runs are: no share above its hardware, no product above the best one measured."""

    def at_the_peak(item: Run) -> Run:
        known = estimate(item.plan, item.cluster, item.model, BEFORE)
        return replace(item, step_seconds=known.step_seconds * known.mfu / 0.999)

    runs = [at_the_peak(item) for item in few(5)]
    found = constants(fit(runs, BEFORE))
    assert found
    for name, item in found.items():
        section, constant = name.partition(".")[0], name.rpartition(".")[2]
        assert item.value <= MOST.get(f"{section}.{constant}", float("inf")) * 1.001, name
    assert found[MATMUL].value <= best_share("A100") * 1.001


def test_a_constant_that_no_run_tells_keeps_its_value() -> None:
    """Runs on one node say nothing of the network between nodes."""
    inside = [item for item in measured() if item.cluster is ONE]
    found = fit(inside, BEFORE).calibration
    before = BEFORE.link("infiniband").efficiency
    assert found.link("infiniband").efficiency == pytest.approx(before, rel=2e-3)
    assert not [
        item.name
        for item in found.constants
        if item.name.startswith("links.") and item.provenance == "fitted"
    ]


def test_what_is_told_comes_on_top_of_what_was_known() -> None:
    """Other families' constants and error bars stay; equal names are replaced, and once."""
    known = Constant(name="families.V100.matmul_efficiency", value=0.7, provenance="measured", spread=0.01)
    old = Constant(name=MATMUL, value=0.4, provenance="datasheet", spread=0.3)
    bars = (
        Residual(family="V100", framework="megatron", rows=7, spread=0.09),
        Residual(family="A100", framework="megatron", rows=7, spread=0.5),
    )
    base = replace(BEFORE, constants=(known, old), residuals=bars, notes="kept")
    found = fit(few(), base).calibration
    names = [item.name for item in found.constants]
    assert len(names) == len(set(names))
    assert known in found.constants
    assert old not in found.constants
    assert found.notes == "kept"
    assert found.residuals[0] == bars[0]
    assert [(item.family, item.rows) for item in found.residuals] == [("V100", 7), ("A100", 9)]
    assert MATMUL in names


def test_doubts_about_a_run_weaken_it() -> None:
    """Runs three times as slow move the constants little when their micro-batch is a guess."""
    slow = [
        replace(item, id=f"slow-{item.id}", source="other", step_seconds=3 * (item.step_seconds or 0.0))
        for item in few(3)
    ]
    doubted = [replace(item, doubt="micro-batch 1 assumed") for item in slow]
    name = "frameworks.megatron.stream_factor"
    without, weak, strong = (
        log(constants(fit([*few(), *extra], BEFORE))[name].value) for extra in ((), doubted, slow)
    )
    assert abs(weak - without) < 0.5 * abs(strong - without)


def test_runs_without_seconds_or_price_are_left_out() -> None:
    """Memory alone tells no step time; a plan on a pool that is not there has none."""
    unpriced = replace(few()[0], cluster=ONE.model_copy(update={"pools": ()}))
    silent = replace(few()[0], step_seconds=None)
    assert fit([*few(), unpriced, silent], BEFORE) == fit(few(), BEFORE)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_runs(count: int) -> None:
    """Too few for anything; the message counts what was given and what can be used."""
    silent = replace(few()[0], step_seconds=None)
    with pytest.raises(UsageError) as caught:
        fit([*few(count), silent], BEFORE)
    assert caught.value.message == f"{count} of {count + 1} runs can be fitted to, expected at least 3"
    assert "step time" in str(caught.value.hint)


def test_few_runs_have_no_error_bar_of_their_own() -> None:
    """Below five; then what held their errors before they were known, if that is less than the default."""
    assert fit(few(4), BEFORE).calibration.residuals == ()
    found = whole()
    (bar,) = found.calibration.residuals
    assert (bar.family, bar.framework, bar.rows) == ("A100", "megatron", len(found.runs))
    own = robust_spread(np.array(found.left_out_errors))
    told = sqrt((own**2 + BEFORE.default_spread**2) / 2)
    assert bar.spread == pytest.approx(min(told, BEFORE.default_spread), rel=0.05)
    assert found.calibration.spread(["A100"], "megatron") == bar.spread


def test_a_source_alone_narrows_its_bar_at_most() -> None:
    """It was predicted without what it now tells; doubted runs count like others."""
    runs, unknown = few(), BEFORE.default_spread
    doubted = [replace(item, doubt="micro-batch 1 assumed") for item in runs]
    for error, most in ((0.01, 0.75 * unknown), (3.0, unknown)):
        (bar,), _ = _bars(runs, [error] * len(runs), unknown)
        assert bar.spread <= most
        assert _bars(doubted, [error] * len(runs), unknown)[0] == [bar]
    assert bar.spread == unknown


def test_doubted_runs_of_one_s_own_say_nothing_of_the_bar() -> None:
    """One knows what they lack; of published ones nobody does."""
    wild = replace(scaled(few()[0], "wild", 100.0, "home"), doubt="micro-batch 1 assumed")
    (bar,) = fit([*few(), wild], BEFORE).calibration.residuals
    assert bar.rows == len(few())
    assert bar.spread <= BEFORE.default_spread


def test_bars_hold_two_thirds_of_the_runs_of_sources() -> None:
    """Each source alike, however many runs it has, and a wild one among many counts as one."""
    sizes = np.linspace(0.01, 0.3, 30)
    runs, errors = [], []
    for index, size in enumerate(sizes):
        copies = 9 if index % 2 else 3
        runs += [replace(item, id=f"{item.id}-{index}", source=f"lab-{index}") for item in few(copies)]
        errors += [-size] * copies
    (bar,), _ = _bars(runs, errors, 0.2)
    assert bar.spread == pytest.approx(np.quantile(sizes, HELD), rel=0.05)
    wild = [9.0 if run.source == "lab-29" else error for run, error in zip(runs, errors, strict=True)]
    assert _bars(runs, wild, 0.2)[0] == [bar]


def test_few_sources_of_a_work_leave_it_wide() -> None:
    """Where one family has all of them, those of another are as sure as the default and Student's t of so few."""
    unfused = few()[0].model.training.model_copy(update={"attention": "unfused", "kernels": "torch"})

    def default(sources: int, error: float = 0.4) -> float:
        """The bar of kernels that one source each has."""
        runs = [
            replace(
                item,
                id=f"{item.id}-{source}",
                source=f"lab-{source}",
                model=item.model.model_copy(
                    update={"training": unfused.model_copy(update={"kernels": KERNEL_SETS[source]})}
                ),
            )
            for source in range(sources)
            for item in few()
        ]
        return _bars(runs, [error] * len(runs), 0.4)[1]

    assert default(1) == pytest.approx(hypot(1.84 * 0.4, 0.4) / sqrt(2), rel=0.01)
    assert default(1) > default(3) > 0.4
    # Sources that are predicted well make what nobody has measured no less sure.
    assert default(1, 0.02) == default(2, 0.02) == 0.4


def test_sources_that_agree_narrow_the_bar() -> None:
    """Three that measure the same; and what nobody measured is never surer than that."""
    runs = [replace(item, id=f"{item.id}-{name}", source=name) for name in "abc" for item in measured()]
    found = fit(runs, BEFORE).calibration
    assert found.spread(["A100"], "megatron") < 0.7 * BEFORE.default_spread
    assert found.spread(["V100"], "megatron") == found.default_spread >= BEFORE.default_spread


def test_unlike_work_has_a_bar_of_its_own() -> None:
    """Runs of sources that scatter leave the bar of those that agree as it is; a few runs have none."""
    sure = [replace(item, id=f"{item.id}-{name}", source=name) for name in "abc" for item in few()]
    torch = sure[0].model.training.model_copy(update={"attention": "unfused", "kernels": "torch"})
    unlike = [
        replace(
            scaled(item, f"{item.id}-{factor}", factor, f"by {factor}"),
            model=item.model.model_copy(update={"training": torch}),
        )
        for factor in (0.65, 1.0, 2.0)
        for item in few()
    ]
    found = {item.key: item.spread for item in fit([*sure, *unlike], BEFORE).calibration.residuals}
    assert found["A100", "torch", "unfused"] > 2 * found["A100", "megatron", "dense"]


def test_one_family_tells_nothing_of_others() -> None:
    """What families have of their own stays what it was before; without that, all of what is unknown."""
    assert whole().calibration.device_spread == pytest.approx(BEFORE.default_spread)
    known = replace(BEFORE, device_spread=0.1)
    assert fit(few(4), known).calibration.device_spread == pytest.approx(0.1)


def test_sources_weigh_alike() -> None:
    """Nine runs 2 % too slow say hardly more than three of them, next to three 2 % too fast of the same plans."""
    three = measured(list(unmeasured())[8:14:2], TRUTH, 0.0)
    slow = [scaled(item, f"{item.id}-{copy}", 1.02, "many") for copy in range(3) for item in three]
    fast = [scaled(item, item.id, 0.98, "few") for item in three]
    many, few_of_them = (fit([*runs, *fast], BEFORE) for runs in (slow, slow[:3]))
    assert many.errors[:3] == pytest.approx(few_of_them.errors[:3], abs=0.004)


def scaled(item: Run, name: str, factor: float, source: str) -> Run:
    """A run of a source that took so much longer."""
    return replace(item, id=name, source=source, step_seconds=factor * (item.step_seconds or 0.0))


def test_a_second_stack_is_told_from_the_first() -> None:
    """Its host time is a multiple of the other's."""
    slow = replace(
        TRUTH,
        frameworks={**TRUTH.frameworks, "deepspeed": replace(TRUTH.framework("deepspeed"), host_factor=2.5)},
    )
    model = named(1024, sequence_length=256, global_batch=256)
    others = [
        run(f"d{size}", ONE, model, plan(model, 8, 1, 1, size, target="deepspeed")) for size in (1, 2, 4, 8)
    ]
    item = constants(fit([*few(), *measured(others, slow)], BEFORE))["frameworks.deepspeed.host_factor"]
    assert abs(log(item.value / 2.5)) < max(3 * (item.spread or 0.0), 0.1)


def test_every_round_is_told() -> None:
    """Rounds in order, and an error that ends where the fit ends."""
    told: list[tuple[int, float]] = []
    found = fit(few(), BEFORE, lambda rounds, error: told.append((rounds, error)))
    assert [rounds for rounds, _ in told] == list(range(1, len(told) + 1))
    assert min(error for _, error in told) == pytest.approx(mean_size(found.errors), rel=0.2)


def test_equal_runs_give_equal_fits() -> None:
    """Nothing is drawn by lot; the order of runs moves no constant by more than its last digits."""
    again = fit(tuple(reversed(few())), BEFORE)
    first = fit(few(), BEFORE)
    assert first == fit(few(), BEFORE)
    for name, item in constants(first).items():
        assert constants(again)[name].value == pytest.approx(item.value, rel=5e-3)


def test_sources_that_contradict_each_other_are_named() -> None:
    """One measures the same plans half as fast: nobody but the reader can say which is wrong."""
    slow = [scaled(item, f"slow-{item.id}", 2.0, "other") for item in measured()]
    warnings = fit([*measured(), *slow], BEFORE).warnings
    assert any(
        "contradict" in line and "lab" in line and "other" in line and slow[0].id in line for line in warnings
    )
    assert not any("contradict" in line for line in whole().warnings)


def test_runs_that_no_constants_explain() -> None:
    """Those far slower than all others of the source are named, those above the peak or in another unit refused."""
    first, *others = measured()
    with pytest.raises(UsageError, match=r"runs faster than the peak of their devices: fast \("):
        fit([scaled(first, "fast", 0.01, "lab"), *others[:20]], BEFORE)
    with pytest.raises(
        UsageError, match=r"runs far slower than any constants would make them: ms \(\d{3,4} times"
    ):
        fit([scaled(first, "ms", 1000.0, "lab"), *others[:20]], BEFORE)
    warnings = fit([*others[:20], scaled(others[20], "slow", 30.0, "lab")], BEFORE).warnings
    assert any("off by more than 3 error bars after the fit: slow (predicted -9" in line for line in warnings)
    assert not any("peak" in line or "error bars" in line for line in whole().warnings)


def test_few_runs_are_said_to_be_few() -> None:
    """Three runs move more constants than that only with the help of their priors."""
    assert any("each also rests on its prior" in line for line in fit(few(3), BEFORE).warnings)
    assert not any("each also rests on its prior" in line for line in whole().warnings)


def test_a_fit_that_has_not_come_to_rest_says_so() -> None:
    """Where rounds end is checked by a whole step from there: none goes further than a constant is known."""
    problem = _Problem(measured(), BEFORE, None, published=False)
    said = "the fit has not converged: "
    assert not any(said in line for line in whole().warnings)
    (line,) = (line for line in problem.fitted(problem.before).warnings if said in line)
    assert "would still move by" in line
