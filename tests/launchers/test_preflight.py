"""The look at the nodes, with stand-ins for ssh, nvidia-smi and the kernel's list of devices."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from planner.catalog import driver_names, product_labels
from planner.cluster.spec import ClusterSpec, NicSpec
from planner.plan.values import Offload
from tests.launchers.stand_ins import SSH, TORCHRUN, folder_of, install, run, three_nodes
from tests.quick import first
from tests.worlds import GPUS, cluster, group, plan, pool

SMI = """#!/bin/bash
# The devices of a node, without the one that is named as missing.
case ${HOST_OF_SSH:-big-0} in
  small-0) names=("Tesla T4" "Tesla T4") ;;
  *) names=("NVIDIA A100-SXM4-80GB" "NVIDIA A100-SXM4-80GB" "NVIDIA A100-SXM4-80GB" "NVIDIA A100-SXM4-80GB") ;;
esac
if [[ ${HOST_OF_SSH:-big-0} == "${OTHER_KIND_ON:-}" ]]; then names[1]="NVIDIA H100 PCIe"; fi
driver=580.82
if [[ ${HOST_OF_SSH:-} == "${OTHER_DRIVER_ON:-none}" ]]; then driver=580.65; fi
if [[ ${HOST_OF_SSH:-} == "${OLD_DRIVER_ON:-none}" ]]; then driver=590.44; fi
if [[ ${ALL_DRIVERS:-} ]]; then driver=$ALL_DRIVERS; fi
for index in "${!names[@]}"; do
  if [[ ${HOST_OF_SSH:-big-0}:$index != "${MISSING:-}" ]]; then echo "$index, ${names[index]}, $driver"; fi
done
"""
PYTHON = """#!/bin/bash
# Versions as an interpreter of each node would tell them; real for the look at the port.
if [[ $1 == -c ]]; then exec python3 "$@"; fi
cat >/dev/null
echo "fact: python 3.11.9"
torch=2.13.0
if [[ ${HOST_OF_SSH:-} == "${OTHER_TORCH_ON:-none}" ]]; then torch=2.12.1; fi
echo "fact: torch ${ALL_TORCH:-$torch}+cu130"
cuda=13.0
if [[ ${HOST_OF_SSH:-} == "${OTHER_CUDA_ON:-none}" ]]; then cuda=12.8; fi
echo "fact: cuda $cuda"
nccl=2.28.3
if [[ ${HOST_OF_SSH:-} == "${OTHER_NCCL_ON:-none}" ]]; then nccl=2.27.5; fi
echo "fact: nccl $nccl"
echo "fact: deepspeed 0.19.8"
"""
GETENT = """#!/bin/bash
# Knows every name but one.
[[ $1 == ahosts && $2 != "${UNKNOWN:-}" ]]
"""
PLACEHOLDER = "it is a placeholder, write the node's name into nodes.txt"
STAND_INS = {"getent": GETENT, "ssh": SSH, "nvidia-smi": SMI, "python-of-nodes": PYTHON, "torchrun": TORCHRUN}


def free_port() -> str:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


def look(
    tmp_path: Path, *words: str, script: str = "preflight.sh", ssh: str = SSH, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the script in a folder with a blank in its path."""
    folder = tmp_path / "a run"
    if not folder.exists():
        folder_of(tmp_path, "ssh")
    for name in ("ens1", "eth0"):
        place = tmp_path / "sys" / "class" / "net" / name
        if not place.exists() and environment.get("NO_CARD") != name:
            place.mkdir(parents=True)
            (place / "operstate").write_text("up\n")
    given = {"SYSFS": str(tmp_path / "sys"), "PYTHON": "python-of-nodes", "MASTER_PORT": free_port()}
    return run(
        tmp_path, {**STAND_INS, "ssh": ssh}, [str(folder / script), *words], **{**given, **environment}
    )


