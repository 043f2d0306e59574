"""An encoder ahead of a decoder whose layers attend to its output.

The example has no pairs of inputs and outputs: what it encodes it makes of the tokens of each sequence, read
backwards, so that every plan sees the same. For data of your own replace ``inputs_of`` and ``heard`` of
``example_model.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn

from planner.training.example_model import (
    EncoderShape,
    Front,
    Layer,
    Shape,
    inputs_of,
    kept_on_device,
    norm_of,
    table,
)


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
        assert shape.encoder is not None
        self.shape = encoder = shape.encoder
        own = layer_shape(shape, encoder)
        self.width = own.hidden
        self.weight = table(encoder.vocab, own.hidden)
        self.positions = table(encoder.learned_positions, own.hidden)
        self.front = Front(encoder.front, own.hidden) if encoder.front else None
        self.norm_first = norm_of(own, own.hidden, encoder.embedding_norm)
        self.norm_last = norm_of(own, own.hidden, encoder.final_norm)
        for parameter in self.parameters():
            parameter.requires_grad_(not shape.freezes("embedding"))
        self.layers = nn.ModuleList()
        for kind in own.kinds:
            layer = Layer(own, recompute, checkpoint, kind=kind)
            place(layer)
            self.layers.append(layer)

    def forward(
        self, tokens: torch.Tensor, shared: Callable[[torch.Tensor], torch.Tensor], kind: torch.dtype
    ) -> torch.Tensor:
        """``shared`` looks tokens up in the decoder's table, where the encoder has none of its own."""
        inputs = inputs_of(tokens, self.shape.sequence_length)
        if self.front is not None:
            hidden = self.front(inputs, kind)
        else:
            hidden = shared(inputs) if self.weight is None else functional.embedding(inputs, self.weight)
        if self.positions is not None:
            hidden = hidden + self.positions[: hidden.shape[1]].to(hidden.dtype)
        hidden = self.norm_first(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm_last(hidden)


def layer_shape(shape: Shape, encoder: EncoderShape) -> Shape:
    """That of a model of the encoder's layers alone."""
    width, heads = encoder.hidden or shape.hidden, encoder.heads or shape.heads
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
        "feed_forward": None if encoder.block else "dense",
        "block": encoder.block,
        "value_dim": None,
        **dict.fromkeys(("encoder", "state", "tower")),
        **dict.fromkeys(("ahead", "behind"), ()),
        "dense_layers": 0,
    }
    return replace(shape, **changes)
