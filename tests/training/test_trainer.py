"""Hugging Face's Trainer follows an emitted DeepSpeed folder, and equals one process that takes whole batches."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for package in ("deepspeed", "accelerate", "transformers", "peft", "bitsandbytes"):
        pytest.importorskip(package, reason=f"{package} is not installed, see make test")

import torch

from tests.training.once import once
from tests.training.trainer_runs import (
    ADAPTED,
    BATCH,
    HALF,
    MASKED,
    MATRIX,
    OWN_LOSS,
    PACKED,
    PLANNED,
    QUANTISED,
    QUICK,
    RECOMPUTED,
    STEPS,
    Run,
    logged,
    one_process,
    resumption,
    train_all,
    weight_error,
    weights,
)

ALLOWED = 1e-5
"""Distance from one process over the way travelled, and relative error of a loss, in fp32."""
ALLOWED_HALF = 2e-3
"""Relative error of a loss in bf16, which has 8 significant bits."""


pytestmark = pytest.mark.usefixtures("no_third_party_warnings")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the normal suite, in one start of the ranks."""
    runs = [
        *QUICK,
        HALF[-1],
        OWN_LOSS,
        *PLANNED[:-1],
        ADAPTED[0],
        QUANTISED[0],
        *PACKED[1:],
        *MASKED[1:],
        *resumption(3),
    ]
    return once(tmp_path_factory, "trainer", lambda root: train_all(root, runs))


@pytest.fixture(scope="module")
def trained_slowly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The others, in a second start."""
    runs = [*RECOMPUTED, *(run for run in MATRIX if run not in QUICK), *HALF[:-1], PACKED[0], MASKED[0]]
    runs += [PLANNED[-1], *ADAPTED[1:], *QUANTISED[1:]]
    runs += [run for zero in (0, 1, 2) for run in resumption(zero)]
    return once(tmp_path_factory, "trainer-slow", lambda root: train_all(root, runs))


@pytest.mark.parametrize("run", [*QUICK, OWN_LOSS], ids=lambda run: run.name)
def test_weights_equal_one_process(trained: Path, run: Run) -> None:
    """On every rank after three clipped steps at a falling rate; Trainer logs the values of the global batch."""
    equals_one_process(trained, run)


@pytest.mark.parametrize("run", PLANNED[:-1], ids=lambda run: run.name)
def test_the_plans_optimizer_is_trainers(trained: Path, run: Run) -> None:
    """Where the script names none; eight bits are coded in other blocks where states are sharded."""
    equals_with_the_plans_optimizer(trained, run)


@pytest.mark.slow
def test_another_optimizer_of_the_plan_is_trainers(trained_slowly: Path) -> None:
    """With ZeRO 0."""
    equals_with_the_plans_optimizer(trained_slowly, PLANNED[-1])


def equals_with_the_plans_optimizer(trained: Path, run: Run) -> None:
    """As close as what its states keep allows."""
    wanted, _ = one_process(run.optimizer)
    near = run.optimizer == "int8"
    assert weight_error(trained, run) < (0.1 if near else ALLOWED)
    assert logged(trained, run, "loss") == pytest.approx(wanted.losses, rel=1e-2 if near else ALLOWED)
    if near:
        usual, _ = one_process("adamw")
        assert wanted.losses[1:] != pytest.approx(usual.losses[1:], rel=1e-6)


@pytest.mark.parametrize("run", [ADAPTED[0], QUANTISED[0]], ids=lambda run: run.name)
def test_adapters_of_peft_equal_one_process(trained: Path, run: Run) -> None:
    """As the folder's README has them, a base in four bits too; all else stays as it was."""
    adapters_equal_one_process(trained, run)


@pytest.mark.slow
@pytest.mark.parametrize("run", [*ADAPTED[1:], *QUANTISED[1:]], ids=lambda run: run.name)
def test_other_adapters_of_peft_equal_one_process(trained_slowly: Path, run: Run) -> None:
    """With other ZeRO stages, and in the other four bits."""
    adapters_equal_one_process(trained_slowly, run)


def adapters_equal_one_process(trained: Path, run: Run) -> None:
    """Weights and losses; nothing but adapters has moved."""
    wanted, _ = one_process(run.optimizer, adapters=trained / run.name)
    assert weight_error(trained, run) < ALLOWED
    assert logged(trained, run, "loss") == pytest.approx(wanted.losses, rel=ALLOWED)
    moved = {name for name, value in wanted.end.items() if not value.equal(wanted.start[name])}
    assert moved == {name for name in wanted.end if ".lora_" in name}
    assert len(moved) == 2 * 2 * 3  # halves, layers, targets
    for mine in weights(trained, run):
        assert all(mine[name].equal(value) for name, value in wanted.start.items() if name not in moved)


@pytest.mark.parametrize("run", PACKED[1:], ids=lambda run: run.name)
def test_packed_documents_are_trained_on_their_own(trained: Path, run: Run) -> None:
    """As one process that takes every document alone, weighing each labelled token alike."""
    packed_equal_one_process(trained, run)


