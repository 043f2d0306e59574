"""``hetplan calibrate device``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.merge import share_formats
from planner.calibration.values import Calibration, KernelPoint
from tests.cli.running import Command
from tests.measure.conftest import quick as quick

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("quick")

TINY = """\
name: tiny-gpt
layers: 2
hidden: 64
heads: 4
vocab: 100
training: {sequence_length: 32, global_batch: 8, precision: fp32, dropout: false}
"""
MEASURE = ("calibrate", "device", "--device", "cpu", "-o", "c.yaml")


@pytest.fixture
def model(files: Path) -> Path:
    """A model file, and the current directory."""
    (files / "tiny.yaml").write_text(TINY)
    return files


def test_what_was_measured_prices_plans_at_once(hetplan: Command, model: Path) -> None:
    """The printed lines go into a cluster file, the file to --calibration; a second run goes on."""
    arguments = (*MEASURE, "--model", "tiny.yaml", "--largest-micro-batch", "4")
    done = hetplan(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["layer_points"] == 3
    assert document["limits"] == [{"tp": 1, "micro_batch": 4, "out_of_memory": None}]
    found = load_calibration(model / "c.yaml")
    assert found.provenance["torch"] == torch.__version__
    assert [*share_formats(found, "fp32").values()] == [{"fp32"}]
    assert found.provenance["model.tiny-gpt"].startswith("hidden 64, heads 4/4, ffn 256, sequence 32, fp32")

    declared = yaml.safe_load("\n".join(document["declaration"]))
    pool = {"name": "here", "gpu": document["gpu"], "nodes": 1, "gpus_per_node": 2, "intra_node": "pcie4"}
    (model / "cluster.yaml").write_text(yaml.safe_dump({"name": "c", **declared, "pools": [pool]}))
    (model / "plan.yaml").write_text(
        "target: torch\nstages: [{layers: 2, replicas: [{pool: here, count: 2}]}]\n"
    )
    search = ("search", "cluster.yaml", "tiny.yaml", "--json", "--target", "torch")
    with_curves = json.loads(hetplan(*search, "--calibration", "c.yaml").out)
    without = json.loads(hetplan(*search).out)
    assert with_curves["step_seconds"] != without["step_seconds"]

    again = hetplan(*arguments)
    assert (again.code, again.err) == (0, "")
    assert again.out.endswith("Next: hetplan search CLUSTER tiny.yaml --calibration c.yaml\n")
    assert load_calibration(model / "c.yaml").layers == found.layers


def test_the_time_budget_and_ctrl_c_keep_the_points(
    hetplan: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first exits with 0, the second as Ctrl-C does."""
    done = hetplan(*MEASURE, "--minutes", "1e-9")
    assert done.code == 0
    assert "stopped by --minutes" in done.out
    from planner.measure.layers import LayerBench

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LayerBench, "measure", interrupt)
    done = hetplan(*MEASURE, "--model", "tiny.yaml")
    assert done.code == 130
    assert "stopped by Ctrl-C" in done.out
    assert load_calibration(model / "c.yaml").kernel_points


def test_a_file_of_other_versions_is_said(hetplan: Command, model: Path) -> None:
    """And goes on."""
    from planner.measure.backend import open_backend

    point = KernelPoint(
        gpu=open_backend("cpu").name,
        kernel="floor",
        precision="fp32",
        shape="64",
        flops=0.0,
        moved_bytes=0.0,
        seconds=1e-6,
    )
    before = Calibration(kernel_points=(point,), provenance={"torch": "1.0"})
    save_calibration(before, model / "c.yaml")
    done = hetplan(*MEASURE, "--minutes", "1e-9")
    assert done.code == 0
    assert done.err.startswith("warning: c.yaml: was measured with torch 1.0, now ")
    found = load_calibration(model / "c.yaml")
    assert found.sources[found.kernel_points[0].source] == {"torch": "1.0"}
    assert hetplan(*MEASURE, "--minutes", "1e-9", "--force").err == ""


def test_a_half_written_file_is_refused(hetplan: Command, model: Path) -> None:
    """It is not replaced."""
    text = "format: hetplan-calibration/1\nlayers:\n- {gpu: A100, mod"
    (model / "c.yaml").write_text(text)
    done = hetplan(*MEASURE)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: c.yaml:4: not YAML")
    assert (model / "c.yaml").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--minutes", "0"), "--minutes: expected a number above 0 and at most 1000000000, got 0"),
        (("--zero", "4"), "--zero: expected numbers from 0 to 3, got '4'"),
        (("--tp", "x"), "--tp: expected whole numbers such as 1,2,4 or 1..4, got 'x'"),
        (("--device", "tpu"), "--device: expected some of cuda, cpu, got 'tpu'"),
        (("--precision", "bf16"), "--precision and --sequence-length: expected --model FILE with them"),
        (("--model", "none.yaml"), "none.yaml: no such file"),
        (("--model", "tiny.yaml", "--tp", "3"), "--tp 3: heads 4 of tiny-gpt cannot be divided by 3"),
    ],
)
def test_bad_options(hetplan: Command, model: Path, arguments: tuple[str, ...], message: str) -> None:
    """One line, exit code 2."""
    done = hetplan(*MEASURE, *arguments)
    assert done.code == 2
    assert done.err.splitlines()[0] == f"error: {message}"


