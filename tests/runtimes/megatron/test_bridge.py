"""Megatron Bridge in place of Megatron's script: its overrides, and what they cannot say.

Its own code applies them to the recipe where HETPLAN_MEGATRON names a checkout of Megatron-LM, HETPLAN_BRIDGE one of
Megatron Bridge 0.6, and hydra-core is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import folder_files, job_of, write_folder
from planner.errors import EmitError
from planner.model.spec import LatentSpec, ModelSpec
from planner.plan.values import Offload, Plan
from tests.launchers.stand_ins import run
from tests.runtimes.megatron.test_runtime import CLUSTER, pipeline
from tests.worlds import cluster, group, model, plan, pool

MEGATRON, BRIDGE = os.environ.get("HETPLAN_MEGATRON", ""), os.environ.get("HETPLAN_BRIDGE", "")
RECORD = """#!/bin/bash
printf '%s\\0' "$@" >"$JOURNAL.$HETPLAN_NODE"
"""
GATED: dict[str, Any] = {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False, "head_dim": 16}
MIXTRAL = {**GATED, "experts": {"number": 8, "top_k": 2, "ffn": 48}}
PP = "model.pipeline_model_parallel_"

CASES: dict[str, tuple[Plan, dict[str, Any], dict[str, Any]]] = {
    "uneven stages": (
        pipeline([5, 3], tp=2, sequence_parallel=True, recompute="full"),
        GATED,
        {
            **{f"{PP}layout": "Et*5|t*3L", f"{PP}size": 2, "model.tensor_model_parallel_size": 2},
            **{"model.num_layers": 8, "model.num_query_groups": 2, "model.kv_channels": 16},
            **{
                "model.gated_linear_unit": True,
                "model.activation_func": "silu",
                "model.add_bias_linear": False,
            },
            **{"model.share_embeddings_and_output_weights": False, "model.normalization": "RMSNorm"},
            **{"model.sequence_parallel": True, "model.recompute_granularity": "full"},
            **{"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
            **{"train.micro_batch_size": 1, "train.global_batch_size": 8, "train.train_iters": 100},
            **{"dataset.seq_length": 16, "tokenizer.vocab_size": 64, "mixed_precision": "bf16_mixed"},
            **{"logger.log_interval": 1, "model.attention_dropout": 0},
            **{"optimizer.lr": 1e-4, "optimizer.min_lr": 0.0},
        },
    ),
    "chunks": (
        pipeline([5, 4], interleave=2),
        {"learned_positions": 64},
        {f"{PP}layout": "Et*3|t*2|t*2|t*2L", "model.virtual_pipeline_model_parallel_size": 2},
    ),
    "split weights": (
        pipeline([5, 3]),
        {"master_weights": "split"},
        {
            "optimizer.use_precision_aware_optimizer": True,
            **{"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
        },
    ),
    "numerics": (
        pipeline([5, 3], dp=4, ep=4),
        {
            **MIXTRAL,
            "numerics": {
                **{"activation": "clamped-quick-gelu", "norm_epsilon": 1e-6, "rope_base": 150000},
                "rope_scaling": {"kind": "yarn", "factor": 32, "original_length": 4096, "rounded": False},
                "router": {"score": "sigmoid", "bias": True, "scale": 2.5, "groups": 4, "top_groups": 2},
            },
        },
        {
            **{"model.gated_linear_unit": True, "model.activation_func": "quick_gelu"},
            **{"model.glu_linear_offset": 1, "model.activation_func_clamp_value": 7},
            **{"model.layernorm_epsilon": 1e-6, "model.rotary_base": 150000},
            **{"model.position_embedding_type": "yarn", "model.yarn_rotary_scaling_factor": 32},
            **{"model.yarn_original_max_position_embeddings": 4096, "model.yarn_beta_fast": 32},
            **{"model.yarn_mscale": 1, "model.yarn_correction_range_round_to_int": False},
            **{"model.moe_router_score_function": "sigmoid", "model.moe_router_enable_expert_bias": True},
            **{"model.moe_router_num_groups": 4, "model.moe_router_group_topk": 2},
            "model.moe_router_topk_scaling_factor": 2.5,
        },
    ),
    "longer positions": (
        pipeline([4, 4]),
        {
            "numerics": {
                **{"activation": "squared-relu", "rope_share": 0.5, "rope_skips": 2},
                "rope_scaling": {"kind": "llama3", "factor": 16},
            },
            "qkv_bias": True,
        },
        {
            **{"model.activation_func": "squared_relu", "model.bias_activation_fusion": False},
            **{"model.rotary_percent": 0.5, "model.no_rope_freq": 2},
            **{"model.rope_scaling": True, "model.rope_scaling_factor": 16},
        },
    ),
    "divided positions": (
        pipeline([4, 4]),
        {**GATED, "numerics": {"rope_scaling": {"kind": "linear", "factor": 8}}},
        {"model.seq_len_interpolation_factor": 8},
    ),
    "experts": (
        pipeline([5, 3], dp=4, ep=4),
        {**MIXTRAL, "dense_layers": 2},
        {
            **{"model.num_moe_experts": 8, "model.moe_router_topk": 2, "model.expert_model_parallel_size": 4},
            **{"model.moe_layer_freq": [0, 0, *[1] * 8], "model.moe_aux_loss_coeff": 1e-3},
        },
    ),
    "experts with biases, recomputed": (
        pipeline([5, 3], dp=4, ep=4, recompute="selective"),
        {
            **{**GATED, "qkv_bias": True, "output_bias": True},
            "experts": {"number": 8, "top_k": 2, "ffn": 48, "router_bias": True, "bias": True},
        },
        {
            "model.bias_dropout_fusion": False,
            "model.recompute_modules": ["layernorm", "moe_act"],
        },
    ),
    "experts in every second layer": (
        pipeline([2, 2], dp=4, ep=4),
        {**MIXTRAL, "block": ({"feed_forward": "dense"}, {"feed_forward": "experts"})},
        {"model.moe_layer_freq": [0, 1] * 4, "model.recompute_modules": None},
    ),
    "windows": (
        pipeline([8], dp=4),
        {**GATED, "window": 8, "window_layers": 3},
        {"model.window_size": [7, 0], "model.window_attn_skip_freq": [0, 0, 1, 0, 0, 1, 0, 1]},
    ),
    "divided sequences": (
        pipeline([5, 3], dp=4, cp=2),
        GATED,
        {"model.context_parallel_size": 2, "model.cp_comm_type": "p2p"},
    ),
    "on the host": (
        pipeline([8], offload=Offload(optimizer="cpu", ratio=0.25)),
        {"precision": "fp32"},
        {
            **{"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer_offload_fraction": 0.25},
            **{"optimizer.overlap_cpu_optimizer_d2h_h2d": True, "mixed_precision": None},
        },
    ),
    "sgd": (
        pipeline([8], zero=0),
        {"optimizer": "sgd", "precision": "fp16"},
        {
            **{
                "optimizer.optimizer": "sgd",
                "optimizer.use_distributed_optimizer": False,
                f"{PP}layout": None,
            },
            **{"ddp.use_distributed_optimizer": False, "model.recompute_granularity": None},
        },
    ),
}


def spec_of(name: str) -> tuple[Plan, ModelSpec]:
    """A case's plan and model."""
    chosen, kind, _ = CASES[name]
    training = {key: kind[key] for key in ("precision", "optimizer") if key in kind}
    shape = {key: value for key, value in kind.items() if key not in training}
    return chosen, model(chosen.global_batch, layers=chosen.layers, **shape, **training)


