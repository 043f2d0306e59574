"""Bounds of whole layers, with and without a cutoff, against plans of small clusters on slow networks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from math import inf, prod

import pytest

from planner.cluster.spec import ClusterSpec, NicSpec
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.search.ranking import ranked
from planner.search.space.choices import Choice, depths, families
from planner.search.space.partitions import NetworkPartition, network_partitions
from planner.search.space.stages import Option, StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.quick import first
from tests.worlds import cluster, gpt, pool

DEEPEST = 6

MOST_LISTED = 1000
"""Plans of a choice that are listed; of more, so many are drawn."""


def nodes_on_ethernet(seed: int) -> tuple[ClusterSpec, ModelSpec]:
    """One to three pools of nodes of one to four devices, on one network; some nodes have unlike devices."""
    draw = random.Random(seed)
    gbps, pools = draw.choice((0.5, 2.0, 10.0, 50.0)), []
    for number in range(draw.randint(1, 3)):
        devices = draw.choice((1, 2, 2, 3, 4))
        unlike = tuple(draw.choice(("A100", "V100", "T4")) for _ in range(devices))
        pools.append(
            pool(
                f"p{number}",
                unlike if devices > 1 and draw.random() < 0.2 else unlike[0],
                nodes=draw.randint(1, 4),
                per_node=devices,
                nics=(NicSpec(fabric="eth", bandwidth_gbps=gbps, count=1),),
            )
        )
    model = gpt(
        layers=draw.randint(3, 7),
        hidden=draw.choice((512, 1024, 2048)),
        heads=8,
        global_batch=draw.choice((4, 8, 12)),
        vocab=draw.choice((1000, 50_000)),
        sequence_length=draw.choice((256, 1024)),
    )
    return cluster(*pools), model


def pipelines(seed: int, count: int) -> Iterator[tuple[NetworkPartition, Choice]]:
    """Choices of plain pipelines with one degree everywhere."""
    spec, model = nodes_on_ethernet(seed)
    estimator, limits = Estimator(ranked(spec), model), Limits()
    every = [
        (partition, Choice(family=family, depth=depth, interleave=1))
        for row in TARGETS.values()
        for partition in network_partitions(estimator, row).values()
        for family in families(row, limits, partition.estimator.model, partition.device_types)
        if family.dp is not None
        for depth in depths(family, limits, partition.estimator.model, partition.device_types)
        if 1 < depth <= DEEPEST
    ]
    yield from random.Random(seed).sample(every, min(count, len(every)))


def chosen_options(stages: StageOptions, seed: int) -> Iterator[tuple[Option, ...]]:
    """All ways to choose an option for each stage, or some."""
    draw, options = random.Random(seed), [[*stages.options(s, inf)] for s in range(stages.choice.depth)]
    if prod(map(len, options)) <= MOST_LISTED:
        yield from product(*options)
    elif all(options):
        yield from (tuple(draw.choice(own) for own in options) for _ in range(MOST_LISTED))


def least_seconds(partition: NetworkPartition, choice: Choice, seed: int) -> float:
    """The fastest plan of a choice that is found; what stays on one island is in another part of the space."""
    stages, least = StageOptions(choice, partition.estimator, Limits(), partition.islands), inf
    for chosen in chosen_options(stages, seed):
        slots = [option.composition for option in chosen]
        islands = {island for slot in slots for island in stages.used_islands(stages.compositions[slot])}
        if sum(option.layers for option in chosen) != partition.estimator.model.layers or (
            partition.islands and len(islands) == 1
        ):
            continue
        if stages.obeys(slots) and stages.stand(slots):
            try:
                estimate = partition.estimator.estimate(stages.plan(list(chosen)))
            except PlanError:
                continue
            if estimate.fits:
                least = min(least, estimate.step_seconds)
    return least


@pytest.mark.parametrize("start", first(1, range(0, 200, 4)))
def test_no_bound_is_above_a_plan(start: int) -> None:
    """Whatever the cutoff: just above the plan, what cannot be done by it is left out."""
    compared = 0
    for seed in range(start, start + 4):
        for partition, choice in pipelines(seed, 6):
            least = least_seconds(partition, choice, seed)
            if least < inf:
                for cutoff in (inf, 1.3 * least, least * (1 + 1e-6)):
                    (bound,) = partition.bounds.bounds(choice.family, (choice.depth,), 1, cutoff)
                    assert bound <= least * (1 + 1e-9)
                compared += 1
    assert compared > 5
