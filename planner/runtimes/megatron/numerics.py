"""Arguments of what changes Megatron's results and neither time nor memory, and what it computes in another way."""

from __future__ import annotations

from collections.abc import Iterator

from planner.model.spec import ModelSpec, NumericsSpec, RopeScalingSpec, RouterSpec

GATES = {
    "silu": ["--swiglu"],
    "quick-gelu": ["--quick-geglu"],
    # With the limits and the offset of gpt-oss.
    "clamped-quick-gelu": [
        *("--quick-geglu", "--glu-linear-offset", "1", "--activation-func-clamp-value", "7"),
    ],
}
"""Arguments by the activation of gated feed-forwards."""
UNGATED: dict[str, list[str]] = {"gelu": [], "gelu-tanh": [], "squared-relu": ["--squared-relu"]}
"""The same of others; its fused GELU is the approximation by a tanh."""


def _activated(model: ModelSpec) -> str:
    """The activation of feed-forwards that the model file says, or the usual one."""
    said = model.numerics.activation if model.numerics else None
    return said or ("silu" if model.gated_mlp else "gelu")


def activation(model: ModelSpec) -> list[str]:
    """Arguments of the activation; where Megatron has it not, those of its usual one."""
    if model.gated_mlp:
        return GATES.get(_activated(model), GATES["silu"])
    return UNGATED.get(_activated(model), UNGATED["gelu"])


def fuses_activation(model: ModelSpec) -> bool:
    """True where Megatron fuses the activation with the bias ahead of it, but for experts."""
    return model.gated_mlp or (model.experts is None and "--squared-relu" not in activation(model))


def norms(model: ModelSpec) -> list[str]:
    """What norms add."""
    epsilon = model.numerics.norm_epsilon if model.numerics else None
    return [] if epsilon is None else ["--norm-epsilon", f"{epsilon:g}"]


def positions(model: ModelSpec) -> list[str]:
    """Behind layers that carry a state along the sequence attention has no positions (Nemotron-H, Granite 4) unless the
    model file names their base (Bamba)."""
    if model.learned_positions:
        return ["--position-embedding-type", "learned_absolute"]
    if placeless(model):
        return ["--position-embedding-type", "none"]
    numerics = model.numerics or NumericsSpec()
    scaling = _scaling_words(model, numerics.rope_scaling)
    yarn = numerics.rope_scaling is not None and numerics.rope_scaling.kind == "yarn"
    words = ["--position-embedding-type", "yarn" if yarn and model.latent is None else "rope"]
    words += [] if numerics.rope_base is None else ["--rotary-base", f"{numerics.rope_base:.0f}"]
    words += [] if numerics.rope_share is None else ["--rotary-percent", f"{numerics.rope_share:g}"]
    words += ["--no-rope-freq", str(numerics.rope_skips)] if _skips(model) else []
    return [*words, *scaling]


def placeless(model: ModelSpec) -> bool:
    """True where attention has no positions of its own."""
    numerics = model.numerics or NumericsSpec()
    unsaid = bool(model.states) and model.stacked and numerics.rope_base is None
    return unsaid or numerics.rope_share == 0


def _skips(model: ModelSpec) -> bool:
    """True where Megatron leaves positions out of layers as the model does."""
    every = model.numerics.rope_skips if model.numerics else None
    return every is not None and model.all_layers % every == 0 and not model.stacked


def _scaling_words(model: ModelSpec, scaling: RopeScalingSpec | None) -> list[str]:
    """Arguments of positions that reach farther."""
    if scaling is None or scaling.kind == "other":
        return []
    if scaling.kind == "linear":
        return ["--rotary-seq-len-interpolation-factor", f"{scaling.factor:.0f}"]
    if scaling.kind == "llama3":
        return ["--use-rope-scaling", "--rope-scaling-factor", f"{scaling.factor:g}"]
    words = ["--rotary-scaling-factor", f"{scaling.factor:g}", "--mscale", f"{scaling.mscale:g}"]
    words += ["--mscale-all-dim", f"{scaling.mscale_all_dim:g}"]
    if model.latent is not None:
        return words
    words += ["--yarn-original-max-position-embeddings", str(scaling.own_length)]
    words += ["--yarn-beta-fast", f"{scaling.fast:g}", "--yarn-beta-slow", f"{scaling.slow:g}"]
    return [*words, *([] if scaling.rounded else ["--no-yarn-correction-range-round-to-int"])]


LLAMA_LENGTH, YARN_LENGTH = 8192, 4096
"""Tokens from which Megatron's scalings of Llama 3.1, and of YaRN with latent attention, reach farther."""


