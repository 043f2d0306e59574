"""Sends in the ILP: they cost what the places of both ends say, a flow from state to state along the stages.

Stages smaller than a node fill one after the other (planner.plan.placement); whether the next one still finds
room decides whether the send between them stays on the node. A state is a place and the devices taken on
the current node. Where a stage comes from elsewhere its node may have been untouched, or have had a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from planner.cost.schedules import wraps
from planner.search.deadline import Deadline
from planner.search.milp.program import Column, Program, Terms, added, combined, ones, total
from planner.search.milp.slow_links import Edge
from planner.search.space.sends import Sends
from planner.search.space.stages import Option, StageOptions

DeviceKey = tuple[str, str]
"""A pool and one of its device types."""

State = tuple[int, int]
"""(place, devices taken on the current node; 0 where it does not matter)."""


class Step(NamedTuple):
    """From a stage to the next."""

    to: State
    seconds: float
    """Of the send, at least."""
    joins: bool = False
    """True where stages of two device types are known to stand on the same nodes."""


class Places:
    """Places of the compositions in use, and the seconds of a send from one to another, at least."""

    def __init__(self, stages: StageOptions, used: list[int]) -> None:
        self.stages = stages
        self.of: dict[int, int] = {}
        """Place of each composition."""
        self.members: list[list[int]] = []
        """Compositions of each place."""
        keys: dict[tuple[object, ...], int] = {}
        for composition in used:
            place = keys.setdefault(self._key(composition), len(keys))
            self.of[composition] = place
            if place == len(self.members):
                self.members.append([])
            self.members[place].append(composition)
        self._smalls = [self._is_small(row[0]) for row in self.members]
        self._full = [all(map(self._is_full, row)) for row in self.members]
        self._sends: dict[tuple[int, int], Sends] = {}

    def begins(self, place: int) -> State:
        """The state after the first stage of the pipeline."""
        return self._after(place, 0)

    def steps(self, stage: int, state: State, place: int) -> list[Step]:
        """How the stage after ``stage`` may stand on a place."""
        before, taken = state
        sends = self.sends(before, place)
        small = self._small(before) and self._small(place)
        if not small or self.device_type(before) != self.device_type(place):
            after = [self._after(place, used) for used in self._used(stage, place)]
            if self.meet(before, place):
                near = [Step(to, sends.near_seconds, joins=True) for to in after]
                return near + [Step(to, sends.far_seconds) for to in after]
            return [Step(to, sends.least_seconds) for to in after]
        taken += self._devices(place)
        if taken <= self._room(place):
            return [Step((place, taken), sends.near_seconds)]
        return [Step(self._after(place, used), sends.far_seconds) for used in self._used(stage, place)]

    def meet(self, before: int, place: int) -> bool:
        """True where stages fill the devices of two types, and send less on the same nodes."""
        sends = self.sends(before, place)
        unlike = self.device_type(before) != self.device_type(place)
        full = self._full[before] and self._full[place]
        return unlike and full and sends.near_seconds < sends.far_seconds

    def _after(self, place: int, used: int) -> State:
        return place, used + self._devices(place) if self._small(place) else 0

    def _used(self, stage: int, place: int) -> list[int]:
        """Devices that may be taken of a node which a stage comes to after ``stage``: none while some are untouched."""
        if not self._small(place):
            return [0]
        left = self._room(place) - self._devices(place)
        if self.returns:
            if stage + 1 < self.stages.topology.device_type(*self.device_type(place)).nodes:
                return [0]
            same = self.stages.choice.family.dp is not None
            return list(range(0, left + 1, self._devices(place) if same else 1))
        return [0, *(used for used in self._leftovers(self.device_type(place)) if used <= left)]

    def _leftovers(self, device_type: DeviceKey) -> list[int]:
        """Devices that groups take of the nodes they fill, where they leave some."""
        room = self.stages.topology.device_type(*device_type).per_node
        groups = (
            group for places in self.members for index in places for group in self.stages.compositions[index]
        )
        devices = {
            room // group.tp * group.tp
            for group in groups
            if (group.pool, group.gpu) == device_type and group.count >= room // group.tp
        }
        return sorted(devices - {room})

    @property
    def returns(self) -> bool:
        """True when a pipeline may come back to a node that it has left: stages then fill gaps of any node."""
        return not self.stages.pricer.target.hosts_once

    def begins_fresh(self, device_type: DeviceKey) -> bool:
        """True when every run of stages smaller than a node of this type begins on an untouched node."""
        return not self.returns and not self._leftovers(device_type)

    def around(self, last: int, first: int) -> Sends:
        """Least sends from last to first, when both stand on one node and when they do not."""
        sends = self.sends(last, first)
        alike = self.device_type(last) == self.device_type(first)
        if self.meet(last, first) or (self._small(last) and self._small(first) and alike):
            return sends
        return Sends(near_seconds=float("inf"), far_seconds=sends.least_seconds)

    def stays(self, place: int) -> bool:
        """True when a node holds as many stages of a place as the pipeline has."""
        return self.stages.choice.depth * self._devices(place) <= self._room(place)

    def leaves(self, before: int, place: int) -> DeviceKey | None:
        """The device type whose nodes the pipeline leaves in the middle of one, perhaps, between these places."""
        if self._small(before) and not (
            self._small(place) and self.device_type(before) == self.device_type(place)
        ):
            return self.device_type(before)
        return None

    def islands(self, *places: int) -> frozenset[int]:
        """Islands that stages on these places stand on; compositions of one place stand on the same pools."""
        return self.stages.used_islands(
            *(self.stages.compositions[self.members[place][0]] for place in places)
        )

    def fresh_node(self, state: State) -> DeviceKey | None:
        """The device type of which a stage that enters this state takes an untouched node, where that is known."""
        place, taken = state
        small = self._small(place) and taken == self._devices(place)
        return self.device_type(place) if small and self.begins_fresh(self.device_type(place)) else None

    def lone_pools(self, place: int) -> frozenset[str]:
        """Pools of one node that a place stands on; compositions of one place stand on the same pools."""
        groups = self.stages.compositions[self.members[place][0]]
        lone = self.stages.lone_pools
        return frozenset(group.pool for group in groups if group.pool in lone)

    def sends(self, first: int, last: int) -> Sends:
        """The cheapest sends between compositions of two places."""
        key = (first, last)
        if key not in self._sends:
            pairs = [self.stages.sends(a, b) for a in self.members[first] for b in self.members[last]]
            self._sends[key] = Sends(
                near_seconds=min(item.near_seconds for item in pairs),
                far_seconds=min(item.far_seconds for item in pairs),
            )
        return self._sends[key]

    def _key(self, composition: int) -> tuple[object, ...]:
        groups = self.stages.compositions[composition]
        if len(groups) == 1 and self._is_small(composition):
            return groups[0].pool, groups[0].gpu, groups[0].devices
        divided = composition in self.stages.divided
        return divided, *sorted({(group.pool, group.gpu) for group in groups})

    def _is_small(self, composition: int) -> bool:
        groups = self.stages.compositions[composition]
        device_type = self.stages.topology.device_type(groups[0].pool, groups[0].gpu)
        return (
            len(groups) == 1
            and composition not in self.stages.divided
            and device_type.nodes > 1
            and groups[0].count < device_type.per_node // groups[0].tp
        )

    def _is_full(self, composition: int) -> bool:
        """True for stages that fill the devices of one type on each of their nodes, but for less than a replica."""
        (group, *others) = self.stages.compositions[composition]
        device_type = self.stages.topology.device_type(group.pool, group.gpu)
        whole = not others and composition not in self.stages.divided
        return whole and group.count >= device_type.per_node // group.tp

    def _small(self, place: int) -> bool:
        return self._smalls[place]

    def device_type(self, place: int) -> DeviceKey:
        """The first device type of a place; the only one of stages smaller than a node."""
        group = self.stages.compositions[self.members[place][0]][0]
        return group.pool, group.gpu

    def _devices(self, place: int) -> int:
        return self.stages.compositions[self.members[place][0]][0].devices

    def _room(self, place: int) -> int:
        return self.stages.topology.device_type(*self.device_type(place)).per_node


class Entries:
    """Where a runtime starts a node once, the pipeline comes into a pool of one node at most once.

    Pools of several nodes need no row: stages that share a node of one device type are neighbours. Nodes that mix
    device types may still be left and entered again; such solutions are cut when they are found (``placed_alike``).
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self._entered: dict[str, list[Column]] = {}

    def add(self, before: int | None, place: int, variables: Sequence[Column]) -> None:
        """Remember who comes to ``place`` from ``before``, or begins there."""
        known = frozenset() if before is None else self.places.lone_pools(before)
        for pool in self.places.lone_pools(place) - known:
            self._entered.setdefault(pool, []).extend(variables)

    def rows(self) -> Iterator[tuple[Terms, float]]:
        """Expressions that are at most 1, one for each pool of one node."""
        return ((ones(variables), 1.0) for variables in self._entered.values())


