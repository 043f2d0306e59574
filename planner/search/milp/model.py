"""The ILP of one outer choice: an option for every stage, least time of the pipeline's longest path.

    x[s,o] = 1        stage s takes option o (a composition of devices and a number of layers)
    e[s,a,b] = 1      stage s is in state a of its node and the next stage stands on place b (prices the send)
    f[s,c], b[s,c]    forward and backward seconds of a micro-batch on chunk c of stage s, sends included
    w[s,c]            the part for the gradients of weights, where the schedule divides the backward
    T                 end of the step

The end of a pipeline is the largest of many paths through its operations, each linear in f and b. The model
starts with the table of ``planner.cost.schedules``; further paths are added when a solution is simulated and its
critical path turns out longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf

from planner.cluster.topology import DeviceType
from planner.cost.estimate import together
from planner.cost.pipeline_end import ends_of_many
from planner.cost.pipeline_events import CriticalPath, Pipeline, critical_path, simulate
from planner.cost.schedules import NEVER, StagePath, Visits, divides, stage_paths
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.milp.branching import Branching, Subset
from planner.search.milp.flow import Flow
from planner.search.milp.program import Column, Program, Terms, added, combined, ones, total
from planner.search.milp.slow_links import SlowSends
from planner.search.milp.solver import TOLERANCE, Relaxation, Solved, Values, solve
from planner.search.space.shared_nodes import sharings
from planner.search.space.stages import Option, StageOptions

MAX_CUT_STAGES = 20_000
"""Stages times micro-batches of pipelines that are cut by their critical paths; longer ones plan by plan alone."""

MOST_PATHS = 30
"""Paths by which a relaxation is cut before it is divided."""

LATER = 3e-3
"""Part by which its durations have to end later than it says for that."""

Row = tuple[Terms, float]
"""An expression, and the most that it may be."""


class PipelineModel:
    """Builds the ILP of one choice once, then re-solves it with more cuts; raises ``Struck`` at the deadline."""

    def __init__(
        self,
        stages: StageOptions,
        cutoff_seconds: float,
        solver: str | None = None,
        deadline: Deadline = NO_LIMIT,
    ) -> None:
        self.stages, self.scale = stages, cutoff_seconds
        self.solver, self.deadline = solver, deadline
        self.depth, self.chunks = stages.choice.depth, stages.choice.interleave
        offered = [list(stages.options(stage, cutoff_seconds)) for stage in range(self.depth)]
        self.options = self._useful(offered)
        self.program = Program("")
        self.end = self.program.column("T", upper=1.0)
        self.feasible = all(self.options)
        if self.feasible:
            self._build()
        self._relaxation = Relaxation(self.program, solver)
        self._values: Values = self._relaxation.values

    def _useful(self, options: list[list[Option]]) -> list[list[Option]]:
        """Without options so small that the other stages cannot hold the rest."""
        most = [max((option.layers for option in row), default=0) for row in options]
        missing = self.stages.estimator.model.layers - sum(most)
        return [
            [option for option in row if option.layers >= missing + largest]
            for row, largest in zip(options, most, strict=True)
        ]

    def _build(self) -> None:
        self.take = [
            [
                self.program.column(f"x_{stage}_{index}", upper=1.0, whole=True)
                for index in range(len(options))
            ]
            for stage, options in enumerate(self.options)
        ]
        self._one_option_per_stage()
        self._every_layer_once()
        taken = self._all()
        self._add(chain(device_rows(self.stages, taken), mixed_rows(self.stages, taken)))
        self._add(divided_rows(self.stages, taken))
        self.flow = Flow(self.program, self.stages, self.options, self.take, self.scale, self.deadline)
        self.send = self.flow.send
        crossings = self._crosses_a_slow_link()
        self.branching = Branching(self.program, self.stages, self.options, self.take, crossings)
        self._add(node_rows(self.stages, taken, self.flow.fresh))
        self._add(chain(tied_rows(self.stages, taken), self.flow.entries.rows()))
        self._beside = self._share_nodes()
        self._durations()
        self._once = self._one_micro_batch()
        self._paths()

    def _add(self, rows: Iterable[Row]) -> None:
        for terms, most in rows:
            self.program.row(terms, most=most)

    def _one_option_per_stage(self) -> None:
        for variables in self.take:
            # sum_o x[s,o] = 1
            self.program.equal(ones(variables), 1.0)

    def _every_layer_once(self) -> None:
        layers = total((option.layers, variable) for _, option, variable in self._all())
        # sum_s,o layers(o) x[s,o] = L
        self.program.equal(layers, self.stages.estimator.model.layers)

    def _crosses_a_slow_link(self) -> SlowSends | None:
        """Plans on one island are in another partition: the pipeline leaves one somewhere, or a stage stands on two."""
        if not self.stages.islands:
            return None
        wide = [
            variable
            for _, option, variable in self._all()
            if len(self.stages.used_islands(self.stages.compositions[option.composition])) > 1
        ]
        # edges from island to island + stages on several >= 1
        self.program.row(ones(self.flow.crossing + wide), least=1.0)
        return SlowSends(self.program, self.stages, self.options, self.take, self.flow.slow, wide, self.scale)

    def _durations(self) -> None:
        """Variables of their own keep the paths sparse."""
        stages, chunks = range(self.depth), range(self.chunks)
        self._forward = [
            [
                self.program.defined(f"f_{stage}_{chunk}", self._seconds(stage, chunk, back=False))
                for chunk in chunks
            ]
            for stage in stages
        ]
        self._backward = [
            [
                self.program.defined(f"b_{stage}_{chunk}", self._seconds(stage, chunk, back=True))
                for chunk in chunks
            ]
            for stage in stages
        ]
        self._weight = [
            [
                self.program.defined(f"w_{stage}_{chunk}", self._weight_seconds(stage, chunk))
                for chunk in chunks
            ]
            for stage in stages
            if divides(self.stages.choice.schedule)
        ] or [[] for _ in stages]
        every = zip(self._forward, self._backward, self._weight, strict=True)
        self._busy = [combined((1.0, item) for item in [*one, *two, *three]) for one, two, three in every]
        self._up = self._sums("up", [row[0] for row in self._forward])
        self._down = self._sums("down", [row[0] for row in self._backward])
        self._before = self._sums("before", self._busy)
        self._chain = self._held_back()

    def _one_micro_batch(self) -> Terms:
        """What one micro-batch alone takes, at least: durations may say less, since their sends are a bound."""
        if not self.stages.once_seconds:
            return self._before[-1]
        once = {self.program.column("once"): 1.0}
        # once >= sum_s (f[s] + b[s]), and >= what the Lagrangian bound says of plans below the cutoff
        self.program.row(added(once, self._before[-1], -1.0), least=0.0)
        self.program.row(once, least=self.stages.once_seconds * (1 - TOLERANCE) / self.scale)
        return once

    def _held_back(self) -> list[Terms]:
        """Seconds for which a stage and those above it hold back the last gradient on its way to the first, [stage]."""
        if not self.stages.pricer.target.reduces_in_backward:
            return [{}] * self.depth
        return self._sums("held", [self._held(stage) for stage in range(1, self.depth)])

    def _sums(self, name: str, terms: list[Terms]) -> list[Terms]:
        """Sums of the first 0, 1, ... terms."""
        sums: list[Terms] = [{}]
        for number, term in enumerate(terms):
            sums.append(self.program.defined(f"{name}_{number}", added(sums[-1], term)))
        return sums

    def _weight_seconds(self, stage: int, chunk: int) -> Terms:
        return self._stage_sum(stage, lambda option: option.weight[chunk])

    def _seconds(self, stage: int, chunk: int, *, back: bool) -> Terms:
        seconds = self._stage_sum(
            stage, lambda option: option.backward[chunk] if back else option.forward[chunk]
        )
        schedule = self.stages.choice.schedule
        times = self.stages.pricer.sent_with(stage, chunk, self.depth, self.chunks, schedule)
        to_next, before = times.forward_to_next, times.forward_from_before + times.forward_to_before
        if back:
            to_next, before = times.backward_to_next, times.backward_to_before
        return combined(((1.0, seconds), (before, self.send[stage - 1]), (to_next, self.send[stage])))

    def _paths(self) -> None:
        """The table of paths: the end of the step is after each of them, and the tail of the stage it ends with."""
        steps, head = self.stages.choice.family.micro_batches, self._head()
        tails = [self._tail(stage) for stage in range(self.depth)]
        for path in stage_paths(self.depth, steps, self.chunks, self.stages.choice.schedule):
            # T >= sum_i (a_i forward_i + b_i backward_i + c_i weight_i) + the gradients held back + tail
            after = head if path.to_first else tails[path.stage]
            self._ends_after([*self._visits(path), (1.0, self._chain[path.held]), (1.0, after)])

    def _ends_after(self, parts: Iterable[tuple[float, Terms]], least: float = 0.0) -> None:
        """T >= the sum of factors times expressions + ``least``."""
        self.program.row(
            combined([(1.0, {self.end: 1.0}), *((-factor, one) for factor, one in parts)]), least=least
        )

    def _visits(self, path: StagePath) -> Iterator[tuple[float, Terms]]:
        """Seconds of a path, written with sums over stages, which keep its row sparse."""
        stage, own, before, behind = path.stage, path.own, path.before, path.behind
        if behind == NEVER or divides(self.stages.choice.schedule):
            for sums, ahead, after in (
                (self._up, before.forward, behind.forward),
                (self._down, before.backward, behind.backward),
            ):
                yield ahead, sums[stage]
                if after:
                    yield from ((after, sums[self.depth]), (-after, sums[stage + 1]))
            yield from self._own(stage, own)
            return
        # Through all stages as often as through those behind; less for those up to this one; its own rest.
        if behind == before:
            yield behind.forward, self._once
        else:
            # What is taken off again must be as little as what it is taken from.
            yield behind.forward, self._before[-1]
            yield before.forward - behind.forward, self._before[stage + 1]
        left = Visits(own.forward - before.forward, own.backward - before.backward)
        yield from self._own(stage, left)

    def _own(self, stage: int, visits: Visits) -> Iterator[tuple[float, Terms]]:
        yield from ((visits.forward, item) for item in self._forward[stage])
        yield from ((visits.backward, item) for item in self._backward[stage])
        yield from ((visits.weight, item) for item in self._weight[stage])

    def _head(self) -> Terms:
        """What follows the last backward of the first stage, and of the last one where this waits for it."""
        if not self.stages.outer_wait:
            return self._tail(0)
        head = {self.program.column("head"): 1.0}
        for stage in (0, self.depth - 1):
            self.program.row(added(head, self._tail(stage), -1.0), least=0.0)
        return head

    def _tail(self, stage: int) -> Terms:
        return added(self._stage_sum(stage, lambda option: option.tail_seconds), self._beside[stage])

    def _share_nodes(self) -> list[Terms]:
        """What the tail of each stage takes longer since others have the same nodes, [stage]."""
        beside: list[Terms] = [{} for _ in range(self.depth)]
        for number, sharing in enumerate(sharings(self.stages)):
            nodes = sharing.device_type.nodes
            filled = total((sharing.fills.get(option.composition, 0), x) for _, option, x in self._all())
            for need in sorted(set(sharing.needs.values())):
                short = self.program.column(f"short_{number}_{need}", upper=1.0, whole=True)
                # sum of the nodes that stages fill <= nodes - need, or short
                self.program.row(added(filled, {short: -float(need)}), most=nodes - need)
                for stage in range(self.depth):
                    longer = [
                        (sharing.longer(stage, option) / self.scale, x)
                        for option, x in zip(self.options[stage], self.take[stage], strict=True)
                        if sharing.needs.get(option.composition, 0) >= need
                    ]
                    most = max((seconds for seconds, _ in longer), default=0.0)
                    if most:
                        if not beside[stage]:
                            beside[stage] = {self.program.column(f"beside_{stage}"): 1.0}
                        # beside[s] >= sum_o longer(o) x[s,o] - most (1 - short), of options that need so many or more
                        terms = added(added(total(longer), beside[stage], -1.0), {short: most})
                        self.program.row(terms, most=most)
        return beside

    def _held(self, stage: int) -> Terms:
        return self._stage_sum(stage, lambda option: option.held_seconds)

    def _stage_sum(self, stage: int, value: Callable[[Option], float]) -> Terms:
        self.deadline.check()
        pairs = zip(self.options[stage], self.take[stage], strict=True)
        return total((value(option) / self.scale, variable) for option, variable in pairs)

    def _all(self) -> list[tuple[int, Option, Column]]:
        return [
            (stage, option, variable)
            for stage in range(self.depth)
            for option, variable in zip(self.options[stage], self.take[stage], strict=True)
        ]

    def limit(self, seconds: float) -> None:
        """From now on only plans faster than ``seconds`` are of interest."""
        self.program.upper[self.end] = seconds / self.scale

    def solve(self, *, gap: float, nodes: int | None = None) -> Solved:
        """Solve with the cuts so far; the bound is in seconds."""
        solution = solve(self.program, gap=gap, nodes=nodes, deadline=self.deadline, solver=self.solver)
        if solution.values is not None:
            self._values = solution.values
        return replace(solution, bound=solution.bound * self.scale * (1 - TOLERANCE))

    def relaxed_bound(self) -> float:
        """Seconds of the linear relaxation: a bound, quickly; infinite when even that has no solution.

        Its durations, too, are those of a pipeline; where this ends later than the paths so far say, its critical path
        is one more (cutting planes: Kelley 1960).
        """
        bound = 0.0
        for _ in range(MOST_PATHS):
            found = self._relaxation.solve(self.deadline)
            bound, self._values = max(bound, found), self._relaxation.values
            # Of 0 there is no solution to cut off.
            if found in (0.0, inf) or not self.cut_critical_path(LATER):
                break
        return bound * self.scale * (1 - TOLERANCE)

    def cut_critical_path(self, later: float = TOLERANCE) -> bool:
        """The end is at least the critical path of the last solution's durations, and the tail of its last stage.

        False where that is hardly ``later`` than what the solution says, so that it cuts nothing off.
        """
        micro_batches, schedule = self.stages.choice.family.micro_batches, self.stages.choice.schedule
        if self.depth * self.chunks * micro_batches > MAX_CUT_STAGES:
            return False
        forward, backward, weight = (
            [[self._value(item) for item in row] for row in rows if row]
            for rows in (self._forward, self._backward, self._weight)
        )
        held = [self._value(self._held(stage)) for stage in range(self.depth)]
        pipeline = Pipeline(forward, backward, micro_batches, held, weight, schedule)
        ends = ends_of_many(pipeline)
        begins = together(ends) if self.stages.outer_wait else ends
        finish = [end + self._value(self._tail(stage)) for stage, end in enumerate(begins)]
        last = finish.index(max(finish))
        if finish[last] <= self._values[self.end] * (1 + later):
            return False
        waited = last if ends[last] == begins[last] else self.depth - 1 - last
        self._cut_path(critical_path(simulate(*pipeline), waited), last)
        return True

    def _value(self, terms: Terms) -> float:
        """What an expression is in the last solution."""
        return float(sum(factor * self._values[column] for column, factor in terms.items()))

    def parts(self, part: Subset) -> list[Subset]:
        """What a part is divided into after the last solution; nothing to leave it to the ILP."""
        return list(self.branching.parts(part, self._values))

    def chosen(self) -> list[Option]:
        """The options of the last solution, one a stage."""
        return [
            max(zip(options, variables, strict=True), key=lambda pair: self._values[pair[1]])[0]
            for options, variables in zip(self.options, self.take, strict=True)
        ]

    def _cut_path(self, path: CriticalPath, stage: int) -> None:
        terms = [
            (float(count), variables[index][chunk])
            for counts, variables in (
                (path.forward, self._forward),
                (path.backward, self._backward),
                (path.weight, self._weight),
            )
            for index, row in enumerate(counts)
            for chunk, count in enumerate(row)
            if count
        ]
        terms += [(1.0, self._held(index)) for index, count in enumerate(path.held) if count]
        # T >= sum_i (a_i forward_i + b_i backward_i + c_i weight_i) + the gradients held back + tail, as counted in the
        # simulation
        self._ends_after([*terms, (1.0, self._tail(stage))])

    def cut_places(self, slots: Sequence[int]) -> None:
        """The target does not start stages that stand where these compositions do, [stage]."""
        self._add([placed_alike(self.stages, self._all(), slots)])

    def cut_solution(self, chosen: list[Option], seconds: float, bound_seconds: float) -> None:
        """Exactly these options take ``seconds``; anything else at least ``bound_seconds``."""
        taken = [
            variable
            for stage, picked in enumerate(chosen)
            for option, variable in zip(self.options[stage], self.take[stage], strict=True)
            if option is picked
        ]
        # T >= low + (high - low) (sum_s x[s,chosen] - (p - 1)): high where all p are taken, else no more than low
        low, high = bound_seconds / self.scale, min(seconds / self.scale, 2.0)
        self._ends_after([(high - low, ones(taken))], low - (high - low) * (self.depth - 1))


Taken = Sequence[tuple[int, Option, Column]]
"""(stage, option, its variable) of all options of all stages."""


def device_rows(stages: StageOptions, taken: Taken) -> Iterator[Row]:
    """No device twice: replicas against room where all have one degree, devices otherwise."""
    tp = stages.choice.family.tp
    for device_type in stages.topology.device_types:
        used = [
            (group.count * (1 if tp else group.tp), variable)
            for _, option, variable in taken
            for group in stages.compositions[option.composition]
            if (group.pool, group.gpu) == device_type.key
        ]
        if used:
            # sum of replicas, or of devices, of a type <= what the cluster has of it
            yield total(used), device_type.replicas(tp) if tp else device_type.devices


def node_rows(
    stages: StageOptions, taken: Taken, fresh: Mapping[tuple[str, str], list[Column]]
) -> Iterator[Row]:
    """No node twice: what fills nodes, and each part of a node with its like.

    ``fresh`` holds, for types whose runs of stages smaller than a node all begin on untouched ones, who begins one.
    """
    for device_type in stages.topology.device_types:
        parts = [
            (part, variable) for _, option, variable in taken for part in _parts(stages, option, device_type)
        ]
        begun = [(1, variable) for variable in fresh.get(device_type.key, [])]
        if begun:
            yield total([*((whole, x) for (whole, _, _), x in parts), *begun]), device_type.nodes
        for least in sorted({rest for (_, _, rest), _ in parts}):
            shares = [(_share(part, least, device_type), variable) for part, variable in parts]
            # sum of the shares of a node that parts of ``least`` devices or more take <= nodes
            yield total(shares), device_type.nodes


Part = tuple[int, int, int]
"""Nodes that a group fills, the devices it takes on each, and those it takes beside, all on one node."""


def _parts(stages: StageOptions, option: Option, device_type: DeviceType) -> Iterator[Part]:
    if option.composition in stages.divided:
        # It takes what others leave: devices alone are counted.
        return
    for group in stages.compositions[option.composition]:
        if (group.pool, group.gpu) == device_type.key:
            per_node = device_type.per_node // group.tp
            whole, rest = divmod(group.count, per_node)
            yield whole, per_node * group.tp, rest * group.tp


def _share(part: Part, least: int, device_type: DeviceType) -> float:
    """Nodes that a group takes at least from those that hold parts of ``least`` devices or more, each an even share."""
    whole, filled, rest = part
    if not least:
        return float(whole)
    room = device_type.per_node // least
    return whole * (1 - (device_type.per_node - filled) // least / room) + (rest >= least) / room


def mixed_rows(stages: StageOptions, taken: Taken) -> Iterator[Row]:
    """Few stages of several device types."""
    mixed = [x for _, option, x in taken if stages.is_mixed(option.composition)]
    if mixed and stages.most_mixed < stages.choice.depth:
        yield ones(mixed), stages.most_mixed


def divided_rows(stages: StageOptions, taken: Taken) -> Iterator[Row]:
    """Stages on what others leave of several nodes come after all that nodes hold whole."""
    for composition, whole in stages.divided.items():
        alike = [
            (stage, option, x)
            for stage, option, x in taken
            if stages.compositions[option.composition] == stages.compositions[composition]
        ]
        for number in range(whole, stages.choice.depth):
            own = [x for stage, option, x in alike if stage == number and option.composition == composition]
            before = [
                x for stage, option, x in alike if stage < number and option.composition not in stages.divided
            ]
            if own:
                # whole x[s, divided] <= sum of x of the same devices on one node, of the stages before s
                yield added(total((float(whole), x) for x in own), ones(before), -1.0), 0.0


def tied_rows(stages: StageOptions, taken: Taken) -> Iterator[Row]:
    """Degrees of the first stage need degrees of the last that can hold the same embedding, and the reverse."""
    if not stages.joins_ends:
        return
    first, last = (_by_degrees(stages, taken, stage) for stage in (0, stages.choice.depth - 1))
    for these, others in ((first, last), (last, first)):
        for one, variables in these.items():
            partners = [x for other, columns in others.items() if stages.joined(one, other) for x in columns]
            # x[first, degrees] <= sum of x[last, degrees that fit], and the reverse
            yield added(ones(variables), ones(partners), -1.0), 0.0


def _by_degrees(stages: StageOptions, taken: Taken, stage: int) -> dict[int, list[Column]]:
    """Variables of a stage by one of the compositions with the same tp and dp."""
    named: dict[tuple[int, int], int] = {}
    columns: dict[int, list[Column]] = {}
    for number, option, variable in taken:
        if number == stage:
            groups = stages.compositions[option.composition]
            degrees = groups[0].tp, sum(group.count for group in groups)
            columns.setdefault(named.setdefault(degrees, option.composition), []).append(variable)
    return columns


def placed_alike(stages: StageOptions, taken: Taken, slots: Sequence[int]) -> Row:
    """No plan whose stages take the same parts of nodes as these compositions, [stage]."""
    wanted = [stages.footprint(composition) for composition in slots]
    alike = [x for stage, option, x in taken if stages.footprint(option.composition) == wanted[stage]]
    # sum_s x[s, any option on these parts] <= p - 1
    return ones(alike), len(slots) - 1
