"""Emitted folders train for real on four ranks, and equal one process that takes the whole batch at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch

pytest.importorskip("deepspeed")

from tests.training.equality import (
    DIVIDED,
    HALF,
    LEARNING,
    MATRIX,
    RANKS,
    SLOW,
    STEPS,
    TORCH,
    WITH_DIVIDED_EXPERTS,
    WITH_DOCUMENTS,
    WITH_ENCODER,
    WITH_EXPERTS,
    WITH_FROZEN,
    WITH_PAIRS,
    WITH_SECOND_COPY,
    WITH_TENSOR,
    WITH_UNLIKE,
    Case,
    printed_losses,
    reference_of,
    train_all,
    weight_errors,
)
from tests.training.once import once

ALLOWED = 1e-5
"""Distance from the reference over the way travelled, in fp32."""
ALLOWED_HALF = 1e-3
"""Relative error of a loss in bf16, which has 8 significant bits."""
QUICK_STEPS = 2
"""Steps of the quick cases: all that a step leaves to the next one is in the second."""


pytestmark = pytest.mark.usefixtures("no_third_party_warnings")


Trained = Callable[[Case], Path]
"""The folder in which a case was trained."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """All quick cases are trained together, and all slow ones."""

    def folder(case: Case) -> Path:
        slow = case in SLOW
        every = (
            *MATRIX,
            *HALF,
            *TORCH,
            *WITH_EXPERTS,
            *WITH_DIVIDED_EXPERTS,
            *WITH_UNLIKE,
            *WITH_ENCODER,
            *WITH_DOCUMENTS,
            *WITH_PAIRS,
            *WITH_TENSOR,
            *WITH_SECOND_COPY,
            *DIVIDED,
            *WITH_FROZEN,
            LEARNING,
        )
        cases = [in_short(other) for other in every if (other in SLOW) == slow]
        name = "equality-slow" if slow else "equality"
        return once(tmp_path_factory, name, lambda root: train_all(root, cases)) / case.name

    return folder


def in_short(case: Case) -> Case:
    """The same with fewer steps and, where no layout is tried, fewer ranks; unless it is slow, or long on purpose."""
    if case.steps != STEPS or case in SLOW:
        return case
    alone = case not in MATRIX and case.layout == "data" and case.secondary is None
    few = alone and case.tp * case.cp * case.ep == 1
    few = few or (case.layout == "pp2" and case not in (*MATRIX, *HALF))
    return replace(case, steps=QUICK_STEPS, ranks=2 if few else RANKS)


def each(cases: list[Case]) -> pytest.MarkDecorator:
    """A test for each case."""
    marked = [
        pytest.param(case, id=case.name, marks=(pytest.mark.slow,) if case in SLOW else ())
        for case in map(in_short, cases)
    ]
    return pytest.mark.parametrize("case", marked)


@each(MATRIX)
def test_weights_equal_one_process(trained: Trained, case: Case) -> None:
    """On every rank, in fp32 and with gradients above the limit that the configuration clips them to."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted)) < ALLOWED
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED)
    limit = json.loads((trained(case) / "ds_config.json").read_text())["gradient_clipping"]
    assert limit == (0.0 if case.layout != "data" and case.zero == 0 else 1.0)
    assert max(wanted.norms) > 1.4 * limit


@each(TORCH)
def test_weights_equal_one_process_with_torch_alone(trained: Trained, case: Case) -> None:
    """DDP and FSDP2 average gradients and divide by nothing else, which is what ``torch_weight`` is for."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted)) < ALLOWED


@each(WITH_EXPERTS)
def test_weights_of_experts_equal_one_process(trained: Trained, case: Case) -> None:
    """Also of experts that a rank's micro-batch has not chosen: whole, sharded, and in pipelines."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted)) < ALLOWED


@each(WITH_DIVIDED_EXPERTS)
def test_divided_experts_equal_one_process(trained: Trained, case: Case) -> None:
    """Clipped by the norm over all of them: each rank has its part, and tokens of others have gone through it."""
    wanted = reference_of(case, trained(case))
    if case.precision == "bf16":
        assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED_HALF)
        return
    assert max(weight_errors(trained(case), wanted, case.ep)) < ALLOWED
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED)
    assert max(wanted.norms) > 1.4
    held = torch.load(trained(case) / "weights-0.pt")
    parts = {name for name, value in held.items() if value.shape != wanted.end[name].shape}
    divided = ("experts.into", "experts.out", "experts.into_bias", "experts.out_bias")
    assert parts == {name for name in held if name.endswith(divided)}


