"""DeepSpeed's own launcher starts an emitted folder from its hostfile."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from tests.training.launching import free_port, losses, run_together
from tests.worlds import cluster, group, model, nic, plan, pool

pytest.importorskip("deepspeed")

from tests.training import reference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_third_party_warnings")]


def two_and_one() -> ClusterSpec:
    """A node with two devices and a node with one."""
    cards = (nic("eth", "lo"),)
    return cluster(pool("big", ("A100",) * 2, 1, cards), pool("small", ("T4",), 1, cards))


def test_uneven_slots_train(tmp_path: Path) -> None:
    """Two launchers without ssh, one for each node, start 2 and 1 ranks with their own batches."""
    replicas = (group("big", "A100", count=2, share=5, steps=2), group("small", "T4", share=2))
    spec = model(12, layers=2, precision="fp32", optimizer="sgd")
    folder = tmp_path / "a run"
    write_folder(emit(plan("deepspeed", 1, [2], [replicas]), two_and_one(), spec), folder)
    assert (folder / "hostfile").read_text() == "big-0 slots=2\nsmall-0 slots=1\n"
    meeting = ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    start = ["deepspeed", "--hostfile", str(folder / "hostfile"), "--no_ssh", *meeting]
    script = [str(folder / "train.py"), "--steps", "2", "--lr", "0.5"]
    printed = run_together([[*start, "--node_rank", str(node), *script] for node in (0, 1)], tmp_path)
    assert losses(printed) == pytest.approx(reference.train(folder, 2, 0.5).losses, rel=1e-5)
