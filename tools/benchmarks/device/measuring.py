"""The run itself: calibrate, train every configuration, find the largest micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.values import ASSUMED, Calibration
from planner.capabilities import Recompute
from planner.cost.estimate import estimate
from planner.errors import UsageError
from planner.measure.backend import Backend
from planner.measure.resume import facts_of, resumable, with_facts
from planner.measure.samples import Event, grow
from planner.measure.session import Request, Session
from planner.measured.table import load_table
from planner.model.spec import ModelSpec
from tools.benchmarks.device.cases import Series, name_of
from tools.benchmarks.device.results import COMMAND, Results
from tools.benchmarks.training import Configuration, fits, train

Tell = Callable[[str], None]
MOST_MICRO_BATCH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """When to end."""

    deadline: float
    """On ``time.monotonic``."""

    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()


def calibrate(
    backend: Backend, series: tuple[Series, ...], results: Results, clock: Clock, tell: Tell
) -> None:
    """Kernels, and the layers of every model, into the calibration of the folder; goes on with what is there."""
    before = load_calibration(results.calibration) if results.calibration.is_file() else ASSUMED
    for item in series:
        before = _calibrate_model(backend, item, results, before, clock, tell)


def _calibrate_model(
    backend: Backend, item: Series, results: Results, before: Calibration, clock: Clock, tell: Tell
) -> Calibration:
    facts = facts_of(backend, item.model, COMMAND)
    kept, warnings = resumable(before, facts, backend.name, item.model)
    for line in warnings:
        tell(f"calibration: {line}")

    def keep(found: Calibration) -> None:
        save_calibration(with_facts(found, facts), results.calibration)

    def report(event: Event) -> None:
        tell(f"calibration: {event.what}")

    request = Request(model=item.model, largest=item.largest, seconds=clock.left())
    session = Session(backend, request, kept, keep, report)
    try:
        session.run()
    except UsageError as error:
        tell(f"calibration: {error.message}")
    results.write_cluster(backend, session.peaks())
    return with_facts(session.calibration, facts)


def train_all(
    backend: Backend, series: tuple[Series, ...], results: Results, clock: Clock, tell: Tell
) -> bool:
    """Every configuration that the folder does not have yet; False when time ran out."""
    for asked in (one for item in series for one in item.configurations()):
        if results.id_of(asked) in results.runs:
            continue
        if clock.left() <= 0:
            return False
        found = train(backend, asked)
        results.add(asked, found)
        tell(f"{name_of(asked)}: {'out of memory' if found is None else f'{found.step_seconds:.4g} s'}")
    return True


def find_limits(
    backend: Backend, series: tuple[Series, ...], results: Results, clock: Clock, tell: Tell
) -> bool:
    """The largest micro-batch of each asked kind that trains; False when time ran out."""
    if backend.kind == "cpu":
        return True
    for item, recompute in _limits(series):
        name = limit_name(item.model, recompute)
        if name in results.limits:
            continue
        try:
            results.limits[name] = _limit(backend, item.model, recompute, clock)
        except TimeoutError:
            return False
        results.write()
        tell(f"largest micro-batch of {name}: {results.limits[name]}")
    return True


def limit_name(model: ModelSpec, recompute: Recompute) -> str:
    """``gpt2_345m bf16, full``."""
    return f"{model.name} {model.training.precision}, {recompute}"


def _limits(series: tuple[Series, ...]) -> Iterator[tuple[Series, Recompute]]:
    return ((item, recompute) for item in series for recompute in item.limits)


def _limit(backend: Backend, model: ModelSpec, recompute: Recompute, clock: Clock) -> int:
    def trains(micro_batch: int) -> bool:
        if clock.left() <= 0:
            raise TimeoutError
        return fits(backend, _one(model, micro_batch, recompute))

    return grow(trains, MOST_MICRO_BATCH).fits


def predicted_limits(series: tuple[Series, ...], results: Results) -> Iterator[tuple[str, int, int]]:
    """(model and recomputation, measured, predicted) of the limits that were found."""
    calibration = load_calibration(results.calibration)
    for item, recompute in _limits(series):
        name = limit_name(item.model, recompute)
        if name in results.limits:
            yield name, results.limits[name], _predicted_limit(item, recompute, results, calibration)


def _predicted_limit(item: Series, recompute: Recompute, results: Results, calibration: Calibration) -> int:
    """From the plan of a row that recomputes so, at growing micro-batch."""
    run = next(
        run
        for run in load_table(results.rows).runs
        if run.model.name == item.model.name and run.plan.stages[0].recompute == recompute
    )
    (stage,) = run.plan.stages
    (group,) = stage.replicas

    def predicted(micro_batch: int) -> bool:
        replicas = (replace(group, local_batch=micro_batch, accumulation_steps=1),)
        plan = replace(run.plan, stages=(replace(stage, replicas=replicas),))
        return estimate(
            plan, run.cluster, item.model.trained_with(global_batch=micro_batch), calibration
        ).fits

    return grow(predicted, MOST_MICRO_BATCH).fits


def _one(model: ModelSpec, micro_batch: int, recompute: Recompute) -> Configuration:
    return Configuration(
        model=model.trained_with(global_batch=micro_batch), micro_batch=micro_batch, recompute=recompute
    )
