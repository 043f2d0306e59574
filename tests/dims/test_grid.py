"""Tensor grids: what they are in files, what breaks their rules, and what a depth is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.calibration.values import ASSUMED
from planner.cost.estimate import Estimator
from planner.emit.interface import emit
from planner.errors import EmitError, PlanError, SpecError
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.plan.file import PlanFile, load_plan, read, to_text
from planner.plan.placement import place, ranks
from planner.plan.values import Grid, Offload, Plan
from planner.search.solve import search
from planner.search.values import Limits
from tests.worlds import cluster, gpt, group, model, nic, plan, pool

SQUARE, DEEP = Grid(rows=2, columns=2), Grid(rows=2, columns=2, depth=2)
NODE = cluster(pool("one", ("A100",) * 8, 1, (nic("eth", "lo"),)))
PAIRS = cluster(pool("one", ("A100",) * 2, 8, (nic("eth", "lo"),)))


def on(grid: Grid, *, count: int = 1, share: int = 8, steps: int = 2, **changes: Any) -> Plan:
    """Replicas of such a grid."""
    groups = (group("one", "A100", tp=grid.devices, count=count, share=share, steps=steps),)
    return plan("torch", changes.pop("zero", 0), [2], [groups], grid=grid, **changes)


def small(batch: int = 8, **changes: Any) -> ModelSpec:
    """A model that two rows divide."""
    return model(batch, layers=2, **changes)


def short(tmp_path: Path, text: str, **changes: Any) -> Plan:
    """The plan of a short file."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"target: torch\nmicro_batch: 4\n{text}\n")
    return load_plan(path, NODE, small(**changes))


def test_a_short_plan_has_rows_columns_and_depth(tmp_path: Path) -> None:
    """In place of the number of devices, which stays what it was."""
    assert short(tmp_path, "tp: {rows: 2, columns: 2, depth: 2}") == on(DEEP)
    assert short(tmp_path, "tp: {rows: 2, columns: 2}") == on(SQUARE, count=2, share=4, steps=1)
    assert short(tmp_path, "tp: 4").grid is None


def test_plan_files_keep_grids_and_have_none_without(tmp_path: Path) -> None:
    """A file without a grid is as it was before there were any; one with a grid comes back whole."""
    for chosen in (on(DEEP), plan("torch", 0, [2], [(group("one", "A100", tp=2, share=8),)])):
        text = to_text(PlanFile(plan=chosen, cluster=NODE, model=small()))
        assert ("grid:" in text) == (chosen.grid is not None)
        (tmp_path / "plan.yaml").write_text(text)
        assert read(tmp_path / "plan.yaml").plan == chosen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "tp: {rows: 2, columns: 2, depth: 3}",
            "dp: 1 replica of 12 devices, the cluster has room for 0 more",
        ),
        ("tp: {rows: 2, columns: 1}", "tp.columns: expected a whole number from 2 to 31, got 1"),
        ("tp: {rows: 2}", "tp.columns: missing"),
        ("tp: {rows: 2, columns: 2, deep: 2}", "tp.deep: unknown key"),
        ("tp: wide", "tp: expected a whole number"),
        (
            "tp: {rows: 2, columns: 3}",
            "tp.rows: SUMMA passes square blocks on, expected as many rows as columns",
        ),
        ("tp: {rows: 2, columns: 2}\nrecompute: selective", "expected none or full, got selective"),
        ("tp: {rows: 2, columns: 2}\npp: 2", "grids train whole models, expected 1 stage, got 2"),
    ],
)
def test_what_is_wrong_in_a_short_plan_has_its_key(tmp_path: Path, text: str, expected: str) -> None:
    """Each of these names the key and what was expected."""
    with pytest.raises((PlanError, SpecError)) as failure:
        short(tmp_path, text)
    assert expected in str(failure.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"heads": 3, "kv_heads": 3}, "2 columns do not divide the 3 attention heads"),
        ({"kv_heads": 1}, "2 columns do not divide the 1 key/value heads"),
        ({"ffn": 63}, "2 columns do not divide the 63 channels of the feed-forward"),
        ({"vocab": 61}, "2 columns do not divide the 61 entries of the vocabulary, pad it to 62"),
        ({"optimizer": "muon"}, "torch updates whole matrices with muon, expected no grid"),
        ({"freeze": ("embedding",)}, "hetplan trains no adapters or frozen parts on grids"),
        ({"embedding_width": 16}, "hetplan trains no embeddings of another width on grids"),
    ],
)
def test_models_that_a_grid_does_not_divide(changes: dict[str, Any], expected: str) -> None:
    """Named by what does not divide, or is not there."""
    found = faults(on(SQUARE, count=2, share=4), NODE, small(**changes))
    assert expected in " ".join(fault.what for fault in found)


