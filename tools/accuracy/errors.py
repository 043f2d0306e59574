"""What is compared, errors by source, error bars, and the runs predicted worst."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import exp, inf
from statistics import fmean

from planner.calibration.values import Work
from planner.cost.estimate import work_of
from planner.cost.values import PAIR_SPREAD
from planner.measured.fit import certain, families_of, kernels_of
from planner.measured.predictions import (
    FitTruth,
    Prediction,
    SourceTruth,
    Truth,
    by_source,
    coverage,
    pair_spread,
    pairs,
    worst,
)
from planner.report.numbers import MISSING, significant
from planner.targets import target
from tools.accuracy.material import Material, correlation, markdown, paragraph, share, signed

SHOWN = 5
"""Runs predicted worst that are shown."""
CAUSES = {
    "mpt-031": "the model exposes parameter traffic that the measured step has no room for",
    "mpt-032": "the model exposes parameter traffic that the measured step has no room for",
    "jzv100-": "authors warn of 40 % between allocations",
    "zoff-": "as far off with 1 billion parameters, where exposed copies and CPU-Adam are 1 % of a step",
    "sc21f7-": "one device, 128 heads of 32: unfused score matrices",
}
"""Why runs are predicted badly, by the beginning of their id."""


def compared_section(found: Material) -> str:
    """Rows, and what was fitted to."""
    runs = found.table.runs
    timed = [run for run in runs if run.step_seconds is not None]
    doubted = sum(not certain(run) for run in timed)
    return "\n".join(
        (
            paragraph(
                f"{len(runs)} published runs of {len({run.source for run in runs})} sources, {len(timed)} of them",
                f"with a step time; {len(found.table.skipped)} more rows are skipped, each with its reason in",
                "[measurements.md](measurements.md).",
            ),
            paragraph(
                "The constants that ship were fitted to all of them (`hetplan calibrate fit`), from priors that",
                "microbenchmarks and the kernels' own publications give (`planner/measured/priors.py`). How true they",
                "are is judged source by source: each source is predicted with constants fitted to all others, as a",
                "run of yours would be. A source shares its machine, release and habits, so that any other split",
                "tests a fit on what it has seen.",
            ),
            paragraph(
                f"{doubted} runs leave their plan or number format partly open, or their authors doubt the",
                "measurement: they are fitted to with an error of a further 25 %, of their own and of their source",
                "(`GUESSED` in `planner/measured/fit.py`).",
            ),
            "![predicted against measured step times, each source left out](accuracy.png)\n",
        )
    )


def sources_section(found: Material) -> str:
    """Errors of every source left out and fitted, memory, and what was out of memory."""
    columns = ("source ", "runs", "mean", "median", "p90", "bias", "Spearman", "mean regret", "worst regret")
    ways = (("left out", found.left_out_truth), ("fitted", found.fitted_truth))
    outcomes = ("ran, as predicted", "out, as predicted", "false alarms", "missed")
    return "\n".join(
        (
            paragraph(
                "p90 is the 90th percentile; bias is the mean that keeps the signs, above 0 where predictions are",
                "too slow.",
            ),
            "### Step time, the source left out\n",
            markdown(columns, _rows(found.left_out_truth)),
            "### Step time, fitted to all sources\n",
            markdown(columns, _rows(found.fitted_truth)),
            "### Memory, fullest device\n",
            markdown(("source ", "way ", "runs", "mean", "median", "p90", "bias"), _memory_rows(ways)),
            "### Out of memory\n",
            paragraph(
                "A false alarm ran, though out of memory was predicted; a missed one was out of memory, though",
                "predicted to fit. Sources without either and without runs out of memory are in the total only.",
            ),
            markdown(("source ", "way ", "runs", *outcomes), _fit_rows(ways)),
        )
    )


def bars_section(found: Material) -> str:
    """Spreads, and how many runs of sources left out lie within one."""
    spreads = {item.key: item for item in found.calibration.residuals}
    held: dict[tuple[str, str, Work], list[Prediction]] = {}
    for entry in found.left_out:
        if entry.error is not None:
            held.setdefault(_owner(entry), []).append(entry)
    rows = []
    for owner in sorted({*spreads, *held}):
        own, spread = held.get(owner, []), spreads.get(owner)
        shown = (
            f"±{share(spread.spread)}"
            if spread
            else f"±{share(found.calibration.spread(owner[0].split(' + '), *owner[1:]))}, assumed"
        )
        fitted = str(spread.rows) if spread else "0"
        rows.append((*owner, fitted, shown, str(len(own)), share(coverage(own)) if own else MISSING))
    timed = [entry for own in held.values() for entry in own]
    sure = [entry for entry in timed if certain(entry.run)]
    sources: dict[str, list[Prediction]] = {}
    for entry in timed:
        sources.setdefault(entry.run.source, []).append(entry)
    of_one = fmean(coverage(entries) for entries in sources.values())
    text = paragraph(
        f"{share(coverage(timed))} of the runs lie within one spread of their prediction when their source is left",
        f"out, of those whose plan is known {share(coverage(sure))}, and of those of one source, in the mean over",
        f"sources, {share(of_one)}; a standard error would hold 68 %. The last column is of bars of the other sources",
        "alone, but for what families and device types have of their own.",
    )
    columns = ("family ", "kernels ", "layers ", "runs fitted", "spread", "runs", "within one spread")
    return text + "\n" + markdown(columns, rows)


RATIOS = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0, inf)
"""Between which the predicted ratios of two steps are counted together."""


def pairs_section(found: Material) -> str:
    """How well the ratio of two steps is known, and how often the order is wrong."""
    known = list(pairs(found.left_out))
    sources = by_source(known)
    spread = pair_spread(sources)
    if round(spread, 2) != PAIR_SPREAD:
        raise SystemExit(f"PAIR_SPREAD is {PAIR_SPREAD} in planner/cost/values.py, measured {spread:.3f}")
    rows = []
    for low, high in pairwise(RATIOS):
        alike = [pair for pair in known if low <= exp(abs(pair.predicted)) < high]
        own = by_source(alike)
        wrong = fmean(fmean(pair.reversed for pair in each) for each in own)
        text = f"{low:.2f} to {high:.2f}" if high < inf else f"{low:.2f} and more"
        number = sum(map(len, own))
        rows.append((text, str(len(own)), str(number), f"±{share(pair_spread(own))}", share(wrong)))
    text = paragraph(
        "Most of an error bar is in both of two plans for the same devices, and says nothing of which is faster. Of",
        f"two runs that differ in their plan only, {len(known)} pairs, the predicted ratio of the steps is within",
        f"±{share(spread)} of the measured one for 68 % of the pairs of a source that is left out, in the mean over",
        f"{len(sources)} sources with at least three. `hetplan compare` tells plans apart that are predicted to",
        "differ by more. The last column is the share of pairs whose order is wrong.",
    )
    columns = ("predicted ratio ", "sources", "pairs", "ratio within", "order wrong")
    return text + "\n" + markdown(columns, rows)


def worst_section(found: Material) -> str:
    """The runs predicted worst when their source is left out, with what is known against them."""
    rows = [
        (
            entry.run.id,
            entry.run.source,
            significant(entry.run.step_seconds or 0.0, 2),
            significant(entry.predicted_seconds or 0.0, 2),
            signed(entry.error or 0.0),
            entry.run.doubt or MISSING,
            _cause(entry.run.id),
        )
        for entry in worst(found.left_out, SHOWN)
    ]
    columns = ("run ", "source ", "measured (s)", "predicted (s)", "error", "doubt ", "reason ")
    return markdown(columns, rows)


def _cause(name: str) -> str:
    return next((text for prefix, text in CAUSES.items() if name.startswith(prefix)), "unexplained")


def _owner(entry: Prediction) -> tuple[str, str, Work]:
    run = entry.run
    return " + ".join(sorted(families_of(run))), kernels_of(run), work_of(run.model, target(run.plan.target))


def _rows(found: Truth) -> list[list[str]]:
    return [_source_row(entry) for entry in (*found.sources, *([found.total] if found.total else []))]


def _source_row(entry: SourceTruth) -> list[str]:
    errors = entry.errors
    cells = [
        str(errors.runs),
        *map(share, (errors.mean, errors.median, errors.ninetieth)),
        signed(errors.bias),
    ]
    regrets = map(share, (entry.mean_regret, entry.worst_regret))
    return [entry.source, *cells, correlation(entry.rank_correlation), *regrets]


def _memory_rows(halves: Sequence[tuple[str, Truth]]) -> Iterator[list[str]]:
    for half, found in halves:
        for entry in (*found.memory, *([found.total_memory] if found.total_memory else [])):
            errors = entry.errors
            shares = map(share, (errors.mean, errors.median, errors.ninetieth))
            yield [entry.source, half, str(errors.runs), *shares, signed(errors.bias)]


def _fit_rows(halves: Sequence[tuple[str, Truth]]) -> Iterator[list[str]]:
    for half, found in halves:
        told = [entry for entry in found.fits if entry.runs > entry.both_fit]
        for entry in (*told, *([found.total_fits] if found.total_fits else [])):
            yield [entry.source, half, *_fit_cells(entry)]


def _fit_cells(entry: FitTruth) -> Iterator[str]:
    for value in (entry.runs, entry.both_fit, entry.both_out, entry.false_alarms, entry.missed):
        yield str(value)
