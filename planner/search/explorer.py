"""Best-first branch and bound over outer choices; each is solved only while it can still win."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from time import process_time

from planner.capabilities import Capabilities, Schedule
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.frozen import dataclass
from planner.plan.checks import faults
from planner.search.backups import BACKUPS, backup_choices
from planner.search.bounds.device_rates import DeviceRates
from planner.search.bounds.groups import (
    Families,
    Group,
    families_below,
    families_of,
    group_bound,
    grouped,
    late,
    members,
    of_one_degree,
    searched,
)
from planner.search.bounds.peak import floor_seconds
from planner.search.bounds.states import targets_with_room
from planner.search.data_parallel import DataParallel, Shares, least_seconds
from planner.search.data_parallel import choices as data_parallel_choices
from planner.search.deadline import Deadline, Struck
from planner.search.elsewhere import ChoiceElsewhere, Elsewhere, OtherProcess, Scene, Start, step_all
from planner.search.grids import GRIDS, GridChoice, best_grid, grid_choices, least_of
from planner.search.heuristics.local import best_near
from planner.search.heuristics.quick import FirstPlans
from planner.search.heuristics.runs import best_of_runs
from planner.search.incumbent import Met, obeys
from planner.search.islands import ISLANDS, island_choices, shares_of
from planner.search.pipeline import OpenChoice, in_space, priced_on
from planner.search.space.choices import (
    MAX_DEPTH,
    Choice,
    Family,
    has_order,
    orders_of,
    targets_of,
    usable_device_types,
)
from planner.search.space.device_sets import Box, Counts
from planner.search.space.multi_node import dealt_families, dealt_nodes, wide_degrees
from planner.search.space.partitions import (
    NetworkPartition,
    dealt_name,
    dealt_partitions,
    network_partitions,
    whole_name,
    whole_partition,
    wide_partitions,
)
from planner.search.values import Goal, Limits, Reporter, Scored, Silent, Status, proven
from planner.targets import TARGETS


@dataclass(frozen=True, slots=True)
class DeviceSets:
    """Sets of devices that one choice of data parallelism may use."""

    shares: Shares
    box: Box


@dataclass(frozen=True, slots=True)
class OverNodes:
    """All plans of a target whose replicas of ``tp`` devices fill several nodes where their own is smaller."""

    row: Capabilities
    tp: int


@dataclass(frozen=True, slots=True)
class DealtStages:
    """All pipelines of a target whose stages are dealt over so many nodes."""

    row: Capabilities
    nodes: int


@dataclass(frozen=True, slots=True)
class SomeDepths:
    """Pipelines of a family with per-stage degrees that have so many stages."""

    family: Family
    depths: tuple[int, ...]


Expandable = Group | Family | SomeDepths | DataParallel | DeviceSets | GridChoice | OverNodes | DealtStages
Item = Expandable | Choice | OpenChoice | ChoiceElsewhere

Choices = Callable[[Capabilities, Limits, Estimator], Iterator[DataParallel]]
"""What lists outer choices of data parallelism."""

QUICK_TRIES = 6
"""Families of one (tp, dp) that are tried until a quick plan fits; one that is slow leaves half of them."""

QUICK_NEAR = 1.1
"""What quick plans take that are not slow, over the best plan."""

PATIENCE = 48
"""Families of a target on a network, in a row, that get quick plans without a better one."""

MANY_TYPES = 8
"""Device types from which on all data parallelism is looked at ahead of pipelines, whose quick plans take seconds
then; else what costs neither computation nor further synchronisation."""

SHARES_SHARE = 0.3
"""Part of the time, at most, for these looks."""

ONE_DEGREE_SHARE = 0.25
"""Part of the time, at most, for plans of one degree where stages may have their own."""

RUNS_SHARE = 0.2
"""Part of what is left then, at most, for plans of runs on nodes."""

OTHERS_SHARE = 0.5
"""Part of what is left then, at most, for the plans of other runtimes."""

NEAR_SHARE = 0.33
"""Part of what is left then, at most, for plans near the best of all these."""

MOST_AT_ONCE = 16
"""Choices that take a round at once, at most."""

ROUNDS_EACH = 16
"""Rounds after which one more takes part."""

ALONE_SECONDS = 2.0
"""CPU seconds of best-first search in one process before others take part; they need about one to start."""

CLIMB_WORK = 256
"""Work of best-first search before quick plans are climbed from: families expanded, rounds, and stages of new choices.

