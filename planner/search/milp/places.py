"""Where stages stand, as far as sends are concerned: places, and states of the node that is being filled.

Stages smaller than a node fill one after the other (planner.placement); whether the next one still finds
room decides whether the send between them stays on the node. A state is a place and the devices taken on
the current node.
"""

from __future__ import annotations

from planner.search.options import StageOptions
from planner.search.sends import Sends

State = tuple[int, int]
"""(place, devices taken on the current node; 0 where it does not matter)."""


class Places:
    """Places of the compositions in use, and the seconds from one to another.

    Those of a send are in three parts: ``leaving`` and ``arriving`` of the two compositions, and what their places add.
    """

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
        self._sends: dict[tuple[int, int], Sends] = {}
        self.leaving = {own: _finite(min(self._least(own, other) for other in used)) for own in used}
        """Seconds of a send that every stage with a composition takes part in, whatever stage follows."""
        self.arriving = {
            own: _finite(min(self._least(other, own) - self.leaving[other] for other in used)) for own in used
        }
        """What is more than that in every send to a composition."""

    def entered(self, place: int) -> State:
        """The state after a stage on an untouched node."""
        return place, self._devices(place) if self._small(place) else 0

    def step(self, state: State, place: int) -> tuple[State, float]:
        """The state after one more stage on ``place``, and what that adds to the send to it."""
        before, taken = state
        sends = self.sends(before, place)
        if not (self._small(before) and self._small(place)):
            return self.entered(place), min(sends.near_seconds, sends.far_seconds)
        if self._kind(before) != self._kind(place):
            return self.entered(place), min(sends.near_seconds, sends.far_seconds)
        taken += self._devices(place)
        if taken <= self._room(place):
            return (place, taken), sends.near_seconds
        return self.entered(place), sends.far_seconds

    def around(self, last: int, first: int) -> float:
        """What places add to the send from last to first: on one node only where it holds the whole pipeline."""
        sends = self.sends(last, first)
        depth = self.stages.choice.depth
        if self._small(last) and self._small(first) and depth * self._devices(first) > self._room(first):
            return (
                sends.far_seconds
                if self._kind(last) == self._kind(first)
                else min(sends.near_seconds, sends.far_seconds)
            )
        return min(sends.near_seconds, sends.far_seconds)

    def islands(self, *places: int) -> frozenset[int]:
        """Islands that stages on these places stand on; compositions of one place stand on the same pools."""
        return self.stages.used_islands(
            *(self.stages.compositions[self.members[place][0]] for place in places)
        )

    def fresh_node(self, state: State) -> tuple[str, str] | None:
        """The kind of which a stage that enters this state takes an untouched node, if it does."""
        place, taken = state
        return self._kind(place) if self._small(place) and taken == self._devices(place) else None

    def lone_pools(self, place: int) -> frozenset[str]:
        """Pools of one node that a place stands on; compositions of one place stand on the same pools."""
        groups = self.stages.compositions[self.members[place][0]]
        lone = self.stages.lone_pools
        return frozenset(group.pool for group in groups if group.pool in lone)

    def sends(self, first: int, last: int) -> Sends:
        """The cheapest sends between compositions of two places, less what these always take."""
        key = (first, last)
        if key not in self._sends:
            found = [
                (self.stages.sends(a, b), self.leaving[a] + self.arriving[b])
                for a in self.members[first]
                for b in self.members[last]
            ]
            self._sends[key] = Sends(
                near_seconds=min(max(0.0, item.near_seconds - always) for item, always in found),
                far_seconds=min(max(0.0, item.far_seconds - always) for item, always in found),
            )
        return self._sends[key]

    def _least(self, first: int, last: int) -> float:
        sends = self.stages.sends(first, last)
        return min(sends.near_seconds, sends.far_seconds)

    def _key(self, composition: int) -> tuple[object, ...]:
        groups = self.stages.compositions[composition]
        if len(groups) == 1 and self._is_small(composition):
            return groups[0].pool, groups[0].gpu, groups[0].devices
        return tuple(sorted({group.pool for group in groups}))

    def _is_small(self, composition: int) -> bool:
        groups = self.stages.compositions[composition]
        kind = self.stages.topology.kind(groups[0].pool, groups[0].gpu)
        return len(groups) == 1 and kind.nodes > 1 and groups[0].count < kind.per_node // groups[0].tp

    def _small(self, place: int) -> bool:
        return self._is_small(self.members[place][0])

    def _kind(self, place: int) -> tuple[str, str]:
        group = self.stages.compositions[self.members[place][0]][0]
        return group.pool, group.gpu

    def _devices(self, place: int) -> int:
        return self.stages.compositions[self.members[place][0]][0].devices

    def _room(self, place: int) -> int:
        return self.stages.topology.kind(*self._kind(place)).per_node


def _finite(seconds: float) -> float:
    return seconds if seconds < float("inf") else 0.0
