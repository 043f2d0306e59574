"""How true predictions are."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.measured.predictions import (
    by_source,
    coverage,
    errors_of,
    pair_spread,
    pairs,
    rank_correlation,
    regret,
    truth,
    worst,
)
from tests.measured.examples import GIB, failed, group, prediction, several
from tests.report import examples

SECONDS = st.floats(0.01, 1e4)


def test_sizes_and_bias() -> None:
    """By hand: sizes 5, 10, 10, 20, 40 %; the 90th percentile lies 0.6 of the way from 20 to 40."""
    found = errors_of([0.10, -0.20, 0.40, -0.10, 0.05])
    assert found.runs == 5
    assert found.mean == pytest.approx(0.17)
    assert found.median == pytest.approx(0.10)
    assert found.ninetieth == pytest.approx(0.32)
    assert found.bias == pytest.approx(0.05)


def test_one_error_is_its_own_statistic() -> None:
    """No interpolation between nothing."""
    found = errors_of([-0.25])
    assert (found.mean, found.median, found.ninetieth, found.bias) == (0.25, 0.25, 0.25, -0.25)


def test_rank_correlation() -> None:
    """1 - 6 x 2 / (4 x 15) for one swap of neighbours; ties share their rank."""
    assert rank_correlation([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(0.8)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(3**0.5 / 2)


def test_no_rank_correlation_without_variation() -> None:
    """Two runs are always in order or not; equal ones have none."""
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 2, 3], [1, 1, 1]) is None


def test_regret_is_what_the_chosen_plan_costs() -> None:
    """12 s are chosen, 10 s were possible."""
    assert regret(group((10.0, 9.0), (12.0, 8.0), (11.0, 10.0))) == pytest.approx(0.2)
    assert regret(group((10.0, 7.0), (12.0, 8.0))) == 0
    assert regret(group((10.0, 7.0))) is None


def test_what_pairs_tell_of_two_plans() -> None:
    """A common factor is in both; of (predicted, measured) 1, 2 and 4 s as 2, 4.4 and 8 one pair is 10 % off, one as
    much the other way; order counts apart."""
    alike = list(pairs(group((2.0, 1.0), (4.4, 2.0), (8.0, 4.0), (7.0, 4.4))))
    assert len(alike) == 6
    known = sorted(pair.error for pair in alike)
    assert known[:3] == pytest.approx([0.0, log(1.1), log(1.1)])
    assert [pair.reversed for pair in alike].count(True) == 1
    (one,) = by_source(alike)
    assert pair_spread([one]) == pytest.approx(known[4])
    assert pair_spread([one, [alike[0]] * 3]) == pytest.approx((known[4] + alike[0].error) / 2)
    assert by_source(alike[:2]) == []


def test_equal_predictions_are_decided_by_id() -> None:
    """Not by the measured time, which nobody has when choosing."""
    tied = [prediction(12.0, 5.0, "a"), prediction(10.0, 5.0, "b")]
    assert regret(tied) == pytest.approx(0.2)
    assert regret(reversed(tied)) == pytest.approx(0.2)


def test_coverage_is_symmetric_in_ratios() -> None:
    """ln 1.15 is within 0.15, ln 1.2 and ln 1/1.2 are not."""
    found = group((1.0, 1.15), (1.15, 1.0), (1.0, 1.2), (1.2, 1.0))
    assert coverage(found) == 0.5


def test_sources_groups_and_totals() -> None:
    """By hand from the example's numbers."""
    found = truth(several())
    assert [(entry.source, entry.errors.runs) for entry in found.sources] == [
        ("lab", 7),
        ("vtrain-single-node", 1),
    ]
    assert [(entry.model, entry.devices, entry.errors.runs) for entry in found.groups] == [
        ("gpt-1b", 8, 2),
        ("gpt-20b", 8, 1),
        ("llama-7b", 8, 4),
        ("megatron-18b", 8, 1),
    ]
    lab, other = found.sources
    assert lab.errors.mean == pytest.approx((0.1 + 0.05 + 0.1 + 0.1 + 0.5 + 0.3 / 1.1 + 0.0) / 7)
    assert lab.ranked_groups == 1
    assert lab.rank_correlation == pytest.approx(1)
    assert lab.chosen_groups == 2
    assert lab.mean_regret == pytest.approx(0.05)
    assert lab.worst_regret == pytest.approx(0.1)
    assert lab.coverage == pytest.approx(5 / 7)
    assert (other.rank_correlation, other.mean_regret, other.worst_regret) == (None, None, None)
    assert found.total is not None
    assert (found.total.source, found.total.errors.runs) == ("all", 8)
    assert found.total.mean_regret == pytest.approx(0.05)


