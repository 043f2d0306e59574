"""Steps to a loss by the batch: what the published form says, and what is known of its constants."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.convergence import (
    Convergence,
    CriticalBatch,
    convergence,
    critical_by_loss,
    critical_by_tokens,
    loss_of,
    published_critical,
)
from planner.errors import UsageError
from planner.model.spec import ConvergenceSpec, LoraSpec, LossCurveSpec, ModelSpec, PreferenceSpec
from tests.worlds import gpt

POWERS = st.floats(3, 8).map(lambda power: 10**power)
CURVE = LossCurveSpec(
    batch_tokens=500_000, floor=1.7, scale=20.0, exponent=0.4, least_loss=2.4, spread=0.05, floor_spread=0.1
)


def steps(critical: float, known: float = 1000.0, batch: float = 1e6, spread: float = 0.5) -> Convergence:
    """A number of steps with one batch."""
    return Convergence(
        critical=CriticalBatch(tokens=critical, spread=spread, source="here"),
        steps_known=known,
        batch_tokens=batch,
    )


def trained(convergence: ConvergenceSpec | None = None) -> ModelSpec:
    """A model of half a million tokens a step."""
    return gpt(global_batch=512, convergence=convergence)


@given(POWERS, POWERS, POWERS)
def test_larger_batches_take_fewer_steps_and_more_tokens(critical: float, known: float, batch: float) -> None:
    """Down to the least number of steps, from the least number of tokens on."""
    law = steps(critical, batch=known)
    assert law.steps(known) == pytest.approx(1000.0)
    assert law.steps(2 * batch) < law.steps(batch)
    assert 2 * batch * law.steps(2 * batch) > batch * law.steps(batch)
    assert law.steps(batch) > law.least_steps
    assert batch * law.steps(batch) > (law.least_steps * law.critical.tokens)
    # (S / S_min - 1) (E / E_min - 1) = 1, by which McCandlish et al. define the critical batch
    extra_steps = law.steps(batch) / law.least_steps - 1
    extra_tokens = batch * law.steps(batch) / (law.least_steps * law.critical.tokens) - 1
    assert extra_steps * extra_tokens == pytest.approx(1.0, rel=1e-3)


def test_the_critical_batch_takes_twice_the_least_of_both() -> None:
    """By its definition."""
    law = steps(3e6)
    assert law.steps(3e6) == pytest.approx(2 * law.least_steps)
    assert 3e6 * law.steps(3e6) == pytest.approx(2 * (law.least_steps * law.critical.tokens))


@given(POWERS, POWERS)
def test_steps_of_the_known_batch_are_sure(critical: float, batch: float) -> None:
    """Only those of other batches rest on the critical batch, the more the further away they are."""
    law = steps(critical, batch=batch)
    assert law.steps_spread(batch) == pytest.approx(0.0, abs=1e-9)
    assert law.steps_spread(4 * batch) >= law.steps_spread(2 * batch)
    assert law.steps_spread(4 * batch) <= 0.5 + 1e-9


def test_published_laws_give_what_their_authors_print() -> None:
    """Kaplan: 1 to 2 million tokens where their largest models end; Zhang: 20 % more tokens at a fifth of it."""
    assert 1e6 < critical_by_loss(2.9) < 2e6
    assert critical_by_loss(2.0) / critical_by_loss(2.0 * 1.14) == pytest.approx(2.0, rel=0.1)
    law = steps(critical_by_tokens(3.07e9))
    theirs = 22.91 * 3070**0.47 * 512
    assert theirs * law.steps(theirs) == pytest.approx(1.2 * (law.least_steps * law.critical.tokens))
    # Their own law in parameters, 621.34 N^0.087 of models trained on 3.07 B tokens, agrees at 302 M.
    assert theirs / 512 == pytest.approx(621.34 * 302**0.087, rel=0.05)


def test_what_is_published_has_a_wide_bar() -> None:
    """At least a factor of two, and as wide as the laws are apart."""
    model = trained()
    few, many = published_critical(model, 1e9, None), published_critical(model, 1e12, None)
    assert few.tokens < many.tokens
    assert few.spread == pytest.approx(math.log(2)) or few.spread > math.log(2)
    apart = published_critical(model, 1e12, 5.0)
    ends = critical_by_loss(5.0), critical_by_tokens(1e12)
    assert (apart.low, apart.high) == pytest.approx((min(ends), max(ends)))
    assert 2.0 < loss_of(gpt(layers=32, hidden=4096, heads=32), 1e12) < 2.6


@pytest.mark.parametrize(
    "tuning",
    [{"lora": LoraSpec(rank=8)}, {"freeze": ("embedding",)}, {"preference": PreferenceSpec(beta=0.1)}],
)
def test_no_law_is_of_tuning(tuning: dict[str, Any]) -> None:
    """Those of pretraining stand for it, said and with a wider bar."""
    model = trained()
    plain, tuned = (published_critical(each, 1e9, None) for each in (model, model.trained_with(**tuning)))
    assert tuned.tokens == plain.tokens
    assert plain.spread < tuned.spread == pytest.approx(math.log(4))
    assert tuned.source == f"{plain.source}, both of pretraining, which this is not"


def test_tokens_are_those_of_the_models_own_batch() -> None:
    """The run of the file takes its steps, and its error is none of the critical batch's."""
    found = convergence(trained(), 1e9, None)
    assert found.steps(512 * 1024) * 512 * 1024 == pytest.approx(1e9)
    assert found.steps_spread(512 * 1024) == 0.0


