"""One rehearsal: calibrate an emulated cluster, search, run every plan for real, and set the two times side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from scipy.stats import spearmanr

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.emit.interface import emit, write_folder
from planner.model.spec import ModelSpec
from planner.plan.file import load_plan
from planner.plan.values import Plan
from planner.search.solve import search
from planner.search.values import Limits
from tools.rehearsal.clusters import Rehearsed, yaml_text
from tools.rehearsal.running import WARM_UP, run, spread

CHOSEN = "hetplan's plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How often every plan is run."""

    steps: int
    """Of each run, after the warm-up."""
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan, predicted and run."""

    cluster: str
    plan: str
    predicted_seconds: float
    measured_seconds: float
    """Median of the steps of all rounds."""
    spread: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_seconds / self.measured_seconds - 1


def plans(
    cluster: Rehearsed,
    target: str,
    spec: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    folder: Path,
) -> Iterator[tuple[str, Plan]]:
    """The plan that the search chooses, and those that it is compared with."""
    best = search(spec, model, calibration, Limits(target=target), explain=False).best
    assert best is not None, "every cluster of the rehearsal has room for the model"
    yield CHOSEN, best.plan
    for name, document in cluster.plans.items():
        if document.get("target", target) != target:
            continue
        path = folder / "short.yaml"
        path.write_text(yaml_text({"target": target, **document}), encoding="utf-8")
        yield name, load_plan(path, spec, model)


def rehearse(
    cluster: Rehearsed,
    target: str,
    spec: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    folder: Path,
    asked: Measured,
    tell: Callable[[str], None],
) -> list[Row]:
    """Run every plan of a cluster; all of them in each round, so that what drifts meanwhile falls on all alike."""
    tried = list(plans(cluster, target, spec, model, calibration, folder))
    launched = [folder / f"{cluster.name}-{target}-{index}" for index in range(len(tried))]
    for path, (_, plan) in zip(launched, tried, strict=True):
        write_folder(emit(plan, spec, model), path, force=True)
    seconds: list[list[float]] = [[] for _ in tried]
    for turn in range(asked.rounds):
        for index, (name, plan) in enumerate(tried):
            found = steps_of(launched[index], plan, cluster, asked.steps)
            tell(f"{cluster.name}, {target}, round {turn + 1}: {name}: {median(found):.3f} s")
            seconds[index] += found
    return [
        Row(
            cluster=f"{cluster.name}, {target}",
            plan=name,
            predicted_seconds=estimate(plan, spec, model, calibration).step_seconds,
            measured_seconds=median(taken),
            spread=spread(taken),
        )
        for (name, plan), taken in zip(tried, seconds, strict=True)
    ]


def steps_of(folder: Path, plan: Plan, cluster: Rehearsed, steps: int) -> list[float]:
    """Seconds of each step; of islands that exchange once in several steps the mean of rounds of them, after the first.

    A run ends with an exchange.
    """
    every = plan.sync.every
    if every == 1:
        return run(folder, cluster.nodes, steps)
    rounds = max(1, round(steps / every))
    found = run(folder, cluster.nodes, (rounds + 1) * every - WARM_UP)[every - WARM_UP :]
    return [mean(found[first : first + every]) for first in range(0, len(found), every)]


def rank_correlation(rows: list[Row]) -> float:
    """Spearman's, of the plans of one cluster."""
    return float(
        spearmanr([row.predicted_seconds for row in rows], [row.measured_seconds for row in rows]).statistic
    )


def regret(rows: list[Row]) -> float:
    """How much longer the chosen plan takes than the fastest measured one, as a share."""
    chosen = next(row for row in rows if row.plan == CHOSEN)
    return chosen.measured_seconds / min(row.measured_seconds for row in rows) - 1


def mean_error(rows: list[Row]) -> float:
    """Mean of the errors' sizes."""
    return mean(abs(row.error) for row in rows)


def even_factor(rows: list[Row]) -> tuple[float, float] | None:
    """How many times faster the chosen plan is than equal batches: predicted, and measured; None without these."""
    chosen = next(row for row in rows if row.plan == CHOSEN)
    equal = next((row for row in rows if row.plan.startswith("equal batches")), None)
    if equal is None:
        return None
    predicted = equal.predicted_seconds / chosen.predicted_seconds
    return predicted, equal.measured_seconds / chosen.measured_seconds