def test_all_is_well(tmp_path: Path) -> None:
    """Exit 0 and one line."""
    done = look(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "preflight: 3 hosts, no fault\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"DEAD": "big-1"},
            f"big-1: cannot be reached: {PLACEHOLDER}: ssh: connect to host big-1 port 22: ",
        ),
        ({"MISSING": "big-1:3"}, "big-1: GPU 3 is missing, the plan has A100-SXM-80GB"),
        ({"OTHER_KIND_ON": "small-0"}, "small-0: GPU 1 is NVIDIA H100 PCIe, the plan has T4"),
        ({"NO_CARD": "eth0"}, "small-0: network interface eth0 is missing"),
        ({"OTHER_TORCH_ON": "small-0"}, "small-0: torch is 2.12.1+cu130, on big-0 it is 2.13.0+cu130"),
        ({"OTHER_CUDA_ON": "small-0"}, "small-0: cuda is 12.8, on big-0 it is 13.0"),
        ({"OTHER_NCCL_ON": "small-0"}, "small-0: nccl is 2.27.5, on big-0 it is 2.28.3"),
        ({"OTHER_DRIVER_ON": "big-1"}, "big-1: driver is 580.65, on big-0 it is 580.82"),
        ({"PYTHON": "none-such"}, "big-0: Python does not run: "),
    ],
)
def test_one_fault(tmp_path: Path, environment: dict[str, str], line: str) -> None:
    """Each fault is a line with its host, and exit 1; several at once are tried more quickly."""
    done = look(tmp_path, **environment)
    assert done.returncode == 1
    assert done.stdout.startswith(line)
    assert "no fault" not in done.stdout


def named_cluster() -> ClusterSpec:
    """The three nodes, two under names that their owner gave them."""
    whole = three_nodes()
    big, small = whole.pools
    return whole.model_copy(update={"pools": (big.model_copy(update={"hosts": ("n1", "n2")}), small)})


def test_placeholders_are_named_as_such(tmp_path: Path) -> None:
    """A host that does not answer under the name that hetplan made up; a name of the user's is only dead."""
    folder_of(tmp_path, "ssh", where=named_cluster())
    done = look(tmp_path, DEAD="n1 n2 small-0", HOST_OF_SSH="small-0")
    assert [line.split(": ssh: ")[0] for line in done.stdout.splitlines()] == [
        "n1: cannot be reached",
        "n2: cannot be reached",
        f"small-0: cannot be reached: {PLACEHOLDER}",
    ]


def test_the_rendezvous_is_known(tmp_path: Path) -> None:
    """Every node has to find the first one; MASTER_ADDR may name it otherwise."""
    done = look(tmp_path, "--local", "1", UNKNOWN="big-0")
    assert done.returncode == 1
    assert done.stdout == (
        f"fault: the first node's name big-0 is not known here: {PLACEHOLDER}, or set MASTER_ADDR\n"
    )
    assert look(tmp_path, "--local", "1", UNKNOWN="big-0", MASTER_ADDR="10.0.0.1").returncode == 0
    done = look(tmp_path, "--local", "1", UNKNOWN="10.0.0.9", MASTER_ADDR="10.0.0.9")
    assert done.stdout == "fault: the first node's name 10.0.0.9 is not known here, or set MASTER_ADDR\n"


def test_all_faults_at_once(tmp_path: Path) -> None:
    """One fault hides no other, wherever it is."""
    done = look(
        tmp_path,
        DEAD="small-0",
        MISSING="big-1:0",
        OTHER_KIND_ON="big-0",
        OTHER_TORCH_ON="big-1",
        OTHER_CUDA_ON="big-1",
        OTHER_NCCL_ON="big-1",
        OTHER_DRIVER_ON="big-1",
    )
    assert done.returncode == 1
    assert [line.split(": ssh: ")[0] for line in done.stdout.splitlines()] == [
        "big-0: GPU 1 is NVIDIA H100 PCIe, the plan has A100-SXM-80GB",
        "big-1: GPU 0 is missing, the plan has A100-SXM-80GB",
        f"small-0: cannot be reached: {PLACEHOLDER}",
        "big-1: torch is 2.12.1+cu130, on big-0 it is 2.13.0+cu130",
        "big-1: cuda is 12.8, on big-0 it is 13.0",
        "big-1: nccl is 2.27.5, on big-0 it is 2.28.3",
        "big-1: driver is 580.65, on big-0 it is 580.82",
    ]


def test_versions_that_were_not_tried_are_a_warning(tmp_path: Path) -> None:
    """Equal versions that nobody tried do not stop a launch, and neither do pools with drivers of their own."""
    done = look(tmp_path, ALL_TORCH="2.9.0", OLD_DRIVER_ON="small-0")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "warning: torch is 2.9.0+cu130, these files were tested with 2.13",
        "warning: driver is 590.44 in pool small, 580.82 in pool big",
        "preflight: 3 hosts, no fault",
    ]


