"""The published table: row by row, by source, and what docs/measurements.md says of it."""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from planner.calibration.file import shipped
from planner.cost.estimate import estimate
from planner.measured.fit import certain
from planner.measured.table import COLUMNS, LATENCY_US, PUBLISHED, MeasuredRow
from planner.measured.values import Run
from planner.model.spec import LoraSpec
from planner.plan.values import Offload
from tests.measured.examples import published

HERE = Path(__file__).parent
DOC = HERE.parents[1] / "docs" / "measurements.md"


@cache
def published_rows() -> tuple[dict[str, str], ...]:
    """The same as they stand in the file."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def run(name: str) -> Run:
    """A published run."""
    return next(item for item in published().runs if item.id == name)


def test_every_published_row_becomes_a_run_or_says_why_not() -> None:
    """Nothing is lost, and only rows that say so are skipped."""
    table, rows = published(), published_rows()
    assert len({row["id"] for row in rows}) == len(rows) == len(table.runs) + len(table.skipped)
    assert {item.id for item in table.skipped} == {row["id"] for row in rows if row["inexpressible"]}
    assert all(item.reason for item in table.skipped)
    assert all(item.reference and item.stack for item in table.runs)


def test_published_columns_are_the_ones_that_are_read() -> None:
    """In the same order."""
    assert tuple(published_rows()[0]) == COLUMNS


def test_published_runs_have_plausible_measurements() -> None:
    """Seconds (hours for 32 sequences of a million tokens), memory, or out of memory; no more than the device has."""
    for item in published().runs:
        devices = [device for pool in item.cluster.pools for _ in pool.hosts for device in pool.devices]
        capacity = min(item.cluster.gpus[name].memory_gib for name in devices) * 2**30
        assert item.step_seconds or item.peak_memory_bytes or not item.fits
        assert item.step_seconds is None or 0.01 < item.step_seconds < 10000
        assert item.peak_memory_bytes is None or 1e9 < item.peak_memory_bytes <= 1.01 * capacity
        assert item.plan.devices == len(devices)


def test_a_single_node_run_of_vtrain() -> None:
    """vts-0001: two devices, a pipeline of two."""
    item = run("vts-0001")
    assert (item.source, item.stack) == ("vtrain-single-node", "Megatron-DeepSpeed")
    assert (item.step_seconds, item.peak_memory_bytes, item.fits) == (0.37216, None, True)
    assert (item.devices, item.plan.pp, item.plan.micro_batches) == (2, 2, 2)
    assert [stage.layers for stage in item.plan.stages] == [12, 12]
    assert item.plan.stages[0].replicas[0].micro_batch == 8
    assert item.plan.stages[0].recompute == "full"
    assert (item.model.layers, item.model.hidden, item.model.heads, item.model.ffn) == (24, 1024, 16, 4096)
    assert (item.model.training.precision, item.model.training.attention) == ("fp16", "unfused")
    assert item.cluster.pools[0].nics == ()


def test_a_run_of_megatron_at_39_billion() -> None:
    """SC21's table 1 prints 138 TFLOP/s a device, recomputation counted: 14.45 s."""
    item = run("sc21-39B")
    layers, hidden, batch, length, vocab = 48, 8192, 1536, 2048, 51200
    ends = length / (6 * hidden) + vocab / (16 * layers * hidden)
    flops = 96 * batch * length * layers * hidden**2 * (1 + ends)
    assert item.step_seconds == pytest.approx(flops / 138e12 / 512, rel=1e-5)
    assert item.step_seconds == pytest.approx(14.4535, abs=1e-4)
    group = item.plan.stages[0].replicas[0]
    assert (group.tp, item.plan.pp, group.count, group.micro_batch) == (8, 2, 32, 2)
    assert "assumed" in item.doubt
    pool = item.cluster.pools[0]
    assert (len(pool.hosts), pool.nics[0].count, pool.nics[0].bandwidth_gbps) == (64, 8, 200)
    assert item.cluster.fabrics["infiniband"].latency_us == LATENCY_US["infiniband"]


