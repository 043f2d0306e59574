"""The trace of a step: its format, its numbers, and the profile of a run beside it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner.calibration.values import ASSUMED
from planner.cli.app import run
from planner.cost.estimate import Estimator
from planner.cost.timeline import step_of
from planner.errors import SpecError
from planner.logs import profiler
from planner.logs.profiler import Profile, read_profile
from planner.plan.placement import ranks
from planner.report import trace as module
from planner.report.trace import Trace, trace_of
from planner.units import GIB
from tests.cli.running import write_plan
from tests.cost.test_timeline import PIPELINE, REPLICAS
from tests.report import examples

NAMED = {
    "required": ["name", "args"],
    "properties": {
        "name": {"enum": ["process_name", "thread_name", "process_sort_index", "thread_sort_index"]}
    },
}
EVENT = {
    "type": "object",
    "required": ["ph", "pid", "tid"],
    "properties": {
        "ph": {"enum": ["X", "M", "C"]},
        "pid": {"type": "integer"},
        "tid": {"type": "integer"},
        "name": {"type": "string"},
        "cat": {"type": "string"},
        "ts": {"type": "number", "minimum": 0},
        "dur": {"type": "number", "minimum": 0},
        "args": {"type": "object"},
    },
    "allOf": [
        {"if": {"properties": {"ph": {"const": "X"}}}, "then": {"required": ["name", "ts", "dur"]}},
        {
            "if": {"properties": {"ph": {"const": "C"}}},
            "then": {
                "required": ["name", "ts", "args"],
                "properties": {"args": {"additionalProperties": {"type": "number"}, "minProperties": 1}},
            },
        },
        {"if": {"properties": {"ph": {"const": "M"}}}, "then": NAMED},
    ],
}
"""What the trace event format asks of the events that hetplan writes."""


def traced(plan: Any, profile: Profile | None = None) -> Trace:
    """The trace of a plan of the example."""
    estimator = Estimator(examples.cluster(), examples.model(), ASSUMED)
    estimate = estimator.estimate(plan)
    return trace_of(plan, examples.cluster(), step_of(plan, estimator), estimate, profile)


@pytest.mark.parametrize("plan", [PIPELINE, REPLICAS], ids=["pipeline", "replicas"])
def test_the_format(plan: Any) -> None:
    """Every event is one of the format, and those of a row do not overlap."""
    document = json.loads(traced(plan).text())
    jsonschema.validate(document["traceEvents"], {"type": "array", "items": EVENT})
    rows = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    for spans in rows.values():
        for (start, length), (following, _) in pairwise(spans):
            assert start + length <= following + 1e-6


@pytest.mark.parametrize("plan", [PIPELINE, REPLICAS], ids=["pipeline", "replicas"])
def test_ranks_are_processes_with_their_step_and_their_memory(plan: Any) -> None:
    """All ranks; the last span ends with the step, and the counter reaches the estimate's peak."""
    events = traced(plan).events
    estimator = Estimator(examples.cluster(), examples.model(), ASSUMED)
    estimate = estimator.estimate(plan)
    names = {event["pid"] for event in events if event["name"] == "process_name"}
    assert names == set(range(plan.devices))
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) == pytest.approx(estimate.step_seconds * 1e6, abs=0.01)
    for rank in ranks(plan, examples.cluster()):
        counters = [event for event in events if event["ph"] == "C" and event["pid"] == rank.rank]
        peak = max(sum(event["args"].values()) for event in counters)
        memory = estimate.stages[rank.stage].groups[rank.group].memory
        assert peak == pytest.approx(memory.used_bytes / GIB, abs=1e-4)
        assert counters[-1]["args"]["activations"] == 0


def test_a_large_plan_shows_one_rank_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says for how many it stands."""
    monkeypatch.setattr(module, "MOST_EVENTS", 100)
    found = traced(REPLICAS)
    assert found.processes == 2
    names = [event["args"]["name"] for event in found.events if event["name"] == "process_name"]
    assert names[0].startswith("rank 0 (and 7 alike): stage 0")


def profile_text(**about: object) -> str:
    """What torch.profiler writes, shortened: two steps on a processor, kernels of the second, names of processes."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "X", "name": "ProfilerStep#3", "pid": 77, "tid": 77, "ts": 1000.0, "dur": 100.0},
        {"ph": "X", "name": "ProfilerStep#4", "pid": 77, "tid": 77, "ts": 1100.0, "dur": 90.0},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1110.5, "dur": 20.0},
        {"ph": "X", "cat": "kernel", "name": "early", "pid": 0, "tid": 7, "ts": 1010.0, "dur": 20.0},
        {"ph": "i", "name": "marker", "pid": "Traces", "tid": "x", "ts": 1120.0, "s": "g"},
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": events, **about})


