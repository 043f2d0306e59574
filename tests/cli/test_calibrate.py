"""``hetplan calibrate``, and commands that take a calibration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.calibration import ASSUMED, Calibration, Family
from planner.calibration_file import load_calibration, save_calibration
from planner.calibration_merge import merged
from planner.cli.inputs import read_calibration
from planner.plan_file import UsedCalibration, read
from tests.cli.running import Command
from tests.test_calibration_csv import LAYERS, LINKS

SLOW = Calibration(
    families={name: Family(matmul_efficiency=0.01) for name in ("A100", "V100", "Ampere", "Volta")},
    notes="slow",
)


@pytest.fixture
def tables(files: Path) -> Path:
    """Two tables of measurements and a calibration file."""
    (files / "layers.csv").write_text(LAYERS)
    (files / "links.csv").write_text(LINKS)
    save_calibration(SLOW, files / "slow.yaml")
    return files


def test_tables_become_a_calibration_file(hetplan: Command, tables: Path) -> None:
    """What was written, and how to use it."""
    done = hetplan("calibrate", "import", "--layers", "layers.csv", "--links", "links.csv", "-o", "c.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "Wrote 4 measured points to c.yaml\n"
        "  - layers of opt-350m on A100-SXM-80GB, tp 1: 2 micro-batches\n"
        "  - all-reduce of 8 devices over node:A100-SXM-80GB: 2 sizes\n"
        "\n"
        "Next: hetplan search CLUSTER MODEL --calibration c.yaml\n"
    )
    again = ("calibrate", "import", "--layers", "layers.csv", "-o", "again.yaml", "--json")
    document = json.loads(hetplan(*again).out)
    assert (document["file"], document["layer_points"], document["link_points"]) == ("again.yaml", 2, 0)
    found = load_calibration(tables / "c.yaml")
    assert (len(found.layers), len(found.link_points)) == (2, 2)
    assert found.provenance == {
        "command": "hetplan calibrate import",
        "layers": "layers.csv",
        "links": "links.csv",
    }


def test_a_file_in_use_needs_force(hetplan: Command, tables: Path) -> None:
    """As a launch folder does."""
    done = hetplan("calibrate", "import", "--layers", "layers.csv", "-o", "slow.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: slow.yaml: exists already\n  hint: name another file, or add --force to replace it\n"
    )
    assert load_calibration(tables / "slow.yaml") == SLOW
    assert hetplan("calibrate", "import", "--layers", "layers.csv", "-o", "slow.yaml", "--force").code == 0
    assert load_calibration(tables / "slow.yaml").families == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "error: calibrate import: expected --layers FILE, --links FILE, or both\n"),
        (("--layers", "no.csv"), "error: no.csv: no such file\n"),
        (("--links", "layers.csv"), "error: layers.csv:1: activation_bytes: unknown column\n"),
        (("--layers", "layers.csv", "-o", "."), "error: .: is a directory\n"),
        (("--layers", "layers.csv", "-o", "no/c.yaml"), "error: no/c.yaml: the folder no does not exist\n"),
    ],
)
def test_what_cannot_be_imported(
    hetplan: Command, tables: Path, arguments: tuple[str, ...], message: str
) -> None:
    """Exit 2, nothing written."""
    output = () if "-o" in arguments else ("-o", "c.yaml")
    done = hetplan("calibrate", "import", *arguments, *output)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
    assert not Path("c.yaml").exists()


def test_problems_of_both_tables_come_at_once(hetplan: Command, tables: Path) -> None:
    """With the line of each."""
    (tables / "layers.csv").write_text(LAYERS.replace("0.001", "x"))
    (tables / "links.csv").write_text(LINKS.replace("0.0001", "-1"))
    done = hetplan("calibrate", "import", "--layers", "layers.csv", "--links", "links.csv", "-o", "c.yaml")
    assert "error: layers.csv:2: forward_seconds: " in done.err
    assert "error: links.csv:2: seconds: " in done.err


def test_the_group_alone_shows_its_help(hetplan: Command) -> None:
    """Like the command itself."""
    assert "import" in hetplan("calibrate", "--help").out


def test_the_users_file_wins_over_the_shipped_one(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant by constant."""
    base = Calibration(families={"A100": Family(memory_efficiency=0.9)})
    monkeypatch.setattr("planner.calibration_file.shipped", lambda: base)
    assert read_calibration(None) is base
    found = read_calibration(Path("slow.yaml"))
    assert found == merged(base, SLOW)
    assert found.family("A100") == Family(matmul_efficiency=0.01, memory_efficiency=0.9)


def step_seconds(hetplan: Command, *arguments: str) -> float:
    """The predicted step."""
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "--json", *arguments)
    assert (done.code, done.err) == (0, "")
    return float(json.loads(done.out)["step_seconds"])


def test_predict_takes_a_calibration(hetplan: Command, tables: Path) -> None:
    """Slow devices take longer; the report says where the numbers are from."""
    assert step_seconds(hetplan, "--calibration", "slow.yaml") > 2 * step_seconds(hetplan)
    save_calibration(ASSUMED, tables / "nothing.yaml")
    assert step_seconds(hetplan, "--calibration", "nothing.yaml") == step_seconds(hetplan)


def test_a_calibration_that_cannot_be_used(hetplan: Command, tables: Path) -> None:
    """Exit 2 with file, line and key."""
    Path("bad.yaml").write_text("format: hetplan-calibration/1\nfamilies: {A100: {matmul_efficiency: 7}}\n")
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "--calibration", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: bad.yaml:2: families.A100.matmul_efficiency: expected a number > 0")


def test_plans_remember_their_calibration(hetplan: Command, tables: Path) -> None:
    """In their file; other commands warn when they price without it."""
    options = ("--calibration", "slow.yaml", "--gap", "0.5", "--target", "megatron")
    done = hetplan("search", "cluster.yaml", "model.yaml", "-o", "plan.yaml", *options)
    assert (done.code, done.err) == (0, "")
    used = read(Path("plan.yaml")).calibration
    assert used is not None
    assert used == UsedCalibration(name="slow.yaml", digest=used.digest)
    for command in (("explain",), ("show",), ("compare", "--baselines")):
        without = hetplan(*command, "plan.yaml")
        assert without.err == (
            f"warning: plan.yaml: found with the calibration slow.yaml ({used.digest}), "
            "priced here without it: add --calibration slow.yaml\n"
        )
        assert hetplan(*command, "plan.yaml", "--calibration", "slow.yaml").err == ""
    save_calibration(ASSUMED, tables / "other.yaml")
    assert (
        "priced here with another other.yaml ("
        in hetplan("show", "plan.yaml", "--calibration", "other.yaml").err
    )


def test_show_takes_a_calibration_too(hetplan: Command, tables: Path) -> None:
    """As text only; a broken one is refused as a calibration."""
    done = hetplan("show", "slow.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Calibration slow.yaml\n")
    assert done.out.endswith("Next: hetplan search CLUSTER MODEL --calibration slow.yaml\n")
    assert hetplan("show", "slow.yaml", "--json").code == 2
    (tables / "old.yaml").write_text("format: hetplan-calibration/0\n")
    assert "this hetplan reads hetplan-calibration/1" in hetplan("show", "old.yaml").err
