"""torchtitan in place of the example: its arguments, and what they cannot say.

What its own parser makes of them is asked where HETPLAN_TORCHTITAN names a Python that has torchtitan 0.3.0.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.emit.interface import folder_files, job_of, write_folder
from planner.errors import EmitError
from planner.model.spec import LoraSpec, ModelSpec
from planner.plan.values import Offload, Plan, Sync
from planner.runtimes.torch.torchtitan import CONFIGURATIONS, configuration, settings
from tests.launchers.stand_ins import run
from tests.launchers.test_own_script import WORDS
from tests.worlds import cluster, group, model, plan, pool

PYTHON = os.environ.get("HETPLAN_TORCHTITAN", "")
CLUSTER = cluster(pool("a", ("A100",) * 8, 2))
RECORD = """#!/bin/bash
printf '%s\\0' "$@" >"$JOURNAL.$HETPLAN_NODE"
"""


def shaped(name: str, batch: int, **training: Any) -> ModelSpec:
    """The model of one of torchtitan's configurations."""
    shape = next(shape for (_, function), shape in CONFIGURATIONS.items() if function == name)
    spec = model(batch)
    own = spec.training.model_copy(update={"sequence_length": 4096, **training})
    return ModelSpec.model_validate({**shape, "name": name, "training": own})


def flat(zero: int, dp: int = 8, tp: int = 2, steps: int = 1, micro: int = 2, **changes: Any) -> Plan:
    """Equal replicas of all 32 layers."""
    made = plan(
        "torch", zero, [32], [(group("a", "A100", tp=tp, count=dp, share=micro * steps, steps=steps),)]
    )
    return replace(made, **changes)


def staged(zero: int, **changes: Any) -> Plan:
    """20 layers and 12 with a tensor-parallel degree of 2."""
    own = (group("a", "A100", tp=2, count=4, share=8, steps=4),)
    return plan("torch", zero, [20, 12], [own, own], **changes)


PARAMETERS = {
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
}
"""Of the weights that are published under these names."""


def test_configurations_have_the_published_parameters() -> None:
    """Tied or not, with all heads: every number of a shape counts."""
    assert {name: shaped(name, 8).parameters for _, name in CONFIGURATIONS} == PARAMETERS


CASES: dict[str, tuple[Plan, dict[str, Any], dict[str, Any]]] = {
    "zero 0": (
        flat(0),
        {},
        {"replicate": 8, "shard": 1, "tp": 2, "pp": 1, "local_batch": 2, "global_batch": 16},
    ),
    "by tokens": (replace(flat(3), sequence_parallel=True), {}, {"sequence_parallel": True, "tp": 2}),
    "zero 2": (flat(2, steps=3), {}, {"replicate": 1, "shard": 8, "reshard": "never", "global_batch": 48}),
    "zero 3": (flat(3, dp=16, tp=1), {}, {"shard": 16, "reshard": "always", "tp": 1}),
    "fp32": (flat(3), {"precision": "fp32"}, {"working": "float32"}),
    "hsdp": (flat(3, shard_size=4), {}, {"replicate": 2, "shard": 4}),
    "on the host": (flat(3, offload=Offload(optimizer="cpu", parameters="cpu")), {}, {"offload": True}),
    "stages": (staged(1), {}, {"pp": 2, "shard": 4, "reshard": "never", "local_batch": 8, "micro_batch": 2}),
    "stages, zero 0": (staged(0), {}, {"pp": 2, "replicate": 4, "shard": 1}),
}
ALWAYS = {"sequence_parallel": False, "compile": False, "sequence_length": 4096, "steps": 7, "offload": False}


def words(tmp_path: Path, chosen: Plan, spec: ModelSpec) -> list[str]:
    """What each rank's program is given, by the folder's start script."""
    folder = tmp_path / "a run"
    job = job_of(chosen, CLUSTER, spec, library=("torchtitan", "--training.steps", "7"))
    write_folder(folder_files(job, "torchrun"), folder, force=True)
    done = run(tmp_path, {"torchrun": RECORD}, ["bash", str(folder / "launch.sh"), "0"])
    assert done.returncode == 0, done.stderr
    given = (tmp_path / "journal.0").read_text().split("\0")[:-1]
    assert given[given.index("-m") + 1] == "torchtitan.train"
    return given[given.index("-m") + 2 :]


def recomputing(chosen: Plan, policy: Any) -> Plan:
    """The plan with all stages recomputing so."""
    return replace(chosen, stages=tuple(replace(stage, recompute=policy) for stage in chosen.stages))


