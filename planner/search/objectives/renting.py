"""Which machines to rent for a training run: an integer program proposes them, a search says what they do.

The program knows a bound for every set of machines; what a search proves of one set bounds all that have no more
machines of any offer. Both go on in turns until the best set found is as good as the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median
from time import monotonic

from planner.calibration.values import Calibration
from planner.cluster.offers import OffersFile, rented
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.cost.failures import MONTH_SECONDS, NEVER, Interruptions, goodput
from planner.dims.trained import lack
from planner.field_metadata import json_fields
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.equal_pools import likeness
from planner.plan.file import Status
from planner.ranges import NODES
from planner.search.bounds.device_rates import DeviceRates
from planner.search.deadline import Deadline
from planner.search.milp.machines import Machines
from planner.search.milp.renting import Machine, Renting, Wanted
from planner.search.objectives.choose import PART_SECONDS, PART_SLICE, search_further
from planner.search.space.choices import offers, targets_of
from planner.search.values import Limits, Reporter, Scored, SearchResult, Silent, proven
from planner.targets import in_words

SHARE = 0.6
"""Part of the time for the question; the rest is for the front."""
UNKNOWN = 0.5
"""What machines of a place are taken to do together before any were searched, of what each does at best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentGoal:
    """What is asked of rented machines."""

    tokens: float
    """Tokens to train on."""
    wanted: Wanted
    """What is least within the limits: time or money."""
    deadline_seconds: float | None = None
    """Longest time."""
    budget: float | None = None
    """Most money, in the currency of the offers."""
    interruptions: Interruptions = NEVER
    """Failures of devices, and what a stop takes; spot machines stop more often."""
    most: int | None = None
    """Most machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Machines of one offer."""

    offer: str
    """The offer."""
    machines: int
    """How many are rented."""


