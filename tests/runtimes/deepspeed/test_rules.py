"""Keys that DeepSpeed would ignore or refuse are refused here first."""

from __future__ import annotations

import pytest

from planner.errors import EmitError
from tests.runtimes.deepspeed.rules import check_config

BROKEN = [
    ({"gradient_cliping": 1.0}, "gradient_cliping: not a key"),
    ({"zero_optimization": {"stages": 1}}, "zero_optimization.stages: not a key"),
    ({"pipeline": {"parts": [0, 1]}}, "pipeline.parts: not a key"),
    ({"zero_optimization": {"stage": 4}}, "expected 0, 1, 2 or 3, got 4"),
    ({"zero_optimization": 2}, "expected a section"),
    ({"zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum"}, "sum does not run with ZeRO 3"),
    ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "cannot both be enabled"),
    ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "nvme needs nvme_path"),
    ({"zero_optimization": {"offload_param": {"devise": "cpu"}}}, "offload_param.devise: not a key"),
    (
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        "offload_param does not run with ZeRO 2",
    ),
    ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "does not run with ZeRO 0"),
    (
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
        "offload_optimizer.ratio is for ZeRO 3 and device cpu",
    ),
    (
        {
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}},
        },
        "super_offload updates late with gradient_clipping",
    ),
    ({"activation_checkpointing": {"cpu": True}}, "activation_checkpointing.cpu: not a key"),
    ({"train_micro_batch_size_per_gpu": 0}, "at least 1, got 0"),
    ({"gradient_accumulation_steps": 1.5}, "whole number"),
]


@pytest.mark.parametrize(("config", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_broken_rule_is_named(config: dict[str, object], message: str) -> None:
    """Each rule has its message."""
    with pytest.raises(EmitError, match=message):
        check_config(config)


def test_pipeline_excludes_sharded_gradients() -> None:
    """ZeRO 2 and 3 do not run in a pipeline."""
    check_config({"zero_optimization": {"stage": 2}})
    with pytest.raises(EmitError, match="does not run in a pipeline"):
        check_config({"zero_optimization": {"stage": 2}}, pipeline_stages=2)
