"""How the ranks of a replica divide the example: its layers by DeepSpeed's AutoTP, the vocabulary by what is here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from deepspeed.module_inject.layers import ColumnParallel, RowParallel
from deepspeed.sequence.cross_entropy import vocab_parallel_cross_entropy
from deepspeed.utils import groups
from torch import nn

from planner.training.example_context import Sharing
from planner.training.example_model import Embedding, Shape, objective
from planner.training.hetplan_loss import IGNORED, chunked_losses

COLUMNS, ROWS = ("query", "key_value", "gate", "up", "project"), ("output", "down")
"""Products whose outputs are dealt, and those whose inputs are: one sum after attention, one after the feed-forward."""

NORMS = ("norm_query", "norm_key")
"""Whole on every rank, but they see its own heads: their gradients are added up."""


def join(ways: int) -> None:
    """Make the groups of the ranks that share a replica, as DeepSpeed's engine would a little later."""
    groups._init_tp_mesh_device(tensor_model_parallel_size=ways)


def replicas() -> Any:
    """The ranks that hold the same part of the model, one of each replica; ZeRO shards over them."""
    return groups.get_data_parallel_group()


def with_layers(config: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """The configuration with the names of the example's modules, which AutoTP goes by.

    Models of Hugging Face bring theirs, so that the folder's configuration has none.
    """

    def rule(patterns: list[str], kind: str, **more: Any) -> dict[str, Any]:
        return {"patterns": patterns, "partition_type": kind, **more}

    def beside(names: tuple[str, ...], half: str) -> list[str]:
        return [rf".*\.{name}\.adapters\.\w+\.{half}\.weight$" for name in names]

    def layers(names: tuple[str, ...]) -> list[str]:
        return [rf"(?!.*\.adapters\.).*\.{name}(\.base)?\.weight$" for name in names]

    rules = [
        # The other half of an adapter is whole on every rank: all that it takes and all gradients that it gets are.
        rule(layers(COLUMNS) + beside(COLUMNS, "up"), "column"),
        rule(layers(ROWS) + beside(ROWS, "down"), "row"),
        *([] if shape.freezes("norms") else [rule(layers(NORMS), "skip", grad_allreduce=True)]),
    ]
    own = {"use_default_specs": False, "layer_specs": rules}
    return {**config, "tensor_parallel": {**config["tensor_parallel"], "partition_config": own}}


class SplitEmbedding(Embedding):
    """An embedding of which each rank of a replica has some rows of the vocabulary, and makes the logits of these."""

    def __init__(self, shape: Shape, sharing: Sharing) -> None:
        super().__init__(shape, sharing)
        self.first, self.end = part_of(shape.vocab)
        # All ranks have drawn the whole table, of which each keeps its part.
        self.weight = self._kept(self.weight)
        self.bias = None if self.bias is None else self._kept(self.bias)

    def _kept(self, whole: Any) -> Any:
        part = whole.detach()[self.first : self.end].clone()
        kept = nn.Parameter(part, requires_grad=whole.requires_grad)
        kept.tensor_model_parallel = True  # each rank's part counts in the norm of the gradients
        return kept

    def _looked_up(self, tokens: torch.Tensor) -> torch.Tensor:
        mine = (tokens >= self.first) & (tokens < self.end)
        rows = functional.embedding((tokens - self.first) * mine, self.weight) * mine.unsqueeze(-1)
        return RowParallel.apply(groups.get_tensor_model_parallel_group(), rows, False)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = ColumnParallel.apply(groups.get_tensor_model_parallel_group(), hidden)
        return functional.linear(hidden, self.weight, self.bias)


def part_of(vocab: int) -> tuple[int, int]:
    """This rank's rows of the vocabulary; with a rest the first ranks have one more, as AutoTP deals them."""
    ways, place = groups.get_tensor_model_parallel_world_size(), groups.get_tensor_model_parallel_rank()
    size, rest = divmod(vocab, ways)
    first = place * size + min(place, rest)
    return first, first + size + (place < rest)


def split_objective(shape: Shape) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    """What is minimised, of logits that no rank has all of and the labels."""
    if shape.cross_entropy == "plain":
        return partial(split_loss, vocab=shape.vocab)
    first, group = part_of(shape.vocab)[0], groups.get_tensor_model_parallel_group()
    return objective(shape, partial(chunked_losses, first=first, group=group))


def split_loss(logits: torch.Tensor, labels: torch.Tensor, vocab: int) -> torch.Tensor:
    """Mean cross-entropy over the tokens that have a label, of logits that no rank has all of."""
    first, end = part_of(vocab)
    return vocab_parallel_cross_entropy(
        logits,
        labels,
        tp_group=groups.get_tensor_model_parallel_group(),
        vocab_start_index=first,
        vocab_end_index=end,
        global_vocab_size=vocab,
        ignore_index=IGNORED,
    )
