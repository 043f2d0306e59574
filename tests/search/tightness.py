"""How tight each bound is, on small worlds: the table in docs/search.md.

``python -m tests.search.tightness`` writes it there. A bound is divided by the best of what it bounds, of choices that
are drawn from all of a world: a bound that gets looser is still valid, so that only such a table shows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path

from planner.calibration.values import ASSUMED
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec
from planner.search.bounds.groups import Group, group_bound
from planner.search.data_parallel import choices as data_parallel_choices
from planner.search.data_parallel import shares_of
from planner.search.deadline import Deadline
from planner.search.explorer import Explorer
from planner.search.heuristics.greedy import greedy
from planner.search.milp.model import PipelineModel
from planner.search.pipeline import OpenChoice
from planner.search.ranking import ranked
from planner.search.space.choices import Choice, families, orders_of
from planner.search.space.partitions import NetworkPartition, network_partitions
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored, Silent
from planner.targets import TARGETS
from tests.search.variants import three_pools
from tests.worlds import (
    Problem,
    small_problem,
    with_all_at_once,
    with_beside,
    with_devices_left_over,
    with_experts,
    with_fast_nodes,
    with_hosts,
    with_islands,
    with_long_sequences,
    with_measurements,
    with_odd_nodes,
    with_stragglers,
    with_tight_memories,
    with_unequal_steps,
    with_unlike_layers,
)

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
BEGIN, END = "<!-- tightness: written by make docs -->\n", "<!-- end of tightness -->\n"
COLUMNS = ("group", "family", "choice", "once", "relaxation", "ILP", "greedy", "sets", "first plan")
ANY = Limits()
DRAWN, DEEP = 3, 8
"""Choices without and with a pipeline that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A cluster and a model that are made from a seed, and a target."""

    make: Callable[[int], Problem | tuple[ClusterSpec, ModelSpec]]
    seed: int
    target: str
    limits: Limits = ANY

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.make.__name__.removeprefix('with_').replace('_', ' ')} {self.seed}"

    def estimator(self) -> Estimator:
        """A new one."""
        made = self.make(self.seed)
        calibration = made[2] if len(made) == 3 else ASSUMED
        return Estimator(ranked(made[0]), made[1], calibration)


WORLDS = (
    World(make=small_problem, seed=5, target="megatron"),
    World(make=small_problem, seed=2, target="deepspeed"),
    World(make=small_problem, seed=3, target="torch"),
    World(make=small_problem, seed=4, target="flagscale"),
    World(make=three_pools, seed=9, target="megatron"),
    World(make=with_fast_nodes, seed=2, target="megatron"),
    World(make=with_fast_nodes, seed=4, target="torch"),
    World(make=with_islands, seed=3, target="megatron"),
    World(make=with_islands, seed=5, target="torch"),
    World(make=with_odd_nodes, seed=3, target="megatron"),
    World(make=with_devices_left_over, seed=3, target="torch"),
    World(make=with_experts, seed=3, target="megatron"),
    World(make=with_long_sequences, seed=0, target="torch", limits=Limits(cp=(2,))),
    World(make=with_unequal_steps, seed=2, target="torch"),
    World(make=with_unlike_layers, seed=0, target="torch"),
    World(make=with_beside, seed=17, target="torch"),
    World(make=with_hosts, seed=2, target="deepspeed", limits=Limits(offload=("none", "optimizer"))),
    World(make=with_all_at_once, seed=325, target="torch"),
    World(make=with_measurements, seed=1, target="megatron"),
    World(make=with_stragglers, seed=1, target="torch"),
    World(make=with_tight_memories, seed=1, target="torch"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is said of one world."""

    offered: int
    """Choices of pipelines and tensor parallelism."""
    sets: int
    """Choices of data parallelism."""
    opened: int
    """Choices, and sets of devices, that a search within 1 % takes further than their bounds."""
    considered: int
    """Families, choices and parts of sets that it considers."""
    shares: dict[str, float]
    """Mean of each bound over the best, by column."""


def row_of(world: World) -> Row:
    """The row of a world."""
    estimator = world.estimator()
    every = list(_choices(world, estimator))
    found: dict[str, list[float]] = {name: [] for name in COLUMNS}
    for partition, choice in _drawn(every, world.seed):
        best = _best(choice, partition, world.limits)
        if best is not None:
            for name, share in _shares(choice, partition, best, world.limits):
                found[name].append(share)
    for share in _boxes(world, estimator):
        found["sets"].append(share)
    limits = replace(world.limits, target=world.target)
    search, quick = (Explorer(estimator, limits, Silent(), deadline=Deadline()) for _ in range(2))
    search.run()
    first = quick.quick()
    if search.best is not None and first is not None:
        found["first plan"].append(search.best.estimate.step_seconds / first.estimate.step_seconds)
    return Row(
        offered=len(every),
        sets=len(list(data_parallel_choices(TARGETS[world.target], world.limits, estimator))),
        opened=search.solved,
        considered=search.candidates,
        shares={name: sum(each) / len(each) for name, each in found.items() if each},
    )


