"""The start script, run with a stand-in for torchrun that prints what it was given."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from tests.worlds import GPUS, cluster, group, model, nic, plan, pool

TORCHRUN = """#!/bin/sh
printf 'word:%s\\n' "$@"
env | grep -E '^(CUDA|HIP|NCCL|GLOO|HETPLAN|MASTER|TORCH_)' | sort
exit "${STUB_EXIT:-0}"
"""
UNEVEN = cluster(
    pool("big", ("A100",) * 4, 1, (nic("eth", "ens1"),)),
    pool("small", ("T4", "A100", "T4"), 1, (nic("eth", "eth0"),)),
)


def deepspeed_plan() -> Plan:
    """Four devices on one node, the two T4 on the other."""
    return plan(
        "deepspeed", 1, [4], [(group("big", "A100", count=4, share=2), group("small", "T4", count=2))]
    )


def megatron_plan() -> Plan:
    """Two stages on one node of four devices."""
    return plan("megatron", 1, [3, 1], [(group("big", "A100", tp=2, share=4, steps=4),)] * 2)


def emitted(tmp_path: Path, chosen: Plan, where: ClusterSpec, spec: ModelSpec) -> Path:
    """The folder, in a path with a space."""
    write_folder(emit(chosen, where, spec), tmp_path / "a run")
    return tmp_path / "a run"


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script with the stand-in first on PATH, from another folder."""
    stub = folder.parent / "bin" / "torchrun"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(TORCHRUN)
    stub.chmod(0o755)
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")
    }
    return subprocess.run(
        ["bash", str(folder / "launch.sh"), *arguments],
        cwd="/",
        env={**inherited, "PATH": f"{stub.parent}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def words(output: str) -> list[str]:
    """What torchrun was given."""
    return [line.removeprefix("word:") for line in output.splitlines() if line.startswith("word:")]


@pytest.mark.parametrize("chosen", [deepspeed_plan(), megatron_plan()], ids=["deepspeed", "megatron"])
def test_scripts_parse(tmp_path: Path, chosen: Plan) -> None:
    """Every shell file is valid bash."""
    folder = emitted(tmp_path, chosen, UNEVEN, model(chosen.global_batch))
    scripts = sorted(folder.rglob("*.sh"))
    assert len(scripts) >= 2
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_each_node_starts_its_own_ranks(tmp_path: Path) -> None:
    """Nodes differ in processes, devices and network; rendezvous is the first node."""
    folder = emitted(tmp_path, deepspeed_plan(), UNEVEN, model(10))
    done = run(folder, "1", "--", "--steps", "5 5")
    assert done.returncode == 0, done.stderr
    assert words(done.stdout) == [
        *("--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "2", "--rdzv-backend", "static"),
        *("--master-addr", "big-0", "--master-port", "29500", "train.py", "--steps", "5 5"),
    ]
    assert "CUDA_VISIBLE_DEVICES=0,2\n" in done.stdout
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in done.stdout
    assert "NCCL_SOCKET_IFNAME==eth0\n" in done.stdout
    assert "HETPLAN_HOST=small-0\n" in done.stdout
    assert "NCCL_SOCKET_IFNAME==ens1\n" in run(folder, "0").stdout


def test_devices_of_a_node_that_jobs_share(tmp_path: Path) -> None:
    """HETPLAN_DEVICES are those of the job; the plan counts among them."""
    folder = emitted(tmp_path, deepspeed_plan(), UNEVEN, model(10))
    assert "CUDA_VISIBLE_DEVICES=4,7\n" in run(folder, "1", HETPLAN_DEVICES="4,5,7").stdout
    done = run(folder, "1", HETPLAN_DEVICES="4,5")
    assert done.returncode == 2
    assert "HETPLAN_DEVICES=4,5 has no device number 2" in done.stderr


def test_rendezvous_can_be_moved(tmp_path: Path) -> None:
    """Address and port come from the environment when they are there."""
    folder = emitted(tmp_path, deepspeed_plan(), UNEVEN, model(10))
    started = words(run(folder, "0", MASTER_ADDR="10.0.0.1", MASTER_PORT="5").stdout)
    assert started[8:12] == ["--master-addr", "10.0.0.1", "--master-port", "5"]


def test_unknown_node(tmp_path: Path) -> None:
    """A node rank or host that is not in the table is one message."""
    folder = emitted(tmp_path, deepspeed_plan(), UNEVEN, model(10))
    done = run(folder, "2")
    assert done.returncode == 2
    assert "no node 2, expected 0 to 1" in done.stderr
    done = run(folder)
    assert done.returncode == 2
    assert "is not in nodes.txt" in done.stderr


def this_host_twice() -> tuple[Plan, ClusterSpec]:
    """A plan that uses this host for two separate runs of ranks, with another host between."""
    name = socket.gethostname().split(".")[0] + ".example.org"
    mine = pool("mine", ("A100", "T4"), 1).model_copy(update={"hosts": (name,)})
    replicas = (group("mine", "A100"), group("other", "T4"), group("mine", "T4"))
    return plan("deepspeed", 0, [4], [replicas]), cluster(mine, pool("other", ("T4",), 1))


def test_host_is_found_by_name(tmp_path: Path) -> None:
    """Without a node rank a host starts all its lines, whether names are short or full."""
    chosen, where = this_host_twice()
    done = run(emitted(tmp_path, chosen, where, model(3)), "--", "--steps", "1")
    assert done.returncode == 0, done.stderr
    started = words(done.stdout)
    assert sorted(started[at + 1] for at, word in enumerate(started) if word == "--node-rank") == ["0", "2"]
    assert started.count("--steps") == 2
    assert "CUDA_VISIBLE_DEVICES=0\n" in done.stdout
    assert "CUDA_VISIBLE_DEVICES=1\n" in done.stdout


def test_failure_is_passed_on(tmp_path: Path) -> None:
    """The script ends as torchrun ends, alone or as one of two."""
    chosen, where = this_host_twice()
    folder = emitted(tmp_path, chosen, where, model(3))
    assert run(folder, "0", STUB_EXIT="7").returncode == 7
    assert run(folder, STUB_EXIT="7").returncode == 7


def test_megatron_gets_its_arguments(tmp_path: Path) -> None:
    """Megatron's script comes from its checkout; variables replace what the plan leaves open."""
    folder = emitted(tmp_path, megatron_plan(), UNEVEN, model(4))
    assert "set MEGATRON_PATH" in run(folder, "0").stderr
    done = run(folder, "0", "--", "--save", "out", MEGATRON_PATH="/opt/meg atron", TRAIN_ITERS="7")
    started = words(done.stdout)
    assert started[12] == "/opt/meg atron/pretrain_gpt.py"
    assert started[-2:] == ["--save", "out"]
    assert started[started.index("--train-iters") + 1] == "7"
    assert started[started.index("--pipeline-model-parallel-layout") + 1] == "Et*3|tL"
    assert "--mock-data" in started
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1\n" in done.stdout


@pytest.mark.parametrize("chosen", [deepspeed_plan(), megatron_plan()], ids=["deepspeed", "megatron"])
@pytest.mark.parametrize("precision", ["tf32", "fp32", "bf16"])
def test_tf32_is_switched_on(tmp_path: Path, chosen: Plan, precision: str) -> None:
    """PyTorch multiplies fp32 numbers in fp32 unless the environment says otherwise."""
    folder = emitted(tmp_path, chosen, UNEVEN, model(chosen.global_batch, precision=precision))
    done = run(folder, "0", MEGATRON_PATH="/m")
    assert done.returncode == 0, done.stderr
    switched = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1\n" in done.stdout
    assert switched == (precision == "tf32")
    if chosen.target == "deepspeed":
        assert ("other launchers" in (folder / "README.md").read_text()) == switched


def test_megatron_takes_own_data(tmp_path: Path) -> None:
    """A file of the user's replaces the mock data."""
    folder = emitted(tmp_path, megatron_plan(), UNEVEN, model(4))
    (tmp_path / "data.sh").write_text('DATA_ARGS=(--data-path "my text")\n')
    done = run(folder, "0", MEGATRON_PATH="/m", DATA_ARGS_FILE=str(tmp_path / "data.sh"))
    started = words(done.stdout)
    assert started[-2:] == ["--data-path", "my text"]
    assert "--mock-data" not in started


def test_network_of_each_group(tmp_path: Path) -> None:
    """On two fabrics Megatron is wrapped, and each pool names its own network file."""
    where = cluster(
        pool("big", ("A100",) * 2, 2, (nic("ib", "ib0", "mlx5_0"), nic("eth", "ens1"))),
        pool("small", ("T4",) * 2, 2, (nic("eth", "eth0"),)),
    )
    stages = [(group("big", "A100", count=4, share=2),), (group("small", "T4", count=4, share=2),)]
    folder = emitted(tmp_path, plan("megatron", 1, [3, 1], stages), where, model(8))
    done = run(folder, "3", MEGATRON_PATH="/m")
    started = words(done.stdout)
    assert started[12:14] == ["start_megatron.py", "/m/pretrain_gpt.py"]
    assert started[-2:] == ["--nccl-communicator-config-path", str(folder / "nccl" / "small.yaml")]
    assert (folder / "start_megatron.py").exists()
    assert "NCCL_NET=" not in done.stdout
    assert "NCCL_IB_HCA==mlx5_0\n" in run(folder, "0", MEGATRON_PATH="/m").stdout


def test_devices_of_amd(tmp_path: Path) -> None:
    """HIP numbers them as rocm-smi does; no variable of CUDA is left to contradict it."""
    amd = GPUS["A100"].model_copy(update={"vendor": "amd", "name": "MI"})
    where = cluster(pool("red", ("MI",) * 4, 1), gpus={"MI": amd})
    chosen = plan("torch", 1, [4], [(group("red", "MI", count=2, share=2),)])
    done = run(emitted(tmp_path, chosen, where, model(4)), "0", CUDA_VISIBLE_DEVICES="3")
    assert done.returncode == 0, done.stderr
    assert "HIP_VISIBLE_DEVICES=0,1\n" in done.stdout
    assert "CUDA_VISIBLE_DEVICES" not in done.stdout.replace("HIP_VISIBLE_DEVICES", "")
