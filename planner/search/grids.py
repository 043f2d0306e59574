"""Plans whose replicas are grids of devices, on one device type: few enough that each is priced.

A depth is not tried: each of its layers does what a replica does (``Plan.copies``), so that it adds no plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.capabilities import Capabilities, Recompute
from planner.cluster.topology import DeviceType
from planner.cost.estimate import Estimator
from planner.dims.grid import grid_faults, stands
from planner.dims.sharding import zeros
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.values import Grid, Plan, ReplicaGroup, Stage
from planner.ranges import GRID_SIDE
from planner.search.bounds.peak import least_seconds
from planner.search.deadline import Deadline
from planner.search.pipeline import priced_on
from planner.search.space.choices import recomputes_of, usable_device_types
from planner.search.values import Limits, Scored
from planner.targets import target
from planner.units import divisors

GRIDS = "grids"
"""Name of the partition of such plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridChoice:
    """An outer choice: grids of ``side`` x ``side`` devices of one type."""

    target: str
    zero: int
    side: int
    pool: str
    gpu: str
    network: str = GRIDS
    """As in ``Family``."""


def grid_choices(row: Capabilities, limits: Limits, estimator: Estimator) -> Iterator[GridChoice]:
    """Outer choices of a target with grids, where the limits allow them."""
    model = estimator.model
    device_types = usable_device_types(estimator.topology, model)
    one = (limits.pp, limits.cp, limits.ep, limits.etp)
    if not row.grids or any(values is not None and 1 not in values for values in one):
        return
    if limits.offload is not None and "none" not in limits.offload:
        return
    if not _recomputes(row, limits, model, device_types):
        return
    for device_type in device_types:
        for side in sides(row, limits, model, device_type):
            for zero in zeros(row, model, None, limits.zero):
                yield GridChoice(
                    target=row.name, zero=zero, side=side, pool=device_type.pool, gpu=device_type.gpu
                )


def sides(row: Capabilities, limits: Limits, model: ModelSpec, device_type: DeviceType) -> Iterator[int]:
    """Rows and columns of the grids that devices of a type can be, and that divide the model."""
    for side in range(int(GRID_SIDE.least), int(GRID_SIDE.most) + 1):
        grid = Grid(rows=side, columns=side)
        if grid.devices > device_type.devices:
            return
        # A limit is on the devices that divide a weight, whatever the depth of a plan by hand.
        allowed = limits.tp is None or grid.devices in limits.tp
        if allowed and stands(grid, device_type.per_node) and not any(grid_faults(grid, row, model)):
            yield side


def _recomputes(
    row: Capabilities, limits: Limits, model: ModelSpec, device_types: tuple[DeviceType, ...]
) -> tuple[Recompute, ...]:
    """What layers on a grid may recompute, the faster first."""
    return tuple(each for each in recomputes_of(row, limits, model, device_types) if each != "selective")


def least_of(choice: GridChoice, estimator: Estimator) -> float:
    """No plan of a choice is faster: useful operations at the peak of all devices of its type."""
    return least_seconds(estimator, {(choice.pool, choice.gpu): _device_type(choice, estimator).devices})


def _device_type(choice: GridChoice, estimator: Estimator) -> DeviceType:
    return estimator.topology.device_type(choice.pool, choice.gpu)


def best_grid(
    choice: GridChoice,
    estimator: Estimator,
    limits: Limits,
    cutoff_seconds: float,
    deadline: Deadline,
    scorer: Estimator,
) -> Scored | None:
    """The fastest plan of a choice, of those that may beat the cutoff; None where none of them fits.

    ``scorer`` knows the pools of which ``estimator`` sees equal ones as one: no replica may stand on two of them.
    """
    best: Scored | None = None
    device_type = _device_type(choice, estimator)
    recomputes = _recomputes(target(choice.target), limits, estimator.model, (device_type,))
    for plan in grid_plans(choice, estimator, limits):
        deadline.check()
        least = least_seconds(estimator, {device_type.key: plan.devices})
        for recompute in recomputes if least < cutoff_seconds else ():
            stages = (replace(plan.stages[0], recompute=recompute),)
            scored = priced_on(scorer, replace(plan, stages=stages), estimator)
            if scored is not None:
                if best is None or scored.estimate.step_seconds < best.estimate.step_seconds:
                    best = scored
                break
    return best


def grid_plans(choice: GridChoice, estimator: Estimator, limits: Limits) -> Iterator[Plan]:
    """All plans of a choice, without recomputation: any number of replicas, micro-batches that the rows divide."""
    model, row, side = estimator.model, target(choice.target), choice.side
    device_type, grid = _device_type(choice, estimator), Grid(rows=choice.side, columns=choice.side)
    most = device_type.replicas(grid.devices)
    if grid.devices > device_type.per_node:
        most = device_type.devices // grid.devices
    batch = model.training.global_batch
    for replicas in divisors(batch):
        if replicas > most or choice.zero not in zeros(row, model, replicas, limits.zero):
            continue
        for micro_batch in divisors(batch // replicas):
            allowed = limits.micro_batch is None or micro_batch in limits.micro_batch
            if micro_batch % side or not allowed:
                continue
            group = ReplicaGroup(
                pool=choice.pool,
                gpu=choice.gpu,
                tp=grid.devices,
                count=replicas,
                local_batch=batch // replicas,
                accumulation_steps=batch // replicas // micro_batch,
            )
            stage = Stage(first_layer=0, end_layer=model.layers, replicas=(group,))
            yield Plan(target=choice.target, zero=choice.zero, grid=grid, stages=(stage,))
