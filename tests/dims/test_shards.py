"""Replicas that hold more of what ZeRO shards than others."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import gcd
from pathlib import Path
from typing import Any

import pytest

from planner.cost.communication import Ring
from planner.cost.estimate import Estimator, estimate
from planner.cost.state import held_by
from planner.dims.sharding import FEWER_PARTS, PARTS, parts_of, with_equal_shards
from planner.emit.interface import emit
from planner.errors import HetplanError, PlanError
from planner.files.document import read_document
from planner.model.spec import LoraSpec
from planner.plan.checks import check_plan, faults
from planner.plan.file import PlanFile, load_plan, to_text
from planner.plan.short import short_plan
from planner.plan.values import Plan, Sync
from planner.search.solve import search
from planner.search.values import Limits
from planner.targets import TARGETS, target
from tests.worlds import GPUS, cluster, gpt, group, nic, plan, pool

MODEL = gpt(global_batch=64, precision="bf16")
BIG = GPUS["A100"].model_copy(update={"memory_gib": 80.0})
SMALL = GPUS["A100"].model_copy(update={"name": "A100-40", "memory_gib": 40.0})
CLUSTER = cluster(
    pool("big", "A100", 1, (nic("ib"),)),
    pool("small", "A100-40", 1, (nic("ib"),)),
    gpus={"A100": BIG, "A100-40": SMALL},
)


def unequal(*parts: int, target: str = "torch", zero: int = 3, **changes: Any) -> Plan:
    """Eight devices of either type, each with so many parts."""
    pools = (("big", "A100"), ("small", "A100-40"))
    groups = tuple(
        replace(group(*where, count=8, share=4), shard=part) for where, part in zip(pools, parts, strict=True)
    )
    return replace(plan(target, zero, [24], [groups]), **changes)


def test_states_follow_the_parts_and_add_up() -> None:
    """Parameters, gradients and states of all devices are those of equal shards together."""
    alike, apart = (
        [each.memory for each in estimate(one, CLUSTER, MODEL).stages[0].groups]
        for one in (unequal(1, 1), unequal(3, 1))
    )
    for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"):
        big, small = (getattr(each, name) for each in apart)
        assert big == pytest.approx(3 * small)
        assert big + small == pytest.approx(2 * getattr(alike[0], name))
    assert apart[0].activations_bytes == alike[0].activations_bytes
    assert apart[0].buffers_bytes == pytest.approx(1.5 * alike[0].buffers_bytes)


def test_a_ring_goes_at_the_pace_of_its_largest_part() -> None:
    """Four members of 3, 1, 1 and 1 parts move what four of 3 parts would."""
    ring = Ring(size=4, bytes_per_second=1e9, latency_seconds=0.0, crosses="ib")
    one = ring.with_shards((3, 1, 1, 1))
    for seconds in ("gather_seconds", "scatter_seconds"):
        assert getattr(one, seconds)(6e9) == pytest.approx(getattr(ring, seconds)(12e9))
    assert one.reduce_seconds(6e9) == ring.reduce_seconds(6e9)
    assert ring.with_shards(()) is ring
    assert one.ways(3) == 2


def test_an_update_takes_as_long_as_the_largest_part() -> None:
    """And all of a step is slower by that and by what travels."""
    alike, apart = (estimate(one, CLUSTER, MODEL).breakdown for one in (unequal(1, 1), unequal(3, 1)))
    assert apart.optimizer_seconds > alike.optimizer_seconds
    assert apart.optimizer_seconds < 1.6 * alike.optimizer_seconds


def test_what_nodes_hold_covers_everything_once() -> None:
    """State that moves at a replan is that of the parts."""
    held = held_by(unequal(3, 1), CLUSTER, MODEL)
    widths = {
        host: sum(region.high - region.low for region in regions if region.first == 1 and not region.experts)
        for host, regions in held.items()
    }
    assert sorted(widths.values()) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"target": "deepspeed"},
            "deepspeed deals equal shards to all replicas, expected 1 everywhere, got 3",
        ),
        ({"target": "megatron", "zero": 1}, "megatron deals equal shards"),
        ({"cp": 2, "cp_kind": "ulysses"}, "whole sequences"),
        ({"sync": Sync(every=8), "zero": 1}, "whole gradients in every step"),
    ],
)
def test_rules(changes: dict[str, Any], what: str) -> None:
    """A runtime that has them, and replicas that have everything else alike."""
    found = [fault.what for fault in faults(unequal(3, 1, **changes), CLUSTER, MODEL)]
    assert any(what in each for each in found), found


def test_other_rules() -> None:
    """Replicas of two devices, stages, and models of which a part is trained."""
    wide = unequal(3, 1)
    (stage,) = wide.stages
    wide = replace(
        wide,
        stages=(
            replace(
                stage, replicas=tuple(replace(each, tp=2, count=4, local_batch=8) for each in stage.replicas)
            ),
        ),
    )
    with pytest.raises(PlanError, match="one device each, expected 1, got 2"):
        check_plan(wide, CLUSTER, MODEL)
    training = MODEL.training.model_copy(update={"lora": LoraSpec(rank=4)})
    with pytest.raises(PlanError, match="trained whole"):
        check_plan(unequal(3, 1), CLUSTER, MODEL.model_copy(update={"training": training}))
    for name, row in TARGETS.items():
        assert row.unequal_shards == (name == "torch")
        if name != "torch":
            with pytest.raises(HetplanError, match="deals equal shards"):
                emit(unequal(3, 1, target=name, zero=1), CLUSTER, MODEL)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"zero": 0}, "ZeRO 0 shards nothing, expected 3"),
        ({"shard_size": 8}, "groups of replicas shard alike"),
    ],
)
def test_what_no_plan_says(changes: dict[str, Any], what: str) -> None:
    """Nothing to deal, or groups that all hold the same."""
    with pytest.raises(PlanError, match=what):
        unequal(3, 1, **changes)


def test_files_have_the_parts_where_they_differ(tmp_path: Path) -> None:
    """And files of plans without stay what they were."""
    for one, lines in ((unequal(3, 1), 1), (unequal(1, 1), 0)):
        text = to_text(PlanFile(plan=one, cluster=CLUSTER, model=MODEL))
        assert text.count("shard:") == lines
        (tmp_path / "plan.yaml").write_text(text)
        assert load_plan(tmp_path / "plan.yaml", CLUSTER, MODEL) == one
    assert with_equal_shards(unequal(3, 1)) == unequal(1, 1)


def test_short_plans_have_them(tmp_path: Path) -> None:
    """A key of their replicas."""
    text = """
