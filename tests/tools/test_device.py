"""The device benchmark on this processor, in small; its whole set is slow."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from planner import catalog
from planner.measured.table import load_table
from tests.worlds import model

torch = pytest.importorskip("torch")

from planner.measure.backend import Backend, open_backend  # noqa: E402
from tests.measure.conftest import quick  # noqa: E402
from tools.benchmarks.device import __main__ as program  # noqa: E402
from tools.benchmarks.device import measuring  # noqa: E402
from tools.benchmarks.device.cases import Series, series_of  # noqa: E402
from tools.benchmarks.device.comparison import Line, lines, show  # noqa: E402
from tools.benchmarks.device.measuring import Clock, find_limits, predicted_limits, train_all  # noqa: E402
from tools.benchmarks.device.results import Results  # noqa: E402
from tools.benchmarks.training import Configuration, Trained  # noqa: E402

__all__ = ["quick"]

SPEC = model(8, hidden=64, head_dim=16, ffn=256, precision="fp32", dropout=False)
TINY = (
    Series(
        model=SPEC,
        largest=4,
        shapes=((1, 1, "none"), (4, 1, "none"), (2, 2, "none"), (4, 1, "full")),
        limits=("none",),
    ),
)
NOW = Trained(step_seconds=0.5, spread=0.01, peak_bytes=2e9, reserved_bytes=3e9)


@pytest.fixture
def cpu() -> Iterator[Backend]:
    """The processor."""
    threads = torch.get_num_threads()
    yield program.opened("cpu")
    torch.set_num_threads(threads)


def results_in(folder: Path, backend: Backend) -> Results:
    """The folder's results, as the program opens them."""
    found = Results(folder, backend.name, backend.facts)
    found.load()
    return found


@pytest.mark.usefixtures("quick")
def test_one_command_measures_predicts_and_writes(tmp_path: Path, cpu: Backend) -> None:
    """Every configuration is a row that can be loaded from its folder, with a prediction of the right size."""
    results = results_in(tmp_path, cpu)
    assert program.run(cpu, TINY, results, 60.0)
    table = load_table(results.rows)
    assert (len(table.runs), table.skipped) == (4, ())
    found = lines(results)
    for line in found:
        assert line.prediction.error is not None
        assert line.prediction.memory_error is not None
        assert abs(line.prediction.error) < 3
        assert abs(line.prediction.memory_error) < 0.5
    console = Console(width=150, record=True, file=io.StringIO())
    show(results, [("tiny", 11, 12)], console)
    text = console.export_text()
    assert all(line.prediction.run.id.removeprefix(f"{cpu.name}-") in text for line in found)
    assert "largest micro-batch of tiny: 11 trains, 12 predicted" in text
    again = results_in(tmp_path, cpu)
    assert again.runs == results.runs


