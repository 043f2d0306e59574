"""The wrapper gives the group of all ranks sockets and then is the script it was given."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from planner.runtimes.megatron import start_megatron  # noqa: E402

SCRIPT = """
import sys, torch.distributed
import neighbour
assert __name__ == "__main__"
torch.distributed.init_process_group(backend=sys.argv[1])
"""


class Options:
    """Stands in for NCCL's options, which a build without CUDA lacks."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(net_name=None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Arguments that reach torch."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.distributed, "init_process_group", torch.distributed.init_process_group)
    monkeypatch.setattr(
        torch.distributed, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False
    )
    monkeypatch.setattr(start_megatron, "init_process_group", lambda *_, **given: seen.append(given))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return seen


@pytest.mark.parametrize(("backend", "net"), [("nccl", "Socket"), ("gloo", None)])
def test_script_runs_with_sockets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[dict[str, Any]],
    backend: str,
    net: str | None,
) -> None:
    """The script sees itself as main, finds its neighbours, and only NCCL gets options."""
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["start_megatron.py", str(tmp_path / "script.py"), backend])
    start_megatron.main()
    [given] = calls
    assert given["backend"] == backend
    options = given.get("pg_options")
    assert (options.config.net_name if options else None) == net
    sys.modules.pop("neighbour", None)
