"""Failures of a training run: checkpoints, their best interval, goodput and spare nodes.

A run that fails goes back to its last checkpoint. With failures that come at random, a mean time M between them,
checkpoints that take D and are written every T of work, and restarts that take R, the share of the time that is work is
T / (M exp(R / M) (exp((T + D) / M) - 1)) (Daly 2006, doi:10.1016/j.future.2004.11.016, equation 20; failures during
checkpoints and restarts are counted). It is largest at about T = sqrt(2 D M) (Young 1974, doi:10.1145/361147.361115),
for which Daly's equation 37 has a better approximation.

Nodes that are away for a time on average, however it varies, are as many as a Poisson variable says whose mean is
the rate of failures times that time (Palm's theorem; Feeney and Sherbrooke 1966, doi:10.1287/mnsc.12.5.391).
"""

from __future__ import annotations

import math
from dataclasses import replace

from planner.cost.compute import ELEMENT_BYTES
from planner.frozen import dataclass
from planner.model.spec import ModelSpec

MONTH_SECONDS = 30 * 86400.0
"""A month of failures per GPU-month."""
RISK = 0.01
"""Share of the time in which more nodes may be away than there are spares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """How often a run stops, and what each stop takes."""

    per_gpu_month: float = 0.0
    """Stops for each device in 30 days; 0.014 in the run of Llama 3 405B (419 on 16,384 GPUs in 54 days,
    arXiv:2407.21783, section 3.3.4)."""
    checkpoint_seconds: float = 60.0
    """Time that a checkpoint keeps the devices from their work (assumed)."""
    restart_seconds: float = 900.0
    """From a stop to work again; 15 minutes as in MegaScale (arXiv:2402.15627, section 6.3)."""
    storage_bytes_per_second: float | None = None
    """What all nodes together write; None where checkpoints take a time that was said."""
    repair_seconds: float | None = None
    """For how long a node that fails is away; None where nobody said, and no spares are counted."""

    def of(self, model: ModelSpec) -> Interruptions:
        """The same with the time that a checkpoint of the model takes on the storage, where that is known."""
        if self.storage_bytes_per_second is None:
            return self
        return replace(self, checkpoint_seconds=checkpoint_bytes(model) / self.storage_bytes_per_second)

    def per_second(self, devices: int) -> float:
        """Stops of a run on so many devices."""
        return self.per_gpu_month * devices / MONTH_SECONDS

    def goodput(self, devices: int) -> float:
        """Share of the time that is work, with checkpoints at the best interval; 1 without stops."""
        return goodput(self.per_second(devices), self.checkpoint_seconds, self.restart_seconds)

    def interval(self, devices: int) -> float | None:
        """Work between two checkpoints that costs least, seconds; None without stops."""
        rate = self.per_second(devices)
        return checkpoint_interval(rate, self.checkpoint_seconds) if rate else None

    def spares(self, devices: int) -> int | None:
        """Spare nodes for a run on so many devices; None without stops, or without a time of repair."""
        rate = self.per_second(devices)
        return spares(rate, self.repair_seconds) if rate and self.repair_seconds is not None else None


NEVER = Interruptions()
"""A run that nothing stops."""


def checkpoint_bytes(model: ModelSpec) -> float:
    """Bytes of a checkpoint: weights and moments of what is trained, and all else in its working format."""
    trained = model.trained_parameters
    kept = model.parameters + model.adapter_parameters - trained
    return trained * state_bytes(model) + kept * ELEMENT_BYTES[model.training.precision]


def state_bytes(model: ModelSpec) -> float:
    """Bytes of one trained element from which training goes on: its weight as it is updated, and its moments."""
    return (2.0 if model.training.master_weights == "bf16" else 4.0) + model.training.moment_bytes


def checkpoint_interval(per_second: float, checkpoint_seconds: float) -> float:
    """Seconds of work from one checkpoint to the next that cost least; infinite without stops (Daly 2006, eq. 37)."""
    if not per_second:
        return math.inf
    mean, ratio = 1 / per_second, checkpoint_seconds * per_second / 2
    if ratio >= 1:
        return mean
    young = math.sqrt(2 * checkpoint_seconds * mean)
    # A checkpoint that takes no time is written all the time; a moment of work stands for none.
    return max(young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds, 1e-3)


def goodput(per_second: float, checkpoint_seconds: float, restart_seconds: float) -> float:
    """Share of the time that is work at the best interval between checkpoints (Daly 2006, eq. 20)."""
    if not per_second:
        return 1.0
    interval = checkpoint_interval(per_second, checkpoint_seconds)
    try:
        lost = math.exp(restart_seconds * per_second) * math.expm1(
            (interval + checkpoint_seconds) * per_second
        )
    except OverflowError:
        return 0.0
    return min(1.0, interval * per_second / lost)


def spares(per_second: float, repair_seconds: float) -> int:
    """Fewest spare nodes that all but ``RISK`` of the time stand in for every node that is away.

    ``per_second``: failures, each of which takes one node away for ``repair_seconds`` on average.
    """
    from scipy.special import pdtrik

    # The number, as a real one, at which Poisson's distribution function reaches 1 - RISK.
    reached = float(pdtrik(1.0 - RISK, per_second * repair_seconds))
    return max(0, math.ceil(reached - 1e-9)) if math.isfinite(reached) else 0
