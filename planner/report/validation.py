"""How true the cost model is: its predictions of measured runs, by source and by group, and where it is worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from planner.errors import UsageError
from planner.field_metadata import JsonDocument, json_fields
from planner.files.writing import write_whole
from planner.measured.predictions import (
    Errors,
    FitTruth,
    GroupTruth,
    Prediction,
    SourceTruth,
    Truth,
    errors_of,
    worst,
)
from planner.measured.values import Skipped
from planner.report.layout import Paragraph, number, pairs, section, table, words
from planner.report.numbers import MISSING, count, or_missing, percent, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Entry = TypeVar("Entry")

FEW_GROUPS = 20
"""Groups that are shown without being asked for."""
MOST_REASONS = 12
"""Reasons that are shown one by one."""

ERROR_COLUMNS = (
    number("\nruns"),
    number("\nmean"),
    number("\nmedian"),
    number("90th\npct."),
    number("\nbias"),
)
"""Columns of ``_error_cells``."""
TIME_LEGEND = (
    ("error", "predicted / measured - 1; bias is the mean signed error"),
    ("in spread", "runs within the estimated error"),
    (
        "rank corr.",
        "Spearman, mean over groups of 4 or more runs that differ only in their plan, weighted by their runs",
    ),
    ("regret", "within a group: measured time of the plan predicted fastest / fastest measured - 1"),
)
FIT_LEGEND = (
    ("false alarms", "predicted out of memory, but ran"),
    ("missed", "predicted to fit, but ran out of memory"),
)


@json_fields(inline=("truth",), names={"predictions": "runs"})
@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predictions of measured runs, and where they come from."""

    measured: str
    """File of the measured runs, or published runs."""
    calibration: str
    """Calibration file, or shipped calibration."""
    half: str | None
    """fitted or held-out; None for all runs."""
    truth: Truth
    """Every statistic."""
    predictions: tuple[Prediction, ...]
    """Every prediction."""
    skipped: tuple[Skipped, ...]
    """Rows that are no runs that hetplan can predict."""


def validation_sections(validation: Validation, most_worst: int, every_group: bool) -> list[RenderableType]:
    """The whole report; many groups of several sources only on request."""
    truth = validation.truth
    parts: list[RenderableType] = [_understood(validation), _time(truth)]
    if choices(truth) and (every_group or shows_groups(truth)):
        parts.append(_groups(truth))
    parts += [_memory(truth)] if truth.memory else []
    parts += [_fits(truth)] if truth.fits else []
    far = worst(validation.predictions, most_worst)
    parts += [_worst(far)] if far else []
    rows = _rows_by_reason(validation)
    parts += [_not_predicted(rows)] if rows else []
    return parts


def choices(truth: Truth) -> list[GroupTruth]:
    """Groups of several runs; one run alone leaves nothing to choose."""
    return [group for group in truth.groups if group.regret is not None]


def shows_groups(truth: Truth) -> bool:
    """True when the groups are few enough, or of one source, to be shown without being asked for."""
    return len(truth.sources) <= 1 or len(choices(truth)) <= FEW_GROUPS


def not_predicted(validation: Validation) -> Counter[str]:
    """Rows without a prediction, by reason."""
    return Counter({reason: len(rows) for reason, rows in _rows_by_reason(validation).items()})


def _rows_by_reason(validation: Validation) -> dict[str, list[str]]:
    """Identifiers of the rows without a prediction."""
    rows: dict[str, list[str]] = {}
    for skipped in validation.skipped:
        rows.setdefault(skipped.reason, []).append(skipped.id)
    for entry in validation.predictions:
        if entry.estimate is None:
            rows.setdefault(entry.failure, []).append(entry.run.id)
    return rows


def _understood(validation: Validation) -> Group:
    sources = {entry.run.source for entry in validation.predictions}
    runs = f"{count(len(validation.predictions), 'run')} of {count(len(sources), 'source')}"
    half = f", the {validation.half} half" if validation.half else ""
    rows = (
        ("measured", f"{validation.measured}: {runs}{half}"),
        ("constants", validation.calibration),
    )
    return section("Inputs", pairs(rows))


