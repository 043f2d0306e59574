"""FlagScale's rules for process meshes, as of commit da4935ec6: settings that break one are refused.

Most are asserted by its ``pre_validate_args`` and ``post_validate_args``. The rule on sequence parallelism
follows from how it cuts activations between meshes, that on stages beside replicas from a mistake in how it
numbers the ranks there.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from planner.errors import EmitError
from planner.job.job import Job

Settings = Mapping[str, Any]
"""FlagScale's training settings by name, without their sections."""
NUMBERS = 5
"""Numbers of one mesh: tp, context parallel, expert parallel, dp, pp."""


def check_settings(given: Settings, world_size: int) -> None:
    """Raise EmitError naming the first rule that the settings break on ``world_size`` ranks."""
    grids = _grids(given["hetero_process_meshes"])
    _check_grids(given, grids, world_size)
    _check_layers(given)
    _check_widths(given, grids)
    _check_tensor(given, grids)
    _check_tied(given, grids)
    _check_recompute(given, grids)


def _grids(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    if not numbers or len(numbers) % NUMBERS:
        raise EmitError(f"hetero_process_meshes: expected 5 numbers a mesh, got {len(numbers)}")
    return [tuple(numbers[at : at + NUMBERS]) for at in range(0, len(numbers), NUMBERS)]


def _check_grids(given: Settings, grids: list[tuple[int, ...]], world_size: int) -> None:
    depth = given["pipeline_model_parallel_size"]
    if sum(grid[4] for grid in grids) != depth:
        raise EmitError(f"hetero_process_meshes: the stages must sum to pipeline_model_parallel_size {depth}")
    if sum(tp * cp * dp * pp for tp, cp, _, dp, pp in grids) != world_size:
        raise EmitError(f"hetero_process_meshes: the devices must sum to the {world_size} ranks")
    if len({grid[1] for grid in grids}) > 1:
        raise EmitError("hetero_process_meshes: context parallelism must be equal in all meshes")
    if len(grids) > 1 and any(dp > 1 and pp > 1 for *_, dp, pp in grids):
        raise EmitError("hetero_process_meshes: a mesh beside others must not have both replicas and stages")
    if len(given["hetero_device_types"]) != len(grids):
        raise EmitError("hetero_device_types: expected one type for each mesh")
    if given["hetero_current_device_type"] not in given["hetero_device_types"]:
        raise EmitError("hetero_current_device_type: must be one of hetero_device_types")
    for name in ("num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_layout"):
        if given.get(name) is not None:
            raise EmitError(f"{name}: flagscale cannot interleave or lay out layers with process meshes")


def _check_layers(given: Settings) -> None:
    split, layers = given["hetero_pipeline_layer_split"], given["num_layers"]
    if sum(split) != layers:
        raise EmitError(f"hetero_pipeline_layer_split: places {sum(split)} layers, num_layers is {layers}")
    if len(split) != given["pipeline_model_parallel_size"]:
        raise EmitError("hetero_pipeline_layer_split: expected one number for each pipeline stage")


def _check_widths(given: Settings, grids: list[tuple[int, ...]]) -> None:
    batch = grids[0][3] * given["micro_batch_size"]
    for dp in (grid[3] for grid in grids):
        if batch % dp:
            raise EmitError(
                f"one micro-batch over all replicas, {batch} sequences, must divide by the replicas of every mesh: {dp}"
            )
    if given["global_batch_size"] % batch:
        raise EmitError(
            f"global_batch_size: must be a multiple of {batch}, one micro-batch over all replicas"
        )


def _check_tensor(given: Settings, grids: list[tuple[int, ...]]) -> None:
    degrees = sorted({grid[0] for grid in grids})
    heads = given["num_attention_heads"]
    for tp in degrees:
        if heads % tp or given["ffn_hidden_size"] % tp:
            raise EmitError(f"num_attention_heads and ffn_hidden_size must be multiples of every tp: {tp}")
        groups = given.get("num_query_groups", heads)
        if groups % tp and tp % groups:
            raise EmitError(f"num_query_groups must be a multiple or a divisor of tp: {groups} and {tp}")
        if given.get("sequence_parallel") and given["seq_length"] % tp:
            raise EmitError(f"seq_length must be a multiple of every tp with sequence_parallel: {tp}")
    if len(degrees) > 1 and not given.get("sequence_parallel"):
        shown = ", ".join(map(str, degrees))
        raise EmitError(
            f"meshes of different tp exchange parts of the sequence: tp {shown} need sequence_parallel"
        )


def _check_tied(given: Settings, grids: list[tuple[int, ...]]) -> None:
    if given.get("untie_embeddings_and_output_weights"):
        return
    first, last = grids[0], grids[-1]
    if first[0] != last[0]:
        raise EmitError(
            f"tied embeddings need the same tp on the first and last stage: {first[0]} and {last[0]}"
        )
    if first[3] == last[3] or not given.get("use_distributed_optimizer"):
        return
    if first[3] % last[3] and last[3] % first[3]:
        raise EmitError(
            f"tied embeddings with ZeRO 1 need first and last stages whose replicas divide: {first[3]} and {last[3]}"
        )
    if not given.get("use_partial_reduce_for_shared_embedding"):
        raise EmitError("tied embeddings with ZeRO 1 need use_partial_reduce_for_shared_embedding")


def _check_recompute(given: Settings, grids: list[tuple[int, ...]]) -> None:
    table = given.get("recompute_granularity_per_stage_micro_batch")
    if table is None:
        return
    if given.get("recompute_granularity") != "full" or given.get("recompute_method") is None:
        raise EmitError("recompute per stage needs recompute_granularity full and a recompute_method")
    rows = [ast.literal_eval(row) if isinstance(row, str) else row for row in table]
    if sum(row[0] for row in rows) != sum(grid[4] for grid in grids):
        raise EmitError("recompute per stage: the stages of all rows must sum to the pipeline depth")
    steps = given["global_batch_size"] // (grids[0][3] * given["micro_batch_size"])
    if any(sum(row[1::2]) != steps for row in rows):
        raise EmitError(f"recompute per stage: every row must cover all {steps} micro-batches")


def check_files(files: Mapping[str, str], job: Job) -> None:
    """Raise EmitError naming the first rule that the settings of a folder break."""
    parts = yaml.safe_load(files["conf/train/plan.yaml"]).values()
    settings = {key: value for part in parts for section in part.values() for key, value in section.items()}
    check_settings(settings, job.plan.devices)