def words(
    tmp_path: Path, chosen: Plan, spec: ModelSpec, where: ClusterSpec = CLUSTER, **environment: str
) -> list[str]:
    """What each rank's script is given, by the folder's start script."""
    folder = tmp_path / "a run"
    job = job_of(chosen, where, spec, library=("megatron-bridge", "logger.log_params_norm=true"))
    write_folder(folder_files(job, "torchrun"), folder, force=True)
    command = ["bash", str(folder / "launch.sh"), "0", "--", "--dataset", "mock"]
    done = run(tmp_path, {"torchrun": RECORD}, command, BRIDGE_PATH="/b", **environment)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "journal.0").read_text().split("\0")[:-1]


def own_overrides(tmp_path: Path, name: str) -> list[str]:
    """The overrides among them."""
    given = words(tmp_path, *spec_of(name))
    return given[given.index("pretrain") + 1 : -2]


@pytest.mark.parametrize("name", CASES)
def test_what_it_is_given(tmp_path: Path, name: str) -> None:
    """Bridge's script, the recipe, the plan, the arguments of the folder, then those of the start."""
    given = words(tmp_path, *spec_of(name))
    start = given.index("/b/scripts/training/run_recipe.py")
    assert given[start + 1 : start + 5] == ["--recipe", "vanilla_gpt_pretrain_config", "--mode", "pretrain"]
    assert given[-3:] == ["logger.log_params_norm=true", "--dataset", "mock"]
    for key, value in CASES[name][2].items():
        [text] = [word.split("=", 1)[1] for word in given if word.startswith(f"{key}=")]
        if not isinstance(value, str):
            assert json.loads(text) == value, key
        else:
            assert text.strip('"') == value


