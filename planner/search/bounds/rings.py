"""A data-parallel ring that is at least as fast as that of any stage, for bounds."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cluster.topology import Kind
from planner.cost.communication import Ring, carried_rates, inside_rate
from planner.cost.estimate import Estimator
from planner.plan.values import ReplicaGroup


def fastest_ring(estimator: Estimator, stack: str, kinds: Sequence[Kind], group: ReplicaGroup) -> Ring | None:
    """A ring that no ring of the group's replicas beats; None where they cannot talk.

    Through the cards where a node cannot hold all members, else the faster of both. Nothing is known of a ring where
    collectives were measured.
    """
    topology, calibration = estimator.topology, estimator.calibration
    kind = topology.kind(group.pool, group.gpu)
    wire = calibration.stack(stack).wire
    paths = [topology.path(kind.pool, pool) for pool in {other.pool for other in kinds}]
    between = max(
        (carried_rates(path, calibration)[0] * wire for path in paths if path.fabric not in ("node", "")),
        default=0.0,
    )
    rate = between / group.tp
    if group.count <= sum(other.per_node for other in kinds if other.pool == kind.pool) // group.tp:
        rate = max(rate, inside_rate(kind, calibration))
    if not rate and group.count > 1:
        return None
    if estimator.curves is not None:
        rate = float("inf")
    return Ring(size=group.count, bytes_per_second=rate, latency_seconds=0.0, crosses="node")