def _choices(world: World, estimator: Estimator) -> Iterator[tuple[NetworkPartition, Choice]]:
    row, limits = TARGETS[world.target], world.limits
    for name, partition in network_partitions(estimator, row).items():
        model = partition.estimator.model
        for family in families(row, limits, model, partition.device_types, name):
            for depth in partition.depths(family, limits):
                for interleave, schedule in orders_of(family, depth, model, limits):
                    yield (
                        partition,
                        Choice(family=family, depth=depth, interleave=interleave, schedule=schedule),
                    )


def _drawn(
    every: list[tuple[NetworkPartition, Choice]], seed: int
) -> Iterator[tuple[NetworkPartition, Choice]]:
    draw = random.Random(seed)
    for number, deep in ((DRAWN, False), (DEEP, True)):
        able = [item for item in every if (item[1].depth > 1) == deep]
        yield from draw.sample(able, min(number, len(able)))


def _best(choice: Choice, partition: NetworkPartition, limits: Limits) -> Scored | None:
    opened = OpenChoice(
        choice,
        partition.estimator,
        replace(limits, gap=0.0),
        cutoff_seconds=inf,
        bound_seconds=0.0,
        islands=partition.islands,
    )
    while not opened.closed:
        opened.step(inf)
    return opened.best


def _shares(
    choice: Choice, partition: NetworkPartition, best: Scored, limits: Limits
) -> Iterator[tuple[str, float]]:
    """Each bound of a choice, over what the best plan of it takes."""
    seconds, bounds, family = best.estimate.step_seconds, partition.bounds, choice.family
    yield "group", group_bound(Group((family,)), bounds) / seconds
    yield "family", bounds.family_bound(family, choice.depth) / seconds
    yield "choice", bounds.bound(family, choice.depth, choice.interleave, schedule=choice.schedule) / seconds
    if choice.depth > 1:
        priced = partition.estimator.price(best.plan)
        once = sum(sum(map(sum, each)) for each in (priced.forward, priced.backward, priced.weight))
        yield "once", bounds.once(choice, seconds * (1 + 1e-9)) / once
        stages = StageOptions(choice, partition.estimator, limits, partition.islands)
        model = PipelineModel(stages, seconds * (1 + 1e-6))
        yield "relaxation", model.relaxed_bound() / seconds
        yield "ILP", model.solve(gap=0.0).bound / seconds
        if not partition.islands:  # it may stay on one of them
            plan = greedy(choice, partition.estimator, limits, scorer=partition.estimator)
            yield "greedy", seconds / plan.estimate.step_seconds if plan else 0.0


def _boxes(world: World, estimator: Estimator) -> Iterator[float]:
    """Bounds of all sets of devices of each choice of data parallelism, and of both halves of them, over the best."""
    for choice in data_parallel_choices(TARGETS[world.target], world.limits, estimator):
        shares = shares_of(choice, estimator, world.limits)
        for box in (shares.sets, *shares.halves(shares.sets)):
            sides = (range(low, high + 1, shares.unit) for low, high in zip(box.low, box.high, strict=True))
            best = min(shares.best(counts)[0] for counts in product(*sides))
            if best < inf:
                yield shares.bound(box) / best


def cells(world: World, row: Row) -> list[str]:
    """The row as it is written."""
    numbers = [str(row.offered), str(row.sets), f"{row.opened} of {row.considered}"]
    shares = [f"{100 * row.shares[name]:.2f}" if name in row.shares else "" for name in COLUMNS]
    return [world.name, world.target, *numbers, *shares]


def table() -> str:
    """All worlds."""
    heads = ["world", "target", "choices", "of data parallelism", "opened", *COLUMNS]
    rows = [heads, ["---"] * len(heads), *(cells(world, row_of(world)) for world in WORLDS)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def listed() -> dict[tuple[str, str], list[str]]:
    """The table of the page, by world and target."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    lines = rest.partition(END)[0].strip().splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], row[1]): row for row in rows}


def main() -> None:
    """Write the table of today into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
