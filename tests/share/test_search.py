"""What each job gets: the integer program against enumeration, and the search against all partitions."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import pytest
from rich.console import Group

from planner.calibration.file import shipped
from planner.cluster.file import load_cluster
from planner.cost.estimate import Estimator
from planner.report.share import notes, share_report, where
from planner.search.deadline import Deadline
from planner.search.milp.machines import MachineRates, Machines
from planner.search.milp.sharing import Partition, RatedJob, Sharing, Unit
from planner.search.milp.solver import Solved
from planner.search.objectives.choose import choose
from planner.search.values import Goal, Limits, SearchResult, Silent
from planner.share.jobs import LoadedJob, load_jobs
from planner.share.search import ShareObjective, ShareSearch
from tests.cli.running import CLUSTER, MODEL
from tests.quick import first
from tests.report.drawing import drawn

JOBS = """\
jobs:
  - {name: first, model: model.yaml, tokens: 1.0e+9}
  - {name: second, model: wide.yaml, steps: 2000, weight: 3}
"""
THREE = JOBS + "  - {name: third, model: model.yaml, steps: 1000}\n"
WIDE = MODEL.replace("small", "wide").replace("hidden: 512", "hidden: 1024")
FOUR_NODES = CLUSTER.replace("nodes: 1", "nodes: 2")
MIXED = """\
name: mixed
pools:
  - name: a
    devices: [2 x A100-SXM-40GB, V100-SXM-16GB]
    intra_node: pcie3
    nodes: 1
    nics: [{fabric: ib, bandwidth_gbps: 100}]
  - name: b
    gpu: V100-SXM-16GB
    nodes: 1
    gpus_per_node: 2
    intra_node: pcie3
    nics: [{fabric: ib, bandwidth_gbps: 100}]
fabrics:
  ib: {kind: infiniband}
