"""The door of the package; tests/runtimes has what holds of every runtime."""

from __future__ import annotations

import subprocess
import sys

import pytest

from planner.emit.interface import emit
from planner.errors import EmitError
from tests.worlds import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", ("A100",) * 4, 2))
REPLICAS = [(group("a", "A100", count=4, share=2),)]


def test_other_launcher_is_named() -> None:
    """An unknown launcher is an error that lists the known ones."""
    with pytest.raises(EmitError, match=r"launcher mpirun: .* torchrun"):
        emit(plan("deepspeed", 1, [4], REPLICAS), CLUSTER, model(8), launcher="mpirun")


def test_torch_is_not_imported() -> None:
    """Emitting reads the source of what runs on the nodes and does not import it."""
    code = (
        "import sys; from planner import targets; from planner.runtimes import interface; "
        "[interface.runtime(name) for name in targets.NAMES]; "
        "import planner.emit.interface; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
