"""Steps to a loss by the batch: larger batches need fewer steps, down to a least number, and more tokens.

A batch of B tokens takes S(B) = S_min (1 + B_crit / B) steps to a loss, and B S(B) = E_min (1 + B / B_crit) tokens
(McCandlish et al. 2018, arXiv:1812.06162, section 2.3: S_min steps with a batch however large, E_min = B_crit S_min
tokens with one however small). B_crit grows along the training: with a falling loss by Kaplan et al. 2020
(arXiv:2001.08361, equation 1.4), with the tokens of the whole training by Zhang et al. 2024 (arXiv:2410.21676).
Learning rates are those that suit each batch.
"""

from __future__ import annotations

import math

from planner.errors import UsageError
from planner.frozen import dataclass
from planner.model.spec import LossCurveSpec, ModelSpec
from planner.ranges import STEPS

PUBLISHED_SPREAD = math.log(2.0)
"""Standard error of the logarithm of a published critical batch, at least: other data and optimizers move it by about a
factor of 2 (assumed; the noise scale that predicts it does no better, arXiv:1812.06162, section 4)."""
TUNING_SPREAD = math.log(4.0)
"""The same where a part of the model is trained, or pairs of answers are: both laws are of whole models trained from
the beginning (assumed)."""
OWN_SPREAD = 1.0
"""Relative standard error of a critical batch of the user's own that comes without one (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalBatch:
    """The batch at which steps and tokens to a loss are both twice their least."""

    tokens: float
    """Its tokens."""
    spread: float
    """Standard error of its natural logarithm."""
    source: str
    """Where it is from, in words."""

    @property
    def low(self) -> float:
        """One standard error below."""
        return self.tokens * math.exp(-self.spread)

    @property
    def high(self) -> float:
        """One standard error above."""
        return self.tokens * math.exp(self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """The steps that every batch takes to one loss."""

    critical: CriticalBatch
    """The critical batch there."""
    steps_known: float
    """Steps to the loss with the batch for which they are given."""
    batch_tokens: float
    """Tokens of that batch."""
    spread: float = 0.0
    """Relative standard error of those steps; 0 if they were given."""
    loss: float | None = None
    """The loss; None if it is what a run of the given tokens reaches."""
    extrapolated: bool = False
    """True when the loss is below all that the curve was fitted to."""

    def steps(self, batch_tokens: float, critical_tokens: float | None = None) -> float:
        """Steps to the loss with a batch of so many tokens; ``critical_tokens`` in place of the critical batch."""
        critical = self.critical.tokens if critical_tokens is None else critical_tokens
        # S(B) / S(known) = (1 + B_crit / B) / (1 + B_crit / known)
        return self.steps_known * (1 + critical / batch_tokens) / (1 + critical / self.batch_tokens)

    def steps_spread(self, batch_tokens: float) -> float:
        """Relative standard error of these steps: none of it is the critical batch's where they are known."""
        ends = [self.steps(batch_tokens, end) for end in (self.critical.low, self.critical.high)]
        return math.hypot(self.spread, abs(math.log(ends[1] / ends[0])) / 2)

    @property
    def least_steps(self) -> float:
        """Steps that no batch goes below."""
        return self.steps_known / (1 + self.critical.tokens / self.batch_tokens)


def critical_by_loss(loss: float) -> float:
    """Tokens of the critical batch at a loss in nats (Kaplan et al. 2020, equation 1.4, on WebText2)."""
    return float(2e8 / loss ** (1 / 0.21))


def critical_by_tokens(tokens: float) -> float:
    """Tokens of the critical batch of a training on so many tokens (Zhang et al. 2024, on C4).

    They fit 22.91 D^0.47 sequences of 512 tokens, D in millions of tokens, as the batch with which 20 % more tokens
    reach the loss than with small ones: 1 + B / B_crit = 1.2, so that the critical batch is five times theirs.
    """
    return float(22.91 * (tokens / 1e6) ** 0.47 * 512 / 0.2)


