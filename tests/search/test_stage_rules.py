"""What a runtime demands of all stages together, against every plan of the space."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED
from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import NicSpec, PoolSpec
from planner.search.values import Limits
from tests.search.test_oracle import QUICK, check
from tests.worlds import Problem, cluster, gpt

SEEDS = st.integers(0, 10**9)
SHAPES = (
    (("AA", 1), ("BB", 1)),
    (("AA", 1), ("B", 1)),
    (("A", 1), ("B", 1), ("AA", 1)),
    (("AB", 2),),
    (("AB", 1), ("AB", 1)),
    (("AB", 1), ("BA", 1)),
    (("AAB", 1), ("B", 1)),
    (("AB", 1), ("B", 1)),
    (("A", 1), ("BB", 1)),
    (("AAA", 1), ("B", 1)),
    (("A", 2), ("BB", 1)),
)
"""Nodes by their devices, and how many of them, a pool each: at most four devices."""


def bound_problem(seed: int) -> Problem:
    """Pools of one node, nodes that mix types, ends of the pipeline that weigh more than a layer; mostly tied."""
    draw = random.Random(seed)
    gpus = {
        name: GpuSpec(
            name=name,
            memory_gib=draw.choice([2, 4, 8]),
            memory_bandwidth_gBps=draw.choice([320, 900, 2000]),
            tflops={"fp16": draw.choice([30, 100, 300])},
        )
        for name in "AB"
    }
    shapes = draw.choice(SHAPES)
    spec = cluster(*(_pool(draw, number, *shape) for number, shape in enumerate(shapes)), gpus=gpus)
    model = gpt(
        layers=draw.randint(2, 5),
        hidden=draw.choice([512, 1024, 2048]),
        heads=4,
        global_batch=draw.choice([4, 6, 8]),
        vocab=draw.choice([1000, 32000, 128000]),
        sequence_length=256,
    )
    model = model.model_copy(update={"tied_embeddings": draw.random() < 0.8})
    return spec.model_copy(update={"reserve_gib": 0.25}), model, ASSUMED


def _pool(draw: random.Random, number: int, devices: str, nodes: int) -> PoolSpec:
    return PoolSpec(
        name=f"p{number}",
        devices=tuple(devices),
        hosts=tuple(f"p{number}-{node}" for node in range(nodes)),
        intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([12, 64, 300])),
        nics=(NicSpec(fabric="eth", bandwidth_gbps=draw.choice([10, 100, 200])),),
    )


def asked(seed: int) -> Limits:
    """All depths, or several stages."""
    return Limits(gap=0.0, target="flagscale", pp=((None, (2, 3, 4))[seed % 2]))


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_search_is_exact_within_the_rules(seed: int) -> None:
    """The same cost as the oracle, which refuses plans one by one."""
    check(bound_problem(seed), asked(seed), QUICK)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_search_is_exact_within_the_rules_on_hundreds(seed: int) -> None:
    """The same on more instances."""
    check(bound_problem(seed), asked(seed))
