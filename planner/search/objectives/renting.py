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
from planner.cluster.equal_pools import joined, likeness
from planner.cluster.offers import OffersFile, rented
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.cost.failures import MONTH_SECONDS, NEVER, Interruptions, goodput
from planner.dims.trained import lack
from planner.errors import PlanError
from planner.field_metadata import json_fields
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.equal_pools import on_joined_pools, on_own_pools
from planner.plan.file import Status
from planner.plan.placement import place
from planner.plan.values import Plan
from planner.ranges import NODES
from planner.search.bounds.device_rates import DeviceRates
from planner.search.deadline import Deadline
from planner.search.milp.machines import Kinds, Machines
from planner.search.milp.renting import Machine, Renting, Wanted
from planner.search.objectives.choose import PART_SECONDS, PART_SLICE, search_further
from planner.search.space.choices import offers, targets_of
from planner.search.values import Limits, Reporter, Scored, SearchResult, Silent, proven
from planner.targets import in_words

SHARE = 0.6
"""Part of the time for the question; the rest is for the front."""
UNKNOWN = 0.5
"""What machines of a place are taken to do together before any were searched, of what each does at best."""

FASTER = 0.01
"""What is faster by less than this part is no row of the front of its own."""


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
    """Machines that no others beat in time and money, the cheapest first; each faster than the one before by 1 % or
    more, but for the answer."""
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
        self.most_seconds = math.inf if goal.deadline_seconds is None else goal.deadline_seconds
        self.most_money = math.inf if goal.budget is None else goal.budget
        self.reporter = reporter or Silent()
        self.deadline = deadline or Deadline.after(limits.time_limit_seconds)
        self.unable: list[Unable] = []
        self.rentals: dict[Machines, Rental] = {}
        self.searched: dict[Kinds, SearchResult] = {}
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
        most_seconds, most_money = self.most_seconds, self.most_money
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
            best=None if best is None else self._on_own(best, self._gap(best, goal.wanted, bound)),
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
        kinds = self.program.together.kinds
        for kind, alike in enumerate(kinds):
            most = min(sum(offers[index].most for index in alike), self.goal.most or int(NODES.most))
            for number in sorted({most, 2 ** (most.bit_length() - 1)} if most else ()):
                if not self.interrupted and not (deadline.struck and self.searches):
                    self._search(tuple(number * (each == kind) for each in range(len(kinds))), deadline)

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
        asked = self.program.together.by_kind(machines)
        if machines not in self.program.looked:
            self.program.looked.add(machines)
            if asked in self.searched:
                return True
        if asked not in self.searched and min(most_seconds, most_money) < math.inf:
            more = self.program.wider(machines, self._efficiency(machines), most_seconds, most_money)
            wider = self.program.together.by_kind(more)
            if wider not in self.searched and self._search(wider, deadline):
                return True
        return self._search(asked, deadline)

    def _efficiency(self, machines: Machines) -> float:
        """What several machines of that place did, at most, of what each does at best."""
        tokens, together = self.model.training.tokens, self.program.together
        team = self._team(together.by_kind(machines))
        known = [
            tokens / result.bound_seconds / self.program.rate(self._alone(kinds))
            for kinds, result in self.searched.items()
            if sum(kinds) > 1 and 0 < result.bound_seconds < math.inf and self._team(kinds) == team
        ]
        return median(known) if known else UNKNOWN

    def _alone(self, kinds: Kinds) -> Machines:
        """So many machines of the first offer of each kind, whether or not it has as many: what all twins do."""
        numbers = [0] * len(self.table.offers)
        for alike, number in zip(self.program.together.kinds, kinds, strict=True):
            numbers[alike[0]] = number
        return tuple(numbers)

    def _team(self, kinds: Kinds) -> tuple[str, ...]:
        """All offers whose machines can work with these."""
        return next(team for team, number in zip(self._teams(), kinds, strict=True) if number)

    def _teams(self) -> Iterable[tuple[str, ...]]:
        """By kind."""
        return (self.teams[self.table.offers[alike[0]].name] for alike in self.program.together.kinds)

    def _named(self, machines: Machines) -> dict[str, int]:
        """By the name of the offer."""
        return {
            offer.name: number for offer, number in zip(self.table.offers, machines, strict=True) if number
        }

    def _search(self, kinds: Kinds, deadline: Deadline) -> bool:
        """What these machines do together, better known than before; False where nothing more comes of it."""
        alone = self._alone(kinds)
        further = search_further(
            self.searched.get(kinds),
            self._cluster(self._named(alone)),
            self.model,
            self.calibration,
            replace(self.limits, gap=self.limits.gap / 2),
            deadline.slice(PART_SLICE, PART_SECONDS),
        )
        if further is None:
            return False
        result, news = further
        self.searches += 1
        self.searched[kinds] = result
        self.interrupted = self.interrupted or result.interrupted
        if result.bound_seconds > 0:
            self.program.together.learn(alone, self.model.training.tokens / result.bound_seconds)
        if result.best is not None:
            numbers, best = self._used(alone, result.best)
            for twin in self._twins(numbers):
                self._keep(twin, best)
        return news

    def _used(self, machines: Machines, scored: Scored) -> tuple[Machines, Scored]:
        """A plan on these machines, on those of them that it does not leave idle."""
        nodes: dict[str, set[int]] = {}
        for slots in place(scored.plan, self._cluster(self._named(machines))):
            for slot in slots:
                nodes.setdefault(slot.pool, set()).update(
                    range(slot.first_node, slot.first_node + slot.nodes)
                )
        used = tuple(len(nodes.get(offer.name, ())) for offer in self.table.offers)
        if used == machines:
            return machines, scored
        try:
            return used, self._scored(used, scored.plan)
        except PlanError:  # the plan wants its machines where they are
            return machines, scored

    def _scored(self, machines: Machines, plan: Plan) -> Scored:
        estimator = Estimator(self._cluster(self._named(machines)), self.model, self.calibration)
        return Scored(plan=plan, estimate=estimator.estimate(plan))

    def _twins(self, machines: Machines) -> list[Machines]:
        """Of all machines that do the same as these, those that no others beat in price and stops."""
        kept: list[Machines] = []
        price, stops = self.program.price, self.program.stops
        for each in sorted(self.program.twins(machines), key=lambda each: (price(each), stops(each))):
            if not kept or stops(each) < stops(kept[-1]):
                kept.append(each)
        return kept

    def _keep(self, machines: Machines, scored: Scored) -> None:
        """What these machines take with a plan on as many of the first offer of each kind."""
        known = self.rentals.get(machines)
        if known is not None and known.scored.estimate.step_seconds <= scored.estimate.step_seconds:
            return
        share = self.program.goodput(self.program.stops(machines))
        if not share:
            return
        try:
            self._own_plan(machines, scored.plan)
        except PlanError:
            return
        named = self._named(machines)
        first = next(offer for offer in self.table.offers if offer.name in named)
        seconds = self.goal.tokens / scored.estimate.tokens_per_second / share
        hourly = self.program.price(machines)
        self.rentals[machines] = Rental(
            machines=tuple(Taken(offer=name, machines=number) for name, number in named.items()),
            provider=first.provider or "",
            region=first.region or "",
            seconds=seconds,
            price=hourly * seconds / 3600,
            price_per_hour=hourly,
            goodput=share,
            gap=1.0,
            numbers=machines,
            scored=scored,
        )

    def _own_plan(self, machines: Machines, plan: Plan) -> Plan:
        """A plan on as many machines of the first offer of each kind, on these.

        Raises PlanError where a replica that fills several nodes would stand on machines of several offers.
        """
        alone = self._alone(self.program.together.by_kind(machines))
        cluster = self._cluster(self._named(machines))
        seen = joined(cluster)
        same = self._cluster(self._named(alone))
        there = {likeness(pool): pool.hosts for pool in seen.pools}
        pools = tuple(pool.model_copy(update={"hosts": there[likeness(pool)]}) for pool in same.pools)
        renamed = on_joined_pools(plan, seen, same.model_copy(update={"pools": pools}))
        return on_own_pools(renamed, seen, cluster)

    def _on_own(self, rental: Rental, gap: float) -> Rental:
        """With its plan on its own machines."""
        plan = self._own_plan(rental.numbers, rental.scored.plan)
        return replace(rental, gap=gap, scored=self._scored(rental.numbers, plan))

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
        """The least money in time, and the least time for the money; at worst the least of both at all. Each once."""
        told: set[Machines] = set()
        asked: list[tuple[Wanted, float, float]] = []
        asked += [("money", most_seconds, math.inf)] if most_money < math.inf else []
        asked += [("time", math.inf, most_money)] if most_seconds < math.inf else []
        for wanted, seconds, money in asked:
            _, rental = self.ask(wanted, seconds, money, self.deadline.part(0.5))
            if rental is None:
                _, rental = self.ask(wanted, math.inf, math.inf, self.deadline.part(0.5))
            if rental is not None and rental.numbers not in told:
                told.add(rental.numbers)
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
        """The cheapest first: the answer, and what is faster than cheaper ones by enough to pay for."""
        best = self._best(self.goal.wanted, self.most_seconds, self.most_money)
        kept: list[Rental] = []
        for each in sorted(self.rentals.values(), key=lambda each: (each.price, each.seconds)):
            if not kept or each.seconds < kept[-1].seconds * (1 - FASTER) or each is best:
                kept.append(each)
        return kept