def test_the_environment_decides_the_rest(tmp_path: Path) -> None:
    """RECIPE, TRAIN_ITERS and LR; a value stays one word whatever is in it."""
    chosen, spec = spec_of("uneven stages")
    given = words(tmp_path, chosen, spec, RECIPE="my_config", TRAIN_ITERS="5", LR="$(touch broken) 1")
    assert given[given.index("--recipe") + 1] == "my_config"
    assert {"train.train_iters=5", "optimizer.lr=$(touch broken) 1"} < set(given)
    assert not list(tmp_path.rglob("broken"))


def test_groups_have_their_networks(tmp_path: Path) -> None:
    """Pools on two fabrics: the file of each, by its full path, since Bridge's script leaves the folder."""
    apart = cluster(
        pool("a", "A100", 2, fabric="ib"), pool("b", "A100", 2, fabric="ib2"), fabrics={"ib2": "infiniband"}
    )
    spec = model(16, layers=8)
    stages = [(group(name, "A100", count=16, share=1),) for name in ("a", "b")]
    given = words(tmp_path, plan("megatron", 1, [4, 4], stages), spec, apart)
    assert "start_megatron.py" in given
    assert f"dist.nccl_communicator_config_path={tmp_path}/a run/nccl/a.yaml" in given


@pytest.mark.skipif(not (MEGATRON and BRIDGE), reason="HETPLAN_MEGATRON, HETPLAN_BRIDGE name no checkouts")
@pytest.mark.skipif(find_spec("hydra") is None, reason="hydra-core is not installed")
def test_its_own_code_applies_them(tmp_path: Path) -> None:
    """Every override names a field of the recipe, and the recipe then has the value."""
    asked = {name: own_overrides(tmp_path, name) for name in CASES}
    program = Path(__file__).with_name("bridge_parser.py")
    done = subprocess.run(
        [sys.executable, str(program), MEGATRON, BRIDGE],
        input=json.dumps(list(asked.values())),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for name, answer in zip(asked, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert "ok" in answer, (name, answer)
        expected = CASES[name][2]
        assert {key: answer["ok"][key] for key in expected} == expected


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "encoder": ({"kind": "encoder", "learned_positions": 16}, "recipes are of decoders"),
    "stacked layers": (
        {
            "state": {"kind": "mamba2", "head_dim": 64, "size": 16, "chunk": 128},
            "block": ({"mixer": "state"}, {"mixer": "attention"}),
        },
        "has layers of plain attention and a feed-forward alone",
    ),
    "latent": (
        {"latent": LatentSpec(q_rank=16, kv_rank=8, rope_dim=4, value_dim=8)},
        "no latent attention",
    ),
    "fp8": ({"precision": "fp8"}, "bf16, fp16, fp32, tf32"),
    "narrow reduction": ({"reduce_dtype": "bf16"}, "adds gradients up in fp32"),
    "narrow moments": ({"optimizer_states": "bf16"}, "moments in fp32"),
    "unfused": ({"attention": "unfused"}, "fused attention"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_say(name: str) -> None:
    """Refused with the reason, and with what runs the plan all the same."""
    kind, reason = REFUSED[name]
    chosen = pipeline([8])
    spec = model(chosen.global_batch, layers=8, **kind)
    with pytest.raises(EmitError, match=reason) as caught:
        job_of(chosen, CLUSTER, spec, library=("megatron-bridge",))
    assert "leave out --library" in (caught.value.hint or "")
    job_of(chosen, CLUSTER, spec)
