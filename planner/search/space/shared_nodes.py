"""Stages that cannot but share nodes: their data-parallel rings share network cards, whatever the placement.

Nodes of several device types have room for a stage of each. Stages that fill the devices of one type do so on nodes of
their own, each; a stage of another type shares one of these nodes where they leave fewer than it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from planner.capabilities import Recompute
from planner.cluster.topology import DeviceType
from planner.cost.arrays import Numbers
from planner.cost.communication import Ring
from planner.plan.values import ReplicaGroup
from planner.search.space.choices import Composition
from planner.search.space.rings import ring_beside
from planner.search.space.sends import unbatched
from planner.search.space.stages import Option, StageOptions


def sharings(stages: StageOptions) -> Iterator[Sharing]:
    """One for each device type of nodes that have several."""
    # Experts over several replicas have rings of their own, which may load nodes unequally.
    if stages.choice.family.folding.ways > 1:
        return
    types = stages.topology.device_types
    for device_type in types:
        if device_type.nodes > 1 and sum(other.pool == device_type.pool for other in types) > 1:
            sharing = Sharing(stages, device_type)
            if sharing.fills and sharing.needs:
                yield sharing


class Sharing:
    """Stages that fill devices of one type, and those of other types that may need the same nodes."""

    def __init__(self, stages: StageOptions, device_type: DeviceType) -> None:
        self.stages, self.device_type = stages, device_type
        self._tails: dict[tuple[int, bool, bool, Recompute], Numbers] = {}
        self.fills: dict[int, int] = {}
        """Nodes whose devices of the type a composition takes, all of them."""
        self.needs: dict[int, int] = {}
        """Nodes of the pool that a composition stands on at least, of another type too; less those that it fills."""
        for index, groups in enumerate(stages.compositions):
            own = [group for group in groups if group.pool == device_type.pool]
            nodes = [-(-group.count // self._on_node(group)) for group in own]
            if not own or index in stages.divided or (len(own) == len(groups) and max(nodes) == 1):
                # Only rings that leave a node use its cards.
                continue
            fills = sum(group.count // self._on_node(group) for group in own if self._fills(group))
            if fills:
                self.fills[index] = fills
            same_degree = len({group.tp for group in own}) == 1
            if same_degree and any(group.gpu != device_type.gpu for group in own) and max(nodes) > fills:
                self.needs[index] = max(nodes) - fills

    def longer(self, stage: int, option: Option) -> float:
        """Seconds that are added, at least, to the tail of an option that shares a node."""
        key = (option.composition, stage == 0, stage == self.stages.choice.depth - 1, option.recompute)
        if key not in self._tails:
            priced = self.stages.lengths(
                stage, option.composition, option.recompute, self._ring(option.composition)
            )
            self._tails[key] = priced.tail_seconds
        tail: float = self._tails[key][option.layers - self.stages.choice.interleave]
        return max(0.0, tail - option.tail_seconds)

    def _ring(self, composition: int) -> Ring:
        stages, groups = self.stages, self.stages.compositions[composition]
        return ring_beside(stages.estimator, unbatched(groups), stages.ring_setup, self._others)

    @cached_property
    def _others(self) -> list[Composition]:
        """Stages that fill two nodes, by their degree: as many rings leave a node wherever they are."""
        filling = {
            group.tp: group
            for index in self.fills
            for group in self.stages.compositions[index]
            if self._fills(group)
        }
        return [unbatched((replace(group, count=2 * self._on_node(group)),)) for group in filling.values()]

    def _fills(self, group: ReplicaGroup) -> bool:
        per_node = self.device_type.per_node
        return (group.pool, group.gpu) == self.device_type.key and not per_node % group.tp

    def _on_node(self, group: ReplicaGroup) -> int:
        return self.stages.topology.device_type(group.pool, group.gpu).per_node // group.tp
