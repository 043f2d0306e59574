"""The ILP of one outer choice: an option for every stage, least time of the pipeline's longest path.

    x[s,o] = 1        stage s takes option o (a composition of devices and a number of layers)
    e[s,a,b] = 1      stage s is in state a of its node and the next stage stands on place b (prices the send)
    f[s,c], b[s,c]    forward and backward seconds of a micro-batch on chunk c of stage s, sends included
    T                 end of the step

The end of a pipeline is the largest of many paths through its operations, each linear in f and b. The model
starts with the table of ``planner.cost.schedules``; further paths are added when a solution is simulated and its
critical path turns out longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pulp

from planner.cluster.topology import DeviceType
from planner.cost.pipeline_end import CriticalPath
from planner.cost.schedules import NEVER, StagePath, sent_with, stage_paths
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.milp.branching import Branching
from planner.search.milp.flow import Flow, weighted
from planner.search.milp.solver import TOLERANCE, Relaxation, Solved, relaxation, solve
from planner.search.space.stages import Option, StageOptions

Linear = Any
"""A linear expression of PuLP, which has no types."""


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
        self.problem = pulp.LpProblem("pipeline", pulp.LpMinimize)
        self._relaxation: Relaxation | None = None
        self.end = self.problem.add_variable("T", lowBound=0.0, upBound=1.0)
        self.problem += self.end
        self.feasible = all(self.options)
        if self.feasible:
            self._build()

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
            [self.problem.add_variable(f"x_{stage}_{index}", cat="Binary") for index in range(len(options))]
            for stage, options in enumerate(self.options)
        ]
        self.branching = Branching(self.stages, self.options, self.take)
        self._one_option_per_stage()
        self._every_layer_once()
        taken = self._all()
        self._add(chain(device_rows(self.stages, taken), mixed_rows(self.stages, taken)))
        self.flow = Flow(self.problem, self.stages, self.options, self.take, self.scale, self.deadline)
        self.send = self.flow.send
        self._crosses_a_slow_link()
        self._add(node_rows(self.stages, taken, self.flow.fresh))
        self._add(chain(tied_rows(self.stages, taken), self.flow.entries.rows()))
        self._durations()
        if self.stages.once_seconds:
            # sum_s (f[s] + b[s]) >= once, which the Lagrangian bound says of plans below the cutoff
            self.problem += self._before[-1] >= self.stages.once_seconds * (1 - TOLERANCE) / self.scale
        self._paths()

    def _add(self, rows: Iterable[pulp.LpConstraint]) -> None:
        for row in rows:
            self.problem += row

    def _one_option_per_stage(self) -> None:
        for variables in self.take:
            # sum_o x[s,o] = 1
            self.problem += pulp.lpSum(variables) == 1

    def _every_layer_once(self) -> None:
        total = weighted((option.layers, variable) for _, option, variable in self._all())
        # sum_s,o layers(o) x[s,o] = L
        self.problem += total == self.stages.estimator.model.layers

    def _crosses_a_slow_link(self) -> None:
        """Plans on one island are in another partition: the pipeline leaves one somewhere, or a stage stands on two."""
        if self.stages.islands:
            wide = [
                variable
                for _, option, variable in self._all()
                if len(self.stages.used_islands(self.stages.compositions[option.composition])) > 1
            ]
            # edges from island to island + stages on several >= 1
            self.problem += total((1, variable) for variable in self.flow.crossing + wide) >= 1

    def _durations(self) -> None:
        """Variables of their own keep the paths sparse."""
        stages, chunks = range(self.depth), range(self.chunks)
        self._forward = [
            [self._equal(f"f_{stage}_{chunk}", self._seconds(stage, chunk, back=False)) for chunk in chunks]
            for stage in stages
        ]
        self._backward = [
            [self._equal(f"b_{stage}_{chunk}", self._seconds(stage, chunk, back=True)) for chunk in chunks]
            for stage in stages
        ]
        self._busy = [pulp.lpSum(self._forward[stage] + self._backward[stage]) for stage in stages]
        self._up = self._sums("up", [row[0] for row in self._forward])
        self._down = self._sums("down", [row[0] for row in self._backward])
        self._before = self._sums("before", self._busy)
        self._chain = self._held_back()

    def _held_back(self) -> list[Linear]:
        """Seconds for which a stage and those above it hold back the last gradient on its way to the first, [stage]."""
        if not self.stages.pricer.target.reduces_in_backward:
            return [pulp.LpAffineExpression()] * self.depth
        return self._sums("held", [self._held(stage) for stage in range(1, self.depth)])

    def _equal(self, name: str, value: Linear) -> pulp.LpVariable:
        variable = self.problem.add_variable(name, lowBound=0.0)
        self.problem += variable == value
        return variable

    def _sums(self, name: str, terms: list[Linear]) -> list[Linear]:
        """Sums of the first 0, 1, ... terms."""
        found: list[Linear] = [pulp.LpAffineExpression()]
        for number, term in enumerate(terms):
            found.append(self._equal(f"{name}_{number}", found[-1] + term))
        return found

    def _seconds(self, stage: int, chunk: int, *, back: bool) -> Linear:
        seconds = self._stage_sum(
            stage, lambda option: option.backward[chunk] if back else option.forward[chunk]
        )
        in_turn = self.stages.pricer.target.exchanges_in_turn
        times = sent_with(stage, chunk, self.depth, self.chunks, in_turn=in_turn)
        to_next = 0 if back else times.forward_to_next
        before = times.backward_to_before if back else times.forward_from_before
        for count, send in ((before, self.send[stage - 1]), (to_next, self.send[stage])):
            if count:
                seconds = seconds + count * send
        return seconds

    def _paths(self) -> None:
        """The table of paths: the end of the step is after each of them, and the tail of the stage it ends with."""
        steps, head = self.stages.choice.family.micro_batches, self._head()
        for path in stage_paths(self.depth, steps, self.chunks):
            # T >= sum_i (a_i forward_i + b_i backward_i) + the gradients held back + tail
            seconds = self._visits(path) + self._chain[path.held]
            self.problem += self.end >= seconds + (head if path.to_first else self._tail(path.stage))

    def _visits(self, path: StagePath) -> Linear:
        """Seconds of a path, written with sums over stages, which keep its row sparse."""
        stage, own, before, behind = path.stage, path.own, path.before, path.behind
        if behind == NEVER:
            work = before.forward * self._up[stage] + self._own(stage, own.forward, own.backward)
            return work + before.backward * self._down[stage] if before.backward else work
        # Through all stages as often as through those behind; less for those up to this one; its own rest.
        seconds = behind.forward * self._before[-1]
        if behind != before:
            seconds = seconds - (behind.forward - before.forward) * self._before[stage + 1]
        return seconds + self._own(stage, own.forward - before.forward, own.backward - before.backward)

    def _own(self, stage: int, forward: int, backward: int) -> Linear:
        return forward * pulp.lpSum(self._forward[stage]) + backward * pulp.lpSum(self._backward[stage])

    def _head(self) -> Linear:
        """What follows the last backward of the first stage, and of the last one where this waits for it."""
        if not self.stages.outer_wait:
            return self._tail(0)
        head = self.problem.add_variable("head", lowBound=0.0)
        for stage in (0, self.depth - 1):
            self.problem += head >= self._tail(stage)
        return head

    def _tail(self, stage: int) -> Linear:
        return self._stage_sum(stage, lambda option: option.tail_seconds)

    def _held(self, stage: int) -> Linear:
        return self._stage_sum(stage, lambda option: option.held_seconds)

    def _stage_sum(self, stage: int, value: Callable[[Option], float]) -> Linear:
        self.deadline.check()
        pairs = zip(self.options[stage], self.take[stage], strict=True)
        return weighted((value(option) / self.scale, variable) for option, variable in pairs)

    def _all(self) -> list[tuple[int, Option, pulp.LpVariable]]:
        return [
            (stage, option, variable)
            for stage in range(self.depth)
            for option, variable in zip(self.options[stage], self.take[stage], strict=True)
        ]

    def limit(self, seconds: float) -> None:
        """From now on only plans faster than ``seconds`` are of interest."""
        self.end.upBound = seconds / self.scale

    def solve(self, *, gap: float, nodes: int | None = None) -> Solved:
        """Solve with the cuts so far; the bound is in seconds."""
        found = solve(self.problem, gap=gap, nodes=nodes, deadline=self.deadline, solver=self.solver)
        return replace(found, bound=found.bound * self.scale * (1 - TOLERANCE))

    def relaxed_bound(self) -> float:
        """Seconds of the linear relaxation: a bound, quickly; infinite when even that has no solution."""
        self._relaxation = self._relaxation or relaxation(self.problem, self.solver)
        return self._relaxation(self.deadline) * self.scale * (1 - TOLERANCE)

    def chosen(self) -> list[Option]:
        """The options of the last solution, one a stage."""
        return [
            max(zip(options, variables, strict=True), key=lambda pair: pair[1].value() or 0.0)[0]
            for options, variables in zip(self.options, self.take, strict=True)
        ]

    def cut_path(self, path: CriticalPath, stage: int) -> None:
        """The end is at least this path through the operations and the tail of ``stage``, which follows it."""
        self._relaxation = None
        terms = [
            count * variables[index][chunk]
            for counts, variables in ((path.forward, self._forward), (path.backward, self._backward))
            for index, row in enumerate(counts)
            for chunk, count in enumerate(row)
            if count
        ]
        terms += [self._held(index) for index, count in enumerate(path.held) if count]
        # T >= sum_i (a_i forward_i + b_i backward_i) + the gradients held back + tail, as counted in the simulation
        self.problem += self.end >= pulp.lpSum(terms) + self._tail(stage)

    def cut_places(self, slots: Sequence[int]) -> None:
        """The target does not start stages that stand where these compositions do, [stage]."""
        self._relaxation = None
        self.problem += placed_alike(self.stages, self._all(), slots)

    def cut_solution(self, chosen: list[Option], seconds: float, bound_seconds: float) -> None:
        """Exactly these options take ``seconds``; anything else at least ``bound_seconds``."""
        self._relaxation = None
        taken = [
            variable
            for stage, picked in enumerate(chosen)
            for option, variable in zip(self.options[stage], self.take[stage], strict=True)
            if option is picked
        ]
        # T >= low + (high - low) (sum_s x[s,chosen] - (p - 1)): high where all p are taken, else no more than low
        low, high = bound_seconds / self.scale, min(seconds / self.scale, 2.0)
        self.problem += self.end >= low + (high - low) * (pulp.lpSum(taken) - (self.depth - 1))


Taken = Sequence[tuple[int, Option, pulp.LpVariable]]
"""(stage, option, its variable) of all options of all stages."""


def total(terms: Iterable[tuple[float, pulp.LpVariable]]) -> pulp.LpAffineExpression:
    """The sum of factors times variables; a variable may occur twice."""
    return pulp.lpSum(factor * variable for factor, variable in terms)


def device_rows(stages: StageOptions, taken: Taken) -> Iterator[pulp.LpConstraint]:
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
            yield total(used) <= (device_type.replicas(tp) if tp else device_type.devices)


def node_rows(
    stages: StageOptions, taken: Taken, fresh: Mapping[tuple[str, str], list[pulp.LpVariable]]
) -> Iterator[pulp.LpConstraint]:
    """No node twice: what fills nodes, and each part of a node with its like.

    ``fresh`` holds, for types whose runs of stages smaller than a node all begin on untouched ones, who begins one.
    """
    for device_type in stages.topology.device_types:
        parts = [
            (part, variable) for _, option, variable in taken for part in _parts(stages, option, device_type)
        ]
        begun = [(1, variable) for variable in fresh.get(device_type.key, [])]
        if begun:
            yield total([*((whole, x) for (whole, _, _), x in parts), *begun]) <= device_type.nodes
        for least in sorted({rest for (_, _, rest), _ in parts}):
            shares = [(_share(part, least, device_type), variable) for part, variable in parts]
            # sum of the shares of a node that parts of ``least`` devices or more take <= nodes
            yield total((share, x) for share, x in shares if share) <= device_type.nodes


Part = tuple[int, int, int]
"""Nodes that a group fills, the devices it takes on each, and those it takes beside, all on one node."""


def _parts(stages: StageOptions, option: Option, device_type: DeviceType) -> Iterator[Part]:
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


def mixed_rows(stages: StageOptions, taken: Taken) -> Iterator[pulp.LpConstraint]:
    """Few stages of several device types."""
    mixed = [x for _, option, x in taken if stages.is_mixed(option.composition)]
    if mixed and stages.most_mixed < stages.choice.depth:
        yield pulp.lpSum(mixed) <= stages.most_mixed


def tied_rows(stages: StageOptions, taken: Taken) -> Iterator[pulp.LpConstraint]:
    """Degrees of the first stage need degrees of the last that can hold the same embedding, and the reverse."""
    if not stages.joins_ends:
        return
    first, last = (_by_degrees(stages, taken, stage) for stage in (0, stages.choice.depth - 1))
    for these, others in ((first, last), (last, first)):
        for one, variables in these.items():
            partners = [x for other, found in others.items() if stages.joined(one, other) for x in found]
            # x[first, degrees] <= sum of x[last, degrees that fit], and the reverse
            yield pulp.lpSum(variables) <= pulp.lpSum(partners)


def _by_degrees(stages: StageOptions, taken: Taken, stage: int) -> dict[int, list[pulp.LpVariable]]:
    """Variables of a stage by one of the compositions with the same tp and dp."""
    named: dict[tuple[int, int], int] = {}
    found: dict[int, list[pulp.LpVariable]] = {}
    for number, option, variable in taken:
        if number == stage:
            groups = stages.compositions[option.composition]
            degrees = groups[0].tp, sum(group.count for group in groups)
            found.setdefault(named.setdefault(degrees, option.composition), []).append(variable)
    return found


def placed_alike(stages: StageOptions, taken: Taken, slots: Sequence[int]) -> pulp.LpConstraint:
    """No plan whose stages take the same parts of nodes as these compositions, [stage]."""
    wanted = [stages.footprint(composition) for composition in slots]
    alike = [x for stage, option, x in taken if stages.footprint(option.composition) == wanted[stage]]
    # sum_s x[s, any option on these parts] <= p - 1
    return pulp.lpSum(alike) <= len(slots) - 1
