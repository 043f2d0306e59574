"""Runs Megatron-LM's own parser, validation and configuration on argument lists, without a GPU.

Usage: ``parser.py CHECKOUT < cases.json > answers.json``. A case is ``{"args": [...], "world": 8}``,
optionally with an ``environment``. An answer is ``{"ok": ...}`` or ``{"error": "..."}``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import sys
import types
import typing
from typing import Any

import torch
import torch.distributed
import torch.utils._triton
import typing_extensions

MISSING_HERE = [
    "--transformer-impl",
    "local",
    "--no-rope-fusion",
    "--no-gradient-accumulation-fusion",
    "--no-persist-layer-norm",
]
"""Megatron's defaults need Transformer Engine and Apex, which need a GPU to install."""


ENGINE_ONLY = {"--moe-permute-fusion"}
"""Switches that Megatron takes where Transformer Engine is installed."""


class _Anything(types.ModuleType):
    """A module in which every name is a decorator that changes nothing."""

    __version__ = "0.0.0"
    __path__ = ()  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel


class _Kernel:
    """Stands in for a type, a decorator or a decorator with options of Triton."""

    def __new__(cls, *args: Any, **_: Any) -> Any:
        if len(args) == 1 and callable(args[0]):
            return args[0]
        return super().__new__(cls)

    def __call__(self, function: Any) -> Any:
        return function

    def __class_getitem__(cls, _: Any) -> type:
        return cls


def prepare(checkout: str) -> None:
    """Make Megatron importable here: as on Python 3.12, with a Hopper GPU, and with or without Triton."""
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    if importlib.util.find_spec("triton") is None:
        # Torch must have found out that there is no Triton before a stand-in shows up.
        torch.utils._triton.has_triton_package()
        for settled in (
            "torch._inductor.runtime.triton_compat",
            "torch._inductor.runtime.hints",
            "torch._dynamo",
        ):
            importlib.import_module(settled)
        for name in ("triton", "triton.language"):
            sys.modules[name] = _Anything(name)
        sys.modules["triton"].language = sys.modules["triton.language"]  # type: ignore[attr-defined]
    hopper = types.SimpleNamespace(major=9, minor=0, name="H100", total_memory=80 << 30)
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.get_device_properties = lambda *_, **__: hopper
    sys.path.insert(0, checkout)


def parsed(args: list[str], world: int, environment: dict[str, str]) -> dict[str, Any]:
    """What Megatron understood of an argument list."""
    megatron = importlib.import_module("megatron.training.arguments")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(WORLD_SIZE=str(world), RANK="0", **environment)
    sys.argv = ["pretrain_gpt.py", *(word for word in args if word not in ENGINE_ONLY), *MISSING_HERE]
    found = megatron.parse_args()
    megatron.validate_args(found)
    config = megatron.core_transformer_config_from_args(found)
    pipeline = config.pipeline_model_parallel_layout
    return {
        "dp": found.data_parallel_size,
        **groups(
            world,
            found.tensor_model_parallel_size,
            found.pipeline_model_parallel_size,
            found.use_tp_pp_dp_mapping,
            found.expert_model_parallel_size,
            found.expert_tensor_parallel_size if found.num_experts else None,
            found.context_parallel_size,
        ),
        "context": config.cp_comm_type,
        "experts": config.num_moe_experts,
        "with_experts": config.moe_layer_freq,
        "ffn": config.ffn_hidden_size,
        "top_k": config.moe_router_topk if config.num_moe_experts else None,
        "expert_ffn": config.moe_ffn_hidden_size if config.num_moe_experts else None,
        "layers": found.num_layers,
        "stack": found.hybrid_layer_pattern,
        "chunks": found.virtual_pipeline_model_parallel_size or 1,
        "state": [
            config.mamba_num_heads,
            config.mamba_head_dim,
            config.mamba_state_dim,
            config.mamba_num_groups,
        ],
        "replaced": config.linear_attention_freq,
        "delta": [
            config.linear_num_value_heads,
            config.linear_value_head_dim,
            config.linear_key_head_dim,
            config.linear_num_key_heads,
        ],
        "gated": config.attention_output_gate,
        "expert_width": config.moe_latent_size,
        "window": config.window_size,
        "softmax": config.softmax_type,
        "numerics": numerics(found, config),
        "modules": None if pipeline is None else _modules(pipeline),
        "distributed_optimizer": found.use_distributed_optimizer,
        "on_host": found.optimizer_offload_fraction if found.optimizer_cpu_offload else 0.0,
        "copies_beside": found.overlap_cpu_optimizer_d2h_h2d,
        "sequence_parallel": found.sequence_parallel,
        "fp32_gradients": found.accumulate_allreduce_grads_in_fp32,
        "recompute": found.recompute_granularity,
    }


