"""The ``--json`` form of a validation."""

from __future__ import annotations

from planner.measured.predictions import (
    Errors,
    FitTruth,
    GroupTruth,
    MemoryTruth,
    Prediction,
    SourceTruth,
    Truth,
    worst,
)
from planner.report.document import FORMAT
from planner.report.keys import Document
from planner.report.validation import Validation, not_predicted


def validation_document(validation: Validation, most_worst: int) -> Document:
    """The answer of ``validate``: every statistic and every prediction."""
    return {
        "format": FORMAT,
        "command": "validate",
        "measured": validation.measured,
        "calibration": validation.calibration,
        "half": validation.half,
        **_truth_keys(validation.truth),
        "worst": [entry.run.id for entry in worst(validation.predictions, most_worst)],
        "runs": [_run_keys(entry) for entry in validation.predictions],
        "skipped": [
            {"id": entry.id, "source": entry.source, "reason": entry.reason} for entry in validation.skipped
        ],
        "not_predicted": dict(sorted(not_predicted(validation).items())),
    }


def _truth_keys(truth: Truth) -> Document:
    return {
        "sources": [_source_keys(entry) for entry in truth.sources],
        "total": None if truth.total is None else _source_keys(truth.total),
        "groups": [_group_keys(entry) for entry in truth.groups],
        "memory": [_memory_keys(entry) for entry in truth.memory],
        "total_memory": None if truth.total_memory is None else _memory_keys(truth.total_memory),
        "out_of_memory": [_fit_keys(entry) for entry in truth.fits],
        "total_out_of_memory": None if truth.total_fits is None else _fit_keys(truth.total_fits),
    }


def _errors_keys(errors: Errors) -> Document:
    return {
        "runs": errors.runs,
        "mean_error": errors.mean,
        "median_error": errors.median,
        "p90_error": errors.ninetieth,
        "bias": errors.bias,
    }


def _source_keys(entry: SourceTruth) -> Document:
    return {
        "source": entry.source,
        **_errors_keys(entry.errors),
        "coverage": entry.coverage,
        "ranked_groups": entry.ranked_groups,
        "rank_correlation": entry.rank_correlation,
        "chosen_groups": entry.chosen_groups,
        "mean_regret": entry.mean_regret,
        "worst_regret": entry.worst_regret,
    }


def _group_keys(entry: GroupTruth) -> Document:
    return {
        "source": entry.source,
        "model": entry.model,
        "devices": entry.devices,
        "cluster": entry.cluster,
        "sequence_length": entry.sequence_length,
        "global_batch": entry.global_batch,
        **_errors_keys(entry.errors),
        "coverage": entry.coverage,
        "rank_correlation": entry.rank_correlation,
        "regret": entry.regret,
    }


def _memory_keys(entry: MemoryTruth) -> Document:
    return {"source": entry.source, **_errors_keys(entry.errors)}


def _fit_keys(entry: FitTruth) -> Document:
    return {
        "source": entry.source,
        "runs": entry.runs,
        "both_fit": entry.both_fit,
        "both_out": entry.both_out,
        "false_alarms": entry.false_alarms,
        "missed": entry.missed,
    }


def _run_keys(entry: Prediction) -> Document:
    run = entry.run
    return {
        "id": run.id,
        "source": run.source,
        "reference": run.reference,
        "model": run.model.name,
        "devices": run.devices,
        "measured_seconds": run.step_seconds,
        "predicted_seconds": entry.predicted_seconds,
        "error": entry.error,
        "spread": entry.spread,
        "measured_bytes": run.peak_memory_bytes,
        "predicted_bytes": entry.predicted_bytes,
        "memory_error": entry.memory_error,
        "measured_fits": run.fits,
        "predicted_fits": entry.fits,
        "doubt": run.doubt,
        "failure": entry.failure,
    }
