"""``hetplan search`` for plans that hold unequal shards, or do not wait for all replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.catalog import gpu_spec
from planner.plan.file import read
from tests.cli.running import Command

pytestmark = pytest.mark.usefixtures("without_reasons")

MEMORIES = """\
name: memories
pools:
- name: large
  gpu: A100-SXM-80GB
  nodes: 1
  gpus_per_node: 4
  intra_node: nvlink3
  nics: [{fabric: ib, bandwidth_gbps: 100}]
- name: small
  gpu: A100-SXM-40GB
  nodes: 1
  gpus_per_node: 4
  intra_node: nvlink3
  nics: [{fabric: ib, bandwidth_gbps: 100}]
fabrics:
  ib: {kind: infiniband}
"""
MODEL = """\
name: large
layers: 40
hidden: 5120
heads: 40
ffn: 13824
gated_mlp: true
vocab: 32000
tied_embeddings: false
training: {sequence_length: 4096, global_batch: 512, precision: bf16}
"""
VARYING = """\
format: hetplan-calibration/1
families:
  {family}: {{sigma: 0.3}}
"""
ALONE = ("--target", "torch", "--pp", "1", "--tp", "1", "--cp", "1")


@pytest.fixture
def memories(files: Path) -> Path:
    """Four devices of 80 GB and four of 40."""
    (files / "cluster.yaml").write_text(MEMORIES)
    (files / "large.yaml").write_text(MODEL)
    return files


def test_unequal_shards_are_chosen_when_they_may(hetplan: Command, memories: Path) -> None:
    """Never silently; with the option the plan says so, is priced again as it was, and is emitted."""
    asked = ("search", "cluster.yaml", "large.yaml", *ALONE)
    assert hetplan(*asked, "-o", "plain.yaml").code == 0
    plain = read(memories / "plain.yaml")
    found = hetplan(*asked, "--allow-unequal-shards", "-o", "plan.yaml")
    saved = read(memories / "plan.yaml")
    assert not plain.plan.unequal_shards
    assert saved.plan.unequal_shards
    assert "shards of" in " ".join(found.out.split())
    assert plain.summary is not None
    assert saved.summary is not None
    assert saved.summary.step_seconds < 0.95 * plain.summary.step_seconds
    assert "unequal shards in other proportions" in " ".join(saved.summary.outside)
    assert "shards of" in " ".join(hetplan("explain", "plan.yaml").out.split())
    assert hetplan("emit", "plan.yaml", "-o", "folder").code == 0
    assert '"shards": [' in (memories / "folder" / "batches.json").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            ["--target", "deepspeed", "--allow-unequal-shards"],
            "deals equal shards to all replicas, expected --target",
        ),
        (
            ["--target", "megatron", "--allow-backup", "1"],
            "megatron waits for all replicas, expected --target torch",
        ),
        (["--allow-backup", "0"], "--allow-backup: expected a whole number from 1 to 1000000, got 0"),
    ],
)
def test_bad_options(hetplan: Command, memories: Path, words: list[str], what: str) -> None:
    """One error, and the exit code of bad input."""
    result = hetplan("search", "cluster.yaml", "large.yaml", *words)
    assert result.code == 2
    assert what in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("zero: 1\nbackup: 8\n", "backup: expected fewer backup replicas than the 8 replicas, got 8"),
        ("zero: 0\nshards: 2\n", "shards"),
    ],
)
def test_bad_short_plans(hetplan: Command, memories: Path, line: str, what: str) -> None:
    """Named with their place."""
    pools = "".join(
        f"- {{pool: {name}, count: 4, micro_batch: 8, share: 64}}\n" for name in ("large", "small")
    )
    (memories / "short.yaml").write_text(f"target: torch\n{line}replicas:\n{pools}")
    result = hetplan("predict", "cluster.yaml", "large.yaml", "short.yaml")
    assert result.code == 2
    assert what in result.err


def test_backups_need_devices_that_vary(hetplan: Command, memories: Path) -> None:
    """Without a sigma the search says that no backup pays; with one a plan may drop gradients."""
    asked = ("search", "cluster.yaml", "model.yaml", *ALONE, "--zero", "0,1", "--global-batch", "192")
    assert "no device of the cluster is known to vary" in hetplan(*asked, "--allow-backup", "1").err
    (memories / "varying.yaml").write_text(VARYING.format(family=gpu_spec("A100-SXM-40GB").family))
    found = hetplan(*asked, "--allow-backup", "2", "--calibration", "varying.yaml", "-o", "plan.yaml")
    assert found.code == 0
    assert "known to vary" not in found.err


ONE_NODE = """\
name: one
pools: [{name: a, gpu: A100-SXM-40GB, nodes: 1, gpus_per_node: 3, intra_node: nvlink3}]
"""


def test_what_is_allowed_in_vain_is_told(hetplan: Command, memories: Path) -> None:
    """One node has no islands, three devices are no grid and like memories no unequal shards; others say nothing."""
    (memories / "one.yaml").write_text(ONE_NODE)
    vain = ("--allow-local-sgd 8", "--allow-tensor-grids", "--allow-unequal-shards", "--offload nvme")
    for allowed in (*vain, "--allow-quantised-zero", "--offload optimizer"):
        found = hetplan("search", "one.yaml", "model.yaml", *allowed.split())
        assert found.code == 0
        assert (f"{allowed.removesuffix(' 8')}: no plan here can use it: " in found.err) == (allowed in vain)
    zero = hetplan("search", "one.yaml", "model.yaml", "--allow-quantised-zero", "--zero", "1")
    assert "--allow-quantised-zero: no plan here can use it: ZeRO++ needs ZeRO 3" in zero.err
    found = hetplan("search", "cluster.yaml", "large.yaml", *ALONE, "--allow-unequal-shards")
    assert "no plan here" not in found.err
