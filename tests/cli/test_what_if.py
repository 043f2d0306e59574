"""``hetplan what-if``, and changes of a cluster as they are typed."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cli import what_if
from planner.cluster.change import changed
from planner.cluster.file import load_cluster
from planner.errors import HetplanError, UsageError
from planner.model.file import load_model
from planner.model.spec import TrainingSpec
from planner.plan.file import cluster_part, read
from planner.search.objectives.choose import choose
from planner.search.what_if import worlds
from tests.cli.running import ROOT, Command, asked_once

LAB = load_cluster(ROOT / "cluster_specs" / "lab.yaml")
SITES = load_cluster(ROOT / "cluster_specs" / "three_sites.yaml")


def differing(before: Any, after: Any, at: str = "") -> dict[str, Any]:
    """New values by path, wherever two plain values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        parts = [differing(before.get(key), after.get(key), f"{at}.{key}") for key in {**before, **after}]
        return {path: value for part in parts for path, value in part.items()}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        parts = [
            differing(*pair, f"{at}.{index}") for index, pair in enumerate(zip(before, after, strict=True))
        ]
        return {path: value for part in parts for path, value in part.items()}
    return {} if before == after else {at: after}


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        (
            "links.lan.bandwidth_gbps=100",
            {".pools.0.nics.0.bandwidth_gbps": 100.0, ".pools.1.nics.0.bandwidth_gbps": 100.0},
        ),
        ("links.lan.latency_us=5", {".fabrics.lan.latency_us": 5.0}),
        ("pools.titan.nics.lan.bandwidth_gbps=25", {".pools.1.nics.0.bandwidth_gbps": 25.0}),
        ("pools.titan.price_per_gpu_hour=0.5", {".pools.1.price_per_gpu_hour": 0.5}),
        ("pools.titan.nodes=3", {".pools.1.hosts": ["lab-02", "titan-more-[0-1]"]}),
        ("+4 Titan-RTX", {".pools.1.hosts": ["lab-02", "titan-more-[0-1]"]}),
        ("+4 mixed", {".pools.0.hosts": ["lab-01", "mixed-more-0"]}),
        ("+2 RTX-3090", {".pools.0.hosts": ["lab-01", "mixed-more-0"]}),
        ("+2 3090", {".pools.0.hosts": ["lab-01", "mixed-more-0"]}),
        (
            "fabrics.lan.bandwidth_gbps=100",
            {".pools.0.nics.0.bandwidth_gbps": 100.0, ".pools.1.nics.0.bandwidth_gbps": 100.0},
        ),
        ("gpus.Titan-RTX.tflops.fp16=260", {".gpus.Titan-RTX.tflops.fp16": 260.0}),
        ("reserve_gib=2", {".reserve_gib": 2.0}),
        ("pools.titan.gpus_per_node=4", {".pools.1.devices.0": "4 x Titan-RTX"}),
        (
            "pools.titan.intra_node=nvlink-bridge-turing",
            {
                ".pools.1.intra_node.bandwidth_gBps": 50.0,
                ".pools.1.intra_node.latency_us": 3.4,
                ".pools.1.intra_node.shared": False,
                ".pools.1.intra_node.shared_by": None,
            },
        ),
    ],
)
def test_one_thing_changes(text: str, differs: dict[str, Any]) -> None:
    """And nothing else."""
    assert differing(cluster_part(LAB), cluster_part(changed(LAB, text))) == differs


def test_a_pool_goes_with_its_devices() -> None:
    """The others stay as they are."""
    less = changed(LAB, "-titan")
    assert [pool.name for pool in less.pools] == ["mixed"]
    assert set(less.gpus) == {"RTX-3090", "RTX-2080-Ti"}
    assert less.pools[0] == LAB.pools[0]


def test_a_device_that_no_pool_has_makes_a_pool() -> None:
    """Of whole nodes, on the network of the fastest cards; the others stay as they are."""
    more = changed(LAB, "+16 H100-SXM")
    assert more.pools[:2] == LAB.pools
    pool = more.pools[2]
    assert (pool.name, pool.hosts) == ("h100-sxm-80gb", ("h100-sxm-80gb-0", "h100-sxm-80gb-1"))
    assert pool.devices == ("H100-SXM-80GB",) * 8
    assert (pool.intra_node and pool.intra_node.bandwidth_gBps) == 450
    assert [(nic.fabric, nic.bandwidth_gbps, nic.count) for nic in pool.nics] == [("lan", 10.0, 1)]
    faster = changed(LAB, "pools.titan.nics.lan.bandwidth_gbps=25")
    assert changed(faster, "+1 4090").pools[2].nics[0].bandwidth_gbps == 25
    alone = LAB.model_copy(update={"pools": (LAB.pools[0].model_copy(update={"nics": ()}),), "fabrics": {}})
    with pytest.raises(UsageError, match="no pool has a network that new nodes could join"):
        changed(alone, "+1 4090")


