"""What ``hetplan search`` prints and writes of its answer; imported when there is one, documents when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import RenderableType

from planner.cli.inputs import SearchRequest
from planner.cli.output import show, show_document, typed
from planner.cluster.spec import ClusterSpec
from planner.lazy import lazy_module
from planner.model.spec import ModelSpec
from planner.report.brief import answer_line, brief
from planner.report.explain import (
    advice_section,
    advice_text,
    alternatives_section,
    considered,
    ratio_text,
    ratios_section,
)
from planner.report.goal import (
    format_text,
    goal_text,
    infeasible_section,
    limits_section,
    nearest_section,
    simpler_texts,
    tie_text,
    training_text,
    unknown_section,
)
from planner.report.inputs import understood
from planner.report.layout import Answer, Paragraph, list_section, section, warnings_section
from planner.report.plan_table import plan_section
from planner.search.values import Limits, Scored, SearchResult

if TYPE_CHECKING:
    from planner.report import document
else:
    document = lazy_module("planner.report.document")

Detail = Literal["answer", "brief", "full"]
"""How much is printed: one line, one screen, or all of it."""


def show_found(
    result: SearchResult,
    request: SearchRequest,
    top: int | None,
    output: Path | None,
    as_json: bool,
    detail: Detail,
) -> None:
    """Print what a search found, or why there is nothing; the answer stands last."""
    if as_json:
        show_document(document.search_document(result, request.cluster, request.model))
        return
    answer = answer_line(result, request.model, request.cluster, request.limits)
    if detail == "answer":
        show(last=Answer(answer))
        return
    show(*_report(result, request, top, detail), then=next_command(result, output), last=Answer(answer))


def _report(
    result: SearchResult, request: SearchRequest, top: int | None, detail: Detail
) -> list[RenderableType]:
    """One screen; or understood, answer, alternatives, warnings."""
    cluster, model = request.cluster, request.model
    if detail == "brief" and result.best is not None:
        return brief(result, result.best, cluster, model, top)
    head = understood(cluster, model, request.calibration, request.limits, goal_text(request.goal))
    if result.best is None:
        return [
            head,
            _nothing(result, model, request.cluster, request.limits),
            warnings_section(result.warnings),
        ]
    warnings = [*result.warnings, *result.best.estimate.warnings]
    return [head, *_found(result, result.best, cluster, model, top), warnings_section(warnings)]


def _instead(result: SearchResult, spread: float) -> Iterator[str]:
    """Another number format, the fastest plan, and simpler ones."""
    if result.other_format is not None:
        yield format_text(result.other_format)
    if result.tie is not None:
        yield tie_text(result.tie, spread)
    yield from simpler_texts(result.simpler, spread)


def _found(
    result: SearchResult, best: Scored, cluster: ClusterSpec, model: ModelSpec, top: int | None
) -> list[RenderableType]:
    spread, run = best.estimate.spread, result.goal.run_of(best.estimate)
    return [
        plan_section(best, cluster, result, idle=result.idle_costs, unit=model.unit),
        *([section("Training", Paragraph(training_text(run, spread)))] if run else []),
        limits_section(result.limit_costs, best.estimate.step_seconds),
        alternatives_section(considered(result.alternatives), top),
        list_section("What could be chosen instead", _instead(result, spread)),
        advice_section([advice_text(entry) for entry in result.advice]),
        ratios_section([ratio_text(entry) for entry in result.ratios]),
    ]


def _nothing(result: SearchResult, model: ModelSpec, cluster: ClusterSpec, limits: Limits) -> RenderableType:
    if result.nearest:
        return nearest_section(result, cluster)
    if result.status == "infeasible":
        return infeasible_section(result, model, limits)
    return unknown_section(result)


def next_command(result: SearchResult, output: Path | None) -> str | None:
    """The command that follows: emit what was written, or write it."""
    if result.best is None:
        return None
    if output is None:
        return "the same with -o plan.yaml to keep the plan"
    return typed("hetplan", "emit", output, "-o", "run/")
