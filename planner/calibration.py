"""Constants of the cost model: what is measured, what is a datasheet's word, what is assumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Provenance = Literal["measured", "datasheet", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants with a physical meaning; defaults hold where nothing was measured."""

    matmul_efficiency: float = 0.70
    """Share of the dense peak that a large matrix product reaches."""
    memory_efficiency: float = 0.80
    """Share of the datasheet memory bandwidth that a streaming kernel reaches."""
    launch_seconds: float = 6e-6
    """Host time per kernel; a layer takes at least its kernels times this."""
    link_efficiency: float = 0.75
    """Share of the wire that a collective's ring carries."""
    overlap: float = 0.70
    """Share of gradient and parameter traffic that can run under computation."""
    runtime_bytes: float = 1.5 * 2**30
    """Device context, libraries and allocator slack of one process."""
    activation_factor: float = 1.10
    """Allocator rounding and temporaries over the activation formulas."""
    spread: float = 0.15
    """Relative standard error of a step time without measurements."""
    provenance: dict[str, Provenance] = field(default_factory=dict)
    """Provenance of each constant that is not assumed."""


DEFAULT = Calibration()
