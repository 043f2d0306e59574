"""``hetplan calibrate network``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.calibration.file import load_calibration
from planner.calibration.values import LinkPoint, Operation
from planner.cli import app
from planner.measure.process_groups import BrokenError
from tests.cli.running import ROOT, Command
from tests.measure.test_nccl_tests import TEXT
from tests.training import ranks

NCCL = ("calibrate", "network", "--from-nccl-tests", "nccl.txt", "-o", "c.yaml")


@pytest.fixture
def text(files: Path) -> Path:
    """What nccl-tests printed, and the current directory."""
    (files / "nccl.txt").write_text(TEXT)
    return files


def test_the_text_of_nccl_tests(hetplan: Command, text: Path) -> None:
    """A second link joins the first; the same one is replaced."""
    done = hetplan(*NCCL, "--link", "node:A100-SXM-80GB")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Measured 2 link points, wrote c.yaml\n")
    assert json.loads(hetplan(*NCCL, "--link", "ib", "--members", "16", "--json").out)["link_points"] == 2
    assert hetplan(*NCCL, "--link", "ib", "--members", "16").code == 0
    assert hetplan(*NCCL, "--link", "ib", "--members", "16", "--concurrent", "8").code == 0
    found = load_calibration(text / "c.yaml")
    assert [(point.link, point.members, point.concurrent) for point in found.link_points] == [
        *[("node:A100-SXM-80GB", 2, 1)] * 2,
        *[("ib", 16, 1)] * 2,
        *[("ib", 16, 8)] * 2,
    ]
    assert found.provenance["nccl-tests"] == "nccl.txt"


def test_points_that_contradict_earlier_ones_are_told(hetplan: Command, text: Path) -> None:
    """The new ones are kept; what is as far apart as two runs are goes without a word."""
    assert hetplan(*NCCL, "--link", "ib").err == ""
    for old, new, words in (("40.00   26.21", "42.00   26.21", 0), ("42.00   26.21", "80.00   26.21", 1)):
        before = (text / "nccl.txt").read_text()
        (text / "nccl.txt").write_text(before.replace(old, new))
        done = hetplan(*NCCL, "--link", "ib")
        assert (done.code, done.err.count("c.yaml and nccl.txt are far apart")) == (0, words)
    assert "4.2e-05 s" in done.err
    assert "8e-05 s" in done.err
    assert [point.seconds for point in load_calibration(text / "c.yaml").link_points][1] == pytest.approx(
        80e-6
    )


def test_broken_text_stops_with_its_line(hetplan: Command, text: Path) -> None:
    """Nothing is written."""
    (text / "nccl.txt").write_text(TEXT.replace("12.50 ", "12,50 "))
    done = hetplan(*NCCL, "--link", "ib")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: nccl.txt:12: time: expected microseconds above 0, got '12,50'\n"
    assert not (text / "c.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (NCCL, "--from-nccl-tests: expected --link with the name of the link"),
        ((*NCCL, "--link", "a b"), "--from-nccl-tests: expected --link with the name of the link, got 'a b'"),
        (
            (*NCCL, "--link", "ib", "--operation", "gossip"),
            "--operation: expected some of all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, "
            "send, got 'gossip'",
        ),
        (
            ("calibrate", "network", "--link", "ib"),
            "--link, --operation, --members and --concurrent: expected --from-nccl-tests FILE with them",
        ),
        (
            (*NCCL, "--link", "node:A100", "--concurrent", "8"),
            "--concurrent 8: expected the name of a fabric, got --link node:A100",
        ),
    ],
)
def test_bad_options(hetplan: Command, text: Path, arguments: tuple[str, ...], message: str) -> None:
    """One line, exit code 2."""
    done = hetplan(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == f"error: {message}"


POOLS = """\
name: two-pools
gpus:
  slow: {memory_gib: 16, memory_bandwidth_gBps: 20, tflops: {fp32: 0.1}}
pools:
  - {name: a, gpu: slow, hosts: [node0, node1], gpus_per_node: 1, intra_node: pcie4,
     nics: [{fabric: near, bandwidth_gbps: 100}, {fabric: far, bandwidth_gbps: 1}]}
  - {name: b, gpu: slow, hosts: [node2], gpus_per_node: 2, intra_node: pcie4,
     nics: [{fabric: far, bandwidth_gbps: 1}]}
