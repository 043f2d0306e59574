"""Quick plans of a search: the first one in milliseconds, then the best of a few of each family, and its ILP.

They prove nothing; they give the search something to cut with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from math import inf
from typing import Literal, Protocol

from planner.capabilities import RECOMPUTES, Schedule
from planner.cost.estimate import Estimator
from planner.cost.schedules import divides, is_v_shaped, uniform_seconds
from planner.cost.training import devices_of
from planner.frozen import dataclass
from planner.search.bounds.groups import Group, group_rates, grouped
from planner.search.bounds.rates import Speed
from planner.search.data_parallel import MAX_MICRO_BATCH, DataParallel, Shares, best_of, shares_of
from planner.search.data_parallel import choices as data_parallel_choices
from planner.search.deadline import NO_LIMIT, Deadline, Struck
from planner.search.heuristics.greedy import QUICK, Effort, greedy, layered
from planner.search.pipeline import OpenChoice, in_space, priced_on
from planner.search.space.choices import MAX_DEPTH, Choice, Family, families, orders_of, targets_of
from planner.search.space.device_sets import Box
from planner.search.space.partitions import NetworkPartition, network_partitions
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored

TRIES = 16
"""Choices with a pipeline or tensor parallelism that are tried, most promising first."""

SETS = 6
"""Sets of devices that are tried for each choice of data parallelism."""

ORDERS_GAIN = 1.4
"""What other schedules make of a plan at most: half of its layers in a V leave a third of the bubble."""

FIRST_TRIES, CHEAP_TRIES, CHEAP_SETS = 2, 4, 2
"""The same for both parts of a cheap look; choices that do not fit do not count, and only the best gets other orders,
in the second."""

_Known = Literal["rates", "one copy", "own"]
"""Whose bound of a choice of data parallelism is known."""

CHEAP_SHARES = 4
"""Choices of data parallelism that a cheap look takes, those with the least bounds."""

ALL_ORDERS = 24
"""Orders of the device types along the pipeline that are tried where it matters."""

OPEN_ORDERS = 4
"""Orders that are tried for a choice that a round has left open."""

FEWEST_PRICED = 2
"""Plans of such choices that are priced, at least."""

PRICED = 80
"""Stages of all plans of one that are priced, else at most. The time that a price takes grows with stages and devices:
each ``DEVICES`` of the cluster count as a stage more."""

SWAPS_PRICED = 400
"""The same of plans with stages exchanged."""

DEVICES = 1000
"""Whose part of the price of a plan takes as long as a stage's."""

SWAPPED = 1.05
"""What exchanges of stages make of a plan, at most."""

CLIMBED = 12
"""Degrees of which the fastest plan is the start of a climb."""

BEST_DEPTHS = 2
"""Depths of a family at which all schedules are tried, those where its first plans are fastest."""

DEPTH_STRIDE = 8
"""How many depths further the first of those is that a climb looks at."""

CLIMB_TRIES = 128
"""Families that all climbs from these look at, at most."""

DeviceKind = tuple[str, str]
"""(pool, gpu)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which devices a plan may use, and which it must."""

    pools: frozenset[str]
    least: Mapping[DeviceKind, int] = field(default_factory=dict)
    """Devices of a type that must work."""

    def met_by(self, used: Mapping[DeviceKind, int]) -> bool:
        """True when these devices are allowed and enough."""
        allowed = all(pool in self.pools for (pool, _), count in used.items() if count)
        return allowed and all(used.get(device_type, 0) >= count for device_type, count in self.least.items())


def everywhere(estimator: Estimator) -> Wanted:
    """Any devices of the cluster."""
    return Wanted(pools=frozenset(pool.name for pool in estimator.cluster.pools))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A family that was not looked at yet, and a bound of its plans."""

    least_seconds: float
    family: Family
    partition: NetworkPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A choice, and how long it takes, or about how long where it is not placed yet."""

    seconds: float
    choice: Choice
    partition: NetworkPartition


def quick_plan(
    estimator: Estimator, limits: Limits, wanted: Wanted, deadline: Deadline = NO_LIMIT
) -> Scored | None:
    """The fastest of a few dozen plans on the wanted devices, or of those until the deadline; None when none fits."""
    search = _QuickSearch(estimator, limits, wanted, deadline)
    with suppress(Struck):
        search.run()
    return search.best


def cheap_plan(
    estimator: Estimator, limits: Limits, wanted: Wanted, deadline: Deadline, known: Scored | None = None
) -> Scored | None:
    """The fastest of a few plans on the wanted devices, or the known one where none is faster."""
    look = CheapLook(estimator, limits, wanted, deadline, known)
    look.begin()
    return look.go_on()


