"""The ``--json`` form of every report: what a document holds are the values' own fields, SI units in the names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType, Topology
from planner.cost.binding import Binding
from planner.cost.training import TrainingRun
from planner.field_metadata import Json, JsonDocument, json_fields
from planner.model.spec import ModelSpec
from planner.plan.file import Considered, PlanFile
from planner.report.compare import Contender
from planner.report.explain import considered
from planner.report.plan_table import Proof, in_short, misfits
from planner.report.ranks import Idle, RankRun, idle_devices, rank_runs
from planner.search.explain.neighbours import Neighbour
from planner.search.values import Scored, SearchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """The inputs with every default filled in, in the units of their files."""

    cluster: ClusterSpec
    """The cluster file with every default filled in."""
    model: dict[str, Json] | None
    """The model file with every default filled in, and its number of parameters; null without one."""


def understood_inputs(cluster: ClusterSpec, model: ModelSpec | None) -> Understood:
    """The inputs of a command."""
    shape = None if model is None else {**model.model_dump(mode="json"), "parameters": model.parameters}
    return Understood(cluster=cluster, model=shape)


@json_fields(inline=("scored",))
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """What every document says of a plan."""

    status: str
    """optimal (within the requested gap), feasible (a plan, the gap not closed), infeasible (proven), unknown (stopped
    before any plan was found), predicted (priced, not searched)."""
    bound_seconds: float | None
    """No plan of the space takes less; null when nothing is known, 0 under another objective."""
    gap: float | None
    """(step_seconds - bound_seconds) / step_seconds, or likewise for another objective; null without a search."""
    search_seconds: float | None
    """How long the search took; null without a search."""
    outside: tuple[str, ...]
    """Plans that the target could run but the search does not consider; status, bound and gap do not cover them."""
    scored: Scored
    """The plan."""
    misfits: tuple[str, ...]
    """Where it does not fit, in words."""


def _answer(scored: Scored, proof: Proof | None) -> PlanAnswer:
    return PlanAnswer(
        status=proof.status if proof else "predicted",
        bound_seconds=proof.bound_seconds if proof else None,
        gap=proof.gap if proof else None,
        search_seconds=proof.seconds if isinstance(proof, SearchResult) else None,
        outside=proof.outside if proof else (),
        scored=scored,
        misfits=tuple(misfits(scored.estimate)),
    )


@json_fields(inline=("result",))
@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDocument(JsonDocument):
    """The answer of ``search``."""

    result: SearchResult
    """The answer."""
    misfits: tuple[str, ...]
    """Where the plan does not fit, in words."""
    alternatives: tuple[Considered, ...]
    """Families of plans that were considered."""
    training: TrainingRun | None
    """The whole training run; null without --tokens or without a plan."""
    warnings: tuple[str, ...]
    """What to know before trusting the answer, in words."""
    understood: Understood
    """The inputs."""


def search_document(result: SearchResult, cluster: ClusterSpec, model: ModelSpec) -> SearchDocument:
    """The answer of ``search``."""
    best = result.best
    return SearchDocument(
        command="search",
        result=result,
        misfits=tuple(misfits(best.estimate)) if best else (),
        alternatives=considered(result.alternatives),
        training=result.goal.run_of(best.estimate) if best else None,
        warnings=(*result.warnings, *(best.estimate.warnings if best else ())),
        understood=understood_inputs(cluster, model),
    )


@json_fields(inline=("answer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument(JsonDocument):
    """The answer of ``predict`` and ``show``."""

    answer: PlanAnswer
    """The plan."""
    ranks: tuple[RankRun, ...]
    """Which ranks run where."""
    idle: tuple[Idle, ...]
    """Devices without a rank."""
    warnings: tuple[str, ...]
    """What to know before trusting the answer, in words."""
    understood: Understood
    """The inputs."""


def plan_document(
    command: str,
    scored: Scored,
    cluster: ClusterSpec,
    model: ModelSpec,
    proof: Proof | None,
) -> PlanDocument:
    """The answer of ``predict`` and ``show``."""
    return PlanDocument(
        command=command,
        answer=_answer(scored, proof),
        ranks=rank_runs(scored.plan, cluster),
        idle=idle_devices(scored.plan, cluster),
        warnings=tuple(scored.estimate.warnings),
        understood=understood_inputs(cluster, model),
    )


@json_fields(inline=("plan",))
@dataclass(frozen=True, slots=True, kw_only=True)
class PredictDocument:
    """The answer of ``predict``."""

    plan: PlanDocument
    """The plan."""
    training: TrainingRun | None
    """The whole training run; null without --tokens."""


@json_fields(inline=("plan",))
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainDocument:
    """The answer of ``explain``: the plan, what binds it, the families that lost, what one changed decision costs."""

    plan: PlanDocument
    """The plan."""
    binding: Binding
    """What keeps it from being faster."""
    alternatives: tuple[Considered, ...]
    """Families of plans that were considered."""
    neighbours: tuple[Neighbour, ...]
    """Plans one decision away."""
    ratios: tuple[str, ...]
    """Splits of work between device types that depend on uncertain speeds, in words."""


def explain_document(
    scored: Scored, saved: PlanFile, around: Sequence[Neighbour], binds: Binding
) -> ExplainDocument:
    """The answer of ``explain``."""
    return ExplainDocument(
        plan=plan_document("explain", scored, saved.cluster, saved.model, saved.summary),
        binding=binds,
        alternatives=saved.considered,
        neighbours=tuple(around),
        ratios=saved.summary.ratios if saved.summary else (),
    )


@json_fields(brief=("plan",))
@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPlan:
    """One plan of a comparison."""

    name: str
    """The plan file, what people do today, or the number of one of many short plans."""
    note: str
    """Why there is no plan, where it does not fit, or why the comparison is not like for like."""
    short: str | None
    """Its main decisions in one line; null when there is no plan."""
    idle_devices: int | None
    """Devices of its cluster that it leaves idle; null when there is no plan."""
    plan: PlanAnswer | None
    """The keys of a plan as in predict; null when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareDocument(JsonDocument):
    """The answer of ``compare``."""

    plans: tuple[ComparedPlan, ...]
    """The plans, the first is the reference."""
    warnings: tuple[str, ...]
    """The notes that are not empty."""