def test_a_run_of_mpt() -> None:
    """mpt-001: 70 B on 512 H100, 1007 tokens a second and device."""
    item = run("mpt-001")
    assert item.step_seconds == pytest.approx(4096 * 2048 / (1007 * 512), rel=1e-5)
    assert (item.plan.target, item.plan.zero, item.plan.stages[0].dp) == ("torch", 3, 512)
    assert item.model.parameters == pytest.approx(64.8624e9, rel=1e-4)
    assert item.model.training.attention == "flash"
    assert not item.model.drops


def test_a_run_of_bloom_with_its_memory() -> None:
    """bloomtune-037: ZeRO-0 takes 72 GB."""
    item = run("bloomtune-037")
    group = item.plan.stages[0].replicas[0]
    assert (item.step_seconds, item.peak_memory_bytes) == (137.34, 72e9)
    assert (group.tp, item.plan.pp, group.count, group.micro_batch, item.plan.zero) == (8, 12, 4, 2, 0)
    assert (item.model.hidden, item.model.vocab, item.model.learned_positions) == (14336, 250000, 0)


def test_runs_out_of_memory_are_facts() -> None:
    """181 B parameters on 384 devices: three plans that did not fit."""
    lost = [item for item in published().runs if not item.fits and item.source == "bloom-tuning"]
    found = {(item.plan.stages[0].replicas[0].tp, item.plan.pp, item.plan.stages[0].dp) for item in lost}
    assert found == {(8, 1, 48), (2, 6, 32)}
    assert all(item.step_seconds is None for item in lost)


def test_an_uneven_run_of_amp() -> None:
    """Cuts 0 6 9 12 15 18 21 24 30 and 0 4 6 8 ... 23 25 30 over units 0 to 29, of which 2 to 25 are layers."""
    item = run("amp-t4-05")
    assert [stage.layers for stage in item.plan.stages] == [4, 3, 3, 3, 3, 3, 3, 2]
    item = run("amp-t4-07")
    assert [stage.layers for stage in item.plan.stages] == [2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 2, 1]
    assert (item.step_seconds, item.model.vocab) == (1.55, 52256)
    assert item.cluster.pools[0].intra_node.shared


def test_an_uneven_run_of_sailor() -> None:
    """Units count the embedding and the head: 5, 7, 7, 7 are 4, 7, 7, 6 layers."""
    item = run("sailor-clariden-OPT-350-N4-N4_D1")
    assert [stage.layers for stage in item.plan.stages] == [4, 7, 7, 6]
    assert (item.step_seconds, item.peak_memory_bytes) == (1.60196, 7.359e9)


def test_a_run_of_internevo() -> None:
    """3,919 tokens a second and device on 32 A100, optimizer states sharded inside each node."""
    item = run("internevo-06")
    assert item.step_seconds == pytest.approx(256 * 2048 / (3919 * 32), rel=1e-5)
    assert (item.plan.target, item.plan.zero, item.plan.shard_size, item.devices) == ("torch", 1, 8, 32)
    assert item.model.parameters == pytest.approx(7.32e9, rel=1e-2)
    assert item.model.training.kernels == "torch-2023"
    assert (item.cluster.pools[0].nics[0].fabric, item.cluster.pools[0].nics[0].count) == ("roce", 4)
    assert run("internevo-01").plan.shard_size is None


def test_a_run_of_holmes_on_two_networks() -> None:
    """Eight nodes, 112.46 sequences a second; 197 and 160 TFLOP/s alone split 30 layers as its script does."""
    item = run("holmes-12")
    assert item.step_seconds == pytest.approx(768 / 112.46, rel=1e-5)
    assert [(stage.layers, stage.replicas[0].pool) for stage in item.plan.stages] == [
        (16, "ib"),
        (14, "roce"),
    ]
    assert {nic.fabric for pool in item.cluster.pools for nic in pool.nics} == {
        "infiniband",
        "roce",
        "ethernet",
    }
    alone, mixed, over_ethernet = (measured(run(f"holmes-{name}")) for name in ("03", "12", "09"))
    assert alone < mixed < over_ethernet


def test_frameworks_beside_holmes_have_one_network() -> None:
    """Figure 6: the same eight nodes, of which the others can use the Ethernet only; Holmes is 1.39 times as fast."""
    megatron, holmes = run("holmes-14"), run("holmes-16")
    assert set(megatron.cluster.fabrics) == {"ethernet"}
    assert megatron.model == holmes.model
    assert measured(megatron) / measured(holmes) == pytest.approx(90 / 64.6, rel=1e-5)


