"""Poplar's two allocations."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.baselines.poplar import best_size, in_lock_step, sweep, without_lock_step
from planner.catalog import GpuSpec
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from tests.worlds import cluster, gpt, pool

CURVE = st.lists(st.floats(0.1, 2), min_size=1, max_size=6).map(lambda steps: list(accumulate(steps)))


def a100(name: str, memory: float) -> GpuSpec:
    """An A100 with as much memory as told."""
    return GpuSpec(name=name, memory_gib=memory, memory_bandwidth_gBps=2039, tflops={"fp16": 312})


def test_the_fastest_micro_batch_need_not_be_the_largest() -> None:
    """2 sequences in 2.5 s are more a second than 3 in 4.5 s."""
    assert best_size([2.0, 2.5, 4.5]) == 2


def test_devices_that_differ_in_memory_alone_get_equal_shares() -> None:
    """Like A100 of 80 and 40 GB: the same work in micro-batches of their own."""
    spec = cluster(
        pool("big", "A80", per_node=4),
        pool("small", "A40", per_node=4),
        gpus={"A80": a100("A80", 80), "A40": a100("A40", 40)},
    )
    trained = gpt(global_batch=1024, cross_entropy="plain")
    plans = list(without_lock_step(Estimator(spec, trained)))
    assert [plan.zero for plan in plans] == [0, 0, 1, 1]
    for plan in plans:
        big, small = plan.stages[0].replicas[0], plan.stages[0].replicas[-1]
        assert big.local_batch == pytest.approx(small.local_batch, rel=0.05)
        assert big.micro_batch > 1.5 * small.micro_batch
        assert big.accumulation_steps < small.accumulation_steps


def test_devices_that_differ_in_speed_get_shares_by_speed() -> None:
    """All would finish the step within a sequence of each other."""
    spec, model = cluster(pool("a", per_node=4), pool("v", "V100", per_node=4)), gpt(global_batch=1000)
    estimator = Estimator(spec, model)
    for plan in without_lock_step(estimator):
        seconds = [
            (group.forward_seconds + group.backward_seconds) / group.micro_batch * group.share
            for group in estimator.estimate(plan).stages[0].groups
        ]
        assert max(seconds) < 1.05 * min(seconds)
        assert plan.global_batch == 1000


def test_lock_step_by_hand() -> None:
    """A fast device (1 s a sequence, at most 4) and a slow one (2 s): with 12 sequences four steps of 2 and 1 win."""
    fast, slow = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]
    assert sweep([fast, slow], [1, 1], 12, traffic=0.0) == ([[(1, 8)], [(1, 4)]], 4)


def test_traffic_makes_steps_fewer() -> None:
    """Collectives of 10 s in every micro-batch: two steps of 4 and 2 instead of four."""
    fast, slow = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]
    assert sweep([fast, slow], [1, 1], 12, traffic=10.0) == ([[(1, 8)], [(1, 4)]], 2)


@given(
    st.lists(st.tuples(CURVE, st.integers(1, 3)), min_size=1, max_size=3),
    st.integers(9, 60),
    st.floats(0, 3),
)
def test_no_common_step_is_faster(
    device_types: list[tuple[list[float], int]], batch: int, traffic: float
) -> None:
    """The sweep finds the least ``steps (slowest + traffic)`` of all micro-batches; shares add up."""
    curves, counts = zip(*device_types, strict=True)
    others = []
    for sizes in product(*(range(1, len(curve) + 1) for curve in curves)):
        needed = -(-batch // sum(size * count for size, count in zip(sizes, counts, strict=True)))
        if min(sizes) * (needed - 1) >= needed:  # else a device may have nothing left in the last micro-batch
            longest = max(curve[size - 1] for size, curve in zip(sizes, curves, strict=True))
            others.append(needed * (longest + traffic))
    try:
        batches, steps = sweep(curves, counts, batch, traffic)
    except PlanError:
        assert not others
        return
    assert sum(count * share for parts in batches for count, share in parts) == batch
    assert all(share >= steps for parts in batches for _, share in parts)
    slowest = max(
        curve[-(-max(share for _, share in parts) // steps) - 1]
        for curve, parts in zip(curves, batches, strict=True)
    )
    assert steps * (slowest + traffic) <= min(others, default=float("inf")) * (1 + 1e-9)


def test_a_stage_that_leaves_a_device_nothing_does_not_hide_the_others() -> None:
    """On devices of 6 GiB only ZeRO 3 with recomputation leaves each of them a sequence in the last micro-batch."""
    slow = GpuSpec(name="S", memory_gib=6, memory_bandwidth_gBps=300, tflops={"fp16": 30})
    spec = cluster(
        pool("big", "A80", per_node=8),
        pool("small", "S", per_node=8),
        gpus={"A80": a100("A80", 80), "S": slow},
    )
    (plan,) = in_lock_step(Estimator(spec, gpt(global_batch=500)))
    assert (plan.zero, plan.stages[0].recompute) == (3, "full")


def test_lock_step_plans_have_one_number_of_steps() -> None:
    """ZeRO 2 and 3 synchronise in every micro-batch."""
    spec = cluster(pool("a", per_node=4), pool("v", "V100", per_node=4))
    plans = list(in_lock_step(Estimator(spec, gpt(global_batch=500))))
    assert [plan.zero for plan in plans] == [2, 2, 3, 3]
    for plan in plans:
        assert len({group.accumulation_steps for group in plan.stages[0].replicas}) == 1
        assert plan.global_batch == 500


def test_more_devices_than_sequences_are_refused() -> None:
    """A device without a sequence cannot take part in the collectives."""
    with pytest.raises(PlanError, match="the batch has 6"):
        list(in_lock_step(Estimator(cluster(pool("a", per_node=8)), gpt(global_batch=6))))
