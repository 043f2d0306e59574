"""Megatron Bridge over Megatron-LM: the plan as overrides of one of its recipes, in place of Megatron's script."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from planner.dims.sharding import gradients_of
from planner.errors import EmitError
from planner.job.files import EmittedFile, rendered
from planner.job.job import Job
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.runtimes.interface import Checkout
from planner.runtimes.megatron.arguments import arguments, differences, layout, read_words
from planner.runtimes.megatron.capabilities import CAPABILITIES
from planner.runtimes.megatron.runtime import Megatron, queues, started

RECIPE = "vanilla_gpt_pretrain_config"
"""Megatron's defaults, which the overrides make the model of the plan."""
SECTIONS = {
    **dict.fromkeys(("micro_batch_size", "global_batch_size", "train_iters"), ("train",)),
    **dict.fromkeys(("lr", "clip_grad", "optimizer"), ("optimizer",)),
    **dict.fromkeys(("optimizer_cpu_offload", "optimizer_offload_fraction"), ("optimizer",)),
    **dict.fromkeys(("overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer"), ("optimizer",)),
    **dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather"), ("ddp",)),
    "use_distributed_optimizer": ("ddp", "optimizer"),
    "use_tp_pp_dp_mapping": ("dist",),
    "log_interval": ("logger",),
    "eval_interval": ("validation",),
    "seq_length": ("dataset",),
    "vocab_size": ("tokenizer",),
}
"""Sections of the recipe in which Megatron's arguments are found; all others are the model's."""
RENAMED: dict[str, dict[str, object]] = {
    "swiglu": {"gated_linear_unit": True, "activation_func": "silu"},
    "quick_geglu": {"gated_linear_unit": True, "activation_func": "quick_gelu"},
    "squared_relu": {"activation_func": "squared_relu"},
    "use_rope_scaling": {"rope_scaling": True},
    "no_yarn_correction_range_round_to_int": {"yarn_correction_range_round_to_int": False},
    "disable_bias_linear": {"add_bias_linear": False},
    "no_bias_dropout_fusion": {"bias_dropout_fusion": False},
    "no_bias_gelu_fusion": {"bias_activation_fusion": False},
    "untie_embeddings_and_output_weights": {"share_embeddings_and_output_weights": False},
    # What these say stands in other overrides: groups of queries, the length, bf16 and mock data.
    **{name: {} for name in ("group_query_attention", "max_position_embeddings", "bf16", "fp16")},
    **{name: {} for name in ("mock_data", "tokenizer_type")},
}
OTHER_NAMES = {
    "num_experts": "num_moe_experts",
    "norm_epsilon": "layernorm_epsilon",
    "rotary_seq_len_interpolation_factor": "seq_len_interpolation_factor",
    "rotary_scaling_factor": "yarn_rotary_scaling_factor",
    "mscale": "yarn_mscale",
    "mscale_all_dim": "yarn_mscale_all_dim",
}
"""Fields of the model by the names of Megatron's arguments, where they differ."""
FORMATS = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp32": None, "tf32": None}
UNLESS: dict[str, object] = {
    **dict.fromkeys(
        (
            "model.sequence_parallel",
            "model.tp_comm_overlap",
            "model.overlap_moe_expert_parallel_comm",
            "ddp.overlap_grad_reduce",
            "ddp.overlap_param_gather",
        ),
        False,
    ),
    **dict.fromkeys(("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"), False),
    **dict.fromkeys(("model.context_parallel_size", "model.expert_model_parallel_size"), 1),
    **{f"model.recompute_{each}": None for each in ("granularity", "method", "num_layers", "modules")},
    **{
        f"model.{each}": None
        for each in ("pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size")
    },
    "dist.use_tp_pp_dp_mapping": False,
    # Megatron's own: a recipe's may be above a rate that is given, which it would refuse.
    "optimizer.min_lr": 0.0,
}
"""What a plan without them has, whatever the recipe chose; that of ``RECIPE`` shards the optimizer."""
TUNABLE = {"train.train_iters": "TRAIN_ITERS", "optimizer.lr": "LR", "optimizer.clip_grad": "CLIP_GRAD"}
"""Overrides that the plan does not decide, and the variable that names another value."""


