"""Searches of a cluster and a training as they are, and once for each change of one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pydantic import ValidationError

from planner.calibration.values import Calibration
from planner.cluster.change import changed, scalar
from planner.cluster.spec import ClusterSpec
from planner.errors import UsageError
from planner.files.messages import messages_of
from planner.model.file import with_training
from planner.model.spec import ModelSpec, TrainingSpec
from planner.search.deadline import Deadline
from planner.search.objectives.choose import choose
from planner.search.values import Goal, Limits, Reporter, Scored, SearchResult

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
    """The search of each; with the looks after it, as ``hetplan search`` has them: they may find the answer."""
    for text, cluster, model in variants:
        yield (
            text,
            choose(
                cluster,
                model,
                calibration,
                limits,
                Goal(),
                reporter,
                deadline=Deadline.after(limits.time_limit_seconds),
                better=better,
            ),
        )


def _changed(cluster: ClusterSpec, model: ModelSpec, text: str) -> tuple[ClusterSpec, ModelSpec]:
    """Cluster and model after a change of one of them."""
    path, equals, value = text.partition("=")
    top, _, key = path.strip().partition(".")
    if not equals or top != "training":
        return changed(cluster, text), model
    settings = {**model.training.model_dump(), key: scalar(value.strip())}
    try:
        training = TrainingSpec.model_validate(settings)
    except ValidationError as error:
        message = messages_of(error, TrainingSpec, settings)[0]
        raise UsageError(f"--change {text!r}: {message.what}", hint=message.hint) from None
    return cluster, with_training(model, training)
