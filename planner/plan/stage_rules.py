"""What a runtime demands of all stages together: checked in plans, obeyed by the search."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cluster.spec import ClusterSpec
from planner.model.spec import ModelSpec
from planner.plan.placement import place_stages, split_nodes
from planner.plan.values import ReplicaGroup
from planner.runtimes.capabilities import Capabilities

Groups = Sequence[ReplicaGroup]
"""Replicas of one stage."""


def joins_ends(row: Capabilities, model: ModelSpec) -> bool:
    """True when the runtime ties the embedding of the first stage to the output layer of the last under conditions."""
    return row.joins_tied_ends and model.tied_embeddings


def ends_fault(zero: int, first: Groups, last: Groups) -> str:
    """Why these stages cannot hold one tied embedding; empty when they can."""
    if first[0].tp != last[0].tp:
        return f"the same tp on the first and last stage, got {first[0].tp} and {last[0].tp}"
    here, there = (sum(group.count for group in groups) for groups in (first, last))
    if zero and here % there and there % here:
        return f"first and last stages whose replicas divide with ZeRO {zero}, got {here} and {there}"
    return ""


def nodes_once(row: Capabilities, stages: Sequence[Groups], cluster: ClusterSpec) -> bool:
    """True when the runtime starts each node at most as often as it can; raises PlanError for too few devices."""
    return not (row.hosts_once and split_nodes(place_stages(stages, cluster)))
