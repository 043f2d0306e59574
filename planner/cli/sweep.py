"""``hetplan sweep``: many searches at once, on all cores, or on a Dask or a Ray cluster."""

from __future__ import annotations

import csv
import io
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from planner.cli.inputs import read_calibration
from planner.cli.options import AsJson, CalibrationFile, argument, flag, option
from planner.cli.output import require_writable, show, show_document, writing
from planner.cli.process import ANSWER, INTERRUPTED
from planner.errors import UsageError
from planner.field_metadata import JsonDocument
from planner.files.writing import write_whole
from planner.model.hub import repository_name
from planner.ranges import PREDICTED, Range
from planner.report.layout import Indented, Paragraph, bullets, number, table, words
from planner.report.numbers import count, duration, or_missing, percent, rate
from planner.search.sweep import RESULTS, SweepPoint, SweepRow, load_grid, solved, sweep_points

MANY = 10_000
"""Points that are searched without being asked twice."""
SHOWN = 12
"""Rows on the screen."""
REASONS = 3
"""Errors on the screen."""
RETRIES = 3
"""How often a cluster does a point again whose worker died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDocument(JsonDocument):
    """The answer of ``sweep``."""

    file: str
    """The result table."""
    points: int
    """Points of the grid."""
    kept: int
    """Points finished by an earlier run."""
    errors: int
    """Points whose options are impossible."""
    seconds: float
    """How long the rest took."""


def sweep(
    grid: Annotated[Path, argument("GRID", "Clusters, models and options to combine (YAML).")],
    output: Annotated[
        Path,
        option(
            "--output -o", "FILE", "Result table (.csv or .parquet); FILE.points keeps the finished points."
        ),
    ],
    jobs: Annotated[
        int, option("--jobs -j", "N", "Searches at once; -1: one for each core.", allowed=Range(-1, 4096))
    ] = -1,
    backend: Annotated[
        str | None,
        option(
            "--backend",
            "URL",
            "A cluster to search on: dask://host:port of its scheduler, ray://host:port of Ray's client server, or "
            "ray://auto on a node of a Ray cluster.",
        ),
    ] = None,
    yes: Annotated[bool, flag("--yes", f"Go on with more than {MANY:,} points.")] = False,
    calibration: CalibrationFile = None,
    as_json: AsJson = False,
) -> None:
    """Search a grid of clusters, models and options.

    Each finished point is saved at once, so that a stopped run continues where it was. The table has one row for each
    point.
    """
    if jobs == 0:
        raise UsageError("--jobs: expected a number from 1, or -1 for one search on each core, got 0")
    if output.suffix not in (".csv", ".parquet"):
        raise UsageError(f"{output}: expected a name that ends in .csv or .parquet")
    log = output.with_name(f"{output.name}.points")
    require_writable(output, "results.csv")
    require_writable(log, "results.csv.points")
    grid_spec = load_grid(grid)
    if grid_spec.points > MANY and not yes:
        raise UsageError(
            f"{grid}: has {grid_spec.points:,} points, expected at most {MANY:,}",
            hint=f"{count(len(grid_spec.clusters), 'cluster')} x {count(len(grid_spec.models), 'model')} x options; "
            "leave some out, or add --yes",
        )
    if output.suffix == ".parquet":
        _library("pyarrow")
        _library("pandas")
    start = monotonic()
    points = list(sweep_points(grid_spec, grid, read_calibration(calibration)))
    rows = _done(log, list(grid_spec.options))
    open_points = list({point.key: point for point in points if point.key not in rows}.values())
    kept = sum(point.key in rows for point in points)
    known = len(points) - len(open_points)
    try:
        with _running(open_points, jobs, backend) as results, _appending(log) as append:
            for index, row in enumerate(results):
                rows[str(row["key"])] = row
                append(row)
                _tell(known + index + 1, len(points))
    except KeyboardInterrupt:
        done = _rows(points, rows)
        if not done or as_json:
            raise
        line = f"stopped by Ctrl-C after {len(done)} of {count(len(points), 'point')}, which are kept: the same command"
        show(_best(done, list(grid_spec.options)), _without_plan(done), last=Paragraph(f"{line} goes on"))
        raise typer.Exit(INTERRUPTED) from None
    ordered = _rows(points, rows)
    _write(ordered, list(grid_spec.options), output)
    seconds = monotonic() - start
    errors = sum(row["status"] == "error" for row in ordered)
    if as_json:
        document = SweepDocument(
            command="sweep", file=str(output), points=len(points), kept=kept, errors=errors, seconds=seconds
        )
        show_document(document)
    else:
        line = f"{output}: {count(len(points), 'point')}, {len(open_points)} searched in {duration(seconds)}"
        line += f", {kept} kept from before" if kept else ""
        line += f", {count(errors, 'error')}" if errors else ""
        show(_best(ordered, list(grid_spec.options)), _without_plan(ordered), last=Paragraph(line))
    raise typer.Exit(ANSWER)


def _rows(points: Iterable[SweepPoint], rows: Mapping[str, SweepRow]) -> list[SweepRow]:
    """Rows of the points that are done, with the names of their files: others may have the same content."""
    return [
        {**rows[point.key], "cluster": point.names[0], "model": point.names[1]}
        for point in points
        if point.key in rows
    ]


@contextmanager
def _running(points: Sequence[SweepPoint], jobs: int, backend: str | None) -> Iterator[Iterable[SweepRow]]:
    """The rows as they are done, in any order."""
    if backend is None and jobs == 1:
        yield map(solved, points)
        return
    joblib = _library("joblib")
    calls = (joblib.delayed(solved)(point) for point in points)
    if backend is None:
        yield joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)
        return
    scheme, _, address = backend.partition("://")
    if scheme not in _CLUSTERS or not address:
        raise UsageError(f"--backend: expected dask://host:port or ray://host:port, got {backend!r}")
    with _CLUSTERS[scheme](points, backend, address) as results:
        yield results


@contextmanager
def _on_dask(points: Sequence[SweepPoint], backend: str, address: str) -> Iterator[Iterable[SweepRow]]:
    """Dask gives the points of a worker that dies to another one."""
    distributed = _library("distributed")
    try:
        client = distributed.Client(f"tcp://{address}", timeout=10)
    except (OSError, ValueError) as error:
        raise _unreached(backend, error, "is a scheduler running there?") from None
    with client:
        futures = client.map(
            solved, points, key=[f"hetplan-{point.key}" for point in points], retries=RETRIES
        )
        completed = distributed.as_completed(futures)
        yield (future.result() for future in completed)


@contextmanager
def _on_ray(points: Sequence[SweepPoint], backend: str, address: str) -> Iterator[Iterable[SweepRow]]:
    """Ray does the points of a worker or a node that dies on another one."""
    ray = _library("ray")
    try:
        with warnings.catch_warnings(action="ignore"):
            ray.init(
                address="auto" if address == "auto" else backend,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (ConnectionError, ImportError, ValueError) as error:
        raise _unreached(
            backend, error, "is Ray's client server running there? It needs ray[client]"
        ) from None
    try:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(solved)
        yield _as_done(ray, [task.remote(point) for point in points])
    finally:
        ray.shutdown()


def _as_done(ray: Any, waiting: list[Any]) -> Iterator[SweepRow]:
    while waiting:
        (done,), waiting = ray.wait(waiting)
        yield ray.get(done)


def _unreached(backend: str, error: Exception, hint: str) -> UsageError:
    return UsageError(f"--backend {backend}: {str(error).partition(chr(10))[0]}", hint=hint)


_CLUSTERS = {"dask": _on_dask, "ray": _on_ray}
"""Where points are searched, by the scheme of --backend."""


def _library(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        extra = {"distributed": "dask", "ray": "ray"}.get(name, "sweep")
        raise UsageError(f"sweep needs {name} for this", hint=f"pip install 'hetplan[{extra}]'") from None


def _done(log: Path, options: Sequence[str]) -> dict[str, SweepRow]:
    """Rows of an earlier run, by the key of their point; one whose line was cut off or damaged is searched again."""
    if not log.exists():
        return {}
    rows = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if _is_row(row, options):
            rows[row["key"]] = row
    return rows


def _is_row(row: Any, options: Sequence[str]) -> bool:
    """True for all that a row of the table needs, each of its kind."""
    if not isinstance(row, dict) or not {*options, *RESULTS} <= row.keys():
        return False
    texts = [row.get(name) for name in ("key", "cluster", "model", "status")]
    numbers = [row[name] for name in ("step_seconds", "tokens_per_second", "gap") if row[name] is not None]
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(each, int | float) and 0 <= each <= PREDICTED.most for each in numbers
    )


@contextmanager
def _appending(log: Path) -> Iterator[Callable[[SweepRow], None]]:
    """What puts a row on the disk, behind a line of its own."""
    with writing(log):
        file = log.open("ab")
        if log.stat().st_size and not log.read_bytes().endswith(b"\n"):
            file.write(b"\n")

    def append(row: SweepRow) -> None:
        with writing(log):
            file.write(f"{json.dumps(row)}\n".encode())
            file.flush()

    try:
        yield append
    finally:
        with suppress(OSError):  # each row was flushed, or the error told
            file.close()


def _tell(done: int, total: int) -> None:
    """On a terminal alone."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done}/{total} points" + ("\n" if done == total else ""))
        sys.stderr.flush()


