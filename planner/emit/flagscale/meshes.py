"""A plan's stages as FlagScale's process meshes, and the device types that order its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.plan.placement import Agent, Rank
from planner.plan.values import Plan, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Consecutive stages with one grid of devices of one type."""

    device_type: str
    """Name in the hostfile; FlagScale sorts nodes by the place of their type in the list of types."""
    tp: int
    dp: int
    pp: int

    @property
    def numbers(self) -> list[int]:
        """FlagScale's order: tp, context parallel, expert parallel, dp, pp."""
        return [self.tp, 1, 1, self.dp, self.pp]


def meshes(plan: Plan) -> tuple[Mesh, ...]:
    """The fewest meshes that hold the plan's stages in order.

    FlagScale's commit da4935ec6 mistakes ranks at the border of a mesh that has both replicas and stages, so
    stages with replicas get meshes of their own. Types come in the order of stages and one that comes back gets
    a new name: FlagScale's sort by type then keeps the ranks as hetplan numbers them.
    """
    shapes = [(shape, len(list(stages))) for shape, stages in groupby(plan.stages, key=_shape)]
    found: list[Mesh] = []
    for (gpus, tp, dp), depth in shapes:
        previous = found[-1].device_type if found else ""
        name = previous if previous.split("@")[0] == gpus else _fresh(gpus, found)
        alone = len(shapes) == 1 or dp == 1
        found += [Mesh(device_type=name, tp=tp, dp=dp, pp=depth if alone else 1)] * (1 if alone else depth)
    return tuple(found)


def _shape(stage: Stage) -> tuple[str, int, int]:
    gpus = "+".join(dict.fromkeys(group.gpu for group in stage.replicas))
    return gpus, stage.replicas[0].tp, stage.dp


def _fresh(gpus: str, before: Sequence[Mesh]) -> str:
    """The device kinds of a mesh as a type that no earlier mesh has."""
    names = {mesh.device_type for mesh in before}
    again = sum(name.split("@")[0] == gpus for name in names)
    return f"{gpus}@{again + 1}" if again else gpus


def host_types(found: Sequence[Mesh], launchers: Sequence[Agent], ranks: Sequence[Rank]) -> dict[str, str]:
    """Type of each host: that of the mesh of its first rank."""
    by_stage = [mesh.device_type for mesh in found for _ in range(mesh.pp)]
    return {agent.host: by_stage[ranks[agent.first_rank].stage] for agent in launchers}
