"""What a stage holds, independently of its devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from planner.capabilities import Recompute, Schedule
from planner.cost.schedules import chunk_at, divides, is_v_shaped
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.values import (
    EXACT,
    ON_DEVICE,
    PLAIN_ZERO,
    WHOLE_EXPERTS,
    Folding,
    Offload,
    Plan,
    Sync,
    ZeroPlus,
)

Whole = NDArray[np.int64]
"""Whole numbers of many cases at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A stage without its devices: what it holds and where it stands in the pipeline."""

    chunks: tuple[int, ...]
    """Layers of each chunk, [chunk]; one chunk without interleaving, two where the pipeline is V-shaped."""
    stage: int
    depth: int
    micro_batches: int
    zero: int
    recompute: Recompute
    sequence_parallel: bool
    offload: Offload = ON_DEVICE
    folding: Folding = WHOLE_EXPERTS
    """How the experts of a layer are divided."""
    zero_plus: ZeroPlus = PLAIN_ZERO
    """What ZeRO 3 sends less of."""
    schedule: Schedule = "1f1b"
    lone: bool = False
    """True where a step has one micro-batch, whose gradients may be reduced as they come."""
    sync: Sync = field(default=EXACT, compare=False)
    """What islands exchange; seconds and bytes of a stage are the same but for it, and keys are hashed often."""

    @property
    def layers(self) -> int:
        """Layers of all chunks."""
        return sum(self.chunks)

    @property
    def first(self) -> bool:
        """True when the embedding is here."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """True when the head is here."""
        return self.stage == (0 if is_v_shaped(self.schedule) else self.depth - 1)

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for stages whose micro-batches and end take as long: only the ends of a pipeline tell them apart."""
        return self.chunks, *self.likeness_of_layers

    @property
    def likeness_of_layers(self) -> tuple[object, ...]:
        """The same of stages with as many layers in each chunk; what divides backwards goes by those of even stages."""
        even = self.depth if divides(self.schedule) else 0
        held = self.first, self.last, self.recompute, self.schedule, even
        return *held, self.zero, self.zero_plus, self.sequence_parallel, self.offload, self.folding


def shape_of(plan: Plan, index: int) -> Shape:
    """The shape of one stage of a plan."""
    return shapes_of(plan)[index]


def shapes_of(plan: Plan) -> list[Shape]:
    """The shapes of all stages of a plan."""
    depth, micro_batches, folding = plan.pp, plan.micro_batches, plan.folding
    return [
        Shape(
            chunks=chunk_layers(stage.layers, plan.interleave, plan.schedule),
            stage=index,
            depth=depth,
            micro_batches=micro_batches,
            zero=plan.zero,
            recompute=stage.recompute,
            sequence_parallel=plan.sequence_parallel,
            offload=plan.offload,
            folding=folding,
            zero_plus=plan.zero_plus,
            schedule=plan.schedule,
            # Until it is known whose gradients count they stay whole.
            lone=depth == micro_batches == 1 and not plan.backup,
            sync=plan.sync,
        )
        for index, stage in enumerate(plan.stages)
    ]


def whole_model(
    model: ModelSpec,
    zero: int,
    recompute: Recompute,
    offload: Offload = ON_DEVICE,
    sync: Sync = EXACT,
    zero_plus: ZeroPlus = PLAIN_ZERO,
) -> Shape:
    """The only stage of a plan without pipeline and tensor parallelism."""
    return Shape(
        chunks=(model.layers,),
        stage=0,
        depth=1,
        micro_batches=1,
        zero=zero,
        recompute=recompute,
        sequence_parallel=False,
        offload=offload,
        zero_plus=zero_plus,
        sync=sync,
    )


def chunk_layers(layers: int | Whole, chunks: int, schedule: Schedule = "1f1b") -> tuple[int, ...]:
    """Layers of each chunk of a stage, [chunk]: as even as possible, larger ones first; last in a V.

    Of an array of stages an array each. Of the first chunk of a V-shaped pipeline more micro-batches are alive.
    """
    if chunks == 1:
        return (cast("int", layers),)
    sizes = tuple(cast("int", (layers + chunks - 1 - index) // chunks) for index in range(chunks))
    return sizes[::-1] if is_v_shaped(schedule) else sizes


def chunk_spans(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """(stage, first layer, end) of all chunks in the order in which a micro-batch passes them."""
    sizes = [chunk_layers(stage.layers, plan.interleave, plan.schedule) for stage in plan.stages]
    first = 0
    for position in range(plan.interleave * plan.pp):
        stage, chunk = chunk_at(position, plan.pp, plan.schedule)
        yield stage, first, first + sizes[stage][chunk]
        first += sizes[stage][chunk]