"""
FEW = Limits(target="torch", zero=(1,), tp=(1,), pp=(1,), recompute=("none",))
"""A space whose searches take little time."""


def vectors(units: tuple[Unit, ...]) -> Iterator[Machines]:
    """Everything that one job may have."""
    for machines in product(*(range(unit.most + 1) for unit in units)):
        if not any(machines):
            continue
        if units[0].gpu is None:
            yield machines
            continue
        nodes: dict[str, list[bool]] = {}
        for unit, number in zip(units, machines, strict=True):
            nodes.setdefault(unit.pool, []).append(number == unit.most)
        used = {unit.pool for unit, number in zip(units, machines, strict=True) if number}
        if all(all(nodes[pool]) for pool in used) or len(used) == 1:
            yield machines


def partitions(units: tuple[Unit, ...], jobs: int) -> Iterator[Partition]:
    """Every partition of the machines."""
    for partition in product(*[list(vectors(units))] * jobs):
        together = zip(*partition, strict=True)
        if all(sum(numbers) <= unit.most for numbers, unit in zip(together, units, strict=True)):
            yield partition


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("value_of", ["least", "sum"])
@pytest.mark.parametrize("seed", range(3))
def test_the_program_is_never_below_the_best_partition(
    seed: int, value_of: Literal["least", "sum"], divided: bool
) -> None:
    """Random rates that grow by less and less, and none on few machines; with all learnt the bound is the best."""
    draw = random.Random(seed)
    units: tuple[Unit, ...]
    if divided:
        units = (
            Unit(pool="p", gpu="a", gpus=1, most=2),
            Unit(pool="p", gpu="b", gpus=1, most=1),
            Unit(pool="q", gpu="b", gpus=1, most=2),
        )
    else:
        units = tuple(Unit(pool=f"p{index}", gpu=None, gpus=draw.randint(1, 4), most=2) for index in range(3))
    count = 3 if divided else 2
    least = [draw.randint(1, 2) for _ in range(count)]
    each = [[draw.uniform(1e3, 1e4) for _ in units] for _ in range(count)]
    lost = draw.uniform(0.02, 0.2)

    def true_rate(job: int, machines: Machines) -> float:
        rate = sum(number * one for number, one in zip(machines, each[job], strict=True))
        return rate * (1 - lost * (1 - 1 / sum(machines))) if sum(machines) >= least[job] else 0.0

    every = list(partitions(units, count))
    worth = [draw.uniform(0.1, 10) for _ in range(count)]
    jobs = [
        RatedJob(
            together=MachineRates(
                rates=each[job], most=[unit.most for unit in units], kinds=[(0,), (1,), (2,)]
            ),
            worth=worth[job],
            most_gpus=draw.choice([None, 5]),
        )
        for job in range(count)
    ]
    program = Sharing(units, jobs, value_of)

    def value(partition: Partition) -> float:
        rates = [true_rate(job, machines) for job, machines in enumerate(partition)]
        small = all(
            program.gpus(machines) <= (job.most_gpus or math.inf)
            for job, machines in zip(jobs, partition, strict=True)
        )
        if not all(rates) or not small:
            return -math.inf
        parts = [rate * one for rate, one in zip(rates, worth, strict=True)]
        return min(parts) if value_of == "least" else sum(parts)

    best = max(map(value, every))
    for learnt in (0, 5, None):
        for job, contender in enumerate(jobs):
            known = list(vectors(units))
            for machines in known if learnt is None else draw.sample(known, learnt):
                rate = true_rate(job, machines)
                contender.together.learn(machines, rate)
                if rate:
                    contender.achieved[machines] = rate
        bound, asked = program.best()
        assert bound >= best * (1 - 1e-9)
        assert asked is None or asked in every
    found, chosen = program.best_known()
    assert (chosen is None) == (best == -math.inf)
    if chosen is not None:
        assert chosen in every
        assert found == pytest.approx(best)
        assert bound == pytest.approx(best, rel=1e-5)
        again, spread = program.best_known(floor=found)
        assert again == pytest.approx(best)
        assert spread is not None
        rates = [
            [job.achieved[machines] for job, machines in zip(jobs, way, strict=True)]
            for way in (chosen, spread)
        ]
        assert value_of == "sum" or min(
            rate * one for rate, one in zip(rates[1], worth, strict=True)
        ) == pytest.approx(best)


def loaded(folder: Path, cluster: str, jobs: str) -> tuple[LoadedJob, ...]:
    """The jobs of a text on a cluster, with their files."""
    (folder / "cluster.yaml").write_text(cluster)
    (folder / "jobs.yaml").write_text(jobs)
    for name, text in (("model.yaml", MODEL), ("wide.yaml", WIDE)):
        small = text.replace("layers: 6", "layers: 4").replace("global_batch: 16", "global_batch: 8")
        (folder / name).write_text(small)
    return load_jobs(folder / "jobs.yaml", load_cluster(folder / "cluster.yaml"))


@pytest.mark.parametrize(
    ("cluster", "jobs"),
    first(1, [(MIXED, THREE), (FOUR_NODES, JOBS)]),
    ids=["divided nodes", "whole nodes"],
)
def test_against_all_partitions(tmp_path: Path, cluster: str, jobs: str) -> None:
    """The answer is as good as the best of all partitions under every objective, and its bound holds."""
    several = loaded(tmp_path, cluster, jobs)
    spec = load_cluster(tmp_path / "cluster.yaml")
    limits, gap = FEW, 0.01
    searched: dict[tuple[int, Machines], SearchResult] = {}
    objectives: tuple[ShareObjective, ...] = ("makespan", "throughput", "fairness")
    for objective in objectives:
        search = ShareSearch(spec, several, shipped(), replace(limits, gap=gap), objective)
        assert search.divided == (len(several) > 2)
        answer = search.run()
        assert answer.status == "optimal"
        assert answer.value is not None
        assert answer.bound is not None

        def rate(index: int, machines: Machines, search: ShareSearch = search) -> float:
            job = several[index]
            if (index, machines) not in searched:
                part = search.part(job, machines)
                searched[index, machines] = choose(part, job.model, shipped(), limits, Goal(), explain=False)
            best = searched[index, machines].best
            return best.estimate.tokens_per_second if best else 0.0

        every = tuple(unit.most for unit in search.units)
        worth = [
            1 / (job.tokens or 0)
            if objective == "makespan"
            else job.job.weight
            if objective == "throughput"
            else len(several) / job.job.weight / rate(index, every)
            for index, job in enumerate(several)
        ]
        merge = sum if objective == "throughput" else min
        best = max(
            merge(
                one * rate(index, machines)
                for index, (one, machines) in enumerate(zip(worth, way, strict=True))
            )
            for way in partitions(search.units, len(several))
        )
        found, bound = answer.value, answer.bound
        if objective == "makespan":
            found, bound = 1 / found, 1 / bound
        # The oracle's own plans, and those that fairness is measured by, are within 1 % of the best.
        assert found >= best * (1 - 2 * gap)
        assert bound >= best * (1 - (gap if objective == "fairness" else 1e-9))


def test_jobs_on_one_node_share_what_it_offers(tmp_path: Path) -> None:
    """Host memory, its links and what feeds the node; whole nodes have all of it."""
    host = """\
    host:
      memory_gib: 96
      nvme_gBps: 6
      feed: {storage_gBps: 3, core_tokens_per_s: 900, caches: [{kind: memory, gib: 30, gBps: 9}]}
