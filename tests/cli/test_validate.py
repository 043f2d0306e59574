"""``hetplan validate``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.running import Command

COLUMNS = (
    "id,source,inexpressible,gpu,intra_node,model,layers,hidden,heads,vocab,"
    "sequence_length,global_batch,tp,dp,step_seconds\n"
)
RUNS = f"""\
{COLUMNS}\
a,lab,,A100-SXM-80GB,nvlink3,gpt-1b,24,2048,16,51200,1024,64,2,4,3.0
b,lab,,A100-SXM-80GB,nvlink3,gpt-1b,24,2048,16,51200,1024,64,4,2,4.0
c,home,,A100-SXM-80GB,nvlink3,gpt-2b,24,2560,20,51200,1024,64,4,2,5.0
d,tpu,not a GPU,,,,,,,,,,,,
"""


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    """Three own runs in ``runs.csv``, which take the place of the published ones too."""
    Path("runs.csv").write_text(RUNS)
    monkeypatch.setattr("planner.cli.validate.PUBLISHED", files / "runs.csv")


def test_the_report(hetplan: Command) -> None:
    """Sections in their order on stdout, nothing on stderr."""
    done = hetplan("validate", "--measured", "runs.csv")
    assert (done.code, done.err) == (0, "")
    order = (
        "Inputs",
        "Step time by source",
        "Step time by group",
        "Out of memory",
        "Worst runs",
        "Not pre",
    )
    assert sorted(order, key=done.out.index) == list(order)
    assert "  measured   runs.csv: 3 runs of 2 sources\n" in done.out
    assert "  constants  shipped calibration\n" in done.out
    assert "     1  d      not a GPU\n" in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_the_published_runs_by_default(hetplan: Command) -> None:
    """No file needs to be named."""
    assert "  measured   published runs: 3 runs" in hetplan("validate").out


def test_the_document(hetplan: Command) -> None:
    """Every run with both step times."""
    done = hetplan("validate", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [entry["measured_seconds"] for entry in found["runs"]] == [3.0, 4.0, 5.0]
    assert all(entry["predicted_seconds"] > 0 for entry in found["runs"])
    assert len(found["worst"]) == 3
    assert json.loads(hetplan("validate", "--json", "--worst", "1").out)["worst"] == found["worst"][:1]


def test_a_calibration_changes_the_predictions(hetplan: Command) -> None:
    """It is used, and named."""
    shipped = json.loads(hetplan("validate", "--json").out)
    assert shipped["calibration"] == "shipped calibration"
    text = "format: hetplan-calibration/1\nstacks:\n  megatron: {runtime_bytes: 9.0e+9}\n"
    Path("large.yaml").write_text(text)
    large = json.loads(hetplan("validate", "--json", "--calibration", "large.yaml").out)
    assert large["calibration"] == "large.yaml, then the shipped calibration"
    assert large["runs"][0]["predicted_bytes"] > shipped["runs"][0]["predicted_bytes"]


def test_only_some_sources(hetplan: Command) -> None:
    """Runs and skipped rows of others are left out."""
    found = json.loads(hetplan("validate", "--json", "--source", "home", "--source", "tpu").out)
    assert [entry["id"] for entry in found["runs"]] == ["c"]
    assert len(found["skipped"]) == 1
    assert json.loads(hetplan("validate", "--json", "--source", "lab").out)["skipped"] == []


def test_an_unknown_source_names_the_known_ones(hetplan: Command) -> None:
    """Those of skipped rows are known too."""
    done = hetplan("validate", "--source", "lab", "--source", "hom")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: --source: the measured runs have no source 'hom'\n  hint: they have home, lab, tpu\n"
    )


def test_the_halves(hetplan: Command) -> None:
    """Together they are the whole; the one run of ``home`` is fitted."""
    halves = [
        json.loads(hetplan("validate", "--json", "--half", name).out) for name in ("fitted", "held-out")
    ]
    fitted, held_out = ({entry["id"] for entry in half["runs"]} for half in halves)
    assert fitted | held_out == {"a", "b", "c"}
    assert "c" in fitted - held_out
    assert len(held_out) == 1
    assert "1 run of 1 source, the held-out half\n" in hetplan("validate", "--half", "held-out").out
    done = hetplan("validate", "--half", "better")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: --half: expected fitted or held-out, got 'better'\n"


@pytest.mark.slow
def test_the_picture(hetplan: Command, files: Path) -> None:
    """Beside the report."""
    pytest.importorskip("matplotlib")
    before = {path.name for path in files.iterdir()}
    done = hetplan("validate", "--plot", "errors.png")
    assert (done.code, done.err) == (0, "")
    assert "Step time by source" in done.out
    assert {path.name for path in files.iterdir()} - before == {"errors.png"}
    assert Path("errors.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("errors.pdf", "--plot: expected a file that ends in .png, got 'errors.pdf'"),
        ("nowhere/errors.png", "nowhere/errors.png: the folder nowhere does not exist"),
    ],
)
def test_pictures_that_are_refused_before_the_work(hetplan: Command, path: str, reason: str) -> None:
    """Not after it."""
    done = hetplan("validate", "--plot", path, "--measured", "missing.csv")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {reason}\n")


def test_a_picture_without_matplotlib(hetplan: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = hetplan("validate", "--plot", "errors.png")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: --plot needs matplotlib\n  hint: pip install 'hetplan[plot]'\n"


@pytest.mark.parametrize("options", [("--measured", "missing.csv"), ("--calibration", "missing.yaml")])
def test_files_that_are_missing(hetplan: Command, options: tuple[str, str]) -> None:
    """One line."""
    done = hetplan("validate", *options)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {options[1]}: ")
    assert done.err.count("error: ") == 1


def test_a_broken_table(hetplan: Command) -> None:
    """File, line and column."""
    Path("broken.csv").write_text(RUNS.replace("A100-SXM-80GB", "A1000", 1))
    done = hetplan("validate", "--measured", "broken.csv")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: broken.csv:2: gpu: ")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_a_bar_on_a_terminal(hetplan: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, and stdout is the same."""
    quiet = hetplan("validate").out
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert hetplan("validate").out == quiet
    assert "predicting" in stream.getvalue()


def test_how_to_see_groups_that_are_not_shown(hetplan: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source whose plans are chosen worst comes next; --groups shows all."""
    monkeypatch.setattr("planner.report.validation.FEW_GROUPS", 0)
    assert "Next: the same with --source lab for its groups\n" in hetplan("validate").out
    done = hetplan("validate", "--groups")
    assert "Step time by group" in done.out
    assert "Next: " not in done.out
