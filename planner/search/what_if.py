"""Searches of a cluster and a training as they are, once for each change of one of them, and at both ends of the error
bar of each speed that is not known exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pydantic import ValidationError

from planner.calibration.values import Calibration
from planner.cluster.change import changed, value_of
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.errors import UsageError
from planner.field_metadata import json_fields
from planner.files.messages import messages_of
from planner.frozen import dataclass
from planner.model.file import with_training
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.checks import faults
from planner.plan.values import Plan
from planner.search.deadline import Deadline
from planner.search.explain.bars import device_bars, network_bars, scaled, with_families
from planner.search.incumbent import obeys
from planner.search.objectives.choose import choose
from planner.search.ranking import ranked
from planner.search.values import Goal, Limits, Reporter, Scored, SearchResult, proven

World = tuple[str, ClusterSpec, ModelSpec]
"""A change as it was typed, empty for none; and what the cluster and the model are then."""


def worlds(cluster: ClusterSpec, model: ModelSpec, changes: Sequence[str]) -> list[World]:
    """Without a change, then each change; raises UsageError for one that names nothing."""
    return [("", cluster, model), *((text, *_changed(cluster, model, text)) for text in changes)]


def searched(
    variants: Sequence[World],
    calibration: Calibration,
    limits: Limits,
    reporter: Reporter | None = None,
    better: Callable[[Scored], object] | None = None,
) -> Iterator[tuple[str, SearchResult]]:
    """The search of each; with the looks after it, as ``hetplan search`` has them: they may find the answer.

    One that was interrupted is the last, and left out without a plan.
    """
    for text, cluster, model in variants:
        ends = Deadline.after(limits.time_limit_seconds)
        result = choose(cluster, model, calibration, limits, Goal(), reporter, deadline=ends, better=better)
        if result.best is not None or not result.interrupted:
            yield text, result
        if result.interrupted:
            return


def shared(
    variants: Sequence[World], results: Sequence[SearchResult], calibration: Calibration, limits: Limits
) -> list[SearchResult]:
    """Each with the best plan that was found anywhere and that it can run: more devices never make its answer worse."""
    plans = [result.best.plan for result in results if result.best is not None]
    return [
        _with_best(result, plans, Estimator(ranked(cluster), model, calibration), limits)
        for (_, cluster, model), result in zip(variants, results, strict=False)
    ]


def _with_best(
    result: SearchResult, plans: Sequence[Plan], estimator: Estimator, limits: Limits
) -> SearchResult:
    """The fastest of a search's own plan and of others; the bound is the search's."""
    found = [] if result.best is None else [result.best]
    for plan in plans:
        if obeys(plan, limits, Goal()) and not faults(plan, estimator.cluster, estimator.model):
            scored = Scored(plan=plan, estimate=estimator.estimate(plan))
            found += [scored] if scored.estimate.fits else []
    best = min(found, key=lambda scored: scored.estimate.step_seconds, default=None)
    if best is None or best is result.best:
        return result
    gap = max(0.0, 1.0 - result.bound_seconds / best.estimate.step_seconds)
    return replace(result, best=best, gap=gap, status=proven(gap, limits.gap))


def _changed(cluster: ClusterSpec, model: ModelSpec, text: str) -> tuple[ClusterSpec, ModelSpec]:
    """Cluster and model after a change of one of them."""
    path, equals, value = text.partition("=")
    top, _, key = path.strip().partition(".")
    if not equals or top != "training":
        return changed(cluster, text), model
    settings = model.training.model_dump(mode="json")
    first, *further = key.split(".")
    settings[first] = _with(settings.get(first), further, value_of(value.strip(), text))
    try:
        training = TrainingSpec.model_validate_json(json.dumps(settings))
    except ValidationError as error:
        message = messages_of(error, TrainingSpec, {first: settings[first]})[0]
        raise UsageError(f"--change {text!r}: {message.what}", hint=message.hint) from None
    return cluster, with_training(model, training)


def _with(old: object, path: Sequence[str], value: object) -> object:
    """A setting with another value at the path inside it."""
    if not path:
        return value
    inner = old if isinstance(old, dict) else {}
    return {**inner, path[0]: _with(inner.get(path[0]), path[1:], value)}


SAME = 0.01
"""A plan that is better by less is no other answer."""


@json_fields("scored.estimate.step_seconds", without=("scored",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """One speed at one end of its error bar, and the searches' answer there."""

    members: tuple[str, ...]
    """Device types, or fabrics, whose speed it is."""
    spread: float
    """Relative standard error of the speed."""
    factor: float
    """Its speed here, as a multiple of the assumed one."""
    kept_seconds: float
    """Step of the current plan at that speed."""
    loses: float
    """That step over the best one found at that speed, minus 1."""
    changes: bool
    """Whether another plan is better there, by more than 1 %."""
    plan: str | None
    """That plan's main decisions in one line; null where the plan stays."""
    scored: Scored
    """The best plan found at that speed."""


def swings(
    result: SearchResult,
    cluster: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    limits: Limits,
    reporter: Reporter | None = None,
) -> Iterator[Swing]:
    """Each speed at both ends of its bar, searched anew; nothing without a plan.

    Raises KeyboardInterrupt where Ctrl-C has cut a search short.
    """
    best = result.best
    if best is None:
        return
    own = with_families(cluster)
    estimator = Estimator(ranked(own), model, calibration)
    plans = [best, *(entry.scored for entry in result.alternatives if entry.scored)]
    for bar in (*device_bars(plans, estimator), *network_bars(estimator)):
        for factor in bar.ends:
            world = scaled(calibration, ((bar, factor),))
            kept = replace(best, estimate=estimator.with_calibration(world).estimate(best.plan))
            answer = choose(own, model, world, limits, Goal(), reporter, explain=False)
            if answer.interrupted:
                raise KeyboardInterrupt
            there = min(
                (each for each in (kept, answer.best) if each is not None),
                key=lambda scored: scored.estimate.step_seconds,
            )
            loses = kept.estimate.step_seconds / there.estimate.step_seconds - 1
            yield Swing(
                members=bar.members,
                spread=bar.spread,
                factor=factor,
                kept_seconds=kept.estimate.step_seconds,
                loses=loses,
                changes=loses > SAME,
                plan=None,
                scored=there,
            )
