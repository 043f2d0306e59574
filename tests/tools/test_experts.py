"""Models with experts, run by run, in the page on how true the cost model is."""

from __future__ import annotations

from dataclasses import replace

from planner.calibration.file import shipped
from planner.measured.predictions import predict
from tests.measured.examples import published
from tools.accuracy.experts import HEADINGS, experts_section
from tools.accuracy.goals import TERMS


def test_every_run_with_experts_has_a_line() -> None:
    """With what was measured next to what is predicted, which the shipped constants stand in for here."""
    table, calibration = published(), shipped()
    own = [run for run in table.runs if run.source in TERMS["experts"] and run.model.experts is not None]
    dense = next(run for run in table.runs if run.model.experts is None)
    predictions = predict([*own, dense], calibration)
    head, *lines = [line for line in experts_section(predictions).splitlines() if line.startswith("|")]
    assert head.count("|") == len(HEADINGS) + 1
    assert len(lines) == len(own) + 1
    measured = predictions[0]
    run = replace(measured.run, step_seconds=measured.predicted_seconds, peak_memory_bytes=None)
    line = experts_section((replace(measured, run=run),)).splitlines()[-1]
    assert f"| {run.model.name} |" in line
    assert line.endswith("| +0.0 % | - | - |")
