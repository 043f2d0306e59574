"""What a rehearsal says of its rows, and that its clusters and plans are real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.cluster.file import load_cluster
from planner.emit.interface import emit
from planner.model.file import load_model
from planner.plan.file import load_plan
from tools.rehearsal.__main__ import main
from tools.rehearsal.clusters import CLUSTERS, MODEL, Rehearsed, yaml_text
from tools.rehearsal.rehearse import CHOSEN, Row, even_factor, mean_error, rank_correlation, regret
from tools.rehearsal.table import markdown

GPU: dict[str, Any] = {"memory_gib": 8, "memory_bandwidth_gBps": 20, "tflops": {"fp32": 0.1}}


def row(plan: str, predicted: float, measured: float) -> Row:
    """One plan of a cluster."""
    return Row(cluster="c", plan=plan, predicted_seconds=predicted, measured_seconds=measured, spread=0.01)


ROWS = [row(CHOSEN, 1.0, 1.1), row("equal batches, ZeRO 0", 2.0, 1.9), row("another", 3.0, 1.0)]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--steps 0", "argument --steps: expected a whole number from 1, got '0'"),
        ("--rounds -1", "argument --rounds: expected a whole number from 1, got '-1'"),
        ("--devices --cluster islands", "have clusters of their own"),
        ("--crossover --cluster grid", "have clusters of their own"),
        ("--crossover --devices", "not both"),
        ("--crossover --target deepspeed", "expected no --target"),
    ],
)
def test_options_that_measure_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, what: str
) -> None:
    """They are refused at once, not after the hour that calibrating takes, nor with empty tables."""
    monkeypatch.setattr("sys.argv", ["rehearsal", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert what in capsys.readouterr().err


def test_a_folder_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is told in a line."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr("sys.argv", ["rehearsal", "--folder", str(file / "below")])
    monkeypatch.setattr("tools.rehearsal.__main__.missing", lambda: "")
    assert main() == 2
    assert "Not a directory" in capsys.readouterr().err


def test_summary() -> None:
    """Two of three pairs in order reversed, 10 % slower than the best, and the factors over equal batches."""
    assert rank_correlation(ROWS) == pytest.approx(-0.5)
    assert regret(ROWS) == pytest.approx(0.1)
    assert mean_error(ROWS) == pytest.approx((1 - 1 / 1.1 + 2 / 1.9 - 1 + 2) / 3)
    assert even_factor(ROWS) == pytest.approx((2.0, 1.9 / 1.1))
    text = markdown(ROWS)
    assert "| c | another | 3.000 | 1.000 | 1% | +200.0% |" in text
    assert "| c | 3 | -0.50 | 10.0% |" in text


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.name)
def test_plans_can_be_written(cluster: Rehearsed, tmp_path: Path) -> None:
    """Every cluster file loads, and every plan is one that its target runs, on hosts that are emulated."""
    (tmp_path / "model.yaml").write_text(yaml_text(MODEL))
    document = cluster.document({pool.device: GPU for pool in cluster.pools})
    (tmp_path / "cluster.yaml").write_text(yaml_text(document))
    spec, model = load_cluster(tmp_path / "cluster.yaml"), load_model(tmp_path / "model.yaml")
    names = {node.name for node in cluster.nodes}
    assert len(cluster.plans) >= 5
    for short in cluster.plans.values():
        (tmp_path / "short.yaml").write_text(yaml_text({"target": "deepspeed", **short}))
        files = {
            file.path: file.text
            for file in emit(load_plan(tmp_path / "short.yaml", spec, model), spec, model)
        }
        hosts = {line.split()[1] for line in files["nodes.txt"].splitlines()[1:]}
        assert hosts <= names
