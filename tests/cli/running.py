"""The command in this process or in its own, and small files to run it on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planner.calibration.file import shipped
from planner.cli.app import run
from planner.cli.inputs import read_priced
from planner.plan.file import PlanFile, Summary, write
from tests.report import examples

ROOT = Path(__file__).parents[2]

CLUSTER = """\
name: tiny
pools:
  - name: fast
    gpu: A100-SXM-40GB
    nodes: 1
    gpus_per_node: 2
    intra_node: nvlink3
    nics: [{fabric: ib, bandwidth_gbps: 100}]
  - name: slow
    gpu: V100-SXM-16GB
    nodes: 1
    gpus_per_node: 2
    intra_node: nvlink2
    nics: [{fabric: ib, bandwidth_gbps: 100}]
fabrics:
  ib: {kind: infiniband}
"""
MODEL = """\
name: small
layers: 6
hidden: 512
heads: 8
vocab: 1000
training:
  sequence_length: 512
  global_batch: 16
  precision: fp16
"""
SHORT_PLAN = """\
target: megatron
tp: 1
pp: 2
dp: 2
micro_batch: 1
zero: 0
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


class Command:
    """Runs the command in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object) -> Outcome:
        """Run with these arguments."""
        self._capture.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        return Outcome(code, out, err)


def asked_once(
    patch: pytest.MonkeyPatch, owner: object, name: str, by: Callable[..., object] = lambda *_, **__: None
) -> None:
    """Have a search answer once: another form of its answer, such as ``--json``, needs no second search.

    ``by`` tells apart by its arguments what are different questions.
    """
    search = getattr(owner, name)
    answers: dict[object, Any] = {}

    def remembered(*arguments: object, **options: object) -> Any:
        question = by(*arguments, **options)
        if question not in answers:
            answer = search(*arguments, **options)
            answers[question] = list(answer) if isinstance(answer, Iterator) else answer
        return answers[question]

    patch.setattr(owner, name, remembered)


def separately(*arguments: object, **environment: str) -> Outcome:
    """Run in a process of its own, without a terminal."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from planner.cli.app import main; main()",
            *(str(each) for each in arguments),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT), **environment},
        check=False,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def write_plan(path: Path, first_layers: int = 24, **training: object) -> Path:
    """A plan file of the example."""
    model = examples.model(**training)
    scored = examples.scored(first_layers)
    bare = PlanFile(plan=scored.plan, cluster=examples.cluster(), model=model)
    write(bare, path)
    _, priced = read_priced(path, shipped())
    summary = Summary(
        status="optimal",
        step_seconds=priced.estimate.step_seconds,
        bound_seconds=27.0,
        gap=0.008,
        tokens_per_second=scored.estimate.tokens_per_second,
    )
    write(replace(bare, summary=summary), path)
    return path


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process of its own needed."""

    code: int
    cpu_seconds: float
    peak_bytes: int
    err: str


PEAK = """
import atexit
def tell():
    with open("/proc/self/status") as status, open({path!r}, "w") as told:
        told.write(next(line for line in status if line.startswith("VmHWM:")))
atexit.register(tell)
"""
"""Has a process write down its largest memory: what the system tells counts that of its parent before exec too."""


def measured(code: str, *arguments: object) -> Spent:
    """Run Python code, answers thrown away; its processor time and its largest memory."""
    with tempfile.TemporaryFile() as errors, tempfile.NamedTemporaryFile("r") as peak:
        child = subprocess.Popen(
            [sys.executable, "-c", PEAK.format(path=peak.name) + code, *(str(each) for each in arguments)],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)},
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        text = errors.read().decode()
        kib = int(peak.read().split()[1])
    return Spent(child.returncode, usage.ru_utime + usage.ru_stime, kib * 1024, text)


def measured_hetplan(*arguments: object) -> Spent:
    """The same of the command."""
    return measured("from planner.cli.app import main; main()", *arguments)
