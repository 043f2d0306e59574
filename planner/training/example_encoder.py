"""An encoder ahead of a decoder whose layers attend to its output.

The example has no pairs of inputs and outputs: what it encodes it makes of the tokens of each sequence, read
backwards, so that every plan sees the same. For data of your own replace ``inputs_of`` and ``heard``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn

from planner.training.example_model import Layer, Linear, Shape, kept_on_device, norm_of, table


@dataclass(frozen=True)
class FrontShape:
    """A convolution, as a product with what stands under its kernel."""

    inputs: int
    outputs: int
    tokens: int
    bias: bool


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder, as under ``encoder`` in ``model.json``; what is null is as in the decoder."""

    layers: int
    sequence_length: int
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    ffn: int | None
    gated_mlp: bool | None
    block: tuple[Any, ...] | None
    window: int | None
    """Sliding windows, which the example does not have."""
    vocab: int
    learned_positions: int
    relative_positions: int
    """Biases by distance, which the example does not have: it rotates queries and keys in their place."""
    embedding_norm: bool
    final_norm: bool
    front: tuple[FrontShape, ...]
    other_parameters: int
    """Parameters that the example leaves out."""


def encoder_of(shape: Shape) -> EncoderShape:
    """The encoder of a model that has one."""
    front = tuple(FrontShape(**each) for each in shape.encoder["front"])
    return EncoderShape(**{**shape.encoder, "front": front})


class Encoder(nn.Module):  # type: ignore[misc]
    """What it makes of an input of each sequence, [sequence][position][width]."""

    def __init__(
        self,
        shape: Shape,
        recompute: str = "none",
        place: Callable[[nn.Module], None] = lambda _: None,
        checkpoint: Callable[..., Any] = kept_on_device,
    ) -> None:
        """``place`` is called with each layer as soon as it is there."""
        super().__init__()
        self.shape = encoder = encoder_of(shape)
        own = layer_shape(shape, encoder)
        self.width = own.hidden
        self.weight = table(encoder.vocab, own.hidden)
        self.positions = table(encoder.learned_positions, own.hidden)
        self.front = nn.ModuleList(
            Linear(each.inputs, each.outputs, bias=each.bias) for each in encoder.front
        )
        self.norm_first = norm_of(own, own.hidden, encoder.embedding_norm)
        self.norm_last = norm_of(own, own.hidden, encoder.final_norm)
        self.layers = nn.ModuleList()
        for kind in own.kinds:
            layer = Layer(own, recompute, checkpoint, kind=kind)
            place(layer)
            self.layers.append(layer)

    def forward(self, tokens: torch.Tensor, shared: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """``shared`` is the decoder's table of tokens, where the encoder has none of its own."""
        inputs = inputs_of(tokens, self.shape.sequence_length)
        if len(self.front):
            hidden = self._heard(inputs, kind)
        else:
            hidden = functional.embedding(inputs, shared if self.weight is None else self.weight)
        if self.positions is not None:
            hidden = hidden + self.positions[: hidden.shape[1]].to(hidden.dtype)
        hidden = self.norm_first(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm_last(hidden)

    def _heard(self, inputs: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        hidden = heard(inputs, self.shape.front[0]).to(kind)
        for number, (sizes, product) in enumerate(zip(self.shape.front, self.front, strict=True)):
            hidden = product(under_kernel(hidden, sizes) if number else hidden)
            hidden = functional.gelu(hidden)
        return hidden if hidden.shape[-1] == self.width else functional.glu(hidden)


def inputs_of(tokens: torch.Tensor, length: int) -> torch.Tensor:
    """Tokens that are encoded for each sequence."""
    return tokens.flip(1).repeat(1, -(-length // tokens.shape[1]))[:, :length]


def heard(inputs: torch.Tensor, front: FrontShape) -> torch.Tensor:
    """What stands under the first kernel at each of its places."""
    seeds = inputs_of(inputs, front.tokens) + torch.arange(front.tokens, device=inputs.device)
    width = torch.arange(1, front.inputs + 1, device=inputs.device)
    return torch.sin(seeds.unsqueeze(-1) * width.float())


def under_kernel(hidden: torch.Tensor, front: FrontShape) -> torch.Tensor:
    """What stands under a later kernel: neighbours side by side; channels that are twice too many are gated."""
    if front.inputs % hidden.shape[-1]:
        hidden = functional.glu(hidden)
    kernel = front.inputs // hidden.shape[-1]
    centres = torch.arange(front.tokens, device=hidden.device) * hidden.shape[1] // front.tokens
    offsets = torch.arange(kernel, device=hidden.device) - kernel // 2
    places = (centres.unsqueeze(1) + offsets).clamp(0, hidden.shape[1] - 1)
    return hidden[:, places].flatten(2)


def layer_shape(shape: Shape, encoder: EncoderShape) -> Shape:
    """That of a model of the encoder's layers alone."""
    width, heads = encoder.hidden or shape.hidden, encoder.heads or shape.heads
    block = tuple(
        ("attention", run["feed_forward"] or ("experts" if shape.experts else "dense"))
        for run in encoder.block or ()
        for _ in range(run["layers"])
    )
    changes: dict[str, Any] = {
        "kind": "encoder",
        "layers": encoder.layers,
        "hidden": width,
        "heads": heads,
        "kv_heads": encoder.kv_heads or (heads if encoder.heads else shape.kv_heads),
        "head_dim": encoder.head_dim or (width // heads if encoder.heads else shape.head_dim),
        "ffn": encoder.ffn or shape.ffn,
        "gated_mlp": shape.gated_mlp if encoder.gated_mlp is None else encoder.gated_mlp,
        "learned_positions": encoder.learned_positions,
        "mixer": "attention",
        "feed_forward": None if block else "dense",
        "block": block,
        **dict.fromkeys(("encoder", "state", "tower")),
        **dict.fromkeys(("ahead", "behind"), ()),
        "dense_layers": 0,
    }
    return replace(shape, **changes)
