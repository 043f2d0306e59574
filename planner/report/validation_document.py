"""The ``--json`` form of a validation."""

from __future__ import annotations

from dataclasses import dataclass

from planner.described import told
from planner.measured.predictions import (
    Prediction,
    Truth,
    worst,
)
from planner.measured.values import Skipped
from planner.report.json_document import Head
from planner.report.validation import Validation, not_predicted


@told(inline=("truth",))
@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationDocument(Head):
    """The answer of ``validate``."""

    measured: str
    """File of the measured runs, or published runs."""
    calibration: str
    """Calibration file, or shipped calibration."""
    half: str | None
    """fitted or held-out; null for all runs."""
    truth: Truth
    """Every statistic."""
    worst: tuple[str, ...]
    """Ids of the runs with the largest errors of the step time, largest first."""
    runs: tuple[Prediction, ...]
    """Every prediction."""
    skipped: tuple[Skipped, ...]
    """Rows that are no runs that hetplan can predict."""
    not_predicted: dict[str, int]
    """Numbers of skipped rows and of runs that could not be priced, by reason."""


def validation_document(validation: Validation, most_worst: int) -> ValidationDocument:
    """The answer of ``validate``: every statistic and every prediction."""
    return ValidationDocument(
        command="validate",
        measured=validation.measured,
        calibration=validation.calibration,
        half=validation.half,
        truth=validation.truth,
        worst=tuple(entry.run.id for entry in worst(validation.predictions, most_worst)),
        runs=tuple(validation.predictions),
        skipped=tuple(validation.skipped),
        not_predicted=dict(sorted(not_predicted(validation).items())),
    )
