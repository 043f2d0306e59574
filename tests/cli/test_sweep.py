"""``hetplan sweep``."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cli.sweep import _appending, _called
from planner.errors import OutputError
from planner.search.objectives.choose import choose
from planner.search.sweep import SweepPoint, SweepRow, solved
from planner.search.values import SearchResult
from tests.cli.running import ROOT, Command

GRID = """\
clusters: [cluster.yaml]
models: [model.yaml]
time_limit: 10
options:
  target: [deepspeed, megatron]
  global_batch: [16, 24]
"""
WORDS = ("sweep", "grid.yaml", "-o", "results.csv")


@pytest.fixture
def grid(files: Path) -> Path:
    """The small files, with a grid."""
    (files / "grid.yaml").write_text(GRID)
    return files


def rows() -> list[dict[str, str]]:
    """Of the result."""
    with Path("results.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_point(hetplan: Command, grid: Path) -> None:
    """In the order of the grid, as a search with these options says."""
    done = hetplan(*WORDS, "-j", "1")
    assert (done.code, done.err) == (0, "")
    found = rows()
    assert [(row["target"], row["global_batch"]) for row in found] == [
        ("deepspeed", "16"),
        ("deepspeed", "24"),
        ("megatron", "16"),
        ("megatron", "24"),
    ]
    alone = hetplan(
        "search", "cluster.yaml", "model.yaml", "--target", "megatron", "--global-batch", "24", "--json"
    )
    assert float(found[3]["step_seconds"]) == pytest.approx(json.loads(alone.out)["step_seconds"], rel=0.01)


def test_files_of_the_same_content_have_rows_of_their_own(hetplan: Command, grid: Path) -> None:
    """With their names, though searched once; so have files that were renamed since."""
    one = GRID.replace("[16, 24]", "[16]").replace("[deepspeed, megatron]", "[megatron]")
    (grid / "copy.yaml").write_text((grid / "cluster.yaml").read_text())
    (grid / "grid.yaml").write_text(one.replace("[cluster.yaml]", "[cluster.yaml, copy.yaml]"))
    done = hetplan(*WORDS, "-j", "1")
    assert (done.code, done.err) == (0, "")
    assert "2 points, 1 searched in" in done.out
    assert [row["cluster"] for row in rows()] == ["cluster.yaml", "copy.yaml"]
    assert rows()[0]["step_seconds"] == rows()[1]["step_seconds"]
    (grid / "model.yaml").rename(grid / "other.yaml")
    (grid / "grid.yaml").write_text(one.replace("[model.yaml]", "[other.yaml]"))
    again = hetplan(*WORDS, "-j", "1")
    assert "1 point, 0 searched" in again.out
    assert "1 kept from before" in again.out
    assert [row["model"] for row in rows()] == ["other.yaml"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/a.yaml", "a"),
        ("hub/Llama-3.1-8B/config.json", "Llama-3.1-8B"),
        ("config.json", "config"),
        ("hf://meta-llama/Llama-3.1-8B@main", "Llama-3.1-8B"),
        ("hf://meta-llama/Llama-3.1-8B@refs/pr/1", "Llama-3.1-8B"),
        ("hub/models--meta-llama--Llama-3.1-8B/snapshots/0a1b/config.json", "Llama-3.1-8B"),
    ],
)
def test_configurations_have_the_name_of_their_folder(path: str, name: str) -> None:
    """Those of two models would be one name else."""
    assert _called(path) == name


def test_models_of_the_hub(hetplan: Command, grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its cache, as search takes them; one that is not there says how to get it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(grid))
    here = grid / "models--org--Small-2.5"
    (here / "refs").mkdir(parents=True)
    (here / "refs" / "main").write_text("abc123")
    (here / "snapshots" / "abc123").mkdir(parents=True)
    (here / "snapshots" / "abc123" / "config.json").write_text(
        '{"model_type": "gpt2", "n_layer": 2, "n_embd": 256, "n_head": 4, "vocab_size": 1000}'
    )
    text = "clusters: [cluster.yaml]\nmodels: ['hf://org/Small-2.5']\noptions: {target: [megatron]}\n"
    Path("grid.yaml").write_text(text)
    done = hetplan(*WORDS, "-j", "1")
    assert (done.code, done.err) == (0, "")
    assert [(row["model"], row["status"]) for row in rows()] == [("hf://org/Small-2.5", "optimal")]
    assert "Small-2.5 on" in done.out
    Path("grid.yaml").write_text(text.replace("Small-2.5", "none"))
    done = hetplan(*WORDS, "-j", "1")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: hf://org/none: is not in the local cache of Hugging Face")


def test_damaged_points_are_searched_again(
    hetplan: Command, grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are no text, what is no row, and rows that lack something or have it wrong."""
    Path("grid.yaml").write_text(GRID.replace("deepspeed, megatron", "megatron").replace("16, 24", "16"))
    hetplan(*WORDS, "-j", "1")
    before, log = Path("results.csv").read_text(), Path("results.csv.points")
    row = json.loads(log.read_text())
    wrong = [
        b"\xff\xfe{}",
        b"[" * 100_000,
        b"[]",
        *(
            json.dumps({**row, name: value}).encode()
            for name, value in (
                ("step_seconds", "soon"),
                ("gap", float("nan")),
                ("tokens_per_second", 10**400),
            )
        ),
        *(
            json.dumps({key: value for key, value in row.items() if key != name}).encode()
            for name in ("model", "target")
        ),
    ]
    monkeypatch.setattr("planner.cli.sweep.solved", lambda point: row)
    for line in wrong:
        log.write_bytes(line)
        done = json.loads(hetplan(*WORDS, "-j", "1", "--json").out)
        assert (done["points"], done["kept"]) == (1, 0)
        assert log.read_bytes() == line + b"\n" + json.dumps(row).encode() + b"\n"
        assert Path("results.csv").read_text() == before


