"""Texts of options."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from planner.cli.options import choices, cores, integers
from planner.cost.estimate import Estimator
from planner.errors import UsageError
from planner.ranges import BATCH, NODE_DEVICES, ZERO
from planner.search.explorer import Explorer
from planner.search.values import Limits
from tests.cli.running import MODEL, Command


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1,2,4", (1, 2, 4)), ("1..4", (1, 2, 3, 4)), ("8, 1..2,2", (1, 2, 8)), ("3..3", (3,)), (None, None)],
)
def test_lists_and_ranges(text: str | None, numbers: tuple[int, ...] | None) -> None:
    """Sorted, each once."""
    assert integers("--tp", text, NODE_DEVICES) == numbers


@pytest.mark.parametrize(
    "text", ["", "x", "1,", "1..", "..4", "4..1", "0", "-1", "1.5", "1..99999999", "1 2"]
)
def test_what_is_not_a_list(text: str) -> None:
    """The option and the text are named."""
    with pytest.raises(UsageError, match="--tp: expected"):
        integers("--tp", text, NODE_DEVICES)


def test_zero_is_a_number_where_it_means_something() -> None:
    """ZeRO stages start at 0."""
    assert integers("--zero", "0,1", ZERO) == (0, 1)


def test_choices_keep_the_order_of_the_program() -> None:
    """However the user orders them."""
    allowed = ("none", "selective", "full")
    assert choices("--recompute", "full,none", allowed) == ("none", "full")
    assert choices("--recompute", None, allowed) is None
    with pytest.raises(UsageError, match="--recompute: expected some of none, selective, full, got 'all'"):
        choices("--recompute", "all", allowed)


def test_numbers_above_what_an_option_knows_are_refused() -> None:
    """There is no ZeRO stage 7."""
    with pytest.raises(UsageError, match="--zero: expected numbers from 0 to 3, got '7'"):
        integers("--zero", "1,7", ZERO)


def test_ranges_rise_and_are_not_endless() -> None:
    """Numbers one by one may come in any order."""
    assert integers("--tp", "4,1..2", BATCH) == (1, 2, 4)
    with pytest.raises(
        UsageError, match=r"--tp: expected a range from the smaller number to the larger, got '4..1'"
    ):
        integers("--tp", "4..1", BATCH)
    with pytest.raises(UsageError, match=r"--tp: expected a range of at most 10000 numbers, got '1..10001'"):
        integers("--tp", "1..10001", BATCH)


@pytest.mark.parametrize("words", ["search c m", "what-if c m", "rent m", "replan p", "report p -o r"])
def test_a_time_limit_is_a_number(hetplan: Command, files: Path, words: str) -> None:
    """And nan is none."""
    result = hetplan(*words.split(), "--time-limit", "nan")
    assert result.code == 2
    assert re.fullmatch(
        r"error: --time-limit: expected (inf, or )?a number from 0 to 1e\+09, got nan\n", result.err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("search c m --global-batch 0", "--global-batch: expected a whole number from 1 to 1000000, got 0"),
        ("search c m --top -1", "--top: expected a whole number from 1 to 1000000000, got -1"),
        ("search c m --gap 2", "--gap: expected a number from 0 to 1, got 2"),
        ("rent m --tokens 1B --machines 0", "--machines: expected a whole number from 1 to 100000, got 0"),
        (
            "sweep g -o r.csv -j 0",
            "--jobs: expected a number from 1, or -1 for one search on each core, got 0",
        ),
        ("validate --worst -3", "--worst: expected a whole number from 0 to 1000000000, got -3"),
    ],
)
def test_a_number_out_of_range_is_told_with_its_range(hetplan: Command, words: str, message: str) -> None:
    """In one line, whatever version of typer reads the words."""
    result = hetplan(*words.split())
    assert (result.code, result.out, result.err) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize(
    "words", ["report plan.yaml -o page.html", "trace plan.yaml -o step.json", "explain plan.yaml"]
)
def test_a_plan_is_held_against_its_files(hetplan: Command, files: Path, words: str) -> None:
    """Nothing is written about a plan whose files have changed since; what differs is told."""
    hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "-o", "plan.yaml")
    same = (*words.split(), "--cluster", "cluster.yaml", "--model", "model.yaml")
    assert hetplan(*same).code == 0
    Path("model.yaml").write_text(MODEL.replace("layers: ", "layers: 1"))
    for page in ("page.html", "step.json"):
        Path(page).unlink(missing_ok=True)
    done = hetplan(*same)
    assert (done.code, done.out) == (2, "")
    assert "plan.yaml: made for another model than model.yaml: " in done.err
    assert "layers" in done.err
    assert not Path("page.html").exists()
    assert not Path("step.json").exists()


@pytest.mark.parametrize(("own", "processes"), [({3}, 1), ({0, 2}, 2), (set(range(64)), 8)])
def test_as_many_processes_as_cores(own: set[int], processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process, not of the machine: a container may have fewer. And no more than memory is sure to allow."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: own, raising=False)
    assert cores() == processes


@pytest.mark.parametrize(("counted", "processes"), [(4, 4), (None, 1)])
def test_cores_of_the_machine(counted: int | None, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not say which are the process's own."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert cores() == processes


@pytest.mark.parametrize(("option", "processes"), [((), 5), (("--processes", "3"), 3)])
def test_processes_of_a_search(
    option: tuple[str, ...], processes: int, hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those asked for, or one for each core."""
    seen: list[int] = []
    begin = Explorer.__init__

    def noted(self: Explorer, estimator: Estimator, limits: Limits, *others: Any, **more: Any) -> None:
        seen.append(limits.processes)
        begin(self, estimator, limits, *others, **more)

    monkeypatch.setattr(Explorer, "__init__", noted)
    monkeypatch.setattr("planner.cli.search.cores", lambda: 5)
    outcome = hetplan("search", files / "cluster.yaml", files / "model.yaml", "--target", "megatron", *option)
    assert outcome.code == 0
    assert seen[0] == processes


