"""Training data as a limit of the step, by hand and against all plans of small clusters."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED
from planner.cluster.spec import CacheSpec, ClusterSpec, FeedSpec, HostSpec
from planner.cost.binding import binding
from planner.cost.estimate import Estimator
from planner.cost.timeline import step_of
from planner.cost.training import devices_of
from planner.errors import PlanError
from planner.model.spec import DataSpec, ModelSpec
from planner.search.bounds.peak import least_seconds
from planner.search.ranking import ranked
from planner.search.solve import search
from planner.search.values import Limits
from tests.quick import first
from tests.search.exhaustive import plans
from tests.worlds import cluster, gpt, group, plan, pool, small_problem

TWO = plan("megatron", 0, [24], [(group("a", "A100", count=16, share=4, steps=1),)])
"""64 sequences of 1,024 tokens on two nodes, 32 each."""
FEW = settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def fed(feed: FeedSpec | None, storage: float | None = None) -> ClusterSpec:
    """Two nodes of eight A100 that read their data so."""
    item = pool("a", nodes=2).model_copy(update={"host": None if feed is None else HostSpec(feed=feed)})
    return cluster(item).model_copy(update={"storage_gBps": storage})


def trained(**data: object) -> ModelSpec:
    """64 sequences a step, data as said."""
    return gpt(global_batch=64, data=DataSpec.model_validate(data))


BYTES = {"bytes_per_sequence": 1e6}
"""A sequence of a megabyte, 32 MB a node and 64 MB in all."""


@pytest.mark.parametrize(
    ("feed", "storage", "data", "seconds", "limit"),
    [
        (FeedSpec(storage_gBps=0.01), None, BYTES, 3.2, "the reads from storage of a node of a"),
        (None, 0.01, BYTES, 6.4, "the storage of all nodes"),
        (FeedSpec(storage_gBps=0.01), 0.1, BYTES, 3.2, "the reads from storage of a node of a"),
        (FeedSpec(storage_gBps=0.01), None, {"bytes_per_token": 4.0}, 32 * 1024 * 4 / 1e7, "storage"),
        (
            FeedSpec(cores=4, core_sequences_per_s=2.0),
            None,
            {"prepared": False},
            4.0,
            "the processors of a node of a",
        ),
        (
            FeedSpec(cores=4, core_tokens_per_s=1024.0, core_sequences_per_s=2.0),
            None,
            {"prepared": False},
            8.0,
            "the processors of a node of a",
        ),
        (FeedSpec(cores=4, core_sequences_per_s=2.0), None, {}, 0.0, ""),
    ],
)
def test_what_a_node_is_fed(
    feed: FeedSpec | None, storage: float | None, data: dict[str, object], seconds: float, limit: str
) -> None:
    """Bytes over rates, sequences over cores; the slowest counts, with its name."""
    spec, model = fed(feed, storage), trained(**data)
    estimator = Estimator(spec, model)
    assert estimator.feed is not None
    found = estimator.price(TWO).fed
    assert found.seconds == pytest.approx(seconds)
    assert limit in found.limit
    without = Estimator(fed(None), model).estimate(TWO)
    estimate = estimator.estimate(TWO)
    assert estimate.step_seconds == pytest.approx(max(seconds, without.step_seconds))
    assert estimate.breakdown.step_seconds == pytest.approx(estimate.step_seconds)
    assert estimate.breakdown.data_seconds == pytest.approx(max(0.0, seconds - without.step_seconds))
    assert estimate.breakdown.bubble_seconds == pytest.approx(without.breakdown.bubble_seconds)
    assert step_of(TWO, estimator).seconds == pytest.approx(estimate.step_seconds)
    waits = [text for text in estimate.warnings if text.startswith("the step waits for data: ")]
    assert bool(waits) == (seconds > without.step_seconds)
    assert least_seconds(estimator, devices_of(TWO)) <= estimate.step_seconds * (1 + 1e-9)


def test_caches_hold_what_was_read_once() -> None:
    """The fastest is filled first; the rest of the data is read from storage, and in the first pass all of it."""
    feed = FeedSpec(
        storage_gBps=0.01,
        caches=(CacheSpec(kind="memory", gib=50, gBps=10), CacheSpec(kind="nvme", gib=100, gBps=0.02)),
    )
    estimator = Estimator(fed(feed), trained(**BYTES, dataset_gib=200))
    found = estimator.price(TWO).fed
    assert found.seconds == pytest.approx(max(0.25 * 32e6 / 1e7, 0.5 * 32e6 / 2e7, 0.25 * 32e6 / 1e10))
    assert estimator.feed is not None
    first = estimator.feed.of(TWO, estimator.price(TWO).placement, first_pass=True)
    assert first.seconds == pytest.approx(3.2)
    assert any(
        "first pass over the data a step takes 3.2" in text for text in estimator.estimate(TWO).warnings
    )
    whole = Estimator(fed(feed), trained(**BYTES, dataset_gib=100)).price(TWO).fed
    assert whole.limit == "the cache on NVMe of a node of a"
    new = Estimator(fed(feed), trained(**BYTES)).price(TWO).fed
    assert new.seconds == pytest.approx(3.2)


def test_both_ends_of_a_pipeline_read() -> None:
    """The first stage its tokens, the last its labels; those between read nothing."""
    feed = FeedSpec(storage_gBps=0.01)
    stages = plan(
        "megatron",
        0,
        [12, 12],
        [(group("a", "A100", count=8, share=8, steps=8),), (group("a", "A100", count=8, share=8, steps=8),)],
    )
    assert Estimator(fed(feed), trained(**BYTES)).price(stages).fed.seconds == pytest.approx(6.4)
    shared = Estimator(fed(None, 0.01), trained(**BYTES)).price(stages).fed
    assert shared.seconds == pytest.approx(12.8)


def test_no_link_is_worth_a_step_that_waits_for_data() -> None:
    """What binds is the data: traffic that took no time would save nothing."""
    estimator = Estimator(fed(FeedSpec(storage_gBps=0.001)), trained(**BYTES))
    assert binding(TWO, estimator).links == ()


def test_a_starved_cluster_is_proven_by_its_storage() -> None:
    """No plan is faster than the storage of all: the bound says so, and the answer names it."""
    spec = fed(None, 0.01)
    found = search(spec, trained(**BYTES), ASSUMED, Limits(target="deepspeed"), explain=False)
    assert found.best is not None
    assert found.best.estimate.step_seconds == pytest.approx(6.4)
    assert found.bound_seconds == pytest.approx(6.4)
    assert found.status == "optimal"


def starved(seed: int) -> tuple[ClusterSpec, ModelSpec]:
    """A small problem whose nodes are fed about as fast as their devices are."""
    spec, model = small_problem(seed)
    draw = random.Random(seed)
    best = search(spec, model, ASSUMED, Limits(), explain=False).best
    step = best.estimate.step_seconds if best else 1.0
    megabytes = model.training.global_batch * 1.0

    def rate(share: float) -> float:
        return max(1e-6, megabytes * share / step / 1e3)

    pools = tuple(
        item.model_copy(update={"host": HostSpec(feed=FeedSpec(storage_gBps=rate(draw.uniform(0.2, 1.5))))})
        for item in spec.pools
    )
    shared = rate(draw.uniform(0.5, 2.0)) if draw.random() < 0.5 else None
    training = model.training.model_copy(update={"data": DataSpec(bytes_per_sequence=1e6)})
    return (
        spec.model_copy(update={"pools": pools, "storage_gBps": shared}),
        model.model_copy(update={"training": training}),
    )


def against_all(seed: int) -> None:
    """No proof is false: no plan is below the bound, none of the plans found is better than all plans."""
    spec, model = starved(seed)
    limits = Limits(gap=0.0, target="deepspeed")
    estimator, least = Estimator(ranked(spec), model, ASSUMED), float("inf")
    for each in plans(estimator, limits):
        try:
            estimate = estimator.estimate(each)
        except PlanError:
            continue
        least = min(least, estimate.step_seconds if estimate.fits else least)
        assert least_seconds(estimator, devices_of(each)) <= estimate.step_seconds * (1 + 1e-9)
    found = search(spec, model, ASSUMED, limits, explain=False)
    if found.best is None:
        assert least == float("inf")
        return
    assert found.bound_seconds <= least * (1 + 1e-9)
    assert found.best.estimate.step_seconds >= least * (1 - 1e-9)
    assert found.status != "optimal" or found.best.estimate.step_seconds <= least * (1 + 1e-5)


@pytest.mark.parametrize("seed", first(1, [8, 3, 21]))
def test_no_proof_is_false_on_some(seed: int) -> None:
    """On one cluster; on two more slowly."""
    against_all(seed)


@pytest.mark.slow
@given(st.integers(0, 10**9))
@settings(FEW, max_examples=60)
def test_no_proof_is_false(seed: int) -> None:
    """On many."""
    against_all(seed)
