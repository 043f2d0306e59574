"""``hetplan probe``."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.probe.text import Text
from tests.cli.running import Command
from tests.probe.seen import SAMPLES, sample

T4 = SAMPLES / "t4-01"
T4_DRAFT = """\
# Drafted by hetplan probe. Fill in the lines marked "not seen:", check the values marked "assumed:".
name: ours
pools:
  - name: t4
    gpu: T4
    gpus_per_node: 4
    hosts: ['worker-[1-3]']  # assumed: 3 not looked at are taken to be like the node that was seen
    intra_node: pcie3
    # not used: eno2, no link
    nics:
      - {fabric: eth, bandwidth_gbps: 10, interface: eno1}
fabrics:
  eth: {kind: ethernet}  # assumed: all interfaces reach each other
"""


def t4_files() -> tuple[object, ...]:
    """Options with the saved files of a node."""
    return ("--nvidia-smi", T4 / "nvidia-smi.csv", "--topo", T4 / "topo.txt", "--sysfs", T4 / "sysfs.txt")


def test_saved_files_become_a_cluster(hetplan: Command, files: Path) -> None:
    """Hosts from a hostfile; check takes the draft as it is."""
    (files / "hostfile").write_text("worker-1 slots=4\nworker-2 slots=4\nworker-3 slots=4\n")
    done = hetplan("probe", *t4_files(), "--hostfile", "hostfile", "--name", "ours")
    assert (done.code, done.out) == (0, T4_DRAFT)
    assert done.err == 'warning: cluster.yaml: 2 values are assumed; look for "# assumed"\n'
    (files / "draft.yaml").write_text(done.out)
    assert hetplan("check", "draft.yaml").code == 0


def test_slurm_lists_hosts(hetplan: Command, files: Path) -> None:
    """Here the value of SLURM_JOB_NODELIST."""
    (files / "slurm.txt").write_text("worker-[1-3]\n")
    assert hetplan("probe", *t4_files(), "--slurm", "slurm.txt", "--name", "ours").out == T4_DRAFT


def test_folders_of_several_nodes(hetplan: Command, files: Path) -> None:
    """Written to a file, which check accepts."""
    done = hetplan("probe", "--from", SAMPLES, "-o", "found.yaml")
    assert (done.code, done.out) == (0, "Next: hetplan check found.yaml\n")
    assert hetplan("check", "found.yaml").code == 0


def test_an_output_in_use_needs_force(hetplan: Command, files: Path) -> None:
    """The old file stays."""
    before = (files / "cluster.yaml").read_text()
    done = hetplan("probe", *t4_files(), "-o", "cluster.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: cluster.yaml: exists already\n  hint: ")
    assert (files / "cluster.yaml").read_text() == before
    assert hetplan("probe", *t4_files(), "-o", "cluster.yaml", "--force").code == 0
    assert "gpu: T4" in (files / "cluster.yaml").read_text()


def test_what_is_missing_is_named_on_stderr(hetplan: Command, files: Path) -> None:
    """Without topo and cards; the draft is printed all the same, and check refuses it."""
    done = hetplan("probe", "--nvidia-smi", T4 / "nvidia-smi.csv")
    assert done.code == 0
    assert done.err == (
        "warning: to fill in: cluster.yaml:4: pools[0].intra_node: missing, the nodes have 4 devices\n"
        "warning: cluster.yaml: not seen: intra_node (line 8), nics (line 9)\n"
        'warning: cluster.yaml: 1 value is assumed; look for "# assumed"\n'
    )
    (files / "draft.yaml").write_text(done.out)
    assert hetplan("check", "draft.yaml").code == 2


def test_pools_without_a_common_fabric(hetplan: Command, files: Path) -> None:
    """The draft says what the checker would say."""
    for name, port in (("a", "InfiniBand"), ("b", "Ethernet")):
        (files / "nodes" / name).mkdir(parents=True)
        (files / "nodes" / name / "nvidia-smi.csv").write_text("name\nTesla T4\n")
        (files / "nodes" / name / "ibstat.txt").write_text(
            f"CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 100\n\t\tLink layer: {port}\n"
        )
    err = hetplan("probe", "--from", "nodes").err
    assert "to fill in: cluster.yaml:3: pools: no two of the pools t4, t4-2 share a fabric" in err


def test_commands(hetplan: Command) -> None:
    """Shell lines and nothing else."""
    done = hetplan("probe", "--commands")
    assert (done.code, done.err) == (0, "")
    assert "nvidia-smi topo -m" in done.out


def live(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """This machine is the T4 node."""
    texts: dict[str, Text] = {
        name: sample(f"t4-01/{file}")
        for name, file in (("nvidia_smi", "nvidia-smi.csv"), ("topo", "topo.txt"), ("sysfs", "sysfs.txt"))
    }
    monkeypatch.setattr("planner.cli.probe.this_machine", lambda: texts)
    monkeypatch.setattr("planner.cli.probe.this_host", lambda: host)


def test_this_machine(hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its own name."""
    live(monkeypatch, "t4-01")
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert "    hosts: [t4-01]\n" in hetplan("probe").out


def test_this_machine_in_a_job_of_slurm(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts of the job; this one is one of them, or only shows what they look like."""
    live(monkeypatch, "n2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    assert "hosts: ['n[1-3]']  # assumed: 2 not looked at are taken to be like n2" in hetplan("probe").out
    live(monkeypatch, "elsewhere")
    assert "hosts: ['n[1-3]']  # assumed: 3 not looked at" in hetplan("probe").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topo", "no.txt"), "error: no.txt: no such file\n"),
        (
            ("--topo", "model.yaml"),
            "error: model.yaml:1: expected a header GPU0 GPU1 ..., got 'name: small'\n",
        ),
        (("--hostfile", "model.yaml"), "error: model.yaml:1: expected NAME slots=N, got 'name: small'\n"),
        (
            ("--topo", "x", "--from", "."),
            "error: probe: expected --from FOLDER or files of one node, not both\n",
        ),
        (("--hostfile", "x", "--slurm", "x"), "error: probe: expected --hostfile or --slurm, not both\n"),
        (("--from", "no"), "error: --from no: is not a folder\n"),
        (
            ("--name", "a b"),
            "error: --name: expected letters, digits, dots, dashes and underscores, got 'a b'\n",
        ),
        (("-o", "no/c.yaml"), "error: no/c.yaml: the folder no does not exist\n"),
        (("--nvidia-smi", "."), "error: .: is a directory, expected a text file\n"),
    ],
)
def test_bad_input(hetplan: Command, files: Path, arguments: tuple[str, ...], message: str) -> None:
    """One error, exit code 2, nothing on stdout."""
    done = hetplan("probe", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
