"""Families of plans and the reasons that they lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import patch

import pytest

from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ExpertsSpec, ModelSpec
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explain.families import (
    NEAR,
    FamilyPlans,
    families,
    reason_against,
    slower_by,
    worst_cause,
)
from planner.search.explain.reasons import CUT_SHORT
from planner.search.explorer import Explorer
from planner.search.heuristics.quick import CheapLook
from planner.search.incumbent import family_of
from planner.search.solve import search
from planner.search.values import Alternative, Limits, Scored, Silent
from tests.cases import VIEW
from tests.quick import first
from tests.report import examples
from tests.worlds import cluster, gpt, pool


def problem() -> tuple[ClusterSpec, ModelSpec]:
    """Two A100 and two V100."""
    return cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)), gpt(4, 512, 8, global_batch=8)


def changed(step_seconds: float, **causes: float) -> Scored:
    """The example's plan with another step, some causes of it changed."""
    scored = examples.scored(24, step_seconds)
    breakdown = replace(examples.scored().estimate.breakdown, **causes)
    return Scored(plan=scored.plan, estimate=replace(scored.estimate, breakdown=breakdown))


def test_the_reason_is_the_component_that_grew_most() -> None:
    """With its share of the winner's step; fewer devices are said where they are why."""
    winner = examples.scored()
    slower = changed(30.0, bubble_seconds=7.9, optimizer_seconds=0.3)
    assert worst_cause(slower, winner)[0] == "bubble and sends"
    assert reason_against(slower, winner) == "bubble and sends +10 %"
    computes = changed(40.8, compute_seconds=19.04 + 13.6)
    assert reason_against(computes, winner) == "compute +50 %"
    plan = winner.plan
    fewer = replace(plan, stages=tuple(replace(stage, replicas=stage.replicas) for stage in plan.stages))
    more = tuple(
        replace(stage, replicas=tuple(replace(group, count=2, local_batch=128) for group in stage.replicas))
        for stage in plan.stages
    )
    wide = Scored(plan=replace(plan, stages=more), estimate=winner.estimate)
    assert reason_against(Scored(plan=fewer, estimate=computes.estimate), wide) == (
        "compute +50 %, 8 fewer devices"
    )


def test_equal_and_faster_plans_lose_for_no_component() -> None:
    """A search that stops within its gap may leave a faster plan to a family."""
    winner = examples.scored()
    assert reason_against(winner, winner) == "as fast"
    assert reason_against(changed(27.064), winner) == "0.5 % faster: the search may stop before it"


def test_families_lie_within_the_limits() -> None:
    """No pipelines where one stage is asked for, none with tensor parallelism for DeepSpeed."""
    names = [name for name, _ in families(Limits(pp=(1,)))]
    assert not any("pipeline" in name for name in names)
    names = [name for name, _ in families(Limits(target="deepspeed", tp=(1,)))]
    assert names == [f"deepspeed: ZeRO-{zero}" for zero in range(4)] + ["deepspeed: pipeline"]
    names = [name for name, _ in families(Limits(target="deepspeed", tp=(2,)))]
    assert names == ["deepspeed: data + tensor"]


def test_families_obey_the_limits_that_they_share_with_the_user() -> None:
    """A pipeline of the family is no deeper than the user allows, and so with degrees and ZeRO stages."""
    pp, tp, zero = (1, 2, 3), (1, 4), (0, 3)
    for name, own in families(Limits(pp=pp, tp=tp, zero=zero)):
        for values, allowed in ((own.pp, pp), (own.tp, tp), (own.zero, zero)):
            assert values, name
            assert set(values) <= set(allowed), name


def beside(best: Scored, spec: ClusterSpec, model: ModelSpec, limits: Limits) -> tuple[Alternative, ...]:
    """What is said of each family beside a plan."""
    plans = FamilyPlans(Estimator(spec, model), limits)
    plans.look(best)
    return plans.beside(best)


def test_every_plan_is_of_its_family_or_pool() -> None:
    """The family of a plan, told from the plan, is the one that it stands for."""
    spec, model = problem()
    best = search(spec, model, explain=False).best
    assert best is not None
    for entry in beside(best, spec, model, Limits()):
        if entry.scored is not None and entry.family.startswith("only "):
            pools = {group.pool for stage in entry.scored.plan.stages for group in stage.replicas}
            assert entry.family == f"only {' '.join(pools)}"
        elif entry.scored is not None:
            assert family_of(entry.scored) == entry.family