@pytest.fixture(scope="module")
def own_answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What torchtitan makes of every case, and of each configuration as it is."""
    if not PYTHON:
        pytest.skip("HETPLAN_TORCHTITAN names no Python with torchtitan")
    place = tmp_path_factory.mktemp("titan")
    asked = {
        name: words(place, chosen, shaped("llama3_8b", chosen.global_batch, **kind))
        for name, (chosen, kind, _) in CASES.items()
    }
    for policy in ("none", "selective", "full"):
        asked[policy] = words(place, recomputing(flat(3), policy), shaped("llama3_8b", 16))
    for module, function in CONFIGURATIONS:
        asked[function] = ["--module", module, "--config", function]
    program = Path(__file__).with_name("titan_parser.py")
    done = subprocess.run(
        [PYTHON, str(program)],
        input=json.dumps(list(asked.values())),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(asked, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_its_parser_understands_the_plan(own_answers: dict[str, Any], name: str) -> None:
    """Degrees, batches, stages and formats are the plan's, the user's arguments among them."""
    found = own_answers[name].get("ok")
    assert found is not None, own_answers[name]["error"]
    expected = {**ALWAYS, **CASES[name][2]}
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("changes", "schedule", "parts"),
    [
        ({"interleave": 2}, "Interleaved1F1B", [(0, 10), (10, 16), (16, 26), (26, 32)]),
        ({"schedule": "zero-bubble"}, "InterleavedZeroBubble", [(0, 20), (20, 32)]),
        ({"schedule": "zb-v", "interleave": 2}, "ZBVZeroBubble", [(0, 10), (10, 16), (16, 22), (22, 32)]),
        ({"schedule": "dualpipe-v", "interleave": 2}, "DualPipeV", [(0, 10), (10, 16), (16, 22), (22, 32)]),
    ],
)
def test_schedules_have_torchs_names(
    changes: dict[str, Any], schedule: str, parts: list[tuple[int, int]]
) -> None:
    """With the layers of each chunk in the order of the model."""
    chosen = replace(staged(1), **changes)
    found = settings(
        job_of(chosen, CLUSTER, shaped("llama3_8b", chosen.global_batch), library=("torchtitan",))
    )
    assert found["parallelism.pipeline-parallel-schedule"] == schedule
    wanted = [",".join(f"layers.{layer}" for layer in range(*part)) for part in parts]
    wanted[0], wanted[-1] = f"tok_embeddings,{wanted[0]}", f"{wanted[-1]},norm,lm_head"
    assert found["parallelism.module-fqns-per-model-part"] == wanted


def test_fewer_micro_batches_than_stages() -> None:
    """Torch's 1F1B refuses them; hetplan's example runs all forwards first too."""
    own = (group("a", "A100", count=4),)
    chosen = plan("torch", 1, [20, 12], [own, own])
    found = settings(job_of(chosen, CLUSTER, shaped("llama3_8b", 4), library=("torchtitan",)))
    assert found["parallelism.pipeline-parallel-schedule"] == "GPipe"


def test_its_stages_are_the_plans(own_answers: dict[str, Any]) -> None:
    """Every module stands on one stage, the uneven layers as planned."""
    first, last = own_answers["stages"]["ok"]["modules"]
    assert first == ["tok_embeddings", *(f"layers.{layer}" for layer in range(20))]
    assert last == [*(f"layers.{layer}" for layer in range(20, 32)), "norm", "lm_head"]


def test_it_recomputes_as_planned(own_answers: dict[str, Any]) -> None:
    """By its subcommand behind all arguments."""
    for policy in ("none", "selective", "full"):
        assert own_answers[policy]["ok"]["recompute"] == policy


def test_its_configurations_have_these_shapes(own_answers: dict[str, Any]) -> None:
    """The table is what torchtitan builds."""
    for _, function in CONFIGURATIONS:
        spec, found = shaped(function, 8), own_answers[function]["ok"]
        for ours, theirs in (
            ("layers",) * 2,
            ("hidden",) * 2,
            ("heads",) * 2,
            ("kv_heads",) * 2,
            ("ffn",) * 2,
            ("vocab",) * 2,
            ("tied_embeddings", "tied"),
        ):
            assert getattr(spec, ours) == found[theirs], (function, ours)


@pytest.mark.parametrize("name", CASES)
def test_what_it_is_given(tmp_path: Path, name: str) -> None:
    """Names of its own, then the recomputation last, with the user's arguments ahead."""
    chosen, kind, expected = CASES[name]
    given = words(tmp_path, chosen, shaped("llama3_8b", chosen.global_batch, **kind))
    assert given[:2] == ["--training.steps", "7"]
    assert given[-1] == "activation-checkpoint:none"
    degree = given[given.index("--parallelism.tensor-parallel-degree") + 1]
    assert int(degree) == expected.get("tp", 2)