def test_rows_and_depth_divide_micro_batches() -> None:
    """Each row of each layer of the depth has sequences of its own; who prices such a plan hears of it too."""
    uneven = on(DEEP, share=6, steps=1)
    (fault,) = faults(uneven, NODE, small(6))
    assert fault.path == ("stages", 0, "replicas", 0, "micro_batch")
    assert fault.what.startswith("2 rows x depth 2 do not divide 6 sequences in 1 micro-batches")
    with pytest.raises(PlanError, match="do not divide"):
        Estimator(NODE, small(6)).estimate(uneven)


@pytest.mark.parametrize("name", ["megatron", "deepspeed", "flagscale"])
def test_other_runtimes_say_why_not(name: str) -> None:
    """They divide matrices in one dimension, and no launch folder is written."""
    other = replace(on(DEEP), target=name)
    what = " ".join(fault.what for fault in faults(other, NODE, small()))
    assert f"{name} divides matrices in one dimension, expected a number of devices, got 2 x 2 x 2" in what
    with pytest.raises(EmitError, match="in one dimension"):
        emit(other, NODE, small())


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"cp": 2, "cp_kind": "ulysses", "count": 2}, "cp"),
        ({"offload": Offload(optimizer="cpu"), "zero": 3}, "offload"),
        ({"sequence_parallel": True}, "sequence_parallel"),
    ],
)
def test_what_does_not_go_with_grids(changes: dict[str, Any], key: str) -> None:
    """Named by its key."""
    found = faults(on(SQUARE, **changes), NODE, small())
    assert (key,) in {fault.path for fault in found if "grids are for plans" in fault.what}


def test_a_grid_fills_nodes_or_lies_in_one() -> None:
    """Four nodes of two for 2 x 2 x 2; nodes of three hold none."""
    odd = cluster(pool("one", ("A100",) * 3, 4, (nic("eth", "lo"),)))
    found = {fault.path: fault.what for fault in faults(on(SQUARE), odd, small())}
    assert "expected a grid that lies in a node of 3 A100 or fills nodes" in found["grid",]
    assert not faults(on(DEEP), PAIRS, small())


def test_ranks_of_a_grid_stand_in_a_row() -> None:
    """Two grids of four on nodes of two: ranks of a replica on two nodes, no device twice."""
    chosen = on(SQUARE, count=2, share=4)
    found = ranks(chosen, PAIRS)
    assert [rank.tp_rank for rank in found] == [0, 1, 2, 3] * 2
    assert [rank.replica for rank in found] == [0] * 4 + [1] * 4
    assert len({(rank.host, rank.device) for rank in found}) == 8
    assert sum(slot.nodes for slot in place(chosen, PAIRS)[0]) == 4


@pytest.mark.parametrize("where", [NODE, PAIRS], ids=["in a node", "across nodes"])
@pytest.mark.parametrize("zero", range(4))
def test_a_layer_of_the_depth_is_a_replica(zero: int, where: Any) -> None:
    """One 2 x 2 x 2 takes as long and as much memory as two 2 x 2 with half of the micro-batch."""
    estimator = Estimator(where, gpt(layers=2, hidden=512, heads=8, global_batch=8))
    deep = estimator.estimate(on(DEEP, zero=zero))
    flat = estimator.estimate(on(SQUARE, count=2, share=4, zero=zero))
    assert deep.step_seconds == pytest.approx(flat.step_seconds, rel=1e-12)
    assert deep.stages[0].groups[0].memory == flat.stages[0].groups[0].memory


def test_replicas_that_fill_nodes_stay_in_a_pool_that_equals_another() -> None:
    """Three replicas would fit on both pools together, the third of them on a node of each."""
    pools = [pool(name, ("A100",) * 2, 3, (nic("ib"),)) for name in ("one", "two")]
    limits = Limits(target="torch", pp=(1,), tp=(4,), zero=(0,), grids=True)
    found = search(cluster(*pools), gpt(4, global_batch=12), ASSUMED, limits, explain=False).best
    assert found is not None
    assert [(each.pool, each.count) for each in found.plan.stages[0].replicas] == [("one", 1), ("two", 1)]
