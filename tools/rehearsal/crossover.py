"""Two jobs on the same emulated devices: what each takes alone and beside the other, predicted and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.emit.interface import emit, write_folder
from planner.model.spec import ModelSpec
from planner.plan.file import load_plan
from planner.search.values import Scored
from planner.share.crossover import beside, moments_of
from tools.rehearsal.clusters import Pool, Rehearsed, replicas, yaml_text
from tools.rehearsal.running import together

CLUSTER = Rehearsed("crossover", (Pool("a", "cpu-20", 0.2, 50),), {})
"""Two nodes that wait long for each other."""
BATCHES = {"first": 48, "second": 24}
"""Sequences of a step of each job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds of a step of both jobs."""

    predicted: tuple[float, float]
    measured: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """Both jobs alone, and beside each other."""

    alone: Pair
    both: Pair

    def table(self) -> str:
        """As docs/share.md has it."""
        lines = ["| job | predicted s | measured s | error |", "|---|---|---|---|"]
        for pair, how in ((self.alone, "alone"), (self.both, "beside the other")):
            for name, predicted, measured in zip(BATCHES, pair.predicted, pair.measured, strict=True):
                lines.append(
                    f"| {name}, {how} | {predicted:.2f} | {measured:.2f} | {predicted / measured - 1:+.1%} |"
                )
        predicted, measured = (
            sum(one / two for one, two in zip(alone, both, strict=True))
            for alone, both in (
                (self.alone.predicted, self.both.predicted),
                (self.alone.measured, self.both.measured),
            )
        )
        lines.append(
            f"| work over taking turns | {predicted:.2f} | {measured:.2f} | {predicted / measured - 1:+.1%} |"
        )
        return "\n".join(lines)


def cross(
    spec: ClusterSpec,
    model: ModelSpec,
    calibration: Calibration,
    folder: Path,
    *,
    steps: int,
    rounds: int,
    tell: Callable[[str], None],
) -> Crossed:
    """Run each job alone and both at once, in turns, and set beside it what was predicted."""
    folders, scored, moments = [], list[Scored](), []
    for name, batch in BATCHES.items():
        own = model.trained_with(global_batch=batch)
        path = folder / f"{name}.yaml"
        path.write_text(
            yaml_text({"target": "torch", **replicas(0, ("a", 2, 6, batch // 2))}), encoding="utf-8"
        )
        plan, estimator = load_plan(path, spec, own), Estimator(spec, own, calibration)
        scored.append(Scored(plan=plan, estimate=estimator.estimate(plan)))
        moments.append(moments_of(scored[-1], estimator))
        folders.append(folder / f"{CLUSTER.name}-{name}")
        write_folder(emit(plan, spec, own), folders[-1], force=True)
    taken: dict[tuple[int, ...], list[list[float]]] = {(0,): [[]], (1,): [[]], (0, 1): [[], []]}
    for turn in range(rounds):
        for jobs, seconds in taken.items():
            found = together([folders[job] for job in jobs], CLUSTER.nodes, steps)
            for own_seconds, more in zip(seconds, found, strict=True):
                own_seconds += more
            told = ", ".join(f"{mean(each):.2f} s over {len(each)} steps" for each in found)
            tell(f"round {turn + 1}: {' and '.join(folders[job].name for job in jobs)}: {told}")

    def means(lists: Sequence[list[float]]) -> tuple[float, float]:
        first, second = (mean(each) for each in lists)
        return first, second

    expected = beside(moments[0], moments[1])
    first, second = (each.estimate.step_seconds for each in scored)
    return Crossed(
        alone=Pair(predicted=(first, second), measured=means([*taken[0,], *taken[1,]])),
        both=Pair(predicted=(expected.first_seconds, expected.second_seconds), measured=means(taken[0, 1])),
    )
