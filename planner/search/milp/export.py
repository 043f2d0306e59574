"""Writes the ILP of a plan's outer choice to a file, for people and other solvers."""

from __future__ import annotations

from pathlib import Path

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.training import devices_of
from planner.errors import OutputError
from planner.model.spec import ModelSpec
from planner.plan.equal_pools import on_joined_pools
from planner.plan.placement import widths
from planner.plan.values import Plan
from planner.search.data_parallel import data_parallel_of, shares_of
from planner.search.milp.model import PipelineModel
from planner.search.milp.shares import SharesModel
from planner.search.milp.solver import write_lp
from planner.search.ranking import ranked
from planner.search.space.choices import batch_per_replica, choice_of, stands, usable_device_types
from planner.search.space.partitions import NetworkPartition, network_partitions, wide_partitions
from planner.search.space.stages import StageOptions
from planner.search.values import Limits, Scored
from planner.targets import target

MOST_SEQUENCES = 2**14
"""Largest batch whose shares are written one by one."""


def write_model(
    path: Path,
    scored: Scored,
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
) -> None:
    """Write the ILP of the plan's outer choice, or of the batches of its replicas, as an LP file.

    Raises OutputError for a plan that no ILP has, and where the file cannot be written.
    """
    estimator = Estimator(ranked(cluster), model, calibration)
    partition = _partition(scored.plan, estimator)
    ilp = _model(scored, estimator, partition, limits)
    ilp.program.name = f"{scored.plan.target}_T_in_units_of_{ilp.scale:.6g}_seconds{ilp.program.name}"
    try:
        write_lp(ilp.program, path)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def _model(
    scored: Scored, whole: Estimator, partition: NetworkPartition, limits: Limits
) -> PipelineModel | SharesModel:
    """That of the layers of stages, or of the batches of replicas without a pipeline."""
    plan, estimator = scored.plan, partition.estimator
    # A part in a million more than the step, so that the plan itself is among the solutions.
    most_seconds = scored.estimate.step_seconds * (1 + 1e-6)
    row = target(plan.target)
    if plan.pp == 1:
        own = batch_per_replica(row, estimator.model, plan.stages[0].replicas[0].tp)
        others = {
            "of equal batches without a pipeline, which leave it nothing to choose": not own,
            "that share sequences": plan.cp > 1,
            "that share experts": plan.ep > 1,
            "of grids": plan.grid is not None,
            "on islands": not plan.sync.exact,
            "that are not waited for": plan.backup > 0,
            f"with a batch of more than {MOST_SEQUENCES} sequences": plan.global_batch > MOST_SEQUENCES,
        }
        if any(others.values()):
            what = next(name for name, there in others.items() if there)
            raise OutputError(
                f"--write-lp: no ILP stands behind replicas {what}", hint="leave out --write-lp"
            )
        on_joined = on_joined_pools(plan, estimator.cluster, whole.cluster)
        choice = data_parallel_of(on_joined, usable_device_types(estimator.topology, estimator.model))
        shares = shares_of(choice, estimator, limits)
        counts = shares.replicas(devices_of(on_joined))
        return SharesModel(shares.ways(counts, once=plan.micro_batches == 1), plan.global_batch, most_seconds)
    choice_of_stages = choice_of(plan, None if row.recompute_per_stage else plan.stages[0].recompute)
    return PipelineModel(StageOptions(choice_of_stages, estimator, limits, partition.islands), most_seconds)


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