@pytest.mark.usefixtures("quick")
def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the third configuration keeps two; the next run measures the other two."""
    asked: list[Configuration] = []

    def trained(backend: Backend, configuration: Configuration) -> Trained:
        asked.append(configuration)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return NOW

    monkeypatch.setattr(measuring, "train", trained)
    clock = Clock(deadline=time.monotonic() + 60)
    with pytest.raises(KeyboardInterrupt):
        train_all(cpu, TINY, results_in(tmp_path, cpu), clock, lambda what: None)
    assert len(results_in(tmp_path, cpu).runs) == 2
    assert train_all(cpu, TINY, results_in(tmp_path, cpu), clock, lambda what: None)
    assert len(asked) == 5
    assert len(results_in(tmp_path, cpu).runs) == 4


def test_the_time_limit_ends_it(tmp_path: Path, cpu: Backend) -> None:
    """Nothing is begun after it."""
    over = Clock(deadline=time.monotonic() - 1)
    results = results_in(tmp_path, cpu)
    assert not train_all(cpu, TINY, results, over, lambda what: None)
    assert not find_limits(replace(cpu, kind="cuda"), TINY, results, over, lambda what: None)
    assert results.runs == {}


def test_another_device_needs_another_folder(tmp_path: Path, cpu: Backend) -> None:
    """Runs of two devices, or of two versions of torch, are not mixed."""
    Results(tmp_path, cpu.name, cpu.facts).write()
    with pytest.raises(SystemExit, match="name another folder"):
        results_in(tmp_path, replace(cpu, facts={**cpu.facts, "torch": "1.0"}))


def test_runs_of_a_catalogue_device_need_no_cluster_file(tmp_path: Path) -> None:
    """Row by row: out of memory is one that does not fit, and the peak is that of tensors."""
    gpu = catalog.gpu_names()[0]
    results = Results(tmp_path, gpu, {"torch": "2.13"})
    spec = SPEC.model_copy(update={"training": SPEC.training.model_copy(update={"precision": "bf16"})})
    results.add(Configuration(model=spec, micro_batch=4), NOW)
    results.add(Configuration(model=spec, micro_batch=8), None)
    fitting, large = load_table(results.rows).runs
    assert (fitting.step_seconds, fitting.peak_memory_bytes, fitting.fits) == (0.5, 2e9, True)
    assert fitting.peak_memory_of == "tensors"
    assert (large.step_seconds, large.peak_memory_bytes, large.fits) == (None, None, False)
    chunked = spec.training.model_copy(update={"cross_entropy": "chunked"})
    assert fitting.model == spec.model_copy(update={"training": chunked})
    assert fitting.plan.target == "torch"
    assert (fitting.cluster.pools[0].devices, fitting.plan.stages[0].replicas[0].accumulation_steps) == (
        (gpu,),
        2,
    )


@pytest.mark.usefixtures("quick")
def test_limits_are_searched_for_and_predicted(
    tmp_path: Path, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a device that holds 11 sequences; the prediction is for the memory of this host."""
    monkeypatch.setattr(measuring, "train", lambda backend, configuration: NOW)
    results = results_in(tmp_path, cpu)
    assert program.run(cpu, TINY, results, 60.0)
    monkeypatch.setattr(measuring, "fits", lambda backend, asked: asked.micro_batch <= 11)
    clock = Clock(deadline=time.monotonic() + 60)
    assert find_limits(replace(cpu, kind="cuda"), TINY, results, clock, lambda what: None)
    assert list(results.limits.values()) == [11]
    ((name, measured, predicted),) = predicted_limits(TINY, results)
    assert (name, measured) == ("tiny fp32, none", 11)
    assert predicted == measuring.MOST_MICRO_BATCH
    assert json.loads((tmp_path / "runs.json").read_text())["limits"] == results.limits


def test_enough_configurations_of_both_kinds() -> None:
    """Issue: 12 or more, GPT and Llama, every recomputation; each is one row."""
    for kind in ("cuda", "cpu"):
        asked = [one for item in series_of(kind, "full") for one in item.configurations()]
        assert len(asked) >= 12
        assert {one.recompute for one in asked} == {"none", "selective", "full"}
        assert {one.model.gated_mlp for one in asked} == {True, False}
        assert all(one.micro_batch * one.micro_batches == one.model.training.global_batch for one in asked)
        few = [one for item in series_of(kind, "small") for one in item.configurations()]
        assert 4 <= len(few) < len(asked)


def test_settings_that_move_the_peaks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expandable segments and their like."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(SystemExit, match="unset it"):
        program.main(["--device", "cpu", "-o", str(tmp_path)])


@pytest.mark.slow
def test_the_whole_set_on_this_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the user starts it; docs/calibration.md has the errors on a quiet processor."""
    program.main(["--device", "cpu", "-o", str(tmp_path), "--minutes", "10"])
    assert "within the goal" in capsys.readouterr().out
    found: list[Line] = lines(results_in(tmp_path, program.opened("cpu")))
    assert len(found) >= 12
    errors = sorted(abs(line.prediction.error or 0.0) for line in found)
    assert errors[len(errors) // 2] < 0.5
    for line in found:
        (group,) = line.prediction.run.plan.stages[0].replicas
        # Steps of one micro-batch have no sums of earlier ones, which are counted.
        most = 0.15 if group.accumulation_steps > 1 else 0.4
        assert -0.03 < (line.prediction.memory_error or -1.0) < most, line.prediction.run.id


def test_the_calibrated_backend_is_the_usual_one_but_its_clock(cpu: Backend) -> None:
    """The name under which points are kept is the same."""
    assert replace(cpu, clock=time.perf_counter, facts={}) == replace(open_backend("cpu"), facts={})


def test_no_time_for_a_calibration_is_said(
    tmp_path: Path, cpu: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs without the peaks of an unknown device are kept; only the predictions are missing."""
    results_in(tmp_path, cpu).add(Configuration(model=SPEC, micro_batch=4), NOW)
    program.main(["--device", "cpu", "-o", str(tmp_path), "--minutes", "1e-9"])
    said = capsys.readouterr().out
    assert "no predictions" in said
    assert "the same command goes on" in said
