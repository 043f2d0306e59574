"""Bounds of whole layers, with and without a cutoff, against plans of small clusters on slow networks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import product
from math import inf, prod

import pytest

from planner.cluster.spec import ClusterSpec, NicSpec
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.search.ranking import ranked
from planner.search.space.choices import Choice, depths, families, orders_of
from planner.search.space.multi_node import dealt_families
from planner.search.space.partitions import NetworkPartition, dealt_partitions, network_partitions
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


def two_islands(seed: int) -> tuple[ClusterSpec, ModelSpec]:
    """Two pools of two nodes of one or two devices, each with a fast network; Ethernet joins them."""
    draw = random.Random(seed + 17)
    ethernet = NicSpec(fabric="eth", bandwidth_gbps=draw.choice((0.5, 2.0, 10.0)))
    pools = [
        pool(
            f"p{number}",
            draw.choice(("A100", "V100")),
            2,
            (NicSpec(fabric=f"ib{number}", bandwidth_gbps=100), ethernet),
            per_node=draw.choice((1, 2)),
        )
        for number in range(2)
    ]
    model = gpt(layers=draw.choice((4, 6, 8, 9)), hidden=1024, global_batch=draw.choice((8, 16)))
    fabrics = {"ib0": "infiniband", "ib1": "infiniband", "eth": "ethernet"}
    return cluster(*pools, fabrics=fabrics), model


def interleaved(seed: int, count: int) -> Iterator[tuple[NetworkPartition, Choice]]:
    """Choices of pipelines with several chunks a stage; each over the nodes of a pool in half of the draws."""
    spec, model = two_islands(seed)
    estimator, limits, every = Estimator(ranked(spec), model), Limits(), []
    for row in (TARGETS["megatron"], TARGETS["torch"]):
        known = network_partitions(estimator, row) if seed % 2 else dealt_partitions(estimator, row, 2)
        for name, partition in known.items():
            listed = families(row, limits, model, partition.device_types)
            found = [family._replace(network=name) for family in listed if family.dp is not None]
            if not seed % 2:
                found = [*dealt_families(found, 2, partition.device_types)]
            every += [
                (partition, Choice(family=family, depth=depth, interleave=chunks))
                for family in found
                for depth in partition.depths(family, limits)
                for chunks, schedule in orders_of(family, depth, model, limits)
                if depth > 1 and chunks > 1 and schedule == "1f1b"
            ]
    yield from random.Random(seed).sample(every, min(count, len(every)))


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


def compare(choices: Iterable[tuple[NetworkPartition, Choice]], seed: int) -> int:
    """Bounds of choices are not above a plan of theirs, whatever the cutoff; how many have one.

    Just above the plan, what cannot be done by it is left out.
    """
    compared = 0
    for partition, choice in choices:
        least = least_seconds(partition, choice, seed)
        if least < inf:
            for cutoff in (inf, 1.3 * least, least * (1 + 1e-6)):
                asked = choice.family, (choice.depth,), choice.interleave, cutoff
                (bound,) = partition.bounds.bounds(*asked)
                assert bound <= least * (1 + 1e-9)
            compared += 1
    return compared


@pytest.mark.parametrize("start", first(1, range(0, 200, 4)))
def test_no_bound_is_above_a_plan(start: int) -> None:
    """On slow Ethernet, between nodes with unlike devices too."""
    assert sum(compare(pipelines(seed, 6), seed) for seed in range(start, start + 4)) > 5


@pytest.mark.parametrize("start", first(1, range(0, 200, 4)))
def test_no_bound_of_interleaved_pipelines_is_above_a_plan(start: int) -> None:
    """On two islands, between which the last stage sends to the first, with stages dealt over nodes or not."""
    assert sum(compare(interleaved(seed, 6), seed) for seed in range(start, start + 4)) > 3
