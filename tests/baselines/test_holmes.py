"""Holmes' partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.baselines.holmes import holmes, holmes_partition
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.model.spec import ExpertsSpec
from planner.plan.checks import faults
from tests.worlds import cluster, gpt, pool


@pytest.mark.parametrize(("layers", "expected"), [(48, [26, 22]), (30, [16, 14])])
def test_the_split_is_that_of_its_scripts(layers: int, expected: list[int]) -> None:
    """Speeds 197 and 160 give the splits the authors ship."""
    assert holmes_partition([197, 160], layers, [1, 1]) == expected


def test_layers_of_a_pool_are_even_on_its_stages() -> None:
    """A pool three times as large and as fast holds three stages."""
    assert holmes_partition([300, 100], 21, [3, 1]) == [5, 5, 5, 6]


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.integers(1, 4)), min_size=2, max_size=5), st.integers(1, 40)
)
def test_every_stage_has_a_layer(pools: list[tuple[float, int]], layers: int) -> None:
    """All layers are placed once; more stages than layers are refused."""
    speeds, stages = zip(*pools, strict=True)
    if sum(stages) > layers:
        with pytest.raises(PlanError, match="stages for"):
            holmes_partition(speeds, layers, stages)
        return
    found = holmes_partition(speeds, layers, stages)
    assert len(found) == sum(stages)
    assert sum(found) == layers
    assert min(found) >= 1


def test_replicas_stay_inside_a_network() -> None:
    """Three nodes on InfiniBand, one on RoCE: no stage of both; the larger pool is three stages or one."""
    spec = cluster(pool("ib", nodes=3), pool("roce", nodes=1, fabric="roce"))
    plans = list(holmes(Estimator(spec, gpt(global_batch=64))))
    pools = {tuple(group.pool for stage in plan.stages for group in stage.replicas) for plan in plans}
    most, least = ("ib", "ib", "ib", "roce"), ("ib", "roce")
    assert pools == {most, least, most[::-1], least[::-1]}
    assert all(len(stage.replicas) == 1 for plan in plans for stage in plan.stages)


def test_experts_are_divided_by_hand_as_in_other_pipelines_of_megatron() -> None:
    """Over the replicas of a stage, or the devices of one; a single device need not hold them all."""
    spec = cluster(pool("a"), pool("v", "V100"))
    experts = ExpertsSpec(number=8, top_k=2, ffn=4096)
    model = gpt(global_batch=64).model_copy(update={"experts": experts})
    plans = [plan for plan in holmes(Estimator(spec, model)) if not faults(plan, spec, model)]
    assert {1, 2, 4, 8} <= {plan.ep for plan in plans}
    assert {1, 2, 4, 8} <= {plan.stages[0].replicas[0].tp for plan in plans}


def test_one_pool_is_no_case_for_holmes() -> None:
    """Stated, not hidden."""
    with pytest.raises(PlanError, match="needs at least two pools"):
        list(holmes(Estimator(cluster(pool("a", nodes=2)), gpt())))