def test_a_critical_batch_of_the_users_own() -> None:
    """It takes the place of the laws, with its own error or a wide one."""
    own = ConvergenceSpec(critical_batch_tokens=1e6, critical_batch_spread=0.25)
    found = convergence(trained(convergence=own), 1e9, None).critical
    assert (found.low, found.tokens, found.high) == pytest.approx((0.8e6, 1e6, 1.25e6))
    bare = convergence(trained(convergence=ConvergenceSpec(critical_batch_tokens=1e6)), 1e9, None).critical
    assert bare.high == pytest.approx(2e6)


def test_a_curve_says_when_a_loss_is_reached() -> None:
    """By its own form, with an error that grows below what it was fitted to."""
    model = trained(convergence=ConvergenceSpec(critical_batch_tokens=1e6, curve=CURVE))
    at, below = convergence(model, None, 2.4), convergence(model, None, 2.0)
    assert 1.7 + 20.0 * at.steps(500_000) ** -0.4 == pytest.approx(2.4)
    assert at.spread == pytest.approx(0.05)
    assert not at.extrapolated
    assert below.extrapolated
    assert below.spread == pytest.approx(math.hypot(0.05, 0.1 / 0.4 * (1 / 0.3 - 1 / 0.7)))


@pytest.mark.parametrize(
    ("tokens", "loss", "curve", "message"),
    [
        (None, None, None, "expected --tokens or --loss, got neither"),
        (None, 2.5, None, "--loss without a curve of the loss in the model file"),
        (None, 1.6, CURVE, "never goes below 1.7, got 1.6"),
        (1e9, 2.5, CURVE, "expected one"),
    ],
)
def test_when_to_stop_has_to_be_said_once(
    tokens: float | None, loss: float | None, curve: LossCurveSpec | None, message: str
) -> None:
    """Anything else is refused."""
    model = trained(convergence=ConvergenceSpec(curve=curve))
    with pytest.raises(UsageError, match=message):
        convergence(model, tokens, loss)


@pytest.mark.parametrize(("loss", "where"), [(1.7 + 1e-6, "above 1,000,000,000"), (900.0, "below the first")])
def test_losses_that_the_curve_reaches_at_no_step(loss: float, where: str) -> None:
    """Near the floor of a flat curve steps have no number; above its beginning there are none."""
    flat = CURVE.model_copy(update={"exponent": 0.01})
    with pytest.raises(UsageError, match=f"curve reaches .* at a step {where}"):
        convergence(trained(ConvergenceSpec(curve=flat)), None, loss)
