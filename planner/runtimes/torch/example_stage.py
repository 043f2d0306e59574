"""The layers of a pipeline stage, or the whole model, with weights that do not depend on the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from planner.training.hetplan_runtime import RankPlan
from planner.training.example_adapters import without_adapters
from planner.training.example_beside import Beside, BesideShape
from planner.training.example_context import ALONE, Sharing
from planner.training.example_model import Embedding, Finish, Head, Layer, Shape
from planner.training.example_encoder import Encoder
from planner.training.example_tower import Tower, TowerShape


class ModelPart(nn.Module):  # type: ignore[misc]
    """What one chunk of layers holds: the embedding first, then layers, the final norm and the output layer last."""

    def __init__(
        self,
        shape: Shape,
        plan: RankPlan,
        seed: int,
        place: Callable[[nn.Module], nn.Module] = lambda module: module,
        sharing: Sharing = ALONE,
        number: int | None = None,
        embedding: Any = None,
    ) -> None:
        """``number`` is that of a chunk in ``plan.passed``, else the rank's first one, which may be all that it has.
        ``embedding`` is that of the first chunk, where the last one on the same rank is tied to it.

        ``place`` gets each module as soon as it is there and gives what stands for it on this rank, so that a large
        stage is never whole at once.
        """
        super().__init__()
        number = plan.stage if number is None else number
        mine = plan.passed[number]
        self.first, self.last = number == 0, number == len(plan.passed) - 1
        self.embedding: Any = None
        self.finish: Any = None
        self.head: Any = None
        self.layers = nn.ModuleDict()
        if self.last and shape.tied_embeddings and embedding is not None:
            self.embedding = embedding
        elif self.first or (self.last and shape.tied_embeddings):
            self.embedding = _seeded(seed, lambda: Embedding(shape, sharing))
            self._keep_used(plan)
            self.embedding = place(self.embedding)
        self.tower: Any = None
        if self.first and shape.tower is not None:
            tower = TowerShape(**{**shape.tower, "projector": tuple(shape.tower["projector"])})
            # A seed of its own: those that follow belong to the layers.
            self.tower = _seeded(seed - 1, lambda: Tower(shape, tower, mine.recompute, place))
            place(self.tower)
        self.beside: Any = None
        if self.first and shape.beside:
            products = tuple(BesideShape(**each) for each in shape.beside)
            self.beside = _seeded(seed - 2, lambda: Beside(products, shape.freezes("embedding")))
            place(self.beside)
        self.shape, self.encoder = shape, None
        if self.first and shape.encoder is not None:
            self.encoder = _seeded(seed - 1, lambda: Encoder(shape, mine.recompute, place))
            place(self.encoder)
        # The plan counts blocks, without the layers that stand with the embedding and with the head.
        kinds = shape.kinds
        for index in shape.held(mine.first_layer, mine.end_layer):
            made = partial(Layer, shape, mine.recompute, sharing=sharing, kind=kinds[index])
            self.layers[str(index)] = place(_seeded(seed + 1 + index, made))
        if self.last:
            self.finish = place(_seeded(seed + 1 + len(kinds), lambda: Finish(shape)))
        if self.last and not shape.tied_embeddings:
            self.head = place(_seeded(seed + 2 + len(kinds), lambda: Head(shape)))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.first:
            tokens, hidden = hidden, self.embedding(hidden)
            hidden = hidden if self.tower is None else self.tower(tokens, hidden)
            hidden = hidden if self.beside is None else self.beside(tokens, hidden)
        encoded = None
        if self.encoder is not None:
            encoded = self.encoder(tokens, partial(self.embedding, alone=True), hidden.dtype)
        elif self.shape.encoder is not None:
            encoded, hidden = self._apart(hidden)
        for layer in self.layers.values():
            hidden = layer(hidden, encoded)
        if self.finish is None:
            # An encoder's output goes along with the decoder's.
            return hidden if encoded is None else torch.cat((encoded.flatten(1), hidden.flatten(1)), dim=1)
        hidden = self.finish(hidden)
        return self.embedding(hidden) if self.head is None else self.head(hidden)

    def _apart(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """An encoder's output and the decoder's, as the stage ahead has joined them."""
        (length, width), own = self.shape.encoded, self.shape.hidden
        encoded, hidden = joined.split((length * width, joined.shape[1] - length * width), dim=1)
        return encoded.unflatten(1, (length, width)), hidden.unflatten(1, (-1, own))

    def _keep_used(self, plan: RankPlan) -> None:
        """Of a tied embedding on two stages, the first looks tokens up and the last makes logits."""
        unused = () if plan.makes_losses else ("narrow", "bias")
        for name in unused if self.first else ("positions", "types", "norm", "widen"):
            setattr(self.embedding, name, None)


def parts_of(
    shape: Shape,
    plan: RankPlan,
    seed: int,
    place: Callable[[nn.Module], nn.Module],
    sharing: Sharing,
) -> list[ModelPart]:
    """A rank's chunks; where it has the first and the last, these have one embedding if the output layer is tied."""
    parts: list[ModelPart] = []
    for number in plan.own:
        embedding = parts[0].embedding if parts else None
        parts.append(ModelPart(shape, plan, seed, place, sharing, number, embedding))
    return parts


class WithReference(nn.Module):  # type: ignore[misc]
    """A part of the model beside what the same part made before it was trained: it without adapters, or a copy."""

    def __init__(self, part: nn.Module, copy: nn.Module | None) -> None:
        super().__init__()
        self.part = part
        # No parameters of this module's: what they are for is done.
        self._before = (part if copy is None else copy,)

    def forward(
        self, hidden: torch.Tensor, known: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of both; ``known`` is what the copy's part ahead made, where there is one."""
        with torch.no_grad(), without_adapters(self.part):
            known = self._before[0](hidden if known is None else known)
        return self.part(hidden), known


class Chunks(nn.Module):  # type: ignore[misc]
    """What a rank holds of several chunks, by the names that one would have: for optimizers and checkpoints."""

    def __init__(self, parts: Sequence[ModelPart]) -> None:
        super().__init__()
        for name in ("embedding", "tower", "beside", "encoder", "finish", "head"):
            setattr(
                self, name, next((each for part in parts if (each := getattr(part, name)) is not None), None)
            )
        self.layers = nn.ModuleDict({name: layer for part in parts for name, layer in part.layers.items()})


def _seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """A module on the host: devices of different types draw different numbers from the same seed."""
    torch.manual_seed(seed)
    return make()
