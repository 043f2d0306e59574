"""Emitted folders train for real, and equal one process that takes the whole batch at once."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from planner.model.spec import ModelSpec
from planner.plan.values import Offload, Plan
from tests.training import reference
from tests.training.launching import launch, losses, run_together
from tests.worlds import cluster, group, model, nic, plan, pool

pytest.importorskip("deepspeed")

import torch

ROOT = Path(__file__).parents[2]
STEPS = 3
LR = 0.5

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_third_party_warnings")]


def three_ranks() -> ClusterSpec:
    """A node with two devices and a node with one, joined by the loopback interface."""
    big, small = (
        pool("big", ("A100", "A100"), 1, (nic("eth", "lo"),)),
        pool("small", ("T4",), 1, (nic("eth", "lo"),)),
    )
    return cluster(big, small)


def uneven_plan(zero: int) -> Plan:
    """Micro-batches of 3 and 2 on two ranks, one of 2 on the third."""
    replicas = (group("big", "A100", count=2, share=5, steps=2), group("small", "T4", share=2))
    return plan("deepspeed", zero, [2], [replicas])


def pipeline_plan(zero: int, dp: int) -> Plan:
    """Three layers and one layer, two micro-batches of two sequences."""
    first = (group("a", "A100", count=dp, share=4, steps=2),)
    last = (group("b", "T4", count=dp, share=4, steps=2),)
    return plan("deepspeed", zero, [3, 1], [first, last], recompute="full")


def two_stages(dp: int) -> ClusterSpec:
    """A node for each stage."""
    a, b = pool("a", ("A100",) * dp, 1, (nic("eth", "lo"),)), pool("b", ("T4",) * dp, 1, (nic("eth", "lo"),))
    return cluster(a, b)


def run(
    tmp_path: Path, chosen: Plan, where: ClusterSpec, spec: ModelSpec, nodes: int = 2
) -> tuple[list[float], Path]:
    """Emit, launch, and give back the losses and the folder."""
    folder = tmp_path / "a run"
    write_folder(emit(chosen, where, spec), folder)
    arguments = (
        "--steps",
        str(STEPS),
        "--lr",
        str(LR),
        "--seed",
        str(reference.SEED),
        "--save",
        str(tmp_path / "saved"),
    )
    return losses(launch(folder, nodes, *arguments)), folder


@pytest.mark.parametrize("zero", [1, 3])
def test_uneven_batches_equal_one_process(tmp_path: Path, zero: int) -> None:
    """ZeRO 1 with uneven and ZeRO 3 with padded micro-batches give the weights of the whole batch."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    spec = model(12, layers=2, precision="fp32", optimizer="sgd", kv_heads=2, gated_mlp=True)
    printed, folder = run(tmp_path, uneven_plan(zero), three_ranks(), spec)
    wanted = reference.train(folder, STEPS, LR)
    assert printed == pytest.approx(wanted.losses, rel=1e-5)
    trained = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "saved"))
    assert reference.relative_error(trained, wanted.end, wanted.start) < 1e-5


