"""Accelerate under the emitted scripts: its arguments, its configuration by its own parser, and a real start."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from planner.cluster.spec import HostSpec
from planner.emit.interface import emit, folder_files, job_of, write_folder
from planner.errors import EmitError
from planner.model.spec import ExpertsSpec
from planner.plan.values import Offload, Plan, Sync, ZeroPlus
from tests.launchers.stand_ins import SSH, folder_of, run
from tests.launchers.test_engines import one_pool
from tests.training.launching import launch, losses
from tests.worlds import cluster, group, model, plan, pool

ACCELERATE = '#!/bin/bash\necho "node=$HETPLAN_NODE devices=$CUDA_VISIBLE_DEVICES $*" >>"$JOURNAL"\n'


def two_nodes(target: str, zero: int) -> Plan:
    """Four devices of two nodes."""
    own, _ = one_pool()
    return dataclasses.replace(own, target=target, zero=zero)


def test_every_node_has_its_rank(tmp_path: Path) -> None:
    """The configuration is the same everywhere; rank and rendezvous come from launch.sh."""
    folder = folder_of(tmp_path, "accelerate", *one_pool())
    command = [str(folder / "start.sh"), "--", "--text", "my file"]
    done = run(tmp_path, {"ssh": SSH, "accelerate": ACCELERATE}, command)
    assert done.returncode == 0, done.stderr
    end = "--main_process_ip big-0 --main_process_port 29500 train.py --text my file"
    assert sorted((tmp_path / "journal").read_text().splitlines()) == [
        f"node={node} devices=0,1 launch --config_file accelerate.yaml --machine_rank {node} {end}"
        for node in range(2)
    ]


@pytest.mark.parametrize(
    ("target", "zero", "kind"),
    [("torch", 0, "MULTI_GPU"), ("torch", 2, "FSDP"), ("torch", 3, "FSDP"), ("deepspeed", 3, "DEEPSPEED")],
)
def test_accelerate_reads_it(tmp_path: Path, target: str, zero: int, kind: str) -> None:
    """By its own parser, which refuses keys that it does not know."""
    read = pytest.importorskip("accelerate.commands.config.config_args")
    _, where = one_pool()
    folder = folder_of(tmp_path, "accelerate", two_nodes(target, zero), where)
    found = read.load_config_from_file(str(folder / "accelerate.yaml"))
    assert (found.distributed_type.value, found.num_machines, found.num_processes) == (kind, 2, 4)
    assert found.mixed_precision == "bf16"
    if kind == "FSDP":
        assert found.fsdp_config["fsdp_reshard_after_forward"] == (zero == 3)
        parser = pytest.importorskip("accelerate.commands.launch").launch_command_parser()
        assert set(found.fsdp_config) <= {action.dest for action in parser._actions}
    if kind == "DEEPSPEED":
        assert found.deepspeed_config["zero_stage"] == 3
    assert yaml.safe_load((folder / "accelerate.yaml").read_text())["same_network"] is True


@pytest.mark.parametrize("target", ["torch", "deepspeed"])
@pytest.mark.parametrize(
    ("precision", "told"), [("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "no"), ("tf32", "no")]
)
def test_the_number_format_is_the_plans(target: str, precision: str, told: str) -> None:
    """An Accelerator() of the user's casts as the plan counts on."""
    _, where = one_pool()
    job = job_of(two_nodes(target, 2), where, model(8, layers=4, precision=precision))
    files = {file.path: file.text for file in folder_files(job, "accelerate")}
    assert yaml.safe_load(files["accelerate.yaml"])["mixed_precision"] == told


def test_parameters_rest_in_host_memory_where_the_plan_says_so(tmp_path: Path) -> None:
    """In the words of each runtime."""
    _, where = one_pool()
    pools = tuple(each.model_copy(update={"host": HostSpec(link_gBps=10)}) for each in where.pools)
    with_hosts = where.model_copy(update={"pools": pools})
    for resting in ("none", "cpu"):
        kept = Offload(optimizer=resting, parameters=resting)
        told = {}
        for target in ("torch", "deepspeed"):
            chosen = dataclasses.replace(two_nodes(target, 3), offload=kept)
            folder = folder_of(tmp_path / target / resting, "accelerate", chosen, with_hosts)
            told[target] = yaml.safe_load((folder / "accelerate.yaml").read_text())
        assert told["torch"]["fsdp_config"]["fsdp_offload_params"] is (resting == "cpu")
        own = told["deepspeed"]["deepspeed_config"]
        assert (own["offload_optimizer_device"], own["offload_param_device"]) == (resting, resting)


def test_what_it_cannot_express(tmp_path: Path) -> None:
    """Nodes with other numbers of ranks, stages, and another runtime are refused with the reason."""
    with pytest.raises(EmitError, match="as many ranks on every node, the plan has 2, 4"):
        folder_of(tmp_path, "accelerate")
    _, where = one_pool()
    staged = plan("torch", 1, [3, 1], [(group("big", "A100-SXM-80GB", count=2, share=2, steps=2),)] * 2)
    with pytest.raises(EmitError, match="no stages"):
        folder_of(tmp_path, "accelerate", staged, where)
    with pytest.raises(EmitError, match="does not start megatron"):
        folder_of(tmp_path, "accelerate", two_nodes("megatron", 1), where)
    spec = model(8, layers=4, experts=ExpertsSpec(number=4, top_k=2, ffn=24))
    apart = plan("deepspeed", 1, [4], [(group("big", "A100-SXM-80GB", count=4, share=2),)], ep=2)
    with pytest.raises(EmitError, match="divide no experts"):
        folder_files(job_of(apart, where, spec), "accelerate")
    host = HostSpec(link_gBps=10, nvme_gBps=5)
    pools = tuple(each.model_copy(update={"host": host}) for each in where.pools)
    with_hosts = where.model_copy(update={"pools": pools})
    whole = two_nodes("deepspeed", 3)
    for changes, what in (
        ({"offload": Offload(optimizer="cpu", ratio=0.5)}, "share of an offloaded optimizer"),
        ({"offload": Offload(optimizer="nvme")}, "folder of each pool's own on NVMe"),
        ({"zero_plus": ZeroPlus(secondary=2)}, r"ZeRO\+\+"),
        ({"target": "torch", "shard_size": 2}, "groups of replicas that share states"),
        ({"cp": 2, "cp_kind": "ulysses"}, "divided sequences"),
        ({"target": "torch", "zero": 0, "backup": 1}, "backup replicas"),
        ({"target": "torch", "zero": 0, "sync": Sync(every=8)}, "islands"),
    ):
        with pytest.raises(EmitError, match=f"its configuration has no {what}"):
            folder_of(tmp_path, "accelerate", dataclasses.replace(whole, **changes), with_hosts)
    eight = model(8, layers=4, hidden=64, head_dim=16, precision="fp8")
    with pytest.raises(EmitError, match="no products in fp8"):
        folder_files(job_of(two_nodes("torch", 3), where, eight), "accelerate")


@pytest.mark.slow
def test_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts the example on two ranks of this machine, which trains."""
    pytest.importorskip("accelerate")
    where = cluster(pool("a", ("T4",) * 2, 1))
    chosen = plan("torch", 3, [2], [(group("a", "T4", count=2, share=2),)])
    folder = tmp_path / "a run"
    write_folder(emit(chosen, where, model(4, layers=2, precision="fp32"), "accelerate"), folder)
    monkeypatch.setenv("TORCHRUN", "./accelerate.sh")
    assert len(losses(launch(folder, 1, "--steps", "2"))) == 2
