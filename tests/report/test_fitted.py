"""What a fit found, as tables and as a document."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from rich.console import Group

from planner.calibration.values import Calibration, Constant, Residual
from planner.field_metadata import text
from planner.logs.fits import Variation
from planner.measured.fit import Fit
from planner.report.calibrated import fitted_document, fitted_sections, variation_section
from tests.measured.examples import run
from tests.report.drawing import drawn

CALIBRATION = Calibration(
    constants=(
        Constant(name="families.A100.matmul_efficiency", value=0.8123, provenance="fitted", spread=0.012),
        Constant(name="families.A100.launch_seconds", value=4.612e-5, provenance="fitted", spread=0.13),
        Constant(name="frameworks.megatron.runtime_bytes", value=4.2e9, provenance="measured"),
    ),
    residuals=(Residual(family="A100", framework="megatron", rows=5, spread=0.094),),
)
LONG = "megatron-deepspeed-bloom-production"


def fitted(source: str = "paper") -> Fit:
    """Two runs of a lab, 10 % too slow and 20 % too fast, and one of a paper, nearly exact."""
    return Fit(
        calibration=CALIBRATION,
        runs=(run("lab-1"), run("paper-1", source=source), run("lab-2")),
        errors=(log(1.1), log(1.0001), log(0.8)),
        left_out_errors=(log(1.5), log(0.9), log(0.5)),
        without=lambda _: CALIBRATION,
        warnings=(),
    )


def report(
    found: Fit, width: int = 80, path: Path | None = None, calibration: Calibration = CALIBRATION
) -> str:
    """The whole report."""
    return drawn(Group(*fitted_sections(found, calibration, path)), width)


WHOLE = """\
Constants, fitted to 3 runs, wrote calibration.yaml
  constant                                value  spread
  ─────────────────────────────────────────────────────
  families.A100.matmul_efficiency         0.812  ±1.2 %
  families.A100.launch_seconds        0.0000461   ±13 %
  frameworks.megatron.runtime_bytes  4200000000       -

Errors of the fitted runs
                            own source
  source  runs  mean error    left out
  ────────────────────────────────────
  lab        2        15 %        50 %
  paper      1     < 0.1 %        10 %

Error bars
  family  framework  work   runs  spread
  ──────────────────────────────────────
  A100    megatron   dense     5  ±9.4 %

"""


@pytest.mark.parametrize("width", [80, 120])
def test_the_whole_report(width: int) -> None:
    """Constants, errors of the sources by name, error bars; no wider on a wider terminal."""
    assert report(fitted(), width, Path("calibration.yaml")) == WHOLE


def test_nothing_is_said_of_a_file_that_was_not_written() -> None:
    """The heading ends with the runs."""
    assert report(fitted()).startswith("Constants, fitted to 3 runs\n")


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    """With long names of sources, families and constants; numbers stay whole."""
    long = Constant(
        name=f"families.{LONG}-{LONG}.matmul_efficiency", value=0.7, provenance="fitted", spread=2.5
    )
    bar = Residual(family=f"{LONG}-{LONG}", framework="megatron", rows=1234, spread=0.5)
    found = report(
        fitted(f"{LONG}-{LONG}-{LONG}"),
        width,
        calibration=replace(CALIBRATION, constants=(*CALIBRATION.constants, long), residuals=(bar,)),
    )
    assert max(len(line) for line in found.splitlines()) <= width
    assert " 4200000000 " in found
    assert " ±250 %" in found
    assert " 1234 " in found


def test_no_error_bars_without_enough_runs() -> None:
    """Rather than an empty table."""
    assert "Error bars" not in report(fitted(), calibration=replace(CALIBRATION, residuals=()))


def test_the_document() -> None:
    """Full precision; no file is null, an unknown spread too."""
    found = json.loads(text(fitted_document(fitted(), CALIBRATION, None)))
    assert (found["command"], found["file"], found["runs"]) == ("calibrate fit", None, 3)
    assert found["constants"][0] == {
        "name": "families.A100.matmul_efficiency",
        "value": 0.8123,
        "spread": 0.012,
        "provenance": "fitted",
        "source": None,
    }
    assert found["constants"][2]["spread"] is None
    assert [entry["source"] for entry in found["sources"]] == ["lab", "paper"]
    assert found["sources"][0]["runs"] == 2
    assert found["sources"][0]["mean_error"] == pytest.approx(0.15)
    assert found["sources"][0]["left_out_error"] == pytest.approx(0.5)
    assert found["residuals"] == [
        {
            "family": "A100",
            "stack": "megatron",
            "work": "dense",
            "runs": 5,
            "spread": 0.094,
            "devices": [],
        }
    ]
    assert json.loads(text(fitted_document(fitted(), CALIBRATION, Path("c.yaml"))))["file"] == "c.yaml"


def test_backups_that_pay_name_the_option_and_the_runtime() -> None:
    """Where a run's slowest replicas are not worth waiting for, search can plan without them."""
    seen = Variation(
        family="A100",
        devices=64,
        steps=200,
        spread=0.02,
        work=0.9,
        sigma=0.05,
        replicas=64,
        backups=2,
        backups_gain=0.03,
    )
    shown = " ".join(drawn(Group(variation_section(seen, Path("c.yaml")))).split())
    assert "without the slowest 2 of 64 replicas in each step 3.0 % more sequences a second: search" in shown
    assert "search --allow-backup plans it for torch" in shown