@json_fields(
    "scored.estimate.step_seconds",
    "scored.estimate.tokens_per_second",
    "scored.estimate.devices",
    without=("scored", "numbers"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """Rented machines with the best plan found on them."""

    machines: tuple[Taken, ...]
    """What is rented."""
    provider: str
    """Of all its machines; empty where the file names none."""
    region: str
    """Likewise."""
    seconds: float
    """Of the whole training, failures included."""
    price: float
    """Of all rented machines for that time."""
    price_per_hour: float
    """Of all rented machines."""
    goodput: float
    """Share of the time that is useful work."""
    gap: float
    """In a front: no machines at this cost or less are faster by more than this fraction. For the answer: the gap in
    what is minimised."""
    numbers: Machines
    scored: Scored

    def value(self, wanted: Wanted) -> float:
        """What is least."""
        return self.seconds if wanted == "time" else self.price

    def within(self, seconds: float, money: float) -> bool:
        """True when it keeps both limits."""
        return self.seconds <= seconds and self.price <= money


@dataclass(frozen=True, slots=True, kw_only=True)
class Unable:
    """An offer whose machines cannot train the model, in whatever number."""

    offer: str
    """The offer."""
    why: str
    """What its devices lack (a number format: ``no bf16``; a link to their host, memory for a layer), or the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """The answer: what to rent, its proof, and the front of time against money."""

    status: Status
    """optimal (within the requested gap), feasible, infeasible (proven), unknown (stopped before any was found)."""
    wanted: Wanted
    """What is minimised: time or money."""
    best: Rental | None
    """What to rent; null where nothing keeps the limits."""
    bound: float | None
    """No machines of the offers need less time, or money, within the limits; null if none meets them."""
    gap: float
    """(value - bound) / value."""
    front: tuple[Rental, ...]
    """Machines that no others beat in time and money, the cheapest first."""
    nearest: tuple[Rental, ...]
    """Where nothing keeps the limits: the least money within the deadline, and the least time within the budget."""
    offers: int
    """Offers considered."""
    without_plan: tuple[Unable, ...]
    """Offers that cannot train the model."""
    searches: int
    """Sets of machines that were searched."""
    seconds: float
    """How long it took."""
    interrupted: bool
    """Whether Ctrl-C stopped it."""


class RentSearch:
    """Asks the program and the search in turns, and remembers what both said."""

    def __init__(
        self,
        table: OffersFile,
        model: ModelSpec,
        calibration: Calibration,
        limits: Limits,
        goal: RentGoal,
        reporter: Reporter | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        self.table, self.model, self.calibration = table, model, calibration
        self.teams = table.teams()
        self.limits, self.goal = limits, goal
        self.reporter = reporter or Silent()
        self.deadline = deadline or Deadline.after(limits.time_limit_seconds)
        self.unable: list[Unable] = []
        self.rentals: dict[Machines, Rental] = {}
        self.searched: dict[Machines, SearchResult] = {}
        self.searches = 0
        self.interrupted = False
        stops = goal.interruptions
        machines = tuple(self._machines())
        self.program = Renting(
            machines=machines,
            tokens=goal.tokens,
            goodput=lambda rate: goodput(rate, stops.checkpoint_seconds, stops.restart_seconds),
            most=goal.most,
        )

    def _machines(self) -> Iterable[Machine]:
        """What is known of one machine of each offer; those that can work together are looked at together."""
        rates: dict[str, float] = {}
        kinds: dict[str, str] = {}
        for team in dict.fromkeys(self.teams.values()):
            there = {
                offer.name: offer.available for offer in self.table.offers if self.teams[offer.name] == team
            }
            cluster = self._cluster(there)
            estimator = Estimator(cluster, self.model, self.calibration)
            best = DeviceRates(estimator, self.limits).tokens_per_second()
            for pool in cluster.pools:
                each = sum(best.get((pool.name, gpu), 0.0) for gpu in pool.devices)
                rates[pool.name], kinds[pool.name] = each, likeness(pool)
                if not each:
                    self.unable.append(Unable(offer=pool.name, why=self._why(estimator.topology, pool.name)))
        failures = self.goal.interruptions.per_gpu_month
        for offer in self.table.offers:
            yield Machine(
                rate=rates[offer.name],
                price=offer.price_per_hour,
                most=offer.available if rates[offer.name] else 0,
                place=self.teams[offer.name],
                stops=(failures * offer.count + offer.stops_per_month) / MONTH_SECONDS,
                kind=kinds[offer.name],
            )

    def _why(self, topology: Topology, pool: str) -> str:
        """What the devices of a pool lack that the model needs."""
        rows, training = targets_of(self.limits), self.model.training
        if not any(offers(row, self.model) for row in rows):
            return f"not trained by {in_words([row.name for row in rows], 'or')}"
        device_types = [each for each in topology.device_types if each.pool == pool]
        lacks = dict.fromkeys(filter(None, (lack(each, training) for each in device_types)))
        if lacks:
            return f"no {', '.join(lacks)}"
        if training.paged and all(each.host.bytes_per_second is None for each in device_types):
            return "host.link_gBps, over which moments are paged, is not given"
        return "not one layer fits"

    def _cluster(self, machines: Mapping[str, int]) -> ClusterSpec:
        """What is searched: without prices, so that pools that differ in nothing else are one to the search."""
        cluster = rented(self.table, machines)
        pools = tuple(pool.model_copy(update={"price_per_gpu_hour": None}) for pool in cluster.pools)
        return cluster.model_copy(update={"pools": pools})

    def run(self) -> Rent:
        """The answer, then its front while time is left."""
        start, goal = monotonic(), self.goal
        most_seconds = math.inf if goal.deadline_seconds is None else goal.deadline_seconds
        most_money = math.inf if goal.budget is None else goal.budget
        nearest: list[Rental] = []
        try:
            self._begin()
            bound, best = self.ask(goal.wanted, most_seconds, most_money, self.deadline.part(SHARE))
            if best is None and bound == math.inf and (most_seconds < math.inf or most_money < math.inf):
                nearest = list(self._nearest(most_seconds, most_money))
            self.reporter.phase("front")
            front = self._front()
        except KeyboardInterrupt:  # a second one, outside a search
            self.interrupted = True
            front = self._front()
        # What was learnt since.
        bound, _ = self.program.best(goal.wanted, most_seconds, most_money)
        best = self._best(goal.wanted, most_seconds, most_money)
        return Rent(
            status=self._status(best, bound),
            wanted=goal.wanted,
            best=None if best is None else replace(best, gap=self._gap(best, goal.wanted, bound)),
            bound=None if bound == math.inf else bound,
            gap=1.0 if best is None else self._gap(best, goal.wanted, bound),
            front=front,
            nearest=tuple(nearest),
            offers=len(self.table.offers),
            without_plan=tuple(self.unable),
            searches=self.searches,
            seconds=monotonic() - start,
            interrupted=self.interrupted,
        )

    def _begin(self) -> None:
        """Search each kind alone: all its machines, and as many as a power of two, which divide batches evenly.

        They are searched quickest, and what they reach rules out much.
        """
        deadline, offers = self.deadline.part(SHARE / 2), self.program.machines
        for alike in self.program.together.kinds:
            most = min(sum(offers[index].most for index in alike), self.goal.most or int(NODES.most))
            for number in sorted({most, 2 ** (most.bit_length() - 1)} if most else ()):
                left, counts = number, [0] * len(offers)
                for index in alike:
                    counts[index] = min(left, offers[index].most)
                    left -= counts[index]
                best = self._cheapest_twin(tuple(counts))
                if not self.interrupted and not (deadline.struck and self.searches):
                    self._search(best, deadline)

    def ask(
        self, wanted: Wanted, most_seconds: float, most_money: float, deadline: Deadline
    ) -> tuple[float, Rental | None]:
        """(a bound, the best rental) within limits; searched until both agree or the deadline strikes."""
        while True:
            bound, machines = self.program.best(wanted, most_seconds, most_money)
            best = self._best(wanted, most_seconds, most_money)
            value = best.value(wanted) if best else math.inf
            self.reporter.progress(
                done=self.searches,
                total=self.searches + 1,
                best_seconds=best.seconds if best else None,
                bound_seconds=best.seconds * bound / value if best else 0.0,
            )
            if machines is None or bound >= value * (1 - self.limits.gap):
                return bound, best
            if self.interrupted or (deadline.struck and self.searches):
                return bound, best
            if not self._look(machines, deadline, wanted, most_seconds, most_money, value):
                return bound, self._best(wanted, most_seconds, most_money)

    def _look(
        self,
        machines: Machines,
        deadline: Deadline,
        wanted: Wanted,
        most_seconds: float,
        most_money: float,
        value: float,
    ) -> bool:
        """Search these machines, or first more of them that still should not be better than ``value``.

        That rules out all sets in between at once, where machines do together what those searched have done. False
        where nothing more comes of it.
        """
        limit = value * (1 - self.limits.gap)
        if wanted == "time":
            most_seconds = min(most_seconds, limit)
        else:
            most_money = min(most_money, limit)
        news = False
        if machines not in self.searched and min(most_seconds, most_money) < math.inf:
            wider = self.program.wider(machines, self._efficiency(machines), most_seconds, most_money)
            news = wider not in self.searched and self._search(wider, deadline)
            machines = wider if news else machines
        news = news or self._search(machines, deadline)
        twin = self._cheapest_twin(machines)
        if wanted == "money" and twin not in self.searched and not self.interrupted:
            self._search(twin, deadline)
        return news

    def _cheapest_twin(self, machines: Machines) -> Machines:
        """Of all machines that do the same as these, those with the lowest price for an hour of work."""

        def price_of_work(each: Machines) -> float:
            share = self.program.goodput(self.program.stops(each))
            return self.program.price(each) / share if share else math.inf

        return min(self.program.twins(machines), key=price_of_work)

    def _efficiency(self, machines: Machines) -> float:
        """What several machines of that place did, at most, of what each does at best."""
        place = self._place(machines)
        tokens = self.model.training.tokens
        known = [
            tokens / result.bound_seconds / self.program.rate(each)
            for each, result in self.searched.items()
            if sum(each) > 1 and 0 < result.bound_seconds < math.inf and self._place(each) == place
        ]
        return median(known) if known else UNKNOWN

    def _place(self, machines: Machines) -> tuple[str, ...]:
        offers = zip(self.table.offers, machines, strict=True)
        return next(self.teams[offer.name] for offer, number in offers if number)

    def _search(self, machines: Machines, deadline: Deadline) -> bool:
        """What these machines do together, better known than before; False where nothing more comes of it."""
        names = [offer.name for offer in self.table.offers]
        cluster = self._cluster(dict(zip(names, machines, strict=True)))
        further = search_further(
            self.searched.get(machines),
            cluster,
            self.model,
            self.calibration,
            replace(self.limits, gap=self.limits.gap / 2),
            deadline.slice(PART_SLICE, PART_SECONDS),
        )
        if further is None:
            return False
        result, news = further
        self.searches += 1
        self.searched[machines] = result
        self.interrupted = self.interrupted or result.interrupted
        tokens = self.model.training.tokens
        if result.bound_seconds > 0:
            self.program.learn(machines, tokens / result.bound_seconds)
        if result.best is not None:
            self._keep(machines, result.best)
        return news

    def _keep(self, machines: Machines, scored: Scored) -> None:
        known = self.rentals.get(machines)
        if known is not None and known.scored.estimate.step_seconds <= scored.estimate.step_seconds:
            return
        share = self.program.goodput(self.program.stops(machines))
        if not share:
            return
        offers = [
            (offer, number) for offer, number in zip(self.table.offers, machines, strict=True) if number
        ]
        seconds = self.goal.tokens / scored.estimate.tokens_per_second / share
        hourly = self.program.price(machines)
        self.rentals[machines] = Rental(
            machines=tuple(Taken(offer=offer.name, machines=number) for offer, number in offers),
            provider=offers[0][0].provider or "",
            region=offers[0][0].region or "",
            seconds=seconds,
            price=hourly * seconds / 3600,
            price_per_hour=hourly,
            goodput=share,
            gap=1.0,
            numbers=machines,
            scored=scored,
        )

    def _best(self, wanted: Wanted, most_seconds: float, most_money: float) -> Rental | None:
        kept = (each for each in self.rentals.values() if each.within(most_seconds, most_money))
        return min(kept, key=lambda each: (each.value(wanted), each.price, each.numbers), default=None)

    def _status(self, best: Rental | None, bound: float) -> Status:
        if best is None:
            return "infeasible" if bound == math.inf else "unknown"
        return proven(self._gap(best, self.goal.wanted, bound), self.limits.gap)

    @staticmethod
    def _gap(best: Rental, wanted: Wanted, bound: float) -> float:
        return max(0.0, 1 - bound / best.value(wanted))

    def _nearest(self, most_seconds: float, most_money: float) -> Iterable[Rental]:
        """The least money in time, and the least time for the money; at worst the least of both at all."""
        asked: list[tuple[Wanted, float, float]] = []
        asked += [("money", most_seconds, math.inf)] if most_money < math.inf else []
        asked += [("time", math.inf, most_money)] if most_seconds < math.inf else []
        for wanted, seconds, money in asked:
            _, rental = self.ask(wanted, seconds, money, self.deadline.part(0.5))
            if rental is None:
                _, rental = self.ask(wanted, math.inf, math.inf, self.deadline.part(0.5))
            if rental is not None:
                yield rental

    def _front(self) -> tuple[Rental, ...]:
        """Machines that no others beat in time and money, each with how much faster as cheap ones may be."""
        for wanted in ("money", "time"):
            if not self.deadline.struck and not self.interrupted:
                self.ask(wanted, math.inf, math.inf, self.deadline.part(0.4))
        hopeless: set[Machines] = set()
        while True:
            points = self._beats_all()
            bounds = [self.program.best("time", math.inf, point.price) for point in points]
            gaps = [
                max(0.0, 1 - bound / point.seconds) for point, (bound, _) in zip(points, bounds, strict=True)
            ]
            open_ones = [
                (gap, machines)
                for gap, (_, machines) in zip(gaps, bounds, strict=True)
                if gap > self.limits.gap and machines is not None and machines not in hopeless
            ]
            if not open_ones or self.deadline.struck or self.interrupted:
                return tuple(replace(point, gap=gap) for point, gap in zip(points, gaps, strict=True))
            _, machines = max(open_ones)
            point = next(point for point, (_, asked) in zip(points, bounds, strict=True) if asked == machines)
            if not self._look(machines, self.deadline, "time", math.inf, point.price, point.seconds):
                hopeless.add(machines)

    def _beats_all(self) -> list[Rental]:
        """The cheapest first."""
        kept: list[Rental] = []
        for each in sorted(self.rentals.values(), key=lambda each: (each.price, each.seconds)):
            if not kept or each.seconds < kept[-1].seconds:
                kept.append(each)
        return kept
