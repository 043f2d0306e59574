"""Even splits."""

from __future__ import annotations

import pytest

from planner.capabilities import Recompute
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.plan.placement import replicas_on
from planner.search.heuristics.even import (
    batch_groups,
    best_of,
    data_parallel,
    equal_batches,
    even_pipelines,
    fastest_first,
    filled,
    missing_bytes,
    pipeline,
    widest,
)
from tests.worlds import cluster, gpt, pool


def test_equal_batches_differ_by_at_most_one() -> None:
    """17 devices of two device types, 64 sequences: 13 get 4, 4 get 3."""
    spec = cluster(pool("a", per_node=16), pool("b", "V100", per_node=1))
    for plan in equal_batches(Estimator(spec, gpt(global_batch=64))):
        shares = [(group.count, group.local_batch) for group in plan.stages[0].replicas]
        assert shares == [(13, 4), (3, 3), (1, 3)]


def test_a_small_batch_leaves_devices_idle() -> None:
    """No device without a sequence takes part."""
    spec = cluster(pool("a", per_node=16), pool("b", "V100", per_node=4))
    plans = list(equal_batches(Estimator(spec, gpt(global_batch=6))))
    assert [plan.devices for plan in plans] == [6] * 8


@pytest.mark.parametrize(("layers", "per_node", "used"), [(24, 17, 17), (24, 12, 12), (17, 17, 17)])
def test_pipelines_are_even(layers: int, per_node: int, used: int) -> None:
    """Equal layers on every stage; some of the grid uses all devices."""
    plans = list(
        even_pipelines(Estimator(cluster(pool("a", per_node=per_node)), gpt(layers, global_batch=408)))
    )
    assert {len({stage.layers for stage in plan.stages}) for plan in plans} == {1}
    assert max(plan.devices for plan in plans) == used


def test_fastest_first() -> None:
    """Pool by pool, by its fastest device; then by name; without the number format there is none."""
    mixed = pool("m", ("T4", "A100", "V100"))
    spec = cluster(pool("z", "V100"), mixed, pool("b", "T4"), pool("y", "V100"))
    kinds = fastest_first(Estimator(spec, gpt()))
    assert [(kind.pool, kind.gpu) for kind in kinds] == [
        ("m", "A100"),
        ("m", "V100"),
        ("m", "T4"),
        ("y", "V100"),
        ("z", "V100"),
        ("b", "T4"),
    ]
    assert [kind.gpu for kind in fastest_first(Estimator(spec, gpt(precision="bf16")))] == [
        "A100",
        "T4",
        "T4",
    ]
    with pytest.raises(PlanError, match="no device has bf16"):
        fastest_first(Estimator(cluster(pool("z", "V100")), gpt(precision="bf16")))


def test_stages_filled_in_order() -> None:
    """From one type to the next; devices that hold no replica any more are left over."""
    spec = cluster(pool("a", per_node=3), pool("b", "V100", per_node=4))
    kinds = fastest_first(Estimator(spec, gpt()))
    room = [(kind, kind.devices) for kind in kinds]
    first, second = filled(room, [(1, 4, 8), (2, 1, 8)], steps=2)
    assert [(group.pool, group.count, group.tp) for group in (*first, *second)] == [
        ("a", 3, 1),
        ("b", 1, 1),
        ("b", 1, 2),
    ]
    assert {(group.local_batch, group.accumulation_steps) for group in (*first, *second)} == {(8, 2)}
    assert [group.pool for groups in filled(room, [(2, 1, 8)] * 3, 1) for group in groups] == ["a", "b", "b"]
    with pytest.raises(PlanError, match="fewer devices than 1 replicas of 2"):
        filled(room, [(2, 1, 8)] * 4, 1)


def test_pipelines_of_given_stages() -> None:
    """Sharded where there is something to shard; of another target where the stages differ."""
    spec = cluster(pool("a", per_node=4))
    (kind,) = fastest_first(Estimator(spec, gpt()))
    one, two, wide = ((replicas_on(kind, tp, count, 8, 2),) for tp, count in ((1, 1), (1, 2), (2, 1)))
    alike = pipeline([two, two], [3, 1], "full", sequence_parallel=True)
    assert (alike.target, alike.zero, alike.sequence_parallel) == ("megatron", 1, True)
    assert [(stage.first_layer, stage.end_layer, stage.recompute) for stage in alike.stages] == [
        (0, 3, "full"),
        (3, 4, "full"),
    ]
    single = pipeline([one, one], [2, 2])
    assert (single.target, single.zero, single.sequence_parallel) == ("megatron", 0, False)
    assert pipeline([two, two], [2, 2], zero=0).zero == 0
    unlike = pipeline([one, wide], [2, 2])
    assert (unlike.target, unlike.zero) == ("flagscale", 0)


def test_batches_of_single_devices() -> None:
    """In no more micro-batches than sequences; who has no sequence stays idle."""
    spec = cluster(pool("a", per_node=4), pool("b", "V100", per_node=4))
    kinds = fastest_first(Estimator(spec, gpt()))
    groups = batch_groups(kinds, [[(2, 3), (1, 2)], [(4, 0)]], steps=3)
    assert [(group.pool, group.count, group.local_batch, group.accumulation_steps) for group in groups] == [
        ("a", 2, 3, 3),
        ("a", 1, 2, 2),
    ]


def test_the_widest_replicas_divide_the_batch() -> None:
    """Up to as many as there is room for."""
    estimator = Estimator(cluster(pool("a")), gpt(global_batch=12))
    assert [widest(estimator, most) for most in (1, 3, 5, 11, 12, 40)] == [1, 3, 4, 6, 12, 12]


RECOMPUTED: tuple[tuple[int, Recompute], ...] = ((1, "none"), (4, "full"))
"""Micro-batches, and what is recomputed."""


def test_the_best_of_some_plans() -> None:
    """The fastest that fits; else the one that lacks least; else why there is none."""
    estimator = Estimator(
        cluster(pool("a", per_node=2), pool("b", "V100", per_node=1)), gpt(4, 512, 8, global_batch=8)
    )
    kinds = fastest_first(estimator)

    one, two, broken = (
        data_parallel(estimator, [replicas_on(kinds[0], 1, count, 8 // count, 1)], 0, "none")
        for count in (1, 2, 4)
    )
    for order in ((one, broken, two), (two, one)):
        found = best_of("name", order, estimator)
        assert found.scored is not None
        assert (found.family, found.chosen, found.reason) == ("name", False, "")
        assert found.scored.plan == two
    assert best_of("name", (broken, broken), estimator).reason.startswith("not applicable: ")
    assert best_of("name", (), estimator).reason == "not applicable: nothing to choose from"
    large = Estimator(estimator.cluster, gpt(48, 4096, 32, global_batch=8))
    more, less = (
        data_parallel(large, [replicas_on(kinds[0], 1, 2, 4, steps)], 3, recompute)
        for steps, recompute in RECOMPUTED
    )
    for order in ((more, less), (less, more)):
        found = best_of("name", order, large)
        assert found.scored is not None
        assert found.scored.plan == less
        lacks = missing_bytes(found.scored) / 2**30
        assert lacks > 0
        assert found.reason == f"does not fit: stage 0: A100 in a lacks {lacks:.1f} GiB"
    fits = best_of("name", (two,), estimator).scored
    assert fits is not None
    assert missing_bytes(fits) < 0