def _time(truth: Truth) -> Group:
    title = "Step time by source"
    if truth.total is None:
        return section(title, Paragraph("none of the runs with a measured step time could be predicted"))
    columns = (
        words("\nsource"),
        *ERROR_COLUMNS,
        number("in\nspread"),
        number("rank\ncorr."),
        number("mean\nregret"),
        number("worst\nregret"),
    )
    rows = [_source_row(entry) for entry in _with_total(truth.sources, truth.total)]
    return section(
        f"{title} (errors and regret in %)", table(columns, rows, gap=1), Text(""), pairs(TIME_LEGEND)
    )


def _source_row(entry: SourceTruth) -> list[str]:
    return [
        entry.source,
        *_error_cells(entry.errors),
        _percent(entry.coverage, 0),
        or_missing(entry.rank_correlation, "{:.2f}".format),
        _percent(entry.mean_regret),
        _percent(entry.worst_regret),
    ]


def _groups(truth: Truth) -> Group:
    several = len(truth.sources) > 1
    columns = (
        *([words("\nsource", least=10)] if several else []),
        words("\nmodel", least=10),
        number("\ndevices"),
        number("\nlength"),
        number("\nbatch"),
        number("\nruns"),
        number("mean\nerror"),
        number("\nbias"),
        number("rank\ncorr."),
        number("\nregret"),
    )
    shown = choices(truth)
    rows = [[*([entry.source] if several else []), *_group_row(entry)] for entry in shown]
    parts: list[RenderableType] = [table(columns, rows, gap=1)]
    if alone := len(truth.groups) - len(shown):
        parts.append(Paragraph(f"and {count(alone, 'group')} of a single run"))
    return section("Step time by group (errors and regret in %)", *parts)


def _group_row(entry: GroupTruth) -> list[str]:
    return [
        entry.model,
        str(entry.devices),
        str(entry.sequence_length),
        str(entry.global_batch),
        str(entry.errors.runs),
        _percent(entry.errors.mean),
        _percent(entry.errors.bias),
        or_missing(entry.rank_correlation, "{:.2f}".format),
        _percent(entry.regret),
    ]


def _memory(truth: Truth) -> Group:
    rows = [
        [entry.source, *_error_cells(entry.errors)] for entry in _with_total(truth.memory, truth.total_memory)
    ]
    return section("Memory by source (errors in %)", table((words("\nsource"), *ERROR_COLUMNS), rows))


def _fits(truth: Truth) -> Group:
    columns = (
        words("\nsource"),
        number("\nruns"),
        number("ran,\nas predicted"),
        number("out of memory,\nas predicted"),
        number("false\nalarms"),
        number("\nmissed"),
    )
    rows = [_fit_row(entry) for entry in _with_total(truth.fits, truth.total_fits)]
    return section("Out of memory (runs)", table(columns, rows), Text(""), pairs(FIT_LEGEND))


def _fit_row(entry: FitTruth) -> list[str]:
    numbers = (entry.runs, entry.both_fit, entry.both_out, entry.false_alarms, entry.missed)
    return [entry.source, *(str(value) for value in numbers)]


def _worst(predictions: Sequence[Prediction]) -> Group:
    unit = time_unit(entry.run.step_seconds for entry in predictions)
    columns = (
        words("run", least=16),
        number(unit.heading("measured")),
        number(unit.heading("predicted")),
        number("error\n(%)"),
        words("doubt", least=20),
    )
    rows = [
        [
            entry.run.id,
            unit.show(entry.run.step_seconds),
            unit.show(entry.predicted_seconds),
            _percent(entry.error),
            entry.run.doubt or MISSING,
        ]
        for entry in predictions
    ]
    return section("Worst runs", table(columns, rows))


