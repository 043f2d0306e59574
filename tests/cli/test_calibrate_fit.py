"""``hetplan calibrate fit``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from planner.calibration.file import load_calibration, shipped
from planner.measured.priors import catalogue_families, priors
from tests.cli.running import Command

COLUMNS = (
    "id,source,doubt,gpu,intra_node,model,layers,hidden,heads,vocab,"
    "sequence_length,global_batch,tp,dp,step_seconds\n"
)
SHAPES = (
    (16, 1536, 2, 4, 0.9),
    (16, 1536, 4, 2, 1.9),
    (24, 2048, 2, 4, 1.4),
    (24, 2048, 8, 1, 5.8),
    (24, 2560, 4, 2, 2.8),
    (32, 2560, 8, 1, 7.7),
)


def rows(*shapes: tuple[int, int, int, int, float], source: str = "lab", doubt: str = "") -> str:
    """Runs of 8 A100, in which a line is layers, width, tp, dp and seconds."""
    return "".join(
        f"{source}-{index},{source},{doubt},A100-SXM-80GB,nvlink3,gpt-{hidden}-{layers},{layers},{hidden},16,51200,"
        f"1024,64,{tp},{dp},{seconds}\n"
        for index, (layers, hidden, tp, dp, seconds) in enumerate(shapes)
    )


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    """Own runs in ``runs.csv``, which take the place of the published ones too."""
    guessed = rows((24, 2048, 2, 4, 999.0), source="home", doubt="micro-batch 1 assumed")
    Path("runs.csv").write_text(COLUMNS + rows(*SHAPES) + guessed)
    Path("two.csv").write_text(COLUMNS + rows(*SHAPES[:2]))
    monkeypatch.setattr("planner.cli.validate.PUBLISHED", files / "runs.csv")


def test_own_runs_become_a_calibration_file(hetplan: Command) -> None:
    """Which loads, says how it was made, and adjusts the shipped constants; doubtful runs count little and say nothing
    of the error bar."""
    before = set(Path().iterdir())
    done = hetplan("calibrate", "fit", "--measured", "runs.csv", "-o", "own.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Constants, fitted to 7 runs, wrote own.yaml\n")
    assert "  families.A100.matmul_efficiency " in done.out
    assert "Errors of the fitted runs" in done.out
    assert done.out.endswith("Next: hetplan validate --measured runs.csv --calibration own.yaml\n")
    assert max(len(line) for line in done.out.splitlines()) <= 80
    assert set(Path().iterdir()) - before == {Path("own.yaml")}
    found = load_calibration(Path("own.yaml"))
    assert found.provenance == {"command": "hetplan calibrate fit --measured runs.csv", "runs": "7"}
    assert found.families["A100"] != shipped().family("A100")
    assert found.families["V100"] == shipped().family("V100")
    names = [item.name for item in found.constants]
    assert len(names) == len(set(names))
    assert (
        abs(found.families["A100"].matmul_efficiency / shipped().family("A100").matmul_efficiency - 1) < 0.2
    )
    assert ("A100", "megatron", 6) in {(item.family, item.framework, item.rows) for item in found.residuals}


def test_what_own_runs_say_nothing_of_stays_as_it_was(hetplan: Command) -> None:
    """It is not printed, and keeps its provenance: what published runs tell is not assumed after a few own ones."""
    done = hetplan("calibrate", "fit", "--measured", "runs.csv", "-o", "own.yaml")
    assert "V100" not in done.out
    assert len(done.out.splitlines()) < 60
    before = {item.name: item for item in shipped().constants}
    now = {item.name: item for item in load_calibration(Path("own.yaml")).constants}
    name = "families.A100.matmul_efficiency"
    row = next(line for line in done.out.splitlines() if name in line)
    assert row.split()[1:3] == [f"{each[name].value:.3f}" for each in (before, now)]
    same = sum(before.get(each) == item for each, item in now.items())
    assert f"the runs say nothing of {same} other constants" in done.out
    assert [
        each for each, item in now.items() if item.provenance == "assumed" != before[each].provenance
    ] == []


def test_a_fit_makes_the_predictions_better(hetplan: Command) -> None:
    """Of the runs that it was made from."""
    assert hetplan("calibrate", "fit", "--measured", "runs.csv", "-o", "own.yaml").code == 0

    def error(*options: str) -> float:
        found = hetplan("validate", "--measured", "runs.csv", "--source", "lab", "--json", *options).out
        return float(json.loads(found)["total"]["mean_error"])

    assert error("--calibration", "own.yaml") < error()


def test_the_document(hetplan: Command) -> None:
    """The same constants as in the file; nothing else on stdout."""
    done = hetplan("calibrate", "fit", "--measured", "runs.csv", "-o", "own.yaml", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["command"], found["file"], found["runs"]) == ("calibrate fit", "own.yaml", 7)
    assert [entry["source"] for entry in found["sources"]] == ["home", "lab"]
    written = {item.name: item.value for item in load_calibration(Path("own.yaml")).constants}
    assert {entry["name"]: entry["value"] for entry in found["constants"]} == written


def test_nothing_is_written_without_an_output(hetplan: Command) -> None:
    """The report says how to keep the constants; the document names no file."""
    before = set(Path().iterdir())
    done = hetplan("calibrate", "fit", "--measured", "runs.csv")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Constants, fitted to 7 runs\n")
    assert done.out.endswith("Next: add -o calibration.yaml to keep them\n")
    assert json.loads(hetplan("calibrate", "fit", "--measured", "runs.csv", "--json").out)["file"] is None
    assert set(Path().iterdir()) == before


def test_published_runs_start_from_nothing(hetplan: Command) -> None:
    """The shipped constants were fitted to them; all others are what is known without runs."""
    found = json.loads(hetplan("calibrate", "fit", "--json", "--source", "lab").out)["constants"]
    told = [entry for entry in found if entry["provenance"] == "fitted"]
    assert told
    assert {entry["name"].split(".")[1] for entry in told} <= {"A100", "megatron"}
    before = {item.name: item.value for item in priors(catalogue_families()).constants}
    untouched = {
        entry["name"]: entry["value"]
        for entry in found
        if entry["name"].split(".")[1] not in ("A100", "megatron") and not entry["name"].endswith("_bytes")
    }
    assert len(untouched) > 100
    assert untouched == pytest.approx({name: before[name] for name in untouched})


def test_a_half_alone(hetplan: Command) -> None:
    """The command that made the file names it and the source."""
    options = ("--source", "lab", "--half", "fitted", "--measured", "runs.csv")
    done = hetplan("calibrate", "fit", *options, "-o", "own.yaml")
    assert (done.code, done.err) == (0, "")
    assert "fitted to 3 runs" in done.out
    command = load_calibration(Path("own.yaml")).provenance["command"]
    assert command == "hetplan calibrate fit --measured runs.csv --source lab --half fitted"


def test_a_file_in_use_needs_force(hetplan: Command) -> None:
    """Said before the work; what is there stays, also when a fit with --force fails."""
    Path("own.yaml").write_text("mine\n")
    done = hetplan("calibrate", "fit", "--measured", "missing.csv", "-o", "own.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: own.yaml: exists already\n  hint: name another file, or add --force to replace it\n"
    )
    assert hetplan("calibrate", "fit", "--measured", "two.csv", "-o", "own.yaml", "--force").code == 2
    assert Path("own.yaml").read_text() == "mine\n"
    assert hetplan("calibrate", "fit", "--measured", "runs.csv", "-o", "own.yaml", "--force").code == 0
    assert load_calibration(Path("own.yaml")).families


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--measured", "missing.csv"), "missing.csv: no such file"),
        (("--measured", "broken.csv"), "broken.csv:2: gpu: "),
        (("--measured", "two.csv"), "2 of 2 runs can be fitted to, expected at least 3"),
        (("--source", "hom"), "--source: the measured runs have no source 'hom'"),
        (("--source", "home"), "1 of 1 runs can be fitted to, expected at least 3"),
        (("--half", "better"), "--half: expected fitted or held-out, got 'better'"),
        (("-o", "."), ".: is a directory"),
        (("-o", "no/c.yaml"), "no/c.yaml: the folder no does not exist"),
    ],
)
def test_what_cannot_be_fitted(hetplan: Command, options: tuple[str, ...], message: str) -> None:
    """One line and exit 2; nothing is written, whole or half."""
    Path("broken.csv").write_text(COLUMNS + rows(*SHAPES).replace("A100-SXM-80GB", "A1000", 1))
    before = set(Path().iterdir())
    done = hetplan("calibrate", "fit", *options, *(() if "-o" in options else ("-o", "own.yaml")))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}")
    assert done.err.count("error: ") == 1
    assert set(Path().iterdir()) == before


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_progress_on_a_terminal(hetplan: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, and stdout is the same."""
    quiet = hetplan("calibrate", "fit", "--measured", "runs.csv").out
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert hetplan("calibrate", "fit", "--measured", "runs.csv").out == quiet
    assert "fitting" in stream.getvalue()


def test_peaks_that_are_far_off_are_told_and_those_in_another_unit_refused(hetplan: Command) -> None:
    """Gigabytes in place of bytes would widen the bar of memory beyond use."""
    head = COLUMNS.replace("step_seconds", "step_seconds,peak_memory_bytes,peak_memory_of")
    lines = rows(*SHAPES).splitlines()
    refused = "error: peaks of memory that no run can have: lab-0 ("
    for peak, code, said in (
        ("1.4e10", 0, None),
        ("5e8", 0, "peaks off by more than 3 error bars after the fit: lab-0 (predicted "),
        ("22", 2, f"{refused}22 bytes, predicted "),
        ("1e11", 2, f"{refused}1e+11 bytes of 8.59e+10)\n  hint: peak_memory_bytes is in bytes"),
    ):
        own = [f"{line},," for line in lines[1:]] + [f"{lines[0]},{peak},device"]
        Path("peaks.csv").write_text(head + "\n".join(own) + "\n")
        done = hetplan("calibrate", "fit", "--measured", "peaks.csv")
        assert done.code == code
        assert said in done.err if said else not done.err
