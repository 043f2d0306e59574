"""A whole training run: how long so many tokens take, what they cost, and what failures take of the time."""

from __future__ import annotations

import math

from planner.cost.failures import NEVER, Interruptions
from planner.cost.values import Estimate
from planner.records import dataclass


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
        checkpoint_interval_seconds=interruptions.interval(estimate.devices),
        stops=seconds * per_second,
    )
