"""``hetplan calibrate sigma``: the spread of a run's steps becomes that of its devices."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from planner.calibration.file import load_calibration
from planner.plan.file import PlanFile, write
from planner.plan.values import Plan
from tests.cli.running import Command
from tests.logs.printing import example_text
from tests.worlds import GPUS, cluster, gpt, group, plan, pool

MODEL = gpt(8, precision="bf16", global_batch=64)
HERE = cluster(
    pool("a", "A100", 2),
    pool("v", "V100", 1),
    gpus={"A100": GPUS["A100"].model_copy(update={"family": "A100"})},
)
SIGMA = 0.05


def replicas(pool_name: str, gpu: str, count: int) -> Plan:
    return plan("torch", 0, [8], [(group(pool_name, gpu, count=count, share=64 // count, steps=4),)])


def steps(number: int, devices: int, seconds: float = 1.0) -> list[float]:
    """Steps of devices that vary, all of which wait for the slowest."""
    draw = random.Random(4)
    return [seconds * max(1 + SIGMA * draw.gauss(0, 1) for _ in range(devices)) for _ in range(number)]


@pytest.fixture
def run(files: Path) -> Path:
    """A plan of 16 devices and the log of 2,000 of its steps."""
    write(PlanFile(plan=replicas("a", "A100", 16), cluster=HERE, model=MODEL), files / "plan.yaml")
    log = example_text([1.0, 1.0, 1.0, *steps(2000, 16)])
    (files / "node-0.log").write_text(log)
    return files


def test_sigma_is_found_again(hetplan: Command, run: Path) -> None:
    """That of one device, by the spread of the largest of 16; later searches count it, and say so."""
    done = hetplan("calibrate", "sigma", "plan.yaml", "--log", "node-0.log", "-o", "new.yaml", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["family"], found["devices"], found["steps"]) == ("A100", 16, 2000)
    assert found["sigma"] == pytest.approx(SIGMA, rel=0.15)
    assert load_calibration(run / "new.yaml").family("A100").sigma == found["sigma"]
    words = ("explain", "plan.yaml", "--json")
    before, after = (json.loads(hetplan(*words, *more).out) for more in ((), ("--calibration", "new.yaml")))
    assert before["breakdown"]["straggler_seconds"] == 0.0 < after["breakdown"]["straggler_seconds"]
    shown = hetplan("calibrate", "sigma", "plan.yaml", "--log", "node-0.log", "-o", "x.yaml")
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "How much step times vary" in shown.out


def test_what_tells_nothing(hetplan: Command, run: Path) -> None:
    """Too few steps, devices of several families, devices of none: one error each, nothing is written."""
    (run / "short.log").write_text(example_text([1.0] * 12))
    done = hetplan("calibrate", "sigma", "plan.yaml", "--log", "short.log", "-o", "new.yaml")
    assert done.code == 2
    assert "too few" in done.err
    both = plan(
        "torch", 0, [8], [(group("a", "A100", share=60, steps=4), group("v", "V100", share=4, steps=4))]
    )
    write(
        PlanFile(
            plan=both,
            cluster=HERE,
            model=MODEL.model_copy(
                update={"training": MODEL.training.model_copy(update={"precision": "fp16"})}
            ),
        ),
        run / "both.yaml",
    )
    (run / "both.log").write_text(example_text([1.0] * 40))
    done = hetplan("calibrate", "sigma", "both.yaml", "--log", "both.log", "-o", "new.yaml")
    assert done.code == 2
    assert "famil" in done.err
    assert not (run / "new.yaml").exists()


def test_logs_without_single_steps(hetplan: Command, run: Path) -> None:
    """Whole seconds of a bar vary as they round, and means of ten steps less than steps: neither tells a sigma."""
    steps = [
        f"\r{n}/100 [{int(n * 33.6) // 60:02d}:{int(n * 33.6) % 60:02d}<09:59, 33.61s/it]"
        for n in range(1, 101)
    ]
    (run / "bar.log").write_text("".join(steps) + "\n{'loss': 2.5, 'grad_norm': 1.2, 'epoch': 0.5}\n")
    lines = [
        f"step: {n}  loss: 2.5  grad_norm: 1.9  memory: 60.1GiB(75%)  tps: {3900 + n % 7}"
        for n in range(10, 400, 10)
    ]
    (run / "titan.log").write_text("\n".join(lines) + "\n")
    for name, who in (("bar.log", "Hugging Face's Trainer"), ("titan.log", "torchtitan")):
        done = hetplan("calibrate", "sigma", "plan.yaml", "--log", name, "-o", "new.yaml")
        assert done.code == 2
        assert f"{name}: the log of {who} has means over several steps" in done.err
    assert not (run / "new.yaml").exists()
