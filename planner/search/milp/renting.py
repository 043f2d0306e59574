"""Which machines to rent, as an integer linear program: the numbers of machines are its variables.

What machines do together is bounded by ``Together``: machines that are alike but for their price and their stops do the
same. Of it counts the goodput alone, which falls with the stops of all machines; it is bounded from above in steps. So
the program's optimum is a bound, and its solution the set of machines to search next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import product
from typing import Literal

from planner.frozen import dataclass
from planner.search.milp.machines import SLACK, MachineRates, Machines
from planner.search.milp.program import Program, added, total
from planner.search.milp.solver import Unsolved, Values, exact

Wanted = Literal["time", "money"]
"""What is least: seconds of the training, or its price."""

STEPS = 12
"""Steps of the goodput that are there from the beginning."""
ROUNDS = 50
"""Ratios of price to speed that are tried until no better one is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is known of one machine of an offer."""

    rate: float
    """Tokens a second at best."""
    price: float
    """Of one hour."""
    most: int
    """How many there are."""
    place: tuple[str, ...]
    """What those that can work together have in common."""
    stops: float
    """Stops a second."""
    kind: str = ""
    """Machines of one kind and place do the same together, whichever of them; none is like one without a kind."""


@dataclass(slots=True)
class Renting:
    """The machines on offer, and what was learnt of some sets of them."""

    machines: Sequence[Machine]
    tokens: float
    """To train on."""
    goodput: Callable[[float], float]
    """Share of the time that is work, by stops a second; never grows with them."""
    most: int | None = None
    """Most machines in all."""
    looked: set[Machines] = field(default_factory=set)
    """Machines that something is known of."""
    together: MachineRates = field(init=False)
    """What they do together."""

    def __post_init__(self) -> None:
        """Sort the offers by kind."""
        kinds: dict[tuple[object, ...], list[int]] = {}
        for index, each in enumerate(self.machines):
            kinds.setdefault((each.place, each.kind or index), []).append(index)
        self.together = MachineRates(
            rates=[each.rate for each in self.machines],
            most=[each.most for each in self.machines],
            kinds=tuple(map(tuple, kinds.values())),
        )

    def twins(self, machines: Machines) -> Iterator[Machines]:
        """All machines that do the same as these, themselves included; they may stop less and cost less."""
        ways: list[list[dict[int, int]]] = []
        for alike, number in zip(self.together.kinds, self.together.by_kind(machines), strict=True):
            each = (range(min(number, self.machines[index].most) + 1) for index in alike)
            ways.append([dict(zip(alike, way, strict=True)) for way in product(*each) if sum(way) == number])
        for parts in product(*ways):
            counts = {index: number for part in parts for index, number in part.items()}
            yield tuple(counts[index] for index in range(len(machines)))

    def rate(self, machines: Machines) -> float:
        """Tokens a second of these machines at best, each for itself."""
        return self.together.rate(machines)

    def stops(self, machines: Machines) -> float:
        """Stops of a run on these machines a second."""
        return sum(number * each.stops for number, each in zip(machines, self.machines, strict=True))

    def price(self, machines: Machines) -> float:
        """Of one hour."""
        return sum(number * each.price for number, each in zip(machines, self.machines, strict=True))

    def needed(self, machines: Machines, most_seconds: float, most_money: float) -> float:
        """Tokens a second that they must do to train in this time and for this money; infinite for never."""
        share, hours = self.goodput(self.stops(machines)), most_money / self.price(machines)
        return self.tokens / min(most_seconds, hours * 3600) / share if share else math.inf

    def wider(
        self, machines: Machines, efficiency: float, most_seconds: float, most_money: float
    ) -> Machines:
        """As many more machines as still do not keep these limits, if they do this share of what each does at best.

        A search that proves so of all of them rules out every set in between.
        """
        needed = self.needed(machines, most_seconds, most_money)
        more = list(machines)
        place = next(each.place for number, each in zip(machines, self.machines, strict=True) if number)
        growing = [index for index, each in enumerate(self.machines) if each.place == place]
        while growing:
            for index in tuple(growing):
                more[index] += 1
                if more[index] > self.machines[index].most or self.rate(tuple(more)) * efficiency >= needed:
                    more[index] -= 1
                    growing.remove(index)
        return tuple(more)

    def best(
        self,
        wanted: Wanted,
        most_seconds: float = math.inf,
        most_money: float = math.inf,
    ) -> tuple[float, Machines | None]:
        """(a bound on what is wanted within both limits, the machines that might reach it).

        The bound is infinite where no machines keep the limits.
        """
        ceiling = sum(each.rate * each.most for each in self.machines)
        if not ceiling:
            return math.inf, None
        ask = self._fastest if wanted == "time" else self._cheapest
        try:
            return ask(ceiling, most_seconds, most_money)
        except Unsolved:
            return 0.0, None

    def _fastest(
        self, ceiling: float, most_seconds: float, most_money: float
    ) -> tuple[float, Machines | None]:
        """What the whole market's best rate has over that of the machines is least where they are fastest."""
        program, numbers, rate = self._program(ceiling, most_seconds, most_money)
        program.equal({0: 1.0, rate: 1.0}, 1.0)
        solved = exact(program)
        speed = (1 - solved.bound) * ceiling
        if solved.values is None or speed <= SLACK * ceiling:
            return math.inf, None
        return self.tokens / speed * (1 - SLACK), self._machines(solved.values, numbers)

    def _cheapest(
        self, ceiling: float, most_seconds: float, most_money: float
    ) -> tuple[float, Machines | None]:
        """The least ratio of price to speed, by Dinkelbach's method (1967): better ratios until there is none."""
        seconds, machines = self._fastest(ceiling, most_seconds, most_money)
        if machines is None:
            return math.inf, None
        unit = max(each.price for each in self.machines)
        ratio = self.price(machines) / unit / (self.tokens / seconds / ceiling)
        for _ in range(ROUNDS):
            program, numbers, rate = self._program(ceiling, most_seconds, most_money)
            price = self._sum(numbers, lambda each: each.price / unit)
            # column 0 = price - ratio x rate + ratio, which is never negative: no rate is above 1.
            program.equal(added(added({0: -1.0}, price), {rate: -ratio}), -ratio)
            solved = exact(program)
            least = solved.bound - ratio
            if solved.values is None or least >= -SLACK * ratio:
                # No rate is above 1, so no ratio is below this one by more than what is left.
                ratio += min(0.0, least) / self._least_rate(most_seconds, ceiling)
                break
            machines = self._machines(solved.values, numbers)
            ratio = self.price(machines) / unit / float(solved.values[rate])
        money = ratio * unit / ceiling * self.tokens / 3600
        return max(0.0, money * (1 - SLACK)), machines

    def _least_rate(self, most_seconds: float, ceiling: float) -> float:
        """The least share of the ceiling that may be a solution."""
        least = min(each.rate for each in self.machines if each.rate)
        if most_seconds < math.inf:
            least = max(least, self.tokens / most_seconds)
        return least / ceiling

    def _program(
        self, ceiling: float, most_seconds: float, most_money: float
    ) -> tuple[Program, list[int], int]:
        """Numbers of machines that keep the limits; the column of their rate, as a share of the ceiling."""
        program = Program("renting")
        program.column("objective")
        rate = program.column("rate", upper=1.0)
        pace = program.column("pace", upper=1.0)
        numbers = [
            program.column(f"machines_{index}", upper=each.most, whole=True)
            for index, each in enumerate(self.machines)
        ]
        self._places(program, numbers)
        if self.most is not None:
            program.row(total((1.0, column) for column in numbers), most=float(self.most))
        self.together.bound(program, numbers, pace, ceiling)
        self._goodput(program, numbers, rate, pace)
        if most_seconds < math.inf:
            program.row({rate: 1.0}, least=self.tokens / most_seconds / ceiling)
        if most_money < math.inf:
            worth = most_money * 3600 / self.tokens * ceiling
            unit = max(each.price for each in self.machines)
            price = self._sum(numbers, lambda each: each.price / unit)
            program.row(added(price, {rate: -worth / unit}), most=0.0)
        return program, numbers, rate

    def _sum(self, numbers: Sequence[int], of_one: Callable[[Machine], float]) -> dict[int, float]:
        """What the machines have together."""
        return total((of_one(each), column) for each, column in zip(self.machines, numbers, strict=True))

    def _places(self, program: Program, numbers: Sequence[int]) -> None:
        """All machines are in one place."""
        places = {
            place: program.column(f"place_{index}", upper=1.0, whole=True)
            for index, place in enumerate(dict.fromkeys(each.place for each in self.machines))
        }
        program.equal(total((1.0, column) for column in places.values()), 1.0)
        for each, column in zip(self.machines, numbers, strict=True):
            program.row({column: 1.0, places[each.place]: -float(each.most)}, most=0.0)

    def _goodput(self, program: Program, numbers: Sequence[int], rate: int, pace: int) -> None:
        """Rate <= goodput x pace, with the goodput of the lower end of a step of stops."""
        stops = self._sum(numbers, lambda each: each.stops)
        if not stops:
            program.row({rate: 1.0, pace: -1.0}, most=0.0)
            return
        most = sum(each.stops * each.most for each in self.machines)
        ends = {most * (step / STEPS) ** 2 for step in range(STEPS + 1)}
        ends |= {self.stops(machines) for machines in self.looked}
        marks = sorted(ends)
        chosen = [program.column(f"step_{step}", upper=1.0, whole=True) for step in range(len(marks))]
        program.equal(total((1.0, column) for column in chosen), 1.0)
        scaled = {column: factor / most for column, factor in stops.items()}
        # A set that was searched is at the lower end of its step, so that its goodput is its own: the set of all
        # machines too, whose step is that end alone.
        uppers = [*(end / most - SLACK for end in marks[1:]), 1.0]
        upper = total((end, column) for end, column in zip(uppers, chosen, strict=True))
        program.row(added(scaled, upper, -1.0), most=0.0)
        for low, column in zip(marks, chosen, strict=True):
            program.row({rate: 1.0, pace: -self.goodput(low), column: 1.0}, most=1.0)

    @staticmethod
    def _machines(values: Values, numbers: Sequence[int]) -> Machines:
        return tuple(round(float(values[column])) for column in numbers)