def _not_predicted(rows_by_reason: dict[str, list[str]]) -> Group:
    shown = sorted(rows_by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [[str(len(ids)), ids[0], reason] for reason, ids in shown[:MOST_REASONS]]
    if more := shown[MOST_REASONS:]:
        rest = sum(len(ids) for _, ids in more)
        rows.append([str(rest), more[0][1][0], f"{count(len(more), 'other reason')}"])
    title = f"Not predicted ({count(sum(map(len, rows_by_reason.values())), 'row')})"
    return section(title, table((number("rows"), words("first"), words("reason", least=40)), rows))


def _with_total(entries: tuple[Entry, ...], total: Entry | None) -> tuple[Entry, ...]:
    """The total under several entries; a single one is its own total."""
    return (*entries, total) if total is not None and len(entries) > 1 else entries


def _error_cells(errors: Errors) -> list[str]:
    shares = (errors.mean, errors.median, errors.ninetieth, errors.bias)
    return [str(errors.runs), *(_percent(share) for share in shares)]


def _percent(share: float | None, decimals: int = 1) -> str:
    return MISSING if share is None else f"{100 * share:.{decimals}f}"


@json_fields(inline=("validation",))
@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationDocument(JsonDocument):
    """The answer of ``validate``."""

    validation: Validation
    """Every statistic and every prediction."""
    worst: tuple[str, ...]
    """Ids of the runs with the largest errors of the step time, largest first."""
    not_predicted: dict[str, int]
    """Numbers of skipped rows and of runs that could not be priced, by reason."""


def validation_document(validation: Validation, most_worst: int) -> ValidationDocument:
    """The answer of ``validate``: every statistic and every prediction."""
    return ValidationDocument(
        command="validate",
        validation=validation,
        worst=tuple(entry.run.id for entry in worst(validation.predictions, most_worst)),
        not_predicted=dict(sorted(not_predicted(validation).items())),
    )


BAND = 0.10
"""Relative error of the shaded band."""
LEGEND_ROWS = 36
"""Sources that a column of the legend holds in the height of the figure."""
MARKERS = "osD^v<>Phd"
COLOURS = tuple(f"C{index}" for index in range(10))


def require_matplotlib() -> type[Figure]:
    """What it draws on; raises UsageError when there is nothing to draw with."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--plot needs matplotlib", hint="pip install 'hetplan[plot]'") from None
    return Figure


def write_plot(predictions: Sequence[Prediction], path: Path) -> None:
    """Write the picture whole or not at all; raises OutputError, and UsageError without matplotlib."""
    content = BytesIO()
    _figure(predictions).savefig(content, format="png", dpi=150, bbox_inches="tight")
    write_whole(content.getvalue(), path, "errors.png")


def _figure(predictions: Sequence[Prediction]) -> Figure:
    """Log-log axes with one mark per run, the diagonal and the band around it."""
    timed = [entry for entry in predictions if entry.error is not None]
    columns = 1 + len({entry.run.source for entry in timed}) // LEGEND_ROWS
    figure = require_matplotlib()(figsize=(5.5 + 3.5 * columns, 6.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", aspect="equal")
    axes.set(xlabel="measured step (s)", ylabel="predicted step (s)")
    _draw_runs(axes, timed, columns)
    return figure


def _draw_runs(axes: Axes, timed: Sequence[Prediction], columns: int) -> None:
    for index, source in enumerate(sorted({entry.run.source for entry in timed})):
        own = [entry for entry in timed if entry.run.source == source]
        axes.plot(
            [entry.run.step_seconds or 0.0 for entry in own],
            [entry.predicted_seconds or 0.0 for entry in own],
            linestyle="none",
            marker=MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            markersize=4,
            alpha=0.7,
            label=_label(source, own),
        )
    if timed:
        _draw_diagonal(axes, timed)
        axes.legend(
            loc="center left",
            bbox_to_anchor=(1.02, 0.5),
            fontsize="small",
            frameon=False,
            ncols=columns,
            title="source: mean error",
        )


def _label(source: str, own: Sequence[Prediction]) -> str:
    errors = errors_of([entry.error for entry in own if entry.error is not None])
    return f"{source}: {percent(errors.mean)} ({count(errors.runs, 'run')})"


def _draw_diagonal(axes: Axes, timed: Sequence[Prediction]) -> None:
    seconds = [
        value for entry in timed for value in (entry.run.step_seconds, entry.predicted_seconds) if value
    ]
    ends = (min(seconds) / 1.5, max(seconds) * 1.5)
    axes.plot(ends, ends, color="0.3", linewidth=1, label="predicted as measured")
    low, high = ([end * factor for end in ends] for factor in (1 - BAND, 1 + BAND))
    axes.fill_between(ends, low, high, color="0.5", alpha=0.2, linewidth=0, label=f"±{percent(BAND)}")
    axes.set(xlim=ends, ylim=ends)
