"""The ``--json`` form of every report: plain dictionaries, SI units in the names of the keys."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from pathlib import PurePath

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.cost.binding import Binding
from planner.model.spec import ModelSpec
from planner.report.alternatives import Considered, Neighbour, considered
from planner.report.compare import Contender
from planner.report.keys import (
    Document,
    Json,
    advice_keys,
    alternative_keys,
    binding_keys,
    diagnosis_keys,
    idle_cost_keys,
    idle_keys,
    kind_keys,
    limit_cost_keys,
    nearest_keys,
    neighbour_keys,
    no_plan_keys,
    path_keys,
    plan_keys,
    ranks_keys,
    understood_keys,
)
from planner.report.plan_table import Proof, in_short, proof_of
from planner.report.ranks import rank_runs
from planner.search.values import Scored, SearchResult

FORMAT = 1
"""Version of the documents; grows when a key changes its meaning or goes away."""


MOST_INDENTED = 10_000
"""Entries of a list in an indented document."""


def text(document: Document) -> str:
    """A document as JSON; numbers that are infinite or unknown become null.

    A very long one is not indented: that takes ten times as long.
    """
    long = any(isinstance(value, list) and len(value) > MOST_INDENTED for value in document.values())
    indent = None if long else 2
    try:
        return json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(document), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Json) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return value


def search_document(result: SearchResult, cluster: ClusterSpec, model: ModelSpec) -> Document:
    """The answer of ``search``."""
    proof = proof_of(result)
    answer = plan_keys(result.best, proof) if result.best else no_plan_keys(proof)
    return {
        **head("search"),
        **answer,
        "objective": result.goal.objective,
        "objective_bound": result.objective_bound,
        "subclusters": result.subclusters,
        "nearest": [nearest_keys(entry) for entry in result.nearest],
        "interrupted": result.interrupted,
        "candidates": result.candidates,
        "solved": result.solved,
        "alternatives": [alternative_keys(entry) for entry in considered(result.alternatives)],
        "advice": [advice_keys(entry) for entry in result.advice],
        "idle_costs": [idle_cost_keys(entry) for entry in result.idle_costs],
        "limit_costs": [limit_cost_keys(entry) for entry in result.limit_costs],
        "diagnosis": diagnosis_keys(result.diagnosis),
        "warnings": [*result.warnings, *(result.best.estimate.warnings if result.best else ())],
        "understood": understood_keys(cluster, model),
    }


def plan_document(
    command: str, scored: Scored, cluster: ClusterSpec, model: ModelSpec, proof: Proof | None
) -> Document:
    """The answer of ``predict``, ``show`` and ``explain``, without what only one of them adds."""
    return {
        **head(command),
        **plan_keys(scored, proof),
        "ranks": [ranks_keys(run) for run in rank_runs(scored.plan, cluster)],
        "idle": idle_keys(scored.plan, cluster),
        "warnings": list(scored.estimate.warnings),
        "understood": understood_keys(cluster, model),
    }


def explain_document(
    scored: Scored,
    cluster: ClusterSpec,
    model: ModelSpec,
    proof: Proof | None,
    alternatives: Sequence[Considered],
    found: Sequence[Neighbour],
    binds: Binding,
) -> Document:
    """The answer of ``explain``: the plan, what binds it, the families that lost, what one changed decision costs."""
    return {
        **plan_document("explain", scored, cluster, model, proof),
        "binding": binding_keys(binds),
        "alternatives": [alternative_keys(entry) for entry in alternatives],
        "neighbours": [neighbour_keys(entry) for entry in found],
    }


def compare_document(contenders: Sequence[Contender]) -> Document:
    """The answer of ``compare``: one entry a plan, the first is the reference."""
    plans: list[Json] = [
        {
            "name": entry.name,
            "note": entry.note,
            "short": in_short(entry.scored.plan) if entry.scored else None,
            "idle_devices": entry.idle_devices,
            "plan": plan_keys(entry.scored, None) if entry.scored else None,
        }
        for entry in contenders
    ]
    return {
        **head("compare"),
        "plans": plans,
        "warnings": [entry.note for entry in contenders if entry.note],
    }


def check_document(topology: Topology, model: ModelSpec | None, warnings: Sequence[str]) -> Document:
    """The answer of ``check``."""
    names = [pool.name for pool in topology.cluster.pools]
    return {
        **head("check"),
        "devices": sum(kind.devices for kind in topology.kinds),
        "kinds": [kind_keys(kind) for kind in topology.kinds],
        "links": [
            path_keys(first, last, topology.path(first, last))
            for first, last in combinations_with_replacement(names, 2)
        ],
        "warnings": list(warnings),
        "understood": understood_keys(topology.cluster, model),
    }


def emit_document(
    target: str,
    folder: PurePath,
    paths: Sequence[str],
    warnings: Sequence[str] = (),
    placeholders: Sequence[str] = (),
) -> Document:
    """The answer of ``emit``."""
    return {
        **head("emit"),
        "target": target,
        "folder": str(folder),
        "files": list(paths),
        "placeholder_hosts": list(placeholders),
        "warnings": list(warnings),
    }


def calibrate_document(
    calibration: Calibration, path: PurePath, command: str = "calibrate import"
) -> Document:
    """The answer of ``calibrate import`` and of ``calibrate merge``."""
    return {
        **head(command),
        "file": str(path),
        "layer_points": len(calibration.layers),
        "link_points": len(calibration.link_points),
    }


def head(command: str) -> Document:
    """What every document begins with."""
    return {"format": FORMAT, "command": command}
