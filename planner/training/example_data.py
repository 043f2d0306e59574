"""What the examples train on: the bytes of a text, by default of one that a small grammar writes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import torch

from planner.training.example_context import Packed, Sharing
from planner.training.example_model import Shape
from planner.training.hetplan_loss import IGNORED
from planner.training.hetplan_runtime import MicroBatch, RankPlan

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
    if shape.preference is not None:
        both = [pair(index, shape, text) for index in indices]
        return torch.stack([each for each, _ in both]), torch.stack([each for _, each in both])
    tokens = torch.stack([sequence(index, shape, text) for index in indices])
    if shape.labels is not None or shape.front:
        inputs = tokens[:, :-1].contiguous()
        outputs = shape.vocab if shape.labels is None else shape.labels
        labels = inputs % (outputs or shape.hidden)
        # A label of a sequence stands at its first token.
        labels[:, 1 if shape.pooled else labels.shape[1] :] = IGNORED
        return inputs, labels
    if shape.documents is not None:
        labels = tokens[:, 1:].clone()
        for row, index in zip(labels, indices, strict=True):
            ends = list(accumulate(lengths_of(index, shape)))
            # No document says how the next one begins, and padding says nothing.
            row[[end - 1 for end in ends]] = IGNORED
            row[ends[-1] :] = IGNORED
        return tokens[:, :-1].contiguous(), labels
    if shape.kind == "decoder":
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    inputs, labels = tokens[:, :-1].clone(), torch.full_like(tokens[:, :-1], IGNORED)
    labels[:, ::MASKED_EVERY] = inputs[:, ::MASKED_EVERY]
    inputs[:, ::MASKED_EVERY] = 0
    return inputs, labels


def lengths_of(index: int, shape: Shape) -> tuple[int, ...]:
    """Tokens of the documents of a sequence, the last of which may be cut; without packing it has one.

    Those of a pair are its halves.
    """
    if shape.preference is not None:
        return shape.sequence_length // 2, shape.sequence_length // 2
    documents, left, found = shape.documents, shape.sequence_length, list[int]()
    assert documents is not None
    source = random.Random(f"documents {index}")
    while left:
        mean, spread = documents.mean_length, documents.spread
        drawn = source.gammavariate(spread**-2, mean * spread**2) if spread else mean
        found.append(min(left, max(2, round(drawn))))
        left -= found[-1] if documents.packing else left
    return tuple(found)


def packs(shape: Shape) -> bool:
    """True when sequences have several documents, which are kept apart."""
    return shape.preference is not None or (shape.documents is not None and shape.documents.packing)


def dealt(
    plan: RankPlan, step: int, shape: Shape, text: Path | None, sharing: Sharing
) -> Iterator[tuple[MicroBatch, Batch]]:
    """The micro-batches of a step (collective where sequences have documents, of which every token counts alike)."""
    micros = list(plan.micro_batches(step))
    if shape.documents is None:
        for micro in micros:
            inputs, labels = sequences(micro.sequences, shape, text)
            if isinstance(sharing, Packed):
                sharing.lengths = tuple(lengths_of(index, shape) for index in micro.sequences)
            yield micro, (sharing.part(inputs), sharing.part(labels))
        return
    whole = (sequences(micro.sequences, shape, text) for micro in micros)
    batches = [(sharing.part(inputs), sharing.part(labels)) for inputs, labels in whole]
    weights = plan.token_weights([int((labels != IGNORED).sum()) for _, labels in batches])
    for micro, weight, batch in zip(micros, weights, batches, strict=True):
        if isinstance(sharing, Packed):
            sharing.lengths = tuple(lengths_of(index, shape) for index in micro.sequences)
        yield replace(micro, weight=weight, torch_weight=weight / plan.steps), batch


class StepBatches:
    """The micro-batches of a step in a pipeline, dealt ahead, and what every stage must know of the one it is at."""

    def __init__(self, plan: RankPlan, shape: Shape, text: Path | None, sharing: Sharing) -> None:
        self.plan, self.shape, self.text, self.sharing = plan, shape, text, sharing
        self.weights: tuple[float, ...] = ()
        """Factor of each one's loss."""
        self.reached = -1
        """The last one that the stage has begun."""
        self._lengths: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def deal(self, step: int) -> list[Batch]:
        """Inputs and labels of each (collective where sequences have documents)."""
        weights, lengths, batches = [], [], []
        for micro, batch in dealt(self.plan, step, self.shape, self.text, self.sharing):
            weights.append(micro.weight)
            batches.append(batch)
            lengths.append(self.sharing.lengths if isinstance(self.sharing, Packed) else ())
        self.weights, self._lengths, self.reached = tuple(weights), tuple(lengths), -1
        return batches

    def reach(self, micro_batch: int) -> None:
        """Call ahead of each forward."""
        self.reached = micro_batch
        if isinstance(self.sharing, Packed):
            self.sharing.lengths = self._lengths[micro_batch]


REJECTED = 1_000_003
"""From a sequence to that whose words are its rejected answer."""


def pair(index: int, shape: Shape, text: Path | None) -> tuple[torch.Tensor, torch.Tensor]:
    """A prompt with the answer that stands behind it and the same with another one, and the labels of both answers."""
    half = shape.sequence_length // 2
    prompt = max(1, half // 4)
    chosen, other = (sequence(each, shape, text)[:half] for each in (index, index + REJECTED))
    rejected = torch.cat((chosen[:prompt], other[prompt:]))
    labels = []
    for answer in (chosen, rejected):
        wanted = torch.full_like(answer, IGNORED)
        wanted[prompt - 1 : -1] = answer[prompt:]
        labels.append(wanted)
    return torch.cat((chosen, rejected)), torch.cat(labels)


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
