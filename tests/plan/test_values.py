"""Plans as values: what a plan cannot be, and what follows from its fields."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.plan.values import ON_DEVICE, Offload, Plan, ReplicaGroup, Stage


def group(**fields: Any) -> ReplicaGroup:
    """Two replicas of one device, 8 sequences each in 4 steps."""
    return ReplicaGroup(
        **{"pool": "a", "gpu": "A", "tp": 1, "count": 2, "local_batch": 8, "accumulation_steps": 4, **fields}
    )


def stage(first: int = 0, end: int = 4, *groups: ReplicaGroup) -> Stage:
    """A stage of these layers."""
    return Stage(first_layer=first, end_layer=end, replicas=groups or (group(),))


def plan(*stages: Stage, **fields: Any) -> Plan:
    """A plan of these stages."""
    return Plan(**{"target": "megatron", "zero": 0, "stages": stages or (stage(),), **fields})


def test_what_follows_from_the_fields() -> None:
    """Sizes add up over groups and stages."""
    two = plan(
        stage(0, 5, group(tp=2), group(count=1, local_batch=4)),
        stage(5, 8, group(count=5, local_batch=4, accumulation_steps=2)),
    )
    assert (two.pp, two.layers, two.devices, two.global_batch, two.micro_batches) == (2, 8, 10, 20, 4)
    assert [(part.layers, part.dp, part.devices, part.sequences) for part in two.stages] == [
        (5, 3, 5, 20),
        (3, 5, 5, 20),
    ]


@given(st.integers(1, 500), st.integers(1, 500))
def test_micro_batches_share_out_the_share(share: int, steps: int) -> None:
    """As even as possible, larger ones first, none empty."""
    if steps > share:
        steps = share
    sizes = group(local_batch=share, accumulation_steps=steps).micro_batch_sizes
    assert (len(sizes), sum(sizes)) == (steps, share)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == group(local_batch=share, accumulation_steps=steps).micro_batch


@pytest.mark.parametrize(
    "wrong", [{"tp": 0}, {"count": 0}, {"accumulation_steps": 0}, {"local_batch": 3}, {"tp": -1}]
)
def test_replicas_that_cannot_be(wrong: dict[str, int]) -> None:
    """The pool is named."""
    with pytest.raises(PlanError, match="replicas on a: tp, count and steps must be at least 1"):
        group(**wrong)


@pytest.mark.parametrize(("first", "end"), [(0, 0), (3, 2), (-1, 2)])
def test_stages_need_layers(first: int, end: int) -> None:
    """At least one."""
    with pytest.raises(PlanError, match="at least one layer"):
        stage(first, end)


def test_stages_need_replicas() -> None:
    """The layers are named."""
    with pytest.raises(PlanError, match=r"layers \[0, 4\) has no replicas"):
        Stage(first_layer=0, end_layer=4, replicas=())


@pytest.mark.parametrize(
    ("stages", "fields", "message"),
    [
        ((stage(1, 4),), {}, r"stages\[0\].layers: starts at layer 1, expected 0"),
        ((stage(0, 4), stage(5, 8)), {}, r"stages\[1\].layers: starts at layer 5, expected 4"),
        ((stage(0, 4), stage(3, 8)), {}, r"stages\[1\].layers: starts at layer 3, expected 4"),
        ((stage(0, 4), stage(4, 8, group(count=3))), {}, "same number of sequences"),
        ((stage(),), {"zero": 4}, "zero: expected 0, 1, 2 or 3, got 4"),
        ((stage(),), {"interleave": 0}, "interleave 0"),
        ((stage(),), {"zero": 0, "shard_size": 2}, "shard_size: ZeRO 0 shards nothing, expected none, got 2"),
        *(
            (
                (stage(0, 4, group(count=6)),),
                {"zero": 1, "shard_size": wrong},
                f"shard_size: expected a divisor of the 6 replicas of a stage, from 2 on .* got {wrong}",
            )
            for wrong in (-2, 0, 1, 4, 6, 12)
        ),
        ((stage(0, 4), stage(4, 5)), {"interleave": 2}, "interleave 2 needs at least as many layers"),
    ],
)
def test_plans_that_cannot_be(stages: tuple[Stage, ...], fields: dict[str, Any], message: str) -> None:
    """Each with its reason."""
    with pytest.raises(PlanError, match=message):
        plan(*stages, **fields)


def test_a_plan_needs_a_stage() -> None:
    """One at least."""
    with pytest.raises(PlanError, match="at least one stage"):
        Plan(target="megatron", zero=0, stages=())


def test_plans_are_immutable() -> None:
    """A plan can be shared and compared."""
    with pytest.raises(FrozenInstanceError):
        plan().zero = 1  # type: ignore[misc]
    assert plan() == plan()
    assert hash(plan()) == hash(plan())


def test_offload_says_what_leaves_the_devices() -> None:
    """Nothing by default."""
    assert plan().offload == ON_DEVICE
    assert not ON_DEVICE.anything
    assert Offload(activations="cpu").anything
    assert not Offload(optimizer="cpu", parameters="cpu").uses_nvme
    assert Offload(optimizer="cpu", parameters="nvme").uses_nvme


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"activations": "nvme"}, "to cpu only"),
        ({"parameters": "cpu"}, "need the optimizer states off it too"),
        ({"optimizer": "cpu", "ratio": 0.0}, "ratio: expected a share from 0.01 to 1, got 0"),
        ({"optimizer": "cpu", "ratio": 1.5}, "ratio: expected a share from 0.01 to 1, got 1.5"),
        (
            {"optimizer": "nvme", "ratio": 0.5},
            "ratio: it is for states in host memory, expected optimizer: cpu",
        ),
        ({"ratio": 0.5}, "ratio: it is for states in host memory, .* got none"),
        ({"optimizer": "nvme", "super_offload": True}, "super_offload: it is for states in host memory"),
    ],
)
def test_offload_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    """Checkpoints on NVMe; parameters that leave their states behind; shares of what no host updates in memory."""
    with pytest.raises(PlanError, match=message):
        Offload(**wrong)
