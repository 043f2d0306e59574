"""The example in DeepSpeed's pipeline: its modules, and what its engine tells none of its stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, TiedLayerSpec

from planner.training.example_adapters import without_adapters
from planner.training.example_context import ALONE, Packed, Sharing
from planner.training.example_data import Batch, StepBatches, packs
from planner.training.example_model import Embedding, Finish, Head, Layer, Shape, objective
from planner.training.hetplan_runtime import RankPlan


class Steps:
    """The micro-batches of each step and their loss, on a stage that takes them one after the other."""

    def __init__(self, plan: RankPlan, shape: Shape, text: Path | None) -> None:
        self.sharing: Sharing = Packed() if packs(shape) else ALONE
        self.batches = StepBatches(plan, shape, text, self.sharing)
        self.minimised = objective(shape)

    def begin(self, step: int) -> Iterator[Batch]:
        """What the stages that read data get (collective where sequences have documents)."""
        return iter(self.batches.deal(step))

    def reach(self, *_: Any) -> None:
        """Call ahead of each forward, as a hook of the model."""
        self.batches.reach(self.batches.reached + 1)

    def loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """That of the micro-batch whose forward is done."""
        made = apart(outputs) if isinstance(outputs, tuple) else outputs
        return self.minimised(made, labels) * self.batches.weights[self.batches.reached]


def modules_of(shape: Shape, recompute: str, sharing: Sharing) -> list[Any]:
    """The model as DeepSpeed's pipeline takes it: embedding, layers, finish, head."""
    kinds: Any = Embedding, Layer, Finish, Head
    embedding, layer, finish, head = kinds if shape.preference is None else map(beside, kinds)
    if shape.tied_embeddings:
        first = TiedLayerSpec("embedding", embedding, shape, sharing)
        last = TiedLayerSpec("embedding", embedding, shape, sharing)
    else:
        first, last = LayerSpec(embedding, shape, sharing), LayerSpec(head, shape)
    layers = [LayerSpec(layer, shape, recompute, sharing=sharing, kind=kind) for kind in shape.kinds]
    return [first, *layers, LayerSpec(finish, shape), last]


def beside(kind: type) -> type:
    """A module of the example that passes on what it made before it was trained beside what it makes now.

    That is what it makes without its adapters, or else a copy of it. It goes as bytes: of all that is a floating-point
    number the engine sends a gradient back.
    """

    class Beside(kind):  # type: ignore[misc]
        def __init__(self, shape: Shape, *given: Any, **named: Any) -> None:
            super().__init__(shape, *given, **named)
            self.adapted, self.made = shape.lora is not None, (shape.untrained, given, named)
            self.before: tuple[Any, ...] = ()
            """The copy, which is no part of this module: neither trained nor stored."""

        def remember(self) -> None:
            """Copy the weights as they are now, where they will change."""
            if self.adapted:
                return
            shape, given, named = self.made
            like = next(self.parameters(), torch.empty(0))
            copy = kind(shape, *given, **named)
            copy.load_state_dict(self.state_dict())
            self.before = (copy.to(like.device, like.dtype),)

        def forward(self, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            hidden, known = apart(inputs) if isinstance(inputs, tuple) else (inputs, inputs)
            with torch.no_grad(), without_adapters(self):
                made = super().forward(known) if self.adapted else self.before[0](known)
            return super().forward(hidden), made.contiguous().view(torch.uint8)

    return Beside


def apart(both: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model has made and what its copy has."""
    made, known = both
    return made, known.view(made.dtype)