"""
    text = MIXED.replace("    nodes: 1\n", "    nodes: 1\n" + host, 1)
    several = loaded(tmp_path, text, THREE)
    search = ShareSearch(load_cluster(tmp_path / "cluster.yaml"), several, shipped(), Limits(), "makespan")
    one, whole = (search.part(several[0], machines).pools[0].host for machines in ((1, 0, 0), (2, 1, 0)))
    assert whole == search.cluster.pools[0].host
    assert one is not None
    assert one.feed is not None
    assert (one.memory_gib, one.nvme_gBps, one.all_links_gBps) == (32, 2, None)
    assert (one.feed.storage_gBps, one.feed.core_tokens_per_s) == (1, 300)
    assert (one.feed.caches[0].gib, one.feed.caches[0].gBps) == (10, 3)


def test_jobs_share_the_storage(tmp_path: Path) -> None:
    """Each is priced with its part of what all nodes read, and compared with having all of it a part of the time."""
    text = f"storage_gBps: 0.0001\n{CLUSTER}"
    several = loaded(tmp_path, text, JOBS)
    spec = load_cluster(tmp_path / "cluster.yaml")
    limits = Limits(target="torch", zero=(0,), pp=(1,), tp=(1,), gap=0.1)
    answer = ShareSearch(spec, several, shipped(), limits, "makespan").run()
    assert "each job is priced with 1/2 of the storage" in " ".join(notes(answer))
    for portion, job in zip(answer.portions, several, strict=True):
        # 4 bytes a token, half of 100 kB/s.
        assert portion.cluster.storage_gBps == 0.0001 / 2
        assert portion.scored.estimate.tokens_per_second == pytest.approx(0.5 * 1e5 / 4)
        assert portion.of_equal_share == pytest.approx(1.0)
        again = Estimator(portion.cluster, job.model, shipped()).estimate(portion.scored.plan)
        assert again == portion.scored.estimate


def test_portions_are_apart(tmp_path: Path) -> None:
    """No device has two jobs, every device is someone's or idle, and the plans are those of the parts."""
    for cluster, jobs in ((FOUR_NODES, JOBS), (MIXED, THREE)):
        several = loaded(tmp_path, cluster, jobs)
        spec = load_cluster(tmp_path / "cluster.yaml")
        answer = ShareSearch(spec, several, shipped(), replace(FEW, gap=0.05), "fairness").run()
        taken = [
            f"{host}:{number}"
            for portion in answer.portions
            for pool in portion.cluster.pools
            for host in pool.hosts
            for number in (portion.devices or range(len(pool.devices)))
        ]
        sizes = {host: len(pool.devices) for pool in spec.pools for host in pool.hosts}
        for each in answer.idle:
            taken += [each] if ":" in each else [f"{each}:{number}" for number in range(sizes[each])]
        assert sorted(taken) == sorted(f"{host}:{number}" for host in sizes for number in range(sizes[host]))
        for portion, job in zip(answer.portions, several, strict=True):
            again = choose(portion.cluster, job.model, shipped(), FEW, Goal(), explain=False)
            assert again.best is not None
            assert portion.scored.estimate.step_seconds <= again.best.estimate.step_seconds * 1.05
            assert again.bound_seconds <= portion.scored.estimate.step_seconds


