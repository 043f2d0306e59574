"""Emitted folders whose replicas are grids of ranks train for real, and equal one process on the whole batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from planner.plan.values import Grid
from tests.training.once import asked, once
from tests.worlds import cluster, group, model, nic, plan, pool

torch = pytest.importorskip("torch")

from tests.runtimes.torch.test_hetplan_torch import (  # noqa: E402
    NO_BIAS,
    Case,
    Trained,
    equals_one_process,
    outcomes,
    run_all,
    trained_quickly,
    written,
)


def on_grid(name: str, zero: int, grid: Grid, share: int, steps: int, *, ranks: int, **changes: Any) -> Case:
    """As many replicas of such a grid as there is room for, all with the same batch."""
    recompute, size = changes.pop("recompute", "none"), changes.pop("shard_size", None)
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    where = cluster(
        *(pool(side, ("A100",) * (ranks // 2), 1, (nic("eth", "lo"),)) for side in ("one", "two"))
    )
    count = ranks // grid.devices
    groups = tuple(
        group(side, "A100", tp=grid.devices, count=max(1, count // 2), share=share, steps=steps)
        for side in ("one", "two")[: max(1, count)]
    )
    if grid.devices > ranks // 2:
        where = cluster(pool("one", ("A100",) * (ranks // 2), 2, (nic("eth", "lo"),)))
        groups = (group("one", "A100", tp=grid.devices, count=1, share=share, steps=steps),)
    chosen = plan("torch", zero, [2], [groups], grid=grid, recompute=recompute, shard_size=size)
    batch = sum(each.count * each.local_batch for each in groups)
    return Case(name, chosen, model(batch, layers=2, **changes), where)


SQUARE, DEEP = Grid(rows=2, columns=2), Grid(rows=2, columns=2, depth=2)
LLAMA: dict[str, Any] = {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False, "norm": "rms"}
ON_FOUR = [
    on_grid("square-adamw", 0, SQUARE, 4, 2, ranks=4),
    on_grid("square-sgd-full", 1, SQUARE, 4, 1, ranks=4, optimizer="sgd", recompute="full", **LLAMA),
    on_grid(
        "square-encoder",
        3,
        SQUARE,
        4,
        2,
        ranks=4,
        optimizer="sgd",
        kind="encoder",
        learned_positions=16,
        token_types=2,
        head_transform=True,
        head_bias=True,
        qkv_bias=True,
    ),
    on_grid("square-norms", 2, SQUARE, 4, 2, ranks=4, qk_norm=True, optimizer="sgd", head_dim=16, **LLAMA),
    on_grid("square-bf16", 0, SQUARE, 4, 2, ranks=4, precision="bf16", **LLAMA),
]
ON_EIGHT = [
    on_grid("deep", 3, DEEP, 8, 2, ranks=8, optimizer="sgd", **LLAMA),
    on_grid("two-squares", 1, SQUARE, 4, 2, ranks=8, optimizer="sgd"),
]


ON_RANKS = {
    **dict.fromkeys((case.name for case in ON_FOUR), 4),
    **dict.fromkeys((case.name for case in ON_EIGHT), 8),
}
OFTEN = ("square-sgd-full",)
"""Cases of the normal suite."""


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The cases that are asked for; the slow ones in a start of four ranks and one of eight."""
    trained: Trained = {}
    every = asked(request, "case")
    if any(case.name in OFTEN for case in every):
        trained |= trained_quickly(request, tmp_path_factory)
    for ranks in (4, 8):
        cases = [case for case in every if ON_RANKS[case.name] == ranks and case.name not in OFTEN]
        if cases:
            trained |= outcomes(once(tmp_path_factory, f"grids on {ranks}", partial(train_all, cases, ranks)))
    return trained


def train_all(cases: list[Case], ranks: int, root: Any) -> None:
    """Every case in a folder of its own, all trained by one start."""
    folders = [written(case, case.cluster or cluster(), root) for case in cases]
    run_all(folders, root / "log", ranks)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in OFTEN else pytest.mark.slow)
        for case in (*ON_FOUR, *ON_EIGHT)
    ],
)
def test_equals_one_process(trained: Trained, case: Case) -> None:
    """Losses and weights of three clipped steps are those of the whole batch."""
    equals_one_process(trained, case)