def test_a_run_of_bert() -> None:
    """138,294 sequences a second on 256 A100, one micro-batch of 256 each."""
    item = run("dle-bert-19")
    assert item.step_seconds == pytest.approx(256 * 256 / 138294, rel=1e-5)
    assert item.model.kind == "encoder"
    assert item.model.parameters == pytest.approx(335e6, rel=0.01)
    assert (item.plan.zero, item.plan.micro_batches) == (0, 1)


def test_every_published_run_is_priced() -> None:
    """By the shipped calibration: a finite time and memory for each."""
    for item in published().runs:
        priced = estimate(item.plan, item.cluster, item.model, shipped())
        assert 0 < priced.step_seconds < math.inf, item.id
        assert 0 < priced.peak_memory_bytes < math.inf, item.id


def test_the_published_table_is_packaged() -> None:
    """A file of the package, in the wheel too: ``hetplan validate`` works where no checkout is."""
    root = HERE.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["planner"]
    packaged = {path for pattern in patterns for path in (root / "planner").glob(pattern)}
    beside = {row[file] for row in published_rows() for file in ("cluster_file", "model_file", "plan_file")}
    assert {PUBLISHED, *(PUBLISHED.parent / name for name in beside - {""})} <= packaged
    assert not PUBLISHED.is_symlink()


