"""torchtitan over PyTorch: the plan as arguments of its trainer, in place of the example."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from planner.capabilities import Schedule
from planner.cost.shape import chunk_spans
from planner.dims.sharding import gradients_of
from planner.errors import EmitError
from planner.job.files import EmittedFile, launch_files
from planner.job.job import Job
from planner.model.spec import ModelSpec, NumericsSpec, RopeScalingSpec
from planner.plan.values import Plan
from planner.runtimes.torch.runtime import CLIP, PyTorch

LLAMA = {"gated_mlp": True, "tied_embeddings": False, "kv_heads": 8, "vocab": 128256}
QWEN = {"gated_mlp": True, "qk_norm": True, "kv_heads": 8, "head_dim": 128, "vocab": 151936}
CONFIGURATIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "llama3_8b"): {**LLAMA, "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336},
    ("llama3", "llama3_70b"): {**LLAMA, "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672},
    ("qwen3", "qwen3_0_6b"): {**QWEN, "layers": 28, "hidden": 1024, "heads": 16, "ffn": 3072},
    ("qwen3", "qwen3_1_7b"): {**QWEN, "layers": 28, "hidden": 2048, "heads": 16, "ffn": 6144},
    ("qwen3", "qwen3_14b"): {
        **QWEN,
        **{"layers": 40, "hidden": 5120, "heads": 40, "ffn": 17408, "tied_embeddings": False},
    },
    ("qwen3", "qwen3_32b"): {
        **QWEN,
        **{"layers": 64, "hidden": 5120, "heads": 64, "ffn": 25600, "tied_embeddings": False},
    },
}
"""Module and function of its dense configurations, and their shapes; it takes no shape as arguments."""
LONGEST = {"llama3": 131072, "qwen3": 40960}
"""Tokens of a sequence that its models of a module take at most."""
NUMERICS = {
    "llama3": NumericsSpec(
        activation="silu",
        rope_base=5e5,
        rope_scaling=RopeScalingSpec(kind="llama3", factor=8.0, original_length=8192),
    ),
    "qwen3": NumericsSpec(activation="silu", rope_base=1e6),
}
"""What its models of a module have."""
WORKING = {"bf16": "bfloat16", "fp32": "float32"}


def configuration(model: ModelSpec) -> tuple[str, str] | None:
    """Module and function whose model is this one."""
    for names, shape in CONFIGURATIONS.items():
        fields = {**shape, "name": model.name, "training": model.training, "numerics": model.numerics}
        if ModelSpec.model_validate(fields) == model:
            return names
    return None


def differences(module: str, model: ModelSpec) -> Iterator[str]:
    """What of the model file's numerics its models have in another way, each in a sentence without a full stop."""
    has, said = NUMERICS[module], model.numerics
    if said is None:
        return
    if said.activation not in (None, has.activation):
        yield f"gates of feed-forwards have SiLU instead of {said.activation}"
    if said.rope_base not in (None, has.rope_base):
        yield f"the base of positions is {has.rope_base:g} instead of {said.rope_base:g}"
    scaling = said.rope_scaling
    if scaling is not None:
        scaling = scaling.model_copy(update={"original_length": scaling.own_length})
    if said.rope_base is not None and scaling != has.rope_scaling:
        yield "positions are scaled as in Llama 3.1" if has.rope_scaling else "positions are not scaled"


def _faults(plan: Plan, model: ModelSpec) -> Iterator[str]:
    training, first = model.training, plan.stages[0].replicas[0]
    if len({(group.tp, *group.micro_batch_sizes) for each in plan.stages for group in each.replicas}) > 1:
        yield "all replicas have the same tp and micro-batches"
    if len({*first.micro_batch_sizes}) > 1:
        yield "micro-batches are of one size"
    if len({stage.recompute for stage in plan.stages}) > 1:
        yield "all stages recompute alike"
    if plan.pp > 1 and plan.zero not in (0, 1):
        yield f"its pipeline keeps whole gradients until the end of a step, as ZeRO 0 and 1 do, not {plan.zero}"
    if plan.pp == 1 and plan.zero == 1 and first.accumulation_steps > 1:
        yield "it shards gradients in every micro-batch, as ZeRO 2 and 3 do, not 1"
    if plan.pp > 1 and model.tied_embeddings:
        yield "its pipelines have no tied embeddings"
    if plan.stage_nodes > 1:
        yield "its ranks are numbered replica before stage, in the plan stages are dealt over nodes"
    if plan.fewer_steps:
        yield f"its ranks run the same number of micro-batches, in the plan {plan.fewer_steps} replicas one fewer"
    if plan.grid is not None:
        yield f"it divides matrices in one dimension, not by a grid of {plan.grid}"
    if plan.unequal_shards:
        yield "its ranks hold equal shards"
    if plan.backup:
        yield f"it waits for all replicas, the plan not for {plan.backup}"
    if not plan.sync.exact:
        yield "its replicas exchange whole gradients in every step"
    if plan.cp > 1:
        yield "it divides sequences in another way than the plan (cp)"
    if plan.offload.activations != "none":
        yield "it keeps activations on the devices"
    if (
        training.precision not in WORKING
        or gradients_of(PyTorch.capabilities, training, plan.zero).reduced != "fp32"
    ):
        yield "it trains in bf16 or fp32 and adds gradients up in fp32"
    optimizer = training.optimizer, training.optimizer_states, training.master_weights or "fp32"
    if optimizer != ("adamw", "fp32", "fp32"):
        yield "its configurations train with AdamW in fp32"
    if training.lora or training.freeze:
        yield "its configurations train the whole model"
    if training.documents is not None or training.preference is not None:
        yield "its data are neither dealt by documents nor pairs of answers"
    if training.attention != "flash" or model.drops:
        yield "its models have flash attention and no dropout"
    if training.norms != "fused":
        yield "its models have fused norms"