class Blind:
    """A look that finds nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def begin(self) -> None:
        """Nothing."""

    def go_on(self) -> None:
        """Nothing either."""


def test_a_family_without_a_quick_plan_is_searched_for_one() -> None:
    """Briefly: it is said to have none only where that finds none either."""
    spec, model = problem()
    best = search(spec, model, limits=Limits(target="torch"), explain=False).best
    assert best is not None
    with patch("planner.search.explain.families.CheapLook", Blind):
        found = [entry for entry in beside(best, spec, model, Limits(target="torch")) if ":" in entry.family]
        assert len(found) > 3
        assert all(entry.scored is not None for entry in found)
        with patch("planner.search.explain.families.first_found", return_value=None):
            (_, *others) = beside(best, spec, model, Limits(target="torch"))
    assert {entry.reason for entry in others} == {"no plan found that fits"}


def test_what_a_search_for_any_plan_leaves_open_is_said() -> None:
    """Its first plan may be far from the best of the family; where time is up before it ends, there may be one."""
    spec, model = problem()
    limits = Limits(target="torch")
    best = search(spec, model, limits=limits, explain=False).best
    assert best is not None
    here = "planner.search.explain.families."
    with patch(f"{here}CheapLook", Blind), patch(f"{here}FAR", 0.0):
        (_, *others) = (entry for entry in beside(best, spec, model, limits) if ":" in entry.family)
        assert others
        slower = [entry for entry in others if entry.scored and slower_by(entry.scored, best) > 0]
        assert slower
        assert all(entry.reason.endswith("; hardly searched") for entry in slower)
        for seconds in (0.0, 60.0):
            found = FamilyPlans(Estimator(spec, model), limits, Deadline.after(seconds))
            with (
                patch(f"{here}first_found", return_value=None),
                patch(f"{here}SEARCHED_SHARE", 0.0),
            ):
                found.look(best)
            reasons = {entry.reason for entry in found.beside(best)[1:] if ":" in entry.family}
            assert reasons == ({"no plan found that fits; hardly searched"} if seconds else set())


def test_families_that_do_not_fit_say_what_is_missing() -> None:
    """ZeRO-0 needs all states on every device; a pool without the number format has no plan."""
    spec = cluster(pool("a"), pool("b", "V100"))
    model = gpt(32, 4096, 32, global_batch=64, precision="bf16")
    best = search(spec, model, explain=False).best
    assert best is not None
    found = {entry.family: entry for entry in beside(best, spec, model, Limits())}
    assert found["deepspeed: ZeRO-0"].scored is None
    assert found["deepspeed: ZeRO-0"].reason.startswith("does not fit: A100 (a) lacks ")
    assert found["only b"].reason == "no bf16"


def test_families_that_the_training_rules_out_say_what_of_it() -> None:
    """Megatron has no unfused norms; the model itself it would train."""
    spec, model = cluster(pool("a", per_node=2)), gpt(4, 1024, 8, global_batch=16, norms="unfused")
    best = search(spec, model, explain=False).best
    assert best is not None
    found = {entry.family: entry.reason for entry in beside(best, spec, model, Limits())}
    assert found["megatron: data parallel"] == "not with norms unfused"


@pytest.mark.slow
def test_what_is_missing_is_told_of_whole_sequences_where_others_may_be_divided() -> None:
    """Context parallelism needs less than what a device lacks for a sequence of its own."""
    spec = cluster(pool("a"))
    model = gpt(32, 4096, 32, global_batch=8, sequence_length=32_768, precision="bf16")
    best = search(spec, model, explain=False).best
    assert best is not None
    found = {entry.family: entry for entry in beside(best, spec, model, Limits())}
    assert found["torch: ZeRO-0"].reason.startswith("does not fit: A100 (a) lacks ")
    assert found["torch: ZeRO-0"].reason.endswith(" GiB with whole sequences")


@pytest.mark.slow
def test_tensor_parallelism_that_trains_no_experts_is_told_as_such() -> None:
    """By torch, whatever fits; Megatron has it."""
    spec, dense = problem()
    model = dense.model_copy(update={"experts": ExpertsSpec(number=4, top_k=2, ffn=512)})
    limits = Limits(target="torch")
    best = search(spec, model, limits=limits, explain=False).best
    assert best is not None
    found = {entry.family: entry.reason for entry in beside(best, spec, model, limits)}
    assert found["torch: data + tensor"] == found["torch: pipeline + tensor"] == "not with experts"
    best = search(spec, model, limits=Limits(target="megatron"), explain=False).best
    assert best is not None
    others = beside(best, spec, model, Limits(target="megatron"))
    assert "not with experts" not in {entry.reason for entry in others}


def test_tensor_parallelism_that_divides_no_towers_is_told_as_such() -> None:
    """Not as plans that were looked for and not found."""
    spec, dense = problem()
    model = dense.model_copy(update={"tower": VIEW})
    limits = Limits(target="torch")
    best = search(spec, model, limits=limits, explain=False).best
    assert best is not None
    found = {entry.family: entry.reason for entry in beside(best, spec, model, limits)}
    assert found["torch: data + tensor"] == found["torch: pipeline + tensor"] == "divides no towers"


def test_degrees_that_divide_no_model_are_told_as_such() -> None:
    """With the first of them: an odd number of heads."""
    spec, dense = problem()
    model = dense.model_copy(update={"heads": 7, "kv_heads": 7, "head_dim": 64})
    limits = Limits(target="megatron")
    best = search(spec, model, limits=limits, explain=False).best
    assert best is not None
    found = {entry.family: entry.reason for entry in beside(best, spec, model, limits)}
    assert found["megatron: data + tensor"] == "tp 2 does not divide the 7 attention heads"


@pytest.mark.slow
def test_a_target_with_degrees_for_each_stage_has_pools_too() -> None:
    """FlagScale: one row for each pool that is not the answer's."""
    spec, model = (
        cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)),
        gpt(4, 1024, 8, global_batch=4),
    )
    limits = Limits(target="flagscale")
    best = search(spec, model, limits=limits, explain=False).best
    assert best is not None
    used = {group.pool for stage in best.plan.stages for group in stage.replicas}
    entries = beside(best, spec, model, limits)[1:]
    assert {entry.family for entry in entries} == {f"only {name}" for name in "ab" if used != {name}}
    assert all(entry.scored is not None for entry in entries)