Those that are proven sooner need no better start."""

RULE_OUT_WORK = 512
"""What is expanded at most to see whether bounds alone leave nothing below a cutoff."""

CLIMB_AT_ONCE = 0.4
"""What is left open by the first plans from which on they are climbed from at once."""

CLIMB_GAP = 0.02
"""What is left open then, at least."""

CLIMB_SHARE = 0.2
"""Part of what is left then, at most, for climbing."""

POLISHED_DEVICES = 256
"""Largest cluster whose quick plans get the ILP as well."""


class Explorer:
    """Best-first branch and bound over outer choices; keeps the best plan whatever interrupts it."""

    def __init__(
        self,
        estimator: Estimator,
        limits: Limits,
        reporter: Reporter,
        *,
        solver: str | None = None,
        cutoff_seconds: float = float("inf"),
        one_degree: bool = False,
        runner: Capabilities | None = None,
        deadline: Deadline | None = None,
        better: Callable[[Scored], object] | None = None,
        met: Met | None = None,
        rates: DeviceRates | None = None,
    ) -> None:
        """``one_degree`` leaves only plans whose stages have the same degrees, of targets where they need not, and
        ``runner`` only pipelines in orders that this other runtime has as well.

        Without a ``deadline`` the limit counts from now. ``better`` is told every plan that becomes the best, ``met``
        keeps the best of each family of all that are priced; ``rates`` are known ones of these devices.
        """
        self.one_degree = one_degree
        self._runner = runner
        self.estimator = estimator
        self._devices = sum(device_type.devices for device_type in estimator.topology.device_types)
        self.limits = limits
        self._rows = targets_with_room(limits, estimator)
        self.reporter = reporter
        self._scene = Scene(scorer=estimator, limits=limits, solver=solver)
        self._elsewhere: Elsewhere | None = None
        self.cutoff_seconds = cutoff_seconds
        self._partitions: dict[tuple[str, str], NetworkPartition] = {}
        self._rates = rates
        self._dealt_families: dict[tuple[str, int], dict[str, list[Family]]] = {}
        self.best: Scored | None = None
        self._first = FirstPlans(self)
        self.closed_bound = float("inf")
        # What an end would lose: the item being worked on is neither on the heap nor closed.
        self._floor = self._taken_bound = floor_seconds(estimator) if self._rows else float("inf")
        self.candidates = 0
        self.solved = 0
        self._rounds = self._phase = self._work = 0
        self._opened = False
        """True where all that may be below the cutoff is on the heap, to see whether anything is."""
        self._climbed = False
        """True where nothing has become better since the last climb."""
        self.interrupted = False
        self.finished = not self._rows
        """True once nothing is left that could win."""
        self._heap: list[tuple[float, int, Item]] = []
        self._tried: dict[tuple[Shares, Counts], float] = {}
        self._over_nodes: dict[tuple[str, int], float] = {}
        self._count = 0
        self.deadline = deadline or Deadline.after(limits.time_limit_seconds)
        self._better = better
        self.met = met or Met()

    @property
    def incumbent(self) -> float:
        """Seconds of the best plan, or those that a plan must beat to be wanted."""
        return min(self.cutoff_seconds, self.best.estimate.step_seconds if self.best else float("inf"))

    @property
    def bound(self) -> float:
        """No plan of the space is faster."""
        opened = self._heap[0][0] if self._heap else float("inf")
        return min(opened, self.closed_bound, self._taken_bound, self.incumbent)

    @property
    def gap(self) -> float:
        """(incumbent - bound) / incumbent."""
        return 1.0 if self.best is None else 1.0 - self.bound / self.best.estimate.step_seconds

    def offer(self, scored: Scored | None) -> None:
        """Take a plan, priced on the whole cluster, if it fits, is allowed and is faster."""
        if scored is None or not scored.estimate.fits or not obeys(scored.plan, self.limits, Goal()):
            return
        self.met.take(scored)
        if scored.estimate.step_seconds < self.incumbent:
            self.best = scored
            if self._better is not None:
                self._better(scored)

    def quick(self) -> Scored | None:
        """The best of a few plans per family, without proof; small clusters get some rounds of the ILP too."""
        try:
            self._open()
            self._first_plans()
            # On large clusters the first ILP takes longer than all that leads to a much better choice.
            if self._devices <= POLISHED_DEVICES:
                self._first.polish()
        except Struck:
            self.interrupted = self.deadline.interrupted
        return self.best

    def run(self, *, rounds: int | None = None) -> None:
        """Search all targets the limits allow, or at most so many ``rounds`` of one choice each.

        The deadline or an interrupt keeps the best so far.
        """
        phases = (
            self._rule_out,
            self._open,
            lambda: self._one_degree(rounds),
            self._of_runs,
            lambda: self._other_runtimes(rounds),
            lambda: self._near(rounds),
            self._first_plans,
            lambda: self._best_first(rounds),
        )
        try:
            for phase in phases[self._phase :] if not self.finished else ():
                phase()
                self._phase += 1
                if self.finished:
                    break
        except Struck:
            self.interrupted = self.deadline.interrupted
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            if self._elsewhere is not None:
                self._elsewhere.end()
                self._elsewhere = None

    def go_on(self, deadline: Deadline, cutoff_seconds: float) -> None:
        """Search, or search on where a deadline has struck, for plans below the cutoff."""
        self.deadline, self.cutoff_seconds = deadline, cutoff_seconds
        self.run()

    def _best_first(self, rounds: int | None) -> None:
        """Whatever has the least bound is taken a step further, until nothing that is left can win."""
        self.reporter.phase("searching")
        self._raise_bounds()
        if rounds is None and self.best is not None and self.gap > CLIMB_AT_ONCE:
            self._climb()
        began = process_time()
        while self._heap and self._heap[0][0] < self._wanted:
            self.deadline.check()
            if rounds is not None and self._rounds >= rounds:
                return
            if self._work >= CLIMB_WORK and not self._climbed:
                self._climb()
                continue
            self._taken_bound, _, item = self._heap[0]
            self._work += item.depth if isinstance(item, Choice) else 1
            if isinstance(item, Choice | OpenChoice | ChoiceElsewhere):
                self._call_others(process_time() - began)
                self._solve(self._choices(rounds))
            else:
                self._expand_first()
            self._taken_bound = float("inf")
            best, total = self.best.estimate.step_seconds if self.best else None, self.candidates
            self.reporter.progress(done=self.solved, total=total, best_seconds=best, bound_seconds=self.bound)
        self.finished = True

    @cached_property
    def _every_family(self) -> dict[tuple[str, str], list[Family]]:
        """Those of one degree, by target and network."""
        found = {
            (row.name, name): [family for family in families if family.dp is not None]
            for row, name, _, families in self._searched(self.limits)
        }
        for row in self._rows if not self.one_degree else ():
            for nodes in self._dealt_nodes(row):
                found |= {(row.name, name): each for name, each in self._dealt(row, nodes).items()}
        return found

    def _climb(self) -> None:
        """Better plans near the quick ones, where the search is far from its end."""
        self._climbed = True
        if self.gap <= CLIMB_GAP:
            return
        deadline = self.deadline.part(CLIMB_SHARE)
        with suppress(Struck):
            self._first.climb(self._every_family, deadline)

    def _call_others(self, seconds: float) -> None:
        """Start the other processes once the search has taken so long that they pay."""
        if self._elsewhere is None and self.limits.processes > 1 and seconds > ALONE_SECONDS:
            self._elsewhere = Elsewhere(self._scene, self.limits.processes - 1)

    @property
    def _wanted(self) -> float:
        """Cut: what has a bound of (1 - gap) times the best step or more cannot win by more than the gap."""
        return self.incumbent * (1 - self.limits.gap)

    def _raise_bounds(self) -> None:
        """Better bounds of the families that wait, many at once."""
        waiting: dict[tuple[str, str], list[tuple[float, int, Family]]] = {}
        others: list[tuple[float, int, Item]] = []
        for bound, number, item in self._heap:
            if isinstance(item, Family):
                waiting.setdefault((item.target, item.network), []).append((bound, number, item))
            else:
                others.append((bound, number, item))
        for key, entries in waiting.items():
            self.deadline.check()
            known = [(bound, family) for bound, _, family in entries]
            raised = late(known, self._partitions[key], self.limits, self._wanted)
            others += [
                (bound, number, family)
                for (bound, family), (_, number, _) in zip(raised, entries, strict=True)
            ]
        self._heap = others
        heapify(self._heap)

    @property
    def _own_degrees(self) -> bool:
        """True where stages may have degrees of their own."""
        return not self.one_degree and any(row.dp_per_stage for row in self._rows)

    def _one_degree(self, rounds: int | None) -> None:
        """Begin with the best plan of one degree, whose bounds are tight."""
        if not self._own_degrees:
            return
        narrow = Explorer(
            self.estimator,
            self.limits,
            Silent(),
            solver=self._scene.solver,
            cutoff_seconds=self.incumbent,
            one_degree=True,
            deadline=self.deadline.part(ONE_DEGREE_SHARE),
            better=self.offer,
            met=self.met,
        )
        narrow.run(rounds=rounds)
        if narrow.interrupted:
            raise KeyboardInterrupt

    def _of_runs(self) -> None:
        """Plans of runs on nodes, of the families with the least bounds first."""
        if not self._own_degrees:
            return
        deadline = self.deadline.part(RUNS_SHARE)
        for _, _, partition, families in self._searched(self.limits):
            most = min(self.estimator.model.layers, MAX_DEPTH)
            bounds = {
                family: partition.bounds.family_bound(family, most)
                for family in families
                if family.dp is None
            }
            wanted = sorted(
                (family for family in bounds if bounds[family] < self._wanted), key=bounds.__getitem__
            )
            with suppress(Struck):
                for scored in best_of_runs(
                    wanted, partition, self.estimator, self.limits, self.incumbent, deadline
                ):
                    self.offer(scored)

    def _other_runtimes(self, rounds: int | None) -> None:
        """The best plans of other runtimes where a runtime is asked for that runs most of them."""
        for search in self._others():
            self.deadline.check()
            search.run(rounds=rounds)
            if search.interrupted:
                raise KeyboardInterrupt

    def _others(self) -> Iterator[Explorer]:
        """Searches of other runtimes whose plans are taken as one's own, each with its part of the time."""
        if not self._own_degrees:
            return
        rows = [row for row in self._rows if row.dp_per_stage]
        others = [row for row in targets_of(replace(self.limits, target=None)) if row not in rows]
        # Those with the same kernels have plans most like its own.
        others.sort(key=lambda row: row.kernels != rows[0].kernels)
        for number, other in enumerate(others):
            yield Explorer(
                self.estimator,
                replace(self.limits, target=other.name),
                Silent(),
                solver=self._scene.solver,
                runner=rows[0],
                deadline=self.deadline.part(OTHERS_SHARE / (len(others) - number)),
                better=lambda scored: self._offer_to(rows, scored),
            )

    def _offer_to(self, rows: Sequence[Capabilities], scored: Scored) -> None:
        """Take a plan of another runtime as one of these, if they can run it."""
        for row in rows:
            plan = replace(scored.plan, target=row.name)
            if not faults(plan, self.estimator.cluster, self.estimator.model):
                own = priced_on(self.estimator, plan, self.estimator)
                self.offer(own and in_space(own, self.estimator))

    def _near(self, rounds: int | None) -> None:
        """What is better near the best plan so far."""
        start = self.best if self._own_degrees else None
        if start is None or rounds is not None or self._devices > POLISHED_DEVICES:
            return
        if all(len(stage.replicas) == 1 for stage in start.plan.stages):
            seen = [part for (name, _), part in self._partitions.items() if name == start.plan.target]
            self.offer(best_near(start, seen, self.estimator, self.limits, self.deadline.part(NEAR_SHARE)))

    def partition(self, item: Family | DataParallel | GridChoice) -> NetworkPartition:
        """The part of the cluster that a choice is about."""
        return self._partitions[item.target, item.network]

    def _rule_out(self) -> None:
        """Where only what is below a cutoff is wanted, see whether bounds alone leave nothing, without any plan.

        Ends at the first choice that would have to be solved, or after so much work.
        """
        if self.cutoff_seconds == float("inf") or self.one_degree or self._runner is not None:
            return
        if not self._opened:
            self._heap = []
            self._raise_floor()
            self._list_below()
            self._open_others()
            self._opened = True
        while self._heap and self._heap[0][0] < self._wanted:
            self.deadline.check()
            self._taken_bound, _, item = self._heap[0]
            solvable = isinstance(item, Choice | OpenChoice | ChoiceElsewhere | DeviceSets | GridChoice)
            if solvable or self._work >= RULE_OUT_WORK:
                self._heap, self._work, self.closed_bound = [], 0, float("inf")
                return
            self._expand_first()
            self._work += 1
        self._taken_bound, self.finished = float("inf"), True

    def _list_below(self) -> None:
        """What may be below the cutoff on the nodes and networks of the cluster as they are."""
        for row in self._rows:
            for name, partition in network_partitions(self.estimator, row).items():
                self._partitions[row.name, name] = partition
                if partition.whole:
                    self._open_shares(row, name, partition)
                self._open_below(self._floor, row, name, partition)

    def _open_below(
        self,
        bound: float,
        row: Capabilities,
        name: str,
        partition: NetworkPartition,
        nodes: int = 1,
    ) -> None:
        """The groups of families that may be wanted, with stages dealt over so many nodes."""
        below = families_below(row, name, partition, self.limits, self._wanted, check=self.deadline.check)
        self.closed_bound = min(self.closed_bound, max(bound, below.least))
        found = below.families
        if nodes > 1:
            found = [*dealt_families(found, nodes, partition.device_types)]
        partition.bounds.rates.expect(found)
        self._open_groups(bound, partition, grouped(found))

    def _expand_first(self) -> None:
        """Replace what has the least bound by its parts."""
        bound, number, item = heappop(self._heap)
        assert not isinstance(item, Choice | OpenChoice | ChoiceElsewhere), "these are solved"
        try:
            self._expand(bound, item)
        except Struck:
            heappush(self._heap, (bound, number, item))
            raise

    def _open(self) -> None:
        self._heap, self.candidates = [], 0
        self._raise_floor()
        if self.cutoff_seconds == float("inf"):
            self._first_plan()
        listed = list(self._listed(whole=True, check=self._first.check_later))
        for row, name, partition, _ in listed:
            self._open_shares(row, name, partition)
        every = len(self.estimator.topology.device_types) >= MANY_TYPES
        with suppress(Struck):
            self._first_shares(self.deadline.part(SHARES_SHARE), lambda choice: every or choice.plain)
        self._first.promising((group, partition) for _, _, partition, groups in listed for group in groups)
        listed += self._listed(whole=False, check=self.deadline.check)
        for _, _, partition, groups in listed:
            self._open_groups(self._floor, partition, groups)
        self._open_others()
        self._taken_bound = float("inf")

    def _open_others(self) -> None:
        """What is not on the nodes and networks of the cluster as they are."""
        model, topology = self.estimator.model, self.estimator.topology
        for row in self._rows if not self.one_degree else ():
            for tp in wide_degrees(row, self.limits, model, topology):
                self._push(max(self._floor, self._over_nodes.get((row.name, tp), 0.0)), OverNodes(row, tp))
            for nodes in self._dealt_nodes(row):
                self._push(self._floor, DealtStages(row, nodes))
            self._open_apart(row, ISLANDS, island_choices if self.limits.syncs else None)
            self._open_apart(row, BACKUPS, backup_choices if self.limits.backup else None)
            if self.limits.grids:
                self._open_grids(row)

    def _searched(
        self, limits: Limits, *, whole: bool | None = None, check: Callable[[], None] | None = None
    ) -> Iterator[tuple[Capabilities, str, NetworkPartition, list[Family]]]:
        """All families of these limits by target, name of the partition, and partition; see ``searched``."""
        for row, name, partition, families in searched(
            self._rows,
            self.estimator,
            limits,
            one_degree=self.one_degree,
            runner=self._runner,
            whole=whole,
            check=check,
        ):
            self._partitions[row.name, name] = partition
            yield row, name, partition, families

    def _listed(
        self, *, whole: bool, check: Callable[[], None]
    ) -> Iterator[tuple[Capabilities, str, NetworkPartition, tuple[Group, ...]]]:
        """All groups, of whole networks or of their parts."""
        for row, name, partition, families in self._searched(self.limits, whole=whole, check=check):
            partition.bounds.rates.expect(families)
            yield row, name, partition, grouped(families)

    def _first_plan(self) -> None:
        """Any plan at all, whatever the time: of the smallest micro-batches, whose families are few."""
        smallest = min(self.limits.micro_batch or (1,))
        for row, _, partition, families in self._searched(replace(self.limits, micro_batch=(smallest,))):
            self._first.any(partition, families)
            if self.best is None and partition.whole:
                self._first.evenly(
                    tuple(data_parallel_choices(row, self.limits, partition.estimator)), partition
                )
            if self.best is not None:
                return
        for search in self._others():
            search._first_plan()
            if self.best is not None:
                return

    def _raise_floor(self) -> None:
        """All devices at the best rate that each has in any plan, before any other bound is known."""
        if self.limits.syncs or self.limits.backup or self.limits.grids or not self._rows:
            return
        usable = usable_device_types(self.estimator.topology, self.estimator.model)
        devices = {device_type.key: device_type.devices for device_type in usable}
        rates = self._rates = self._rates or DeviceRates(self.estimator, self.limits)
        self._floor = self._taken_bound = max(self._floor, rates.least_seconds(devices))
        self._over_nodes = rates.least_over_nodes(devices)

    def _open_shares(self, row: Capabilities, name: str, partition: NetworkPartition) -> None:
        seen = partition.estimator
        for choice in data_parallel_choices(row, self.limits, seen):
            replicas = ((each, each.replicas(choice.tp)) for each in partition.device_types)
            least = least_seconds(choice, seen, replicas)
            self._push(max(self._floor, least), replace(choice, network=name))
            self.candidates += 1

    def _open_groups(self, bound: float, partition: NetworkPartition, groups: tuple[Group, ...]) -> None:
        for group in groups:
            self.deadline.check()
            self._push(max(bound, group_bound(group, partition.bounds)), group)

    def _open_apart(self, row: Capabilities, name: str, choices: Choices | None) -> None:
        """Choices that are asked for: of islands, each with a network of its own, or of backup replicas."""
        if choices is None:
            return
        partition = whole_partition(self.estimator)
        self._partitions[row.name, name] = partition
        for choice in choices(row, self.limits, partition.estimator):
            self._push(self._floor, replace(choice, network=name))
            self.candidates += 1

    def _open_grids(self, row: Capabilities) -> None:
        """Choices of grids, whose groups of ranks lie in one pool."""
        partition = whole_partition(self.estimator)
        self._partitions[row.name, GRIDS] = partition
        for choice in grid_choices(row, self.limits, partition.estimator):
            self._push(max(self._floor, least_of(choice, partition.estimator)), choice)
            self.candidates += 1

    def _grid(self, choice: GridChoice) -> None:
        """Price all plans of a choice: the best of them is exact."""
        self.solved += 1
        self._rounds += 1
        seen = self.partition(choice).estimator
        best = best_grid(choice, seen, self.limits, self.incumbent, self.deadline, self.estimator)
        if best is not None:
            self.closed_bound = min(self.closed_bound, best.estimate.step_seconds)
            self.offer(best)

    def _first_plans(self) -> None:
        """Quick plans of the most promising families, to have something to cut with."""
        self.reporter.phase("first plans")
        self._first_shares(self.deadline)
        self._quick_plans()
        self._first.deal()
        if self._unfold_dealt():
            self._quick_plans()
        self._first.refine()

    def _unfold_dealt(self) -> bool:
        """True once pipelines dealt over as many nodes as the best plan are on the heap, where it is dealt."""
        best = self.best.plan if self.best is not None else None
        if best is None or best.stage_nodes == 1:
            return False
        wanted = DealtStages(TARGETS[best.target], best.stage_nodes)
        found = [entry for entry in self._heap if entry[2] == wanted]
        self._heap = [entry for entry in self._heap if entry[2] != wanted]
        heapify(self._heap)
        for bound, _, _ in found:
            self._expand_dealt(bound, wanted)
        return bool(found)

    def _quick_plans(self) -> None:
        """Of the most promising family of each (target, network, tp, dp)."""
        tries: Counter[tuple[object, ...]] = Counter()
        waiting, kept, self._heap = self._heap, [], []
        parts: set[int] = set()
        vain: Counter[tuple[str, str]] = Counter()
        try:
            while waiting and waiting[0][0] < self.incumbent:
                self.deadline.check()
                self._taken_bound = waiting[0][0]
                kept.append(heappop(waiting))
                bound, _, item = kept[-1]
                families: Families = []
                family = item.first if isinstance(item, Group) else item
                if not isinstance(family, Family) or vain[family.target, family.network] >= PATIENCE:
                    continue
                if isinstance(item, Group):
                    if any(tries[_way(member)] < QUICK_TRIES for member in item.families):
                        families = self._members(bound, item)
                        kept.pop()
                elif family.dp is None:
                    families = of_one_degree(family, self.partition(family), self.limits, self.deadline)
                    parts.update(range(self._count + 1, self._count + 1 + len(families)))
                elif tries[_way(family)] < QUICK_TRIES:
                    best = self.best
                    seconds = self._first.of_family(family)
                    tries[_way(family)] += self._tries_of(seconds)
                    vain[family.target, family.network] += 1
                    if self.best is not best:
                        vain.clear()
                for own, member in families:
                    heappush(waiting, (own, self._next(), member))
        finally:
            self._heap = [entry for entry in (*kept, *waiting) if entry[1] not in parts]
            heapify(self._heap)
        self._taken_bound = float("inf")

    def _tries_of(self, seconds: float) -> int:
        """What a quick plan of a family takes of the tries of its degrees: all if it is near the best plan, half if
        it is not, one if there is none.
        """
        if seconds == float("inf"):
            return 1
        return QUICK_TRIES if seconds <= QUICK_NEAR * self.incumbent else QUICK_TRIES // 2

    def _first_shares(
        self, deadline: Deadline, wanted: Callable[[DataParallel], bool] = lambda choice: True
    ) -> None:
        """Wanted data parallelism on as many devices as each choice of it can use, whose bounds are known then.

        The heap would come to them late, and have no better bound than the floor until it does.
        """
        waiting, self._heap = sorted(self._heap, reverse=True), []
        try:
            while waiting:
                bound, number, item = waiting[-1]
                if isinstance(item, DataParallel) and wanted(item):
                    deadline.check()
                    self._push(*self._known_early(bound, item))
                else:
                    heappush(self._heap, (bound, number, item))
                waiting.pop()
        finally:
            for entry in waiting:
                heappush(self._heap, entry)

    def _known_early(self, bound: float, choice: DataParallel) -> tuple[float, DataParallel | DeviceSets]:
        """The best bound that is known of a choice; its sets, of which the largest were tried, where that may win."""
        bound = max(bound, self._whole_bound(choice))
        if bound >= self.incumbent:
            return bound, choice
        sets = self._sets(choice)
        bound = max(bound, sets.shares.bound(sets.box))
        if bound < self.incumbent:
            self._fullest(sets)
            self._without_slowest(sets)
        return bound, sets

    def _whole_bound(self, choice: DataParallel) -> float:
        """What the same with one copy takes at least: groups have less room, and no more devices share an update."""
        if choice.shard_size is None:
            return 0.0
        whole = self._sets(replace(choice, shard_size=None))
        return whole.shares.bound(whole.box)

    def _members(self, bound: float, group: Group) -> Families:
        """The families of a group that may have plans, each with its bound."""
        families = members(group, self.partition(group.first), self.limits, self.deadline, self._wanted)
        self.candidates += len(families)
        return [(max(bound, own), family) for own, family in families]

    def _push(self, bound: float, item: Item) -> None:
        if bound < float("inf"):
            heappush(self._heap, (bound, self._next(), item))

    def _next(self) -> int:
        """Of equal bounds the first comes first."""
        self._count += 1
        return self._count

    def _expand(self, bound: float, item: Expandable) -> None:
        if isinstance(item, Group):
            for own, family in self._members(bound, item):
                self._push(own, family)
        elif isinstance(item, Family):
            self._expand_family(bound, item)
        elif isinstance(item, SomeDepths):
            self._push_choices(bound, item.family, item.depths, 1, "1f1b")
        elif isinstance(item, GridChoice):
            self._grid(item)
        elif isinstance(item, OverNodes):
            self._expand_over_nodes(bound, item)
        elif isinstance(item, DealtStages):
            self._expand_dealt(bound, item)
        elif isinstance(item, DataParallel):
            sets = self._sets(item)
            self._push(max(bound, sets.shares.bound(sets.box)), sets)
        else:
            self._devices_of(bound, item)

    def _expand_over_nodes(self, bound: float, item: OverNodes) -> None:
        """The groups of families in each partition; a quick plan of them where none is known yet."""
        limits = replace(self.limits, tp=(item.tp,))
        for name, partition in wide_partitions(self.estimator, item.row, item.tp).items():
            self._partitions[item.row.name, name] = partition
            found = families_of(item.row, name, partition, limits)
            partition.bounds.rates.expect(found)
            if self.best is None and self.cutoff_seconds == float("inf"):
                self._first.any(partition, found)
            if partition.whole:
                for choice in data_parallel_choices(item.row, limits, partition.estimator):
                    self._push(bound, replace(choice, network=name))
                    self.candidates += 1
            self._open_groups(bound, partition, grouped(found))

    def _expand_dealt(self, bound: float, item: DealtStages) -> None:
        """The groups of families in each partition."""
        for name, partition in dealt_partitions(self.estimator, item.row, item.nodes).items():
            self._partitions[item.row.name, name] = partition
            self._open_below(bound, item.row, name, partition, item.nodes)

    def _dealt_nodes(self, row: Capabilities) -> tuple[int, ...]:
        return dealt_nodes(row, self.limits, self.estimator.model, self.estimator.topology)

    def _dealt(self, row: Capabilities, nodes: int) -> dict[str, list[Family]]:
        """Families of pipelines whose stages are dealt over so many nodes, by the name of their partition."""
        key = row.name, nodes
        if key not in self._dealt_families:
            self._dealt_families[key] = found = {}
            for name, partition in dealt_partitions(self.estimator, row, nodes).items():
                self._partitions[row.name, name] = partition
                every = families_of(row, name, partition, self.limits)
                found[name] = [*dealt_families(every, nodes, partition.device_types)]
        return self._dealt_families[key]

    def dealt(self, family: Family) -> Iterator[Family]:
        """The same as a family with its stages dealt over nodes, over each number of these: on its pools and on all."""
        row = TARGETS[family.target]
        for nodes in self._dealt_nodes(row) if family.stage_nodes == 1 and not self.one_degree else ():
            partitions = dealt_partitions(self.estimator, row, nodes)
            for network in dict.fromkeys((family.network, whole_name(family.network))):
                name = dealt_name(network, nodes)
                if name in partitions:
                    partition = self._partitions[row.name, name] = partitions[name]
                    yield from dealt_families([family._replace(network=name)], nodes, partition.device_types)

    def _expand_family(self, bound: float, family: Family) -> None:
        partition = self.partition(family)
        alike: dict[tuple[int, Schedule], list[int]] = {}
        for depth in partition.depths(family, self.limits):
            for order in self.orders(family, depth):
                alike.setdefault(order, []).append(depth)
        if family.dp is not None:
            for order, possible in alike.items():
                self._push_choices(bound, family, possible, *order)
            return
        assert set(alike) <= {(1, "1f1b")}, "where each stage has its own degrees there is one order"
        for possible in alike.values():
            for own, depths in partition.bounds.of_ranges(family, possible, bound, self._wanted):
                self.deadline.check()
                self._push(own, SomeDepths(family, tuple(depths)))

    def _push_choices(
        self, bound: float, family: Family, depths: Sequence[int], chunks: int, schedule: Schedule
    ) -> None:
        """The choices of these depths, each with its bound."""
        bounds = self.partition(family).bounds.bounds(family, depths, chunks, self._wanted, schedule)
        for depth, own in zip(depths, bounds, strict=True):
            self.deadline.check()
            self.candidates += 1
            choice = Choice(family=family, depth=depth, interleave=chunks, schedule=schedule)
            self._push(max(bound, own), choice)

    def orders(self, family: Family, depth: int) -> list[tuple[int, Schedule]]:
        """Chunks and schedules of a pipeline that are searched."""
        orders = orders_of(family, depth, self.estimator.model, self.limits)
        return [order for order in orders if self._runner is None or has_order(self._runner, *order)]

    def open_choice(self, bound: float, choice: Choice) -> OpenChoice:
        """A choice to be solved with what is known so far."""
        return self._scene.open(self._start(bound, choice), self.partition(choice.family))

    def _start(self, bound: float, choice: Choice) -> Start:
        once = self.partition(choice.family).bounds.once(choice, self.incumbent)
        return Start(choice=choice, cutoff_seconds=self.incumbent, bound_seconds=bound, once_seconds=once)

    def _choices(self, rounds: int | None) -> list[OpenChoice | ChoiceElsewhere]:
        """The choices with the least bounds, taken off the heap: the more at once the longer the search takes."""
        most = min(MOST_AT_ONCE, 1 + self._rounds // ROUNDS_EACH)
        if rounds is not None:
            most = min(most, rounds - self._rounds)
        found: list[OpenChoice | ChoiceElsewhere] = []
        busy: Counter[OtherProcess | None] = Counter()
        while len(found) < most and self._heap and self._heap[0][0] < self._wanted:
            bound, _, item = self._heap[0]
            if isinstance(item, Choice):
                self.solved += 1
                found.append(self._begun(bound, item, busy))
            elif isinstance(item, OpenChoice | ChoiceElsewhere):
                busy[item.process if isinstance(item, ChoiceElsewhere) else None] += 1
                found.append(item)
            else:
                break
            heappop(self._heap)
        return found

    def _begun(
        self, bound: float, choice: Choice, busy: Counter[OtherProcess | None]
    ) -> OpenChoice | ChoiceElsewhere:
        """A choice to be solved, in another process where there is one that has less to do."""
        start, partition = self._start(bound, choice), self.partition(choice.family)
        if self._elsewhere is None:
            return self._scene.open(start, partition)
        return self._elsewhere.open(start, partition, busy)

    def _solve(self, choices: Sequence[OpenChoice | ChoiceElsewhere]) -> None:
        """A round of each; back on the heap with a better bound, unless nothing is left to find in it.

        All are to beat the plan that was the best before them, so that it does not matter which of them ends first.
        """
        self._rounds += len(choices)
        before = self.best
        try:
            for opened in choices:
                if opened.comes_to_ilp:
                    self._first.of_choice(opened.choice)
            step_all(choices, self.incumbent, self.deadline)
        finally:
            for opened in choices:
                self.offer(opened.best)
                if opened.best is not None and self.best is opened.best is not before:
                    self._first.know(opened.choice.family, opened.best)
                    self._climbed = False
                if opened.closed:
                    self.closed_bound = min(self.closed_bound, opened.bound)
                else:
                    self._push(opened.bound, opened)
        for opened in choices:
            if not opened.closed:
                self.deadline.check()
                self._first.of_open(opened.choice)

    def _sets(self, choice: DataParallel) -> DeviceSets:
        """All sets of devices of a choice."""
        shares = shares_of(choice, self.partition(choice).estimator, self.limits, self.deadline.check)
        return DeviceSets(shares, shares.sets)

    def _devices_of(self, bound: float, sets: DeviceSets) -> None:
        """The set with most devices, then both halves; a single set is closed with its own bound."""
        self.solved += 1
        self._rounds += 1
        own = self._fullest(sets)
        if sets.box.single:
            self.closed_bound = min(self.closed_bound, max(bound, own))
            return
        for part in sets.shares.halves(sets.box):
            self.candidates += 1
            self._push(max(bound, sets.shares.bound(part)), DeviceSets(sets.shares, part))

    def _fullest(self, sets: DeviceSets) -> float:
        """Offer the best plan of the set with most devices; a bound of that set."""
        counts = sets.box.fullest(sets.shares.batch, sets.shares.unit)
        key = sets.shares, counts
        if key not in self._tried:
            seen = sets.shares.estimator
            self._tried[key], plan = sets.shares.best(counts, self.incumbent)
            scored = priced_on(self.estimator, plan, seen) if plan is not None else None
            self.offer(scored)
            choice = sets.shares.choice
            if (
                plan is not None
                and scored is not None
                and choice.one_copy
                and not choice.shards
                and seen.uses_sockets(plan)
                and not self.estimator.uses_sockets(scored.plan)
            ):
                # These devices use RDMA: the choice on a network that has it is about them.
                self._tried[key] = float("inf")
        return self._tried[key]

    def _without_slowest(self, sets: DeviceSets) -> None:
        """Offer the best plan of the set without the pool that all others wait for, where one has the slowest link."""
        shares = sets.shares
        slowest = slowest_linked(
            shares.estimator.topology, dict.fromkeys(each.pool for each in shares.device_types)
        )
        if slowest is None:
            return
        most = tuple(
            0 if each.pool == slowest else high
            for each, high in zip(shares.device_types, sets.box.high, strict=True)
        )
        box = shares.sets.within(sets.box.low, most, shares.unit)
        if box is not None:
            self._fullest(replace(sets, box=box))

    @property
    def status(self) -> Status:
        """What the state of the search amounts to."""
        if self.best is None:
            return "infeasible" if self.finished else "unknown"
        return proven(self.gap, self.limits.gap)


MOST_POOLS = 16
"""Pools among which the one with the slowest link is looked for."""


def slowest_linked(topology: Topology, pools: Collection[str]) -> str | None:
    """The one of several pools whose nodes have the narrowest paths to any others; None where two are as narrow."""
    if not 1 < len(pools) <= MOST_POOLS:
        return None
    widths = []
    for one in pools:
        paths = (topology.path(one, other) for other in pools)
        widths.append((max(path.bytes_per_second for path in paths if path.fabric != "node"), one))
    (least, slowest), (next_least, _), *_ = sorted(widths)
    return slowest if least < next_least else None


def _way(family: Family) -> tuple[object, ...]:
    return family.target, family.network, family.tp, family.dp, family.context, family.folding
