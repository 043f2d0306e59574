"""Many searches at once: a grid of clusters, models and options, its points, and the result row of each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field

from planner.calibration.values import Calibration
from planner.capabilities import RECOMPUTES
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.errors import HetplanError, UsageError
from planner.files.document import fail_on, file_beside, read_document
from planner.files.fields import Frozen
from planner.files.messages import nearest, shown
from planner.model.file import load_model, with_training
from planner.model.hub import HUB
from planner.model.spec import ModelSpec, Precision, TrainingSpec
from planner.ranges import BATCH, DEVICES, NODE_DEVICES, SEQUENCE, STAGES, TIME_LIMIT, ZERO
from planner.search.objectives.choose import choose
from planner.search.space.degrees import degree_faults
from planner.search.values import Goal, Limits
from planner.search.what_if import worlds
from planner.targets import TARGETS

LISTS = {
    "zero": ZERO,
    "tp": NODE_DEVICES,
    "pp": STAGES,
    "cp": DEVICES,
    "ep": DEVICES,
    "etp": NODE_DEVICES,
    "micro_batch": BATCH,
}
"""Options of a search that allow numbers, written as one number or as a list of them."""
NUMBERS = {"global_batch": BATCH, "sequence_length": SEQUENCE}
"""Options that are one number."""
WORDS: dict[str, tuple[str, ...]] = {
    "target": tuple(TARGETS),
    "recompute": RECOMPUTES,
    "precision": get_args(Precision),
}
"""Options that are one of some words."""
TRAINING = ("precision", *NUMBERS)
"""Settings of the training."""
OPTIONS = ("target", *LISTS, "recompute", *TRAINING, "change")
"""Keys of ``options``."""


def _one_value(data: Any) -> Any:
    """What is neither a word nor a number nor a list of numbers, told in one sentence."""
    parts = data if isinstance(data, list) else [data]
    kinds = int if isinstance(data, list) else int | str
    if not parts or not all(isinstance(part, kinds) and not isinstance(part, bool) for part in parts):
        raise ValueError(f"expected a word, a whole number or a list of whole numbers, got {shown(data)}")
    return data


Value = str | int | list[int]
SweepRow = dict[str, str | int | float | None]
"""A row of the result: every option of the grid, and what the search said."""


class Sweep(Frozen):
    """A sweep: every cluster with every model with every combination of options."""

    clusters: Annotated[tuple[str, ...], Field(min_length=1)]
    """Cluster files, relative to this file."""
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    """Model files likewise; or ``hf://org/name``, from the local cache."""
    options: dict[
        str, Annotated[tuple[Annotated[Value, BeforeValidator(_one_value)], ...], Field(min_length=1)]
    ] = Field(default_factory=dict)
    """Values to try, by option: target, zero, tp, pp, ep, etp, micro_batch, recompute, precision,
    global_batch, sequence_length, and change (as hetplan what-if takes it)."""
    time_limit: Annotated[float, Field(ge=0, le=TIME_LIMIT.most)] = 30.0
    """Seconds of each search."""
    gap: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Each search stops within this fraction of the best."""

    @property
    def points(self) -> int:
        """How many searches it asks for."""
        return len(self.clusters) * len(self.models) * prod(len(values) for values in self.options.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One search of a sweep, with all that it needs: it may be made on another machine."""

    key: str
    """Digest of inputs and options, by which a finished point is known again."""
    names: tuple[str, str]
    """Cluster file and model file."""
    cluster: ClusterSpec
    model: ModelSpec
    options: Mapping[str, Value]
    time_limit: float
    gap: float
    calibration: Calibration


def load_grid(path: Path) -> Sweep:
    """The grid of a file; raises SpecError with every problem of the file."""
    document = read_document(path)
    problems = document.problems(Sweep)
    options = document.data.get("options")
    for name in options if isinstance(options, dict) else ():
        if name not in OPTIONS:
            hint = nearest(str(name).replace("-", "_"), list(OPTIONS)) or f"options are {', '.join(OPTIONS)}"
            problems.append(document.problem(("options", name), "is no option of a sweep", hint))
    fail_on(problems)
    grid = document.to(Sweep)
    fail_on(
        document.problem(("options", name, number), f"expected {expected}, got {shown(value)}")
        for name, values in grid.options.items()
        for number, value in enumerate(values)
        if (expected := _expected(name, value))
    )
    fail_on(
        document.problem((key, number), f"{file_beside(path, name)}: no such file")
        for key, names in (("clusters", grid.clusters), ("models", grid.models))
        for number, name in enumerate(names)
        if not (key == "models" and name.startswith(HUB)) and not os.path.exists(file_beside(path, name))
    )
    return grid