def router_words(model: ModelSpec, top_k: int) -> list[str]:
    """How the router scores experts, picks them and weighs what they make."""
    router = (model.numerics.router if model.numerics else None) or RouterSpec()
    words = ["--moe-router-score-function", "sigmoid"] if router.score == "sigmoid" else []
    if router.score == "softmax" and (top_k == 1 or not router.normalised):
        words += ["--moe-router-pre-softmax"]
    if router.bias and router.score == "sigmoid":
        words += ["--moe-router-enable-expert-bias"]
    if router.groups and router.top_groups:
        words += ["--moe-router-num-groups", str(router.groups)]
        words += ["--moe-router-group-topk", str(router.top_groups)]
    if router.scale != 1:
        words += ["--moe-router-topk-scaling-factor", f"{router.scale:g}"]
    return words


def unsaid(model: ModelSpec) -> list[str]:
    """Arguments of what the model file leaves to Megatron's own values."""
    numerics = model.numerics or NumericsSpec()
    names = ["--norm-epsilon"] if numerics.norm_epsilon is None else []
    if numerics.activation is None and model.stacked and model.states:
        names += ["--squared-relu"]
    if numerics.rope_base is None and not model.learned_positions and not placeless(model):
        names += ["--rotary-base", "--use-rope-scaling"]
    if numerics.router is None and model.experts is not None:
        names += [
            "--moe-router-score-function",
            "--moe-router-pre-softmax",
            "--moe-router-enable-expert-bias",
        ]
        names += ["--moe-router-num-groups", "--moe-router-group-topk", "--moe-router-topk-scaling-factor"]
        names += ["--moe-aux-loss-coeff"]
    return names


def numeric_differences(model: ModelSpec) -> Iterator[str]:
    """What of the model's numerics Megatron computes in another way, each in a sentence without a full stop."""
    numerics = model.numerics
    if numerics is None:
        return
    if model.experts is not None and numerics.router is not None:
        yield from _router_differences(numerics.router, model.experts.top_k)
    usual, has = ("SiLU", GATES) if model.gated_mlp else ("GELU", UNGATED)
    gelus = "gelu", "gelu-tanh"
    if _activated(model) not in has:
        own = {"other": "an activation that Megatron lacks", **dict.fromkeys(gelus, "GELU"), "relu": "ReLU"}
        own |= {"silu": "SiLU", "squared-relu": "squared ReLU", "quick-gelu": "quick GELU"}
        of = "gates of feed-forwards have" if model.gated_mlp else "feed-forwards have"
        yield f"{of} {usual} instead of {own.get(_activated(model), 'a clamped quick GELU')}"
    if numerics.others:
        yield f"it leaves out {', '.join(numerics.others)}"
    if model.learned_positions or placeless(model):
        return
    if numerics.rope_base is not None and numerics.rope_base % 1:
        yield f"the base of positions is whole, {numerics.rope_base:.0f} instead of {numerics.rope_base:g}"
    if numerics.rope_window_base is not None:
        yield "layers with a window have positions of the same base as all others"
    if numerics.rope_skips and not _skips(model):
        yield "every layer has positions"
    if numerics.rope_scaling is not None:
        yield from _scaling_differences(model, numerics.rope_scaling)


def _router_differences(router: RouterSpec, top_k: int) -> Iterator[str]:
    if router.score == "sigmoid" and not router.normalised and top_k > 1:
        yield "the weights of a token's experts add up to one"
    if router.score == "softmax" and router.bias:
        yield "the router has no bias that balances the load"


def _scaling_differences(model: ModelSpec, scaling: RopeScalingSpec) -> Iterator[str]:
    if scaling.kind == "other":
        yield "positions are not scaled"
    if scaling.kind == "linear" and scaling.factor % 1:
        yield f"positions are divided by {scaling.factor:.0f} instead of {scaling.factor:g}"
    if scaling.kind == "llama3":
        given = (scaling.own_length, scaling.low, scaling.high)
        if given != (LLAMA_LENGTH, 1, 4):
            yield f"positions are scaled as in Llama 3.1, from {LLAMA_LENGTH:,} tokens and factors 1 and 4"
    if scaling.kind == "yarn" and model.latent is not None:
        given = (scaling.own_length, scaling.fast, scaling.slow)
        if given != (YARN_LENGTH, 32, 1):
            yield f"positions are scaled from {YARN_LENGTH:,} tokens with YaRN's factors 32 and 1"
