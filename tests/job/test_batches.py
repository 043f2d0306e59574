"""The batch table deals the global batch and weighs every sequence alike."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.emit.interface import job_of
from planner.job.batches import batch, table_text
from planner.plan.values import Plan
from tests.worlds import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", ("A100",) * 4, 2), pool("b", ("T4",) * 4, 2))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans without a pipeline and with any batch on any device."""
    groups = []
    for name, kind in (("a", "A100"), ("b", "T4"), ("a", "A100")):
        share = draw(st.integers(1, 40))
        groups.append(
            group(
                name,
                kind,
                count=draw(st.integers(1, 4)),
                share=share,
                steps=draw(st.integers(1, min(8, share))),
            )
        )
    return plan("deepspeed", draw(st.integers(0, 3)), [4], [tuple(groups)])


@given(plans())
def test_every_sequence_counts_once(chosen: Plan) -> None:
    """After DeepSpeed's own divisions, each sequence has the weight 1 / global batch."""
    dp = chosen.stages[0].dp
    for replicas in chosen.stages[0].replicas:
        mine = batch(chosen, replicas)
        for size, weight in zip(mine.micro_batches, mine.loss_weights, strict=True):
            exact = Fraction(size * dp * len(mine.micro_batches), chosen.global_batch)
            assert weight == pytest.approx(float(exact), rel=1e-15)
            if size:
                each = weight / size / len(mine.micro_batches) / dp
                assert each == pytest.approx(1 / chosen.global_batch)


@given(plans())
def test_weights_sum_to_the_ranks(chosen: Plan) -> None:
    """Weights over the steps of their rank sum to the number of ranks, so a mean over ranks is a mean."""
    total = sum(
        replicas.count * sum(mine.loss_weights) / len(mine.loss_weights)
        for replicas in chosen.stages[0].replicas
        for mine in [batch(chosen, replicas)]
    )
    assert total == pytest.approx(chosen.stages[0].dp)


@given(plans())
def test_padding_only_where_needed(chosen: Plan) -> None:
    """ZeRO 2 and 3 have equally many micro-batches on all ranks; ZeRO 0 and 1 have no padding."""
    made = [batch(chosen, replicas) for replicas in chosen.stages[0].replicas]
    if chosen.zero >= 2:
        assert {len(mine.micro_batches) for mine in made} == {chosen.micro_batches}
    else:
        assert all(0 not in mine.micro_batches for mine in made)
    for mine, replicas in zip(made, chosen.stages[0].replicas, strict=True):
        assert mine.share == replicas.local_batch
        assert mine.micro_batches[: replicas.accumulation_steps] == replicas.micro_batch_sizes


@given(plans())
def test_ranks_deal_the_global_batch(chosen: Plan) -> None:
    """The rows follow each other without gap or overlap through the global batch."""
    table = json.loads(table_text(job_of(chosen, CLUSTER, model(chosen.global_batch))))
    at = 0
    for row in table["ranks"]:
        assert row["first_sequence"] == at
        at += row["share"]
        assert row["share"] == sum(table["batches"][row["batch"]]["micro_batches"])
    assert at == chosen.global_batch == table["global_batch"]
    assert len(table["ranks"]) == table["world_size"] == chosen.devices


def test_pipeline_weights_are_one() -> None:
    """Equal batches need no weight, and every stage starts again at the first sequence."""
    replicas = (group("a", "A100", count=2, share=4, steps=2),)
    chosen = plan("deepspeed", 1, [3, 1], [replicas, (group("b", "T4", count=2, share=4, steps=2),)])
    table = json.loads(table_text(job_of(chosen, CLUSTER, model(chosen.global_batch))))
    assert table["batches"] == [{"micro_batches": [2, 2], "loss_weights": [1.0, 1.0]}]
    assert [row["first_sequence"] for row in table["ranks"]] == [0, 4, 0, 4]
    assert [row["stage"] for row in table["ranks"]] == [0, 0, 1, 1]


def test_golden() -> None:
    """The file as it is written."""
    replicas = (group("a", "A100", share=5, steps=2), group("b", "T4", share=1))
    chosen = plan("deepspeed", 2, [4], [replicas])
    assert table_text(job_of(chosen, CLUSTER, model(chosen.global_batch))) == (
        "{\n"
        '  "format": 1,\n'
        '  "world_size": 2,\n'
        '  "data_parallel": 2,\n'
        '  "tensor_parallel": 1,\n'
        '  "global_batch": 6,\n'
        '  "zero": 2,\n'
        '  "stages": [\n'
        '    {"first_layer": 0, "end_layer": 4, "recompute": "none"}\n'
        "  ],\n"
        '  "batches": [\n'
        '    {"micro_batches": [1, 0], "loss_weights": [0.6666666666666666, 0.0]},\n'
        '    {"micro_batches": [3, 2], "loss_weights": [2.0, 1.3333333333333333]}\n'
        "  ],\n"
        '  "ranks": [\n'
        '    {"rank": 0, "host": "a-0", "device": 0, "stage": 0, "replica": 0, "tensor_rank": 0, "batch": 1, '
        '"first_sequence": 0, "share": 5},\n'
        '    {"rank": 1, "host": "b-0", "device": 0, "stage": 0, "replica": 1, "tensor_rank": 0, "batch": 0, '
        '"first_sequence": 5, "share": 1}\n'
        "  ]\n"
        "}\n"
    )