def _expected(name: str, value: Value) -> str:
    """What an option is whose value is something else on any cluster and with any model."""
    if name in WORDS:
        return "" if value in WORDS[name] else f"one of {', '.join(WORDS[name])}"
    if name == "change":
        return "" if isinstance(value, str) else "a change in words"
    many = name in LISTS
    allowed = LISTS[name] if many else NUMBERS[name]
    numbers = value if many and isinstance(value, list) else [value]
    if all(type(number) is int and allowed.holds(number) for number in numbers):
        return ""
    limits = f"from {allowed.least:.0f} to {allowed.most:.0f}"
    return f"a whole number {limits}, or a list of them" if many else f"a whole number {limits}"


def _model(path: Path, named: str) -> ModelSpec:
    """A model that the grid names: a file, or one of the hub."""
    return load_model(Path(named) if named.startswith(HUB) else file_beside(path, named))


def sweep_points(grid: Sweep, path: Path, calibration: Calibration) -> Iterator[SweepPoint]:
    """The searches of a grid, in the order of its file; every file is read first."""
    clusters = [(name, load_cluster(file_beside(path, name))) for name in grid.clusters]
    models = [(name, _model(path, name)) for name in grid.models]
    constants = hashlib.sha256(repr(calibration).encode()).hexdigest()
    digests = {
        name: hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
        for name, spec in (*clusters, *models)
    }
    for (cluster_name, cluster), (model_name, model) in product(clusters, models):
        for values in product(*grid.options.values()):
            options = dict(zip(grid.options, values, strict=True))
            asked = [
                digests[cluster_name],
                digests[model_name],
                options,
                grid.time_limit,
                grid.gap,
                constants,
            ]
            yield SweepPoint(
                key=hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24],
                names=(cluster_name, model_name),
                cluster=cluster,
                model=model,
                options=options,
                time_limit=grid.time_limit,
                gap=grid.gap,
                calibration=calibration,
            )


def solved(point: SweepPoint) -> SweepRow:
    """The row of a point; what is wrong with its options stands in its ``error``. Raises KeyboardInterrupt."""
    row: SweepRow = {"key": point.key, "cluster": point.names[0], "model": point.names[1]}
    for name, value in point.options.items():
        row[name] = ",".join(map(str, value)) if isinstance(value, list) else value
    blank: SweepRow = dict.fromkeys(RESULTS)
    try:
        cluster, model = _world(point)
        limits = _limits(point)
        for name, what in degree_faults(limits, model):
            raise UsageError(f"{name}: {what}")
        result = choose(cluster, model, point.calibration, limits, Goal(), explain=False)
    except (HetplanError, ValueError) as error:
        return row | blank | {"status": "error", "error": str(error).splitlines()[0]}
    if result.interrupted:  # half a search is no result to keep
        raise KeyboardInterrupt
    row |= blank | {"status": result.status, "gap": result.gap, "search_seconds": result.seconds}
    if result.best is not None:
        row["plan"] = _plan(result.best.plan)
        for name in ESTIMATED:
            row[name] = getattr(result.best.estimate, name)
    return row


ESTIMATED = (
    *("step_seconds", "tokens_per_second", "spread", "devices", "mfu"),
    "cost_per_million_tokens",
)
"""Columns that are of the estimate of the best plan."""
RESULTS = (
    *("status", "step_seconds", "tokens_per_second", "spread", "gap", "devices", "mfu"),
    *("cost_per_million_tokens", "plan", "search_seconds", "error"),
)
"""Columns of what a search said, behind those of the grid."""


def _plan(plan: Any) -> str:
    """``torch ZeRO 1, 2 stages, tp 1|2``."""
    widths = [str(max(group.tp for group in stage.replicas)) for stage in plan.stages]
    tp = "" if set(widths) == {"1"} else f", tp {'|'.join(widths) if len(set(widths)) > 1 else widths[0]}"
    return f"{plan.target} {plan.zero_text}, {plan.pp} stage{'s' if plan.pp > 1 else ''}{tp}"


def _world(point: SweepPoint) -> tuple[ClusterSpec, ModelSpec]:
    """The cluster and the model with the options of a point."""
    cluster, model = point.cluster, point.model
    settings = {name: point.options[name] for name in TRAINING if name in point.options}
    if settings:
        training = TrainingSpec.model_validate({**model.training.model_dump(), **settings})
        model = with_training(model, training)
    if "change" in point.options:
        _, (_, cluster, model) = worlds(cluster, model, [str(point.options["change"])])
    return cluster, model


def _limits(point: SweepPoint) -> Limits:
    def allowed(name: str) -> tuple[int, ...] | None:
        value = point.options.get(name)
        return None if value is None else tuple(value) if isinstance(value, list) else (int(value),)

    target: Any = point.options.get("target")
    recompute: Any = point.options.get("recompute")
    return Limits(
        target=target,
        recompute=None if recompute is None else (recompute,),
        gap=point.gap,
        time_limit_seconds=point.time_limit,
        zero=allowed("zero"),
        tp=allowed("tp"),
        pp=allowed("pp"),
        cp=allowed("cp"),
        ep=allowed("ep"),
        etp=allowed("etp"),
        micro_batch=allowed("micro_batch"),
    )