def compare_document(contenders: Sequence[Contender], command: str = "compare") -> CompareDocument:
    """The answer of ``compare``, or of ``predict`` for many plans: one entry a plan, the first is the reference."""
    plans = tuple(
        ComparedPlan(
            name=entry.name,
            note=entry.note,
            short=in_short(entry.scored.plan) if entry.scored else None,
            idle_devices=entry.idle_devices,
            plan=_answer(entry.scored, None) if entry.scored else None,
        )
        for entry in contenders
    )
    return CompareDocument(
        command=command, plans=plans, warnings=tuple(entry.note for entry in contenders if entry.note)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How nodes of two pools reach each other."""

    between: tuple[str, str]
    """Two pools; the same twice for two nodes of one pool."""
    path: str | None
    """The fabric, several joined by +, or node within a single node; null without a path."""
    bytes_per_second: float | None
    """Bandwidth from one node to another; null without a path."""
    latency_seconds: float | None
    """Latency of one message; null without a path."""


@json_fields(names={"device_types": "kinds"})
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckDocument(JsonDocument):
    """The answer of ``check``."""

    devices: int
    """Devices of the cluster."""
    device_types: tuple[DeviceType, ...]
    """Device types by pool."""
    links: tuple[Reached, ...]
    """Paths between pools."""
    warnings: tuple[str, ...]
    """What to know before trusting the answer, in words."""
    understood: Understood
    """The inputs."""


def check_document(topology: Topology, model: ModelSpec | None, warnings: Sequence[str]) -> CheckDocument:
    """The answer of ``check``."""
    names = [pool.name for pool in topology.cluster.pools]
    return CheckDocument(
        command="check",
        devices=sum(device_type.devices for device_type in topology.device_types),
        device_types=topology.device_types,
        links=tuple(
            _reached(topology, first, last) for first, last in combinations_with_replacement(names, 2)
        ),
        warnings=tuple(warnings),
        understood=understood_inputs(topology.cluster, model),
    )


def _reached(topology: Topology, first: str, last: str) -> Reached:
    path = topology.path(first, last)
    return Reached(
        between=(first, last),
        path=path.fabric or None,
        bytes_per_second=path.bytes_per_second if path.connected else None,
        latency_seconds=path.latency_seconds if path.connected else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitDocument(JsonDocument):
    """The answer of ``emit``."""

    target: str
    """Runtime of the plan."""
    folder: str
    """Folder that was written."""
    files: tuple[str, ...]
    """Files in it."""
    placeholder_hosts: tuple[str, ...]
    """Hosts that the launcher needs and the cluster file does not name, in short form."""
    warnings: tuple[str, ...]
    """Where the plan does not fit, and untested versions, in words."""
