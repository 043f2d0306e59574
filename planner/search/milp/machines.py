"""Throughput of sets of machines, as rows of an integer program whose variables are numbers of machines.

It is known of sets that were searched, and bounded for all others:

* no more than the sum of what each does at best (``DeviceRates``);
* no more than a searched set that has at least as many of each kind: a plan may leave machines idle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planner.search.milp.program import Program, Terms, added, total

Machines = tuple[int, ...]
"""Numbers of machines, by sort."""
Kinds = tuple[int, ...]
"""Numbers of machines, by kind."""

SLACK = 1e-7
"""Of bounds, for floating-point arithmetic in the solver."""


@dataclass(slots=True)
class MachineRates:
    """What was learnt of some sets of machines."""

    rates: Sequence[float]
    """Tokens a second of one machine of each sort at best."""
    most: Sequence[int]
    """Machines of each sort that there are."""
    kinds: Sequence[Sequence[int]]
    """Sorts whose machines do the same together, whichever of them."""
    known: dict[Kinds, float] = field(default_factory=dict)
    """Tokens a second that no plan on these machines, or on fewer of them, is above."""

    @property
    def everything(self) -> Machines:
        """All machines."""
        return tuple(self.most)

    def by_kind(self, machines: Machines) -> Kinds:
        """How many there are of each kind."""
        return tuple(sum(machines[index] for index in alike) for alike in self.kinds)

    def learn(self, machines: Machines, rate: float) -> None:
        """No plan on these machines does more tokens a second."""
        key = self.by_kind(machines)
        self.known[key] = min(rate, self.known.get(key, math.inf))

    def rate(self, machines: Machines) -> float:
        """Tokens a second of these machines at best, each for itself."""
        return sum(number * rate for number, rate in zip(machines, self.rates, strict=True))

    def most_rate(self, machines: Machines) -> float:
        """Tokens a second of these machines at most, by all that is known."""
        own = self.by_kind(machines)
        return min(
            self.rate(machines),
            *(rate for known, rate in self.known.items() if _covers(known, own)),
            math.inf,
        )

    def sum_of(self, numbers: Sequence[int], of_one: Callable[[int], float]) -> Terms:
        """What machines have together, by the columns of their numbers."""
        return total((of_one(index), column) for index, column in enumerate(numbers))

    def bound(
        self,
        program: Program,
        numbers: Sequence[int],
        pace: int,
        ceiling: float,
        name: str = "",
        *,
        must: bool = False,
    ) -> None:
        """Rows that keep the column ``pace``, a share of the ceiling of at most 1, below what is known.

        With ``must`` sets without any plan are ruled out.
        """
        program.row(
            added({pace: 1.0}, self.sum_of(numbers, lambda index: self.rates[index] / ceiling), -1.0),
            most=0.0,
        )
        for index, (known, rate) in enumerate(self.known.items()):
            if self._beaten(known, rate):
                continue
            over = {}
            for kind, (number, alike) in enumerate(zip(known, self.kinds, strict=True)):
                if number < sum(self.most[sort] for sort in alike):
                    more = program.column(f"{name}more_{index}_{kind}", upper=1.0, whole=True)
                    of_kind = total((1.0, numbers[sort]) for sort in alike)
                    program.row(added(of_kind, {more: -(number + 1.0)}), least=0.0)
                    over[more] = -1.0
            program.row(added({pace: 1.0}, over), most=rate / ceiling)
            if must and not rate:
                program.row(over, most=-1.0)

    def _beaten(self, known: Kinds, rate: float) -> bool:
        """True where another set says as much of more machines."""
        return any(
            other != known and speed <= rate and _covers(other, known) for other, speed in self.known.items()
        )


def _covers(more: Kinds, fewer: Kinds) -> bool:
    return all(one <= two for one, two in zip(fewer, more, strict=True))
