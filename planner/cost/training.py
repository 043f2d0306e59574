"""A whole training run: how long so many tokens take, what they cost, and what failures take of the time.

A run that fails goes back to its last checkpoint. With failures that come at random, a mean time M between them,
checkpoints that take D and are written every T of work, and restarts that take R, the share of the time that is work is
T / (M exp(R / M) (exp((T + D) / M) - 1)) (Daly 2006, doi:10.1016/j.future.2004.11.016, equation 20; failures during
checkpoints and restarts are counted). It is largest at about T = sqrt(2 D M) (Young 1974, doi:10.1145/361147.361115),
for which Daly's equation 37 has a better approximation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.cost.values import Estimate

MONTH_SECONDS = 30 * 86400.0
"""A month of failures per GPU-month."""


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

    def per_second(self, devices: int) -> float:
        """Stops of a run on so many devices."""
        return self.per_gpu_month * devices / MONTH_SECONDS

    def goodput(self, devices: int) -> float:
        """Share of the time that is work, with checkpoints at the best interval; 1 without stops."""
        return goodput(self.per_second(devices), self.checkpoint_seconds, self.restart_seconds)


NEVER = Interruptions()
"""A run that nothing stops."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A whole training run of so many tokens, at the predicted speed."""

    tokens: float
    """Tokens to train on."""
    seconds: float
    """Seconds until they are trained on, checkpoints and restarts included."""
    price: float | None
    """Its price, in the currency of the cluster file; null when one device has none."""
    joules: float | None
    """Its energy at board power; null when that of one device is unknown."""
    goodput: float = 1.0
    """Share of the time that is work; the rest is checkpoints, restarts, and work that is done again."""
    checkpoint_interval_seconds: float | None = None
    """Work between two checkpoints; null where nothing stops the run."""
    stops: float = 0.0
    """Failures that are expected on the way."""


def training_run(estimate: Estimate, tokens: float, interruptions: Interruptions = NEVER) -> TrainingRun:
    """What so many tokens take with a plan; infinite where failures let nothing be done."""
    per_second, share = (
        interruptions.per_second(estimate.devices),
        interruptions.goodput(estimate.devices),
    )
    seconds = tokens / estimate.tokens_per_second / share if share else math.inf
    price, watts = estimate.price_per_hour, estimate.watts
    return TrainingRun(
        tokens=tokens,
        seconds=seconds,
        price=None if price is None else price * seconds / 3600 if price else 0.0,
        joules=None if watts is None else watts * seconds,
        goodput=share,
        checkpoint_interval_seconds=(
            checkpoint_interval(per_second, interruptions.checkpoint_seconds) if per_second else None
        ),
        stops=seconds * per_second,
    )