@pytest.mark.parametrize(
    ("zero", "tp", "cp", "offload"),
    [
        (2, 1, 1, Offload(optimizer="cpu", activations="cpu")),
        (3, 1, 1, Offload(optimizer="cpu", parameters="cpu", activations="cpu")),
        (3, 1, 2, Offload(optimizer="cpu", parameters="cpu", activations="cpu")),
        (2, 2, 1, Offload(optimizer="cpu", activations="cpu")),
        (3, 2, 1, Offload(optimizer="cpu", parameters="cpu")),
    ],
)
def test_offload_equals_one_process(tmp_path: Path, zero: int, tp: int, cp: int, offload: Offload) -> None:
    """States in host memory change no loss; checkpoints are there already on a machine without devices."""
    spec = model(12, layers=2, precision="fp32", optimizer="sgd")
    replicas = (group("big", "A100", tp=tp, count=2 // tp, share=6 * cp * tp, steps=2 * cp),)
    ways = {"cp": cp, "cp_kind": "ulysses"} if cp > 1 else {}
    chosen = plan("deepspeed", zero, [2], [replicas], recompute="full", offload=offload, **ways)
    where = cluster(pool("big", ("A100", "A100"), 1))
    printed, folder = run(tmp_path, chosen, where, spec, nodes=1)
    assert printed == pytest.approx(reference.train(folder, STEPS, LR).losses, rel=1e-5)
    saved = next((tmp_path / "saved").glob("*/*mp_rank_00_model_states.pt"))
    used = torch.load(saved, weights_only=False)["ds_config"]["zero_optimization"]
    assert used["offload_optimizer"]["device"] == "cpu"
    assert ("offload_param" in used) == (zero == 3)


def test_a_share_of_the_optimizer_equals_one_process(tmp_path: Path) -> None:
    """In its sub-groups; without a device all of them are on the host, and the share is left out."""
    spec = model(12, layers=2, precision="fp32", optimizer="adamw")
    replicas = (group("big", "A100", count=2, share=6, steps=2),)
    chosen = plan("deepspeed", 3, [2], [replicas], offload=Offload(optimizer="cpu", ratio=0.4))
    where = cluster(pool("big", ("A100", "A100"), 1))
    printed, folder = run(tmp_path, chosen, where, spec, nodes=1)
    assert printed == pytest.approx(reference.train(folder, STEPS, LR).losses, rel=1e-5)
    saved = next((tmp_path / "saved").glob("*/*mp_rank_00_model_states.pt"))
    used = torch.load(saved, weights_only=False)["ds_config"]["zero_optimization"]
    assert used["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert used["sub_group_size"] < spec.parameters / 2 / 60


@pytest.mark.skipif(which("g++") is None, reason="DeepSpeed compiles its optimizer for processors")
def test_a_device_updates_its_share(tmp_path: Path) -> None:
    """DeepSpeed deals it no more than its share, and the losses are those of all of the optimizer on the host."""
    spec = model(4, layers=4, precision="fp32", optimizer="adamw")
    where = cluster(pool("big", ("A100",), 1))
    found = []
    for ratio in (1.0, 0.6, 0.1):
        offload = Offload(optimizer="cpu", ratio=ratio)
        chosen = plan("deepspeed", 3, [4], [(group("big", "A100", share=4),)], offload=offload)
        folder = tmp_path / str(ratio)
        write_folder(emit(chosen, where, spec), folder)
        alone = ["env", "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", f"PYTHONPATH={ROOT}", sys.executable]
        printed = run_together([[*alone, "-m", "tests.training.share_program", str(folder)]], tmp_path)
        share, *losses = [
            float(line.split()[1]) for line in printed.splitlines() if line.startswith(("share ", "loss "))
        ]
        assert 0.9 * (1 - ratio) <= share <= 1 - ratio
        found.append(losses)
    assert found[0][-1] < 0.9 * found[0][0]
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)


def test_uneven_pipeline_equals_one_process(tmp_path: Path) -> None:
    """Two stages of 3 + 1 layers with a tied head and recomputation give the weights of the whole batch."""
    spec = model(4, layers=4, precision="fp32", optimizer="sgd")
    printed, folder = run(tmp_path, pipeline_plan(1, dp=1), two_stages(dp=1), spec)
    wanted = reference.train(folder, STEPS, LR)
    assert printed == pytest.approx(wanted.losses, rel=1e-5)
    assert reference.relative_error(pipeline_weights(tmp_path / "saved"), wanted.end, wanted.start) < 1e-5


def test_stages_dealt_over_nodes_equal_one_process(tmp_path: Path) -> None:
    """A pipeline in each of two nodes, whose ranks DeepSpeed is told of as its own order is the other one."""
    stage = (group("a", "A100", count=2, share=4, steps=2),)
    chosen = plan("deepspeed", 1, [3, 1], [stage, stage], recompute="full", stage_nodes=2)
    where = cluster(pool("a", ("A100", "A100"), 2, (nic("eth", "lo"),)))
    spec = model(8, layers=4, precision="fp32", optimizer="sgd")
    printed, folder = run(tmp_path, chosen, where, spec)
    wanted = reference.train(folder, STEPS, LR)
    assert printed == pytest.approx(wanted.losses, rel=1e-5)
    assert reference.relative_error(pipeline_weights(tmp_path / "saved"), wanted.end, wanted.start) < 1e-5
    nodes = [line.split() for line in (folder / "nodes.txt").read_text().splitlines()[1:]]
    assert [(node[3], node[4]) for node in nodes] == [("0,1", "0"), ("0,1", "2")]


def pipeline_weights(folder: Path) -> dict[str, Any]:
    """The weights in a pipeline's checkpoint under the names of the reference."""
    found = {}
    for file in sorted(folder.glob("*/layer_*-model_states.pt")):
        index = int(file.name.split("-")[0].removeprefix("layer_"))
        for name, value in torch.load(file, weights_only=True).items():
            found[f"parts.{index}.{name}"] = value
    return found