def numerics(found: Any, config: Any) -> dict[str, Any]:
    """What changes results and neither time nor memory."""
    yarn = (
        *("rotary_scaling_factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "correction_range_round_to_int"),
    )
    return {
        "activation": config.activation_func.__name__,
        "gated": config.gated_linear_unit,
        "fused": config.bias_activation_fusion,
        "limits": [config.glu_linear_offset, config.activation_func_clamp_value],
        "epsilon": config.layernorm_epsilon,
        "positions": found.position_embedding_type,
        "rope": [found.rotary_base, found.rotary_percent, found.rotary_seq_len_interpolation_factor],
        "llama3": [found.use_rope_scaling, found.rope_scaling_factor],
        "skips": config.no_rope_freq,
        "latent_yarn": [getattr(config, each, None) for each in yarn[:6]],
        "yarn": [getattr(config, f"yarn_{each}", None) for each in yarn],
        "router": [
            *(config.moe_router_score_function, config.moe_router_pre_softmax),
            *(config.moe_router_enable_expert_bias, config.moe_router_topk_scaling_factor),
            *(config.moe_router_num_groups, config.moe_router_group_topk),
            config.moe_aux_loss_coeff,
        ],
    }


def _modules(pipeline: Any) -> list[list[list[str]]]:
    """What Megatron builds, [pipeline rank][chunk][module]."""
    return [[[module.name for module in chunk] for chunk in rank] for rank in pipeline.layout]


GROUPS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EMBEDDING_GROUP": "embd",
    "MODEL_PARALLEL_GROUP": "mp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "ep_dp",
}
"""Megatron's descriptions of the process groups that a plan decides, and their names in its network file."""


def groups(
    world: int, tp: int, pp: int, by_pipeline: bool, ep: int = 1, etp: int | None = None, cp: int = 1
) -> dict[str, Any]:
    """All rank groups by kind, and each group that looked up its network: (name looked up, ranks).

    Every rank creates every group, so one rank is asked. ``by_pipeline`` is --use-tp-pp-dp-mapping.
    """
    dist = torch.distributed
    parallel_state: Any = importlib.import_module("megatron.core.parallel_state")
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    found: dict[str, set[tuple[int, ...]]] = {kind: set() for kind in GROUPS.values()}
    looked_up: list[tuple[str, list[int]]] = []
    create, options = parallel_state.create_group, parallel_state.get_nccl_options

    def create_group(ranks: list[int], *args: Any, **named: Any) -> Any:
        kind = GROUPS.get(str(named.get("group_desc")))
        if kind is not None:
            found[kind].add(tuple(ranks))
        name = named.pop("pg_options", None)
        if isinstance(name, str):
            looked_up.append((name, list(ranks)))
        return create(ranks, *args, **named)

    dist.init_process_group("fake", rank=0, world_size=world, store=fake.FakeStore())
    parallel_state.create_group = create_group
    parallel_state.get_nccl_options = lambda name, _: name
    try:
        order = "tp-cp-ep-pp-dp" if by_pipeline else "tp-cp-ep-dp-pp"
        parallel_state.initialize_model_parallel(
            tp,
            pp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            order=order,
            create_gloo_process_groups=False,
        )
    finally:
        parallel_state.create_group, parallel_state.get_nccl_options = create, options
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    ranks = {kind: sorted(map(list, members)) for kind, members in found.items()}
    return {"groups": ranks, "looked_up": looked_up}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The answer to one case; Megatron talks on both streams and exits on unknown arguments."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"ok": parsed(case["args"], case["world"], case.get("environment", {}))}
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    prepare(sys.argv[1])
    print(json.dumps([answer(case) for case in json.load(sys.stdin)]))  # noqa: T201