target: torch
zero: 3
replicas:
- {pool: big, count: 8, micro_batch: 4, share: 4, shard: 3}
- {pool: small, count: 8, micro_batch: 4, share: 4}
"""
    (tmp_path / "short.yaml").write_text(text)
    assert short_plan(read_document(tmp_path / "short.yaml"), CLUSTER, MODEL) == unequal(3, 1)


def test_parts_worth_trying() -> None:
    """By device type, none that is a multiple of another, and nothing where shards or types do not differ."""
    types = Estimator(CLUSTER, MODEL).topology.device_types
    found = parts_of(target("torch"), 3, MODEL, types)
    assert (3, 1) in found
    assert (1, 3) in found
    assert (2, 2) not in found
    assert (6, 2) not in found
    assert {part for parts in found for part in parts} == {*PARTS}
    assert not parts_of(target("torch"), 0, MODEL, types)
    assert not parts_of(target("deepspeed"), 3, MODEL, types)
    assert not parts_of(target("torch"), 3, MODEL, types[:1])


@pytest.mark.parametrize(("types", "own"), [(2, 2), (3, 3), (4, 4), (5, 2), (7, 2)])
def test_parts_of_many_types(types: int, own: int) -> None:
    """Each of up to four has its own; of more, that with most memory one, and all others another."""
    gpus = {
        f"A100-{size}": GPUS["A100"].model_copy(update={"name": f"A100-{size}", "memory_gib": 10.0 * size})
        for size in range(1, types + 1)
    }
    where = cluster(*(pool(name.lower(), name, 1, (nic("ib"),)) for name in gpus), gpus=gpus)
    kinds = Estimator(where, MODEL).topology.device_types
    found = parts_of(target("torch"), 3, MODEL, kinds)
    largest = max(range(types), key=lambda index: kinds[index].memory_bytes)
    assert len({parts[largest] for parts in found}) > 1
    for parts in found:
        others = {part for index, part in enumerate(parts) if index != largest}
        assert own == types or len(others) == 1
    # All combinations but those that are multiples of others, and equal parts.
    offered = PARTS if own == 2 else FEWER_PARTS
    ratios = {
        tuple(part / gcd(*parts) for part in parts)
        for parts in product(offered, repeat=own)
        if len({*parts}) > 1
    }
    assert len(set(found)) == len(found) == len(ratios)


def test_more_fits_with_them() -> None:
    """A model whose states the small devices hold no equal part of."""
    sizes = {"layers": 45, "hidden": 5120, "heads": 40, "sequence_length": 2048, "global_batch": 512}
    large = gpt(**sizes, precision="bf16", cross_entropy="plain")
    few = cluster(
        pool("big", ("A100",) * 4, 1, (nic("ib"),)),
        pool("small", ("A100-40",) * 4, 1, (nic("ib"),)),
        gpus={"A100": BIG, "A100-40": SMALL},
    )
    limits = Limits(target="torch", pp=(1,), tp=(1,), cp=(1,))
    alike, apart = (
        search(few, large, limits=replace(limits, unequal_shards=asked), explain=False).best
        for asked in (False, True)
    )
    assert alike is not None
    assert apart is not None
    assert apart.plan.unequal_shards
    assert apart.plan.devices > alike.plan.devices
    assert apart.estimate.step_seconds < 0.95 * alike.estimate.step_seconds
