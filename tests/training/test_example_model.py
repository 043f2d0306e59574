"""The example has the shape that was planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.job.batches import model_shape
from tests.worlds import model

torch = pytest.importorskip("torch")

from planner.training.example_model import Shape, Transformer, load_shape, loss_of  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {
    "gpt": {"learned_positions": 16},
    "llama": {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False},
    "qwen3": {"gated_mlp": True, "kv_heads": 2, "qk_norm": True, "head_dim": 16},
    "neo": {"learned_positions": 16, "qkv_bias": False},
    "phi": {"layer_norms": 1, "head_bias": True, "tied_embeddings": False},
    "opt": {"learned_positions": 16, "embedding_width": 16, "final_norm": False},
    "gemma3": {"gated_mlp": True, "layer_norms": 4, "qk_norm": True},
    "olmo2": {"gated_mlp": True, "kv_heads": 2, "qk_norm": "whole"},
    "olmo": {"gated_mlp": True, "norm": "plain"},
    "mixtral": {"gated_mlp": True, "kv_heads": 2, "experts": {"number": 8, "top_k": 2, "ffn": 24}},
    "qwen2 moe": {
        "gated_mlp": True,
        "experts": {"number": 4, "top_k": 3, "ffn": 24, "shared_ffn": 40, "shared_gate": True},
    },
    "plain experts": {"experts": {"number": 6, "top_k": 1, "ffn": 24, "router_bias": True, "bias": True}},
    "mamba": {
        "layer_norms": 1,
        "norm": "rms",
        "mixer": "state",
        "feed_forward": "none",
        "state": {"kind": "mamba", "head_dim": 48, "size": 4, "rank": 3, "norm": False, "chunk": 8},
    },
    "mamba 2": {
        "layer_norms": 1,
        "norm": "rms",
        "mixer": "state",
        "feed_forward": "none",
        "state": {"kind": "mamba2", "heads": 4, "head_dim": 8, "size": 6, "groups": 2, "chunk": 8},
    },
    "jamba": {
        "gated_mlp": True,
        "experts": {"number": 4, "top_k": 2, "ffn": 24},
        "state": {"kind": "mamba", "head_dim": 48, "size": 4, "rank": 3, "chunk": 8},
        "block": (
            {"layers": 2, "mixer": "state", "feed_forward": "dense"},
            {"feed_forward": "experts"},
        ),
    },
    "qwen3 next": {
        "gated_mlp": True,
        "kv_heads": 2,
        "qk_norm": True,
        "output_gate": True,
        "state": {
            "kind": "delta",
            "heads": 4,
            "head_dim": 8,
            "groups": 2,
            "size": 6,
            "conv_bias": False,
            "chunk": 8,
        },
        "block": ({"layers": 2, "mixer": "state"}, {}),
        "ahead": ({},),
        "behind": ({"mixer": "state"},),
    },
    "nemotron-h": {
        "norm": "rms",
        "state": {"kind": "mamba2", "heads": 4, "head_dim": 8, "size": 6, "bias": True, "chunk": 8},
        "block": (
            {"mixer": "state", "feed_forward": "none"},
            {"mixer": "none"},
            {"feed_forward": "none"},
        ),
    },
    "falcon h1": {
        "gated_mlp": True,
        "mixer": "both",
        "state": {"kind": "mamba2", "heads": 4, "head_dim": 8, "size": 6, "norm": False, "chunk": 8},
    },
    "minimax": {
        "gated_mlp": True,
        "state": {"kind": "linear", "heads": 4, "head_dim": 8, "size": 8, "groups": 4, "chunk": 6},
        "block": ({"mixer": "state"}, {}),
    },
    "xlstm": {
        "gated_mlp": True,
        "mixer": "state",
        "state": {"kind": "linear", "heads": 4, "head_dim": 8, "size": 4, "groups": 4, "chunk": 6},
    },
    "lfm2": {
        "gated_mlp": True,
        "qk_norm": True,
        "state": {"kind": "conv", "head_dim": 32, "conv": 3, "conv_bias": False, "norm": False},
        "block": ({"mixer": "state"}, {}),
    },
    "openelm": {
        "gated_mlp": True,
        "qk_norm": True,
        "block": ({"heads": 2, "kv_heads": 1, "head_dim": 16, "ffn": 48}, {"layers": 2, "heads": 8}),
        "ahead": ({"ffn": 40},),
        "behind": ({"feed_forward": "none", "kv_heads": 2}, {"mixer": "none", "ffn": 72}),
    },
    "gemma4": {
        "gated_mlp": True,
        "layer_norms": 4,
        "qk_norm": True,
        "experts": {"number": 4, "top_k": 2, "ffn": 24, "shared_ffn": 16},
        "block": ({"layers": 2}, {"kv_heads": 2, "head_dim": 16, "value_dim": 0}),
    },
    "mimo": {
        "gated_mlp": True,
        "head_dim": 12,
        "value_dim": 8,
        "qkv_bias": True,
        "block": ({"kv_heads": 2}, {}),
    },
    "nemotron 3": {
        "norm": "rms",
        "experts": {"number": 4, "top_k": 2, "ffn": 24, "hidden": 16, "shared_ffn": 40},
        "block": ({"mixer": "none"}, {"feed_forward": "none"}),
    },
    "bert": {
        "kind": "encoder",
        "learned_positions": 32,
        "token_types": 2,
        "embedding_norm": True,
        "final_norm": False,
        "head_transform": True,
        "head_bias": True,
    },
}
every_kind = pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)


def shape_of(tmp_path: Path, **changes: Any) -> Shape:
    """A shape as the launch folder carries it."""
    (tmp_path / "model.json").write_text(json.dumps(model_shape(model(1, **changes))))
    return load_shape(tmp_path / "model.json")


@every_kind
def test_parameters_are_those_of_the_plan(tmp_path: Path, changes: dict[str, Any]) -> None:
    """What the memory model counts is there, and nothing else."""
    network = Transformer(shape_of(tmp_path, **changes))
    counted = sum(parameter.numel() for parameter in network.parameters())
    assert counted == model(1, **changes).parameters


@every_kind
def test_recomputation_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Full recomputation gives the same loss and gradients."""
    shape = shape_of(tmp_path, **changes)
    tokens = torch.arange(32).view(2, 16) % shape.vocab
    found = []
    for recompute in ("none", "full"):
        torch.manual_seed(0)
        network = Transformer(shape, recompute)
        loss = loss_of(network(tokens), tokens)
        loss.backward()
        found.append([loss.item(), *(parameter.grad.norm().item() for parameter in network.parameters())])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_decoder_is_causal_and_encoder_is_not(tmp_path: Path) -> None:
    """A later token changes earlier outputs of an encoder only."""
    tokens = torch.zeros(1, 16, dtype=torch.long)
    other = tokens.clone()
    other[0, -1] = 1
    for kind, same in (("decoder", True), ("encoder", False)):
        network = Transformer(shape_of(tmp_path, kind=kind))
        assert torch.allclose(network(tokens)[0, 0], network(other)[0, 0], atol=1e-7) is same
