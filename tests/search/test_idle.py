"""What using idle devices costs."""

from __future__ import annotations

from unittest.mock import patch

from planner.catalog import GpuSpec
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.training import devices_of
from planner.model.spec import ModelSpec
from planner.search.deadline import Deadline
from planner.search.explain.sensitivity import idle_costs
from planner.search.solve import search
from planner.search.values import IdleCost, Limits, SearchResult
from tests.worlds import GPUS, cluster, gpt, pool

OLD = GpuSpec(name="OLD", memory_gib=8, memory_bandwidth_gBps=100, tflops={"fp16": 4})
"""Too slow to be of any use beside an A100."""


def found(spec: ClusterSpec, model: ModelSpec) -> tuple[SearchResult, dict[str, IdleCost]]:
    """A Megatron search and its idle devices by pool."""
    result = search(spec, model, limits=Limits(target="megatron"))
    return result, {entry.pool: entry for entry in result.idle_costs}


def test_a_slow_pool_is_idle_and_using_it_costs() -> None:
    """A plan that really uses it, its step and the component in which it loses."""
    spec = cluster(pool("a", per_node=2), pool("o", "OLD", per_node=4), gpus={"OLD": OLD})
    result, idle = found(spec, gpt(global_batch=16))
    assert result.best is not None
    entry = idle["o"]
    assert entry.scored is not None
    assert entry.slower is not None
    assert entry.slower > 0
    used = devices_of(entry.scored.plan) - devices_of(result.best.plan)
    assert entry.taken == used["o", "OLD"] > 0
    assert entry.idle == 4
    assert entry.reason
    assert entry.scored.estimate.fits
    assert entry.scored.estimate.step_seconds >= result.bound_seconds


def test_devices_that_cannot_be_used_say_why() -> None:
    """No number format, no network, no memory."""
    lonely = pool("x", "V100", per_node=2, fabric="island", cards=1)
    spec = cluster(pool("a", per_node=2), pool("v", "V100", per_node=2), lonely)
    result, idle = found(spec, gpt(4, 1024, 8, global_batch=8, precision="bf16"))
    assert result.best is not None
    assert {idle["v"].reason, idle["x"].reason} == {"no bf16"}
    assert (idle["v"].scored, idle["v"].slower) == (None, None)
    tiny = GpuSpec(name="TINY", memory_gib=2, memory_bandwidth_gBps=900, tflops={"fp16": 125})
    spec = cluster(pool("a", per_node=2), pool("t", "TINY", per_node=2), gpus={"TINY": tiny})
    _, idle = found(spec, gpt(global_batch=16))
    assert idle["t"].reason == "no plan found that fits and uses them"


def test_what_needs_no_search_is_said_without_time() -> None:
    """Devices of another vendor stand idle for a reason that costs nothing to find; others would need a plan."""
    amd = GPUS["A100"].model_copy(update={"name": "AMD", "vendor": "amd"})
    nvidia = GPUS["A100"].model_copy(update={"vendor": "nvidia"})
    pools = pool("a", per_node=4), pool("m", "AMD", per_node=2), pool("o", "OLD", per_node=1)
    spec = cluster(*pools, gpus={"A100": nvidia, "AMD": amd, "OLD": OLD})
    model = gpt(4, 1024, 8, global_batch=16)
    best = search(spec, model, explain=False, limits=Limits(target="megatron")).best
    assert best is not None
    found = idle_costs(best, Estimator(spec, model), Limits(target="megatron"), Deadline.after(0.0))
    assert [(entry.pool, entry.idle) for entry in found] == [("m", 2)]
    assert found[0].reason == "a needs NCCL and m RCCL: no communicator holds devices of both"


def test_plans_that_a_search_has_met_need_no_time() -> None:
    """The fastest of those that use idle devices answers when time is up, and where no quick plan can be had."""
    pools, model = (pool("a", per_node=4), pool("b", per_node=2)), gpt(global_batch=16)
    spec = cluster(*pools)
    best, slow, fast = (
        search(cluster(each), model, explain=False, limits=limits).best
        for each, limits in (
            (pools[0], Limits()),
            (pools[1], Limits(recompute=("full",))),
            (pools[1], Limits()),
        )
    )
    assert best is not None
    assert slow is not None
    assert fast is not None
    assert fast.estimate.step_seconds < slow.estimate.step_seconds
    over = Deadline.after(0.0)
    assert idle_costs(best, Estimator(spec, model), Limits(), over) == ()
    (entry,) = idle_costs(best, Estimator(spec, model), Limits(), over, (best, slow, fast))
    assert (entry.pool, entry.scored) == ("b", fast)
    flagscale = Limits(target="flagscale")
    (entry,) = idle_costs(best, Estimator(spec, model), flagscale, known=(slow,))
    assert (entry.pool, entry.scored) == ("b", slow)


def test_devices_in_place_of_others_say_how_many_fewer_there_are() -> None:
    """A plan that uses them may leave out those that worked."""
    pools, model, limits = (
        (pool("a", per_node=4), pool("b", per_node=2)),
        gpt(global_batch=16),
        Limits(zero=(1,)),
    )
    spec, (best, other) = (
        cluster(*pools),
        (search(cluster(each), model, explain=False).best for each in pools),
    )
    assert best is not None
    with patch("planner.search.explain.sensitivity.quick_plan", return_value=other):
        (entry,) = idle_costs(best, Estimator(spec, model), limits)
    assert (entry.pool, entry.taken, entry.reason) == ("b", 2, "compute, 2 fewer devices")


def test_nothing_is_said_when_all_devices_work() -> None:
    """One pool, all used."""
    spec, model = cluster(pool("a", per_node=4)), gpt(global_batch=64)
    result = search(spec, model, explain=False)
    assert result.best is not None
    assert result.best.plan.devices == 4
    assert idle_costs(result.best, Estimator(spec, model), Limits()) == ()
