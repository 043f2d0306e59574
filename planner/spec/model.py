"""What a user writes about a model and its training."""

from __future__ import annotations

from typing import Literal

from planner.spec.base import Frozen, Name, PositiveInt

Precision = Literal["bf16", "fp16", "fp32"]
Optimizer = Literal["adamw", "sgd"]
Attention = Literal["flash", "unfused"]


class TrainingSpec(Frozen):
    """One optimizer step: how much data, in which number format, by which optimizer."""

    sequence_length: PositiveInt
    """Tokens of a sequence."""
    global_batch: PositiveInt
    """Sequences of one optimizer step."""
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    attention: Attention = "flash"
    """flash keeps no attention matrix; unfused stores it."""


class ModelSpec(Frozen):
    """A dense transformer, by its shape."""

    name: Name
    kind: Literal["decoder", "encoder"] = "decoder"
    """decoder: causal attention; encoder: full attention (BERT)."""
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    """Key/value heads; equal to ``heads`` without grouped-query attention."""
    head_dim: PositiveInt
    ffn: PositiveInt
    """Width of the feed-forward layer."""
    gated_mlp: bool = False
    """True for SwiGLU-like layers with three matrices."""
    vocab: PositiveInt
    tied_embeddings: bool = True
    """True when the output layer reuses the input embedding."""
    learned_positions: int = 0
    """Rows of a learned position table; 0 for rotary or none."""
    training: TrainingSpec

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer layer: matrices, biases and two norms."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        matrices = 3 if self.gated_mlp else 2
        mlp = matrices * self.hidden * self.ffn
        biases = 0 if self.gated_mlp else self.head_dim * (self.heads + 2 * self.kv_heads) + 2 * self.hidden + self.ffn
        norms = (2 if self.gated_mlp else 4) * self.hidden
        return attention + mlp + biases + norms

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding with its learned positions."""
        return (self.vocab + self.learned_positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer when it is not tied."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.layers * self.layer_parameters + self.embedding_parameters + self.head_parameters