def test_no_processes(hetplan: Command, files: Path) -> None:
    """A search needs one."""
    outcome = hetplan("search", files / "cluster.yaml", files / "model.yaml", "--processes", "0")
    assert outcome.code == 2
    assert outcome.err == "error: --processes: expected a whole number from 1 to 256, got 0\n"


@pytest.mark.parametrize(
    "words",
    [
        "search cluster.yaml model.yaml -o cluster.yaml",
        "search cluster.yaml model.yaml -o link.yaml",
        "search cluster.yaml model.yaml -o new.yaml --write-lp ./new.yaml",
        "predict cluster.yaml model.yaml plan.yaml -o plan.yaml",
        "report plan.yaml --compare other.yaml -o other.yaml",
        "trace plan.yaml -o ../{folder}/plan.yaml",
    ],
)
def test_no_output_replaces_another_file_of_its_command(hetplan: Command, files: Path, words: str) -> None:
    """Whatever the way to it; nothing is written."""
    for name in ("plan.yaml", "other.yaml"):
        (files / name).write_text("tp: 1\n")
    (files / "link.yaml").symlink_to("cluster.yaml")
    before = {path: path.read_text() for path in files.iterdir()}
    done = hetplan(*words.format(folder=files.name).split())
    assert done.code == 2
    assert "-o: expected a file that the command does not read or write otherwise" in done.err
    assert {path: path.read_text() for path in files.iterdir()} == before


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_the_folder_of_emit_is_no_file(hetplan: Command, files: Path, more: tuple[str, ...]) -> None:
    """Forced or not, and the plan stays."""
    words = ("search", "cluster.yaml", "model.yaml", "--target", "deepspeed", "-o", "plan.yaml")
    assert hetplan(*words).code == 0
    before = (files / "plan.yaml").read_text()
    done = hetplan("emit", "plan.yaml", "-o", "plan.yaml", *more)
    assert (done.code, done.err) == (2, "error: plan.yaml: is a file, expected a folder\n")
    assert (files / "plan.yaml").read_text() == before


def test_devices_are_no_files_that_could_be_lost(hetplan: Command, files: Path) -> None:
    """Nothing is kept of what goes there."""
    assert (
        hetplan(
            "search", "cluster.yaml", "model.yaml", "--pp", "2", "-o", "/dev/null", "--write-lp", "/dev/null"
        ).code
        == 0
    )