@pytest.mark.parametrize(
    "text", ["pools.titan.gpu=4090", "pools.titan.devices=[2 x NVIDIA GeForce RTX 4090]"]
)
def test_a_pool_gets_devices_of_the_catalogue(text: str) -> None:
    """By any name that it knows; the others stay as they are."""
    after = changed(LAB, text)
    assert after.pools[1].devices == ("RTX-4090", "RTX-4090")
    assert after.pools[0] == LAB.pools[0]
    assert set(after.gpus) == {"RTX-3090", "RTX-2080-Ti", "RTX-4090"}
    assert after.gpus["RTX-4090"] == changed(LAB, "+1 4090").gpus["RTX-4090"]


def test_gateways_and_large_pools() -> None:
    """By the names of both fabrics; the first nodes of a pool stay."""
    wider = changed(SITES, "links.north-eth+west-eth.bandwidth_gbps=1600")
    assert [link.bandwidth_gbps for link in wider.links] == [1600.0, 400.0, 400.0]
    fewer = changed(SITES, "pools.south-v100.nodes=2")
    pool = next(pool for pool in fewer.pools if pool.name == "south-v100")
    assert pool.hosts == next(pool for pool in SITES.pools if pool.name == "south-v100").hosts[:2]


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("pools.titn.nodes=3", "no name in pools 'titn'", "titan"),
        ("fabrics=2", "expected a name and a key behind fabrics, as in fabrics.NAME.KEY=VALUE", "lan"),
        ("link.lan.bandwidth_gbps=3", "no key 'link'", "links"),
        ("titan.nodes=3", "no key 'titan'", "there is pools.titan.nodes"),
        (
            "lan.bandwidth_gbps=3",
            "no key 'lan'",
            "there is fabrics.lan.bandwidth_gbps, links.lan.bandwidth_gbps",
        ),
        ("-titam", "no pool 'titam'", "titan"),
        ("+8 H100", "no pool or device 'H100'", "there is H100-SXM-80GB, H100-PCIe-80GB"),
        ("+8 H100-SMX", "no pool or device 'H100-SMX'", "there is"),
        ("+12 H100-SXM", "expected up to 8 devices, or a multiple of it: whole nodes", None),
        ("+0 H100-SXM", "expected up to 8 devices, or a multiple of it: whole nodes", None),
        ("links.lan.bandwith_gbps=100", "no key 'bandwith_gbps'", "bandwidth_gbps"),
        ("links.lan.width=100", "no key 'width'", "bandwidth_gbps, kind"),
        ("model.layers=3", "no key 'model'", "training"),
        ("+3 Titan-RTX", "expected a multiple of 2, as a node of titan has them", None),
        ("pools.titan.nodes=many", "expected a whole number of nodes, got 'many'", None),
        ("pools.titan=3", "expected a key of titan", "there is name"),
        ("pools.titan.nics.bandwidth_gbps=25", "expected a fabric and a key behind nics", "there is lan"),
        ("pools.titan.nics.lan=25", "expected a fabric and a key behind nics", "there is lan"),
        ("pools.titan.nics.wan.count=2", "expected a fabric and a key behind nics", "there is lan"),
        ("pools.titan.gpu=H100", "no device 'H100'", "there is H100-SXM-80GB, H100-PCIe-80GB"),
        ("pools.titan.gpu=[4090]", "expected the name of a device, got [4090]", None),
        ("pools.titan.devices=[2 x H100]", "no device 'H100'", "there is H100-SXM-80GB, H100-PCIe-80GB"),
        ("pools.titan.gpus_per_node=0", "expected a whole number of devices, got 0", None),
        (
            "pools.mixed.gpus_per_node=2",
            "nodes of mixed have several types",
            "pools.mixed.devices=[2 x RTX-3090]",
        ),
        ("pools.titan.intra_node=nvlink9", "no link 'nvlink9'", "nvlink5"),
        ("pools.titan.devices=5", "pools[1].devices: expected a list, got 5", None),
        ("pools.titan.devices=[5]", "pools[1].devices: expected a list", None),
        ("nonsense", "expected PATH=VALUE, +N DEVICE or -POOL", "links.lan.bandwidth_gbps=100"),
        ("links.lan.bandwidth_gbps=-5", "pools[0].nics[0].bandwidth_gbps", None),
        ("pools.titan.colour=red", "pools[1].colour", None),
        ("pools.titan.nodes=[3", "not YAML: did not find expected ',' or ']'", None),
    ],
)
def test_what_is_no_change(text: str, said: str, hint: str | None) -> None:
    """One error that names the change, and the nearest names."""
    with pytest.raises(HetplanError) as raised:
        changed(LAB, text)
    assert str(raised.value).startswith(f"--change {text!r}: ")
    assert said in str(raised.value)
    if hint is not None:
        assert raised.value.hint is not None
        assert hint in raised.value.hint


