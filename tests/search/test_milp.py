"""The ILP and its solvers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import highspy
import pulp
import pytest

from planner.calibration.values import ASSUMED
from planner.capabilities import Schedule
from planner.catalog import GpuSpec
from planner.cluster.spec import NicSpec
from planner.cost.estimate import Estimator, estimate
from planner.errors import OutputError
from planner.search.deadline import NO_LIMIT
from planner.search.explorer import Explorer
from planner.search.milp import model as models
from planner.search.milp.branching import Subset
from planner.search.milp.export import write_model
from planner.search.milp.model import PipelineModel
from planner.search.milp.program import Program, ones
from planner.search.milp.solver import Relaxation, as_pulp, available, solve
from planner.search.pipeline import score
from planner.search.ranking import ranked
from planner.search.solve import search
from planner.search.space.choices import Choice, Family, choice_of, depths, families, orders_of
from planner.search.space.partitions import network_partitions
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored, Silent
from planner.targets import TARGETS
from tests.quick import every, first
from tests.search.variants import three_pools
from tests.worlds import (
    Problem,
    cluster,
    gpt,
    group,
    model,
    plan,
    pool,
    small_problem,
    with_copies,
    with_hosts,
    with_shapes,
    with_tight_memories,
)


def options(depth: int = 4, interleave: int = 1) -> StageOptions:
    """Stages of two replicas over an A100 and a V100 node."""
    estimator = Estimator(cluster(pool("a"), pool("b", "V100")), gpt())
    family = Family(target="megatron", zero=1, recompute="none", tp=2, dp=2, batch=4, micro_batches=16)
    return StageOptions(Choice(family=family, depth=depth, interleave=interleave), estimator, Limits())


def torch_stages(*, waits: bool) -> StageOptions:
    """Four stages of torch on narrow cards, also as if nothing waited for its reductions."""
    row = replace(TARGETS["torch"], reduces_in_backward=waits)
    with patch.dict(TARGETS, torch=row):
        estimator = Estimator(cluster(pool("a", gbps=5), pool("b", "V100", gbps=5)), gpt(global_batch=32))
        family = Family(target="torch", zero=1, recompute="none", tp=1, dp=4, batch=4, micro_batches=8)
        return StageOptions(Choice(family=family, depth=4, interleave=1), estimator, Limits())


def test_gradients_held_back_are_in_the_bound() -> None:
    """The reductions of three stages follow each other on the way to the first one."""
    bounds = {}
    for waits in (False, True):
        stages = torch_stages(waits=waits)
        model = PipelineModel(stages, 10.0)
        bounds[waits] = model.solve(gap=0.0).bound
        chosen = model.chosen()
        assert bounds[waits] <= stages.estimator.estimate(stages.plan(chosen)).step_seconds
        held = sum(option.held_seconds for option in chosen[1:])
        assert (held > 0) == waits
    assert bounds[True] > 1.004 * bounds[False]


def test_both_solvers_are_here() -> None:
    """HiGHS first, CBC as the fallback."""
    assert available() == ("highs", "cbc")


def knapsack(costs: tuple[float, ...], sizes: tuple[float, ...], least: float) -> Program:
    """Things of so much cost and size, of which as much is taken; column 0 is the cost, then one for each."""
    program = Program("knapsack")
    cost = program.column("cost")
    take = [program.column(f"x{index}", upper=1.0, whole=True) for index in range(len(costs))]
    program.equal({cost: -1.0, **dict(zip(take, costs, strict=True))})
    program.row(dict(zip(take, sizes, strict=True)), least=least)
    return program


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_a_knapsack(name: str) -> None:
    """Both solve, say what is infeasible, and give a bound that is not above the answer."""
    program = knapsack((5, 4, 3, 7), (2, 3, 1, 5), 6)
    solved = solve(program, gap=0.0, solver=name)
    assert solved.status == "optimal"
    assert solved.values is not None
    assert list(solved.values) == pytest.approx([10, 0, 0, 1, 1])
    assert solved.bound <= 10 + 1e-6
    program.row(ones(range(1, 5)), least=5.0)
    assert solve(program, gap=0.0, solver=name).status == "infeasible"


@pytest.mark.parametrize("first", [0, pytest.param(15, marks=pytest.mark.slow)])
def test_pulp_has_the_same_optimum_as_the_arrays(first: int) -> None:
    """Choices of all runtimes on random clusters, before and after a cut: what is exported is what is solved."""
    compared = 0
    for seed in range(first, first + 15):
        for stages in drawn_stages(seed, 4):
            model = PipelineModel(stages, 1.0)
            if not model.feasible:
                continue
            # On the scale of the answer the tolerances of the solvers are small.
            scale = 2 * min(model.relaxed_bound(), 1e9)
            model = PipelineModel(stages, scale)
            for _ in range(2):
                arrays = solve(model.program, gap=0.0)
                problem, (end, *_) = as_pulp(model.program)
                problem.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0))
                assert (arrays.status == "infeasible") == (problem.status == pulp.LpStatusInfeasible)
                if arrays.values is None:
                    break
                assert end.value() == pytest.approx(arrays.values[0], rel=1e-4, abs=1e-5)
                compared += 1
                model.solve(gap=0.0)
                model.cut_solution(model.chosen(), scale, arrays.bound * scale)
    assert compared > 30


def drawn_stages(seed: int, count: int) -> Iterator[StageOptions]:
    """Stages of choices of any runtime, drawn from a small random cluster and its parts."""
    draw, (spec, model) = random.Random(seed), three_pools(seed)
    estimator, limits = Estimator(ranked(spec), model), Limits()
    every = [
        (partition, family)
        for row in TARGETS.values()
        for partition in network_partitions(estimator, row).values()
        for family in families(row, limits, partition.estimator.model, partition.device_types)
    ]
    for partition, family in draw.sample(every, min(count, len(every))):
        part = partition.estimator
        offered = [
            depth for depth in depths(family, limits, part.model, partition.device_types) if 1 < depth < 6
        ]
        if offered:
            depth = draw.choice(offered)
            chunks, schedule = draw.choice([*orders_of(family, depth, part.model, limits)])
            choice = Choice(family=family, depth=depth, interleave=chunks, schedule=schedule)
            stages = StageOptions(choice, part, limits, partition.islands)
            if stages.compositions:
                yield stages


@pytest.mark.parametrize("seed", first(2, [2, 3, 0, 4, 5, 6]))
def test_a_plans_model_is_exported(seed: int, tmp_path: Path) -> None:
    """Another solver reads the file and finds a pipeline that the plan is no faster than."""
    spec, model = small_problem(seed)
    limits = Limits(gap=0.0, pp=(2, 3))
    result = search(spec, model, limits=limits, explain=False)
    assert result.best is not None
    path = tmp_path / "model.lp"
    write_model(path, result.best, spec, model, ASSUMED, limits)
    text = path.read_text()
    assert all(name in text for name in ("Minimize", "x_0_0", "f_0_0", "b_1_0", "Binaries"))
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(path))
    solver.run()
    # T is in units of the plan's step.
    assert 0.5 < solver.getInfo().objective_function_value <= 1 + 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        {"ep": 4, "sequence_parallel": True},
        {"etp": 2, "ep": 2, "sequence_parallel": True},
        {"cp": 2, "cp_kind": "ulysses", "sequence_parallel": True},
    ],
)
def test_the_exported_choice_is_the_plans(changes: dict[str, Any]) -> None:
    """With all that its stages have in common: what it makes of the stages is the plan."""
    stages = [(group("a", "A100", tp=2, count=4, share=8, steps=4),)] * 2
    chosen = plan("megatron", 1, [2, 2], stages, **changes)
    spec = model(chosen.global_batch, experts={"number": 4, "top_k": 2, "ffn": 64})
    choice = choice_of(chosen, chosen.stages[0].recompute)
    assert choice.plan(chosen.stages, spec) == chosen
    assert choice.family.batch * chosen.micro_batches == chosen.global_batch


@pytest.mark.parametrize("zero", every(3, range(4)))
@pytest.mark.parametrize("problem", first(2, [with_shapes, with_tight_memories, with_copies, with_hosts]))
def test_batches_are_exported(problem: Callable[[int], Problem], zero: int, tmp_path: Path) -> None:
    """Of replicas without a pipeline: another solver finds that no shares of theirs end before the plan's."""
    exported = 0
    for seed in range(8):
        spec, model, calibration = problem(seed)
        limits = Limits(gap=0.0, pp=(1,), zero=(zero,), target=("torch", "deepspeed")[seed % 2])
        best = search(spec, model, calibration=calibration, limits=limits, explain=False).best
        if best is None:
            continue
        path = tmp_path / f"{seed}.lp"
        write_model(path, best, spec, model, calibration, limits)
        assert objective(path) == pytest.approx(1.0, rel=3e-6)
        exported += 1
    assert exported


