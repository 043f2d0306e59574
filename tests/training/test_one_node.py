"""A plan on one node trains where it is started, whatever the cluster file calls the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from tests.training.launching import losses, run_together
from tests.worlds import cluster, group, model, plan, pool

pytest.importorskip("torch")

pytestmark = pytest.mark.slow


def one_node(*hosts: str) -> ClusterSpec:
    """Two devices on a node that no resolver knows."""
    only = pool("a", ("T4",) * 2, 1)
    return cluster(only.model_copy(update={"hosts": hosts}) if hosts else only)


def emitted(tmp_path: Path, where: ClusterSpec, launcher: str = "torchrun") -> Path:
    """The folder of two ranks."""
    chosen = plan("torch", 1, [2], [(group("a", "T4", count=2, share=2),)])
    folder = tmp_path / "a run"
    write_folder(emit(chosen, where, model(4, layers=2, precision="fp32"), launcher), folder)
    return folder


@pytest.mark.parametrize(("hosts", "node"), [((), ()), (("no-such-host.invalid",), ("0",))])
def test_it_starts(tmp_path: Path, hosts: tuple[str, ...], node: tuple[str, ...]) -> None:
    """Without a rendezvous in the environment; a placeholder needs no node rank either."""
    folder = emitted(tmp_path, one_node(*hosts))
    command = ["bash", str(folder / "launch.sh"), *node, "--", "--steps", "2"]
    printed = run_together([command], tmp_path, limit_seconds=150.0, address="")
    assert len(losses(printed)) == 2
