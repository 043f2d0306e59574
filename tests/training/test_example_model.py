"""The example has the shape that was planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cost.memory import quantised_experts_of, quantised_of
from planner.job.batches import model_shape
from planner.model.spec import PARTS, LoraSpec
from tests.quick import every
from tests.worlds import model

torch = pytest.importorskip("torch")

from planner.training.example_context import ALONE  # noqa: E402
from planner.training.example_model import Shape, Transformer, load_shape  # noqa: E402
from planner.training.hetplan_loss import mean_loss  # noqa: E402

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
    "deepseek v2 lite": {
        **{"gated_mlp": True, "head_dim": 12, "dense_layers": 1},
        "latent": {"kv_rank": 16, "rope_dim": 4, "value_dim": 8},
        "experts": {"number": 4, "top_k": 2, "ffn": 24, "shared_ffn": 16},
    },
    "deepseek v3": {
        **{"gated_mlp": True, "head_dim": 12, "qkv_bias": True},
        "latent": {"q_rank": 20, "kv_rank": 16, "rope_dim": 4, "value_dim": 8},
    },
    "gpt oss": {
        "gated_mlp": True,
        "kv_heads": 2,
        "sinks": True,
        "qkv_bias": True,
        "experts": {"number": 4, "top_k": 2, "ffn": 24, "router_bias": True, "bias": True},
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


TRAINED: dict[str, dict[str, Any]] = {
    "adapters": {"lora": LoraSpec(rank=2)},
    "adapters on four bits": {"lora": LoraSpec(rank=2, base="nf4")},
    "adapters on narrow scales": {"lora": LoraSpec(rank=2, base="nf4-double")},
    **{f"frozen {part}": {"freeze": (part,)} for part in PARTS},
}


@every_kind
@pytest.mark.parametrize("training", every(2, TRAINED.values()), ids=TRAINED)
def test_what_is_trained_is_what_the_plan_says(
    tmp_path: Path, changes: dict[str, Any], training: dict[str, Any]
) -> None:
    """As many parameters, each with a gradient, some in every layer; what rests in four bits is none."""
    wanted = model(1, **changes, **training)
    if not all(kind.trained_layer_parameters for kind in wanted.trained_kinds):
        pytest.skip("the model file would be refused")
    shape = shape_of(tmp_path, **changes, **training)
    network = Transformer(shape)
    everywhere: dict[str, Any] = {"layers": wanted.layers, "first": True, "last": True}
    packed = quantised_of(wanted, **everywhere) + quantised_experts_of(wanted, **everywhere, expert_ways=1)
    counted = sum(parameter.numel() for parameter in network.parameters())
    assert counted == wanted.parameters + wanted.adapter_parameters - packed
    codes = sum(each.numel() for name, each in network.named_buffers() if name.endswith("packed"))
    assert codes == packed / 2
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == wanted.trained_parameters
    for layer in network.layers:
        assert any(parameter.requires_grad for parameter in layer.parameters())
    tokens = torch.arange(32).view(2, 16) % shape.vocab
    mean_loss(network(tokens), tokens).backward()
    for parameter in network.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad


@every_kind
def test_recomputation_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Full recomputation gives the same loss and gradients."""
    shape = shape_of(tmp_path, **changes)
    tokens = torch.arange(32).view(2, 16) % shape.vocab
    found = []
    for recompute in ("none", "full"):
        torch.manual_seed(0)
        network = Transformer(shape, recompute)
        loss = mean_loss(network(tokens), tokens)
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


@pytest.mark.parametrize("width", [3, 4, 6, 14])
@pytest.mark.parametrize("causal", [True, False])
def test_sinks_take_their_part_of_the_softmax(causal: bool, width: int) -> None:
    """And have its gradient: as a softmax over one score more, whose value is zero; values may be wider than keys."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 5, 4, requires_grad=True), torch.randn(2, 2, 5, 4, requires_grad=True)
    value, sinks = torch.randn(2, 2, 5, width, requires_grad=True), torch.randn(4, requires_grad=True)
    found = ALONE.attend(query, key, value, causal=causal, sinks=sinks)
    keys, values = (each.repeat_interleave(2, dim=1) for each in (key, value))
    scores = query @ keys.transpose(2, 3) / 2
    if causal:
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    whole = torch.cat((scores, sinks.view(1, 4, 1, 1).expand(2, 4, 5, 1)), dim=-1).softmax(-1)
    wanted = whole[..., :-1] @ values
    assert torch.allclose(found, wanted, atol=1e-6)
    weights = torch.randn_like(wanted)
    gradients = [
        torch.autograd.grad((mixed * weights).sum(), (query, key, value, sinks)) for mixed in (found, wanted)
    ]
    assert all(torch.allclose(*each, atol=1e-6) for each in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({"freeze": ("attention",)}, False),
        ({"freeze": ("norms",)}, True),
        ({"lora": LoraSpec(rank=2)}, False),
    ],
)
def test_sinks_are_frozen_with_attention(tmp_path: Path, changes: dict[str, Any], trained: bool) -> None:
    """As memory counts them."""
    wanted = model(1, gated_mlp=True, sinks=True, **changes)
    network = Transformer(shape_of(tmp_path, gated_mlp=True, sinks=True, **changes))
    assert network.layers[0].sinks.requires_grad is trained
    counted = sum(each.numel() for each in network.parameters() if each.requires_grad)
    assert counted == wanted.trained_parameters


def test_a_front_may_be_narrower_than_the_layers(tmp_path: Path) -> None:
    """In models of images in stages, whose later ones are wider and have fewer places."""
    front = {"inputs": 48, "outputs": 24, "tokens": 64, "bias": True}
    images = {"kind": "encoder", "labels": 5, "pooled": True, "tied_embeddings": False}
    shape = shape_of(tmp_path, front=(front,), **images)
    tokens = torch.arange(32).view(2, 16) % shape.vocab
    loss = mean_loss(Transformer(shape)(tokens), tokens % 5)
    loss.backward()
    assert loss.isfinite()