class Flow:
    """Adds the edges of one model and tells what they stand for."""

    def __init__(
        self,
        program: Program,
        stages: StageOptions,
        options: list[list[Option]],
        take: list[list[Column]],
        scale: float,
        deadline: Deadline,
    ) -> None:
        """``take`` are the variables of the options, [stage][option]; seconds are in units of ``scale``."""
        self.program, self.stages, self.options, self.take = program, stages, options, take
        self.scale, self.deadline = scale, deadline
        self.depth = stages.choice.depth
        self.places = Places(
            self.stages, sorted({option.composition for row in self.options for option in row})
        )
        self.entries = Entries(self.places)
        self.send: list[Terms] = [{}] * self.depth
        """Seconds of the send from each stage to the next, of the last one to the first."""
        self.fresh: dict[DeviceKey, list[Column]] = {}
        """Who begins a run of stages smaller than a node, by device type."""
        self._left: dict[DeviceKey, list[Column]] = {}
        self._joined: dict[tuple[int, int, DeviceKey, DeviceKey], list[Column]] = {}
        """Edges between stages that fill the same nodes, by (stage, stage, their types)."""
        self.crossing: list[Column] = []
        """Edges from island to island."""
        self.slow: list[Edge] = []
        """Those between stages on one island each."""
        arriving = self._first_states()
        for stage in range(self.depth - 1):
            arriving = self._flow(stage, arriving)
        if wraps(self.stages.choice.interleave, self.stages.choice.schedule):
            self._round_trip()
        self._align()

    def _first_states(self) -> dict[State, list[Column]]:
        states: dict[State, list[Column]] = {}
        for place, variables in self._by_place(0).items():
            state = self.places.begins(place)
            states.setdefault(state, []).extend(variables)
            self._count_fresh(state, variables)
            self.entries.add(None, place, variables)
        return states

    def _flow(self, stage: int, arriving: dict[State, list[Column]]) -> dict[State, list[Column]]:
        """Edges from the states of a stage to the places of the next; returns what arrives in each state there."""
        self.deadline.check()
        incoming: dict[int, list[Column]] = {}
        states: dict[State, list[Column]] = {}
        cost: list[tuple[float, Column]] = []
        following = self._by_place(stage + 1)
        for number, (state, variables) in enumerate(arriving.items()):
            leaving = []
            for place in following:
                left = self.places.leaves(state[0], place)
                for after, seconds, joins in self.places.steps(stage, state, place):
                    if seconds == float("inf"):
                        continue
                    name = f"e_{stage}_{number}_{place}_{after[1]}{'_near' if joins else ''}"
                    # Part of an edge could be had where the stages are a part of all nodes from each other.
                    edge = self.program.column(name, upper=1.0, whole=joins)
                    cost.append((seconds / self.scale, edge))
                    if joins:
                        self._join((stage, state[0]), (stage + 1, place), edge)
                    leaving.append(edge)
                    incoming.setdefault(place, []).append(edge)
                    states.setdefault(after, []).append(edge)
                    self._count_fresh(after, [edge])
                    self.entries.add(state[0], place, [edge])
                    if left is not None:
                        self._left.setdefault(left, []).append(edge)
                    if len(self.places.islands(state[0], place)) > 1:
                        self.crossing.append(edge)
                        self._count_slow(stage, state[0], place, edge)
            # sum of the edges out of a state = what arrives in it
            self.program.equal(added(ones(leaving), ones(variables), -1.0))
        for place, variables in following.items():
            # sum of the edges into a place = sum of x of the options that stand there
            self.program.equal(added(ones(incoming.get(place, [])), ones(variables), -1.0))
        self.send[stage] = total(cost)
        return states

    def _round_trip(self) -> None:
        """Interleaving sends from the last stage to the first."""
        first, last = self._by_place(0), self._by_place(self.depth - 1)
        edges: list[tuple[tuple[int, int], float, Column]] = []
        near: dict[DeviceKey, list[Column]] = {}
        for start, end in product(last, first):
            sends = self.places.around(start, end)
            for name, seconds in (("near", sends.near_seconds), ("far", sends.far_seconds)):
                if seconds < float("inf"):
                    joins = name == "near" and self.places.meet(start, end)
                    edge = self.program.column(f"r_{start}_{end}_{name}", upper=1.0, whole=joins)
                    edges.append(((start, end), seconds, edge))
                    if joins:
                        self._join((self.depth - 1, start), (0, end), edge)
                    elif name == "near" and not self.places.stays(end):
                        near.setdefault(self.places.device_type(end), []).append(edge)
        for side, by_place in enumerate((last, first)):
            for place, variables in by_place.items():
                place_edges = [edge for ends, _, edge in edges if ends[side] == place]
                self.program.equal(added(ones(place_edges), ones(variables), -1.0))
        for device_type, near_edges in near.items():
            self.program.row(added(ones(near_edges), ones(self._left.get(device_type, [])), -1.0), most=0.0)
        self.send[-1] = total((seconds / self.scale, edge) for _, seconds, edge in edges)

    def _join(self, before: tuple[int, int], behind: tuple[int, int], edge: Column) -> None:
        """Remember which stages, (stage, place), stand on the same nodes."""
        (stage, first), (other, last) = before, behind
        key = stage, other, self.places.device_type(first), self.places.device_type(last)
        self._joined.setdefault(key, []).append(edge)

    def _align(self) -> None:
        """Stages take untouched nodes in their order: those on the same nodes have as many before them."""
        keys = dict.fromkeys(key for *_, first, last in self._joined for key in (first, last))
        earlier = {key: self._filled(number, key) for number, key in enumerate(keys)}
        for (stage, other, first, last), edges in self._joined.items():
            nodes = float(self.stages.topology.device_type(*first).nodes)
            more = added(earlier[first][stage], earlier[last][other], -1.0)
            for sign in (1.0, -1.0):
                # +-(nodes filled before the one - those before the other) <= nodes (1 - their edges)
                self.program.row(combined([(sign, more), (nodes, ones(edges))]), most=nodes)

    def _filled(self, number: int, key: DeviceKey) -> list[Terms]:
        """Nodes whose devices of a type the stages before each take, all of them, [stage]."""
        per_node = self.stages.topology.device_type(*key).per_node
        sums: list[Terms] = [{}]
        for stage in range(self.depth - 1):
            own = total(
                (group.count // (per_node // group.tp), x)
                for option, x in zip(self.options[stage], self.take[stage], strict=True)
                if option.composition not in self.stages.divided
                for group in self.stages.compositions[option.composition]
                if (group.pool, group.gpu) == key
            )
            sums.append(self.program.defined(f"filled_{number}_{stage}", added(sums[-1], own)))
        return sums

    def _count_slow(self, stage: int, before: int, place: int, edge: Column) -> None:
        """Remember who sends from one island to another."""
        ends = self.places.islands(before), self.places.islands(place)
        if all(len(islands) == 1 for islands in ends):
            (here,), (there,) = ends
            members = self.places.members[before], self.places.members[place]
            self.slow.append(Edge(stage=stage, islands=(here, there), members=members, column=edge))

    def _count_fresh(self, state: State, variables: list[Column]) -> None:
        """Remember who takes an untouched node."""
        device_type = self.places.fresh_node(state)
        if device_type is not None:
            self.fresh.setdefault(device_type, []).extend(variables)

    def _by_place(self, stage: int) -> dict[int, list[Column]]:
        columns: dict[int, list[Column]] = {}
        for option, variable in zip(self.options[stage], self.take[stage], strict=True):
            columns.setdefault(self.places.of[option.composition], []).append(variable)
        return columns
