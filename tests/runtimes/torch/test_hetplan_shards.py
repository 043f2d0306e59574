"""Emitted folders whose ranks hold unequal shards equal one process, and hold what the plan says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.runtimes.torch.test_hetplan_torch import (
    DELTA,
    EXPERTS,
    TOWER,
    Case,
    Trained,
    equals_one_process,
    outcomes,
    recomputed,
    train_all,
    trained_quickly,
    two_ranks,
    uneven,
)
from tests.training.once import asked, once
from tests.worlds import group, plan

torch = pytest.importorskip("torch")


def unequal(zero: int, *parts: int, **changes: Any) -> Case:
    """Shares 5, 5, 2, 1 in 2, 2, 1 and 1 micro-batches; both of the first rank's node hold ``parts[0]``."""
    case = uneven(zero, **changes)
    (stage,) = case.plan.stages
    replicas = tuple(replace(each, shard=part) for each, part in zip(stage.replicas, parts, strict=True))
    chosen = replace(case.plan, stages=(replace(stage, replicas=replicas),))
    return replace(case, name=f"{case.name}-of-{'-'.join(map(str, parts))}", plan=chosen)


def of_two(zero: int, *parts: int, **changes: Any) -> Case:
    """Two ranks with shares of 8 and 5."""
    case = uneven(zero, **changes)
    replicas = (
        replace(group("big", "A100", share=8, steps=3), shard=parts[0]),
        replace(group("small", "T4", share=5, steps=2), shard=parts[1]),
    )
    chosen = plan("torch", zero, [3], [replicas], recompute="full")
    return replace(case, name=f"{case.name}-{parts[0]}-of-two", plan=chosen, cluster=two_ranks())


LLAMA: dict[str, Any] = {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False}
CASES = [
    unequal(1, 3, 1, 1),
    unequal(2, 3, 2, 1, optimizer="sgd", **LLAMA),
    recomputed(unequal(3, 8, 1, 2, optimizer="sgd", output_gate=True, **DELTA)),
    recomputed(unequal(3, 8, 1, 2)),
    unequal(3, 1, 4, 3, optimizer="lion", **LLAMA),
    unequal(3, 6, 1, 1, precision="bf16"),
    unequal(1, 2, 1, 1, precision="bf16", reduce_dtype="bf16"),
    unequal(2, 3, 1, 1, precision="fp16"),
    unequal(3, 4, 1, 1, optimizer="sgd", output_gate=True, **DELTA),
    unequal(2, 40, 1, 1, optimizer="sgd", dense_layers=1, **EXPERTS),
    unequal(3, 4, 1, 1, tower=TOWER),
    unequal(2, 4, 1, 1, optimizer_states="bf16"),
    unequal(3, 4, 1, 1, precision="bf16", master_weights="bf16"),
]
"""Every ZeRO stage, optimizer and number format with unequal shards, some of which have no row of narrow weights."""
OF_TWO = [
    of_two(1, 3, 1),
    of_two(3, 8, 1, optimizer="sgd", output_gate=True, **DELTA),
    of_two(2, 2, 1, **LLAMA),
    of_two(3, 5, 1, optimizer="sgd"),
]


QUICK = (CASES[1], *OF_TWO[:2])
"""Cases of the normal suite: three parts of a shard on four ranks, and each other ZeRO stage on two."""


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The folder and the losses of each case that is asked for; the slow ones are trained in starts of their own."""
    every = asked(request, "case")
    trained = trained_quickly(request, tmp_path_factory) if any(case in QUICK for case in every) else {}
    slow = [case for case in every if case not in QUICK]
    if slow:
        trained |= outcomes(once(tmp_path_factory, "torch unequal shards", partial(train_all, slow)))
    return trained


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case in QUICK else pytest.mark.slow)
        for case in (*CASES, *OF_TWO)
    ],
)
def test_equals_one_process(trained: Trained, case: Case) -> None:
    """Losses, and weights in a checkpoint, of three clipped steps are those of the whole batch."""
    equals_one_process(trained, case)
