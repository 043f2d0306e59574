"""What the examples train on: the bytes of a text, by default of one that a small grammar writes."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

import torch

from planner.training.example_model import IGNORED, Shape

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and labels, both [sequence][position]."""

BYTES = 256
"""What a model of images or sound makes its inputs of in place of tokens."""
MASKED_EVERY = 7
"""An encoder predicts every seventh token."""
ADJECTIVES = ("brown", "cold", "heavy", "narrow", "old", "quiet", "round", "small")
NOUNS = (
    "baker",
    "boat",
    "bridge",
    "child",
    "farmer",
    "garden",
    "horse",
    "river",
    "sailor",
    "stone",
    "teacher",
)
VERBS = ("carries", "finds", "follows", "hears", "mends", "paints", "passes", "remembers")
PLACES = ("at the gate", "before noon", "behind the mill", "in the rain", "near the shore", "on the hill")


def sequences(indices: tuple[int, ...], shape: Shape, text: Path | None) -> Batch:
    """Tokens and labels of some sequences; the same index is the same sequence on every rank."""
    tokens = torch.stack([sequence(index, shape, text) for index in indices])
    if shape.labels is not None or shape.front:
        inputs = tokens[:, :-1].contiguous()
        outputs = shape.vocab if shape.labels is None else shape.labels
        labels = inputs % (outputs or shape.hidden)
        # A label of a sequence stands at its first token.
        labels[:, 1 if shape.pooled else labels.shape[1] :] = IGNORED
        return inputs, labels
    if shape.kind == "decoder":
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    inputs, labels = tokens[:, :-1].clone(), torch.full_like(tokens[:, :-1], IGNORED)
    labels[:, ::MASKED_EVERY] = inputs[:, ::MASKED_EVERY]
    inputs[:, ::MASKED_EVERY] = 0
    return inputs, labels


def sequence(index: int, shape: Shape, text: Path | None) -> torch.Tensor:
    """One sequence and the token after it: bytes of the file, or without one of a written text."""
    length = shape.sequence_length + 1
    if text is None:
        read = written(index, length)
    else:
        whole = max(1, (text.stat().st_size - 1) // shape.sequence_length)
        with text.open("rb") as file:
            file.seek(index % whole * shape.sequence_length)
            read = file.read(length)
    return torch.tensor(list(read.ljust(length, b"\0"))) % (BYTES if shape.front else shape.vocab)


@lru_cache(maxsize=1024)
def written(index: int, length: int) -> bytes:
    """A text of sentences that the index alone decides, so that every node writes the same."""
    source = random.Random(index)
    text = ""
    while len(text) < length:
        text += sentence(source)
    return text[:length].encode("ascii")


def sentence(source: random.Random) -> str:
    """One sentence, e.g. ``The old sailor mends a small boat near the shore.``"""
    subject, thing = (f"{source.choice(ADJECTIVES)} {source.choice(NOUNS)}" for _ in range(2))
    article = source.choice(("a", "the")) if thing[0] not in "aeiou" else source.choice(("an", "the"))
    return f"The {subject} {source.choice(VERBS)} {article} {thing} {source.choice(PLACES)}. "
