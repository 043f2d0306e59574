"""Sends in the ILP: they cost what the places of both ends say, a flow from state to state along the stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pulp

from planner.search.deadline import Deadline
from planner.search.milp.places import Places, State
from planner.search.milp.rows import Entries
from planner.search.space.stages import Option, StageOptions

Linear = Any
"""A linear expression of PuLP, which has no types."""


class Flow:
    """Adds the edges of one model and tells what they stand for."""

    def __init__(
        self,
        problem: pulp.LpProblem,
        stages: StageOptions,
        options: list[list[Option]],
        take: list[list[pulp.LpVariable]],
        scale: float,
        deadline: Deadline,
    ) -> None:
        """``take`` are the variables of the options, [stage][option]; seconds are in units of ``scale``."""
        self.problem, self.stages, self.options, self.take = problem, stages, options, take
        self.scale, self.deadline = scale, deadline
        self.depth = stages.choice.depth
        self.places = Places(
            self.stages, sorted({option.composition for row in self.options for option in row})
        )
        self.entries = Entries(self.places)
        self.send: list[Linear] = [pulp.LpAffineExpression() for _ in range(self.depth)]
        """Seconds of the send from each stage to the next, of the last one to the first."""
        self.fresh: dict[tuple[str, str], list[pulp.LpVariable]] = {}
        """Who begins a run of stages smaller than a node, by kind."""
        self._left: dict[tuple[str, str], list[pulp.LpVariable]] = {}
        self.crossing: list[pulp.LpVariable] = []
        """Edges from island to island."""
        arriving = self._first_states()
        for stage in range(self.depth - 1):
            arriving = self._flow(stage, arriving)
        if self.stages.choice.interleave > 1:
            self._round_trip()

    def _first_states(self) -> dict[State, list[pulp.LpVariable]]:
        found: dict[State, list[pulp.LpVariable]] = {}
        for place, variables in self._by_place(0).items():
            state = self.places.begins(place)
            found.setdefault(state, []).extend(variables)
            self._count_fresh(state, variables)
            self.entries.add(None, place, variables)
        return found

    def _flow(
        self, stage: int, arriving: dict[State, list[pulp.LpVariable]]
    ) -> dict[State, list[pulp.LpVariable]]:
        """Edges from the states of a stage to the places of the next; returns what arrives in each state there."""
        self.deadline.check()
        incoming: dict[int, list[pulp.LpVariable]] = {}
        found: dict[State, list[pulp.LpVariable]] = {}
        cost: list[tuple[float, pulp.LpVariable]] = []
        following = self._by_place(stage + 1)
        for number, (state, variables) in enumerate(arriving.items()):
            leaving = []
            for place in following:
                left = self.places.leaves(state[0], place)
                for after, seconds in self.places.steps(stage, state, place):
                    if seconds == float("inf"):
                        continue
                    name = f"e_{stage}_{number}_{place}_{after[1]}"
                    edge = self.problem.add_variable(name, lowBound=0.0, upBound=1.0)
                    cost.append((seconds / self.scale, edge))
                    leaving.append(edge)
                    incoming.setdefault(place, []).append(edge)
                    found.setdefault(after, []).append(edge)
                    self._count_fresh(after, [edge])
                    self.entries.add(state[0], place, [edge])
                    if left is not None:
                        self._left.setdefault(left, []).append(edge)
                    if len(self.places.islands(state[0], place)) > 1:
                        self.crossing.append(edge)
            # sum of the edges out of a state = what arrives in it
            self.problem += pulp.lpSum(leaving) == pulp.lpSum(variables)
        for place, variables in following.items():
            # sum of the edges into a place = sum of x of the options that stand there
            self.problem += pulp.lpSum(incoming.get(place, [])) == pulp.lpSum(variables)
        self.send[stage] = weighted(cost) + self._always_sent(stage, stage + 1)
        return found

    def _always_sent(self, stage: int, following: int) -> Linear:
        """What a send takes whatever the places of the other end."""
        leaving, arriving = self.places.leaving, self.places.arriving
        sent = self._stage_sum(stage, leaving)
        return sent + self._stage_sum(following, arriving)

    def _round_trip(self) -> None:
        """Interleaving sends from the last stage to the first."""
        first, last = self._by_place(0), self._by_place(self.depth - 1)
        edges: list[tuple[tuple[int, int], float, pulp.LpVariable]] = []
        near: dict[tuple[str, str], list[pulp.LpVariable]] = {}
        for start, end in product(last, first):
            sends = self.places.around(start, end)
            for name, seconds in (("near", sends.near_seconds), ("far", sends.far_seconds)):
                if seconds < float("inf"):
                    edge = self.problem.add_variable(f"r_{start}_{end}_{name}", lowBound=0.0, upBound=1.0)
                    edges.append(((start, end), seconds, edge))
                    if name == "near" and not self.places.stays(end):
                        near.setdefault(self.places.kind(end), []).append(edge)
        for side, by_place in enumerate((last, first)):
            for place, variables in by_place.items():
                found = [edge for ends, _, edge in edges if ends[side] == place]
                self.problem += pulp.lpSum(found) == pulp.lpSum(variables)
        for kind, found in near.items():
            self.problem += pulp.lpSum(found) <= pulp.lpSum(self._left.get(kind, []))
        cost = weighted((seconds / self.scale, edge) for _, seconds, edge in edges)
        self.send[-1] = cost + self._always_sent(self.depth - 1, 0)

    def _count_fresh(self, state: State, variables: list[pulp.LpVariable]) -> None:
        """Remember who takes an untouched node."""
        kind = self.places.fresh_node(state)
        if kind is not None:
            self.fresh.setdefault(kind, []).extend(variables)

    def _by_place(self, stage: int) -> dict[int, list[pulp.LpVariable]]:
        found: dict[int, list[pulp.LpVariable]] = {}
        for option, variable in zip(self.options[stage], self.take[stage], strict=True):
            found.setdefault(self.places.of[option.composition], []).append(variable)
        return found

    def _stage_sum(self, stage: int, seconds: Mapping[int, float]) -> Linear:
        """What the composition of a stage says."""
        pairs = zip(self.options[stage], self.take[stage], strict=True)
        return weighted((seconds[option.composition] / self.scale, variable) for option, variable in pairs)


def weighted(terms: Iterable[tuple[float, pulp.LpVariable]]) -> Linear:
    """The sum of factors times variables; no variable occurs twice."""
    return pulp.LpAffineExpression([(variable, factor) for factor, variable in terms])
