"""Megatron-LM itself takes what is emitted for it and refuses what our rules refuse.

Runs where HETPLAN_MEGATRON names a checkout of Megatron-LM (core 0.20.0) and torch is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from planner.cost.shape import chunk_layers
from planner.emit.megatron_arguments import arguments
from planner.placement import Rank, ranks
from planner.plan import Plan
from planner.spec.model import ModelSpec
from tests.emit.builders import cluster, group, model, plan, pool
from tests.emit.test_rules_megatron import ACCEPTED, BASE, REFUSED

CHECKOUT = os.environ.get("HETPLAN_MEGATRON", "")
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="HETPLAN_MEGATRON names no checkout of Megatron-LM")

REST = "--train-iters 3 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 128"
STRICTER = {
    "--num-layers: given twice",
    "multiple of --num-query-groups",
    "needs --num-query-groups",
    "needs --group-query-attention",
    "multiple of pp micro-batches: 1 ",
    "needs tp of at least 2",
    "adam only",
}
"""Rules that Megatron's parser does not check: it fails when it builds or trains, or ignores a switch."""


def ask(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Megatron's answers, from a process of its own."""
    script = Path(__file__).with_name("megatron_parser.py")
    done = subprocess.run(
        [sys.executable, str(script), CHECKOUT],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def pipeline(layers: list[int], *, dp: int, tp: int = 1, steps: int = 8, **changes: Any) -> Plan:
    """A plan with these layers in each stage and micro-batches of two sequences."""
    replicas = (group("a", "A100", tp=tp, count=dp, share=2 * steps, steps=steps),)
    return plan("megatron", changes.pop("zero", 1), layers, [replicas] * len(layers), **changes)


LLAMA = {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False}
GPT = {"learned_positions": 64}
BERT = {"kind": "encoder", "learned_positions": 16}

EMITTED: list[tuple[Plan, dict[str, Any]]] = [
    (pipeline([8], dp=8), GPT),
    (pipeline([8], dp=1, zero=0), LLAMA),
    (pipeline([6, 2], dp=4), LLAMA),
    (pipeline([3, 1, 2, 2], dp=1, tp=2, sequence_parallel=True, recompute="selective"), LLAMA),
    (pipeline([4, 4], dp=2, tp=2, interleave=2, recompute="full"), GPT),
    (pipeline([5, 4, 5], dp=1, tp=4, interleave=2, zero=0), {**GPT, "precision": "fp16"}),
    (
        pipeline([5, 3], dp=2, zero=0),
        {**LLAMA, "precision": "fp32", "optimizer": "sgd", "attention": "unfused"},
    ),
    (pipeline([5, 3], dp=2, tp=2), BERT),
    (pipeline([5, 3], dp=2, tp=2), {**LLAMA, "qkv_bias": True}),
    (pipeline([5, 3], dp=2, tp=2), {**LLAMA, "qk_norm": True, "head_dim": 16}),
]


def emitted_case(chosen: Plan, changes: dict[str, Any]) -> tuple[ModelSpec, dict[str, Any]]:
    """The model of a plan, and its arguments as a case; a vocabulary stands in for the user's."""
    spec = model(chosen.global_batch, layers=chosen.layers, **changes)
    words = [word for section in arguments(chosen, spec).values() for word in section]
    if spec.kind == "encoder":
        stand_in = ["--bert-no-binary-head", *shlex.split(REST)[4:]]
        words = [*words[: words.index("--tokenizer-type")], *stand_in]
    return spec, {"args": words, "world": chosen.devices}


def test_emitted_arguments_are_understood() -> None:
    """Megatron accepts every argument list and builds the modules where the plan puts them."""
    cases = [emitted_case(chosen, changes) for chosen, changes in EMITTED]
    answers = ask([case for _, case in cases])
    for (chosen, _), (spec, case), answer in zip(EMITTED, cases, answers, strict=True):
        assert "ok" in answer, (case, answer)
        found = answer["ok"]
        assert found["dp"] == chosen.stages[0].dp
        assert found["distributed_optimizer"] == (chosen.zero == 1 and found["dp"] > 1)
        assert found["sequence_parallel"] == chosen.sequence_parallel
        assert found["fp32_gradients"] == (spec.training.precision != "fp32")
        assert found["recompute"] == (
            None if chosen.stages[0].recompute == "none" else chosen.stages[0].recompute
        )
        if chosen.pp > 1:
            decoders = tuple(tuple(chunk.count("decoder") for chunk in rank) for rank in found["modules"])
            assert decoders == tuple(chunk_layers(stage.layers, chosen.interleave) for stage in chosen.stages)
            assert found["modules"][0][0][0] == "embedding"
            assert found["modules"][-1][-1][-1] == "loss"


def test_our_rules_are_megatrons() -> None:
    """It takes what our table takes and refuses what it refuses, but for what it checks in training only."""
    accepted = ask([{"args": f"{BASE} {words} {REST}".split(), "world": world} for words, world in ACCEPTED])
    for (words, _), answer in zip(ACCEPTED, accepted, strict=True):
        assert "ok" in answer, (words, answer)
    answers = ask([{"args": f"{BASE} {words} {REST}".split(), "world": world} for words, world, _ in REFUSED])
    lenient = {message for (*_, message), answer in zip(REFUSED, answers, strict=True) if "ok" in answer}
    assert lenient == STRICTER


def test_rank_groups_are_the_placement() -> None:
    """Megatron's default groups are the tensor, replica and stage of our ranks."""
    chosen = pipeline([2, 2], dp=2, tp=2)
    everyone = ranks(chosen, cluster(pool("a", ("A100",) * 8, 1)))
    [answer] = ask([{"groups": [2, 2], "world": 8}])
    kept = {"tp": ("stage", "replica"), "dp": ("stage", "tp_rank"), "pp": ("replica", "tp_rank")}
    ours = {kind: _grouped(everyone, *fields) for kind, fields in kept.items()}
    assert {kind: set(map(tuple, members)) for kind, members in answer["ok"].items()} == ours


def _grouped(everyone: tuple[Rank, ...], first: str, second: str) -> set[tuple[int, ...]]:
    """Ranks that agree in two fields."""
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in everyone:
        members[getattr(rank, first), getattr(rank, second)].append(rank.rank)
    return {tuple(found) for found in members.values()}