def loss_of(model: ModelSpec, tokens: float) -> float:
    """Loss in nats after so many tokens (Kaplan et al. 2020, equation 1.5 and table 2, without embeddings)."""
    parameters = max(1, model.layers * model.layer_parameters)
    return float(((6.4e13 / parameters) ** (0.076 / 0.103) + 1.8e13 / tokens) ** 0.103)


def published_critical(model: ModelSpec, tokens: float, loss: float | None) -> CriticalBatch:
    """What both laws say of a training on so many tokens; ``loss`` in place of what the first one predicts."""
    one, other = critical_by_loss(loss or loss_of(model, tokens)), critical_by_tokens(tokens)
    tunes = bool(model.frozen) or model.training.preference is not None
    source = "between Kaplan 2020, by the loss, and Zhang 2024, by the tokens"
    return CriticalBatch(
        tokens=math.sqrt(one * other),
        spread=max(TUNING_SPREAD if tunes else PUBLISHED_SPREAD, abs(math.log(one / other)) / 2),
        source=f"{source}, both of pretraining, which this is not" if tunes else source,
    )


def convergence(model: ModelSpec, tokens: float | None, loss: float | None) -> Convergence:
    """Steps to what a run of so many tokens reaches with the batch of the model file, or to a loss of its curve.

    Raises UsageError where neither says when to stop.
    """
    spec, training = model.training.convergence, model.training
    curve = None if spec is None else spec.curve
    if tokens is not None:
        if loss is not None and curve is not None:
            raise UsageError(
                "--tokens, --loss: the model file has a curve of the loss, so both say when to stop: expected one"
            )
        batch = float(training.tokens)
        return Convergence(
            critical=_critical(model, tokens, loss), steps_known=tokens / batch, batch_tokens=batch, loss=loss
        )
    if loss is None or curve is None:
        given = "--loss without a curve of the loss in the model file" if loss is not None else "neither"
        raise UsageError(
            f"--objective time-to-loss: when is the loss reached? expected --tokens or --loss, got {given}",
            hint="--tokens: what the batch of the model file takes to reach it; or fit a curve: hetplan calibrate loss",
        )
    return _on_curve(model, curve, loss)


def _on_curve(model: ModelSpec, curve: LossCurveSpec, loss: float) -> Convergence:
    if loss <= curve.floor:
        raise UsageError(f"--loss: the model file's curve never goes below {curve.floor:g}, got {loss:g}")
    above = loss - curve.floor
    powers = math.log(curve.scale / above) / curve.exponent
    if not 0 <= powers <= math.log(STEPS.most):
        last = f"above {STEPS.most:,.0f}" if powers > 0 else "below the first"
        raise UsageError(f"--loss: the model file's curve reaches {loss:g} at a step {last}")
    steps = math.exp(powers)
    seen = max(above, curve.least_loss - curve.floor)
    # Losses that were seen rest on the curve as fitted; an error of the floor moves the steps to lower ones.
    moved = 0.0
    if loss < curve.least_loss:
        moved = curve.floor_spread / curve.exponent * (1 / above - 1 / seen)
    return Convergence(
        critical=_critical(model, steps * curve.batch_tokens, loss),
        steps_known=steps,
        batch_tokens=float(curve.batch_tokens),
        spread=math.hypot(curve.spread, moved),
        loss=loss,
        extrapolated=loss < curve.least_loss,
    )


def _critical(model: ModelSpec, tokens: float, loss: float | None) -> CriticalBatch:
    spec = model.training.convergence
    if spec is None or spec.critical_batch_tokens is None:
        return published_critical(model, tokens, loss)
    spread = OWN_SPREAD if spec.critical_batch_spread is None else spec.critical_batch_spread
    return CriticalBatch(
        tokens=spec.critical_batch_tokens, spread=math.log1p(spread), source="of the model file"
    )