@pytest.mark.usefixtures("without_reasons")
def test_the_command(hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, and once for each change; a faster network is never slower."""
    asked_once(monkeypatch, what_if, "searched")
    words = ["what-if", "cluster.yaml", "model.yaml", "--change", "links.ib.bandwidth_gbps=400"]
    words += ["--change", "-slow", "--change", "training.global_batch=32", "--target", "megatron"]
    shown = hetplan(*words)
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "as it is" in shown.out
    first, network, pool, batch = json.loads(hetplan(*words, "--json").out)["cases"]
    assert (first["change"], first["faster"]) == ("", 0.0)
    assert network["step_seconds"] <= first["step_seconds"] * 1.01
    assert pool["devices"] <= 2
    assert batch["tokens_per_second"] == pytest.approx((1 + batch["faster"]) * first["tokens_per_second"])


def test_training_can_change(hetplan: Command, files: Path) -> None:
    """What is no value of it is one error, in our words."""
    done = hetplan("what-if", "cluster.yaml", "model.yaml", "--change", "training.globalbatch=3")
    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == "error: --change 'training.globalbatch=3': unknown key\n  hint: did you mean global_batch?\n"
    )
    done = hetplan("what-if", "cluster.yaml", "model.yaml", "--change", "training.global_batch=0.5")
    assert (done.code, done.out) == (2, "")
    assert "expected a whole number" in done.err


def test_training_changes_to_what_a_model_file_may_say() -> None:
    """A part of a setting, lists and mappings; settings that do not go together are no change, as in a model file."""
    model = load_model(ROOT / "model_specs" / "mistral_7b_lora.yaml")

    def trained(*changes: str) -> TrainingSpec:
        *_, (_, _, last) = worlds(LAB, model, changes)
        return last.training

    known = model.training.lora
    assert known is not None
    lora = trained("training.lora.rank=64").lora
    assert lora == known.model_copy(update={"rank": 64})
    lora = trained("training.lora={rank: 64, targets: [q_proj, v_proj]}").lora
    assert lora is not None
    assert (lora.rank, lora.targets) == (64, ("q_proj", "v_proj"))
    for change, said in (
        (
            "training.optimizer=muon",
            "training.optimizer: expected adamw, sgd, lion or adafactor with lora, got muon",
        ),
        ("training.freeze=[embedding]", "training.freeze: expected none with lora"),
        ("training.lora.targets=[in_proj]", "training.lora.targets[0]: the layers have no in_proj"),
        ("training.token_dispatcher=deepep", "training.token_dispatcher: no layer has experts"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            trained(change)


@pytest.mark.usefixtures("without_reasons")
def test_equal_plans_stand_once_and_assumptions_are_told(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all changes that lead to them; what new nodes are taken to be stands below the table."""
    asked_once(monkeypatch, what_if, "searched")
    words = ["what-if", "cluster.yaml", "model.yaml", "--target", "megatron", "--time-limit", "5"]
    words += ["--change", "reserve_gib=0.5", "--change", "reserve_gib=0.4", "--change", "+1 H100-SXM"]
    shown = hetplan(*words)
    flat = " ".join(shown.out.split())
    assert "reserve_gib=0.5, reserve_gib=0.4" in flat.partition("Plans")[2], flat
    assert "+1 H100-SXM: assumes 1 node of 1 H100-SXM-80GB, " in flat
    found = json.loads(hetplan(*words, "--json").out)["cases"]
    assert [case["assumed"] is None for case in found] == [True, True, True, False]


@pytest.mark.usefixtures("without_reasons")
def test_the_calibration_goes_on_to_the_next_command(hetplan: Command, files: Path) -> None:
    """Doubts about it are told, and a search that keeps the plan takes it too."""
    Path("c.yaml").write_text("format: hetplan-calibration/1\n", encoding="utf-8")
    done = hetplan(*("what-if", "cluster.yaml", "model.yaml", "--change", "-slow", "--calibration", "c.yaml"))
    assert done.code == 0, done.err
    assert done.out.endswith("-o plan.yaml --calibration c.yaml\n")


def test_speeds_at_the_ends_of_their_bars(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slower type never makes today's plan faster; the best there is no worse than it; only changes have a plan."""
    asked_once(monkeypatch, what_if, "searched")
    asked_once(monkeypatch, what_if, "swings")
    words = ["what-if", "cluster.yaml", "model.yaml", "--sensitivity", "--target", "megatron"]
    found = json.loads(hetplan(*words, "--json").out)
    (today,) = found["cases"]
    swings = found["sensitivity"]
    assert {tuple(each["members"]) for each in swings} == {("A100-SXM-40GB",), ("V100-SXM-16GB",), ("ib",)}
    for each in swings:
        assert each["factor"] == pytest.approx((1 + each["spread"]) ** (1 if each["factor"] > 1 else -1))
        assert (each["kept_seconds"] - today["step_seconds"]) * (each["factor"] - 1) <= 1e-12
        assert each["loses"] == pytest.approx(each["kept_seconds"] / each["step_seconds"] - 1)
        assert each["loses"] >= 0
        assert (each["plan"] is not None) == each["changes"] == (each["loses"] > 0.01)
    shown = hetplan(*words)
    assert "What the answer depends on" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_a_change_or_the_sensitivity_is_needed(hetplan: Command, files: Path) -> None:
    """One line and a hint."""
    done = hetplan("what-if", "cluster.yaml", "model.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: what-if: expected a --change, or --sensitivity\n  hint: ")


@pytest.mark.usefixtures("without_reasons")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            "what-if cluster.yaml model.yaml --change reserve_gib=0.5 --target megatron --time-limit 5",
            marks=pytest.mark.slow,
        ),
        "predict cluster.yaml model.yaml short.yaml",
    ],
)
def test_the_next_command_has_the_same_settings(hetplan: Command, files: Path, words: str) -> None:
    """As it stands there it runs, and asks about the same training."""
    settings = ("--precision", "fp32", "--global-batch", "24", "--sequence-length", "256", "--safe", "0.4")
    shown = hetplan(*words.split(), *settings)
    following = shlex.split(shown.out.rpartition("Next:")[2].replace("\\\n", ""))
    assert following[0] == "hetplan"
    assert ("--target" in following) == ("--target" in words)
    assert hetplan(*following[1:]).code == 0
    kept = read(Path("plan.yaml"))
    training = kept.model.training
    assert (training.precision, training.global_batch, training.sequence_length) == ("fp32", 24, 256)
    assert kept.cluster.safe == 0.4


