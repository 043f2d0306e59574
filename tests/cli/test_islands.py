"""``hetplan search`` with islands that exchange rarely, or little."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan.file import read
from tests.cli.running import Command

pytestmark = pytest.mark.usefixtures("without_reasons")


@pytest.fixture
def sites(files: Path) -> Path:
    """Two pools on networks of their own, with a slow link between."""
    (files / "cluster.yaml").write_text(TWO_SITES)
    return files


TWO_SITES = """\
name: two-sites
pools:
- name: near
  gpu: A100-SXM-80GB
  nodes: 2
  gpus_per_node: 4
  intra_node: nvlink3
  nics: [{fabric: near, bandwidth_gbps: 200}]
- name: far
  gpu: A100-SXM-40GB
  nodes: 2
  gpus_per_node: 4
  intra_node: nvlink3
  nics: [{fabric: far, bandwidth_gbps: 200}]
fabrics:
  near: {kind: ethernet}
  far: {kind: ethernet}
links:
- {between: [near, far], bandwidth_gbps: 1, latency_us: 10000}
"""


@pytest.mark.slow
def test_islands_are_chosen_when_they_may(hetplan: Command, sites: Path) -> None:
    """Never silently; with the option the plan says so, in the table and in the file, and is priced again as it was."""
    asked = (
        "search",
        "cluster.yaml",
        "model.yaml",
        "--target",
        "torch",
        "--global-batch",
        "128",
        "--zero",
        "0,1",
        "--recompute",
        "none",
    )
    plain = hetplan(*asked, "-o", "plain.yaml")
    assert "islands" not in plain.out
    assert read(sites / "plain.yaml").plan.sync.exact
    words = ("--allow-local-sgd", "500", "--allow-compression", "int8")
    found = hetplan(*asked, *words, "-o", "plan.yaml")
    assert "islands exchange every 500 steps (diloco" in " ".join(found.out.split())
    saved = read(sites / "plan.yaml")
    assert saved.plan.sync.every == 500
    assert {*saved.plan.sync.islands} == {("near",), ("far",)}
    assert saved.summary is not None
    assert "islands of single nodes" in " ".join(saved.summary.outside)
    before = read(sites / "plain.yaml").summary
    assert before is not None
    assert saved.summary.step_seconds < before.step_seconds
    shown = hetplan("explain", "plan.yaml")
    assert "islands" in shown.out
    assert hetplan("emit", "plan.yaml", "-o", "folder").code == 0
    assert '"every": 500' in (sites / "folder" / "batches.json").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--allow-local-sgd", "0"], "--allow-local-sgd: expected numbers from 2 to 1000000"),
        (["--allow-local-sgd", "often"], "--allow-local-sgd: expected whole numbers"),
        (
            ["--allow-compression", "zip"],
            "--allow-compression: expected bf16, fp8, int8, rank=N or ratio=SHARE",
        ),
        (["--allow-compression", "rank=0"], "got 'rank=0'"),
        (["--allow-compression", "ratio=0.9"], "up to 0.5, got 'ratio=0.9'"),
        (["--precision", "bf16", "--allow-compression", "int8,rank=99999"], "expected no more, got 99999"),
        (["--precision", "fp16", "--allow-compression", "ratio=0.1"], "in fp16, expected bf16 or fp32"),
        (["--target", "deepspeed", "--allow-local-sgd", "9"], "expected --target torch"),
    ],
)
def test_bad_options(hetplan: Command, sites: Path, words: list[str], what: str) -> None:
    """One error, and the exit code of bad input."""
    result = hetplan("search", "cluster.yaml", "model.yaml", *words)
    assert result.code == 2
    assert what in result.err


def test_islands_without_a_link(hetplan: Command, sites: Path) -> None:
    """A plan by hand is told what is missing, with its line."""
    third = TWO_SITES[TWO_SITES.index("- name: near") : TWO_SITES.index("- name: far")].replace(
        "name: near", "name: by"
    )
    apart = TWO_SITES.partition("links:")[0].replace("fabrics:\n", f"{third}fabrics:\n")
    (sites / "cluster.yaml").write_text(apart)
    pools = "".join(f"- {{pool: {name}, count: 8, micro_batch: 1}}\n" for name in ("near", "far"))
    exchange = "sync: {every: 8, islands: [[near], [far]]}\n"
    (sites / "short.yaml").write_text(f"target: torch\nreplicas:\n{pools}{exchange}")
    result = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "--global-batch", "16")
    assert result.code == 2
    assert "short.yaml:5: sync.islands: the pools far and near have no Ethernet in common" in result.err
