"""``hetplan calibrate run``: a run of a pipeline becomes a constant of its runtime."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from planner.calibration.file import load_calibration
from planner.cost.estimate import estimate
from planner.plan.file import PlanFile, write
from tests.cli.running import Command
from tests.logs import jobs
from tests.logs.printing import example_text
from tests.report import examples


@pytest.fixture
def predicted(files: Path) -> float:
    """A plan file of a pipeline; its predicted seconds."""
    plan = jobs.pipeline()
    write(PlanFile(plan=plan, cluster=examples.cluster(), model=jobs.MODEL), files / "plan.yaml")
    (files / "own.yaml").write_text(
        "format: hetplan-calibration/1\nfamilies:\n  A100: {kernel_seconds: 1.0e-5}\n"
    )
    return jobs.prediction(plan).estimate.step_seconds


def test_the_prediction_meets_the_run(hetplan: Command, predicted: float, files: Path) -> None:
    """With the calibration that is written, and the constants that it was made from kept."""
    (files / "node-0.log").write_text(example_text([1.3 * predicted] * 12))
    done = hetplan(
        "calibrate", "run", "plan.yaml", "--log", "node-0.log", "--calibration", "own.yaml", "-o", "new.yaml"
    )
    assert (done.code, done.err) == (0, "")
    assert "the host overhead of megatron per micro-batch of a stage equals " in done.out
    assert done.out.endswith("Next: hetplan search CLUSTER MODEL --calibration new.yaml\n")
    found = load_calibration(files / "new.yaml")
    assert found.family("A100").kernel_seconds == 1e-5
    [constant] = [item for item in found.constants if item.name.endswith("micro_batch_launches")]
    assert constant.provenance == "measured"
    assert found.sources[constant.source]["command"].startswith("hetplan")
    again = hetplan("compare", "plan.yaml", "--log", "node-0.log", "--calibration", "new.yaml", "--json")
    assert json.loads(again.out)["step_seconds"]["error"] == pytest.approx(0.0, abs=1e-4)


def test_document(hetplan: Command, predicted: float, files: Path) -> None:
    """Both times and the constant."""
    (files / "node-0.log").write_text(example_text([0.5 * predicted] * 12))
    done = hetplan("calibrate", "run", "plan.yaml", "--log", "node-0.log", "--json")
    found = json.loads(done.out)
    assert (done.code, found["command"], found["file"]) == (0, "calibrate run", "calibration.yaml")
    assert found["micro_batch_launches"] == 0.0
    assert found["observed_seconds"] == pytest.approx(0.5 * predicted, rel=1e-3)


def test_one_stage_of_unmeasured_layers_is_refused(hetplan: Command, files: Path) -> None:
    """With what to run instead; nothing is written."""
    write(
        PlanFile(plan=jobs.data_parallel(), cluster=examples.cluster(), model=jobs.MODEL), files / "flat.yaml"
    )
    (files / "node-0.log").write_text(example_text([1.0] * 12))
    done = hetplan("calibrate", "run", "flat.yaml", "--log", "node-0.log")
    assert done.code == 2
    assert "no layer of llama-7b was measured on A100" in done.err
    assert "Traceback" not in done.err
    assert not (files / "calibration.yaml").exists()


def test_one_stage_shows_what_layers_take_in_training(hetplan: Command, files: Path) -> None:
    """Over what they took alone, in the file and in words."""
    write(
        PlanFile(plan=jobs.data_parallel(), cluster=examples.cluster(), model=jobs.MODEL), files / "flat.yaml"
    )
    gpus = sorted({each.gpu for each in jobs.data_parallel().stages[0].replicas})
    layers = [
        f"- {{gpu: {gpu}, model: {jobs.MODEL.name}, tp: 1, micro_batch: 1, forward_seconds: 0.02, "
        "backward_seconds: 0.04}"
        for gpu in gpus
    ]
    (files / "own.yaml").write_text("\n".join(["format: hetplan-calibration/1", "layers:", *layers]))
    with_layers = ("--calibration", "own.yaml")
    plan, spec = jobs.data_parallel(), examples.cluster()
    seconds = 1.2 * estimate(plan, spec, jobs.MODEL, load_calibration(files / "own.yaml")).step_seconds
    (files / "node-0.log").write_text(example_text([seconds] * 12))
    done = hetplan("calibrate", "run", "flat.yaml", "--log", "node-0.log", *with_layers, "-o", "new.yaml")
    assert (done.code, done.err) == (0, "")
    assert " times as long in deepspeed as measured alone" in " ".join(done.out.split())
    found = estimate(plan, spec, jobs.MODEL, load_calibration(files / "new.yaml")).step_seconds
    assert found == pytest.approx(seconds, rel=0.005)


def test_what_compare_says_can_be_typed(hetplan: Command, predicted: float, files: Path) -> None:
    """The fit to the log, by the names of plan and log, into the calibration file that measuring has left."""
    (files / "my log.txt").write_text(example_text([4 * predicted] * 12))
    said = hetplan("compare", "plan.yaml", "--log", "my log.txt").out
    command = next(line for line in said.replace("\\\n", "").splitlines() if "calibrate run" in line)
    (files / "own.yaml").rename(files / "calibration.yaml")
    words = shlex.split(command)
    assert words[:4] == ["hetplan", "calibrate", "run", "plan.yaml"]
    done = hetplan(*words[1:])
    assert (done.code, done.err) == (0, "")
    found = load_calibration(files / "calibration.yaml")
    assert found.family("A100").kernel_seconds == 1e-5
    assert any(item.name.endswith("micro_batch_launches") for item in found.constants)