def test_what_was_searched_before_ctrl_c_is_told(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes up to the one whose search was stopped, with what it had found, and which are left out."""
    left = 2

    def stopped(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        return replace(choose(*arguments, **options), interrupted=not left)

    monkeypatch.setattr("planner.search.what_if.choose", stopped)
    changes = ("--change", "training.global_batch=32", "--change", "-slow", "--target", "deepspeed")
    done = hetplan("what-if", "cluster.yaml", "model.yaml", *changes)
    assert done.code == 130
    said = " ".join(done.out.split())
    assert (
        "stopped by Ctrl-C: the search of training.global_batch=32 was not finished; left out: -slow" in said
    )
    assert said.count("training.global_batch=32") > 1
    left = 1
    assert "the search of the cluster as it is was not finished" in " ".join(
        hetplan("what-if", "cluster.yaml", "model.yaml", *changes).out.split()
    )
    left = 1
    assert hetplan("what-if", "cluster.yaml", "model.yaml", "--sensitivity").code == 130


def test_speeds_that_were_looked_at_before_ctrl_c_are_told(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of the others."""
    ends: list[Any] = []

    def stopped(*arguments: Any, **options: Any) -> Any:
        result = choose(*arguments, **options)
        ends.append(result)
        return replace(result, interrupted=len(ends) == 3)

    monkeypatch.setattr("planner.search.what_if.choose", stopped)
    words = ("what-if", "cluster.yaml", "model.yaml", "--sensitivity", "--target", "deepspeed")
    done = hetplan(*words)
    assert (done.code, len(ends)) == (130, 3)
    assert "What the answer depends on" in done.out
    assert "stopped by Ctrl-C: not every speed was looked at" in done.out
    assert "no speed within its error bar" not in done.out
    ends.clear()
    assert len(json.loads(hetplan(*words, "--json").out)["sensitivity"]) == 1
