"""A checkpoint of one plan goes on under another, and ends where one process does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from planner.model.spec import ExpertsSpec, LoraSpec
from planner.plan.values import Plan
from tests.training import reference
from tests.training.launching import launch, losses
from tests.worlds import cluster, group, model, plan, pool

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

HERE = cluster(pool("a", ("A100", "A100"), 1))


def data_parallel(target: str, zero: int, batch: int = 8) -> Plan:
    """Two replicas with different batches."""
    shares = (group("a", "A100", share=5, steps=2), group("a", "A100", share=batch - 5))
    return plan(target, zero, [4], [shares])


def stages() -> Plan:
    """Three layers and one, four micro-batches of two."""
    return plan("torch", 1, [3, 1], [(group("a", "A100", share=8, steps=4),)] * 2)


def trained(
    folder: Path, chosen: Plan, where: ClusterSpec, *arguments: str, lr: float = 0.01, **changes: Any
) -> list[float]:
    """Losses of an emitted folder."""
    write_folder(emit(chosen, where, model(8, **{"precision": "fp32", **changes})), folder)
    return losses(launch(folder, 1, "--lr", str(lr), *arguments))


def v_shaped() -> Plan:
    """Four layers on two stages, of which the first has the first and the last."""
    alike = (group("a", "A100", share=8, steps=4),)
    return plan("torch", 1, [2, 2], [alike] * 2, schedule="zb-v", interleave=2)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (data_parallel("torch", 3), stages()),
        (stages(), data_parallel("torch", 1)),
        (v_shaped(), stages()),
        (stages(), v_shaped()),
    ],
    ids=["to-stages", "from-stages", "from-v-shaped", "to-v-shaped"],
)
def test_torch_goes_on_under_another_plan(tmp_path: Path, first: Plan, then: Plan) -> None:
    """Weights, moments and the place in the data: the losses are those of one plan that goes through."""
    saved, changes = str(tmp_path / "saved"), {"tied_embeddings": v_shaped() not in (first, then)}
    whole = trained(tmp_path / "whole", first, HERE, "--steps", "4", **changes)
    before = trained(tmp_path / "first", first, HERE, "--steps", "2", "--save", saved, **changes)
    after = trained(tmp_path / "then", then, HERE, "--steps", "2", "--resume", saved, **changes)
    assert before == whole[:2]
    assert after == pytest.approx(whole[2:], rel=1e-5)


@pytest.mark.parametrize(
    "training", [{"optimizer": "lion"}, {"optimizer_states": "int8"}], ids=["lion", "int8"]
)
def test_optimizers_of_hetplans_own_go_on_too(tmp_path: Path, training: dict[str, str]) -> None:
    """Their moments are spread as the weights are; codes of other blocks are made anew."""
    saved, first = str(tmp_path / "saved"), data_parallel("torch", 3)
    whole = trained(tmp_path / "whole", first, HERE, "--steps", "4", lr=1e-3, **training)
    trained(tmp_path / "first", first, HERE, "--steps", "2", "--save", saved, lr=1e-3, **training)
    after = trained(
        tmp_path / "then",
        data_parallel("torch", 0),
        HERE,
        "--steps",
        "2",
        "--resume",
        saved,
        lr=1e-3,
        **training,
    )
    assert after == pytest.approx(whole[2:], rel=1e-5 if "optimizer" in training else 1e-4)


def test_deepspeed_goes_on_under_another_plan(tmp_path: Path) -> None:
    """By DeepSpeed's universal checkpoint, which its own program makes."""
    pytest.importorskip("deepspeed")
    saved = tmp_path / "saved"
    whole = trained(tmp_path / "whole", data_parallel("deepspeed", 1), HERE, "--steps", "4")
    trained(tmp_path / "first", data_parallel("deepspeed", 1), HERE, "--steps", "2", "--save", str(saved))
    tag = (saved / "latest").read_text().strip()
    convert = [
        sys.executable,
        "-m",
        "deepspeed.checkpoint.ds_to_universal",
        "--input_folder",
        str(saved / tag),
    ]
    done = subprocess.run(
        [*convert, "--output_folder", str(saved / f"{tag}_universal"), "--inject_missing_state"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (saved / "latest_universal").exists()
    after = trained(
        tmp_path / "then", data_parallel("deepspeed", 2), HERE, "--steps", "2", "--resume", str(saved)
    )
    assert after == pytest.approx(whole[2:], rel=1e-5)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_deepspeed_keeps_moments_in_eight_bits(tmp_path: Path, zero: int) -> None:
    """In its own checkpoints, from which the same plan goes on."""
    pytest.importorskip("deepspeed")
    saved, chosen = str(tmp_path / "saved"), data_parallel("deepspeed", zero)
    training: dict[str, Any] = {"lr": 1e-3, "optimizer_states": "int8"}
    whole = trained(tmp_path / "whole", chosen, HERE, "--steps", "4", **training)
    trained(tmp_path / "first", chosen, HERE, "--steps", "2", "--save", saved, **training)
    after = trained(tmp_path / "then", chosen, HERE, "--steps", "2", "--resume", saved, **training)
    assert after == pytest.approx(whole[2:], rel=1e-5)


def test_deepspeed_goes_on_with_a_pipeline_in_bf16(tmp_path: Path) -> None:
    """Its replicas share the states of ZeRO 0, in files of ZeRO that the engine does not read by itself."""
    pytest.importorskip("deepspeed")
    saved, alike = str(tmp_path / "saved"), (group("a", "A100", share=8, steps=4),)
    chosen = plan("deepspeed", 0, [3, 1], [alike] * 2)
    training: dict[str, Any] = {"lr": 1e-3, "precision": "bf16"}
    whole = trained(tmp_path / "whole", chosen, HERE, "--steps", "4", **training)
    trained(tmp_path / "first", chosen, HERE, "--steps", "2", "--save", saved, **training)
    after = trained(tmp_path / "then", chosen, HERE, "--steps", "2", "--resume", saved, **training)
    assert after == pytest.approx(whole[2:], rel=1e-5)


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize(
    "trains",
    [
        {},
        {"lora": LoraSpec(rank=4)},
        {"lora": LoraSpec(rank=4, base="nf4")},
        {"lora": LoraSpec(rank=8, targets=("v_proj", "experts.up_proj", "experts.down_proj"))},
    ],
    ids=["whole", "adapters", "nf4", "sparse"],
)
def test_deepspeed_keeps_divided_experts(tmp_path: Path, trains: dict[str, Any], zero: int) -> None:
    """Those of each rank, in its own checkpoints, from which the same plan goes on."""
    pytest.importorskip("deepspeed")
    saved, spec = str(tmp_path / "saved"), {"experts": ExpertsSpec(number=4, top_k=2, ffn=24), **trains}
    chosen = plan("deepspeed", zero, [4], [(group("a", "A100", count=2, share=4, steps=2),)], ep=2)
    whole = trained(tmp_path / "whole", chosen, HERE, "--steps", "4", **spec)
    trained(tmp_path / "first", chosen, HERE, "--steps", "2", "--save", saved, **spec)
    after = trained(tmp_path / "then", chosen, HERE, "--steps", "2", "--resume", saved, **spec)
    assert after == pytest.approx(whole[2:], rel=1e-5)


def test_replicas_start_alike(tmp_path: Path) -> None:
    """Whatever seed each rank has, all begin with the first one's weights, and so end as one process does."""
    folder = tmp_path / "run"
    chosen = data_parallel("torch", 0)
    write_folder(emit(chosen, HERE, model(8, precision="fp32", optimizer="sgd")), folder)
    program = folder / "train.py"
    text = program.read_text()
    assert "parts_of(shape, plan, options.seed" in text
    program.write_text(
        text.replace("parts_of(shape, plan, options.seed", "parts_of(shape, plan, options.seed + plan.rank")
    )
    printed = losses(launch(folder, 1, "--steps", "3", "--lr", "0.5", "--seed", str(reference.SEED)))
    write_folder(emit(chosen, HERE, model(8, precision="fp32", optimizer="sgd")), tmp_path / "same")
    same = losses(launch(tmp_path / "same", 1, "--steps", "3", "--lr", "0.5", "--seed", str(reference.SEED)))
    assert printed == pytest.approx(same, rel=1e-6)