@pytest.mark.slow
def test_packed_documents_on_divided_weights_are_trained_on_their_own(trained_slowly: Path) -> None:
    """With ZeRO 3."""
    packed_equal_one_process(trained_slowly, PACKED[0])


def packed_equal_one_process(trained: Path, run: Run) -> None:
    """To the digits that fp32 has."""
    wanted, _ = one_process(run.optimizer, packs=True)
    assert weight_error(trained, run) < ALLOWED
    assert logged(trained, run, "loss") == pytest.approx(wanted.losses, rel=ALLOWED)


@pytest.mark.parametrize("run", MASKED[1:], ids=lambda run: run.name)
def test_every_labelled_token_counts_alike(trained: Path, run: Run) -> None:
    """With labels of another number in each micro-batch, and none in one of them."""
    masked_equal_one_process(trained, run)


@pytest.mark.slow
def test_every_labelled_token_counts_alike_on_divided_weights(trained_slowly: Path) -> None:
    """With ZeRO 3."""
    masked_equal_one_process(trained_slowly, MASKED[0])


def masked_equal_one_process(trained: Path, run: Run) -> None:
    """To the digits that fp32 has."""
    wanted, _ = one_process(run.optimizer, masked=True)
    assert weight_error(trained, run) < ALLOWED
    assert logged(trained, run, "loss") == pytest.approx(wanted.losses, rel=ALLOWED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run", [*RECOMPUTED, *(run for run in MATRIX if run not in QUICK)], ids=lambda run: run.name
)
def test_others_equal_one_process(trained_slowly: Path, run: Run) -> None:
    """The other pairs; the plan's recomputation is Trainer's gradient checkpointing."""
    equals_one_process(trained_slowly, run)


def equals_one_process(trained: Path, run: Run) -> None:
    """Weights, losses of training and evaluation, and norms."""
    wanted, evaluated = one_process(run.optimizer)
    assert weight_error(trained, run) < ALLOWED
    assert logged(trained, run, "loss") == pytest.approx(wanted.losses, rel=ALLOWED)
    assert logged(trained, run, "eval_loss") == pytest.approx(evaluated, rel=ALLOWED)
    # DeepSpeed tells no norm with fp32 and ZeRO 0.
    norms = wanted.norms if run.zero else ()
    assert logged(trained, run, "grad_norm") == pytest.approx(norms, rel=ALLOWED)
    assert min(wanted.norms) > 1.4


def test_samples_are_those_of_the_global_batch(trained: Path) -> None:
    """Trainer's samples per second where it is given a number of steps, which it would compute from one rank."""
    samples, steps = (
        logged(trained, OWN_LOSS, f"train_{what}_per_second")[0] for what in ("samples", "steps")
    )
    assert samples / steps == pytest.approx(BATCH, rel=0.01)


@pytest.mark.parametrize("run", HALF[-1:], ids=lambda run: run.name)
def test_losses_agree_in_bf16(trained: Path, run: Run) -> None:
    """With those of one process in fp32."""
    losses_agree(trained, run)


@pytest.mark.slow
@pytest.mark.parametrize("run", HALF[:-1], ids=lambda run: run.name)
def test_other_losses_agree_in_bf16(trained_slowly: Path, run: Run) -> None:
    """With the other ZeRO stages."""
    losses_agree(trained_slowly, run)


def losses_agree(trained: Path, run: Run) -> None:
    """As closely as bf16 allows."""
    usual = "adamw" if run.optimizer == "narrow" else run.optimizer
    wanted, _ = one_process(usual, step_on_zeros=run.zero == 0)
    assert logged(trained, run, "loss") == pytest.approx(wanted.losses, rel=ALLOWED_HALF)


@pytest.mark.parametrize("zero", [3])
def test_a_resumed_run_ends_as_one_that_went_through(trained: Path, zero: int) -> None:
    """From a checkpoint in the second shuffled pass, with dropout: the same losses and the same weights."""
    ends_the_same(trained, zero)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_other_resumed_runs_end_the_same(trained_slowly: Path, zero: int) -> None:
    """With the other ZeRO stages."""
    ends_the_same(trained_slowly, zero)


def ends_the_same(trained: Path, zero: int) -> None:
    """To the bit."""
    whole, resumed = resumption(zero)
    losses = logged(trained, whole, "loss")
    assert len(losses) == 2 * STEPS
    assert logged(trained, resumed, "loss") == losses
    for went, came in zip(weights(trained, whole), weights(trained, resumed), strict=True):
        assert all(torch.equal(came[name], went[name]) for name in went)


@pytest.mark.parametrize("zero", range(4))
def test_ranks_have_their_own_batches(trained: Path, zero: int) -> None:
    """Micro-batches differ, and their numbers too where ZeRO lets ranks keep step apart."""
    table = json.loads((trained / Run(zero).name / "batches.json").read_text())
    padding = [0] * 2 if zero >= 2 else []
    assert [table["batches"][row["batch"]]["micro_batches"] for row in table["ranks"]] == [
        [2, 2, 1],
        [2, *padding],
    ]
