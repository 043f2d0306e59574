"""``compare --log``: a plan next to a run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.plan.file import PlanFile, write
from tests.cli.running import Command
from tests.logs import jobs
from tests.logs.printing import deepspeed_text, example_text, predicted_parts
from tests.report import examples


@pytest.fixture
def run(files: Path) -> dict[str, float]:
    """A plan file and the log of a run that computed at half the predicted speed; its parts."""
    plan = jobs.data_parallel()
    write(PlanFile(plan=plan, cluster=examples.cluster(), model=jobs.MODEL), files / "plan.yaml")
    found = jobs.prediction(plan)
    parts = predicted_parts(found, found.ranks[0], forward=2.0, backward=2.0)
    peaks = {(rank, 0): 2**33 for rank in (0, 1)}
    (files / "node-0.log").write_text(deepspeed_text(parts) + example_text([], peaks))
    return {str(name): seconds for name, seconds in parts.items()}


def test_report(hetplan: Command, run: dict[str, float]) -> None:
    """Step, parts, memory, what to measure, and what to type then."""
    done = hetplan("compare", "plan.yaml", "--log", "node-0.log")
    assert (done.code, done.err) == (0, "")
    assert "  step times  7 step times, 3 warm-up records left out\n" in done.out
    assert "  - the step is beyond the estimate's ±" in done.out
    assert "rank 0, A100" in done.out
    assert "  - peaks of 2 of 4 ranks; add the logs of the other nodes for the rest\n" in done.out
    assert "    hetplan calibrate device --model model.yaml\n" in done.out
    last = done.out.splitlines()[-1]
    assert last == "Next: hetplan compare plan.yaml --log node-0.log --calibration calibration.yaml"


def test_document(hetplan: Command, run: dict[str, float]) -> None:
    """SI units, both numbers of everything, and the findings."""
    done = hetplan("compare", "plan.yaml", "--log", "node-0.log", "--json")
    found = json.loads(done.out)
    assert (done.code, found["command"]) == (0, "compare --log")
    assert found["log"] == {
        "source": "hetplan's example",
        "step_times": 7,
        "warm_up_left_out": 3,
        "only_warm_up": False,
        "spread": 0.0,
    }
    step = found["step_seconds"]
    assert step["observed"] == pytest.approx(sum(run.values()), abs=1e-5)
    assert step["error"] == pytest.approx(step["predicted"] / step["observed"] - 1)
    assert step["within"] is False
    assert {entry["part"] for entry in found["parts"]} == {
        "forward",
        "backward",
        "gradient sync",
        "optimizer",
    }
    assert [entry["peak_bytes"]["observed"] for entry in found["memory"]] == [2**33, 2**33]
    assert found["findings"][0]["cause"] == "compute"


def test_a_calibration_changes_the_prediction(hetplan: Command, run: dict[str, float], files: Path) -> None:
    """Products at a fifth of the peak take longer than at what ships; what was observed stays."""
    known = {name: gpu.model_copy(update={"family": name}) for name, gpu in examples.cluster().gpus.items()}
    cluster = examples.cluster().model_copy(update={"gpus": known})
    write(PlanFile(plan=jobs.data_parallel(), cluster=cluster, model=jobs.MODEL), files / "known.yaml")
    (files / "slow.yaml").write_text(
        "format: hetplan-calibration/1\nfamilies:\n  A100: {matmul_efficiency: 0.2}\n"
    )
    command = ("compare", "known.yaml", "--log", "node-0.log", "--json")
    before = json.loads(hetplan(*command).out)
    after = json.loads(hetplan(*command, "--calibration", "slow.yaml").out)
    assert after["step_seconds"]["predicted"] > 1.5 * before["step_seconds"]["predicted"]
    assert after["step_seconds"]["observed"] == before["step_seconds"]["observed"]


@pytest.mark.parametrize("more", [("plan.yaml",), ("--baselines",)])
def test_a_log_is_of_one_plan(hetplan: Command, run: dict[str, float], more: tuple[str, ...]) -> None:
    """Other plans and baselines are refused."""
    done = hetplan("compare", "plan.yaml", *more, "--log", "node-0.log")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: compare: --log takes one plan and no --baselines\n  hint: ")


def test_bad_logs_are_one_error(hetplan: Command, run: dict[str, float], files: Path) -> None:
    """Missing, empty, of nothing known: exit code 2 and no traceback."""
    (files / "empty.log").write_text("")
    (files / "other.log").write_text("Epoch 1: loss 3.2\n")
    for name, what in (
        ("gone.log", "no such file or directory"),
        ("empty.log", "is empty"),
        ("other.log", "has none of the lines that are known"),
    ):
        done = hetplan("compare", "plan.yaml", "--log", "node-0.log", "--log", name)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {name}: {what}\n")


def test_one_step_is_an_answer_with_a_warning(hetplan: Command, run: dict[str, float], files: Path) -> None:
    """The warm-up is all there is."""
    (files / "short.log").write_text(example_text([3.0]))
    done = hetplan("compare", "plan.yaml", "--log", "short.log")
    assert done.code == 0
    assert "  step times  1 step time, 0 warm-up records left out\n" in done.out
    assert "the log ends within the first 3 steps, which are warm-up" in done.out
    (files / "short.log").write_text(example_text([3.0, 1.0]))
    assert (
        "  step times  1 step time, 1 warm-up record left out\n"
        in hetplan("compare", "plan.yaml", "--log", "short.log").out
    )
