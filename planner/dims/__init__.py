"""The dimensions of a plan, a module each; a new one is added to the list here."""

from __future__ import annotations

from planner.dims.context import ContextParallelism
from planner.dims.data import Data
from planner.dims.dimension import Dimension
from planner.dims.expert import ExpertParallelism
from planner.dims.grid import TensorGrid
from planner.dims.offloading import OffloadDimension
from planner.dims.pipeline import Interleave, PipelineParallelism, StageNodes, ZeroBubble
from planner.dims.recompute import Recomputation
from planner.dims.sharding import Sharding
from planner.dims.sync import Synchronisation
from planner.dims.tensor import SequenceParallelism, TensorParallelism
from planner.dims.trained import Documents, FrozenParts
from planner.dims.zero_plus import ZeroPlusPlus

DIMENSIONS: tuple[Dimension, ...] = (
    Sharding(),
    ZeroPlusPlus(),
    PipelineParallelism(),
    StageNodes(),
    TensorParallelism(),
    TensorGrid(),
    ContextParallelism(),
    ExpertParallelism(),
    Data(),
    Recomputation(),
    Interleave(),
    ZeroBubble(),
    SequenceParallelism(),
    OffloadDimension(),
    Synchronisation(),
    FrozenParts(),
    Documents(),
)
"""In the order in which a plan's decisions are shown."""
