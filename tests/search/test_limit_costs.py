"""What the user's limits cost."""

from __future__ import annotations

import pytest

from planner.capabilities import OFFLOAD_PARTS
from planner.cost.estimate import Estimator
from planner.report.goal import limit_text
from planner.search.explain.sensitivity import given, limit_costs, option_text, used, without
from planner.search.solve import search
from planner.search.values import Limits
from tests.worlds import cluster, gpt, pool, with_hosts

SPEC, MODEL = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)), gpt(8, 512, 8, global_batch=16)


def seconds(limits: Limits) -> float:
    """The best step."""
    found = search(SPEC, MODEL, limits=limits, explain=False)
    assert found.best is not None
    return found.best.estimate.step_seconds


def test_a_limit_costs_what_the_search_without_it_gains() -> None:
    """Two limits that hurt: each is told with the plan that a search without it finds, the worse one first."""
    limits = Limits(target="megatron", tp=(2,), zero=(1,), recompute=("full",))
    found = search(SPEC, MODEL, limits=limits)
    assert found.best is not None
    step = found.best.estimate.step_seconds
    assert len(found.limit_costs) >= 2
    assert [entry.costs for entry in found.limit_costs] == sorted(
        (entry.costs for entry in found.limit_costs), reverse=True
    )
    for entry in found.limit_costs:
        exact = seconds(without(limits, entry.limit))
        faster = entry.scored.estimate.step_seconds
        assert entry.costs == pytest.approx(step / faster - 1)
        assert entry.costs > 0.05
        assert exact * (1 - 0.01) <= faster <= exact * 1.05
        assert entry.instead == used(entry.limit, entry.scored)
        assert not set(entry.instead) <= set(entry.given)


def test_what_offload_would_save() -> None:
    """Where nobody spoke of it: told, but not the answer, whose proof leaves it out."""
    world = with_hosts(27)
    found = search(*world, Limits())
    assert found.best is not None
    assert not found.best.plan.offload.anything
    (entry,) = (each for each in found.limit_costs if each.limit == "offload")
    assert entry.given == ()
    assert entry.instead == used("offload", entry.scored)
    freely = search(*world, Limits(offload=OFFLOAD_PARTS), explain=False).best
    assert freely is not None
    faster, slower = entry.scored.estimate.step_seconds, found.best.estimate.step_seconds
    assert freely.estimate.step_seconds <= faster * 1.01 < slower
    assert limit_text(entry, slower).startswith(
        f"--offload {','.join(map(str, entry.instead))} makes the step at least 5"
    )
    # It was asked for, or asked to stay away: the plain limit is told, if it costs anything.
    assert search(*world, Limits(offload=OFFLOAD_PARTS)).limit_costs == ()
    (told,) = search(*world, Limits(offload=("none",))).limit_costs
    assert told.given == ("none",)


@pytest.mark.slow
def test_limits_that_cost_nothing_are_not_told() -> None:
    """The degree and depth of the best plan itself; and no limits at all."""
    spec, model = SPEC, MODEL
    best = search(spec, model, explain=False).best
    assert best is not None
    limits = Limits(
        target=best.plan.target, pp=(best.plan.pp,), zero=(best.plan.zero,), time_limit_seconds=60.0
    )
    assert limit_costs(best, Estimator(spec, model), limits) == ()
    assert limit_costs(best, Estimator(spec, model), Limits()) == ()


def test_limits_by_name() -> None:
    """Those that are set, and the same without some."""
    limits = Limits(tp=(1,), pp=(1, 2), gap=0.05)
    assert given(limits) == ("tp", "pp")
    assert without(limits, "tp") == Limits(pp=(1, 2), gap=0.05)
    assert without(limits, "tp", "pp") == Limits(gap=0.05)


def test_options_as_typed() -> None:
    """Runs of numbers are shortened."""
    assert option_text("pp", (1, 2, 3, 4)) == "--pp 1..4"
    assert option_text("tp", (1, 2)) == "--tp 1,2"
    assert option_text("micro_batch", (1, 2, 4)) == "--micro-batch 1,2,4"
    assert option_text("recompute", ("full",)) == "--recompute full"
