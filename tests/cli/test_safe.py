"""``--safe`` and ``safe``: a chance of running out of memory that no plan may exceed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hetplan as facade
from planner.report.numbers import percent
from tests.cli.running import Command

pytestmark = pytest.mark.usefixtures("without_reasons")


def larger(path: Path) -> None:
    """A model that fills its devices."""
    text = path.read_text()
    for old, new in (
        ("layers: 6", "layers: 12"),
        ("hidden: 512", "hidden: 2048"),
        ("batch: 16", "batch: 64"),
    ):
        text = text.replace(old, new)
    path.write_text(text.replace("sequence_length: 512", "sequence_length: 1024"))


def test_the_answer_keeps_it(hetplan: Command, files: Path) -> None:
    """It is not faster, the file remembers what was asked, and the commands that read it say so."""
    larger(Path("model.yaml"))
    limits = ("--target", "torch", "--zero", "0,1", "--pp", "1")
    words = ("search", "cluster.yaml", "model.yaml", *limits, "--json")
    bold = json.loads(hetplan(*words, "-o", "bold.yaml").out)
    safe = json.loads(hetplan(*words, "--safe", "0.01", "-o", "safe.yaml").out)
    assert safe["out_of_memory"] <= 0.01 < bold["out_of_memory"]
    assert safe["step_seconds"] >= bold["step_seconds"] * 0.99
    assert "safe: 0.01" in Path("safe.yaml").read_text()
    assert "safe" not in Path("bold.yaml").read_text()
    told = hetplan("explain", "safe.yaml").out
    assert "out of memory with a chance of at most 1.0 %" in " ".join(told.split())
    assert f"{percent(safe['out_of_memory'])} chance of running out" in " ".join(told.split())
    done = hetplan("predict", "cluster.yaml", "model.yaml", "bold.yaml", "--safe", "0.01", "--json")
    assert json.loads(done.out)["fits"] is False
    found = facade.search(
        "cluster.yaml", "model.yaml", safe=0.01, limits=facade.Limits(target="torch", zero=(0, 1), gap=0.05)
    )
    assert found.estimate.out_of_memory <= 0.01


@pytest.mark.slow
def test_as_part_of_the_cluster(hetplan: Command, files: Path) -> None:
    """In the file, as a change, and said by check."""
    path = Path("cluster.yaml")
    larger(Path("model.yaml"))
    path.write_text(f"safe: 0.1\n{path.read_text()}")
    assert "out of memory with a chance of at most 10 %" in " ".join(
        hetplan("check", "cluster.yaml").out.split()
    )
    words = ("what-if", "cluster.yaml", "model.yaml", "--target", "megatron", "--json")
    cases = json.loads(hetplan(*words, "--change", "safe=0.01").out)["cases"]
    assert cases[1]["step_seconds"] >= cases[0]["step_seconds"] * 0.99
    done = hetplan(*words, "--change", "safe=2")
    assert done.code == 2
    assert "safe: expected a number from 0.000001 to 0.5, got 2" in done.err


@pytest.mark.parametrize("chance", ["0", "0.6", "nan", "-1"])
def test_what_is_no_chance(hetplan: Command, files: Path, chance: str) -> None:
    """One error."""
    done = hetplan("search", "cluster.yaml", "model.yaml", "--safe", chance)
    assert done.code == 2
    assert f"--safe: expected a number from 1e-06 to 0.5, got {chance}" in done.err
