"""Stages of two device types on the same nodes: what the ILP adds to their tails, next to what plans pay."""

from __future__ import annotations

from itertools import product

import pytest

from planner.cluster.spec import PoolSpec
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.search.milp.model import PipelineModel
from planner.search.space.choices import Choice, families
from planner.search.space.shared_nodes import sharings
from planner.search.space.stages import Option, StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.worlds import cluster, gpt, pool

MIXED = pool("mixed", ("A100", "A100", "V100", "V100"), nodes=3, nics=pool("x", cards=1, gbps=10).nics)
OTHER = pool("other", "V100", nodes=3, per_node=2, cards=1, gbps=10)
WIDE = pool("mixed", ("A100",) * 4 + ("V100",) * 4, nodes=3, nics=pool("x", cards=1, gbps=10).nics)

FOUR = pool("mixed", ("A100", "A100", "V100", "V100"), nodes=4, nics=pool("x", cards=1, gbps=10).nics)
FIVE = pool("mixed", ("A100", "A100", "V100", "V100"), nodes=5, nics=pool("x", cards=1, gbps=10).nics)
AHEAD = pool("ahead", "V100", nodes=3, per_node=2, cards=1, gbps=10)


def options(
    pools: tuple[PoolSpec, ...],
    target: str,
    asked: Limits,
    dp: int,
    depth: int,
    shard_size: int | None = None,
) -> StageOptions:
    """Stages of so many replicas."""
    estimator = Estimator(cluster(*pools), gpt(9, 1024, 8, global_batch=24))
    every = families(TARGETS[target], asked, estimator.model, estimator.topology.device_types)
    family = next(item for item in every if (item.dp, item.batch, item.shard_size) == (dp, dp, shard_size))
    return StageOptions(Choice(family=family, depth=depth, interleave=1), estimator, asked)


def limits(**changes: object) -> Limits:
    """Of small families."""
    return Limits(recompute=("none",), **{"tp": (1,), "zero": (0,), **changes})  # type: ignore[arg-type]


CASES = [
    ((MIXED,), "megatron", limits(), 4, 2, None),
    ((MIXED,), "megatron", limits(zero=(1,)), 6, 2, None),
    ((OTHER, MIXED), "torch", limits(zero=(1,)), 4, 3, None),
    ((MIXED, OTHER), "torch", limits(zero=(1,)), 4, 3, 2),
    ((WIDE,), "megatron", limits(tp=(2,)), 4, 2, None),
    ((FOUR,), "torch", limits(zero=(1,)), 4, 4, None),
    ((AHEAD, FIVE), "torch", limits(zero=(1,)), 8, 2, None),
]


@pytest.mark.parametrize(("pools", "target", "asked", "dp", "depth", "shard_size"), CASES)
def test_no_plan_pays_less_than_the_ilp_says(
    pools: tuple[PoolSpec, ...], target: str, asked: Limits, dp: int, depth: int, shard_size: int | None
) -> None:
    """All pipelines, wherever stages fill so many nodes that another shares one; most pay just that."""
    stages = options(pools, target, asked, dp, depth, shard_size)
    every, exact, seen = [*sharings(stages)], 0, 0
    assert every
    for slots in product(range(len(stages.compositions)), repeat=depth):
        chosen = [stages.option(stage, slot, 9 // depth) for stage, slot in enumerate(slots)]
        try:
            prices = stages.estimator.price(stages.plan(chosen)).stages
        except PlanError:
            continue
        for sharing in every:
            filled = sum(sharing.fills.get(slot, 0) for slot in slots)
            for stage, (option, price) in enumerate(zip(chosen, prices, strict=True)):
                if filled > sharing.device_type.nodes - sharing.needs.get(option.composition, 0):
                    least = option.tail_seconds + sharing.longer(stage, option)
                    assert least <= price.tail_seconds * (1 + 1e-9)
                    assert sharing.longer(stage, option) > 0
                    exact += least >= price.tail_seconds * (1 - 1e-9)
                    seen += 1
    assert exact > seen / 2 > 0


def test_the_ilp_knows_that_two_stages_share_their_nodes() -> None:
    """Its solution takes as long as the plan: tails of the pair are longer than those of either type alone."""
    stages = options((MIXED,), "megatron", limits(zero=(1,)), 6, 2)
    model = PipelineModel(stages, 10.0)
    solved = model.solve(gap=0.0)
    chosen = model.chosen()
    assert len({option.composition for option in chosen}) == 2
    seconds = stages.estimator.estimate(stages.plan(chosen)).step_seconds
    assert solved.bound == pytest.approx(seconds, rel=1e-4)
    assert solved.bound > 1.01 * alone(stages, chosen)


def alone(stages: StageOptions, chosen: list[Option]) -> float:
    """Seconds of the step, were the tail of each stage its own."""
    prices = stages.estimator.price(stages.plan(chosen)).stages
    tails = [price.tail_seconds - option.tail_seconds for price, option in zip(prices, chosen, strict=True)]
    return stages.estimator.estimate(stages.plan(chosen)).step_seconds - min(tails)


@pytest.mark.parametrize(("pools", "target", "asked", "dp", "depth", "shard_size"), CASES)
def test_the_ilp_adds_just_what_the_nodes_that_are_shared_cost(
    pools: tuple[PoolSpec, ...], target: str, asked: Limits, dp: int, depth: int, shard_size: int | None
) -> None:
    """All pipelines, one at a time: no tail may be longer by less, and none has to be longer by more."""
    stages = options(pools, target, asked, dp, depth, shard_size)
    model, every, longer = PipelineModel(stages, 100.0), [*sharings(stages)], 0
    for slots in product(range(len(stages.compositions)), repeat=depth):
        if not stages.stand(slots) or not stages.obeys(slots):
            continue
        chosen = [
            stages.option(stage, slot, 9 // depth + (stage < 9 % depth)) for stage, slot in enumerate(slots)
        ]
        for stage, option in enumerate(chosen):
            for other, column in zip(model.options[stage], model.take[stage], strict=True):
                model.program.upper[column] = float(other == option)
        added = [
            max(
                (
                    sharing.longer(stage, option)
                    for sharing in every
                    if sum(sharing.fills.get(slot, 0) for slot in slots)
                    > sharing.device_type.nodes - sharing.needs.get(option.composition, 0)
                ),
                default=0.0,
            )
            for stage, option in enumerate(chosen)
        ]
        pairs = [
            (column, seconds) for terms, seconds in zip(model._beside, added, strict=True) for column in terms
        ]
        assert len(pairs) >= sum(seconds > 0 for seconds in added)
        for column, seconds in pairs:
            model.program.upper[column] = seconds / 100.0 + 1e-9
        assert model.solve(gap=0.0).status == "optimal"
        for column, seconds in pairs:
            if seconds:
                model.program.upper[column] = 0.99 * seconds / 100.0
                assert model.solve(gap=0.0).status == "infeasible"
                model.program.upper[column] = seconds / 100.0 + 1e-9
                longer += 1
    assert longer


def test_where_stages_may_avoid_each_other_nothing_is_added() -> None:
    """Where nodes have one type, or one node has room for every stage."""
    assert not [*sharings(options((OTHER,), "megatron", limits(), 4, 2))]
    assert not [*sharings(options((MIXED,), "megatron", limits(), 2, 2))]
