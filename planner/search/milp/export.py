"""Writes the ILP of a plan's outer choice to a file, for people and other solvers."""

from __future__ import annotations

from pathlib import Path

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.errors import OutputError
from planner.model.spec import ModelSpec
from planner.plan.equal_pools import on_joined_pools
from planner.plan.placement import widths
from planner.plan.values import Plan
from planner.search.milp.model import PipelineModel
from planner.search.milp.solver import write_lp
from planner.search.ranking import ranked
from planner.search.space.choices import choice_of, stands
from planner.search.space.partitions import NetworkPartition, network_partitions, wide_partitions
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored
from planner.targets import target


def write_model(
    path: Path,
    scored: Scored,
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
) -> None:
    """Write the ILP of the plan's outer choice, for plans no slower than it, as an LP file.

    Raises OutputError for a plan without a pipeline, and where the file cannot be written.
    """
    if scored.plan.pp == 1:
        raise OutputError(
            f"{path}: the plan has no pipeline, so no ILP stands behind it", hint="leave out --write-lp"
        )
    estimator = Estimator(ranked(cluster), model, calibration)
    partition = _partition(scored.plan, estimator)
    one_each = target(scored.plan.target).recompute_per_stage
    choice = choice_of(scored.plan, None if one_each else scored.plan.stages[0].recompute)
    stages = StageOptions(choice, partition.estimator, limits, partition.islands)
    # A part in a million more than the step, so that the plan itself is among the solutions.
    ilp = PipelineModel(stages, scored.estimate.step_seconds * (1 + 1e-6))
    ilp.program.name = f"{scored.plan.target}_T_in_units_of_{ilp.scale:.6g}_seconds"
    try:
        write_lp(ilp.program, path)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def _partition(plan: Plan, estimator: Estimator) -> NetworkPartition:
    """The smallest part of the cluster in which the plan stands, on the network that it uses."""
    fitting, sockets = [], estimator.uses_sockets(plan)
    row, wide = target(plan.target), widths(plan, estimator.cluster)
    degree = plan.stages[0].replicas[0].tp
    parts = wide_partitions(estimator, row, degree) if wide else network_partitions(estimator, row)
    for partition in parts.values():
        own = partition.estimator
        on_joined = on_joined_pools(plan, own.cluster, estimator.cluster)
        used = {group.pool for stage in on_joined.stages for group in stage.replicas}
        if (
            used <= {device_type.pool for device_type in partition.device_types}
            and own.uses_sockets(on_joined) == sockets
            and stands([stage.replicas for stage in on_joined.stages], own.topology)
        ):
            fitting.append(partition)
    if not fitting:
        raise OutputError(
            "--write-lp: the plan keeps stages apart that one pool puts together, so no ILP has it",
            hint="write equal pools as one, or leave out --write-lp",
        )
    return min(fitting, key=lambda partition: len(partition.device_types))
