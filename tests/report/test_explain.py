"""Why a plan is what it is."""

from __future__ import annotations

from dataclasses import replace

from planner.calibration.values import ASSUMED
from planner.cluster.spec import HostSpec, PoolSpec
from planner.cost.estimate import estimate
from planner.plan.values import Offload, Plan, ReplicaGroup, Stage
from planner.report.explain import balance_section, neighbours_section, time_section
from planner.search.explain.neighbours import Neighbour, neighbours
from planner.search.values import Scored
from tests.report import examples
from tests.report.drawing import drawn


def test_time_by_cause_with_what_it_is() -> None:
    """Causes without time are left out; hidden communication is told apart."""
    assert drawn(time_section(examples.scored().estimate)) == (
        "Step time by cause\n"
        "  cause                s  share  what\n"
        "  ──────────────────────────────────────────────────────────────────────────────\n"
        "  compute           19.0   70 %  forward and backward of layers, embedding and\n"
        "                                 head\n"
        "  tensor parallel    2.7   10 %  collectives inside replicas\n"
        "  bubble and sends   5.2   19 %  waiting for stages or replicas, and sends\n"
        "  optimizer          0.3  1.0 %  update of the weights\n"
        "  193 ms of communication is hidden under computation\n"
        "\n"
    )


def test_balance_shows_who_waits() -> None:
    """Load is against the busiest group."""
    assert drawn(balance_section(examples.scored().estimate)) == (
        "Balance\n"
        "                                fwd+bwd  accum.\n"
        "  stage  layers  devices           (ms)   steps   load  communication\n"
        "  ───────────────────────────────────────────────────────────────────\n"
        "      0  0-23    4 A100 (a100)      150     128  100 %  next: eth\n"
        "      1  24-31   4 V100 (v100)      128     128   85 %  none\n"
        "  load: work per step relative to the busiest group, for which the others wait\n"
        "\n"
    )


def test_neighbours_change_one_decision_each() -> None:
    """Every neighbour is a valid plan of the target, priced by the real cost model."""
    found = neighbours(examples.plan(), examples.cluster(), examples.model(), ASSUMED)
    changes = {entry.change for entry in found}
    assert {
        "ZeRO 0 instead of 1",
        "no recomputation",
        "full recomputation",
        "without sequence parallelism",
    } <= changes
    assert any(change.startswith("one layer from stage") for change in changes)
    assert {"micro-batches half as large", "micro-batches twice as large"} <= changes
    for entry in found:
        assert entry.scored.plan.global_batch == 256
        assert entry.scored.estimate == estimate(entry.scored.plan, examples.cluster(), examples.model())


def test_uneven_shares_have_neighbours_too() -> None:
    """A batch per GPU allows micro-batches that do not divide its share."""
    groups = (
        ReplicaGroup(pool="a100", gpu="A100", tp=1, count=8, local_batch=25, accumulation_steps=9),
        ReplicaGroup(pool="v100", gpu="V100", tp=1, count=8, local_batch=7, accumulation_steps=4),
    )
    plan = Plan(target="deepspeed", zero=3, stages=(Stage(first_layer=0, end_layer=32, replicas=groups),))
    changes = [entry.change for entry in neighbours(plan, examples.cluster(), examples.model(), ASSUMED)]
    assert "ZeRO 2 instead of 3" in changes
    assert not any("layer from" in change for change in changes)


def test_neighbours_of_a_plan_that_offloads() -> None:
    """Everything on the devices is one of them; no change that its target cannot offload in is."""
    known = tuple(
        pool.model_copy(update={"host": HostSpec(link_gBps=10)}) for pool in examples.cluster().pools
    )
    cluster = examples.cluster().model_copy(update={"pools": known})
    group = ReplicaGroup(pool="a100", gpu="A100", tp=1, count=8, local_batch=32, accumulation_steps=8)
    stage = Stage(first_layer=0, end_layer=32, replicas=(group,), recompute="full")
    offload = Offload(optimizer="cpu", parameters="cpu", activations="cpu")
    plan = Plan(target="deepspeed", zero=3, stages=(stage,), offload=offload)
    changes = {entry.change for entry in neighbours(plan, cluster, examples.model(), ASSUMED)}
    assert {"everything on the devices", "micro-batches half as large"} <= changes
    assert not any("ZeRO" in change or "recomputation" in change for change in changes)


def test_neighbours_of_hybrid_sharding() -> None:
    """More and fewer copies; ZeRO 0 has nothing to shard, and other targets have no groups."""
    group = ReplicaGroup(pool="a100", gpu="A100", tp=1, count=16, local_batch=16, accumulation_steps=8)
    stage = Stage(first_layer=0, end_layer=32, replicas=(group,))
    plain = Plan(target="torch", zero=3, stages=(stage,))
    cluster = examples.cluster().model_copy(
        update={"pools": tuple(_two_nodes(pool) for pool in examples.cluster().pools)}
    )

    def changes(plan: Plan) -> dict[str, Plan]:
        found = neighbours(plan, cluster, examples.model(), ASSUMED)
        return {entry.change: entry.scored.plan for entry in found}

    grouped = changes(plain)["sharded over groups of 8 replicas"]
    assert grouped == replace(plain, shard_size=8)
    assert changes(grouped)["sharded over all replicas"] == plain
    assert changes(grouped)["ZeRO 2 instead of 3"].shard_size == 8
    assert changes(grouped)["ZeRO 0 instead of 3"].shard_size is None
    assert not any("sharded" in change for change in changes(replace(plain, target="deepspeed")))


def _two_nodes(pool: PoolSpec) -> PoolSpec:
    return pool.model_copy(update={"hosts": ("x", "y"), "devices": pool.devices[:1] * 8})


def test_neighbours_that_do_not_fit_say_so() -> None:
    """The table shows the price of each change and whether it fits."""
    entries = [
        Neighbour(decision="a", change="ZeRO 0 instead of 1", scored=examples.scored(24, 28.0)),
        Neighbour(decision="b", change="no recomputation", scored=examples.scored(24, 26.0, 40.0)),
    ]
    first = Scored(plan=examples.plan(), estimate=examples.scored().estimate)
    assert drawn(neighbours_section(entries, first)) == (
        "One decision changed\n"
        "                       step\n"
        "  change                (s)  slower by  memory\n"
        "  ──────────────────────────────────────────────────────────────────────────────\n"
        "  ZeRO 0 instead of 1  28.0      2.9 %  fits\n"
        "  no recomputation     26.0     -4.4 %  does not fit: stage 0: A100 in a100\n"
        "                                        lacks 11.5 GiB\n"
        "\n"
    )