def test_points_that_cannot_be_kept(hetplan: Command, grid: Path) -> None:
    """A folder in their place is told ahead of the search, a full disk at the first point; never a bug."""
    Path("results.csv.points").mkdir()
    done = hetplan(*WORDS, "-j", "1")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: results.csv.points: is a directory\n")
    full = Path("/dev/full")
    with (
        pytest.raises(OutputError, match="/dev/full: cannot be written: No space left"),
        _appending(full) as append,
    ):
        append({"key": "a"})


def test_a_sweep_goes_on(hetplan: Command, grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done stays done, a line that was cut off is done again, and another grid starts from its own points."""
    asked: list[SweepPoint] = []

    def counted(point: SweepPoint) -> SweepRow:
        asked.append(point)
        return solved(point)

    monkeypatch.setattr("planner.cli.sweep.solved", counted)
    hetplan(*WORDS, "-j", "1")
    before = Path("results.csv").read_text()
    kept = Path("results.csv.points").read_text().splitlines(keepends=True)
    Path("results.csv.points").write_text("".join(kept[:2]) + kept[2][:40])
    asked.clear()
    found = json.loads(hetplan(*WORDS, "-j", "1", "--json").out)
    assert (found["points"], found["kept"], len(asked)) == (4, 2, 2)
    assert [line.split(",")[:6] for line in Path("results.csv").read_text().splitlines()] == [
        line.split(",")[:6] for line in before.splitlines()
    ]
    Path("grid.yaml").write_text(GRID.replace("16, 24", "16"))
    assert json.loads(hetplan(*WORDS, "-j", "1", "--json").out)["kept"] == 2


def test_a_point_whose_search_was_stopped_is_not_kept(
    hetplan: Command, grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the whole sweep, whose finished points are there for the next one."""
    searched: list[SearchResult] = []

    def stopped(*arguments: Any, **options: Any) -> SearchResult:
        result = choose(*arguments, **options)
        searched.append(result)
        return replace(result, interrupted=len(searched) == 2)

    monkeypatch.setattr("planner.search.sweep.choose", stopped)
    done = hetplan(*WORDS, "-j", "1")
    assert (done.code, len(searched)) == (130, 2)
    assert "  fastest points" in done.out
    assert done.out.endswith(
        "stopped by Ctrl-C after 1 of 4 points, which are kept: the same command goes on\n"
    )
    assert len(Path("results.csv.points").read_text().splitlines()) == 1
    assert not Path("results.csv").exists()
    assert json.loads(hetplan(*WORDS, "-j", "1", "--json").out)["kept"] == 1


def test_options_that_cannot_be_are_rows(hetplan: Command, grid: Path) -> None:
    """With what is wrong; the others are searched."""
    Path("grid.yaml").write_text(
        "clusters: [cluster.yaml]\nmodels: [model.yaml]\noptions: {target: [megatron], change: [-slow, -slo]}\n"
    )
    done = hetplan(*WORDS, "-j", "1")
    assert done.code == 0
    assert "  ! 1 point: --change '-slo': no pool 'slo'\n" in done.out
    good, bad = rows()
    assert (good["status"], good["devices"]) == ("optimal", "2")
    assert (bad["status"], bad["error"]) == ("error", "--change '-slo': no pool 'slo'")


def test_points_without_a_plan_are_told(hetplan: Command, grid: Path) -> None:
    """No table where there is none at all."""
    Path("grid.yaml").write_text("clusters: [cluster.yaml]\nmodels: [model.yaml]\noptions: {tp: [3, 5]}\n")
    done = hetplan(*WORDS, "-j", "1")
    assert done.code == 0
    assert done.out.startswith("  ! 2 points: proven: no plan fits\nresults.csv: 2 points, 2 searched in ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clusters: []\nmodels: [model.yaml]\n", "grid.yaml:1: clusters: "),
        ("clusters: [cluster.yaml]\nmodels: [no.yaml]\n", "grid.yaml:2: models[0]: no.yaml: no such file"),
        (
            GRID.replace("target: [", "target: [[torch, deepspeed], "),
            "options.target[0]: expected a word, a whole number or a list of whole numbers, got a list of 2",
        ),
        (
            GRID.replace("target:", "traget:"),
            "grid.yaml:5: options.traget: is no option of a sweep\n  hint: did you mean target?",
        ),
        *(
            (
                GRID + f"  {name}: [{bad}]\n",
                f"grid.yaml:7: options.{name}[0]: expected {expected}, got {got}\n",
            )
            for name, bad, expected, got in (
                ("zero", "7", "a whole number from 0 to 3, or a list of them", "7"),
                ("tp", "[1, 0]", "a whole number from 1 to 1000, or a list of them", "a list of 2"),
                ("sequence_length", "[64]", "a whole number from 1 to 100000000", "a list of 1"),
                ("precision", "int4", "one of bf16, fp16, fp32, tf32, fp8", '"int4"'),
                ("change", "3", "a change in words", "3"),
            )
        ),
        (
            "clusters: [cluster.yaml]\nmodels: [model.yaml]\noptions:\n"
            + "".join(
                f"  {name}: [{', '.join(map(str, range(1, 101)))}]\n" for name in ("tp", "pp", "micro_batch")
            ),
            "grid.yaml: has 1,000,000 points, expected at most 10,000",
        ),
    ],
)
def test_bad_grids(hetplan: Command, grid: Path, text: str, message: str) -> None:
    """Nothing is searched."""
    Path("grid.yaml").write_text(text)
    done = hetplan(*WORDS, "-j", "1")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not Path("results.csv").exists()