def test_one_sequence_that_does_not_fit(
    hetplan: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be planned from it; the kernels are kept."""
    from planner.measure.layers import LayerBench

    def refuse(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(LayerBench, "measure", refuse)
    done = hetplan(*MEASURE, "--model", "tiny.yaml")
    assert (done.code, done.out) == (2, "")
    first, hint = done.err.splitlines()
    assert first.startswith("error: tiny-gpt: out of memory at micro-batch 1, tp 1, on ")
    assert hint == "  hint: measure with a larger --tp or a shorter --sequence-length, or free the device"
    assert load_calibration(model / "c.yaml").kernel_points


def test_a_device_with_other_work(hetplan: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with a warning: the load where it can be seen, repeats that differ too much."""
    from planner.measure import backend, samples

    monkeypatch.setattr(backend, "sample", lambda seconds: samples.Sample(min(seconds), 0.4))
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 1.0, 1.0))
    done = hetplan(*MEASURE, "--json")
    assert (done.code, done.err) == (0, "")
    load, busy = json.loads(done.out)["warnings"]
    assert load.startswith("the machine is busy (load 1000.0 on ")
    assert busy.startswith("repeats vary by more than 10 %, as on a busy device: ")
    assert busy.endswith("; --force measures again")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(hetplan: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not replaced by the processor in silence."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for command in ("device", "network"):
        done = hetplan("calibrate", command, "--device", "cuda")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: --device cuda: torch sees no GPU\n  hint: ")


def test_without_torch(hetplan: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra to install."""
    monkeypatch.setattr("planner.cli.calibrate.find_spec", lambda name: None)
    for command in (MEASURE, ("calibrate", "network", "-o", "c.yaml")):
        done = hetplan(*command)
        assert (done.code, done.out) == (2, "")
        assert done.err == "error: torch is not installed\n  hint: pip install 'hetplan[torch]'\n"
    assert "torch" in sys.modules


@pytest.mark.slow
def test_poplars_profiling_is_read_back(hetplan: Command, model: Path) -> None:
    """Its layers price plans; each ZeRO stage has its own limit."""
    arguments = (*MEASURE, "--model", "tiny.yaml", "--as-poplar", "--memory-gib", "0.004", "--devices", "4")
    done = hetplan(*arguments, "--largest-micro-batch", "16", "--zero", "0,3", "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["command"] == "calibrate device --as-poplar"
    assert [stage["zero"] for stage in document["stages"]] == [0, 3]
    first, last = (stage["micro_batch"] for stage in document["stages"])
    assert 0 < first < last
    assert document["measurements"] == sum(len(stage["points"]) for stage in document["stages"])
    found = load_calibration(model / "c.yaml")
    sizes = {point["micro_batch"] for stage in document["stages"] for point in stage["points"]}
    assert {point.micro_batch for point in found.layers} == sizes
    (model / "cluster.yaml").write_text(
        "name: c\ngpus:\n  here: {memory_gib: 8, memory_bandwidth_gBps: 20, tflops: {fp32: 1}}\n"
        "pools:\n  - {name: a, gpu: here, nodes: 1, gpus_per_node: 2, intra_node: pcie4}\n"
    )
    measured = hetplan(
        "calibrate",
        "device",
        "--device",
        "cpu",
        "-o",
        "n.yaml",
        "--name",
        "here",
        "--model",
        "tiny.yaml",
        "--as-poplar",
        "--zero",
        "0",
        "--largest-micro-batch",
        "2",
    )
    assert (measured.code, measured.err) == (0, "")
    assert "Profiled here as Poplar does" in measured.out
    search = ("search", "cluster.yaml", "tiny.yaml", "--json", "--target", "torch")
    with_curves = json.loads(hetplan(*search, "--calibration", "n.yaml").out)
    assert with_curves["step_seconds"] != json.loads(hetplan(*search).out)["step_seconds"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--as-poplar",), "expected --model FILE with it"),
        (("--memory-gib", "1", "--model", "tiny.yaml"), "--memory-gib: expected a number"),
        (("--as-poplar", "--memory-gib", "0", "--model", "tiny.yaml"), "--memory-gib: expected a number"),
        (
            ("--as-poplar", "--memory-gib", "0.001", "--model", "tiny.yaml", "--devices", "1"),
            "out of memory at micro-batch 1",
        ),
    ],
)
def test_what_cannot_be_profiled_is_said(
    hetplan: Command, model: Path, words: tuple[str, ...], message: str
) -> None:
    """In one line."""
    done = hetplan(*MEASURE, *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
