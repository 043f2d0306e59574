"""Sequences of islands and the rows for slow links: they leave no plan out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby, pairwise, product
from math import inf
from pathlib import Path
from unittest.mock import patch

import pytest

from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec, NicSpec
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.model.file import load_model
from planner.model.spec import ModelSpec
from planner.search.milp.branching import Subset
from planner.search.milp.model import PipelineModel
from planner.search.milp.sequences import Sequence, sequences
from planner.search.milp.slow_links import SlowSends
from planner.search.milp.solver import TOLERANCE
from planner.search.pipeline import OpenChoice
from planner.search.ranking import ranked
from planner.search.space.choices import Choice, depths, families
from planner.search.space.partitions import NetworkPartition, network_partitions
from planner.search.space.stages import Option, StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.quick import first
from tests.worlds import cluster, gpt, pool


def crossings(islands: tuple[int, ...]) -> int:
    """How often neighbours differ."""
    return sum(a != b for a, b in pairwise(islands))


def blocks(islands: tuple[int, ...]) -> tuple[int, ...]:
    """The islands of a pipeline, each block of equal neighbours once."""
    return tuple(island for island, _ in groupby(islands))


def within(sequence: Sequence, islands: tuple[int, ...]) -> bool:
    """True for a pipeline of a sequence, said without it: its blocks, one after the other."""
    blocks = [0] + [at for at in range(1, len(islands)) if islands[at] != islands[at - 1]]
    return tuple(islands[at] for at in blocks) == sequence.islands and all(
        least <= end <= most for end, (least, most) in zip(blocks[1:], sequence.ends, strict=True)
    )


@pytest.mark.parametrize(("count", "depth"), [(2, 2), (2, 5), (2, 7), (3, 4), (3, 5)])
def test_every_pipeline_has_one_sequence(count: int, depth: int) -> None:
    """However sequences are halved, each pipeline is in one half, and may stand where that half allows."""
    draw = random.Random(count * depth)
    pipelines = [item for item in product(range(count), repeat=depth) if crossings(item)]
    waiting = [
        (part, [item for item in pipelines if within(part, item)])
        for number in range(1, depth)
        for part in sequences(count, depth, number)
    ]
    assert sum(len(found) for _, found in waiting) == len(pipelines)
    while waiting:
        part, found = waiting.pop()
        allowed = list(part.allowed(depth))
        assert all(island in allowed[stage] for item in found for stage, island in enumerate(item))
        halves = part.halves(tuple(draw.uniform(0, depth) for _ in part.ends))
        if not halves:
            # Each stage knows its island.
            assert len(found) == 1
        inside = [[item for item in found if within(half, item)] for half in halves]
        assert not halves or sum(map(len, inside)) == len(found)
        waiting += zip(halves, inside, strict=True)


@pytest.mark.parametrize("seed", first(25, range(40)))
def test_tightened_sequences_lose_no_pipeline_that_fits(seed: int) -> None:
    """Of random parts, those pipelines stay whose islands hold their stages; without any there is no part."""
    draw = random.Random(seed)
    count, depth = draw.randint(2, 3), draw.randint(2, 6)
    most = tuple(draw.randint(0, depth) for _ in range(count))
    fitting_of: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for item in product(range(count), repeat=depth):
        if all(item.count(at) <= held for at, held in enumerate(most)):
            fitting_of.setdefault(blocks(item), []).append(item)
    for number in range(1, depth):
        for part in sequences(count, depth, number):
            halves = part.halves(tuple(draw.uniform(0, depth) for _ in part.ends)) or (part,)
            for half in halves:
                fitting = [item for item in fitting_of.get(part.islands, ()) if within(half, item)]
                tight = half.tightened(depth, most)
                assert tight is not None or not fitting
                assert all(within(tight, item) for item in fitting if tight is not None)
                if tight is not None:
                    widths = zip(tight.ends, half.ends, strict=True)
                    assert all(old[0] <= new[0] <= new[1] <= old[1] for new, old in widths)


def islands_of_pools(seed: int) -> tuple[ClusterSpec, ModelSpec]:
    """Two or three pools of a few devices, each on a network of its own, with slow Ethernet between them."""
    draw = random.Random(seed)
    gbps = draw.choice([1.0, 5.0, 20.0])
    slow = NicSpec(fabric="eth", bandwidth_gbps=gbps, count=1)
    pools = tuple(
        pool(
            f"p{number}",
            draw.choice(["A100", "V100", "T4"]),
            nodes=draw.randint(1, 2),
            per_node=draw.choice([1, 2]),
            nics=(NicSpec(fabric=f"fast{number}", bandwidth_gbps=200, count=1), slow),
        )
        for number in range(draw.randint(2, 3))
    )
    fabrics = {f"fast{number}": "infiniband" for number in range(len(pools))}
    model = gpt(
        layers=draw.randint(3, 6),
        hidden=draw.choice([512, 1024]),
        heads=8,
        global_batch=draw.choice([4, 8, 12]),
        vocab=1000,
        sequence_length=draw.choice([256, 1024]),
        precision="fp16",
    )
    return cluster(*pools, fabrics=fabrics), model


def slow_choices(seed: int, count: int) -> Iterator[tuple[NetworkPartition, Choice]]:
    """Choices of pipelines over slow links on a small random cluster."""
    draw, (spec, model) = random.Random(seed), islands_of_pools(seed)
    estimator, limits = Estimator(ranked(spec), model), Limits()
    every = [
        (partition, Choice(family=family, depth=depth, interleave=1))
        for row in TARGETS.values()
        for partition in network_partitions(estimator, row).values()
        if partition.islands
        for family in families(row, limits, partition.estimator.model, partition.device_types)
        for depth in depths(family, limits, partition.estimator.model, partition.device_types)
        if 1 < depth <= 4
    ]
    yield from draw.sample(every, min(count, len(every)))


def plans(stages: StageOptions) -> Iterator[tuple[tuple[Option, ...], float]]:
    """All choices of options that fit, with the step of each."""
    layers = stages.estimator.model.layers
    options = [list(stages.options(stage, float("inf"))) for stage in range(stages.choice.depth)]
    for chosen in product(*options):
        slots = [option.composition for option in chosen]
        if sum(option.layers for option in chosen) == layers and stages.obeys(slots) and stages.stand(slots):
            try:
                estimate = stages.estimator.estimate(stages.plan(list(chosen)))
            except PlanError:
                continue
            if estimate.fits:
                yield chosen, estimate.step_seconds


@pytest.mark.parametrize("start", first(1, range(0, 40, 10)))
def test_no_bound_of_a_crossing_is_above_a_plan(start: int) -> None:
    """Every plan of a choice on slow links obeys the counted bound, ``once`` and the rows of its own sequence."""
    compared = 0
    for seed in range(start, start + 10):
        for partition, choice in slow_choices(seed, 2):
            stages = StageOptions(choice, partition.estimator, Limits(), partition.islands)
            found = [*plans(stages)] if len(stages.compositions) <= 6 else []
            for chosen, seconds in random.Random(seed).sample(found, min(4, len(found))):
                compared += _obeys(partition, choice, chosen, seconds)
    assert compared > 20


def _obeys(partition: NetworkPartition, choice: Choice, chosen: tuple[Option, ...], seconds: float) -> bool:
    """Check one plan; False when it stays on one island."""
    cutoff = seconds * (1 + 1e-9)
    once = partition.bounds.once(choice, cutoff)
    stages = StageOptions(choice, partition.estimator, Limits(), partition.islands, once)
    stood = [stages.used_islands(stages.compositions[option.composition]) for option in chosen]
    if len(frozenset().union(*stood)) == 1:
        return False
    known = partition.bounds.bound(choice.family, choice.depth, 1)
    assert known <= cutoff
    model = PipelineModel(stages, cutoff)
    assert model.feasible
    # The plan itself, in the part of the choice that it belongs to.
    islands = tuple(min(one) for one in stood)
    subset = Subset(wide=(1.0, float("inf")))
    if all(len(one) == 1 for one in stood):
        number = crossings(islands)
        (sequence,) = (
            part for part in sequences(len(partition.islands), choice.depth, number) if within(part, islands)
        )
        subset = Subset(sequence, (number, number), (0.0, 0.0))
    model.branching.assign(subset)
    for stage, option in enumerate(chosen):
        same = [
            variable
            for other, variable in zip(model.options[stage], model.take[stage], strict=True)
            if (other.composition, other.layers) == (option.composition, option.layers)
        ]
        assert len(same) == 1, "an option of a plan below the cutoff was pruned"
        model.program.lower[same[0]] = 1.0
    assert model.relaxed_bound() <= cutoff * (1 + TOLERANCE)
    return True


@pytest.mark.slow
def test_crossings_cost_whole_stages() -> None:
    """The rows lift relaxations over slow links, and change no answer of the ILP."""
    lifted, compared = 0, 0
    for seed in range(40):
        for partition, choice in slow_choices(seed, 1):
            stages = StageOptions(choice, partition.estimator, Limits(), partition.islands)
            first = PipelineModel(stages, 100.0)
            best = first.solve(gap=0.0).bound if first.feasible else float("inf")
            if best == float("inf"):
                continue
            bounds, answers = [], []
            nothing = patch.object(SlowSends, "_small_options", lambda self: None)
            for rows in (nullcontext(), nothing):
                with rows:
                    model = PipelineModel(stages, best * 1.01)
                    model.branching.assign(Subset())
                    answers.append(model.solve(gap=0.0).bound)
                    found = []
                    for sequence in sequences(len(partition.islands), choice.depth, 1):
                        model.branching.assign(Subset(sequence, (1, 1), (0.0, 0.0)))
                        found.append(min(model.relaxed_bound(), best * 1.01))
                    bounds.append(min(found))
            assert answers[0] == pytest.approx(answers[1], rel=1e-4)
            assert bounds[0] >= bounds[1] * (1 - 1e-5)
            compared += 1
            lifted += bounds[0] > bounds[1] * 1.001
    assert compared > 20
    assert lifted


def test_sequences_too_many_to_list_are_tried_together(tmp_path: Path) -> None:
    """Four pools whose own nodes are as far apart as they are: thousands of sequences, which one ILP closes."""
    none = (0.0, 0.0)
    parts = [Subset(crossings=(number, inf), wide=none) for number in range(4)]
    assert [part.divided_into(4) for part in parts] == [0, 12, 36, 108]
    assert Subset(crossings=(3, inf)).divided_into(4) == 0
    assert Subset(Sequence((0, 1), ((1, 3),)), (1, 1), none).divided_into(4) == 0

    file = tmp_path / "cluster.yaml"
    kinds = (
        ("L40S", 6, 8, 100),
        ("A10", 4, 4, 25),
        ("A100-PCIe-40GB", 16, 4, 25),
        ("V100-SXM-32GB", 1, 8, 25),
    )
    pools = "".join(
        f"  - {{name: {gpu}, gpu: {gpu}, nodes: {nodes}, gpus_per_node: {devices}, intra_node: pcie4, "
        f"nics: [{{fabric: lan, bandwidth_gbps: {gbps}}}]}}\n"
        for gpu, nodes, devices, gbps in kinds
    )
    file.write_text(f"name: lab\npools:\n{pools}fabrics:\n  lan: {{kind: ethernet, latency_us: 30}}\n")
    model = load_model(Path("model_specs/llama_3_70b.yaml"))
    model = model.model_copy(update={"training": model.training.model_copy(update={"precision": "fp16"})})
    estimator, row = Estimator(ranked(load_cluster(file)), model), TARGETS["megatron"]
    partition = next(iter(network_partitions(estimator, row).values()))
    assert len(partition.islands) == 4
    limits = Limits(tp=(1,), recompute=("full",), zero=(1,))
    (family,) = (
        family
        for family in families(row, limits, partition.estimator.model, partition.device_types)
        if (family.dp, family.batch, family.shard_size) == (8, 8, None)
    )
    bound = partition.bounds.bound(family, 17, 1)
    opened = OpenChoice(
        Choice(family=family, depth=17, interleave=1),
        partition.estimator,
        limits,
        cutoff_seconds=bound / 0.85,
        bound_seconds=bound,
        islands=partition.islands,
    )
    while not opened.closed:
        assert opened.rounds < 20
        opened.step(inf)
