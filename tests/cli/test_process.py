"""Closed and full streams, readers that leave, and colours: real processes under a real shell."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.cli.process import INTERRUPTED
from planner.plan.file import read
from tests.cli.running import ROOT, Command, Outcome, separately, write_plan
from tests.quick import first

COMMANDS = {
    "help": "--help",
    "version": "--version",
    "check": "check cluster.yaml model.yaml",
    "check-json": "check cluster.yaml --json",
    "schema": "schema cluster",
    "search": "search cluster.yaml model.yaml --target megatron -o found.yaml",
    "predict": "predict cluster.yaml model.yaml short.yaml",
    "compare": "compare plan.yaml plan.yaml",
    "explain": "explain plan.yaml",
    "show": "show plan.yaml",
    "emit": "emit plan.yaml -o run",
    "import": "calibrate import --layers layers.csv -o calibration.yaml",
    "merge": "calibrate merge one.yaml two.yaml -o calibration.yaml",
}
WRITTEN = {
    "search": "found.yaml",
    "emit": "run/README.md",
    "import": "calibration.yaml",
    "merge": "calibration.yaml",
}
LAYERS = "gpu,model,tp,micro_batch,forward_seconds,backward_seconds\nA100,m,1,1,0.1,0.2\n"


SITUATIONS = (
    (">&-", "it is closed"),
    (">/dev/full", "No space left on device"),
    (">&- 2>&-", ""),
    (">/dev/full 2>/dev/full", ""),
)
"""Redirections of the shell, and why the answer is lost where that can still be said."""


@pytest.fixture
def folder(files: Path) -> Path:
    """A file of every kind."""
    write_plan(files / "plan.yaml")
    (files / "layers.csv").write_text(LAYERS)
    for name, batch in (("one", 1), ("two", 2)):
        point = (
            f"gpu: A100, model: m, tp: 1, micro_batch: {batch}, forward_seconds: 0.1, backward_seconds: 0.2"
        )
        (files / f"{name}.yaml").write_text(f"format: hetplan-calibration/1\nlayers: [{{{point}}}]\n")
    return files


def run(command: str, redirection: str, **environment: str) -> Outcome:
    """The command under ``sh``, with these redirections."""
    words = [sys.executable, "-c", "from planner.cli.app import main; main()", *shlex.split(command)]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


QUICK = {"check": (0,), "help": (1, 3), "emit": (2,)}
"""Situations, by their index, in which commands lose their answers in ``make test`` too: one that lays out a report,
one that does not even begin, one that writes a folder; one that writes a file is tried with all streams closed."""


def lost_answers() -> Iterator[object]:
    """Commands with situations; all but a few are slow tests."""
    for name in COMMANDS:
        for number, (redirection, reason) in enumerate(SITUATIONS):
            marks = () if number in QUICK.get(name, ()) else (pytest.mark.slow,)
            yield pytest.param(name, redirection, reason, id=f"{name}{redirection}", marks=marks)


@pytest.mark.parametrize(("name", "redirection", "reason"), list(lost_answers()))
def test_an_answer_that_is_lost_is_one_error(folder: Path, name: str, redirection: str, reason: str) -> None:
    """Standard output closed, full, and with standard error closed too: exit 2, and the file is there."""
    done = run(COMMANDS[name], redirection)
    assert done.code == 2
    assert not {"bug", "Traceback"} & set(done.err.split())
    if reason:
        assert done.err.splitlines()[-1] == f"error: standard output: cannot be written: {reason}"
    if name in WRITTEN:
        assert (folder / WRITTEN[name]).stat().st_size > 0
    if name == "search":
        assert read(folder / "found.yaml").summary is not None


@pytest.mark.parametrize("redirection", ["2>&-", pytest.param("2>/dev/full", marks=pytest.mark.slow)])
def test_standard_error_is_missed_only_where_something_was_said(
    folder: Path, hetplan: Command, redirection: str
) -> None:
    """An answer without a word on standard error is whole; errors keep their code, a lost warning is an error."""
    whole = run("check cluster.yaml", redirection)
    assert whole.code == 0
    assert whole.out == hetplan("check", "cluster.yaml").out
    assert run("nonsense" if redirection == "2>&-" else "check nothing.yaml", redirection).code == 2


@pytest.mark.parametrize("redirection", ["2>&-", pytest.param("2>/dev/full", marks=pytest.mark.slow)])
def test_no_plan_is_no_plan_without_standard_error(folder: Path, redirection: str) -> None:
    """The code that says so is kept."""
    assert run(COMMANDS["search"] + " --target deepspeed --precision fp8", redirection).code == 3


@pytest.mark.slow
def test_a_lost_warning(folder: Path, hetplan: Command) -> None:
    """A merge that has to choose between two measurements says so on standard error."""
    newer = (
        (folder / "two.yaml").read_text().replace("micro_batch: 2", "micro_batch: 1").replace("0.1", "0.9")
    )
    (folder / "one.yaml").write_text((folder / "one.yaml").read_text() + "provenance: {date: 2026-01-01}\n")
    (folder / "two.yaml").write_text(newer + "provenance: {date: 2026-01-02}\n")
    said = hetplan(*shlex.split(COMMANDS["merge"]))
    assert said.code == 0
    assert said.err.startswith("warning: ")
    assert run(COMMANDS["merge"] + " --force", "2>/dev/full").code == 2


def test_files_do_not_take_the_numbers_of_closed_streams(folder: Path) -> None:
    """With all three closed, nothing that is printed ends up in a file that is read or written."""
    texts = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(COMMANDS["search"], "<&- >&- 2>&-").code == 2
    assert read(folder / "found.yaml").summary is not None
    assert all(path.read_bytes() == text for path, text in texts.items())


@pytest.mark.parametrize(
    ("command", "redirection"),
    first(
        2,
        [
            ("check cluster.yaml", ""),
            ("--help", "2>&1"),
            ("check cluster.yaml", "2>&1"),
            ("--help", ""),
            (COMMANDS["search"], ""),
            (COMMANDS["search"], "2>&1"),
        ],
    ),
)
def test_a_reader_that_has_gone(folder: Path, command: str, redirection: str) -> None:
    """A pipe that nobody reads is as closed as any; with ``2>&1`` there is nowhere to say so."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-c", "from planner.cli.app import main; main()", *shlex.split(command)]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(writer)
    told = "" if redirection else "error: standard output: cannot be written: Broken pipe\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.slow