def _faults(plan: Plan, model: ModelSpec) -> Iterator[str]:
    training = model.training
    if model.kind == "encoder":
        yield "its recipes are of decoders"
    if training.mtp_layers:
        yield f"{RECIPE} predicts no further tokens"
    if model.latent is not None:
        yield f"{RECIPE} has no latent attention"
    if not model.usual_layers or model.output_gate:
        yield f"{RECIPE} has layers of plain attention and a feed-forward alone"
    if training.precision not in FORMATS:
        yield f"it is written for {', '.join(FORMATS)}"
    if training.precision == "bf16" and gradients_of(CAPABILITIES, training, plan.zero).reduced != "fp32":
        yield "its bf16_mixed adds gradients up in fp32"
    if training.optimizer_states != "fp32":
        yield "it is written for moments in fp32"
    if training.attention != "flash":
        yield "it is written for fused attention"


def overrides(job: Job) -> dict[str, object]:
    """The plan and the model's shape by the fields of the recipe."""
    words = [word for part in arguments(job).values() for word in part]
    settings: dict[str, object] = {"mixed_precision": FORMATS[job.model.training.precision], **UNLESS}
    for name, value in read_words(words).items():
        if name in RENAMED:
            settings |= {f"model.{key}": each for key, each in RENAMED[name].items()}
        else:
            key = OTHER_NAMES.get(name, name)
            settings |= {
                f"{section}.{key}": _value(name, value) for section in SECTIONS.get(name, ("model",))
            }
    if job.plan.interleave > 1:
        settings["model.virtual_pipeline_model_parallel_size"] = job.plan.interleave
    return settings


def _value(name: str, value: Any) -> object:
    """A value as the recipe has it: lists where Megatron takes texts of them."""
    if name == "window_size":
        return [int(each) for each in value.split(",")]
    if name == "moe_layer_freq":
        runs = (part.strip("[]").split("]*") for part in value.strip("()").split("+"))
        return [int(routed) for routed, layers in runs for _ in range(int(layers))]
    if name == "window_attn_skip_freq" and isinstance(value, str):
        return json.loads(value)
    return value


def word(name: str, value: object) -> str:
    """An override as a shell word; texts that Hydra would read as something else are quoted for it."""
    if name in TUNABLE:
        return f'{name}="${{{TUNABLE[name]}:-{value}}}"'
    plain = isinstance(value, str) and not set(value) & set("|*()")
    text = str(value) if plain else json.dumps(value, separators=(",", ":"))
    return shlex.quote(f"{name}={text}")


class Bridge(Megatron):
    """Trains by a recipe of Megatron Bridge, from a checkout of the user's."""

    readme = "bridge.md.j2"
    checkout = Checkout(
        package="bridge",
        distribution="megatron-bridge",
        variable="BRIDGE_PATH",
        title="Megatron Bridge",
        version_file="src/megatron/bridge/package_info.py",
    )
    variables = ("BRIDGE_PATH", "RECIPE", *TUNABLE.values())

    @property
    def tried(self) -> Mapping[str, str]:
        """PyTorch and Megatron Bridge."""
        return {"torch": super().tried["torch"], "bridge": "0.6.1"}

    def check(self, plan: Plan, model: ModelSpec) -> None:
        """Raise EmitError for what the overrides cannot say."""
        super().check(plan, model)
        fault = next(_faults(plan, model), None)
        if fault is not None:
            raise EmitError(
                f"--library megatron-bridge: {fault}",
                hint="leave out --library: Megatron's own script runs the plan",
            )

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """The overrides, and the start of Bridge's script with them."""
        lines = [word(*each) for each in overrides(job).items()]
        values = {"model": job.model, "differences": tuple(differences(job.model))}
        script = rendered("runtimes/megatron/overrides.sh.j2", lines=lines, recipe=RECIPE, **values)
        prologue = f'  : "${{BRIDGE_PATH:?set BRIDGE_PATH to a checkout of Megatron Bridge}}"\n{queues(job)}'
        entry = '"$BRIDGE_PATH/scripts/training/run_recipe.py"'
        network = "dist.nccl_communicator_config_path="
        return (EmittedFile("args.sh", script), *started(job, prologue, entry, '"${OVERRIDES[@]}"', network))

    def notes(self, job: Job) -> Mapping[str, object]:
        """As Megatron's, and the recipe."""
        return {**super().notes(job), "recipe": RECIPE, "layout": layout(job.plan, job.model)}


RUNTIME = Bridge()