def test_the_document_names_the_columns() -> None:
    """In the order of the file, and each with its meaning."""
    table = re.findall(r"^\| `(\w+)` \| (.+) \|$", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(name for name, _ in table) == COLUMNS
    assert [meaning for _, meaning in table] == [
        str(field.description).replace("``", "`") for field in MeasuredRow.model_fields.values()
    ]


def test_the_document_counts_the_rows() -> None:
    """Rows, runs and skipped rows of every source."""
    table = re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \|", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    rows = Counter(row["source"] for row in published_rows())
    runs = Counter(item.source for item in published().runs)
    assert {name: (int(whole), int(used)) for name, whole, used in table} == {
        name: (rows[name], runs[name]) for name in rows
    }


def test_how_zero_infinity_counts() -> None:
    """zinf-06: 10 B on a DGX-2 at 45 TFLOP/s, which its authors count as eight FLOPs a parameter and token."""
    item = run("zinf-06")
    parameters = 50 * (12 * 4096**2 + 13 * 4096) + (51200 + 1024 + 2) * 4096
    assert item.step_seconds == pytest.approx(8 * parameters * 128 * 1024 / 16 / 45e12, rel=1e-5)
    assert (item.plan.zero, item.devices, item.plan.micro_batches) == (3, 16, 1)


def test_a_run_of_the_dgx_cloud_benchmarks() -> None:
    """dgxc-405b-fp8-576: nine stages of two layers in each of seven chunks, half a sequence a device."""
    item = run("dgxc-405b-fp8-576")
    assert (item.source, item.devices, item.step_seconds) == ("dgxc", 576, 11.0)
    assert (item.plan.pp, item.plan.interleave, item.plan.cp, item.plan.micro_batches) == (9, 7, 2, 63)
    assert [stage.layers for stage in item.plan.stages] == [14] * 9
    assert (item.model.kv_heads, item.model.training.precision) == (16, "fp8")
    assert certain(item)


def test_a_run_of_mlperf() -> None:
    """mlperf-lora-v50-mi325x-8: 2.73 sequences a second, eight a step, on a base in fp8."""
    item = run("mlperf-lora-v50-mi325x-8")
    assert item.step_seconds == pytest.approx(8 / 2.73, rel=2e-3)
    assert (item.plan.target, item.plan.stages[0].dp, item.model.training.global_batch) == ("megatron", 8, 8)
    assert item.model.training.lora == LoraSpec(
        rank=16, targets=("q_proj", "k_proj", "v_proj", "o_proj"), base="fp8"
    )
    assert item.model.parameters == pytest.approx(69e9, rel=0.01)
    assert certain(item)


def test_a_run_of_fsdp_qlora() -> None:
    """1,024 samples of 2,048 tokens in 4,399 s on two RTX 4090 that hold 14.92 GiB each; the base is on the host."""
    item = run("fsdpq-2x4090-llama-2-70b-qlora-cpu-2048x2")
    assert item.model.training.lora is not None
    assert item.model.training.lora.base == "nf4"
    assert item.step_seconds == pytest.approx(4399 * item.model.training.global_batch / 1024, rel=1e-4)
    assert item.peak_memory_bytes == pytest.approx(14.92 * 2**30, rel=1e-4)
    assert item.plan.offload == Offload(optimizer="cpu", parameters="cpu")
    assert (item.plan.zero, item.plan.stages[0].dp) == (3, 2)


def test_a_peak_of_qwen() -> None:
    """81.0 of two cards on average: thousands of MiB, as so many GiB are more than they have."""
    item = run("qwen-7b-full-2-1024")
    assert item.peak_memory_bytes == pytest.approx(81.0e3 * 2**20, rel=0.01)
    assert (item.peak_memory_of, item.step_seconds) == ("reserved", 4.5)


@pytest.mark.parametrize("name", ["qwen-1.8b-full-1-256", "qwen-72b-lora-4-256", "qwen-7b-full-2-256"])
def test_hosts_bound_steps_of_zero_3(name: str) -> None:
    """A step of 256 tokens, for which devices would need a fraction of the time, is that of DeepSpeed's hooks."""
    item = run(name)
    found = estimate(item.plan, item.cluster, item.model, shipped())
    assert item.step_seconds is not None
    assert 0.6 < found.step_seconds / item.step_seconds < 1.25


def test_tokens_that_travel_once_to_a_node() -> None:
    """Qwen3 30B by HybridEP over two nodes of H100: half as long again with a row for each expert."""
    item = run("bridge-skills-experts-1")
    plain = item.model.trained_with(token_dispatcher="alltoall")
    found, each = (
        estimate(item.plan, item.cluster, model, shipped()).step_seconds for model in (item.model, plain)
    )
    assert item.step_seconds is not None
    assert 0.9 < found / item.step_seconds < 1.1
    assert each > 1.4 * item.step_seconds


def test_a_run_of_zero_offload() -> None:
    """zoff-42: 13 B on one V100, 34.5 TFLOP/s, eight FLOPs a parameter and token, 512 sequences four at a time."""
    item = run("zoff-42")
    parameters = 65 * (12 * 4096**2 + 13 * 4096) + (51200 + 1024 + 2) * 4096
    assert item.step_seconds == pytest.approx(8 * parameters * 512 * 1024 / 34.5e12, rel=1e-5)
    assert item.plan.offload == Offload(optimizer="cpu")
    assert (item.plan.target, item.plan.zero, item.plan.micro_batches, item.devices) == (
        "deepspeed",
        2,
        128,
        1,
    )
    assert not certain(item)


def test_a_run_of_zero_infinity() -> None:
    """zinf-08: 100 B on one DGX-2, 3.0 GB/s of host memory and 1.6 of NVMe for each of 16 devices."""
    item = run("zinf-08")
    assert item.plan.offload == Offload(optimizer="nvme", parameters="cpu", activations="cpu")
    (pool,) = item.cluster.pools
    assert item.cluster.host_link_of(pool, pool.devices[0]) == 3.0
    assert pool.host is not None
    assert pool.host.nvme_gBps == 25.6
    assert not certain(item)


def test_what_offload_adds_to_a_step_is_met() -> None:
    """ZeRO-Infinity on one DGX-2 within 15 %, once compute is as slow as in the run without offload."""
    found = {name: run(f"zinf-{name}") for name in ("06", "07", "08", "09", "10")}
    priced = {
        name: estimate(item.plan, item.cluster, item.model, shipped()).breakdown
        for name, item in found.items()
    }
    slower = measured(found["06"]) / priced["06"].step_seconds
    for name in ("07", "08", "09", "10"):
        ours = priced[name]
        beside = ours.optimizer_seconds + ours.offload_seconds
        expected = slower * (ours.step_seconds - beside) + beside
        assert measured(found[name]) == pytest.approx(expected, rel=0.15)


def measured(item: Run) -> float:
    """Its step time."""
    assert item.step_seconds is not None
    return item.step_seconds