def test_a_reader_that_leaves_after_a_line(folder: Path) -> None:
    """``hetplan ... | head -1``: the line, and no traceback."""
    done = run("show plan.yaml", "| head -1")
    assert len(done.out.splitlines()) == 1
    assert not {"bug", "Traceback"} & set(done.err.split())


FORCING = {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TTY_COMPATIBLE": "1", "COLORTERM": "truecolor"}


def test_colour_only_when_asked(folder: Path, hetplan: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """No escape sequence in a pipe unless it is forced."""
    assert "\033" not in hetplan("check", "cluster.yaml").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\033[1m" in hetplan("check", "cluster.yaml").out


@pytest.mark.parametrize("forced", [*({name: value} for name, value in FORCING.items()), FORCING])
def test_no_color_wins(
    folder: Path, hetplan: Command, monkeypatch: pytest.MonkeyPatch, forced: dict[str, str]
) -> None:
    """No escape sequence with NO_COLOR, whatever forces them, in answers, errors and help."""
    plain = hetplan("check", "cluster.yaml").out
    for name, value in {**forced, "TERM": "xterm-256color", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    done = hetplan("check", "cluster.yaml")
    assert (done.out, done.err) == (plain, "")
    assert "\033" not in hetplan("check", "nothing.yaml").err
    assert "\033" not in hetplan("--help").out


@pytest.mark.slow
def test_no_color_wins_in_a_process_of_its_own(folder: Path, hetplan: Command) -> None:
    """As the shell starts it."""
    environment = {**FORCING, "TERM": "xterm-256color", "NO_COLOR": "1"}
    plain = hetplan("check", "cluster.yaml").out
    done = separately("check", "cluster.yaml", **environment)
    assert (done.out, done.err) == (plain, "")
    assert "\033" not in separately("check", "nothing.yaml", **environment).err
    assert "\033" not in separately("--help", **environment).out


def test_interrupted_while_it_is_imported() -> None:
    """The exit code of any interrupt, and no traceback."""
    program = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from planner.cli.start import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")
