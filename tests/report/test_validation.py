"""How true the cost model is, as tables, as a document and as a picture."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Group

from planner.errors import OutputError, UsageError
from planner.field_metadata import plain, text
from planner.measured.predictions import Prediction, truth
from planner.report.validation import (
    LEGEND_ROWS,
    Validation,
    not_predicted,
    shows_groups,
    validation_document,
    validation_sections,
    write_plot,
)
from tests.measured.examples import SKIPPED, failed, group, several
from tests.report.drawing import drawn

LONG = "megatron-deepspeed-bloom"


def validation(*predictions: Prediction, half: str | None = None) -> Validation:
    """These predictions and three skipped rows."""
    return Validation(
        measured="published runs",
        calibration="shipped calibration",
        half=half,
        predictions=predictions,
        skipped=SKIPPED,
        truth=truth(predictions),
    )


def report(found: Validation, width: int = 80, most_worst: int = 5, every_group: bool = False) -> str:
    """The whole report."""
    return drawn(Group(*validation_sections(found, most_worst, every_group)), width)


def test_the_whole_report() -> None:
    """Understood, step times, groups, memory, who was out of it, the worst runs, what is left out."""
    assert report(validation(*several(), half="held-out"), most_worst=2) == (
        "Inputs\n"
        "  measured   published runs: 11 runs of 2 sources, the held-out half\n"
        "  constants  shipped calibration\n"
        "\n"
        "Step time by source (errors and regret in %)\n"
        "                                      90th          in  rank   mean  worst\n"
        "  source             runs mean median pct. bias spread corr. regret regret\n"
        "  ────────────────────────────────────────────────────────────────────────\n"
        "  lab                   7 16.0   10.0 36.4 11.8     71  1.00    5.0   10.0\n"
        "  vtrain-single-node    1  0.0    0.0  0.0  0.0    100     -      -      -\n"
        "  all                   8 14.0   10.0 34.1 10.3     75  1.00    5.0   10.0\n"
        "\n"
        "  error       predicted / measured - 1; bias is the mean signed error\n"
        "  in spread   runs within the estimated error\n"
        "  rank corr.  Spearman, mean over groups of 4 or more runs that differ only in\n"
        "              their plan, weighted by their runs\n"
        "  regret      within a group: measured time of the plan predicted fastest /\n"
        "              fastest measured - 1\n"
        "\n"
        "Step time by group (errors and regret in %)\n"
        "                                             mean       rank\n"
        "  source model    devices length batch runs error bias corr. regret\n"
        "  ─────────────────────────────────────────────────────────────────\n"
        "  lab    gpt-1b         8   2048   256    2  38.6 38.6     -   10.0\n"
        "  lab    llama-7b       8   2048   256    4   8.8  1.3  1.00    0.0\n"
        "  and 2 groups of a single run\n"
        "\n"
        "Memory by source (errors in %)\n"
        "                              90th\n"
        "  source  runs  mean  median  pct.   bias\n"
        "  ───────────────────────────────────────\n"
        "  lab        2  18.5    18.5  18.5  -18.5\n"
        "\n"
        "Out of memory (runs)\n"
        "                                    ran,  out of memory,   false\n"
        "  source              runs  as predicted    as predicted  alarms  missed\n"
        "  ──────────────────────────────────────────────────────────────────────\n"
        "  lab                    9             6               1       1       1\n"
        "  vtrain-single-node     1             1               0       0       0\n"
        "  all                   10             7               1       1       1\n"
        "\n"
        "  false alarms  predicted out of memory, but ran\n"
        "  missed        predicted to fit, but ran out of memory\n"
        "\n"
        "Worst runs\n"
        "                measured  predicted  error\n"
        "  run                (s)        (s)    (%)  doubt\n"
        "  ───────────────────────────────────────────────\n"
        "  lab-gpt-1b-0      1.00       1.50   50.0  -\n"
        "  lab-gpt-1b-1      1.10       1.40   27.3  -\n"
        "\n"
        "Not predicted (4 rows)\n"
        "  rows  first     reason\n"
        "  ───────────────────────────────────────────────────\n"
        "     2  a         context parallelism is not modelled\n"
        "     1  lab-torn  a100 has no fp8\n"
        "     1  c         no step time and no memory\n"
        "\n"
    )


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    """With long names and large errors; numbers stay whole."""
    doubt = "the source states tokens per second, the step time follows from its global batch"
    runs = group(
        (1500.0, 1200.0), (140.0, 90.0), (120.0, 450.0), source=LONG, model=f"{LONG}-176b", doubt=doubt
    )
    text_of = report(validation(*several(), *runs), width)
    assert max(len(line) for line in text_of.splitlines()) <= width
    assert " 275.0" in text_of
    assert "Step time by group" in text_of


def test_many_groups_are_shown_on_request() -> None:
    """Of several sources; the groups of one source always are."""
    lab = [entry for index in range(15) for entry in group((1.0, 1.0), (2.0, 2.0), model=f"m{index}")]
    other = [
        entry for index in range(6) for entry in group((1.0, 1.0), (2.0, 2.0), model=f"m{index}", source="x")
    ]
    both = validation(*lab, *other)
    assert "Step time by group" not in report(both)
    assert "Step time by group" in report(both, every_group=True)
    assert "Step time by group" in report(validation(*lab))
    assert not shows_groups(both.truth)
    assert shows_groups(validation(*lab).truth)


def test_runs_without_a_choice_are_counted() -> None:
    """A plan alone is neither ranked nor chosen."""
    assert "  and 2 groups of a single run\n" in report(validation(*several()))
    assert "Step time by group" not in report(validation(*group((1.0, 1.0))))


def test_a_single_source_has_no_total() -> None:
    """It would repeat the line above it."""
    assert "\n  all " not in report(validation(*group((1.0, 1.1))))
    assert "\n  all " in report(validation(*several()))


def test_nothing_to_compare_is_said() -> None:
    """An empty table, and one in which nothing can be priced."""
    expected = "none of the runs with a measured step time could be predicted"
    assert expected in report(validation())
    assert "0 runs of 0 sources" in report(validation())
    assert expected in report(validation(failed("a", "a100 has no fp8")))


def test_reasons_are_counted() -> None:
    """Most frequent first; rare ones are put together."""
    found = validation(*(failed(str(index), f"reason {index:02}") for index in range(14)), *several())
    assert not_predicted(found)["context parallelism is not modelled"] == 2
    lines = report(found).split("Not predicted (18 rows)\n")[1].splitlines()
    assert lines[2] == "     2  a         context parallelism is not modelled"
    assert lines[-2].split(maxsplit=2)[::2] == ["5", "5 other reasons"]


def test_the_document_has_every_run() -> None:
    """Statistics and predictions with full precision; what is unknown is null."""
    found = json.loads(text(validation_document(validation(*several()), 2)))
    assert found["command"] == "validate"
    assert [entry["source"] for entry in found["sources"]] == ["lab", "vtrain-single-node"]
    assert found["total"]["runs"] == 8
    assert found["worst"] == ["lab-gpt-1b-0", "lab-gpt-1b-1"]
    runs = {entry["id"]: entry for entry in found["runs"]}
    assert runs["lab-gpt-1b-0"]["error"] == pytest.approx(0.5)
    assert runs["lab-out"]["measured_seconds"] is None
    assert (runs["lab-out"]["measured_fits"], runs["lab-out"]["predicted_fits"]) == (False, False)
    assert (runs["lab-torn"]["predicted_seconds"], runs["lab-torn"]["failure"]) == (None, "a100 has no fp8")
    assert len(found["skipped"]) == 3
    assert found["not_predicted"]["a100 has no fp8"] == 1


def test_the_document_without_runs() -> None:
    """The same keys with null."""
    empty, full = (plain(validation_document(of, 5)) for of in (validation(), validation(*several())))
    assert isinstance(empty, dict)
    assert isinstance(full, dict)
    assert set(empty) == set(full)
    assert (empty["total"], empty["total_memory"], empty["runs"]) == (None, None, [])


def names(folder: Path) -> list[str]:
    """Everything in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_the_picture(tmp_path: Path) -> None:
    """A PNG that replaces what was there, and nothing beside it; pyplot is left alone."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "errors.png"
    path.write_text("old")
    write_plot(several(), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert names(tmp_path) == ["errors.png"]
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.slow
def test_a_picture_of_many_sources(tmp_path: Path) -> None:
    """The legend takes as many columns as it needs and leaves the axes their room: matplotlib warns of nothing."""
    pytest.importorskip("matplotlib")
    one = next(entry for entry in several() if entry.error is not None)
    sources = (f"source-{number}" for number in range(2 * LEGEND_ROWS + 1))
    write_plot(
        [replace(one, run=replace(one.run, source=source)) for source in sources], tmp_path / "errors.png"
    )
    assert names(tmp_path) == ["errors.png"]


def test_a_picture_of_nothing(tmp_path: Path) -> None:
    """Empty axes."""
    pytest.importorskip("matplotlib")
    write_plot([], tmp_path / "errors.png")
    assert names(tmp_path) == ["errors.png"]


def test_a_picture_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No library: what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match="--plot needs matplotlib") as caught:
        write_plot(several(), tmp_path / "errors.png")
    assert caught.value.hint == "pip install 'hetplan[plot]'"
    assert names(tmp_path) == []


def test_a_picture_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one stays, nothing half-written stays beside it."""
    pytest.importorskip("matplotlib")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "errors.png"
    path.write_text("old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match=r"errors\.png: cannot be written: No space left"):
        write_plot(several(), path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["errors.png"]