def _write(rows: Sequence[SweepRow], options: Sequence[str], output: Path) -> None:
    columns = ["cluster", "model", *options, *RESULTS]
    if output.suffix == ".csv":
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(text.getvalue(), output, "results.csv")
        return
    frame = _library("pandas").DataFrame([{name: row.get(name) for name in columns} for row in rows])
    table_of = io.BytesIO()
    frame.to_parquet(table_of)
    write_whole(table_of.getvalue(), output, "results.parquet")


def _called(path: str) -> str:
    """The name of a file in a table; a ``config.json`` has that of its folder, a model of the hub its own."""
    file = Path(path)
    if (name := repository_name(file)) is not None:
        return name
    return file.parent.name if file.name == "config.json" and file.parent.name else file.stem


NO_PLAN = {"infeasible": "proven: no plan fits", "unknown": "no plan found in time"}
"""Why a point has no plan, by the status of its search."""


def _without_plan(rows: Sequence[SweepRow]) -> Indented:
    """Why points have no plan, the most frequent reason first."""
    reasons = Counter(
        NO_PLAN.get(str(row["status"]), str(row["error"])) for row in rows if not row["step_seconds"]
    )
    lines = [f"{count(number_of, 'point')}: {reason}" for reason, number_of in reasons.most_common(REASONS)]
    more = len(reasons) - len(lines)
    return Indented(bullets([*lines, *([f"and {count(more, 'other reason')}"] if more > 0 else [])], "!"))


def _best(rows: Sequence[SweepRow], options: Sequence[str]) -> Indented | None:
    """The fastest points; nothing where none has a plan."""
    known = [row for row in rows if isinstance(row["tokens_per_second"], float)]
    if not known:
        return None
    known.sort(key=lambda row: -float(row["tokens_per_second"] or 0))
    columns = (
        words("fastest points", least=14),
        *(words(name.replace("_", " "), least=9) for name in options),  # flagscale
        number("step"),
        number("tokens/s"),
        number("gap"),
        words("plan", least=14),
    )
    lines = [
        [
            f"{_called(str(row['model']))} on {_called(str(row['cluster']))}",
            *(or_missing(row[name], str) for name in options),
            duration(float(row["step_seconds"] or 0)),
            rate(float(row["tokens_per_second"] or 0)),
            percent(float(row["gap"] or 0)),
            str(row["plan"]),
        ]
        for row in known[:SHOWN]
    ]
    return Indented(table(columns, lines, ruled=False))
