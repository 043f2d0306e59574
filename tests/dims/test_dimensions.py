"""Dimensions together: every decision of a plan belongs to one, and each changes nothing but its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from planner.cluster.topology import Topology
from planner.dims import DIMENSIONS
from planner.dims.dimension import Dimension
from planner.dims.recompute import worth_trying
from planner.dims.tensor import head_faults, tp_degrees
from planner.model.file import load_model
from planner.model.spec import ExpertsSpec
from planner.plan.checks import target_faults
from planner.plan.values import Offload, Plan, ReplicaGroup, Stage
from planner.targets import TARGETS, target
from tests.plan.examples import CLUSTER, MODEL, group, plan, stage
from tests.worlds import GPUS, cluster, gpt, pool

ELSEWHERE = {"Plan.target", "ReplicaGroup.pool", "ReplicaGroup.gpu"}
"""For whom a plan is and where it runs."""

OLD = GPUS["A100"].model_copy(update={"compute_capability": 6.0})
"""Too old for any flash attention."""

PLANS = (
    plan(),
    plan(stage(0, 8, group(tp=2)), sequence_parallel=True),
    plan(stage(0, 8, group(count=8)), target="torch", zero=3, shard_size=4),
    plan(stage(0, 8), target="deepspeed", zero=3, offload=Offload(optimizer="cpu")),
    plan(interleave=2),
    plan(
        stage(0, 8, replace(group(count=2), shard=3), group(count=2)),
        target="torch",
        zero=3,
    ),
)


def test_every_field_of_a_plan_belongs_to_one_dimension() -> None:
    """A new one is somebody's, so that it has rules, a text and a place in ``explain``."""
    wanted = {
        f"{owner.__name__}.{field.name}" for owner in (Plan, Stage, ReplicaGroup) for field in fields(owner)
    }
    found = Counter(name for dimension in DIMENSIONS for name in dimension.fields)
    assert set(found) == wanted - ELSEWHERE
    assert set(found.values()) == {1}


def test_labels_are_shown_once() -> None:
    """No two dimensions claim a line of the comparison of plans."""
    for one in PLANS:
        labels = [label for dimension in DIMENSIONS for label in dimension.traits(one)]
        assert len(labels) == len(set(labels)) > 10


def decided(one: Plan) -> dict[str, object]:
    """What a plan says in each field, stages and groups side by side."""
    found: dict[str, object] = {
        f"Plan.{name}": value for name, value in asdict(one).items() if name != "stages"
    }
    for item in one.stages:
        for name in ("first_layer", "end_layer", "recompute"):
            found.setdefault(f"Stage.{name}", [])
            found[f"Stage.{name}"] += [getattr(item, name)]  # type: ignore[operator]
    for field in fields(ReplicaGroup):
        found[f"ReplicaGroup.{field.name}"] = [
            getattr(each, field.name) for item in one.stages for each in item.replicas
        ]
    return found


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("one", PLANS, ids=range(len(PLANS)))
def test_neighbours_differ_in_their_dimension_alone(one: Plan, dimension: Dimension) -> None:
    """And each of them differs."""
    device_types = Topology(CLUSTER).device_types
    before = decided(one)
    for change in dimension.neighbours(one, target(one.target), device_types):
        after = decided(change.plan)
        changed = {name for name in before if before[name] != after[name]}
        assert changed
        assert changed <= set(dimension.fields), change.what


def test_neighbours_say_what_they_change() -> None:
    """A stage keeps a layer; the micro-batch changes with the accumulation steps."""
    one = plan(stage(0, 7, group(tp=2, count=2)), stage(7, 8, group(tp=2, count=2)), zero=0)
    device_types, row = Topology(CLUSTER).device_types, target("megatron")
    found = {
        change.what: change.plan
        for dimension in DIMENSIONS
        for change in dimension.neighbours(one, row, device_types)
    }
    cut = found.pop("one layer from stage 0 to 1")
    assert [(part.first_layer, part.end_layer) for part in cut.stages] == [(0, 6), (6, 8)]
    assert found.pop("with sequence parallelism").sequence_parallel
    assert found.pop("ZeRO 1 instead of 0").zero == 1
    for name, size in (("half", 2), ("twice", 8)):
        changed = found.pop(f"micro-batches {name} as large")
        assert {each.replicas[0].micro_batch for each in changed.stages} == {size}
        assert {each.replicas[0].local_batch for each in changed.stages} == {16}
    for way, words in (("selective", "selective recomputation"), ("full", "full recomputation")):
        assert {each.recompute for each in found.pop(words).stages} == {way}
    assert not found


@pytest.mark.parametrize("name", TARGETS)
def test_neighbours_obey_the_rules_of_their_dimension(name: str) -> None:
    """What a dimension offers in place of a decision obeys its own rules on every runtime."""
    row = target(name)
    one = plan(stage(0, 8, group(tp=1)), target=name, zero=row.zero_without_pipeline[0])
    assert not target_faults(one, MODEL)
    device_types = Topology(CLUSTER).device_types
    for dimension in DIMENSIONS:
        for change in dimension.neighbours(one, row, device_types):
            assert not list(dimension.rules(change.plan, row, MODEL)), change.what


def test_selective_recomputation_where_it_saves_something() -> None:
    """Not beside flash attention, unless layers run eagerly, there are experts, or a card is too old for it."""
    new, old = (
        Topology(cluster(pool("a", name), gpus={**GPUS, "old": OLD})).device_types for name in ("A100", "old")
    )
    flash, plain = gpt(attention="flash"), gpt(attention="unfused")
    megatron = target("megatron")
    mixture = flash.model_copy(update={"experts": ExpertsSpec(number=8, top_k=2, ffn=64)})
    for row, limit, model, device_types, selective in (
        (megatron, None, flash, new, False),
        (megatron, None, plain, new, True),
        (megatron, None, flash, (*new, *old), True),
        (megatron, ("selective", "full"), flash, new, True),
        (megatron, ("none", "full"), plain, new, False),
        (target("torch"), None, flash, new, True),
        (megatron, None, mixture, new, True),
    ):
        found = worth_trying(row, limit, model, device_types)  # type: ignore[arg-type]
        assert ("selective" in found) == selective
        assert "full" in found
        assert ("none" in found) == (limit is None or "none" in limit)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_each_device_has_columns_that_fp8_takes(precision: str) -> None:
    """Nemotron 3 Nano's projection of 10,304 columns: over eight devices 1,288 each, no multiple of 16."""
    model = load_model(Path("model_specs/nemotron_3_nano.yaml"))
    model = model.model_copy(update={"training": model.training.model_copy(update={"precision": precision})})
    kinds = Topology(cluster(pool("a100"))).device_types
    degrees = tp_degrees(TARGETS["megatron"], None, model, kinds)
    assert degrees == ((1, 2, 4, 8) if precision == "bf16" else (1, 2, 4))
    for tp in (1, 2, 4, 8):
        faults = head_faults(plan(stage(0, 5, group(tp=tp))), model)
        assert any("1288 columns" in fault.what for fault in faults) == (tp not in degrees)