def test_bad_outputs_and_backends(hetplan: Command, grid: Path) -> None:
    """One line and a hint."""
    done = hetplan("sweep", "grid.yaml", "-o", "results.txt")
    assert (done.code, done.err) == (2, "error: results.txt: expected a name that ends in .csv or .parquet\n")
    pytest.importorskip("joblib")
    for backend in ("spark://here:7077", "dask", "dask://", "ray://"):
        done = hetplan(*WORDS, "--backend", backend)
        said = f"error: --backend: expected dask://host:port or ray://host:port, got {backend!r}\n"
        assert (done.code, done.err) == (2, said)


@pytest.mark.slow
def test_two_cores_say_the_same(hetplan: Command, grid: Path) -> None:
    """And the table may be Parquet."""
    pytest.importorskip("joblib")
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert hetplan(*WORDS, "-j", "1").code == 0
    assert hetplan("sweep", "grid.yaml", "-o", "results.parquet", "-j", "2").code == 0
    found = pandas.read_parquet("results.parquet")
    assert list(found["step_seconds"]) == [float(row["step_seconds"]) for row in rows()]


MANY = "8, 16, 24, 32, 40, 48, 56, 64"
"""Batches of a sweep that is long enough for a worker to die."""


def sweeping_on(backend: str) -> subprocess.Popen[bytes]:
    """A sweep over many batches, once three points are done and others are not."""
    Path("grid.yaml").write_text(GRID.replace("16, 24", MANY).replace("limit: 10", "limit: 300"))
    program = "from planner.cli.app import main; main()"
    command = [sys.executable, "-c", program, *WORDS, "--backend", backend]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    log = Path("results.csv.points")
    while process.poll() is None and not (log.exists() and len(log.read_text().splitlines()) >= 3):
        time.sleep(0.05)
    assert process.poll() is None, "the sweep was over before a worker could die"
    return process


def is_whole() -> bool:
    """Whether the table has every point, each with its plan."""
    found = rows()
    batches = [row["global_batch"] for row in found]
    return batches == MANY.split(", ") * 2 and {row["status"] for row in found} == {"optimal"}


@pytest.mark.slow
def test_a_dask_worker_that_dies(grid: Path) -> None:
    """Its points are done again: the table is that of a run without a death."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as local:
        backend = f"dask://{local.scheduler_address.removeprefix('tcp://')}"
        sweeping = sweeping_on(backend)
        with distributed.Client(local) as client:
            victim = sorted(client.run(os.getpid).values())[0]
        os.kill(victim, signal.SIGKILL)
        assert sweeping.wait(timeout=300) == 0
    assert is_whole()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_ray_worker_that_dies(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on a Ray cluster of two workers."""
    ray = pytest.importorskip("ray")
    psutil = pytest.importorskip("psutil")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        monkeypatch.setenv("RAY_ADDRESS", context.address_info["gcs_address"])
        sweeping = sweeping_on("ray://auto")
        nodes = psutil.Process().children(recursive=True)
        victims = [each for each in nodes if each.name().startswith("ray::solved")]
        os.kill(victims[0].pid, signal.SIGKILL)
        assert sweeping.wait(timeout=300) == 0
    finally:
        ray.shutdown()
    assert is_whole()


def test_degrees_that_a_model_does_not_allow_are_errors_of_their_points(hetplan: Command, grid: Path) -> None:
    """Of this model alone: another one of the grid may have them."""
    text = GRID.replace("target: [deepspeed, megatron]", "ep: [1, 8]").replace("[16, 24]", "[16]")
    (grid / "grid.yaml").write_text(text)
    done = hetplan(*WORDS, "-j", "1")
    assert [row["status"] for row in rows()] == ["optimal", "error"]
    assert "1 point: ep: the model small has no experts, expected 1, got 8" in " ".join(done.out.split())
