"""The memory that is predicted for a rank, next to all tensors of a step of the example on it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from planner.cost.estimate import Estimator
from planner.cost.values import Memory
from planner.emit.interface import emit, write_folder
from planner.model.spec import LoraSpec, ModelSpec
from planner.plan.values import Plan
from tests.quick import first
from tests.worlds import cluster, group, model, plan, pool

pytest.importorskip("torch")

LAYERS = 6
WIDTHS: dict[str, Any] = {"hidden": 2048, "heads": 16, "kv_heads": 4, "head_dim": 128, "ffn": 5632}
LLAMA: dict[str, Any] = {
    **WIDTHS,
    "gated_mlp": True,
    "vocab": 64000,
    "tied_embeddings": False,
    "precision": "bf16",
}
TIED = {**LLAMA, "tied_embeddings": True}
LONG = {**LLAMA, "sequence_length": 32768}
WHERE = cluster(pool("a", "A100", 1), pool("b", "A100", 1))


def flat(zero: int, recompute: str = "full", tp: int = 1, **changes: Any) -> Plan:
    """Two micro-batches of one sequence on each replica of eight devices."""
    whole = group("a", "A100", count=8 // tp, share=2, steps=2, tp=tp)
    return plan("torch", zero, [LAYERS], [(whole,)], recompute=recompute, **changes)


def once(zero: int, recompute: str, sequences: int) -> Plan:
    """One micro-batch on each of eight devices."""
    whole = group("a", "A100", count=8, share=sequences)
    return plan("torch", zero, [LAYERS], [(whole,)], recompute=recompute)


def uneven(zero: int) -> Plan:
    """Two devices that hold four parts of five and one."""
    both = tuple(
        replace(group(name, "A100", share=2, steps=2), shard=parts) for name, parts in (("a", 4), ("b", 1))
    )
    return plan("torch", zero, [LAYERS], [both], recompute="full")


def staged(zero: int, recompute: str = "none", **changes: Any) -> Plan:
    """Two stages of four devices, and eight micro-batches."""
    half = group("a", "A100", count=4, share=8, steps=8)
    return plan("torch", zero, [LAYERS // 2] * 2, [(half,)] * 2, recompute=recompute, **changes)


CASES: dict[str, tuple[Plan, dict[str, Any]]] = {
    "zero 3 keeps all": (flat(3, "none"), LLAMA),
    "one micro-batch": (once(0, "none", 4), LLAMA),
    "tensor parallel": (flat(1, "selective", tp=2, sequence_parallel=True), LLAMA),
    "tied": (flat(3), TIED),
    "zero 3": (flat(3), LLAMA),
    "stages": (staged(1), LLAMA),
    "adapters": (flat(3, "none"), {**LLAMA, "lora": LoraSpec(rank=16)}),
    "one micro-batch that ends with gradients": (once(0, "full", 1), LLAMA),
    "one micro-batch, zero 1": (once(1, "none", 4), LLAMA),
    "one micro-batch, zero 2": (once(2, "none", 4), LLAMA),
    "one micro-batch, zero 3": (once(3, "full", 4), LLAMA),
    "zero 0": (flat(0), LLAMA),
    "zero 1": (flat(1), LLAMA),
    "zero 2": (flat(2), LLAMA),
    "tied zero 2": (flat(2, "none"), TIED),
    "tied stages": (staged(0, "full"), TIED),
    "plain loss": (flat(3, "none"), {**LLAMA, "cross_entropy": "plain"}),
    "stages in shards": (staged(3, "full"), LLAMA),
    "tensor parallel in shards": (flat(3, tp=2, sequence_parallel=True), LLAMA),
    "tensor parallel by all": (flat(1, tp=8, sequence_parallel=True), {**LLAMA, "kv_heads": 16}),
    "groups": (flat(3, shard_size=4), LLAMA),
    "divided sequences": (flat(3, "none", cp=2, cp_kind="ulysses"), LONG),
    "around a ring": (flat(3, "none", cp=2, cp_kind="ring"), LONG),
    "around a ring, attention kept": (flat(3, "selective", cp=4, cp_kind="ring"), LONG),
    "around a ring of all": (flat(3, cp=8, cp_kind="ring"), {**LONG, "kv_heads": 1}),
    "8-bit moments": (flat(3), {**LLAMA, "optimizer_states": "int8"}),
    "bf16 gradients": (flat(3, "selective"), {**LLAMA, "reduce_dtype": "bf16"}),
    "fp32": (flat(1), {**LLAMA, "precision": "fp32"}),
    "fp32 on every device": (flat(0), {**LLAMA, "precision": "fp32"}),
    "bf16 weights": (flat(3), {**LLAMA, "master_weights": "bf16"}),
    "unequal shards": (uneven(3), LLAMA),
    "unequal shards of gradients": (uneven(2), LLAMA),
    "four bits": (flat(3), {**LLAMA, "lora": LoraSpec(rank=16, base="nf4")}),
}


def spec(chosen: Plan, values: dict[str, Any]) -> ModelSpec:
    """A model whose steps have the micro-batches of the plan."""
    length = values.get("sequence_length", 1024)
    others = {name: value for name, value in values.items() if name != "sequence_length"}
    return model(chosen.global_batch, LAYERS, **others).trained_with(sequence_length=length)


def tensors(memory: Memory) -> float:
    """Bytes of all but the framework's."""
    parts = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    return parts + memory.activations_bytes + memory.logits_bytes + memory.buffers_bytes


def first_ranks(chosen: Plan) -> list[int]:
    """The first rank of each group of replicas of each stage."""
    sizes = [each.devices for stage in chosen.stages for each in stage.replicas]
    return list(accumulate(sizes, initial=0))[:-1]


def measured(names: list[str], folder: Path) -> dict[tuple[str, int], int]:
    """Bytes at the peak of each group's first rank, by case and group."""
    asked: list[tuple[str, int]] = []
    words: list[str] = []
    for name in names:
        chosen, values = CASES[name]
        write_folder(emit(chosen, WHERE, spec(chosen, values)), folder / name)
        for index, rank in enumerate(first_ranks(chosen)):
            asked.append((name, index))
            words += [str(folder / name), str(rank)]
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtimes.torch.fake_ranks", *words]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(zip(asked, map(int, run.stdout.split()), strict=True))


@pytest.fixture(scope="module")
def peaks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], int]:
    """Of the cases that are asked for, in one process."""
    items = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
    asked = {item.params["name"] for item in items if item is not None}
    return measured([name for name in CASES if name in asked], tmp_path_factory.mktemp("step"))


@pytest.mark.parametrize("name", first(1, list(CASES)))
def test_all_tensors_of_a_step_are_counted(name: str, peaks: dict[tuple[str, int], int]) -> None:
    """At the peak; of two micro-batches, the first of which has no sums before it, rather too much."""
    chosen, values = CASES[name]
    estimate = Estimator(WHERE, spec(chosen, values)).estimate(chosen)
    for index, each in enumerate(each for stage in estimate.stages for each in stage.groups):
        assert -0.045 < tensors(each.memory) / peaks[name, index] - 1 < 0.06, index