def test_time_and_ctrl_c_end_it(tmp_path: Path) -> None:
    """Without time nothing is proven; a wish to end keeps what there is."""
    several = loaded(tmp_path, FOUR_NODES, JOBS)
    spec = load_cluster(tmp_path / "cluster.yaml")
    done = ShareSearch(spec, several, shipped(), FEW, "makespan", deadline=Deadline.after(0.0)).run()
    assert (done.status, done.portions) in (("unknown", ()), ("feasible", done.portions))
    assert done.gap > 0

    class Soon:
        """Wants an end once the first partition is there."""

        def __init__(self) -> None:
            self.found = False

        def is_set(self) -> bool:
            return self.found

        def phase(self, name: str) -> None:
            """Nothing."""

        def progress(
            self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float
        ) -> None:
            """The moment."""
            self.found = best_seconds is not None

    soon = Soon()
    stopped = ShareSearch(
        spec, several, shipped(), replace(FEW, gap=1e-9), "throughput", soon, deadline=Deadline(flag=soon)
    ).run()
    assert len(stopped.portions) == 2
    assert stopped.bound is not None
    assert stopped.value is not None
    assert stopped.bound >= stopped.value


def test_a_second_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    """Raised wherever it comes: the last partition stands, with the bound that was known."""
    several = loaded(tmp_path, FOUR_NODES, JOBS)

    class Now(Silent):
        """Insists once a partition is there."""

        def progress(
            self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float
        ) -> None:
            """The moment."""
            if best_seconds is not None:
                raise KeyboardInterrupt

    spec = load_cluster(tmp_path / "cluster.yaml")
    stopped = ShareSearch(spec, several, shipped(), replace(FEW, gap=1e-9), "throughput", Now()).run()
    assert stopped.interrupted
    assert len(stopped.portions) == 2
    assert stopped.value is not None
    assert stopped.bound is not None
    assert stopped.bound >= stopped.value


def test_a_solver_that_gives_up_proves_nothing(tmp_path: Path) -> None:
    """Not that the jobs do not fit."""
    several = loaded(tmp_path, FOUR_NODES, JOBS)
    search = ShareSearch(load_cluster(tmp_path / "cluster.yaml"), several, shipped(), FEW, "throughput")
    nothing = Solved(status="stopped", bound=0.0, values=None)
    with patch("planner.search.milp.solver.solve", return_value=nothing):
        answer = search.run()
    assert (answer.status, answer.conflict, answer.portions) == ("unknown", (), ())


def test_what_fairness_is_measured_by_is_proven_or_said(tmp_path: Path) -> None:
    """The jobs' plans on the whole cluster; one that may be slower than the best is named."""
    several = loaded(tmp_path, FOUR_NODES, JOBS)
    spec = load_cluster(tmp_path / "cluster.yaml")
    search = ShareSearch(spec, several, shipped(), replace(FEW, gap=0.05), "fairness")
    answer = search.run()
    assert answer.rough == ()
    search.program.jobs[1].worth *= 1.2
    assert tuple(search._rough()) == ("second",)
    text = drawn(Group(*share_report(replace(answer, rough=("second",)), spec.name)))
    assert "prove what second would do on the whole cluster" in " ".join(text.split())


def test_devices_of_several_nodes_are_named_by_node(tmp_path: Path) -> None:
    """Nodes with devices that lack the number format of one job, and are of use to others."""
    text = (
        MIXED[: MIXED.index("  - name: b")].replace("nodes: 1", "nodes: 2")
        + "fabrics:\n  ib: {kind: infiniband}\n"
    )
    jobs = THREE.replace("first, model: model.yaml", "first, model: brain.yaml")
    (tmp_path / "brain.yaml").write_text(MODEL.replace("precision: fp16", "precision: bf16"))
    several = loaded(tmp_path, text, jobs)
    search = ShareSearch(
        load_cluster(tmp_path / "cluster.yaml"), several, shipped(), replace(FEW, gap=0.5), "throughput"
    )
    partition = ((2, 0, 2, 0), (0, 1, 0, 0), (0, 0, 0, 1))
    for index, machines in enumerate(partition):
        assert search._look(index, machines)
    first, second, third = search._portions(partition)
    assert first.parts == {"a-0": (0, 1), "a-1": (0, 1)}
    assert first.devices == ()
    assert (second.parts, second.devices) == ({"a-0": (2,)}, (2,))
    assert third.parts == {"a-1": (2,)}
    assert list(search._idle((first, second))) == ["a-1:2"]
    assert where(first) == "a-0: 0-1 + a-1: 0-1"