def objective(path: Path) -> float:
    """The least that HiGHS finds."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(path))
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value)


def test_exported_batches_are_named(tmp_path: Path) -> None:
    """By device type, sequences and micro-batches; the first line says which types, and what a unit of T is."""
    spec, trained = cluster(pool("a"), pool("b", "V100")), gpt(layers=4, global_batch=40)
    groups = (group("a", "A100", count=2, share=16, steps=2), group("b", "V100", count=2, share=4, steps=2))
    for zero, names in ((1, ("x_0_", "y_1_", "A", "S")), (3, ("z_", "y_0_", "y_1_"))):
        chosen = plan("torch", zero, [4], [groups])
        path = tmp_path / f"{zero}.lp"
        scored = Scored(plan=chosen, estimate=estimate(chosen, spec, trained))
        write_model(path, scored, spec, trained, ASSUMED, Limits())
        text = path.read_text()
        assert "_seconds_types_0_a_A100_1_b_V100" in text.splitlines()[0]
        assert all(name in text for name in names)
        assert objective(path) <= 1.0


@pytest.mark.parametrize(
    ("target", "changes", "what"),
    [("megatron", {}, "equal batches"), ("deepspeed", {"cp": 2, "cp_kind": "ulysses"}, "share sequences")],
)
def test_replicas_that_no_ilp_has(target: str, changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    """It is said, and nothing is written."""
    spec = cluster(pool("a", ("A100",) * 4))
    chosen = plan(target, 1, [4], [(group("a", "A100", count=4, share=4, steps=2),)], **changes)
    described = model(chosen.global_batch)
    scored = Scored(plan=chosen, estimate=estimate(chosen, spec, described))
    with pytest.raises(OutputError, match=what):
        write_model(tmp_path / "model.lp", scored, spec, described, ASSUMED, Limits())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("interleave", [1, 2])
def test_solutions_are_plans(interleave: int) -> None:
    """Every layer once, one option a stage, and the model's time is never above the estimate's."""
    stages = options(interleave=interleave)
    model = PipelineModel(stages, 10.0)
    solved = model.solve(gap=0.0)
    plan = stages.plan(model.chosen())
    assert plan.layers == 24
    assert plan.pp == 4
    estimate = stages.estimator.estimate(plan)
    assert solved.bound <= estimate.step_seconds
    assert model.relaxed_bound() <= solved.bound + 1e-6
    assert solved.bound > 0.8 * estimate.step_seconds


@pytest.mark.parametrize(
    ("schedule", "interleave", "more"),
    [
        ("1f1b", 1, 0.0),
        ("1f1b", 2, 0.02),
        ("zero-bubble", 1, 0.015),
        ("dualpipe-v", 2, 0.05),
        ("zb-v", 2, 0.03),
    ],
)
def test_relaxations_are_cut_by_critical_paths(schedule: Schedule, interleave: int, more: float) -> None:
    """They promise more than the table of paths, and no more than any plan takes."""
    estimator = Estimator(cluster(pool("a", nodes=2, per_node=4), pool("b", "V100", per_node=4)), gpt())
    target = "megatron" if schedule == "1f1b" else "torch"
    family = Family(target=target, zero=1, recompute="none", tp=2, dp=1, batch=4, micro_batches=16)
    choice = Choice(family=family, depth=4, interleave=interleave, schedule=schedule)
    stages = StageOptions(choice, estimator, Limits())
    with patch.object(models, "MOST_PATHS", 1):
        table = PipelineModel(stages, 10.0).relaxed_bound()
    model = PipelineModel(stages, 10.0)
    bound = model.relaxed_bound()
    assert bound >= table * (1 + more)
    draw, plans = random.Random(5), 0
    while plans < 100:
        cuts = sorted(draw.sample(range(1, 24), 3))
        counts = [end - start for start, end in pairwise((0, *cuts, 24))]
        slots = [draw.randrange(len(stages.compositions)) for _ in counts]
        if min(counts) < interleave or not stages.stand(slots):
            continue
        scored = score(
            estimator, stages, [stages.option(*item) for item in zip(range(4), slots, counts, strict=True)]
        )
        if scored is not None:
            plans += 1
            assert scored.estimate.step_seconds >= bound
    with patch.object(models, "MAX_CUT_STAGES", 4 * 16 * interleave - 1):
        assert not model.cut_critical_path()


def test_a_cut_solution_does_not_come_back_cheap() -> None:
    """After the cut the same options cost what the estimate says."""
    stages = options()
    model = PipelineModel(stages, 10.0)
    before = model.solve(gap=0.0).bound
    model.cut_solution(model.chosen(), 9.0, before)
    after = model.solve(gap=0.0)
    assert after.bound >= before * (1 - 1e-5)


@pytest.mark.parametrize(
    "seed", [1, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 4, 5))]
)
def test_cbc_finds_what_highs_finds(seed: int) -> None:
    """The fallback gives plans of the same cost."""
    found = []
    for name in ("highs", "cbc"):
        spec, model = small_problem(seed)
        explorer = Explorer(Estimator(spec, model), Limits(gap=0.0, pp=(2, 3)), Silent(), solver=name)
        explorer.run()
        found.append(explorer.incumbent)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_a_relaxation_follows_the_bounds(name: str) -> None:
    """Solved again after bounds have changed, back and forth, it says what a new one says."""
    program = knapsack((2, 3, 5), (2, 2, 2), 3)
    relaxed = Relaxation(program, name)
    assert relaxed.solve(NO_LIMIT) == pytest.approx(2 + 3 / 2)
    program.upper[1] = 0.0
    assert relaxed.solve(NO_LIMIT) == pytest.approx(3 + 5 / 2)
    assert list(relaxed.values[1:]) == pytest.approx([0.0, 1.0, 0.5])
    program.upper[2] = 0.0
    assert relaxed.solve(NO_LIMIT) == float("inf")
    program.upper[1] = program.upper[2] = 1.0
    assert relaxed.solve(NO_LIMIT) == pytest.approx(2 + 3 / 2)
    # The objective's own bound: below the optimum, at it, and above.
    for most, expected in ((3.4, float("inf")), (3.5, 3.5), (3.0, float("inf")), (9.0, 3.5)):
        program.upper[0] = most
        assert relaxed.solve(NO_LIMIT) == pytest.approx(expected)
    solve(program, gap=0.0, solver=name)
    program.upper[1] = 0.0
    program.row({2: 1.0}, most=0.5)
    assert relaxed.solve(NO_LIMIT) == pytest.approx(3 / 2 + 5)


def test_stages_are_dealt_to_islands_before_the_ilp() -> None:
    """Parts have their sequence of islands, down to each stage, and none can promise more than the whole."""
    spec = cluster(pool("a", nodes=2), pool("b", nodes=2, fabric="eth", gbps=10, cards=1))
    slow = NicSpec(fabric="eth", bandwidth_gbps=10, count=1)
    first = spec.pools[0].model_copy(update={"nics": (*spec.pools[0].nics, slow)})
    estimator = Estimator(spec.model_copy(update={"pools": (first, spec.pools[1])}), gpt())
    family = Family(target="megatron", zero=1, recompute="none", tp=2, dp=2, batch=4, micro_batches=16)
    choice = Choice(family=family, depth=4, interleave=1)
    stages = StageOptions(choice, estimator, Limits(), (("a",), ("b",)))
    model = PipelineModel(stages, 100.0)
    whole = model.relaxed_bound()
    parts = model.parts(Subset())
    orders = [part.sequence.islands if part.sequence else None for part in parts]
    assert orders == [(0, 1), (1, 0), None]
    assert [part.crossings for part in parts] == [(1, 1), (1, 1), (2, float("inf"))]
    while parts:
        part = parts.pop()
        model.branching.assign(part)
        assert model.relaxed_bound() >= whole * (1 - 1e-6)
        if part.sequence:
            parts += model.parts(part)
    model.branching.assign(Subset(assigned=tuple((stage, frozenset(((0,),))) for stage in range(4))))
    assert model.relaxed_bound() == float("inf")


@pytest.mark.parametrize("per_stage", [True, False])
def test_stages_are_told_their_devices_first(per_stage: bool) -> None:
    """Two sides of a branch share nothing, leave nothing out, and neither promises more than the whole.

    So it is with degrees of their own, and with several chunks.
    """
    estimator = Estimator(cluster(pool("a", nodes=2, per_node=4), pool("b", "V100", per_node=4)), gpt())
    if per_stage:
        family = Family(
            target="flagscale", zero=1, recompute="none", tp=None, dp=None, batch=8, micro_batches=8
        )
        choice = Choice(family=family, depth=3, interleave=1)
    else:
        family = Family(target="torch", zero=1, recompute="none", tp=1, dp=4, batch=8, micro_batches=8)
        choice = Choice(family=family, depth=3, interleave=2, schedule="dualpipe-v")
    stages = StageOptions(choice, estimator, Limits())
    model = PipelineModel(stages, 100.0)
    whole = model.relaxed_bound()
    (stage, low), (other, high) = (part.assigned[0] for part in model.parts(Subset()))
    assert stage == other
    assert not low & high
    assert {key[-1] for key in low | high} == {option.composition for option in model.options[stage]}
    assert max(low) < min(high)
    for keys in (low, high):
        model.branching.assign(Subset(assigned=((stage, keys),)))
        assert model.relaxed_bound() >= whole * (1 - 1e-6)
    model.branching.assign(Subset(assigned=((stage, low), (stage, high))))
    assert model.relaxed_bound() == float("inf")


def test_small_costs_of_the_end_of_a_step_hide_no_solution() -> None:
    """Rows have factors of 1e-8 beside 100: with looser rows HiGHS called 12.9585 s optimal where 12.9531 s fit."""
    card = GpuSpec(
        memory_gib=48,
        memory_bandwidth_gBps=2000,
        tflops={"fp16": 20, "bf16": 20, "fp32": 10},
        multiprocessors=5,
    )
    spec = cluster(*(pool(name, "card", gbps=1, cards=1) for name in ("a", "b")), gpus={"card": card})
    model = gpt(96, 32, 2, global_batch=2123, sequence_length=2048, vocab=50257)
    limits = Limits(target="megatron", pp=(1, 2, 3, 4, 5), tp=(2,))
    many = search(spec, model, limits=limits, explain=False)
    one = search(spec, model, limits=replace(limits, pp=(4,), gap=1e-6), explain=False)
    assert one.best is not None
    assert many.bound_seconds <= one.best.estimate.step_seconds
