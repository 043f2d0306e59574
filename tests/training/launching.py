"""Starts an emitted folder on this machine as its users would, with gloo between CPU processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def launch(folder: Path, nodes: int, *arguments: str, limit_seconds: float = 500.0) -> str:
    """Run ``launch.sh`` once for each node; returns what the first one printed."""
    script = ["bash", str(folder / "launch.sh")]
    commands = [[*script, str(node), "--", *arguments] for node in range(nodes)]
    return run_together(commands, folder.parent, limit_seconds)


def run_together(
    commands: Sequence[Sequence[str]], logs: Path, limit_seconds: float = 500.0, address: str = "127.0.0.1"
) -> str:
    """Run the launchers of one job side by side; returns what the first one printed.

    They find each other at MASTER_ADDR and MASTER_PORT of their environment; an empty address is none.
    """
    files = [logs / f"node-{node}.log" for node in range(len(commands))]
    told = environment(address)
    started = [_start(command, log, told) for command, log in zip(commands, files, strict=True)]
    try:
        ends = [process.wait(timeout=limit_seconds) for process in started]
    except subprocess.TimeoutExpired:
        ends = [-1]
    finally:
        for process in started:
            _end(process)
    if any(ends):
        pytest.fail("\n".join(f"{log.name}, of {ends}:\n{log.read_text()[-9000:]}" for log in files))
    return files[0].read_text()


def environment(address: str = "127.0.0.1") -> dict[str, str]:
    """What all ranks of one job are told, with a port of their own."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(free_port()),
    }


def _start(command: Sequence[str], log: Path, told: dict[str, str]) -> subprocess.Popen[bytes]:
    """One node's launcher, writing to a file: a pipe would wait for ranks that outlive it."""
    with log.open("wb") as output:
        return subprocess.Popen(
            list(command), env=told, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the launcher to stop, which stops its ranks (they have sessions of their own), then insist."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=40.0)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def losses(output: str) -> list[float]:
    """The losses that the example printed, [step]."""
    return [float(line.split()[3]) for line in output.splitlines() if line.startswith("step ")]
