"""What the examples train on: made-up tokens with a pattern to learn, or the bytes of a text."""

from __future__ import annotations

from pathlib import Path

import torch

from planner.runtime.example_model import IGNORED, Shape

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and labels, both [sequence][position]."""

MASKED_EVERY = 7
"""An encoder predicts every seventh token."""


def sequences(indices: tuple[int, ...], shape: Shape, text: Path | None) -> Batch:
    """Tokens and labels of some sequences; the same index is the same sequence on every rank."""
    tokens = torch.stack([sequence(index, shape, text) for index in indices])
    if shape.kind == "decoder":
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    inputs, labels = tokens[:, :-1].clone(), torch.full_like(tokens[:, :-1], IGNORED)
    labels[:, ::MASKED_EVERY] = inputs[:, ::MASKED_EVERY]
    inputs[:, ::MASKED_EVERY] = 0
    return inputs, labels


def sequence(index: int, shape: Shape, text: Path | None) -> torch.Tensor:
    """One sequence and the token after it: bytes of the text, or a made-up run with a pattern to learn."""
    length = shape.sequence_length + 1
    if text is None:
        generator = torch.Generator().manual_seed(index)
        start, stride = torch.randint(shape.vocab, (2,), generator=generator).tolist()
        return (start + stride % 5 * torch.arange(length)) % shape.vocab
    whole = max(1, (text.stat().st_size - 1) // shape.sequence_length)
    with text.open("rb") as file:
        file.seek(index % whole * shape.sequence_length)
        read = file.read(length)
    return torch.tensor(list(read.ljust(length, b"\0"))) % shape.vocab