def test_memory_and_who_was_out_of_it() -> None:
    """16.3 of 20 GiB twice; each combination of having run and being predicted to fit."""
    found = truth(several())
    assert [(entry.source, entry.errors.runs) for entry in found.memory] == [("lab", 2)]
    assert found.memory[0].errors.bias == pytest.approx(16.3 / 20 - 1)
    lab, other = found.fits
    assert (lab.both_fit, lab.both_out, lab.false_alarms, lab.missed, lab.runs) == (6, 1, 1, 1, 9)
    assert (other.both_fit, other.runs) == (1, 1)
    assert found.total_fits is not None
    assert found.total_fits.runs == 10


def test_small_groups_are_ranked_but_not_averaged() -> None:
    """Three runs have a rank correlation of their own; it says too little for the mean."""
    found = truth(group((1.0, 1.0), (2.0, 2.0), (3.0, 3.0)))
    assert found.groups[0].rank_correlation == pytest.approx(1)
    assert (found.sources[0].ranked_groups, found.sources[0].rank_correlation) == (0, None)


def test_plans_are_compared_on_one_workload() -> None:
    """The step of a smaller batch, or on faster devices, is shorter without any merit of the plan."""
    small = examples.model(global_batch=64)
    large = examples.model(global_batch=128)
    other = examples.cluster().model_copy(update={"name": "other"})
    found = truth(
        [
            prediction(12.0, 1.0, "a", model=large),
            prediction(6.0, 2.0, "b", model=small),
            prediction(5.0, 3.0, "c", model=small),
            prediction(1.0, 4.0, "d", model=small, cluster=other),
        ]
    )
    assert [(entry.cluster, entry.global_batch, entry.errors.runs) for entry in found.groups] == [
        ("example", 64, 2),
        ("example", 128, 1),
        ("other", 64, 1),
    ]
    assert [entry.regret for entry in found.groups] == [pytest.approx(0.2), None, None]
    assert found.sources[0].chosen_groups == 1


@pytest.mark.parametrize("predictions", [[], [failed("a", "no fp8")], [prediction(None, 1.0, "a")]])
def test_nothing_to_compare(predictions: list[object]) -> None:
    """No step times, no statistics of them."""
    found = truth(predictions)  # type: ignore[arg-type]
    assert (found.sources, found.groups, found.total, found.memory, found.total_memory) == (
        (),
        (),
        None,
        (),
        None,
    )


def test_the_worst_come_first() -> None:
    """By size; equal ones by id; what has no error is left out."""
    entries = [*group((8.0, 6.0), (8.0, 12.0), (8.0, 10.0)), failed("x", "no fp8")]
    assert [entry.run.id[-1] for entry in worst(entries, 2)] == ["1", "0"]
    assert worst(entries, 0) == ()


@given(st.lists(SECONDS, min_size=1, max_size=20))
def test_perfect_predictions(seconds: list[float]) -> None:
    """No error, no bias, no regret, full coverage, plans in their order."""
    found = truth(group(*((value, value) for value in seconds)))
    assert found.total is not None
    errors = found.total.errors
    assert (errors.mean, errors.ninetieth, errors.bias, found.total.coverage) == (0, 0, 0, 1)
    assert found.groups[0].regret in (None, 0)
    assert found.groups[0].rank_correlation in (None, pytest.approx(1))


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=20))
def test_what_always_holds(seconds: list[tuple[float, float]]) -> None:
    """Whatever is predicted."""
    found = truth(group(*seconds))
    assert found.total is not None
    errors = found.total.errors
    assert 0 <= errors.median <= errors.ninetieth * (1 + 1e-9)
    assert abs(errors.bias) <= errors.mean * (1 + 1e-9)
    assert found.total.mean_regret is not None
    assert found.total.mean_regret >= 0
    assert 0 <= found.total.coverage <= 1
    assert found.groups[0].rank_correlation is None or abs(found.groups[0].rank_correlation) <= 1 + 1e-9


@given(
    st.lists(SECONDS, min_size=4, max_size=20, unique_by=lambda value: round(value, 9)), st.floats(0.1, 10)
)
def test_a_wrong_scale_costs_nothing(seconds: list[float], factor: float) -> None:
    """Monotone predictions rank plans perfectly, however far off they are."""
    found = truth(group(*((value, factor * value) for value in seconds)))
    assert found.groups[0].rank_correlation == pytest.approx(1)
    assert found.groups[0].regret == 0


def test_memory_needs_no_step_time() -> None:
    """A run whose memory alone is known counts for memory alone."""
    found = truth([prediction(None, 1.0, "a", peak_memory_bytes=16.3 * GIB)])
    assert found.total_memory is not None
    assert found.total_memory.errors.mean == pytest.approx(0)
    assert found.sources == ()
