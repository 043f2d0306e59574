"""Replicas that run one micro-batch fewer than the others, so that their number need not divide the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cost.estimate import estimate
from planner.emit.interface import emit, job_of
from planner.errors import HetplanError, PlanError
from planner.job.batches import table_text
from planner.plan.checks import faults
from planner.plan.file import PlanFile, load_plan, to_text
from planner.plan.values import Plan
from planner.runtimes.torch.runtime import RUNTIME
from planner.search.solve import search
from planner.search.space.choices import unequal_steps
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.worlds import cluster, gpt, group, plan, pool

CLUSTER = cluster(pool("a", "A100", 2, per_node=3))
MODEL = gpt(layers=4, global_batch=16)


def unequal(fewer: int = 1, *, target: str = "torch", zero: int = 1, steps: int = 3, **changes: Any) -> Plan:
    """Two stages of three replicas with micro-batches of two sequences: 3 x 6 less 2 are 16."""
    groups = (group("a", "A100", count=3, share=2 * steps, steps=steps),)
    return plan(target, zero, [2, 2], [groups, groups], fewer_steps=fewer, **changes)


def test_numbers_of_replicas_that_are_asked() -> None:
    """Of micro-batches that need as many steps only the smallest: of 15 and 16 sequences on 7 replicas, not of 18."""
    asked = [size // dp for dp, size in unequal_steps(gpt(global_batch=720), 7, Limits()) if dp == 7]
    assert asked == sorted(asked)
    assert {15, 18} <= {*asked}
    assert 16 not in asked


def test_all_replicas_together_have_the_batch() -> None:
    """The step is that of the replicas with most micro-batches; its tokens are fewer."""
    one, even = unequal(), unequal(0)
    assert (one.global_batch, even.global_batch) == (16, 18)
    assert not faults(one, CLUSTER, MODEL)
    whole = MODEL.model_copy(update={"training": MODEL.training.model_copy(update={"global_batch": 18})})
    less, more = estimate(one, CLUSTER, MODEL), estimate(even, CLUSTER, whole)
    assert less.step_seconds == more.step_seconds
    assert less.tokens_per_second == pytest.approx(more.tokens_per_second * 16 / 18)


def test_the_table_deals_every_sequence_once() -> None:
    """Each pipeline in turn, the last one with a micro-batch less, and all sequences weigh the same."""
    table = json.loads(table_text(job_of(unequal(), CLUSTER, MODEL)))
    for stage in (0, 1):
        rows = sorted(
            (row for row in table["ranks"] if row["stage"] == stage), key=lambda row: row["replica"]
        )
        assert [(row["first_sequence"], row["share"]) for row in rows] == [(0, 6), (6, 6), (12, 4)]
        for row in rows:
            batch = table["batches"][row["batch"]]
            steps = len(batch["micro_batches"])
            assert [weight / steps / 3 / 2 for weight in batch["loss_weights"]] == pytest.approx(
                [1 / 16] * steps
            )


def test_the_folder_says_which_pipelines_are_not_filled() -> None:
    """Three stages are filled by three micro-batches, of which the last replica has two."""
    groups = (group("a", "A100", count=2, share=6, steps=3),)
    for fewer in (0, 1):
        chosen = plan("torch", 1, [2, 1, 1], [groups] * 3, fewer_steps=fewer)
        notes = RUNTIME.notes(job_of(chosen, CLUSTER, gpt(layers=4, global_batch=chosen.global_batch)))
        assert notes["too_few_micro_batches"] == bool(fewer)


def test_rules() -> None:
    """Only torch, only where replicas talk once a step, and only beside what leaves them alone."""
    for changes, what in (
        ({"zero": 2}, "ZeRO 0, 1 only"),
        ({"cp": 3, "cp_kind": "ulysses"}, "equally many micro-batches with cp"),
    ):
        found = [fault.what for fault in faults(unequal(**changes), CLUSTER, MODEL)]
        assert any(what in each for each in found), found
    for name in {*TARGETS} - {"torch"}:
        with pytest.raises(HetplanError, match="unequal numbers of micro-batches with no ZeRO stage"):
            emit(unequal(target=name), CLUSTER, MODEL)
    for fewer, steps in ((3, 3), (-1, 3), (1, 1)):
        with pytest.raises(PlanError, match="expected"):
            unequal(fewer, steps=steps)
    uneven = (group("a", "A100", count=3, share=5, steps=3),)
    with pytest.raises(PlanError, match="equal micro-batches"):
        plan("torch", 1, [2, 2], [uneven, uneven], fewer_steps=1)


def test_files_say_it_where_there_are_any(tmp_path: Path) -> None:
    """Plan files and short plans; those of other plans stay what they were."""
    text = to_text(PlanFile(plan=unequal(), cluster=CLUSTER, model=MODEL))
    assert text.count("\nfewer_steps: 1\n") == 1
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert load_plan(path, CLUSTER, MODEL) == unequal()
    path.write_text("target: torch\nzero: 1\npp: 2\ndp: 3\nmicro_batch: 2\nfewer_steps: 1\n")
    assert load_plan(path, CLUSTER, MODEL) == unequal()
    path.write_text("target: torch\nzero: 1\npp: 2\ndp: 3\nmicro_batch: 2\nfewer_steps: 2\n")
    with pytest.raises(
        PlanError, match="20 = the global batch \\+ 2 x 2 does not divide by dp 3 x micro_batch 2"
    ):
        load_plan(path, CLUSTER, MODEL)
    path.write_text("target: torch\nzero: 1\npp: 2\ndp: 3\nmicro_batch: 2\nfewer_steps: 3\n")
    with pytest.raises(PlanError, match="no dp would do"):
        load_plan(path, CLUSTER, MODEL)
    own = "target: torch\nzero: 1\nreplicas: [{pool: a, count: 3, micro_batch: 2}]\nfewer_steps: "
    path.write_text(f"{own}1\n")
    loaded = load_plan(path, CLUSTER, MODEL)
    assert (loaded.fewer_steps, loaded.global_batch, loaded.micro_batches) == (1, 16, 3)
    path.write_text(f"{own}2\n")
    with pytest.raises(
        PlanError, match="add up to 6, which does not divide the global batch \\+ 2 micro-batches = 20"
    ):
        load_plan(path, CLUSTER, MODEL)
    even = MODEL.model_copy(update={"training": MODEL.training.model_copy(update={"global_batch": 18})})
    assert "fewer_steps" not in to_text(PlanFile(plan=unequal(0), cluster=CLUSTER, model=even))


def test_the_search_uses_all_devices() -> None:
    """A width that does not divide the batch keeps all six devices busy; without such plans two were idle."""
    limits = Limits(target="torch", pp=(2,), tp=(1,), zero=(0, 1), gap=0.0)
    uneven, even = (
        MODEL.model_copy(update={"training": MODEL.training.model_copy(update={"global_batch": batch})})
        for batch in (64, 66)
    )
    best = search(CLUSTER, uneven, limits=limits, explain=False).best
    assert best is not None
    assert best.plan.devices == 6
    assert best.plan.fewer_steps > 0
    assert not faults(best.plan, CLUSTER, uneven)
    found = search(CLUSTER, even, limits=limits, explain=False).best
    assert found is not None
    assert found.plan.fewer_steps == 0
