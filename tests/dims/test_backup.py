"""Replicas of which a step leaves out the slowest."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.topology import Topology
from planner.cost.estimate import estimate
from planner.cost.stragglers import backups, stretch
from planner.dims.data import Data
from planner.emit.interface import emit
from planner.errors import HetplanError, PlanError
from planner.job.batches import batch
from planner.model.spec import LoraSpec
from planner.plan.checks import faults
from planner.plan.file import PlanFile, load_plan, to_text
from planner.plan.values import Plan, Sync
from planner.search.explain.neighbours import neighbours
from planner.search.solve import search
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.worlds import GPUS, cluster, gpt, group, nic, plan, pool

CLUSTER = cluster(
    pool("near", "A100", 2, (nic("ib"),)),
    pool("far", "T4", 1, (nic("ib"),)),
    gpus={"A100": GPUS["A100"].model_copy(update={"family": "A100"})},
)
MODEL = gpt(global_batch=56, precision="bf16", layers=2)


def dropping(backup: int, *, target: str = "torch", zero: int = 1, **changes: Any) -> Plan:
    """Sixteen replicas; fourteen, with as many sequences, where two are dropped."""
    share = 7 if backup == 8 else 4
    groups = (group("near", "A100", count=16, share=share),)
    return replace(plan(target, zero, [2], [groups]), backup=backup, **changes)


def varying(sigma: float) -> Any:
    """A calibration in which A100 vary."""
    return replace(ASSUMED, families={"A100": replace(ASSUMED.family("A100"), sigma=sigma)})


def test_a_step_has_the_sequences_of_those_that_count() -> None:
    """And weighs each like any other: the mean over all replicas with zeros is that over the others."""
    one = dropping(2)
    assert one.global_batch == 56
    assert not faults(one, CLUSTER, MODEL)
    weighted = batch(one, one.stages[0].replicas[0])
    assert sum(weighted.loss_weights) / weighted.micro_batches.__len__() * 14 / 16 == pytest.approx(1.0)


@pytest.mark.parametrize(("number", "dropped"), [(8, 1), (16, 2), (64, 1), (64, 5)])
def test_the_wait_is_that_of_a_simulation(number: int, dropped: int) -> None:
    """The (n - b)-th of n normal variables, over 4,000 steps."""
    draw = random.Random(number)
    steps = [sorted(draw.gauss(1.0, 0.1) for _ in range(number))[-1 - dropped] for _ in range(4000)]
    assert stretch(0.1, number, dropped) == pytest.approx(sum(steps) / 4000, rel=0.005)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0])
def test_nobody_is_faster_than_the_average(sigma: float) -> None:
    """The first of 32 normal variables may be below zero: such plans had steps of no time, and ended a search."""
    assert [stretch(sigma, 32, dropped) for dropped in (16, 24, 31)] == [1.0] * 3
    assert stretch(sigma, 32, 15) > 1.0
    where, alone = cluster(pool("near", "A100", 4), gpus=CLUSTER.gpus), gpt(global_batch=1, layers=2)
    found = search(where, alone, varying(sigma), Limits(target="torch", backup=31)).best
    assert found is not None
    assert found.estimate.breakdown.straggler_seconds >= 0.0


def test_the_price_waits_for_fewer() -> None:
    """The same replicas take less with backups where they vary, and no less where they do not."""
    for sigma, cheaper in ((0.1, True), (0.0, False)):
        alike, few = (
            estimate(one, CLUSTER, model, varying(sigma)).breakdown
            for one, model in (
                (dropping(0, target="torch"), MODEL.model_copy(update={"training": _batch(64)})),
                (dropping(2), MODEL),
            )
        )
        assert (few.straggler_seconds < alike.straggler_seconds) == cheaper
        assert few.compute_seconds == pytest.approx(alike.compute_seconds)
        assert few.gradient_sync_seconds >= alike.gradient_sync_seconds


def test_gradients_stay_whole_until_it_is_known_whose_count() -> None:
    """So a step of one micro-batch holds them beside activations, as no other does."""
    held = []
    for number, training in ((0, _batch(64)), (2, MODEL.training)):
        plan, model = dropping(number), MODEL.model_copy(update={"training": training})
        assert plan.micro_batches == 1
        held.append(estimate(plan, CLUSTER, model, varying(0.1)).stages[0].groups[0].memory)
    alike, few = held
    assert few.activations_bytes == pytest.approx(alike.activations_bytes)
    assert few.gradients_bytes > alike.gradients_bytes == 0.0


def _batch(sequences: int) -> Any:
    return MODEL.training.model_copy(update={"global_batch": sequences})


@pytest.mark.parametrize("number", [16, 17, 20])
def test_more_backups_than_replicas(number: int) -> None:
    """Somebody has to make a gradient."""
    with pytest.raises(PlanError, match="fewer backup replicas than the 16 replicas, got"):
        dropping(number)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"target": "deepspeed"}, "deepspeed drops no gradients, expected 0, got 2"),
        ({"target": "megatron"}, "megatron drops no gradients"),
        ({"zero": 2}, "torch drops gradients with ZeRO 0, 1 only"),
        ({"shard_size": 8}, "shard over all"),
        ({"cp": 2, "cp_kind": "ulysses"}, "whole sequences"),
        ({"sync": Sync(every=8)}, "waited for"),
    ],
)
def test_rules(changes: dict[str, Any], what: str) -> None:
    """A runtime that does it, and replicas that are all alike."""
    found = [fault.what for fault in faults(dropping(2, **changes), CLUSTER, MODEL)]
    assert any(what in each for each in found), found


def test_other_rules() -> None:
    """Unlike replicas, parts of models, optimizers that shard nothing; other runtimes launch none."""
    (stage,) = dropping(2).stages
    first = replace(stage.replicas[0], count=14)
    other = replace(stage.replicas[0], pool="far", gpu="T4", count=2)
    mixed = replace(dropping(2), stages=(replace(stage, replicas=(first, other)),))
    adapters = MODEL.training.model_copy(update={"lora": LoraSpec(rank=4)})
    muon = MODEL.training.model_copy(update={"optimizer": "muon"})
    precise = MODEL.training.model_copy(update={"precision": "fp16"})
    for one, training, what in (
        (mixed, precise, "one device type, share and number of steps"),
        (dropping(2), adapters, "part is trained"),
        (dropping(2, zero=0), muon, "expected adamw"),
    ):
        found = [
            fault.what for fault in faults(one, CLUSTER, MODEL.model_copy(update={"training": training}))
        ]
        assert any(what in each for each in found), found
    for name in {*TARGETS} - {"torch"}:
        with pytest.raises(HetplanError, match="drops no gradients"):
            emit(dropping(2, target=name), CLUSTER, MODEL)


def test_files_have_backups_where_there_are_any(tmp_path: Path) -> None:
    """And files of plans without stay what they were."""
    for one, lines in ((dropping(2), 1), (dropping(8), 1)):
        text = to_text(PlanFile(plan=one, cluster=CLUSTER, model=MODEL))
        assert text.count("\nbackup:") == lines
        (tmp_path / "plan.yaml").write_text(text)
        assert load_plan(tmp_path / "plan.yaml", CLUSTER, MODEL) == one
    plain = MODEL.model_copy(update={"training": _batch(64)})
    assert "backup" not in to_text(PlanFile(plan=dropping(0), cluster=CLUSTER, model=plain))


def test_the_search_finds_how_many_pay() -> None:
    """As many as the formula of equal replicas says, where a step is nearly all computation; none without sigma."""
    large = cluster(
        pool("near", "A100", 8, (nic("ib"),)),
        gpus={"A100": GPUS["A100"].model_copy(update={"family": "A100"})},
    )
    heavy = gpt(layers=8, hidden=2048, heads=16, sequence_length=2048, global_batch=60 * 64, precision="bf16")
    asked = Limits(
        target="torch", zero=(0,), pp=(1,), tp=(1,), cp=(1,), recompute=("none",), gap=0.0, backup=4
    )
    kept = search(large, heavy, varying(0.3), asked, explain=False).best
    assert kept is not None
    assert backups(0.3, 64)[0] > 4
    assert kept.plan.backup == 4
    without = search(large, heavy, varying(0.3), replace(asked, backup=0), explain=False).best
    assert without is not None
    assert kept.estimate.tokens_per_second > 1.01 * without.estimate.tokens_per_second
    calm = search(large, heavy, varying(0.0), asked, explain=False).best
    assert calm is not None
    assert calm.plan.backup == 0


def test_explain_knows_the_plan_without_backups() -> None:
    """With their devices, to which a step's sequences are dealt, and without them; both train the same batch."""
    row, device_types = TARGETS["torch"], Topology(CLUSTER).device_types
    found = {
        change.what: change.plan
        for change in Data().neighbours(dropping(2), row, device_types)
        if change.decision == "backups"
    }
    counts = {
        what: [(each.count, each.local_batch) for each in one.stages[0].replicas]
        for what, one in found.items()
    }
    assert counts == {"all replicas waited for": [(8, 4), (8, 3)], "no backup replicas": [(14, 4)]}
    assert not any(faults(one, CLUSTER, MODEL) for one in found.values())
    shown = {entry.decision: entry for entry in neighbours(dropping(2), CLUSTER, MODEL, varying(0.1))}
    steps = [estimate(one, CLUSTER, MODEL, varying(0.1)).step_seconds for one in found.values()]
    assert shown["backups"].scored.estimate.step_seconds == min(steps)
    without = Data().neighbours(dropping(0), row, device_types)
    assert not [each for each in without if each.decision == "backups"]


def test_pricing_ends_with_the_time() -> None:
    """Of 2,048 devices and as many backups there are more plans than can be priced: the search ended minutes late."""
    where, many = cluster(pool("near", "A100", 256), gpus=CLUSTER.gpus), gpt(global_batch=5040, layers=2)
    begun = monotonic()
    limits = Limits(target="torch", pp=(1,), tp=(1,), backup=1000000, time_limit_seconds=1.0)
    found = search(where, many, varying(0.1), limits)
    assert found.best is not None
    assert found.status == "feasible"
    assert monotonic() - begun < 10.0
