"""Absurd numbers and hostile texts, from files and from options, at the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Command, write_plan
from tools.ranges_table import OPTIONS

HOSTILE = r'"\e[31mred\nerror: forged \u202e \u2028 [bold]x[/bold]"'
SHOWN = r"\x1b[31mred\nerror: forged \u202e \u2028 [bold]x[/bold]"


def changed(path: Path, old: str, new: str) -> None:
    """Put one thing into the place of another."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def in_one_line(text: str) -> str:
    """A report without its line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "change", "where"),
    [
        ("short.yaml", ("dp: 2", "dp: 2147483647"), "dp: expected a whole number from 1 to 1000000, got 21"),
        ("short.yaml", ("pp: 2", f"pp: {10**30}"), "pp: expected a whole number from 1 to 1000, got 1000"),
        ("model.yaml", ("layers: 6", f"layers: {10**30}"), "layers: expected a whole number from 1 to 10000"),
        ("cluster.yaml", ("name: tiny", "name: tiny\nreserve_gib: 1e300"), "reserve_gib: expected a number"),
        ("cluster.yaml", ("nodes: 1", "nodes: 200000"), "nodes: expected a whole number from 1 to 100000"),
        ("cluster.yaml", ("bandwidth_gbps: 100", "bandwidth_gbps: 5e-324"), "bandwidth_gbps: expected a"),
    ],
)
def test_absurd_numbers_are_one_clear_error(
    hetplan: Command, files: Path, name: str, change: tuple[str, str], where: str
) -> None:
    """File, line and key, and what was expected; nothing is tried with them."""
    changed(files / name, *change)
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml")
    assert (done.code, done.out) == (2, "")
    assert where in done.err.splitlines()[0]
    assert done.err.startswith(f"error: {name}:")


def test_a_cluster_is_not_larger_than_its_parts_may_be(hetplan: Command, files: Path) -> None:
    """Each pool is in its range, all of them together are not."""
    changed(files / "cluster.yaml", "nodes: 1", "nodes: 60000")
    changed(files / "cluster.yaml", "nodes: 1\n", "nodes: 60000\n")
    done = hetplan("check", "cluster.yaml")
    assert done.code == 2
    assert "pools[1]: expected at most 100000 nodes up to this pool, got 120000" in done.err


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_numbers_of_options_have_ranges(hetplan: Command, files: Path, option: str) -> None:
    """Ten times too much, nan, and more digits than can be read are refused; no limit on time is one."""
    allowed = OPTIONS[option]
    words = ("search", "cluster.yaml", "model.yaml", "--time-limit", "0")
    endless = [] if option == "--time-limit" else ["9" * 5000]
    for bad in (f"{10 * allowed.most:.0f}", "nan", *endless):
        done = hetplan(*words, option, bad)
        assert (done.code, done.out) == (2, ""), bad
        assert option in done.err


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (("fabric: ib", "fabric: nope"), 'nics[0].fabric: the fabric "nope" is not defined under fabrics'),
        (("gpu: A100", "gpu: A10"), ""),
    ],
)
def test_plan_files_pass_the_checks_of_cluster_files(
    hetplan: Command, tmp_path: Path, change: tuple[str, str], where: str
) -> None:
    """In the same words, with the line in the plan file."""
    path = write_plan(tmp_path / "plan.yaml")
    text = path.read_text(encoding="utf-8")
    fabric = "fabric: " + text.partition("fabric: ")[2].partition(",")[0]
    changed(path, fabric if change[0].startswith("fabric") else change[0], change[1])
    done = hetplan("emit", path, "-o", tmp_path / "run")
    assert (done.code, done.out) == (2, "")
    assert where in done.err
    assert done.err.startswith(f"error: {path}:")
    assert not (tmp_path / "run").exists()


def test_notes_are_shown_and_not_obeyed(hetplan: Command, files: Path) -> None:
    """In the report; the document has them as they are, with the escapes of JSON."""
    (files / "c.yaml").write_text(f"format: hetplan-calibration/1\nnotes: {HOSTILE}\n")
    done = hetplan("show", "c.yaml")
    assert done.code == 0
    assert SHOWN in in_one_line(done.out)
    document = hetplan("show", "c.yaml", "--json").out
    assert document.isascii()
    assert json.loads(document)["command"] == "show calibration"


def test_what_a_plan_file_remembers_is_shown_and_not_obeyed(hetplan: Command, tmp_path: Path) -> None:
    """Its advice, and the calibration that it was found with."""
    path = write_plan(tmp_path / "plan.yaml")
    changed(path, "advice: []", f"advice: [{HOSTILE}]")
    assert SHOWN in in_one_line(hetplan("explain", path).out)
    changed(path, "\ndigests:", f"\ncalibration: {{name: {HOSTILE}, digest: {HOSTILE}}}\ndigests:")
    for command in ("show", "explain"):
        done = hetplan(command, path)
        assert done.code == 0
        assert done.err.startswith(f"warning: {path}: found with the calibration {SHOWN} ({SHOWN})")
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("place", ["gpu: A100-SXM-40GB", "nodes: 1", "fabric: ib", "name: tiny"])
def test_a_value_forges_no_error(hetplan: Command, files: Path, place: str) -> None:
    """Every line of stderr is an error or its hint, and quotes the value in plain sight."""
    changed(files / "cluster.yaml", place, f"{place.partition(' ')[0]} {HOSTILE}")
    done = hetplan("check", "cluster.yaml")
    assert done.code == 2
    assert all(line.startswith(("error: cluster.yaml:", "  hint: ")) for line in done.err.splitlines())
    assert done.err.replace("\n", "").isprintable()


def test_keys_and_file_names_are_shown_and_not_obeyed(hetplan: Command, files: Path) -> None:
    """A name of a file can hold a newline too."""
    odd = files / "a\x1b[31m\nerror: forged.yaml"
    odd.write_text(f"{HOSTILE}: 1\n")
    done = hetplan("check", odd)
    assert done.code == 2
    assert all(line.startswith(f"error: {files}/a\\x1b[31m\\nerror: ") for line in done.err.splitlines()[:1])
    assert done.err.replace("\n", "").isprintable()
    assert not any(line.startswith("error: forged") for line in done.err.splitlines())


@pytest.mark.parametrize(
    "words", [["--\x1b[31mred"], ["\x1b[31mred"], ["check"], ["check", "a", "b", "\u202ec"]]
)
def test_words_that_typer_refuses_are_shown_and_not_obeyed(hetplan: Command, words: list[str]) -> None:
    """With the usage, and exit code 2."""
    done = hetplan(*words)
    assert done.code == 2
    assert "Usage: hetplan" in done.err
    assert done.err.replace("\n", "").isprintable()
