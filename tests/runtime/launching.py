"""Starts an emitted folder on this machine as its users would, with gloo between CPU processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def launch(folder: Path, nodes: int, *arguments: str, limit_seconds: float = 120.0) -> str:
    """Run ``launch.sh`` once for each node; returns what the first one printed."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    started = [
        subprocess.Popen(
            ["bash", str(folder / "launch.sh"), str(node), "--", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for node in range(nodes)
    ]
    try:
        outputs = [process.communicate(timeout=limit_seconds)[0] for process in started]
    finally:
        for process in started:
            _end(process)
    for process, output in zip(started, outputs, strict=True):
        if process.returncode:
            pytest.fail(f"a launcher ended with {process.returncode}:\n{output[-4000:]}")
    return outputs[0]


def _end(process: subprocess.Popen[str]) -> None:
    """Stop the launcher and the ranks it started, and close its pipe."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def losses(output: str) -> list[float]:
    """The losses that the example printed, [step]."""
    return [float(line.split()[-1]) for line in output.splitlines() if line.startswith("step ")]
