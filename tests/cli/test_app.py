"""The command as a whole: its surface, its errors, its streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from planner import __version__
from planner.cli.app import app
from planner.cli.process import ANSWER, BAD_INPUT, BUG, INFEASIBLE, INTERRUPTED, MEANINGS, NO_PLAN_IN_TIME
from planner.errors import (
    EmitError,
    HetplanError,
    PlanError,
    SpecError,
    UsageError,
)
from tests.cli.running import Command, separately
from tools import reference

JSON = {"--json"}
MEASURED = {"--calibration"}
TRAINING = {"--precision", "--global-batch", "--sequence-length"}
FAILURES = {"--failures", "--checkpoint-time", "--restart-time", "--storage"}
WHOLE_TRAINING = {"--tokens", "--deadline", "--budget"} | FAILURES
SEARCH = {
    "--allow-backup",
    "--allow-compression",
    "--allow-local-sgd",
    "--allow-quantised-zero",
    "--allow-unequal-shards",
    "--batches",
    "--allow-tensor-grids",
    "--cp",
    "--ep",
    "--etp",
    "--gap",
    "--loss",
    "--max-cost-per-token",
    "--micro-batch",
    "--min-tokens-per-second",
    "--objective",
    "--offload",
    "--pareto",
    "--pp",
    "--processes",
    "--recompute",
    "--target",
    "--time-limit",
    "--top",
    "--tp",
    "--use-at-most",
    "--zero",
}
SURFACE: dict[str, set[str]] = {
    "check": JSON,
    "search": JSON
    | TRAINING
    | MEASURED
    | SEARCH
    | WHOLE_TRAINING
    | {"--output", "-o", "--robust", "--advice", "--write-lp", "--history", "--safe", "--simple"}
    | {"--quiet", "-q", "--verbose", "-v"},
    "predict": JSON | TRAINING | MEASURED | WHOLE_TRAINING | {"--output", "-o", "--plans", "--safe"},
    "compare": JSON | MEASURED | {"--baselines", "--log"},
    "explain": JSON | MEASURED | {"--cluster", "--model"},
    "what-if": JSON
    | MEASURED
    | TRAINING
    | {"--change", "--safe", "--sensitivity", "--target", "--time-limit"},
    "replan": JSON
    | MEASURED
    | FAILURES
    | {
        "--away",
        "--cluster",
        "--force",
        "--model",
        "--output",
        "-o",
        "--prepare",
        "--time-limit",
        "--without",
    },
    "report": JSON
    | MEASURED
    | FAILURES
    | {"--output", "-o", "--compare", "--log", "--tokens", "--deadline", "--budget"}
    | {"--pareto", "--time-limit", "--cluster", "--model"},
    "rent": JSON
    | TRAINING
    | MEASURED
    | WHOLE_TRAINING
    | {"--gap", "--machines", "--objective", "--offers", "--output", "-o", "--provider", "--region"}
    | {"--target", "--time-limit", "--network", "--interruptions", "--safe"},
    "share": JSON
    | MEASURED
    | {"--crossover", "--force", "--gap", "--objective", "--output", "-o", "--target", "--time-limit"},
    "sweep": JSON | MEASURED | {"--backend", "--jobs", "-j", "--output", "-o", "--yes"},
    "init": {"--bandwidth-gbps", "--cards", "--force", "--gpu", "--gpus-per-node", "--intra-node"}
    | {"--model", "--network", "--nodes", "--price"},
    "trace": JSON | MEASURED | {"--output", "-o", "--log", "--cluster", "--model"},
    "show": JSON | MEASURED | {"--cluster", "--model"},
    "emit": JSON
    | {"--output", "-o", "--force", "--launcher", "--cluster", "--model", "--script", "--library"},
    "validate": JSON | MEASURED | {"--measured", "--source", "--half", "--groups", "--worst", "--plot"},
    "probe": {
        "--nvidia-smi",
        "--gpu-list",
        "--topo",
        "--ibstat",
        "--ethtool",
        "--sysfs",
        "--hostfile",
        "--slurm",
    }
    | {"--from", "--commands", "--name", "--output", "-o", "--force"},
    "gpus": JSON,
    "links": JSON,
    "examples": JSON | {"--copy", "--force"},
    "schema": set(),
    "calibrate device": JSON
    | {"--output", "-o", "--model", "--zero", "--tp", "--minutes", "--device", "--name"}
    | {"--largest-micro-batch", "--as-poplar", "--devices", "--memory-gib"}
    | {"--precision", "--sequence-length", "--force"},
    "calibrate network": JSON
    | {"--output", "-o", "--cluster", "--fabric", "--largest-mib", "--minutes", "--device", "--force"}
    | {"--from-nccl-tests", "--link", "--operation", "--members", "--concurrent"},
    "calibrate merge": JSON | {"--output", "-o", "--force"},
    "calibrate run": JSON | {"--log", "--output", "-o", "--calibration", "--force"},
    "calibrate sigma": JSON | {"--log", "--output", "-o", "--calibration", "--force"},
    "calibrate loss": JSON | {"--log", "--batches", "--output", "-o", "--sequence-length", "--force"},
    "calibrate import": JSON | {"--layers", "--links", "--output", "-o", "--force"},
    "calibrate fit": JSON | {"--measured", "--source", "--half", "--output", "-o", "--force"},
}


def commands() -> dict[str, Any]:
    """Commands by name as the program defines them; those of a group as ``calibrate import``."""
    return dict(reference.commands(typer.main.get_command(app)))


def test_commands_and_options_are_frozen() -> None:
    """Changing this set changes what scripts rely on: say so in the changelog."""
    found = {
        name: {option for parameter in command.params for option in parameter.opts if option.startswith("-")}
        for name, command in commands().items()
    }
    assert {name: options - {"--help"} for name, options in found.items()} == SURFACE


def test_exit_codes_are_frozen() -> None:
    """The published codes, and the errors that lead to them."""
    assert list(MEANINGS) == [0, 1, 2, 3, 4, 130]
    errors: list[type[HetplanError]] = [HetplanError, SpecError, UsageError, PlanError, EmitError]
    assert [error.exit_code for error in errors] == [1, 2, 2, 2, 2]
    assert list(MEANINGS) == [ANSWER, BUG, BAD_INPUT, INFEASIBLE, NO_PLAN_IN_TIME, INTERRUPTED]


def test_everything_has_help() -> None:
    """Every command and every parameter says what it is."""
    for command in commands().values():
        assert command.help
        assert all(parameter.help for parameter in command.params if parameter.name != "help")


def test_version(hetplan: Command) -> None:
    """One line on stdout."""
    assert hetplan("--version").out == f"hetplan {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["search"],
        ["search", "a", "b", "--nonsense"],
        ["search", "a", "b", "--gap", "2"],
        ["schema", "x"],
    ],
)
def test_wrong_usage_exits_with_2(hetplan: Command, arguments: list[str]) -> None:
    """Nothing on stdout, the reason on stderr."""
    done = hetplan(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Error" in done.err or "error" in done.err


def broken(*_: object) -> None:
    """A bug."""
    raise ZeroDivisionError("two\nlines")


def test_a_bug_is_one_line(hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback; how to report it."""
    monkeypatch.setattr("planner.cli.inputs.load_cluster", broken)
    done = hetplan("check", "cluster.yaml")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"error: this is a bug in hetplan {__version__}: ZeroDivisionError: two\n"
        "  hint: please report it with your files; HETPLAN_DEBUG=1 shows where it happened\n"
    )


def test_a_bug_shows_its_traceback_on_request(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HETPLAN_DEBUG=1 lets the exception through."""
    monkeypatch.setattr("planner.cli.inputs.load_cluster", broken)
    monkeypatch.setenv("HETPLAN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        hetplan("check", "cluster.yaml")


def test_ctrl_c_outside_a_search(hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """130, without a word."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.cli.inputs.load_cluster", interrupted)
    assert hetplan("check", "cluster.yaml").code == 130


def test_ascii_terminals_get_an_answer(files: Path) -> None:
    """A stream that cannot show a character shows another one."""
    done = separately("check", "cluster.yaml", PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (0, "")
    assert "fast" in done.out
