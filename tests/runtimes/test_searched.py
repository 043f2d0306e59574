"""What the search proposes can be emitted, for every target."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED
from planner.emit.interface import emit, job_of
from planner.plan.checks import check_plan
from planner.search.solve import search
from planner.search.values import Limits
from tests.search.variants import three_pools
from tests.worlds import Problem, small_problem, with_constants, with_experts, with_shapes

SEEDS = st.integers(0, 10**9)


def plain(seed: int) -> Problem:
    """Up to four devices of two device types."""
    return *small_problem(seed), ASSUMED


def several_nodes(seed: int) -> Problem:
    """Two or three pools, some of mixed nodes; embeddings tied."""
    return *three_pools(seed), ASSUMED


def reshaped(problem: Problem, seed: int) -> Problem:
    """Decoders and encoders, with and without grouped queries, learned positions and tied embeddings."""
    spec, model, calibration = problem
    draw = random.Random(seed)
    kv_heads = draw.choice([model.heads, 1, 2 if model.heads % 2 == 0 else 1])
    length = model.training.sequence_length
    changes = {
        "kind": draw.choice(["decoder", "decoder", "encoder"]),
        "kv_heads": kv_heads,
        "learned_positions": draw.choice([0, length, 2 * length]),
        "tied_embeddings": draw.random() < 0.7,
        "gated_mlp": draw.random() < 0.3,
    }
    training = model.training.model_copy(update={"optimizer": draw.choice(["adamw", "adamw", "sgd"])})
    return spec, model.model_copy(update={**changes, "training": training}), calibration


def check(problem: Problem, asked: Limits) -> bool:
    """The proposal passes the plan checker and every rule of the launch files; True where there is one."""
    spec, model, calibration = problem
    found = search(spec, model, calibration, asked, explain=False).best
    if found is None:
        return False
    check_plan(found.plan, spec, model)
    files = {file.path: file.text for file in emit(found.plan, spec, model)}
    rules = import_module(f"tests.runtimes.{found.plan.target}.rules")
    rules.check_files(files, job_of(found.plan, spec, model))
    return True


def check_experts(name: str, seed: int) -> None:
    """With experts, and without learned positions."""
    spec, model, calibration = with_experts(seed)
    check((spec, model.model_copy(update={"learned_positions": 0}), calibration), Limits(target=name))


@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_proposals_with_experts_can_be_emitted(name: str, seed: int) -> None:
    """Where the target trains them: experts whole, sharded or divided over devices."""
    check_experts(name, seed)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_proposals_with_experts_can_be_emitted(name: str, seed: int) -> None:
    """The same of more of them."""
    check_experts(name, seed)


PROBLEMS = st.sampled_from([plain, with_constants, with_shapes, several_nodes])


@given(SEEDS, PROBLEMS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_proposals_can_be_emitted(name: str, seed: int, problem: Callable[[int], Problem]) -> None:
    """Random clusters and models, the best plan of each target."""
    check(reshaped(problem(seed), seed), Limits(target=name))


@pytest.mark.slow
@given(SEEDS, PROBLEMS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_proposals_can_be_emitted(name: str, seed: int, problem: Callable[[int], Problem]) -> None:
    """The same of more of them."""
    check(reshaped(problem(seed), seed), Limits(target=name))
