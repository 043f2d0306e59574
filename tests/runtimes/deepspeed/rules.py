"""The keys of a DeepSpeed configuration that hetplan knows: DeepSpeed ignores a misspelt one silently."""

from __future__ import annotations

import json
from collections.abc import Mapping

from planner.errors import EmitError
from planner.job.job import Job

TOP_LEVEL = frozenset(
    {
        "activation_checkpointing",
        "aio",
        "bf16",
        "communication_data_type",
        "data_types",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_allreduce_op",
        "gradient_clipping",
        "gradient_predivide_factor",
        "pipeline",
        "prescale_gradients",
        "steps_per_print",
        "tensor_parallel",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "wall_clock_breakdown",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    }
)
ZERO = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "offload_optimizer",
        "offload_param",
        "overlap_comm",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "stage",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "sub_group_size",
        "zero_hpz_partition_size",
        "zero_quantized_gradients",
        "zero_quantized_weights",
    }
)
TENSOR = frozenset({"autotp_size", "partition_config"})
OFFLOAD = frozenset(
    {"buffer_count", "buffer_size", "device", "nvme_path", "pin_memory", "pipeline_read", "pipeline_write"}
)
SHARED = frozenset({"cpuadam_cores_perc", "ratio", "super_offload"})
AIO = frozenset({"block_size", "overlap_events", "queue_depth"})
CHECKPOINTING = frozenset({"cpu_checkpointing"})
PIPELINE = frozenset(
    {"activation_checkpoint_interval", "grad_partitioned", "pipe_partitioned", "use_reentrant"}
)


def check_config(config: Mapping[str, object], pipeline_stages: int = 1) -> None:
    """Raise EmitError naming the first rule that the configuration breaks."""
    _known(config, TOP_LEVEL, "")
    zero = _section(config, "zero_optimization")
    _known(zero, ZERO, "zero_optimization.")
    _known(_section(config, "aio"), AIO, "aio.")
    _known(_section(config, "pipeline"), PIPELINE, "pipeline.")
    _known(_section(config, "activation_checkpointing"), CHECKPOINTING, "activation_checkpointing.")
    tensor = _section(config, "tensor_parallel")
    _known(tensor, TENSOR, "tensor_parallel.")
    if tensor and pipeline_stages > 1:
        raise EmitError("tensor_parallel does not run in a pipeline")
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise EmitError(f"zero_optimization.stage: expected 0, 1, 2 or 3, got {stage!r}")
    if pipeline_stages > 1 and stage not in (0, 1):
        raise EmitError(f"ZeRO {stage} does not run in a pipeline, expected 0 or 1")
    if stage == 3 and config.get("gradient_allreduce_op", "mean") == "sum":
        raise EmitError("gradient_allreduce_op sum does not run with ZeRO 3")
    if _section(config, "bf16").get("enabled") and _section(config, "fp16").get("enabled"):
        raise EmitError("bf16 and fp16 cannot both be enabled")
    for key in ("offload_optimizer", "offload_param"):
        offload = _section(zero, key)
        able = OFFLOAD | SHARED if key == "offload_optimizer" else OFFLOAD
        _known(offload, able, f"zero_optimization.{key}.")
        shared = sorted(SHARED & {*offload})
        if shared and (stage != 3 or offload.get("device") != "cpu"):
            raise EmitError(f"zero_optimization.{key}.{shared[0]} is for ZeRO 3 and device cpu")
        if offload.get("super_offload") and config.get("gradient_clipping"):
            raise EmitError(f"zero_optimization.{key}.super_offload updates late with gradient_clipping")
        if offload.get("device") == "nvme" and not offload.get("nvme_path"):
            raise EmitError(f"zero_optimization.{key}: device nvme needs nvme_path")
        if offload and stage not in {"offload_optimizer": (1, 2, 3), "offload_param": (3,)}[key]:
            raise EmitError(f"zero_optimization.{key} does not run with ZeRO {stage}")
    _check_batch(config)


def _section(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = config.get(key, {})
    if not isinstance(value, Mapping):
        raise EmitError(f"{key}: expected a section, got {value!r}")
    return value


def _known(section: Mapping[str, object], allowed: frozenset[str], prefix: str) -> None:
    unknown = sorted(set(section) - allowed)
    if unknown:
        raise EmitError(f"{prefix}{unknown[0]}: not a key that hetplan knows in a DeepSpeed configuration")


def _check_batch(config: Mapping[str, object]) -> None:
    """The batch keys are positive; which rank has which is not DeepSpeed's to know."""
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    for key in keys:
        value = config.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise EmitError(f"{key}: expected a whole number of at least 1, got {value!r}")


def check_files(files: Mapping[str, str], job: Job) -> None:
    """Raise EmitError naming the first rule that the files of a folder break."""
    check_config(json.loads(files["ds_config.json"]), job.plan.pp)