def test_arguments_reach_it_as_they_are(tmp_path: Path) -> None:
    """Whatever is in them; nothing is executed."""
    folder = tmp_path / "a $(touch broken) run"
    job = job_of(flat(3), CLUSTER, shaped("llama3_8b", 16), library=("torchtitan", *WORDS))
    write_folder(folder_files(job, "torchrun"), folder)
    done = run(tmp_path, {"torchrun": RECORD}, ["bash", str(folder / "launch.sh"), "0", "--", *WORDS])
    assert done.returncode == 0, done.stderr
    given = (tmp_path / "journal.0").read_text().split("\0")[:-1]
    assert tuple(given[given.index("torchtitan.train") + 1 :][: len(WORDS)]) == WORDS
    assert tuple(given[-1 - len(WORDS) : -1]) == WORDS
    assert not list(tmp_path.rglob("broken"))


def test_models_are_told_by_their_shape() -> None:
    """A model that differs in one number is none of its configurations."""
    assert configuration(shaped("qwen3_32b", 8)) == ("qwen3", "qwen3_32b")
    spec = shaped("llama3_8b", 8)
    assert configuration(spec.model_copy(update={"name": "another"})) == ("llama3", "llama3_8b")
    assert configuration(spec.model_copy(update={"ffn": 14337})) is None


REFUSED: dict[str, tuple[Plan, dict[str, Any], str]] = {
    "uneven batches": (
        plan("torch", 0, [32], [(group("a", "A100", share=3), group("a", "A100", share=1))]),
        {},
        "same tp and micro-batches",
    ),
    "zero 3 in stages": (staged(3), {}, "whole gradients until the end"),
    "dealt stages": (staged(1, stage_nodes=2), {}, "stages are dealt over nodes"),
    "zero 1": (flat(1, steps=2), {}, "every micro-batch"),
    "fp16": (flat(3), {"precision": "fp16"}, "bf16 or fp32"),
    "narrow weights": (flat(3), {"master_weights": "bf16"}, "AdamW in fp32"),
    "unfused norms": (flat(3), {"norms": "unfused"}, "fused norms"),
    "narrow reduction": (flat(3), {"reduce_dtype": "bf16"}, "adds gradients up in fp32"),
    "sgd": (flat(3), {"optimizer": "sgd"}, "AdamW"),
    "adapters": (flat(3, tp=1), {"lora": LoraSpec(rank=8)}, "whole model"),
    "unfused": (flat(3), {"attention": "unfused"}, "flash attention"),
    "unequal shards": (
        plan("torch", 3, [32], [(replace(group("a", "A100"), shard=3), group("a", "A100"))]),
        {},
        "equal shards",
    ),
    "backups": (flat(0, tp=1, backup=2), {}, "waits for all replicas, the plan not for 2"),
    "islands": (flat(0, dp=16, tp=1, sync=Sync(every=8)), {}, "in every step"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_say(name: str) -> None:
    """Refused with the reason, and with what runs the plan all the same."""
    chosen, kind, reason = REFUSED[name]
    spec = shaped("llama3_8b", chosen.global_batch, **kind)
    with pytest.raises(EmitError, match=reason) as caught:
        job_of(chosen, CLUSTER, spec, library=("torchtitan",))
    assert "leave out --library" in (caught.value.hint or "")
    job_of(chosen, CLUSTER, spec)


def test_limits_of_its_configurations() -> None:
    """Tied embeddings are on one stage; positions go as far as the models were published with."""
    own = (group("a", "A100", count=4, steps=2, share=2),)
    chosen = plan("torch", 1, [20, 8], [own, own])
    with pytest.raises(EmitError, match="no tied embeddings"):
        job_of(chosen, CLUSTER, shaped("qwen3_0_6b", 8), library=("torchtitan",))
    for name, tokens in (("qwen3_32b", 40960), ("llama3_8b", 131072)):
        chosen = plan("torch", 3, [shaped(name, 16).layers], [(group("a", "A100", count=16),)])
        spec = shaped(name, 16, sequence_length=tokens)
        job_of(chosen, CLUSTER, spec, library=("torchtitan",))
        longer = shaped(name, 16, sequence_length=tokens + 2)
        with pytest.raises(EmitError, match=f"at most {tokens} tokens, not {tokens + 2}"):
            job_of(chosen, CLUSTER, longer, library=("torchtitan",))


def test_unknown_shapes_and_libraries() -> None:
    """The error lists what there is; accelerate does not start it."""
    spec = model(16, layers=32, gated_mlp=True)
    with pytest.raises(EmitError, match="llama3_8b, llama3_70b, qwen3_0_6b"):
        job_of(flat(3), CLUSTER, spec, library=("torchtitan",))
    with pytest.raises(EmitError, match="does not train plans for torch, expected torchtitan"):
        job_of(flat(3), CLUSTER, spec, library=("megatron-bridge",))
    with pytest.raises(EmitError, match="none is known for it"):
        job_of(replace(flat(3, tp=1), target="deepspeed"), CLUSTER, spec, library=("torchtitan",))
    job = job_of(flat(3, tp=1), CLUSTER, shaped("llama3_8b", 16), library=("torchtitan",))
    with pytest.raises(EmitError, match="torchtitan starts without it"):
        folder_files(job, "accelerate")