@pytest.mark.parametrize("packed", [False, True])
def test_a_profile_stands_beside_it(packed: bool, tmp_path: Path) -> None:
    """Its last step, from its begin, in processes of its own."""
    path = tmp_path / "profile.json"
    text = profile_text(distributedInfo={"rank": 2, "world_size": 16}).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    profile = read_profile(path)
    assert (profile.rank, profile.ranks, profile.step) == (2, 16, "ProfilerStep#4")
    events = traced(REPLICAS, profile).events
    assert not any(event["name"] == "early" for event in events)
    gemm = next(event for event in events if event["name"] == "gemm")
    assert gemm["ts"] == 10.5
    assert gemm["pid"] >= REPLICAS.devices
    named = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert "measured on rank 2: python" in named
    assert all(isinstance(event["pid"], int) for event in events)


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    """Counters of a profiler may be infinite; the trace is strict JSON all the same."""
    path = tmp_path / "profile.json"
    path.write_text('{"traceEvents": [{"ph": "i", "ts": 1, "args": {"a": 1e999, "b": NaN, "c": 2.5}}]}')
    content = json.loads(traced(PIPELINE, read_profile(path)).text())
    assert {"a": None, "b": None, "c": 2.5} in [event.get("args") for event in content["traceEvents"]]


def test_a_profile_that_grows_when_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read no further than the largest trace is long."""
    monkeypatch.setattr(profiler, "MOST_BYTES", 1000)
    path = tmp_path / "profile.json"
    for content in (gzip.compress(b" " * 10**6), b" " * 1001):
        path.write_bytes(content)
        with pytest.raises(SpecError, match="is larger than"):
            read_profile(path)


PROFILED = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule

with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=2),
    on_trace_ready=lambda found: found.export_chrome_trace(sys.argv[1]),
) as recorded:
    for _ in range(3):
        torch.ones(64, 64) @ torch.ones(64, 64)
        recorded.step()
"""


@pytest.mark.slow
def test_a_real_profile(tmp_path: Path) -> None:
    """What this version of torch writes can be read."""
    pytest.importorskip("torch")
    path = tmp_path / "profile.json"
    subprocess.run([sys.executable, "-c", PROFILED, str(path)], check=True, capture_output=True)
    found = read_profile(path)
    assert found.step == "ProfilerStep#2"
    assert any(event["name"] == "aten::mm" for event in found.events)
    json.loads(traced(PIPELINE, found).text())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not JSON"),
        (b"\x1f\x8bnot gzip", "is not JSON"),
        (b"[]", "has no list traceEvents"),
        (b'{"traceEvents": []}', "has no events"),
        (b'{"traceEvents": [3]}', "traceEvents[0]: expected an object"),
        (b'{"traceEvents": [{"ph": "Q"}]}', "traceEvents[0]: ph: expected a phase"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1}]}', "traceEvents[0]: dur: expected microseconds, got None"),
        (b'{"traceEvents": [{"ph": "i", "ts": NaN}]}', "traceEvents[0]: ts: expected microseconds, got None"),
        (b'{"traceEvents": [{"ph": "i", "ts": 1, "args": [1]}]}', "traceEvents[0]: args: expected an object"),
        (b'{"traceEvents": [{"ph": "i", "ts": 1%s}]}' % (b"0" * 400), "ts: expected microseconds, got 1000"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1e300}]}', "dur: expected microseconds, got 1e+300"),
        (b'{"traceEvents": [{"ph": "i", "ts": 1, "pid": {}}]}', "pid and tid: expected numbers or names"),
        (profile_text(distributedInfo={"world_size": 24}).encode(), "a trace of a job of 24 ranks"),
        (profile_text(distributedInfo={"rank": 900}).encode(), "the trace of rank 900"),
    ],
)
def test_bad_profiles(content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One error with the file's name, exit code 2, and no trace."""
    plan, log, output = write_plan(tmp_path / "plan.yaml"), tmp_path / "log.json", tmp_path / "step.json"
    log.write_bytes(content)
    assert run(["trace", str(plan), "-o", str(output), "--log", str(log)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {log}: ")
    assert said in told
    assert not output.exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, or the document."""
    plan, output = write_plan(tmp_path / "plan.yaml"), tmp_path / "step.json"
    assert run(["trace", str(plan), "-o", str(output)]) == 0
    assert "all ranks" in " ".join(capsys.readouterr().out.split())
    assert run(["trace", str(plan), "-o", str(output), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["events"] == len(json.loads(output.read_text(encoding="utf-8"))["traceEvents"])
    assert document["processes"] == document["ranks"]