def test_port_in_use(tmp_path: Path) -> None:
    """A port that somebody listens on is found on the first node; ranks of another one only connect to it."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = look(tmp_path, "--local", "0", MASTER_PORT=port)
        other = look(tmp_path, "--local", "2", MASTER_PORT=port, HOST_OF_SSH="small-0")
    assert (done.returncode, other.returncode) == (1, 0)
    assert done.stdout == f"fault: port {port} is in use, set MASTER_PORT to another\n"


def test_folder_is_missing_elsewhere(tmp_path: Path) -> None:
    """A node without the folder is told apart from one that is dead."""
    done = look(tmp_path, REMOTE_DIR=str(tmp_path / "not there"))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["big-0", "big-1", "small-0"]
    assert all("no preflight.sh in " in line for line in lines)


def test_folder_differs_elsewhere(tmp_path: Path) -> None:
    """A changed file on one node is found."""
    folder_of(tmp_path, "ssh")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(tmp_path / "a run"), str(copy)], check=True)
    (copy / "batches.json").write_text("{}\n")
    moved = SSH.replace(
        "exec bash", 'if [[ $1 == big-1 ]]; then set -- "$1" "${2//a\\\\ run/copy}"; fi\nexec bash'
    )
    done = look(tmp_path, ssh=moved)
    assert done.returncode == 1
    copied = "this folder is a copy on big-1: checkpoints of all ranks need a file system that nodes share"
    differs = "big-1: the files of this folder differ from those on big-0"
    assert done.stdout.splitlines() == [f"warning: {copied}", differs]


def test_old_driver(tmp_path: Path) -> None:
    """A node whose driver is older than PyTorch's CUDA asks for is warned of, and that alone is no fault."""
    done = look(tmp_path, "--local", "1", ALL_DRIVERS="550.54.15", HOST_OF_SSH="big-1")
    assert done.returncode == 0
    assert done.stdout.startswith("warning: driver 550.54.15 is older than 580, which CUDA 13.0 of PyTorch ")


def test_full_disk_and_wrong_clock(tmp_path: Path) -> None:
    """No room for a checkpoint is a fault, a clock that is off a warning."""
    programs = tmp_path / "stand ins"
    programs.mkdir()
    (programs / "df").write_text(
        "#!/bin/bash\n"
        'echo "Filesystem 1024-blocks Used Available"\n'
        'if [[ ${HOST_OF_SSH:-} == big-1 ]]; then echo "x 1 1 9"; else echo "x 9 1 9999999"; fi\n'
    )
    (programs / "date").write_text(
        '#!/bin/bash\nnow=$(/bin/date "$@"); [[ ${HOST_OF_SSH:-} == small-0 ]] && now=$((now - 500)); echo "$now"\n'
    )
    for each in programs.iterdir():
        each.chmod(0o755)
    done = look(tmp_path)
    assert done.returncode == 1
    assert f"big-1: less than 1 GiB is free in {tmp_path / 'a run'}" in done.stdout
    assert "small-0: warning: its clock differs from the one here by -" in done.stdout
    assert "big-0" not in done.stdout


def test_the_folder_on_nvme(tmp_path: Path) -> None:
    """Where the plan keeps something on NVMe, each node must have a folder for it that can be written."""
    chosen = plan(
        "deepspeed", 3, [4], [(group("big", "A100-SXM-80GB", count=8),)], offload=Offload(optimizer="nvme")
    )
    folder = folder_of(tmp_path, "ssh", chosen)
    done = look(tmp_path, "--local", "0")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "warning: env/big.sh has lines to complete, marked EDIT",
        "fault: NVME_PATH is not set, name a folder on NVMe in env/big.sh",
    ]
    assert "`NVME_PATH` names a folder" in (folder / "README.md").read_text()
    named = look(tmp_path, "--local", "0", NVME_PATH=str(tmp_path / "absent"))
    assert (
        f"fault: NVME_PATH={tmp_path}/absent is not a writable directory, fix it in env/big.sh\n"
        in named.stdout
    )
    assert look(tmp_path, "--local", "0", NVME_PATH=str(tmp_path)).returncode == 0


ROCM = """#!/bin/bash
echo "device,Card Series,Card Model,Card Vendor"
echo "card0,AMD Instinct MI250X,0x740c,Advanced Micro Devices"
echo "card1,${SECOND:-AMD Instinct MI250X},0x740c,Advanced Micro Devices"
"""


def test_devices_of_amd(tmp_path: Path) -> None:
    """Their names come from rocm-smi."""
    amd = GPUS["A100"].model_copy(update={"name": "MI250X-GCD", "vendor": "amd"})
    where = cluster(pool("red", ("MI250X-GCD",) * 2, 1), gpus={"MI250X-GCD": amd})
    folder_of(tmp_path, "ssh", plan("torch", 1, [4], [(group("red", "MI250X-GCD", count=2),)]), where)
    install(tmp_path, {"rocm-smi": ROCM})
    done = look(tmp_path, "--local", "0")
    assert (done.returncode, done.stdout) == (0, "")
    done = look(tmp_path, "--local", "0", SECOND="AMD Instinct MI300X")
    assert (done.returncode, done.stdout) == (
        1,
        "fault: GPU 1 is AMD Instinct MI300X, the plan has MI250X-GCD\n",
    )


