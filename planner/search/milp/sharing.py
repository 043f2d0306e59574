"""Which machines each of several jobs gets, as an integer linear program: numbers of machines by job are its variables.

What a job does on its machines is bounded by ``Together``, so the program's optimum is a bound on all partitions, and
its solution the partition to search next. A second program takes the best of the sets that were searched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from planner.frozen import dataclass
from planner.search.milp.machines import SLACK, MachineRates, Machines
from planner.search.milp.program import Program, Terms, added, combined, ones, total
from planner.search.milp.solver import Values, exact

Partition = tuple[Machines, ...]
"""The machines of each job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What goes to one job as a whole: a node of a pool; or a device of a node, where nodes are divided."""

    pool: str
    """The pool; where nodes are divided each is one of its own."""
    gpu: str | None
    """Type of the device; None for a whole node."""
    gpus: int
    """Devices of one unit."""
    most: int
    """How many there are."""


@dataclass(slots=True, kw_only=True)
class RatedJob:
    """One job, and what is known of it."""

    together: MachineRates
    """What machines do together for it."""
    worth: float
    """Of one token a second."""
    least_rate: float = 0.0
    """Tokens a second that it must do."""
    least_gpus: int = 1
    most_gpus: int | None = None
    achieved: dict[Machines, float] = field(default_factory=dict)
    """Tokens a second of the best plan found, by machines."""


@dataclass(slots=True)
class Sharing:
    """The machines of a cluster, and the jobs that share them."""

    units: Sequence[Unit]
    jobs: Sequence[RatedJob]
    value_of: Literal["least", "sum"]
    """What is greatest: the least of what the jobs' rates are worth, or their sum."""

    def best(self) -> tuple[float, Partition | None]:
        """(a bound on the value, the partition that might reach it); minus infinity and None where none is possible."""
        ceilings = [job.together.most_rate(job.together.everything) for job in self.jobs]
        if not all(ceilings):
            return -math.inf, None
        program = Program("sharing")
        program.column("objective")
        numbers, rates = [], []
        for index, (job, ceiling) in enumerate(zip(self.jobs, ceilings, strict=True)):
            columns = self._machines_of(program, job, f"job_{index}_")
            pace = program.column(f"job_{index}_pace", upper=1.0)
            job.together.bound(program, columns, pace, ceiling, f"job_{index}_", must=True)
            program.row({pace: 1.0}, least=job.least_rate / ceiling)
            numbers.append(columns)
            rates.append({pace: ceiling})
        self._room(program, numbers)
        solved = self._solve(program, rates)
        if solved is None:
            return -math.inf, None
        bound, values = solved
        partition = tuple(tuple(round(float(values[column])) for column in columns) for columns in numbers)
        return bound, partition

    def best_known(self, floor: float | None = None) -> tuple[float, Partition | None]:
        """The best partition into sets of which a plan is known; minus infinity and None without one.

        With a floor for the value all rates are as great as can be above it, not just the least.
        """
        open_sets = [
            [
                (machines, rate)
                for machines, rate in job.achieved.items()
                if rate >= job.least_rate and self._allowed(job, machines)
            ]
            for job in self.jobs
        ]
        if not all(open_sets):
            return -math.inf, None
        program = Program("known")
        program.column("objective")
        numbers: list[Sequence[Terms]] = []
        rates: list[Terms] = []
        taken: list[list[int]] = []
        for index, sets in enumerate(open_sets):
            columns = [
                program.column(f"job_{index}_set_{number}", upper=1.0, whole=True)
                for number in range(len(sets))
            ]
            program.equal(ones(columns), 1.0)
            numbers.append(
                [
                    total(
                        (machines[unit], column) for (machines, _), column in zip(sets, columns, strict=True)
                    )
                    for unit in range(len(self.units))
                ]
            )
            rates.append(total((rate, column) for (_, rate), column in zip(sets, columns, strict=True)))
            taken.append(columns)
        for index, unit in enumerate(self.units):
            program.row(combined((1.0, each[index]) for each in numbers), most=float(unit.most))
        solved = self._solve(program, rates, floor)
        if solved is None:
            return -math.inf, None
        values = solved[1]
        partition = tuple(
            next(
                machines for (machines, _), column in zip(sets, columns, strict=True) if values[column] > 0.5
            )
            for sets, columns in zip(open_sets, taken, strict=True)
        )
        return self.value(partition), partition

    def value(self, partition: Partition) -> float:
        """What a partition into searched sets is worth."""
        each = [
            job.worth * job.achieved[machines] for job, machines in zip(self.jobs, partition, strict=True)
        ]
        return min(each) if self.value_of == "least" else sum(each)

    def fewest(self, job: RatedJob) -> Machines | None:
        """Machines with the fewest devices that the job may be able to run on; None where there are none."""
        ceiling = job.together.most_rate(job.together.everything)
        if not ceiling:
            return None
        program = Program("fewest")
        program.column("objective")
        columns = self._machines_of(program, job, "")
        pace = program.column("pace", upper=1.0)
        job.together.bound(program, columns, pace, ceiling, must=True)
        program.row({pace: 1.0}, least=job.least_rate / ceiling)
        gpus = job.together.sum_of(columns, lambda index: self.units[index].gpus)
        program.equal(added({0: -1.0}, gpus))
        solved = exact(program)
        if solved.values is None:
            return None
        return tuple(round(float(solved.values[column])) for column in columns)

    def gpus(self, machines: Machines) -> int:
        """Devices of some machines."""
        return sum(number * unit.gpus for number, unit in zip(machines, self.units, strict=True))

    def _allowed(self, job: RatedJob, machines: Machines) -> bool:
        return job.least_gpus <= self.gpus(machines) <= (job.most_gpus or math.inf)

    def _machines_of(self, program: Program, job: RatedJob, name: str) -> list[int]:
        """Columns of the numbers of machines of one job."""
        columns = [
            program.column(f"{name}unit_{index}", upper=float(most), whole=True)
            for index, most in enumerate(job.together.most)
        ]
        gpus = job.together.sum_of(columns, lambda index: self.units[index].gpus)
        program.row(gpus, least=float(job.least_gpus), most=float(job.most_gpus or math.inf))
        nodes: dict[str, list[int]] = {}
        for index, unit in enumerate(self.units):
            if unit.gpu is not None:
                nodes.setdefault(unit.pool, []).append(index)
        # A job has whole nodes, or some devices of one node.
        own = {
            pool: [program.column(f"{name}{how}_{pool}", upper=1.0, whole=True) for how in ("whole", "part")]
            for pool in nodes
        }
        for pool, indices in nodes.items():
            whole, part = own[pool]
            program.row({whole: 1.0, part: 1.0}, most=1.0)
            for index in indices:
                most = float(job.together.most[index])
                program.row({columns[index]: 1.0, whole: -most}, least=0.0)
                program.row({columns[index]: 1.0, whole: -most, part: -most}, most=0.0)
            others = total((1.0, column) for other, pair in own.items() if other != pool for column in pair)
            program.row(added(others, {part: float(len(nodes))}), most=float(len(nodes)))
        return columns

    def _room(self, program: Program, numbers: Sequence[Sequence[int]]) -> None:
        """No machine has two jobs."""
        for index, unit in enumerate(self.units):
            program.row(ones(columns[index] for columns in numbers), most=float(unit.most))

    def _solve(
        self, program: Program, rates: Sequence[Terms], floor: float | None = None
    ) -> tuple[float, Values] | None:
        """(a bound on the value, the solution); above a floor the rates are greatest, as shares of the greatest."""
        worth = [
            {column: factor * job.worth for column, factor in rate.items()}
            for job, rate in zip(self.jobs, rates, strict=True)
        ]
        tops = [max(each.values()) for each in worth]
        top = min(tops) if self.value_of == "least" else sum(tops)
        shares = [combined([(1.0 / own, each)]) for each, own in zip(worth, tops, strict=True)]
        level = program.column("value", upper=1.0)
        if self.value_of == "least":
            for share, own in zip(shares, tops, strict=True):
                program.row(added(share, {level: -top / own}), least=0.0)
        else:
            program.row(added(combined((1.0 / top, each) for each in worth), {level: -1.0}), least=0.0)
        if floor is None:
            program.equal({0: 1.0, level: 1.0}, 1.0)
        else:
            program.row({level: 1.0}, least=floor / top * (1 - SLACK))
            program.equal(added({0: 1.0}, combined((1.0 / len(shares), share) for share in shares)), 1.0)
        solved = exact(program)
        if solved.values is None:
            return None
        return (1 - solved.bound + SLACK) * top, solved.values