@pytest.mark.parametrize("limits", first(1, [Limits(pp=(1,)), Limits(), Limits(target="megatron")]))
def test_the_same_reasons_every_time(limits: Limits) -> None:
    """Nothing depends on the clock or on what was searched before."""
    spec, model = (
        cluster(pool("a", per_node=1), pool("b", "V100", per_node=1)),
        gpt(4, 512, 8, global_batch=4),
    )
    first, second = (search(spec, model, limits=limits) for _ in range(2))
    assert first.alternatives == second.alternatives
    assert first.idle_costs == second.idle_costs
    assert first.advice == second.advice


def explored() -> tuple[Explorer, Scored]:
    """A whole search, and its answer."""
    explorer = Explorer(Estimator(*problem()), Limits(), Silent())
    explorer.run()
    assert explorer.best is not None
    return explorer, explorer.best


def test_families_are_those_that_the_search_has_met() -> None:
    """The fastest met plan of a family, as long as it is near to the answer; the rest is looked for."""
    explorer, best = explored()
    found = FamilyPlans(explorer.estimator, Limits(), met=explorer.met)
    with patch("planner.search.explain.families.CheapLook", side_effect=Blind) as looked:
        assert found.look(best)
    entries = {entry.family: entry.scored for entry in found.beside(best)}
    met = {name: scored for name, scored in explorer.met.plans.items() if name in entries}
    assert len(met) > 2
    for name, scored in met.items():
        assert entries[name] is (best if name == family_of(best) else scored)
        assert scored.estimate.step_seconds >= best.estimate.step_seconds
    near = [name for name, scored in met.items() if slower_by(scored, best) <= NEAR]
    assert near
    assert looked.call_count <= len(entries) - len(near)


def test_a_poor_plan_of_a_family_that_had_no_time_is_not_told_as_its_best() -> None:
    """A plan far from the answer says so, unless its family was looked into."""
    explorer, best = explored()
    marks = []
    for deadline in (Deadline.after(0.0), NO_LIMIT):
        found = FamilyPlans(explorer.estimator, Limits(), deadline, met=explorer.met)
        with patch("planner.search.explain.families.FAR", 0.25):
            found.look(best)
            others = [entry for entry in found.beside(best)[1:] if entry.scored is not None]
        far = {entry.family for entry in others if entry.scored and slower_by(entry.scored, best) > 0.25}
        marks.append({entry.family for entry in others if entry.reason.endswith("; hardly searched")})
        assert marks[-1] == (far if deadline is not NO_LIMIT else set())
    assert marks[0]


def test_what_the_share_cuts_is_said_and_the_answer_stays() -> None:
    """No time for looks: met families are told all the same, ``--advice`` and no limit give them the time."""
    spec, model = problem()
    limits = Limits(target="deepspeed", time_limit_seconds=60.0)
    share = "planner.search.explain.reasons."
    with patch(f"{share}LEAST_SECONDS", 0.0), patch(f"{share}REASONS_SHARE", 0.0):
        cut = search(spec, model, limits=limits)
        whole = search(spec, model, limits=limits, advice=True)
    assert cut.warnings == (CUT_SHORT,)
    assert whole.warnings == ()
    assert cut.best is not None
    assert whole.best is not None
    assert cut.best.plan == whole.best.plan
    assert {entry.family for entry in cut.alternatives} < {entry.family for entry in whole.alternatives}


def test_looks_go_on() -> None:
    """No family is found slower than by the first part of its look, and some are found faster."""
    spec, model = problem()[0], gpt(8, 1024, 16, global_batch=16)
    best = search(spec, model, explain=False).best
    assert best is not None
    with patch.object(CheapLook, "go_on", return_value=None):
        first = seconds_of(beside(best, spec, model, Limits()))
    whole = seconds_of(beside(best, spec, model, Limits()))
    assert first.keys() == whole.keys()
    assert all(whole[name] <= seconds for name, seconds in first.items())
    assert sum(whole.values()) < sum(first.values())


def seconds_of(entries: Iterable[Alternative]) -> dict[str, float]:
    """Steps by family."""
    return {entry.family: entry.scored.estimate.step_seconds for entry in entries if entry.scored}