AMD_SMI = """#!/bin/bash
for index in 0 1; do
  echo "GPU: $index"
  echo "    ASIC:"
  echo "        MARKET_NAME: AMD Instinct ${TYPE:-MI300X}"
  echo "        VENDOR_ID: 0x1002"
done
"""


def test_devices_of_amd_by_other_names(tmp_path: Path) -> None:
    """The words of a board's form do not make another device; where there is no rocm-smi, amd-smi tells the names."""
    amd = GPUS["A100"].model_copy(update={"name": "MI300X", "vendor": "amd"})
    where = cluster(pool("red", ("MI300X",) * 2, 1), gpus={"MI300X": amd})
    folder_of(tmp_path, "ssh", plan("torch", 1, [4], [(group("red", "MI300X", count=2),)]), where)
    install(tmp_path, {"rocm-smi": ROCM.replace("MI250X", "MI300X OAM")})
    done = look(tmp_path, "--local", "0")
    assert (done.returncode, done.stdout) == (0, "")
    (tmp_path / "stand ins" / "rocm-smi").unlink()
    done = look(tmp_path, "--local", "0")
    assert done.stdout.startswith("fault: neither rocm-smi nor amd-smi runs: ")
    install(tmp_path, {"amd-smi": AMD_SMI})
    done = look(tmp_path, "--local", "0")
    assert (done.returncode, done.stdout) == (0, "")
    done = look(tmp_path, "--local", "0", TYPE="MI325X")
    faults = [f"fault: GPU {index} is AMD Instinct MI325X, the plan has MI300X" for index in range(2)]
    assert done.stdout.splitlines() == faults


def test_missing_file(tmp_path: Path) -> None:
    """A file that hetplan wrote and that is gone is named."""
    (folder_of(tmp_path, "ssh") / "batches.json").unlink()
    done = look(tmp_path, "--local", "0")
    assert (done.returncode, done.stdout) == (1, f"fault: batches.json is missing in {tmp_path / 'a run'}\n")


def test_interface_is_down(tmp_path: Path) -> None:
    """An interface without a link is as good as none."""
    place = tmp_path / "sys" / "class" / "net" / "ens1"
    place.mkdir(parents=True)
    (place / "operstate").write_text("down\n")
    done = look(tmp_path, "--local", "1")
    assert (done.returncode, done.stdout) == (1, "fault: network interface ens1 is down\n")


@pytest.mark.parametrize(("name", "count", "active"), [("mlx5_0", 1, 0), ("mlx5", 2, 1)])
def test_rdma_devices_without_an_active_port(tmp_path: Path, name: str, count: int, active: int) -> None:
    """A cable that is out is told; of devices that begin with a name one with a port is enough."""
    card = NicSpec(fabric="ib", bandwidth_gbps=200, count=count, interface="ens1", hca=name)
    where = cluster(pool("big", ("A100",) * 4, 2, (card,)))
    folder_of(tmp_path, "ssh", plan("torch", 1, [4], [(group("big", "A100", count=8),)]), where)
    devices = [tmp_path / "sys" / "class" / "infiniband" / f"mlx5_{index}" for index in range(2)]
    for device in devices:
        (device / "ports" / "1").mkdir(parents=True)
        (device / "ports" / "1" / "state").write_text("1: DOWN\n")
    done = look(tmp_path, "--local", "0")
    told = [line for line in done.stdout.splitlines() if line.startswith("fault: ")]
    assert (done.returncode, told) == (1, [f"fault: RDMA device {name} is down: no port is active"])
    (devices[active] / "ports" / "1" / "state").write_text("4: ACTIVE\n")
    assert look(tmp_path, "--local", "0").returncode == 0


def test_neither_interface_nor_python(tmp_path: Path) -> None:
    """Both are told."""
    done = look(tmp_path, "--local", "2", HOST_OF_SSH="small-0", NO_CARD="eth0", PYTHON="none-such")
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert first == "fault: network interface eth0 is missing"
    assert second.startswith("fault: Python does not run: ")


