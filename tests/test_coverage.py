"""docs/coverage.md names commands that exist, and figures that hold."""

from __future__ import annotations

import re
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean

import pytest
import typer

from planner.calibration.file import shipped
from planner.cli.app import app
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.pipeline_end import stage_ends
from planner.plan.values import Grid
from tests.worlds import gpt, group, plan
from tools.accuracy.coverage import figures, written

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """Every command of the page, as it is typed."""
    return sorted(set(re.findall(r"`hetplan ([^`]+)`", PAGE)))


@pytest.mark.parametrize("text", commands())
def test_every_command_exists(text: str) -> None:
    """With its options."""
    command, words = typer.main.get_command(app), text.split()
    while words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        if not hasattr(command, "commands"):
            break
    known = {name for entry in command.params for name in entry.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_pages_and_tests_are_there() -> None:
    """Whatever the page points to."""
    for path in re.findall(r"\]\(([\w.]+\.md)", PAGE):
        assert (ROOT / "docs" / path).exists(), path
    for path in re.findall(r"`(tests/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_its_errors_are_those_of_the_accuracy_page() -> None:
    """Run `make accuracy`, which writes both."""
    found = figures((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"))
    assert written(PAGE, found) == PAGE
    other = replace(found["holmes"], mean="99")
    assert "step time 99 % off on 16 runs" in written(PAGE, {**found, "holmes": other})
    with pytest.raises(ValueError, match="0 times, expected once"):
        written(PAGE.replace("runs of 1F1B", "runs"), found)


def test_its_factors_are_those_of_the_other_pages() -> None:
    """Outputs there, which `make docs` writes anew."""
    guide, share = ((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("guide", "share"))
    plain, unequal = re.findall(r"llama_13b on poplar-a100: ([\d.]+) s", guide)[:2]
    gains = re.findall(r"([\d.]+)\s+times\s+the\s+work\s+of\s+taking", share)
    more = [round(100 * float(gain)) - 100 for gain in gains]
    assert len(more) == 3
    for said in (
        f"{of(guide, 'measured shares (Poplar,')}x over its ZeRO 0-1 allocation, predicted",
        f"{of(guide, 'FLOPs-proportional (Whale)')}x over its plan on the lab of the README, predicted",
        f"a step of Llama 13B is {100 - round(100 * float(unequal) / float(plain))} % shorter, predicted",
        f"{min(more)} to {max(more)} % more work for three pairs",
    ):
        assert said in PAGE


def of(guide: str, baseline: str) -> str:
    """How many times as long its plan takes."""
    found = re.search(rf"^  {re.escape(baseline)} +[\d.]+ +[\d.]+ +([\d.]+) ", guide, re.MULTILINE)
    assert found is not None
    return found[1]


def speed(stages: int, micro_batches: int) -> float:
    """Of a pipeline of equal stages, in whole models a second, without sends."""
    each = 1.0 / (stages * micro_batches)
    return 1.0 / max(stage_ends([[each / 3]] * stages, [[2 * each / 3]] * stages, micro_batches))


@pytest.mark.parametrize(("stages", "published", "ours"), [(2, 1.8, 1.94), (4, 3.4, 3.66), (8, 6.3, 6.56)])
def test_gpipe(stages: int, published: float, ours: float) -> None:
    """Table 2 of the paper, Transformer-48 with 32 micro-batches, over two stages with one: sends make it slower."""
    ratio = speed(stages, 32) / speed(2, 1)
    assert ratio == pytest.approx(ours, abs=0.005)
    assert published < ratio < 1.1 * published


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_one_micro_batch_is_the_naive_partition(stages: int) -> None:
    """One stage works at a time: more of them are no faster."""
    assert speed(stages, 1) == pytest.approx(1.0)


TABLE = {
    (4,): 0.1225 + 0.4749,
    (2, 2, 1): 0.1666 + 0.5014,
    (2, 2, 2): 0.0999 + 0.3002,
    (4, 4, 1): 0.1444 + 0.4343,
    (4, 4, 2): 0.1244 + 0.3727,
    (4, 4, 4): 0.0869 + 0.2636,
    (8, 8, 1): 0.1799 + 0.5178,
}
"""Forward and backward of Megatron on one node and of Tesseract (arXiv:2105.14500, strong scaling), seconds."""
SEQUENCES, TOKENS = 16, 4096
"""Of a batch: those of the row [4,4,4], the others have 12, which 8 rows do not divide. Tokens of a sequence are not in
the table: those with which our seconds come nearest."""
CLUSTER = """
name: tesseract
pools:
  - {name: a100, gpu: A100-SXM-40GB, nodes: 16, gpus_per_node: 4, intra_node: nvlink3,
     nics: [{fabric: ib, bandwidth_gbps: 200}]}
fabrics: {ib: {kind: infiniband, latency_us: 2}}
"""
"""Nodes of four A100 with one card of 200 Gbit/s: a guess."""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> ClusterSpec:
    """The cluster of the table."""
    path = tmp_path_factory.mktemp("tesseract") / "cluster.yaml"
    path.write_text(CLUSTER)
    return load_cluster(path)


def tesseract(where: ClusterSpec, shape: tuple[int, ...], tokens: int = TOKENS) -> float:
    """Forward and backward of eight layers, seconds."""
    spec = gpt(layers=8, hidden=3072, heads=64, global_batch=SEQUENCES, vocab=32000, sequence_length=tokens)
    grid = Grid(rows=shape[0], columns=shape[1], depth=shape[2]) if len(shape) == 3 else None
    groups = (group("a100", "A100-SXM-40GB", tp=grid.devices if grid else shape[0], share=SEQUENCES),)
    causes = Estimator(where, spec, shipped()).estimate(plan("torch", 0, [8], [groups], grid=grid)).breakdown
    return causes.compute_seconds + causes.tensor_parallel_seconds


def test_tesseract(where: ClusterSpec) -> None:
    """Its table within 16 % but for one factor, which is that of the layers; and every order that has a reason."""
    ours = {shape: tesseract(where, shape) for shape in TABLE}
    factor = exp(fmean(log(TABLE[shape] / seconds) for shape, seconds in ours.items()))
    assert {shape: factor * seconds for shape, seconds in ours.items()} == pytest.approx(TABLE, rel=0.16)
    for faster, slower in (
        ((2, 2, 2), (2, 2, 1)),
        ((4, 4, 2), (4, 4, 1)),
        ((4, 4, 4), (4, 4, 2)),
        ((4, 4, 4), (8, 8, 1)),
        ((4,), (2, 2, 1)),
        ((2, 2, 2), (4, 4, 2)),
    ):
        assert TABLE[faster] < TABLE[slower]
        assert ours[faster] < ours[slower], (faster, slower)


def test_depth_against_width(where: ClusterSpec) -> None:
    """[4,4,4] against [8,8,1]: published 1.99x in its table and 1.45x in its text, ours by the tokens of a sequence."""
    ours = [
        tesseract(where, (8, 8, 1), tokens) / tesseract(where, (4, 4, 4), tokens) for tokens in (2048, 4096)
    ]
    assert ours == pytest.approx([1.29, 1.86], abs=0.01)
    assert ours[0] < 1.45 < ours[1] < TABLE[8, 8, 1] / TABLE[4, 4, 4]
