"""A micro-batch and the end of the step, as bounds count them, against those of every stage there may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from planner.calibration.values import KernelPoint
from planner.cost.estimate import Estimator
from planner.cost.schedules import is_v_shaped
from planner.search.bounds.rates import Rates, Speed, policies_of
from planner.search.ranking import ranked
from planner.search.space.choices import Choice, depths, families
from planner.search.space.partitions import network_partitions
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests import worlds
from tests.quick import first
from tests.search.test_bounds import HIDING
from tests.search.test_whole_layers import nodes_on_ethernet
from tests.worlds import Problem

SAMPLE = 12
"""Choices of a world."""


def on_ethernet(seed: int) -> Problem:
    """Slow networks, on which much of a reduction shows, with constants that overlap it."""
    return *nodes_on_ethernet(seed), worlds.with_constants(seed)[2]


def with_measured_updates(seed: int) -> Problem:
    """An update of few elements takes longer for each of them."""
    spec, model, calibration = on_ethernet(seed)
    points = tuple(
        KernelPoint(
            gpu=name,
            kernel="optimizer",
            precision="fp32",
            shape=str(elements),
            flops=0.0,
            moved_bytes=0.0,
            seconds=seconds,
        )
        for name in spec.gpus
        for elements, seconds in ((10**5, 1e-4), (10**7, 2e-3), (10**8, 8e-3))
    )
    return spec, model, replace(calibration, kernel_points=points)


def with_an_end_that_hides(seed: int) -> Problem:
    """The head is most of the backward and frozen, or the tower ahead of the layers is."""
    spec, _, calibration = on_ethernet(seed)
    return spec, HIDING[("frozen head", "tower")[seed % 2]], calibration


WORLDS: dict[str, Callable[[int], Problem]] = {
    "ethernet": on_ethernet,
    "measured updates": with_measured_updates,
    "everything": worlds.with_all_at_once,
    "experts": worlds.with_experts,
    "hosts": worlds.with_hosts,
    "adapters": worlds.with_adapters,
    "matrices beside the layers": worlds.with_beside,
    "layers of other sizes": worlds.with_unlike_sizes,
    "memories": worlds.with_tight_memories,
    "copies": worlds.with_copies,
    "an end that hides": with_an_end_that_hides,
}


def some_stages(
    estimator: Estimator, seed: int, *, offload: bool
) -> Iterator[tuple[StageOptions, tuple[Speed, ...]]]:
    """Choices with a degree for all stages, each with what bounds know of the devices."""
    limits = Limits(offload=("optimizer",)) if offload else Limits()
    every = [
        (partition, Choice(family=family, depth=depth, interleave=chunks, schedule=schedule))
        for row in TARGETS.values()
        for partition in network_partitions(estimator, row).values()
        for family in families(row, limits, partition.estimator.model, partition.device_types)
        if family.dp is not None and family.tp is not None
        for depth in depths(family, limits, partition.estimator.model, partition.device_types)
        if depth > 1
        for chunks, schedule in ((1, "1f1b"), *((2, one) for one in row.schedules if is_v_shaped(one)))
        if chunks * depth <= partition.estimator.model.layers and (chunks == 1 or family.zero < 2)
    ]
    for partition, choice in random.Random(seed).sample(every, min(SAMPLE, len(every))):
        stages = StageOptions(choice, partition.estimator, limits, partition.islands)
        yield stages, Rates(partition.estimator, partition.islands).speeds(choice.family)


@pytest.mark.parametrize(
    ("what", "start"), first(len(WORLDS), [(what, start) for start in range(0, 100, 10) for what in WORLDS])
)
def test_no_stage_is_sooner(what: str, start: int) -> None:
    """Whatever it recomputes and however many layers it has: also ends of a pipeline, and stages of several types."""
    compared = 0
    for seed in range(start, start + 10):
        spec, model, calibration = WORLDS[what](seed)
        estimator = Estimator(ranked(spec), model, calibration)
        for stages, speeds in some_stages(estimator, seed, offload=what == "hosts"):
            known = {speed.device_type: speed for speed in speeds}
            for stage in {0, 1, stages.choice.depth - 1}:
                for composition in range(len(stages.compositions)):
                    compared += whether_none_is_sooner(stages, known, stage, composition)
    assert compared > 0


def whether_none_is_sooner(
    stages: StageOptions, known: dict[tuple[str, str], Speed], stage: int, composition: int
) -> bool:
    """Of one composition; False where one of its device types holds nothing."""
    groups, ring = stages.compositions[composition], stages.rings[composition]
    if any((group.pool, group.gpu) not in known for group in groups):
        return False
    for index, recompute in enumerate(policies_of(stages.choice.family)):
        layers = np.arange(stages.choice.interleave, stages.estimator.model.layers + 1)
        each = stages.lengths(stage, composition, recompute, ring)
        busy = sum(part.sum(axis=1) for part in (each.forward, each.backward, each.weight))[: len(layers)]
        ends = busy + each.tail_seconds[: len(layers)]
        least_busy, least_ends = [], []
        for speed in (known[group.pool, group.gpu] for group in groups):
            policy, (beside, tail) = speed.policies[index], at_ends(speed, stages.choice, stage)
            least_busy.append(layers * policy.layer_seconds + beside)
            least_ends.append(least_busy[-1] + layers * policy.tail_seconds + tail)
        assert (np.min(least_busy, axis=0) <= busy * (1 + 1e-9)).all()
        assert (np.min(least_ends, axis=0) <= ends * (1 + 1e-9)).all()
    return True


def at_ends(speed: Speed, choice: Choice, stage: int) -> tuple[float, float]:
    """What embedding and head add to a micro-batch and to the end of the step, for this stage of a choice."""
    if is_v_shaped(choice.schedule):
        both = max(speed.first_tail_seconds, speed.last_tail_seconds)
        return (0.0, 0.0) if stage else (speed.first_seconds + speed.last_seconds, both)
    if stage == 0:
        return speed.first_seconds, speed.first_tail_seconds + speed.tied_seconds
    if stage == choice.depth - 1:
        return speed.last_seconds, speed.last_tail_seconds + speed.tied_seconds
    return 0.0, 0.0