@each(WITH_ENCODER)
def test_encoder_decoders_equal_one_process(trained: Trained, case: Case) -> None:
    """Whole on every rank, and gathered piece by piece: the table of tokens has gradients of both stacks."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted)) < ALLOWED
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED)


@each(WITH_UNLIKE)
def test_unlike_layers_equal_one_process(trained: Trained, case: Case) -> None:
    """Blocks of layers of several sizes and kinds, and others at either end, in every layout."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted, case.tp)) < ALLOWED
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED)


@each(DIVIDED)
def test_weights_of_divided_sequences_equal_one_process(trained: Trained, case: Case) -> None:
    """Each rank has half of the tokens, of attention half of the heads, and the mean loss of its half."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted)) < ALLOWED
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED)


@each(WITH_SECOND_COPY)
def test_second_copies_equal_one_process(trained: Trained, case: Case) -> None:
    """Parameters are gathered over all ranks once a step, and then from the copy that each pair of ranks keeps."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted)) < ALLOWED
    config = json.loads((trained(case) / "ds_config.json").read_text())
    assert config["zero_optimization"]["zero_hpz_partition_size"] == case.secondary


@each(WITH_TENSOR)
def test_weights_divided_in_a_replica_equal_one_process(trained: Trained, case: Case) -> None:
    """Of each rank its part, with tied and other vocabularies, biases and norms of its heads, and uneven batches."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted, case.tp)) < ALLOWED
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED)
    assert max(wanted.norms) > 1.4
    held = torch.load(trained(case) / "weights-0.pt")
    names = ["query", "key_value", "gate", "up", "output", "down", "embedding"]
    names += ["project"] if case.vocabulary == "own" else []
    parts = {name for name, value in held.items() if value.shape != wanted.end[name].shape}
    assert {name.split(".")[-2] for name in parts} == {*names}


@each(WITH_DOCUMENTS)
def test_documents_equal_one_process(trained: Trained, case: Case) -> None:
    """Which takes every document on its own: none sees another one, and every labelled token counts alike."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted)) < ALLOWED
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED)


@each(WITH_PAIRS)
def test_pairs_equal_one_process(trained: Trained, case: Case) -> None:
    """Which takes every answer on its own, beside a copy of itself as it began."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted)) < ALLOWED
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED)
    assert wanted.losses[0] == pytest.approx(log(2), rel=1e-5)


@each(WITH_FROZEN)
def test_adapters_and_frozen_parts_equal_one_process(trained: Trained, case: Case) -> None:
    """Whatever ZeRO shards and a stage holds; what is frozen stays as it was."""
    wanted = reference_of(case, trained(case))
    assert max(weight_errors(trained(case), wanted, max(case.tp, case.ep))) < ALLOWED
    moved = {name for name, value in wanted.end.items() if not value.equal(wanted.start[name])}
    adapters = {name for name in wanted.end if "adapters." in name}
    frozen = {name for name in wanted.end if name.startswith(("embedding.", "parts.0.")) or ".query." in name}
    assert (moved == adapters) if adapters else (moved and not moved & frozen)


@each(HALF)
def test_losses_agree_in_bf16(trained: Trained, case: Case) -> None:
    """With those of one process in fp32."""
    wanted = reference_of(case, trained(case))
    assert printed_losses(trained(case)) == pytest.approx(wanted.losses, rel=ALLOWED_HALF)


@pytest.mark.parametrize("zero", range(4))
def test_every_rank_has_its_own_batch(trained: Trained, zero: int) -> None:
    """The micro-batches differ, and their numbers too where ZeRO lets ranks keep step apart."""
    folder = trained(in_short(Case("data", zero, "sgd")))
    table = json.loads((folder / "batches.json").read_text())
    padding = [0] * 2 if zero >= 2 else []
    assert [table["batches"][row["batch"]]["micro_batches"] for row in table["ranks"]] == [
        [3, 3, *padding[1:]],
        [2, 2, 1],
        [2, *padding],
        [1, *padding],
    ]


def test_the_loss_falls(trained: Trained) -> None:
    """The example learns the text that it writes itself."""
    losses = printed_losses(trained(LEARNING))
    assert len(losses) == LEARNING.steps
    assert losses[-1] < 0.85 * losses[0]


def test_only_the_first_rank_prints_losses(trained: Trained) -> None:
    """A log has each step once."""
    logs = [(trained(LEARNING) / f"log-{rank}.txt").read_text() for rank in range(LEARNING.ranks)]
    assert [log.count("step ") for log in logs] == [LEARNING.steps, 0]
