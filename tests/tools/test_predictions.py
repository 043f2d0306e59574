"""What the benchmark of predictions runs on."""

from __future__ import annotations

from functools import cache

from tools.benchmarks.predictions import PLANS, mean_seconds, mixed_runs

mixed = cache(mixed_runs)


def test_the_mix_is_a_mix() -> None:
    """Else its mean says nothing."""
    runs = mixed()
    assert len({run.id for run in runs}) == PLANS
    assert {run.plan.target for run in runs} == {"megatron", "deepspeed", "torch"}
    assert max(run.devices for run in runs) > 1000


def test_its_mean_is_of_one_prediction() -> None:
    """Of plans that can be priced."""
    assert mean_seconds(mixed()[:3]) >= 0
