"""All baselines: what each promises, on any cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from planner.baselines import registry
from planner.baselines.registry import BASELINES, SHARED, baselines
from planner.calibration.file import shipped
from planner.cluster.file import load_cluster
from planner.cost.estimate import Estimator
from planner.model.file import load_model
from planner.plan.checks import check_plan
from planner.search.heuristics.even import best_of
from planner.search.solve import search
from planner.search.values import Alternative, Limits
from planner.targets import target
from tests.baselines.generated import problem
from tests.worlds import cluster, gpt, nic, pool, small_problem

ROOT = Path(__file__).parents[2]


@cache
def of_seed(seed: int) -> tuple[Alternative, ...]:
    """The baselines of a generated problem."""
    return baselines(*problem(seed))


def check(seed: int) -> int:
    """Every baseline has a valid plan or a reason, and says what keeps its plan from running; number of plans."""
    spec, model = problem(seed)
    plans = 0
    for item in of_seed(seed):
        if item.scored is None:
            assert item.reason
            continue
        plans += 1
        plan, estimate = item.scored.plan, item.scored.estimate
        check_plan(plan, spec, model)
        assert 0 < estimate.step_seconds < float("inf")
        assert ("does not fit" in item.reason) == (not estimate.fits)
        assert ("can run it" in item.reason) == (not target(plan.target).by_default)
        shared = SHARED in item.reason
        assert bool(item.reason) == (not estimate.fits or not target(plan.target).by_default or shared)
    return plans


def test_any_cluster_gives_valid_plans_or_reasons() -> None:
    """Layers once, shares that add up, devices that exist: the rules of every plan; most baselines have one."""
    plans = [check(seed) for seed in range(2, 4)]
    assert sum(plans) >= 6 * len(plans)


@pytest.mark.slow
def test_many_clusters_give_valid_plans_or_reasons() -> None:
    """The same of more of them."""
    plans = [check(seed) for seed in range(4, 40)]
    assert sum(plans) >= 6 * len(plans)


@pytest.mark.parametrize(
    "pools",
    [
        pytest.param((pool("a", nodes=3, per_node=4),), marks=pytest.mark.slow),
        pytest.param((pool("a", nodes=4, per_node=4), pool("b", "V100", per_node=4)), marks=pytest.mark.slow),
        pytest.param(
            (pool("a", nodes=2, per_node=16), pool("b", "V100", per_node=16)), marks=pytest.mark.slow
        ),
        (pool("a", per_node=16), pool("b", "V100", per_node=1)),
    ],
    ids=["12", "20", "48 in nodes of 16", "17 in unequal pools"],
)
def test_any_total_has_plans(pools: tuple[object, ...]) -> None:
    """Totals that are no power of two, where the published Metis stops; nodes of 16, which it reads as 1.

    Not tied: Metis' ends of 16 and of one device could not share an embedding.
    """
    spec = cluster(*pools)  # type: ignore[arg-type]
    model = gpt(global_batch=240).model_copy(update={"tied_embeddings": False})
    names = {item.family for item in baselines(spec, model) if item.scored}
    needed = {entry.name for entry in BASELINES}
    if len(spec.pools) == 1:
        needed.discard("a stage per network (Holmes)")
    assert needed <= names


@pytest.mark.slow
def test_the_order_of_hashing_changes_nothing() -> None:
    """The published Metis answers by the hash seed of Python."""
    done = subprocess.run(
        [sys.executable, "-c", "from tests.baselines.test_all import told; print(told(), end='')"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0",
            "PYTHONPATH": str(ROOT),
        },
    )
    assert done.stdout == told()
    assert done.stdout.count("Plan(") > 10


def told() -> str:
    """Some baselines in words."""
    found = [item for seed in (2, 3) for item in of_seed(seed)]
    return "".join(f"{item.family} {item.reason} {item.scored and item.scored.plan}\n" for item in found)


@pytest.mark.parametrize(
    "seed", [2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, 4, 5))]
)
def test_the_order_of_pools_changes_nothing(seed: int) -> None:
    """Plan files do not keep it, so a plan read back must meet the same baselines."""
    spec, model = problem(seed)
    turned = spec.model_copy(update={"pools": spec.pools[::-1]})
    assert baselines(turned, model) == of_seed(seed)


def test_every_baseline_has_its_row() -> None:
    """In the order of the table, one pool alone at the end."""
    spec, model = cluster(pool("a", per_node=4), pool("b", "V100", per_node=4)), gpt(global_batch=64)
    found = [item.family for item in baselines(spec, model)]
    assert found == [*(entry.name for entry in BASELINES), "only a"]


def test_none_that_can_be_launched_beats_the_search() -> None:
    """The plans people use lie in the space, so the bound holds for them."""
    compared = 0
    for seed in (1, 5):
        spec, model = small_problem(seed)
        bound = search(spec, model, limits=Limits(gap=0.0), explain=False).bound_seconds
        for item in baselines(spec, model):
            if item.scored and item.scored.estimate.fits and target(item.scored.plan.target).by_default:
                compared += 1
                assert item.scored.estimate.step_seconds >= bound * (1 - 1e-6)
    assert compared > 10


def test_a_baseline_that_does_not_fit_says_by_how_much_and_where() -> None:
    """The nearest plan is shown with its shortage, also by methods that look at memory."""
    spec = cluster(pool("a", "V100", per_node=1))
    for item in baselines(spec, gpt(32, 4096, 32, global_batch=8)):
        if item.scored is not None:
            assert not item.scored.estimate.fits
            assert item.reason.startswith("does not fit: stage 0: V100 in a lacks ")
            assert item.reason.endswith(" GiB")


def test_a_number_format_that_the_runtime_lacks_is_the_reason() -> None:
    """DeepSpeed does not train in fp8."""
    spec, model = cluster(pool("a", per_node=2)), gpt(precision="fp32")
    gpu = spec.gpus["A100"]
    fast = gpu.model_copy(update={"tflops": {**gpu.tflops, "fp8": 600.0}})
    spec = spec.model_copy(update={"gpus": {**spec.gpus, "A100": fast}})
    eight = model.model_copy(update={"training": model.training.model_copy(update={"precision": "fp8"})})
    estimator = Estimator(spec, eight)
    found = best_of("Poplar", BASELINES[4].plans(estimator), estimator)
    assert found.scored is None
    assert "deepspeed does not train in fp8" in found.reason


def test_stock_runtimes_have_one_network_for_all_groups() -> None:
    """Two islands of RDMA: all but Holmes fall to the Ethernet between them; with one RDMA fabric nobody does."""
    islands = [pool(name, "A100", 2, (nic(name), nic("eth", gbps=25)), per_node=2) for name in ("ib", "roce")]
    apart = cluster(*islands)
    found = {item.family: item for item in baselines(apart, gpt(4, 512, 8, global_batch=16))}
    holmes, megatron = found["a stage per network (Holmes)"], found["even pipeline (Megatron-LM)"]
    assert SHARED not in holmes.reason
    assert all(SHARED in found[entry.name].reason for entry in BASELINES if not entry.network_per_group)
    stock = Estimator(apart, gpt(4, 512, 8, global_batch=16), one_network=True)
    assert megatron.scored is not None
    assert seconds(megatron) == stock.estimate(megatron.scored.plan).step_seconds
    assert (
        seconds(megatron)
        > Estimator(apart, gpt(4, 512, 8, global_batch=16)).estimate(megatron.scored.plan).step_seconds
    )
    joined = cluster(pool("a", nodes=2, per_node=2), pool("b", nodes=2, per_node=2))
    assert not any(SHARED in item.reason for item in baselines(joined, gpt(4, 512, 8, global_batch=16)))
    ethernet = cluster(pool("a", nodes=2, nics=(nic("eth", gbps=25),), per_node=2))
    assert not any(SHARED in item.reason for item in baselines(ethernet, gpt(4, 512, 8, global_batch=16)))


@pytest.mark.slow
def test_holmes_gains_over_megatron_what_it_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 6, 7.5B on 4 nodes of InfiniBand and 4 of RoCE: 183 against 131 TFLOP/s, 1.40 times as fast.

    With the kernels of its scripts: where layers take less time, Ethernet is more of the step.
    """
    spec = load_cluster(ROOT / "cluster_specs" / "holmes_hybrid.yaml")
    model = load_model(ROOT / "model_specs" / "gpt_7.5b.yaml")
    training = model.training.model_copy(update={"kernels": "megatron-2021"})
    model = model.model_copy(update={"training": training})
    both = ("even pipeline (Megatron-LM)", "a stage per network (Holmes)")
    monkeypatch.setattr(registry, "BASELINES", [entry for entry in BASELINES if entry.name in both])
    found = {item.family: item for item in baselines(spec, model, shipped())}
    megatron, holmes = (seconds(found[name]) for name in both)
    ratio = megatron / holmes
    assert 1.4 * 0.9 < ratio < 1.4 * 1.12
    for page in ("coverage", "search"):
        told = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert f"{ratio:.2f}x with the kernels of its scripts" in told


def seconds(item: Alternative) -> float:
    """Its step."""
    assert item.scored is not None
    return item.scored.estimate.step_seconds


def test_no_device_with_the_number_format_gives_no_baselines() -> None:
    """V100 have no bf16."""
    assert baselines(cluster(pool("a", "V100")), gpt(precision="bf16")) == ()


def test_every_baseline_is_documented() -> None:
    """docs/search.md names each with its source."""
    text = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    lacking = [entry.name for entry in BASELINES if entry.name not in text or entry.source not in text]
    assert lacking == []
