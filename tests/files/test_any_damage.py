"""Whatever is wrong with a file, the user sees a message and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.file import load_calibration
from planner.cluster.file import load_cluster
from planner.errors import HetplanError
from planner.model.file import load_model
from planner.plan.file import PlanFile, load_plan, read, to_text
from tests.files.writing import CLUSTER, MODEL, MODELS
from tests.model.test_huggingface import PUBLISHED, mixture
from tests.plan.examples import CLUSTER as SMALL
from tests.plan.examples import MODEL as SMALL_MODEL
from tests.plan.examples import plan

SCALARS = [
    None,
    0,
    -1,
    1,
    3,
    1.5,
    1e300,
    10**30,
    float("nan"),
    True,
    "",
    "x",
    "25G",
    "8 x ",
    "n[1-",
    "A100",
    "T4",
]
OTHERS = ["A100", "T4", "ib", "é", "a b", "\x85", "no", "1e9", [], [[]], [1, "a"], {}, {"a": 1}, [{}]]
JUNK: st.SearchStrategy[Any] = st.sampled_from([*SCALARS, *OTHERS])

SHORT = {
    "target": "megatron",
    "tp": 1,
    "pp": 2,
    "dp": 2,
    "micro_batch": 2,
    "layers": [5, 3],
    "stages": [{"pool": "fast", "gpu": "A100", "count": 1}, {"pool": "slow", "dp": 2}],
}
REPLICAS = {
    "zero": 3,
    "replicas": [
        {"pool": "fast", "count": 2, "micro_batch": 3},
        {"pool": "slow", "count": 2, "micro_batch": 1},
    ],
}

CALIBRATION = {
    "format": "hetplan-calibration/1",
    "notes": "x",
    "provenance": {"device": "x"},
    "families": {
        "A100": {"matmul_efficiency": {"value": 0.8, "provenance": "fitted"}, "kernel_seconds": 1e-6}
    },
    "links": {"roce": {"rail": 0.9}},
    "residuals": [{"family": "A100", "framework": "x", "rows": 4, "spread": 0.1}],
    "layers": [
        {"gpu": "A100", "model": "x", "tp": 1, "micro_batch": 1, "forward_seconds": 1, "backward_seconds": 2}
    ],
    "link_points": [
        {"link": "ib", "operation": "send", "members": 2, "size_bytes": size, "seconds": size}
        for size in (1, 2)
    ],
}


HYBRID = {
    **mixture("qwen3_next", layer_types=["linear_attention", "full_attention"]),
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_conv_kernel_dim": 4},
    **{"linear_value_head_dim": 16, "linear_key_head_dim": 16, "shared_expert_intermediate_size": 32},
}
JAMBA = {
    **mixture("jamba", attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, mamba_d_state=16),
    **{"mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 4, "mamba_conv_bias": True},
}
NEMOTRON = {
    **mixture("nemotron_h", hybrid_override_pattern="M-M*E", mamba_num_heads=4, mamba_head_dim=16),
    **{"ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4, "chunk_size": 64},
}
SEEING = {
    "model_type": "llava",
    "tie_word_embeddings": False,
    "text_config": PUBLISHED["llama-2-7b"][0],
    "vision_config": {
        **{"model_type": "clip_vision_model", "num_hidden_layers": 2, "hidden_size": 64},
        **{"num_attention_heads": 4, "intermediate_size": 128, "patch_size": 14, "image_size": 28},
    },
}
UNLIKE = {
    **{"name": "m", "layers": 2, "hidden": 64, "heads": 4, "vocab": 100},
    "experts": {"number": 4, "top_k": 1, "ffn": 64},
    "state": {"kind": "mamba2", "heads": 4, "head_dim": 16, "size": 16, "groups": 2, "chunk": 64},
    "block": [{"layers": 2, "mixer": "state", "feed_forward": "dense"}, {"mixer": "attention"}],
    "ahead": [{"layers": 1, "mixer": "none"}],
    "tower": {
        **{"layers": 1, "hidden": 8, "heads": 2, "ffn": 8, "patch": 4, "tokens": 4, "outputs": 4},
        **{"projector": [32, 64], "images": 2, "merged": 2, "frozen": True},
    },
    "training": {"sequence_length": 64, "global_batch": 8},
}


def as_plan(path: Path) -> object:
    """A short plan for the small cluster."""
    return load_plan(path, SMALL, SMALL_MODEL)


FILES: dict[str, tuple[Callable[[Path], object], Any]] = {
    "cluster": (load_cluster, yaml.safe_load(CLUSTER)),
    "model": (load_model, yaml.safe_load(MODEL)),
    "bert": (load_model, yaml.safe_load((MODELS / "bert_large.yaml").read_text())),
    "experts": (load_model, yaml.safe_load((MODELS / "gpt_oss_20b.yaml").read_text())),
    "experts config": (
        load_model,
        mixture("qwen3_moe", sliding_window=64, layer_types=["full_attention"] * 2),
    ),
    "hybrid config": (load_model, HYBRID),
    "jamba config": (load_model, JAMBA),
    "nemotron config": (load_model, NEMOTRON),
    "seeing config": (load_model, SEEING),
    "hybrid": (load_model, UNLIKE),
    "opt config": (load_model, PUBLISHED["opt-350m"][0]),
    "llama config": (load_model, PUBLISHED["llama-3-8b"][0]),
    "plan": (read, yaml.safe_load(to_text(PlanFile(plan=plan(), cluster=SMALL, model=SMALL_MODEL)))),
    "short plan": (as_plan, SHORT),
    "replicas": (as_plan, REPLICAS),
    "calibration": (load_calibration, CALIBRATION),
}


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values below the top."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in items for found in [(*path, key), *places(value, (*path, key))]]


def damaged(data: Any, path: tuple[Any, ...], junk: Any, how: str) -> Any:
    """A copy in which the value at the path is replaced, removed, renamed or doubled."""
    copy = json.loads(json.dumps(data))
    here = copy
    for part in path[:-1]:
        here = here[part]
    if how == "replace":
        here[path[-1]] = junk
    elif how == "remove":
        del here[path[-1]]
    elif isinstance(here, list):
        here.append(here[path[-1]])
    else:
        here[f"{path[-1]}x"] = here.pop(path[-1])
    return copy


def complaint(load: Callable[[Path], object], path: Path) -> list[str]:
    """Lines of what loading complains about; none when the file is still good."""
    try:
        load(path)
    except HetplanError as error:
        return error.message.splitlines() or ["an error without a message"]
    return []


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_a_message(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """Or the file is still good."""
    load, content = FILES[name]
    for _ in range(data.draw(st.integers(1, 3))):
        paths = places(content)
        if not paths:
            break
        how = data.draw(st.sampled_from(["replace", "replace", "remove", "other"]))
        content = damaged(content, data.draw(st.sampled_from(paths)), data.draw(JUNK), how)
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True))
    assert all(line.startswith(f"{path}:") for line in complaint(load, path))