class CheapLook:
    """The same in two parts: the first finds a plan if a cheap look does, the second looks on from there."""

    def __init__(
        self, estimator: Estimator, limits: Limits, wanted: Wanted, deadline: Deadline, known: Scored | None
    ) -> None:
        self._search = _QuickSearch(estimator, limits, wanted, deadline, cheap=True)
        self._search.best = known

    def begin(self) -> Scored | None:
        """The fastest of very few plans."""
        with suppress(Struck):
            self._search.run()
        return self._search.best

    def go_on(self) -> Scored | None:
        """The fastest of a few more."""
        with suppress(Struck):
            self._search.go_on()
        return self._search.best


class _QuickSearch:
    """Keeps the fastest plan, and leaves out what cannot be faster."""

    def __init__(
        self,
        estimator: Estimator,
        limits: Limits,
        wanted: Wanted,
        deadline: Deadline,
        *,
        cheap: bool = False,
    ) -> None:
        self.estimator, self.limits, self.wanted = estimator, limits, wanted
        self.deadline, self.cheap = deadline, cheap
        everyone = {pool.name for pool in estimator.cluster.pools}
        self.apart = bool(wanted.least) or not wanted.pools >= everyone
        """True where equal pools differ in what is wanted of them."""
        self.best: Scored | None = None
        self._done: set[tuple[object, ...]] = set()
        """Targets and degrees of which one choice has fitted."""
        self._open: Iterator[_Ranked] = iter(())
        """Choices that were not looked at."""
        self._tried = 0
        self._placed: list[_Ranked] = []
        """What a cheap look has placed in one order only."""

    @property
    def seconds(self) -> float:
        """Step of the fastest plan so far."""
        return self.best.estimate.step_seconds if self.best else float("inf")

    def run(self) -> None:
        """Data parallelism on the wanted devices, then what else promises most."""
        waiting: list[_Waiting] = []
        for row in targets_of(self.limits):
            for network, partition in network_partitions(self.estimator, row, apart=self.apart).items():
                device_types = {device_type.key for device_type in partition.device_types}
                if not partition.whole or not device_types >= self.wanted.least.keys():
                    continue
                self._shared(data_parallel_choices(row, self.limits, partition.estimator), partition)
                model = partition.estimator.model
                found = tuple(families(row, self.limits, model, partition.device_types, network))
                partition.bounds.rates.expect(found)
                for group in grouped(found):
                    self.deadline.check()
                    waiting += _waiting(group, partition, self.limits)
        self._open = self._ranked(waiting)
        self._stage(FIRST_TRIES if self.cheap else TRIES)

    def go_on(self) -> None:
        """The second part of a cheap look."""
        self._stage(CHEAP_TRIES)
        if self._placed:
            best = min(self._placed, key=lambda item: item.seconds)
            self._place(best.choice, best.partition, every_order=True)

    def _ranked(self, waiting: list[_Waiting]) -> Iterator[_Ranked]:
        """Choices by about how long they take; a family is not looked at before its bound is the least."""
        waiting.sort(key=lambda item: item.least_seconds, reverse=True)
        heap: list[tuple[float, int, _Ranked]] = []
        count = 0
        while waiting or heap:
            self.deadline.check()
            if waiting and (not heap or waiting[-1].least_seconds <= heap[0][0]):
                item = waiting.pop()
                if _degrees(item.family) in self._done:
                    continue
                for choice in _rank(item.family, item.partition, self.limits, self.wanted):
                    count += 1
                    heappush(heap, (choice.seconds, count, choice))
            else:
                yield heappop(heap)[2]

    def _offer(self, scored: Scored | None) -> None:
        if scored is not None and self.apart and scored.estimate.step_seconds < self.seconds:
            scored = in_space(scored, self.estimator)
        if scored is not None and scored.estimate.fits and scored.estimate.step_seconds < self.seconds:
            self.best = scored if self.wanted.met_by(devices_of(scored.plan)) else self.best

    def _shared(self, choices: Iterable[DataParallel], partition: NetworkPartition) -> None:
        """A batch per device: the most promising sets of the wanted devices."""
        sets: Iterator[tuple[Shares, Box | None]]
        if self.cheap:
            sets = islice(self._by_bound(choices, partition), CHEAP_SHARES)
        else:
            sets = (self._wanted_sets(choice, partition) for choice in choices)
        for shares, box in sets:
            self.deadline.check()
            if box is not None:
                self._share(shares, box)

    def _by_bound(
        self, choices: Iterable[DataParallel], partition: NetworkPartition
    ) -> Iterator[tuple[Shares, Box | None]]:
        """Those that may be faster than the fastest plan, by their bounds, each looked at where what is known of it is
        the least of all: what devices do at best, then the bound of one copy, which holds for groups, then their own.
        """
        alike: dict[DataParallel, list[DataParallel]] = {}
        for choice in choices:
            alike.setdefault(replace(choice, shard_size=None), []).append(choice)
        heap: list[tuple[float, int, DataParallel, _Known]] = []
        count = 0

        def push(bound: float, choice: DataParallel, known: _Known) -> None:
            nonlocal count
            count += 1
            if bound < inf:
                heappush(heap, (bound, count, choice, known))

        for whole in alike:
            self.deadline.check()
            push(self._bound(whole, partition, rates=True), whole, "rates")
        while heap and heap[0][0] < self.seconds:
            self.deadline.check()
            bound, _, choice, known = heappop(heap)
            if known == "own":
                yield self._wanted_sets(choice, partition)
                continue
            bound = max(bound, self._bound(choice, partition))
            for member in alike[choice] if known == "rates" else (choice,):
                push(bound, member, "own" if member == choice else "one copy")

    def _bound(self, choice: DataParallel, partition: NetworkPartition, *, rates: bool = False) -> float:
        """Of the wanted sets of a choice, by what devices do at best or by all that is known."""
        shares, box = self._wanted_sets(choice, partition)
        if box is None:
            return inf
        return shares.least(box) if rates else shares.bound(box)

    def _wanted_sets(self, choice: DataParallel, partition: NetworkPartition) -> tuple[Shares, Box | None]:
        """The sets of a choice of the wanted devices only, with all that must work."""
        shares = shares_of(choice, partition.estimator, self.limits)
        box = shares.sets.within(
            tuple(
                -(-self.wanted.least.get(device_type.key, 0) // choice.tp)
                for device_type in shares.device_types
            ),
            tuple(
                device_type.replicas(choice.tp) if device_type.pool in self.wanted.pools else 0
                for device_type in shares.device_types
            ),
            shares.unit,
        )
        return shares, box

    def _share(self, shares: Shares, box: Box) -> None:
        for plan in best_of(shares, box, CHEAP_SETS if self.cheap else SETS, self.seconds):
            self.deadline.check()
            self._offer(priced_on(self.estimator, plan, shares.estimator))

    def _stage(self, most: int) -> None:
        """The most promising choices until so many fit, one for each target and degrees, or enough were tried."""
        while self._tried < TRIES and len(self._done) < most:
            item = next(self._open, None)
            if item is None or item.seconds >= self.seconds * (ORDERS_GAIN if self.cheap else 1.0):
                return
            if _degrees(item.choice.family) not in self._done:
                self._tried += self._place(item.choice, item.partition, every_order=not self.cheap)

    def _place(self, choice: Choice, partition: NetworkPartition, *, every_order: bool) -> bool:
        """Plans of a choice, in every order the reverse and other schedules too; False without room for any."""
        self.deadline.check()
        stages = StageOptions(choice, partition.estimator, self.limits)
        slots = _slots(stages, self.wanted)
        for order in _both_ways(slots):
            scored = layered(stages, order, self.estimator)
            self._offer(scored)
            if scored is None:
                continue
            self._done.add(_degrees(choice.family))
            seconds = scored.estimate.step_seconds
            if not every_order:
                self._placed.append(_Ranked(seconds=seconds, choice=choice, partition=partition))
                break
            if self.cheap or seconds < self.seconds * ORDERS_GAIN:
                self._reorder(choice, partition, order)
        return bool(slots)

    def _reorder(self, choice: Choice, partition: NetworkPartition, slots: list[int]) -> None:
        """The same stages with other numbers of chunks and in other schedules."""
        model = partition.estimator.model
        for chunks, schedule in orders_of(choice.family, choice.depth, model, self.limits):
            other = replace(choice, interleave=chunks, schedule=schedule)
            if other != choice:
                self.deadline.check()
                stages = StageOptions(other, partition.estimator, self.limits)
                self._offer(layered(stages, slots, self.estimator))


def _degrees(family: Family) -> tuple[object, ...]:
    return family.target, family.tp, family.dp, family.folding, family.context


def _both_ways(slots: list[int]) -> list[list[int]]:
    """A pipeline and its reverse, where there is one and they differ."""
    return [order for order in (slots, slots[::-1])[: 1 + (slots != slots[::-1])] if order]


def _waiting(group: Group, partition: NetworkPartition, limits: Limits) -> Iterator[_Waiting]:
    """The families of a group that have a depth, each with less than its choices take by ``_rank``."""
    if group.first.dp is None:
        return
    layers = partition.estimator.model.layers
    rates = group_rates(group, partition.bounds)
    rate = sum(each.replicas * each.layers for each in rates)
    fastest = max((each.layers for each in rates), default=0.0)
    for family in group.families:
        possible = partition.depths(family, limits)
        if possible and rate and family.dp:
            # d stages do no more than d of the fastest, and no more than all devices: most where both meet.
            best = max(1.0, min(possible[-1], rate / family.dp / fastest))
            seconds = (family.micro_batches + best - 1) * layers / fastest / best
            yield _Waiting(seconds * (1 - 1e-9), family, partition)


def _rank(family: Family, partition: NetworkPartition, limits: Limits, wanted: Wanted) -> Iterator[_Ranked]:
    """Depths of a family, each with about the seconds that the wanted devices need without any traffic."""
    if family.tp is None or family.dp is None:
        return
    layers, width = partition.estimator.model.layers, family.tp * family.dp
    speeds = [
        speed for speed in partition.bounds.rates.speeds(family) if speed.device_type[0] in wanted.pools
    ]
    slots = sum(speed.slots for speed in speeds)
    offered = [depth for depth in partition.depths(family, limits) if depth <= slots + 1e-9]
    if not offered:
        return
    for depth in _sample(speeds, offered):
        counts = {
            speed.device_type: min(speed.slots, wanted.least.get(speed.device_type, 0) / width)
            for speed in speeds
        }
        for speed in speeds:
            free = max(0.0, depth - sum(counts.values()))
            counts[speed.device_type] += min(free, speed.slots - counts[speed.device_type])
        rate = sum(counts[speed.device_type] / speed.layer_seconds for speed in speeds)
        room = sum(counts[speed.device_type] * speed.most_layers for speed in speeds)
        if room >= layers * (1 - 1e-9):
            tail = layers / depth * max(speed.tail_seconds for speed in speeds if counts[speed.device_type])
            seconds = uniform_seconds(layers / rate, depth, family.micro_batches) + tail
            choice = Choice.plainest(family, depth, partition.estimator.model)
            yield _Ranked(seconds=seconds, choice=choice, partition=partition)


def _sample(speeds: Iterable[Speed], possible: Sequence[int]) -> set[int]:
    """Of the possible depths those at which a faster type is used up, and the halves, quarters, ... of the largest."""
    filled = accumulate(int(speed.slots) for speed in speeds)
    largest = max(possible, default=0)
    return {*filled, *(largest >> shift for shift in range(largest.bit_length()))} & {*possible}


def _slots(stages: StageOptions, wanted: Wanted) -> list[int]:
    """Compositions of the stages: first those that must be, then the fastest; none where there are too few."""
    depth = stages.choice.depth
    room = {device_type.key: device_type.devices for device_type in stages.topology.device_types}
    counts: Counter[int] = Counter()

    def uses(index: int) -> Counter[DeviceKind]:
        return Counter({(item.pool, item.gpu): item.devices for item in stages.compositions[index]})

    def take(index: int, most: int) -> None:
        free = (room[device_type] // devices for device_type, devices in uses(index).items())
        number = min(most, stages.most_stages(index) - counts[index], *free)
        counts[index] += number
        for device_type, devices in uses(index).items():
            room[device_type] -= number * devices

    allowed = [
        index
        for index in range(len(stages.compositions))
        if {pool for pool, _ in uses(index)} <= wanted.pools
    ]
    allowed.sort(key=lambda index: stages.option(min(1, depth - 1), index, 1).busy_seconds)
    for device_type, least in wanted.least.items():
        for index in allowed:
            have = sum(count * uses(taken)[device_type] for taken, count in counts.items())
            if uses(index)[device_type] and have < least:
                take(index, min(-((have - least) // uses(index)[device_type]), depth - counts.total()))
    for index in allowed:
        take(index, depth - counts.total())
    return [index for index in allowed for _ in range(counts[index])] if counts.total() == depth else []


REFINED = 8
"""Choices that get more quick plans."""

POLISH_ROUNDS = 10
"""Rounds of the ILP for the first incumbent."""

POLISHED_STAGES = 64
"""Largest number of stages times compositions whose first incumbent gets the ILP."""

THRIFTY = 64
"""Families that are asked, those that need least memory first, until one has a plan at all."""

THRIFTY_PLANS = 6
"""Choices of them that are planned."""

PROMISING = 2
"""Targets of which the first good plans come, and groups of families of each, that differ in more than recomputation;
as many again with divided experts."""

VAIN = 32
"""Groups in a row without a better plan after which the search for good first plans ends."""

GRACE_SECONDS = 0.3
"""After the time limit, for a good plan."""


class RunningSearch(Protocol):
    """A search that takes plans, and says how fast one must be."""

    estimator: Estimator
    limits: Limits
    deadline: Deadline
    best: Scored | None
    cutoff_seconds: float
    """Only faster plans are wanted; infinite where a plan is."""

    @property
    def incumbent(self) -> float:
        """Seconds that a plan must beat."""

    def offer(self, scored: Scored | None) -> None:
        """Take a plan if it is better."""

    def partition(self, item: Family) -> NetworkPartition:
        """The part of the cluster that a family is about."""

    def orders(self, family: Family, depth: int) -> list[tuple[int, Schedule]]:
        """Chunks and schedules of a pipeline that may be asked for."""

    def dealt(self, family: Family) -> Iterable[Family]:
        """The same as a family with its stages dealt over nodes."""

    def open_choice(self, bound: float, choice: Choice) -> OpenChoice:
        """A choice to be solved."""


class FirstPlans:
    """Offers quick plans to one search."""

    def __init__(self, explorer: RunningSearch) -> None:
        self.explorer = explorer
        self._promising: Choice | None = None
        self._quick: list[tuple[float, int, Choice]] = []
        self._seconds: dict[Family, float] = {}
        self._tried: set[Choice] = set()
        self._opened: set[Choice] = set()
        self._other_depths: set[tuple[object, ...]] = set()
        """Families with chunks and schedules whose depths were climbed."""
        self._good = False
        """True once a promising group has a plan."""

    def any(self, partition: NetworkPartition, families: Iterable[Family]) -> None:
        """A plan before anything else is known: of families that take little memory, the most replicas that fit.

        A few tries, whatever the time: a search ends with a plan where there is one.
        """
        planned = 0
        for family in sorted(families, key=_thrift)[:THRIFTY]:
            self._check()
            depth = self._shallowest(partition, family)
            if depth:
                planned += 1
                choice = Choice.plainest(family, depth, self.explorer.estimator.model)
                if self._plan(choice, partition) < inf or planned == THRIFTY_PLANS:
                    return

    def evenly(self, choices: Sequence[DataParallel], partition: NetworkPartition) -> None:
        """Data parallelism over all devices, the choice that takes least memory: of single devices, or of replicas.

        Then without the device types of least memory, until a plan fits.
        """
        explorer = self.explorer
        if not partition.device_types:
            return
        whole = [item for item in choices if item.one_copy]
        alone = [item for item in whole if item.tp == 1]
        for choice in dict.fromkeys((*alone[-1:], *whole[-1:])):
            self._check()
            allowed = explorer.limits.micro_batch or (MAX_MICRO_BATCH,)
            shares = shares_of(choice, partition.estimator, replace(explorer.limits, micro_batch=allowed))
            for box in _with_fewer_types(shares):
                self._check()
                plan = shares.plan(box.fullest(shares.batch, shares.unit))
                if plan is not None:
                    explorer.offer(priced_on(explorer.estimator, plan, partition.estimator))
                if explorer.best is not None:
                    return

    def _shallowest(self, partition: NetworkPartition, family: Family) -> int:
        """The least depth, of the powers of two and the largest one, at which the layers have room; 0 for none."""
        possible = partition.depths(family, self.explorer.limits)
        if not possible or family.dp is None or not _has_room(family, partition):
            return 0
        some = sorted({*(depth for depth in possible if not depth & (depth - 1)), possible[-1]})
        return next((depth for depth in some if partition.bounds.uniform(family).holds(depth)), 0)

    def _check(self) -> None:
        """Before a first plan, which comes whatever the time, unless only a faster one than a known one is wanted."""
        if self.explorer.cutoff_seconds < inf:
            self.explorer.deadline.check()
        self.explorer.deadline.check_wish()

    def check_later(self) -> None:
        """Before a good plan, which has ``GRACE_SECONDS`` more than there are, unless only a faster one is wanted."""
        known, deadline = self._good or self.explorer.cutoff_seconds < inf, self.explorer.deadline
        (deadline if known else deadline.later(GRACE_SECONDS)).check()

    def promising(self, groups: Iterable[tuple[Group, NetworkPartition]]) -> None:
        """Good plans before any bound is known: of the groups that should take least, the most replicas that fit.

        What a group should take leaves out all traffic, so that it compares neither targets nor divided experts with
        whole ones: those take turns, since whole ones are far fewer but may fit nowhere.
        """
        several = [(group, partition) for group, partition in groups if group.first.dp is not None]
        turns = [
            self._of_groups([pair for pair in several if (pair[0].first.folding.ways > 1) is divided])
            for divided in (False, True)
        ]
        while turns:
            turns = [turn for turn in turns if next(turn, False)]

    def _of_groups(self, groups: Iterable[tuple[Group, NetworkPartition]]) -> Iterator[bool]:
        """Quick plans of a few of these groups: of ``PROMISING`` targets, as many groups of each; True after each."""
        promises: list[tuple[float, int, bool, Group]] = []
        for group, partition in groups:
            self.check_later()
            promises.append((_promised_seconds(group, partition), len(promises), False, group))
        heapify(promises)
        planned: dict[str, set[tuple[object, ...]]] = {}
        """How the groups that were planned work on a micro-batch, by target."""
        vain, any_known = 0, False
        while promises:
            seconds, number, with_traffic, group = heappop(promises)
            if seconds >= self.explorer.incumbent or vain == VAIN:
                break
            name, work = group.first.target, group.first.equal_work[1:]
            known = planned.get(name, set())
            if work in known or len(known) == PROMISING or (not known and len(planned) == PROMISING):
                continue
            if not with_traffic:
                # A plan takes time too: when half of the grace is over, the groups whose traffic is known must do.
                if any_known and self.explorer.deadline.later(GRACE_SECONDS / 2).struck:
                    continue
                self.check_later()
                sent = _seconds_with_traffic(group, self.explorer.partition(group.first))
                any_known |= sent < inf
                heappush(promises, (max(seconds, sent), number, True, group))
                continue
            before = self.explorer.incumbent
            if self._most_replicas(group):
                planned[name] = {*known, work}
            vain = vain + 1 if before < inf and self.explorer.incumbent == before else 0
            yield True

    def _most_replicas(self, group: Group) -> bool:
        """Quick plans of one group; False when none fits.

        From the most replicas on, of each number the family that takes least memory; fewer replicas, whose pipelines
        are deeper, follow as long as they are faster; then the other families of the best number, which send less.
        """
        numbers: dict[int, list[Family]] = {}
        for family in sorted(group.families, key=lambda item: -item.zero):
            numbers.setdefault(family.dp or 1, []).append(family)
        least, others = inf, list[Family]()
        for _, alike in sorted(numbers.items(), reverse=True):
            seconds = inf
            while alike and seconds == inf:
                seconds = self._seconds_of(alike.pop(0))
            if seconds >= least:
                if seconds < inf:
                    break
                continue
            least, others, self._good = seconds, alike, True
        for family in others:
            self._seconds_of(family)
        return least < inf

    def _seconds_of(self, family: Family) -> float:
        """Step of the best quick plan of a family, whose layers may have no room at all; to find out takes time too."""
        self.check_later()
        roomy = self._shallowest(self.explorer.partition(family), family)
        return self.of_family(family) if roomy else inf

    def of_family(self, family: Family) -> float:
        """Step of the best of quick plans at a few depths; infinite when none fits."""
        if family not in self._seconds:
            self._seconds[family] = self._of_family(family)
        return self._seconds[family]

    def _of_family(self, family: Family) -> float:
        partition = self.explorer.partition(family)
        possible = partition.depths(family, self.explorer.limits)
        if not possible:
            return inf
        known = self.explorer.incumbent
        orders = {depth: self.explorer.orders(family, depth) for depth in possible}
        depths = sorted(_sample(partition.bounds.rates.speeds(family), possible), reverse=True)
        # Chunks and divided backwards ask for numbers of micro-batches that few depths suit.
        deepest = max((depth for depth in possible if len(orders[depth]) > 1), default=depths[0])
        least, found = inf, dict[int, tuple[float, Choice]]()
        for depth in dict.fromkeys((*depths, deepest)):
            divided = [schedule for chunks, schedule in orders[depth] if chunks == 1 and divides(schedule)]
            if depth in depths or divided or least < known * ORDERS_GAIN:
                found[depth] = self._at_depth(family, depth, divided)
                least = min(least, found[depth][0])
        best = sorted(found, key=lambda depth: found[depth][0])[:BEST_DEPTHS]
        for depth in dict.fromkeys((*best, *({deepest} & {*found}))):
            least = min(least, self._in_other_orders(*found[depth], orders[depth], known))
        return least

    def _at_depth(self, family: Family, depth: int, divided: Iterable[Schedule]) -> tuple[float, Choice]:
        """Step of a quick plan with a divided backward, which hides sends, or else without; and its choice."""
        partition = self.explorer.partition(family)
        plainest = choice = Choice.plainest(family, depth, partition.estimator.model)
        seconds = inf
        for schedule in (*divided, plainest.schedule):
            choice = replace(plainest, schedule=schedule)
            seconds = self._below(choice, partition)
            if seconds < inf:
                break
        return seconds, choice

    def _in_other_orders(
        self, seconds: float, choice: Choice, orders: Iterable[tuple[int, Schedule]], known: float
    ) -> float:
        """Step of the best of a choice, which takes so many seconds, in other schedules that may beat the known ones.

        Interleaving divides the bubble; layers in a V may gain as much as anything.
        """
        if seconds >= known * ORDERS_GAIN:
            return inf
        least, bubble, steps = inf, choice.depth - 1, choice.family.micro_batches
        for chunks, schedule in orders:
            other = replace(choice, interleave=chunks, schedule=schedule)
            gain = ORDERS_GAIN if is_v_shaped(schedule) else (steps + bubble) / (steps + bubble / chunks)
            if other != choice and seconds < known * gain:
                least = min(least, self._below(other, self.explorer.partition(choice.family)))
        return least

    def _below(self, choice: Choice, partition: NetworkPartition) -> float:
        """Step of a quick plan of a choice whose bound is below the best one; infinite for none."""
        self.check_later()
        wanted = self.explorer.incumbent
        asked = choice.family, choice.depth, choice.interleave, wanted, choice.schedule
        return self._plan(choice, partition) if partition.bounds.bound(*asked) < wanted else inf

    def _plan(self, choice: Choice, partition: NetworkPartition, effort: Effort = QUICK) -> float:
        """Offer a quick plan of a choice; its step, infinite when none fits."""
        explorer = self.explorer
        before = explorer.best
        scored = greedy(
            choice,
            partition.estimator,
            explorer.limits,
            scorer=explorer.estimator,
            effort=effort,
            deadline=explorer.deadline,
        )
        explorer.offer(scored)
        if scored is not None and effort is QUICK:
            self._quick.append((scored.estimate.step_seconds, len(self._quick), choice))
        if explorer.best is not before:
            self._promising = choice
        return scored.estimate.step_seconds if scored is not None else inf

    def of_choice(self, choice: Choice) -> None:
        """A quick plan, once: for an ILP, which takes the longer the worse the best plan is."""
        if choice not in self._tried:
            self._tried.add(choice)
            self._thorough_plan(choice, ALL_ORDERS)

    def of_open(self, choice: Choice) -> None:
        """A quick plan, once, of a choice that a round has left open: at its depth there may be none yet."""
        if choice not in self._opened:
            self._opened.add(choice)
            self._thorough_plan(choice, OPEN_ORDERS)

    def _thorough_plan(self, choice: Choice, orders: int) -> None:
        """One of so many orders, of which more are priced, and of exchanges of stages of what is near the best."""
        devices = sum(item.devices for item in self.explorer.estimator.topology.device_types)
        each = choice.depth + devices // DEVICES
        effort = Effort(
            orders=orders,
            priced=max(FEWEST_PRICED, PRICED // each),
            swaps=SWAPS_PRICED // each,
            swapped_below=SWAPPED * self.explorer.incumbent,
            wanted_seconds=self.explorer.incumbent,
        )
        self._plan(choice, self.explorer.partition(choice.family), effort)

    def know(self, family: Family, scored: Scored) -> None:
        """The best plan of a family, which the search has found."""
        self._seconds[family] = scored.estimate.step_seconds

    def climb(self, families: Mapping[tuple[str, str], Sequence[Family]], deadline: Deadline) -> None:
        """From the fastest quick plans to those of other depths, then from the fastest of each of several degrees to
        those of families nearby, and from what these have found to other depths; as long as there are faster ones.

        ``families``: all of a target and network.
        """
        self._climb_depths(deadline)
        starts: dict[tuple[object, ...], Family] = {}
        for family in sorted(self._seconds, key=self._seconds.__getitem__):
            if self._seconds[family] < inf:
                starts.setdefault((*_degrees(family), family.stage_nodes), family)
        tries = CLIMB_TRIES
        for start in islice(starts.values(), CLIMBED):
            step: Family | None = start
            while step is not None and tries:
                deadline.check()
                here, step = step, None
                for bound, other in self._nearby(here, families.get((here.target, here.network), ())):
                    if bound >= self.explorer.incumbent or not tries:
                        break
                    deadline.check()
                    tries -= 1
                    if self._seconds_of(other) < self._seconds[here]:
                        step = other
                        break
        self._climb_depths(deadline)

    def _climb_depths(self, deadline: Deadline) -> None:
        """From the fastest quick plans, each of a family and order of its own, each once."""
        fastest: dict[tuple[object, ...], tuple[float, Choice]] = {}
        for seconds, _, choice in sorted(self._quick):
            if choice.depth > 1:
                fastest.setdefault((choice.family, choice.interleave, choice.schedule), (seconds, choice))
        for key, (seconds, choice) in islice(fastest.items(), REFINED):
            if key not in self._other_depths:
                self._other_depths.add(key)
                self._climb_from(seconds, choice, deadline)

    def _climb_from(self, seconds: float, choice: Choice, deadline: Deadline) -> None:
        """From a quick plan to those of other depths, as long as they are faster; of the last more orders."""
        partition, order = self.explorer.partition(choice.family), (choice.interleave, choice.schedule)
        possible = [
            depth
            for depth in partition.depths(choice.family, self.explorer.limits)
            if depth == choice.depth or order in self.explorer.orders(choice.family, depth)
        ]
        index = possible.index(choice.depth)
        stride = DEPTH_STRIDE
        while stride:
            for other in (index - stride, index + stride):
                deadline.check()
                if 0 <= other < len(possible):
                    here = self._below(replace(choice, depth=possible[other]), partition)
                    if here < seconds:
                        index, seconds = other, here
                        break
            else:
                stride //= 2
        if seconds < SWAPPED * self.explorer.incumbent:
            self.of_choice(replace(choice, depth=possible[index]))

    def _nearby(self, family: Family, families: Iterable[Family]) -> list[tuple[float, Family]]:
        """Those of the families near one that have no quick plan yet, by their bounds.

        Equal numbers of micro-batches alone: the others are hardly faster, and many.
        """
        partition = self.explorer.partition(family)
        model = partition.estimator.model
        most = min(model.layers, MAX_DEPTH)
        near = [
            (partition.bounds.family_bound(other, most), other)
            for other in families
            if other not in self._seconds and not other.fewer_steps(model) and _near(family, other)
        ]
        return sorted(near, key=lambda item: item[0])

    def refine(self) -> None:
        """More orders of the device types for the choices whose quick plans were fastest."""
        for _, _, choice in sorted(self._quick)[:REFINED]:
            self.explorer.deadline.check()
            self._thorough_plan(choice, ALL_ORDERS)

    def deal(self) -> None:
        """The same choices with their stages dealt over nodes."""
        for choice in [choice for _, _, choice in sorted(self._quick)[:REFINED] if choice.depth > 1]:
            for family in self.explorer.dealt(choice.family):
                self._seconds_of(family)

    def polish(self) -> None:
        """The ILP on the choice of the best quick plan: a good incumbent makes every other choice smaller."""
        explorer, choice = self.explorer, self._promising
        if choice is None or choice.depth == 1:
            return
        bound = explorer.partition(choice.family).bounds.bound(choice.family, choice.depth, choice.interleave)
        opened = explorer.open_choice(bound, choice)
        if choice.depth * len(opened.stages.compositions) > POLISHED_STAGES:
            return
        for _ in range(POLISH_ROUNDS):
            if not opened.closed:
                opened.step(explorer.incumbent, explorer.deadline)
                explorer.offer(opened.best)


def _near(one: Family, two: Family) -> bool:
    """True where degrees and micro-batch differ by a factor of two at most, or else one thing alone differs."""
    steps = [
        (one.tp or 1, two.tp or 1),
        (one.dp or 1, two.dp or 1),
        (one.micro_batch or 1, two.micro_batch or 1),
    ]
    if any(max(pair) > 2 * min(pair) for pair in steps):
        return False
    others = (
        one.zero != two.zero,
        one.recompute != two.recompute,
        one.folding != two.folding,
        one.context != two.context,
        one.offload != two.offload,
        one.shard_size != two.shard_size,
    )
    return sum(others) + any(first != second for first, second in steps) <= 1


def _promised_seconds(group: Group, partition: NetworkPartition) -> float:
    """About what the best plan of a group takes: all devices at their best rate, the more replicas the better."""
    rates = group_rates(group, partition.bounds)
    rate = sum(each.replicas * each.layers for each in rates)
    if not rate:
        return inf
    most = max(member.dp or 1 for member in group.families)
    stages = min(partition.estimator.model.layers, sum(each.replicas for each in rates) / most)
    size = group.first.micro_batch or 1
    steps = -(-partition.estimator.model.training.global_batch // (most * size))
    # m micro-batches of all replicas, and the time in which the pipeline fills
    return partition.estimator.model.layers * most * (steps + max(0.0, stages - 1)) / rate


def _seconds_with_traffic(group: Group, partition: NetworkPartition) -> float:
    """The same with what shards send, of the families with most replicas that have room for a layer."""
    numbers: dict[int, list[Family]] = {}
    for family in group.families:
        numbers.setdefault(family.dp or 1, []).append(family)
    each = (
        min(_family_seconds(family, partition) for family in alike)
        for _, alike in sorted(numbers.items(), reverse=True)
    )
    return next((seconds for seconds in each if seconds < inf), inf)


def _family_seconds(family: Family, partition: NetworkPartition) -> float:
    """About what the best plan of a family takes, on all devices."""
    if not _has_room(family, partition):
        return inf
    speeds, layers = partition.bounds.rates.speeds(family), partition.estimator.model.layers
    stages = min(layers, sum(speed.slots for speed in speeds))
    rate = sum(speed.slots / speed.layer_seconds for speed in speeds)
    tail = layers / max(1.0, stages) * min(speed.tail_seconds for speed in speeds)
    return (family.micro_batches + max(0.0, stages - 1)) * layers / rate + tail


def _with_fewer_types(shares: Shares) -> Iterator[Box]:
    """All devices, then all but those of the type with least memory, and so on."""
    tp, types = shares.choice.tp, shares.device_types
    by_memory = sorted(range(len(types)), key=lambda number: types[number].memory_bytes)
    for left in range(len(types)):
        kept = {*by_memory[left:]}
        most = tuple(each.replicas(tp) if number in kept else 0 for number, each in enumerate(types))
        box = shares.sets.within((0,) * len(types), most, shares.unit)
        if box is not None:
            yield box


def _has_room(family: Family, partition: NetworkPartition) -> bool:
    """False where all stages hold too few layers together, whatever they take."""
    held = sum(slots * most for slots, most in partition.bounds.rates.rooms(family))
    return held >= partition.estimator.model.layers * (1 - 1e-9)


def _thrift(family: Family) -> tuple[int, ...]:
    """Small micro-batches, much recomputation and wide replicas first, then many replicas."""
    recompute = RECOMPUTES.index(family.recompute) if family.recompute else 0
    spread = -family.context.ways, -family.folding.ways, -(family.tp or 1), -(family.dp or 1)
    return family.micro_batch or 1, -recompute, *spread, -family.zero