fabrics: {near: {kind: infiniband}, far: {kind: ethernet}}
"""
AS_NODES = """\
import os, socket
socket.gethostname = lambda: "node" + os.environ.get("NODES", "0")[int(os.environ["RANK"])]
from planner.cli.app import main; main()
"""
"""Each process believes to stand on the host that NODES names at its rank."""


def under_torchrun(
    processes: int, *options: object, nodes: str, program: str = AS_NODES
) -> subprocess.CompletedProcess[str]:
    """``calibrate network`` over gloo, the processes on the nodes of these digits."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command = [sys.executable, "-c", program, "calibrate", "network", "--device", "cpu", *map(str, options)]
    return subprocess.run(
        [*torchrun, "--no-python", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NODES": nodes},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_two_processes_measure_their_link(files: Path) -> None:
    """All operations over gloo, written once by the first process."""
    pytest.importorskip("torch")
    output = files / "c.yaml"
    words = ("calibrate", "network", "--device", "cpu", "--largest-mib", "0.01", "-o", output)
    ranks.run(2, Path(app.__file__), *words, log=files / "log")
    said = [(files / name).read_text().count("Measured ") for name in ("log", "log-1")]
    assert said == [1, 0]
    found = load_calibration(output)
    assert {point.members for point in found.link_points} == {2}
    assert {point.operation for point in found.link_points} >= {"all-reduce", "all-gather", "send"}
    assert all(point.link.startswith("node:") for point in found.link_points)
    assert sorted({point.size_bytes for point in found.link_points}) == [1024.0, 4096.0]
    assert all(point.source in found.sources for point in found.link_points)


@pytest.mark.slow
def test_four_processes_go_on(files: Path) -> None:
    """Two pairs at the same time, then all; what is there is not measured again."""
    pytest.importorskip("torch")
    output = files / "c.yaml"
    done = under_torchrun(4, "--largest-mib", 0.01, "-o", output, nodes="0000")
    assert done.returncode == 0, done.stderr
    found = load_calibration(output)
    assert {point.members for point in found.link_points} == {2, 4}
    done = under_torchrun(4, "--largest-mib", 0.02, "-o", output, nodes="0000")
    assert done.returncode == 0, done.stderr
    again = load_calibration(output)
    old = [point for point in again.link_points if point.size_bytes < 16384]
    assert old == list(found.link_points)
    assert {point.size_bytes for point in again.link_points} == {1024.0, 4096.0, 16384.0}
    assert f", {len(old)} already present, wrote" in done.stdout


@pytest.mark.slow
def test_groups_that_share_their_nodes(files: Path) -> None:
    """One device of each node, then both pairs at once."""
    pytest.importorskip("torch")
    options = ("--largest-mib", 0.01, "--fabric", "ib", "-o", files / "c.yaml")
    done = under_torchrun(4, *options, nodes="0011")
    assert done.returncode == 0, done.stderr
    points = load_calibration(files / "c.yaml").link_points
    found = {(point.members, point.concurrent) for point in points if point.link == "ib"}
    assert found == {(2, 1), (2, 2), (4, 1)}
    assert all(point.concurrent == 1 for point in points if point.link != "ib")
    assert "groups" in done.stdout


@pytest.mark.slow
def test_the_pools_of_a_cluster_file_are_measured(files: Path) -> None:
    """Inside a node, between the nodes of a pool, across pools; a time budget and unknown hosts end on all."""
    pytest.importorskip("torch")
    (files / "pools.yaml").write_text(POOLS)
    options = ("--cluster", files / "pools.yaml", "--largest-mib", 0.01, "-o", files / "c.yaml")
    done = under_torchrun(4, *options, "--minutes", 1e-9, nodes="0122")
    assert done.returncode != 0
    assert "nothing was measured" in done.stderr
    done = under_torchrun(4, *options, nodes="0122")
    assert done.returncode == 0, done.stderr
    found = load_calibration(files / "c.yaml")
    assert {(point.link, point.members) for point in found.link_points} == {
        ("node:slow", 2),
        ("near", 2),
        ("far", 2),
        ("far", 3),
        ("far", 4),
    }
    assert done.stderr.count("slow in the cluster file is ") == 2  # a pool each
    done = under_torchrun(2, *options, nodes="07")
    assert done.returncode != 0
    assert done.stderr.count("no pool of two-pools has the host node7") == 1
    assert "this is a bug" not in done.stderr


HALF = "format: hetplan-calibration/1\nlink_points:\n- {link: ib, oper"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fabric", "ib", "-o", "half.yaml"), "half.yaml:4: not YAML"),
        (("--minutes", "0"), "--minutes: expected a number above 0 and at most 1000000000, got 0"),
        ((), "processes on 2 nodes: expected --cluster FILE, or --fabric with the network's name"),
        (("--cluster", "none.yaml"), "none.yaml: no such file"),
        (("--cluster", "cluster.yaml"), "--cluster: no pool of tiny has the hosts a, b"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_stops_all_processes(
    hetplan: Command,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
    rank: int,
) -> None:
    """The first process says why, the others end with it; half-written files stay as they are."""
    pytest.importorskip("torch")
    from planner.measure import network
    from planner.measure.backend import open_backend

    sent: list[Any] = [None]

    def broadcast(told: list[Any]) -> None:
        """As in torch: from the first process."""
        sent[0] = told[0]

    (files / "half.yaml").write_text(HALF)
    world = network.World(rank=rank, backend=open_backend("cpu"), hosts=("a", "b"), gpus=("x", "x"))
    monkeypatch.setattr(network, "open_world", lambda asked: world)
    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast)
    done = hetplan("calibrate", "network", *arguments)
    assert (done.code, done.out, sent) == (2, "", [None])
    assert done.err.startswith(f"error: {message}") or (rank == 1 and done.err == "")
    assert (files / "half.yaml").read_text() == HALF


@pytest.mark.parametrize("interrupted", [True, False])
@pytest.mark.parametrize("curves", [(("send", 1e3), ("send", 1e6), ("all-reduce", 1e3)), ()])
def test_what_was_measured_before_the_end_is_written(
    hetplan: Command,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
    curves: tuple[tuple[Operation, float], ...],
) -> None:
    """After Ctrl-C, and when another process is gone; a curve of one size is left out."""
    pytest.importorskip("torch")
    from planner.measure import network
    from planner.measure.backend import open_backend

    def measure(*arguments: Any) -> bool:
        for operation, size in curves:
            point = LinkPoint(link="ib", operation=operation, members=2, size_bytes=size, seconds=size / 1e9)
            arguments[2].keep((point,))
        raise KeyboardInterrupt if interrupted else BrokenError("send of 2 over ib: gone")

    world = network.World(rank=0, backend=open_backend("cpu"), hosts=("a", "b"), gpus=("x", "x"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(network, "open_world", lambda asked: world)
    monkeypatch.setattr(network, "measure_network", measure)
    monkeypatch.setattr(network, "agreed", lambda world, decide: decide())
    before = signal.getsignal(signal.SIGTERM)
    done = hetplan("calibrate", "network", "--fabric", "ib", "-o", "c.yaml")
    assert signal.getsignal(signal.SIGTERM) == before
    if interrupted:
        assert done.code == (130 if curves else 2)
        assert "warning: stopped before everything was measured" in done.err
    else:
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(
            "error: calibrate network: rank 0: send of 2 over ib: gone\n  hint: see in"
        )
        assert done.err.endswith("; c.yaml keeps what was measured; run the same command again to continue\n")
    if curves:
        points = load_calibration(files / "c.yaml").link_points
        assert [point.operation for point in points] == ["send", "send"]


KILLED = """\
import os, pathlib, signal, sys
from planner.measure import network
real = network._time

def killed(world, call, group):
    killed.count += 1
    if world.rank == 1 and killed.count == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(world, call, group)

killed.count = 0
if "KILL" in os.environ:
    network._time = killed
from planner.cli.app import run
code = run()
pathlib.Path(os.environ["CODES"], os.environ["RANK"]).write_text(str(code))
sys.exit(code)
"""
"""The second process is killed where it would measure the third size of the second operation."""


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_others_with_one_error(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operation, group and size are named; what was measured is kept, and the same command goes on."""
    pytest.importorskip("torch")
    monkeypatch.setenv("CODES", str(files))
    monkeypatch.setenv("KILL", "1")
    options = ("--largest-mib", 0.1, "-o", files / "c.yaml")
    done = under_torchrun(2, *options, nodes="00", program=KILLED)
    assert done.returncode != 0
    assert (files / "0").read_text() == "2", done.stderr
    assert not (files / "1").exists()
    told = [line for line in done.stderr.splitlines() if line.startswith(("error:", "warning:", "  hint:"))]
    assert len(told) == 2
    assert re.match(
        r"error: calibrate network: rank 0: all-gather of 2 over node:\S+, 16384 bytes: \S", told[0]
    )
    assert told[1].endswith("c.yaml keeps what was measured; run the same command again to continue")
    found = load_calibration(files / "c.yaml")
    sizes = {(point.operation, point.size_bytes) for point in found.link_points}
    assert sizes == {("all-reduce", 4.0**power) for power in range(5, 9)} | {
        ("all-gather", 4.0**power) for power in (5, 6)
    }
    monkeypatch.delenv("KILL")
    done = under_torchrun(2, *options, nodes="00", program=KILLED)
    assert done.returncode == 0, done.stderr
    assert ", 6 already present, wrote" in done.stdout


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Backend gloo does not support alltoall", True),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes", True),
        ("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711", False),
        ("Timed out waiting 600000ms for recv operation to complete", False),
        ("NCCL error: remote process exited or there was a network error", False),
    ],
)
def test_what_is_left_out_and_what_ends_a_measurement(said: str, expected: bool) -> None:
    """A backend and a memory have limits; a broken connection is the end."""
    pytest.importorskip("torch")
    from planner.measure.network import _refusal

    assert _refusal(RuntimeError(said)) is expected
