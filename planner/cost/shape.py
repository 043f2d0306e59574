"""What a stage holds, without the devices that hold it."""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan.values import ON_DEVICE, Offload
from planner.runtimes.capabilities import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A stage without its devices: what it holds and where it stands in the pipeline."""

    chunks: tuple[int, ...]
    """Layers of each chunk, [chunk]; one chunk without interleaving."""
    stage: int
    depth: int
    micro_batches: int
    zero: int
    recompute: Recompute
    sequence_parallel: bool
    offload: Offload = ON_DEVICE

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
        return self.stage == self.depth - 1


def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk of a stage, [chunk]: as even as possible, larger ones first."""
    small, larger = divmod(layers, chunks)
    return (small + 1,) * larger + (small,) * (chunks - larger)