def test_this_node_only(tmp_path: Path) -> None:
    """--local needs no ssh; a name that is not planned asks for the node rank."""
    done = look(tmp_path, "--local", "2", HOST_OF_SSH="small-0", DEAD="small-0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert look(tmp_path, "--local", HETPLAN_AS="big-1").returncode == 0
    unknown = look(tmp_path, "--local", HETPLAN_AS="elsewhere")
    assert unknown.returncode == 2
    assert "give its node rank" in unknown.stderr
    assert look(tmp_path, "--remote").returncode == 2


@pytest.mark.parametrize("script", first(1, ["launch.sh", "start.sh"]))
def test_check_before_a_launch(tmp_path: Path, script: str) -> None:
    """--check starts nothing on a fault, and the job without one."""
    words = ["--check", *(["0"] if script == "launch.sh" else [])]
    done = look(tmp_path, *words, script=script, MISSING="big-0:2", HOST_OF_SSH="big-0")
    assert done.returncode == 1
    assert "GPU 2 is missing" in done.stdout
    assert not (tmp_path / "journal").exists()
    done = look(tmp_path, *words, script=script, HOST_OF_SSH="big-0")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "journal").read_text().count("\n") == (1 if script == "launch.sh" else 3)


def test_a_kind_that_only_the_user_knows(tmp_path: Path) -> None:
    """A device under the user's own name cannot be told from others."""
    chosen = plan("deepspeed", 0, [4], [(group("a", "A100"),)])
    folder_of(tmp_path, "ssh", chosen, cluster(pool("a", ("A100",), 1)))
    done = look(tmp_path, "--local", "0")
    assert done.returncode == 0
    assert done.stdout.startswith(
        "warning: GPU 0 is NVIDIA A100-SXM4-80GB; whether that is A100 cannot be told\n"
    )


def test_names_of_devices() -> None:
    """What nvidia-smi prints and what the node label holds, for known device types."""
    assert "Tesla T4" in driver_names("T4")
    assert product_labels("A100-SXM-80GB") == ("NVIDIA-A100-SXM4-80GB",)
    assert product_labels("Quadro-RTX-6000") == ("Quadro-RTX-6000",)
    assert product_labels("B300")[0] == "NVIDIA-B300-SXM6-AC"
    assert (driver_names("mine"), product_labels("mine")) == ((), ())


def test_real_interpreter_tells_its_versions(tmp_path: Path) -> None:
    """With this Python the versions are those that are installed, or named as missing."""
    done = look(tmp_path, "--local", "0", PYTHON=sys.executable, HETPLAN_FACTS="1")
    assert f"fact: python {sys.version.split()[0]}\n" in done.stdout
    for name in ("torch", "deepspeed"):
        try:
            assert f"fact: {name} {metadata.version(name)}\n" in done.stdout
        except metadata.PackageNotFoundError:
            assert f"fault: {name} is not installed" in done.stdout


def test_the_cuda_of_pytorch_is_told(tmp_path: Path) -> None:
    """As its build says, without importing it; a build without CUDA tells none."""
    place = tmp_path / "packages" / "torch"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise SystemExit('imported')\n")
    for line, told in (("cuda: Optional[str] = '13.0'", True), ("cuda: Optional[str] = None", False)):
        (place / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\n")
        done = look(
            tmp_path,
            "--local",
            "0",
            PYTHON=sys.executable,
            PYTHONPATH=str(place.parent),
            HETPLAN_FACTS="1",
        )
        assert ("fact: cuda 13.0\n" in done.stdout) == told
        assert "fact: folder " in done.stdout


def one_node_folder(tmp_path: Path, launcher: str) -> None:
    """All devices of a node that the cluster file does not name."""
    chosen = plan("deepspeed", 1, [4], [(group("big", "A100-SXM-80GB", count=4),)])
    where = cluster(pool("big", ("A100-SXM-80GB",) * 4, 1, ()))
    folder_of(tmp_path, launcher, chosen, where)


def test_one_node_without_a_name_is_this_one(tmp_path: Path) -> None:
    """Nothing is asked over ssh, and no name has to be known; other launchers go by the placeholder."""
    one_node_folder(tmp_path / "here", "torchrun")
    for words in ((), ("--local",)):
        done = look(tmp_path / "here", *words, DEAD="big-0", UNKNOWN="big-0")
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    done = look(tmp_path / "here", DEAD="big-0", MISSING="big-0:2")
    assert (done.returncode, done.stdout) == (1, "big-0: GPU 2 is missing, the plan has A100-SXM-80GB\n")
    one_node_folder(tmp_path / "ssh", "ssh")
    done = look(tmp_path / "ssh", DEAD="big-0")
    assert f"big-0: cannot be reached: {PLACEHOLDER}" in done.stdout
