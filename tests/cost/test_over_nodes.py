"""Replicas that fill several nodes: their ring, their places, and plans as they are priced, checked and emitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.values import ASSUMED, ASSUMED_FAMILY, ASSUMED_LINK
from planner.cluster.multi_node import widened
from planner.cluster.topology import Topology
from planner.cost.binding import binding
from planner.cost.communication import tensor_ring
from planner.cost.estimate import Estimator
from planner.emit.interface import emit
from planner.errors import PlanError
from planner.plan.checks import check_plan, faults
from planner.plan.placement import Slot, place, ranks
from planner.plan.values import Plan
from tests.worlds import cluster, group, model, plan, pool

TWOS = cluster(pool("a", nodes=5, per_node=2, cards=1))
"""Nodes of two devices with one card of 25 GB/s."""
SMALL = model(8, layers=4, vocab=512)


def wide(target: str = "torch", *, zero: int = 1, tp: int = 4, count: int = 2, **changes: object) -> Plan:
    """One stage of replicas over two nodes each."""
    made = plan(target, zero, [4], [(group("a", "A100", tp=tp, count=count, share=8 // count, steps=2),)])
    return replace(made, **changes)  # type: ignore[arg-type]


def test_ranks_go_node_by_node() -> None:
    """Tensor-parallel ranks are consecutive, and a replica begins on a node of its own."""
    assert place(wide(), TWOS) == ((Slot("a", "A100", 2, 0, 4, 0, 1),),)
    found = [(rank.host, rank.device, rank.replica, rank.tp_rank) for rank in ranks(wide(), TWOS)]
    wanted = [(f"a-{number // 2}", number % 2, number // 4, number % 4) for number in range(8)]
    assert found == wanted


def test_the_ring_has_all_cards_of_its_nodes() -> None:
    """As a data-parallel ring over the same devices: its rate is that of the cards, or of what is inside a node."""
    (kind,) = Topology(widened(TWOS, {"a": 2})).device_types
    ring = tensor_ring(kind, ASSUMED, tp=4)
    assert (ring.size, ring.crosses, kind.nodes) == (4, "ib", 2)
    assert ring.bytes_per_second == pytest.approx(25e9 * ASSUMED_LINK.efficiency)
    inside = kind.intra_latency_seconds
    assert ring.latency_seconds == pytest.approx(inside + 5e-6)
    assert ring.around_seconds == pytest.approx(2 * inside + 5e-6)
    fast = widened(cluster(pool("a", nodes=4, per_node=2, cards=40)), {"a": 2})
    (kind,) = Topology(fast).device_types
    assert tensor_ring(kind, ASSUMED, tp=4).bytes_per_second == pytest.approx(
        300e9 * ASSUMED_FAMILY.link_efficiency
    )


def test_replicas_on_nodes_of_their_own_reduce_as_in_nodes() -> None:
    """Each card carries the rings of its own node's devices, however many nodes a replica has."""
    lone = plan("torch", 1, [4], [(group("a", "A100", tp=2, count=2, share=4, steps=2),)])
    over, each = (Estimator(TWOS, SMALL).price(chosen).rings[0] for chosen in (wide(), lone))
    assert over == each
    assert over.bytes_per_second == pytest.approx(25e9 / 2 * ASSUMED_LINK.efficiency)


def test_a_slower_network_takes_longer_and_memory_is_divided() -> None:
    """Twice the devices hold less each; the network decides the time."""
    slow = cluster(pool("a", nodes=5, per_node=2, cards=1, gbps=0.2))
    fast, late = (Estimator(spec, SMALL).estimate(wide()) for spec in (TWOS, slow))
    assert late.breakdown.tensor_parallel_seconds > 5 * fast.breakdown.tensor_parallel_seconds
    assert late.step_seconds > fast.step_seconds
    inside = plan("torch", 1, [4], [(group("a", "A100", tp=2, count=2, share=4, steps=2),)])
    held = [
        each.stages[0].groups[0].memory.used_bytes for each in (fast, Estimator(TWOS, SMALL).estimate(inside))
    ]
    assert held[0] < held[1]
    (link, *_) = binding(wide(), Estimator(slow, SMALL)).links
    assert (link.traffic, link.path) == ("tensor-parallel collectives", "ib")


@pytest.mark.parametrize("target", ["deepspeed", "megatron", "torch"])
def test_who_runs_it(target: str) -> None:
    """Three runtimes; without user buffers, which need devices that reach each other's memory."""
    check_plan(wide(target), TWOS, SMALL)
    files = {file.path: file.text for file in emit(wide(target), TWOS, SMALL)}
    if target == "megatron":
        assert "--tensor-model-parallel-size" in files["args.sh"]
        assert "tp-comm-overlap" not in files["args.sh"]


def test_who_does_not() -> None:
    """FlagScale; nodes of several types; degrees that fill no nodes; pools with two degrees; no network."""
    found = [fault.what for fault in faults(wide("flagscale"), TWOS, SMALL)]
    assert any("starts replicas on one node, expected at most 2 A100, got 4" in what for what in found)
    mixed = cluster(pool("a", ("A100", "T4"), 4))
    with pytest.raises(PlanError, match="need nodes of one device type"):
        place(wide(tp=2), mixed)
    with pytest.raises(PlanError, match="tp 3 needs more and fills no whole nodes"):
        place(wide(tp=3), TWOS)
    stages = [(group("a", "A100", tp=tp, count=1, share=8, steps=2),) for tp in (4, 2)]
    with pytest.raises(PlanError, match="the same tp in all of the pool"):
        place(plan("flagscale", 1, [2, 2], stages), TWOS)
    apart = cluster(pool("a", nodes=4, per_node=2, nics=()))
    (fault,) = faults(wide(), apart, SMALL)
    assert "which no fabric joins" in fault.what
    with pytest.raises(PlanError, match="which no fabric joins"):
        Estimator(apart, SMALL).estimate(wide())
