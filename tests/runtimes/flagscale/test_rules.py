"""Settings that FlagScale would refuse are refused here first."""

from __future__ import annotations

from typing import Any

import pytest

from planner.errors import EmitError
from tests.runtimes.flagscale.rules import check_settings

BASE: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 16,
    "max_position_embeddings": 16,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "sequence_parallel": True,
    "untie_embeddings_and_output_weights": True,
    "hetero_process_meshes": [2, 1, 1, 2, 1, 1, 1, 1, 4, 1],
    "hetero_device_types": ["A100", "T4"],
    "hetero_current_device_type": "A100",
    "hetero_pipeline_layer_split": [3, 1],
}
RANKS = 8
TIED = {"untie_embeddings_and_output_weights": False, "use_distributed_optimizer": True}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
TABLE = "recompute_granularity_per_stage_micro_batch"

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"hetero_process_meshes": [2, 1, 1, 2]}, "expected 5 numbers a mesh, got 4"),
    ({"pipeline_model_parallel_size": 3}, "must sum to pipeline_model_parallel_size 3"),
    ({"hetero_process_meshes": [2, 2, 1, 1, 1, 1, 1, 1, 4, 1]}, "context parallelism must be equal"),
    ({"hetero_device_types": ["A100"]}, "expected one type for each mesh"),
    ({"hetero_current_device_type": "H100"}, "must be one of hetero_device_types"),
    ({"hetero_pipeline_layer_split": [3, 2]}, "places 5 layers"),
    ({"hetero_pipeline_layer_split": [2, 1, 1]}, "expected one number for each pipeline stage"),
    ({"micro_batch_size": 1}, "must divide by the replicas of every mesh: 4"),
    ({**TIED}, "need the same tp on the first and last stage: 2 and 1"),
    (
        {
            **TIED,
            "hetero_process_meshes": [2, 1, 1, 2, 1, 2, 1, 1, 1, 1, 2, 1, 1, 1, 1],
            **{
                "hetero_device_types": ["A100", "A100", "T4"],
                "pipeline_model_parallel_size": 3,
                "hetero_pipeline_layer_split": [2, 1, 1],
            },
        },
        "need use_partial_reduce_for_shared_embedding",
    ),
    ({TABLE: [[1, 4, 1], [1, 4, 0]]}, "needs recompute_granularity full"),
    ({**FULL, TABLE: [[1, 4, 1]]}, "must sum to the pipeline depth"),
    ({**FULL, TABLE: [[1, 4, 1], [1, 3, 0]]}, "must cover all 4 micro-batches"),
]
STRICTER: list[tuple[dict[str, Any], str]] = [
    ({"num_layers_per_virtual_pipeline_stage": 1}, "cannot interleave"),
    ({"hetero_process_meshes": [2, 1, 1, 2, 1, 1, 1, 1, 2, 1]}, "must sum to the 8 ranks"),
    (
        {
            "hetero_process_meshes": [1, 1, 1, 2, 2, 1, 1, 1, 4, 1],
            "pipeline_model_parallel_size": 3,
            "hetero_pipeline_layer_split": [1, 2, 1],
        },
        "must not have both replicas and stages",
    ),
    ({"sequence_parallel": False}, "tp 1, 2 need sequence_parallel"),
    ({"global_batch_size": 18}, "must be a multiple of 4"),
    ({"seq_length": 15}, "seq_length must be a multiple of every tp"),
    ({"num_attention_heads": 3}, "must be multiples of every tp"),
    ({"num_query_groups": 3}, "multiple or a divisor of tp"),
]
"""Refused here, and by FlagScale later than in its checks of meshes, or never."""


def test_accepted() -> None:
    """The settings that the others change."""
    check_settings(BASE, RANKS)
    check_settings({**BASE, **FULL, TABLE: [[1, 4, 1], [1, 2, 0, 2, 0]]}, RANKS)


@pytest.mark.parametrize(("changes", "message"), REFUSED + STRICTER)
def test_refused(changes: dict[str, Any], message: str) -> None:
    """Every rule names what is wrong."""
    with pytest.raises(EmitError, match=message):
        check_settings({**BASE, **changes}, RANKS)


def test_tied_widths_must_divide() -> None:
    """Three replicas and two cannot share a reduction."""
    changes = {
        **TIED,
        "hetero_process_meshes": [1, 1, 1, 3, 1, 1, 1, 1, 2, 1],
        "tensor_model_parallel_size": 1,
    }
    settings = {**BASE, **changes, "micro_batch_size": 2, "global_batch_size": 12, "sequence_parallel": False}
    with pytest.raises(EmitError, match="whose replicas divide: 3 and 2"):
        check_settings(settings, 5)