def settings(job: Job) -> dict[str, object]:
    """Its arguments of the plan by their names."""
    plan, training = job.plan, job.model.training
    group, dp = plan.stages[0].replicas[0], plan.stages[0].dp
    size = (plan.shard_size or dp) if plan.zero else 1
    kept = "always" if plan.zero == 3 else "never"
    arguments: dict[str, object] = {
        "parallelism.data-parallel-replicate-degree": dp // size,
        "parallelism.data-parallel-shard-degree": size,
        "parallelism.fsdp-reshard-after-forward": kept,
        "parallelism.tensor-parallel-degree": group.tp,
        "parallelism.pipeline-parallel-degree": plan.pp,
        "training.local-batch-size": group.micro_batch if plan.pp == 1 else group.local_batch,
        "training.global-batch-size": plan.global_batch,
        "training.seq-len": training.sequence_length,
        "training.max-norm": CLIP,
        "training.mixed-precision-param": WORKING[training.precision],
    }
    if not plan.sequence_parallel:
        arguments["parallelism.no-enable-sequence-parallel"] = None
    if plan.pp > 1:
        arguments |= {
            "parallelism.pipeline-parallel-schedule": schedule_of(plan),
            "parallelism.pipeline-parallel-microbatch-size": group.micro_batch,
            "parallelism.module-fqns-per-model-part": [
                modules(first, end, plan) for _, first, end in chunk_spans(plan)
            ],
        }
    if plan.offload.parameters != "none":
        arguments["training.enable-cpu-offload"] = None
    return {
        **arguments,
        "training.disable-cuda-graphs": None,
        "compile.no-enable": None,
        "metrics.log-freq": 1,
    }


SCHEDULES: dict[Schedule, str] = {
    "zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
"""The names that torch has for those but 1F1B."""


def schedule_of(plan: Plan) -> str:
    """The name that torch has for a plan's schedule; its 1F1B takes a micro-batch for each stage at least."""
    if plan.schedule != "1f1b":
        return SCHEDULES[plan.schedule]
    if plan.interleave > 1:
        return "Interleaved1F1B"
    return "1F1B" if plan.micro_batches >= plan.pp else "GPipe"


def modules(first: int, end: int, plan: Plan) -> str:
    """Names of the modules of a chunk of layers."""
    names = [f"layers.{layer}" for layer in range(first, end)]
    ahead = ["tok_embeddings"] if not first else []
    behind = ["norm", "lm_head"] if end == plan.stages[-1].end_layer else []
    return ",".join([*ahead, *names, *behind])


def words(job: Job) -> list[str]:
    """Shell lines of the arguments, one each."""
    names = configuration(job.model)
    assert names is not None  # check() has seen it
    module, function = names
    lines = [f"--module {module}", f"--config {function}"]
    for name, value in settings(job).items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        lines.append(shlex.join([f"--{name}", *map(str, values)]))
    return lines


class Titan(PyTorch):
    """Trains by torchtitan's own models, FSDP2 and pipelines."""

    readme = "torchtitan.md.j2"

    @property
    def tried(self) -> Mapping[str, str]:
        """PyTorch and torchtitan."""
        return {**super().tried, "torchtitan": "0.3.0"}

    def check(self, plan: Plan, model: ModelSpec) -> None:
        """Raise EmitError for what its arguments cannot say."""
        fault = next(_faults(plan, model), None)
        if fault is not None:
            raise EmitError(
                f"--library torchtitan: {fault}", hint="leave out --library: hetplan's example runs the plan"
            )
        names = configuration(model)
        if names is None:
            known = ", ".join(function for _, function in CONFIGURATIONS)
            raise EmitError(
                f"--library torchtitan: none of its configurations has the shape of {model.name}; it has {known}",
                hint="leave out --library: hetplan's example trains any shape",
            )
        module, function = names
        if model.training.sequence_length > LONGEST[module]:
            raise EmitError(
                f"--library torchtitan: {function} takes sequences of at most {LONGEST[module]} tokens, "
                f"not {model.training.sequence_length}",
                hint="leave out --library: hetplan's example runs the plan",
            )

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """Its start. Recomputation is a subcommand, which stands behind all other arguments."""
        policy = job.plan.stages[0].recompute
        own = "".join(f"    {line}\n" for line in words(job))
        prologue = f'  set -- \\\n{own.replace(chr(10), f" {chr(92)}{chr(10)}")}    "$@" activation-checkpoint:{policy}'
        return launch_files(job, job.program("-m torchtitan.train"), prologue)

    def notes(self, job: Job) -> Mapping[str, object]:
        """Its configuration, and whether it communicates more often than planned."""
        steps = job.plan.stages[0].replicas[0].accumulation_steps
        names = configuration(job.model)
        assert names is not None  # check() has seen it
        return {
            "configuration": names,
            "differences": tuple(differences(names[0], job.model)),
            "more_often": job.plan.pp == 1 and steps > 1 and job.plan.zero < 3,
        }


RUNTIME = Titan()
