"""Nodes of an emulated cluster: network namespaces with shaped links, and a share of a processor each.

Needs root, ``ip`` and ``tc``, and a cgroup controller for processors; ``missing`` says what is not there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = f"hp{os.getpid() % 100_000}"
"""Rehearsals beside each other have names of their own."""
BRIDGE = f"{PREFIX}br"
PERIOD_MICROSECONDS = 5_000
"""Short periods pace steps of a second smoothly."""
BURST = "64kb"
"""What a shaped link lets through at once: smaller than the messages that are timed."""


@dataclass(frozen=True, slots=True)
class Node:
    """One emulated node with one device."""

    name: str
    mbit: int
    """Rate of its network card in either direction, Mbit/s."""
    share: float
    """Processors that its device stands for."""

    @property
    def namespace(self) -> str:
        """Its network namespace, and its group of programs."""
        return f"{PREFIX}-{self.name}"

    @property
    def quota_microseconds(self) -> int:
        """Processor time in each period."""
        return int(self.share * PERIOD_MICROSECONDS)


def missing() -> str:
    """Why nodes cannot be emulated here; empty when they can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "needs root for network namespaces"
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"needs the tool {tool}"
    if _controller() is None:
        return "needs a writable cgroup controller for processors"
    if _try("ip", "netns", "add", PREFIX):
        return "may not make network namespaces"
    _try("ip", "netns", "del", PREFIX)
    return ""


def address(index: int) -> str:
    """Address of a node."""
    return f"10.77.0.{index + 1}"


@contextmanager
def emulated(nodes: Sequence[Node]) -> Iterator[None]:
    """The nodes, until the block ends."""
    _remove(nodes)
    try:
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "link", "set", BRIDGE, "up")
        for index, node in enumerate(nodes):
            _add(node, index)
        yield
    finally:
        _remove(nodes)


def command(node: Node, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Words that run a program on a node: in its network, under its host name, in its share of the processors."""
    # The group is joined first: inside the namespace the controllers are not mounted.
    join = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
    rename = 'hostname "$1" && shift && exec "$@"'
    settings = [f"{name}={value}" for name, value in environment.items()]
    return [
        *("bash", "-c", join, "bash", str(_group(node))),
        *("ip", "netns", "exec", node.namespace),
        *("unshare", "--uts", "bash", "-c", rename, "bash", node.name),
        *("env", *settings, *words),
    ]


def environment() -> dict[str, str]:
    """Settings of every rank: one thread, the node's own network card, no GPU."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONWARNINGS": "ignore",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def throttle(nodes: Sequence[Node], on: bool = True) -> None:
    """Limit the nodes' devices to their shares; or not, as while programs start."""
    for node in nodes:
        quota = node.quota_microseconds if on else -1
        group = _group(node)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota if on else 'max'} {PERIOD_MICROSECONDS}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(quota))


def _add(node: Node, index: int) -> None:
    """A namespace whose card is shaped both ways, and a cgroup."""
    outside, burst = f"{PREFIX}h{index}", ["burst", BURST, "latency", "50ms"]
    inside = ["ip", "netns", "exec", node.namespace]
    _run("ip", "netns", "add", node.namespace)
    _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    _run("ip", "link", "set", outside, "master", BRIDGE, "up")
    _run(*inside, "ip", "link", "set", "lo", "up")
    _run(*inside, "ip", "addr", "add", f"{address(index)}/24", "dev", "eth0")
    _run(*inside, "ip", "link", "set", "eth0", "up")
    rate = ["root", "tbf", "rate", f"{node.mbit}mbit", *burst]
    _run(*inside, "tc", "qdisc", "add", "dev", "eth0", *rate)
    _run("tc", "qdisc", "add", "dev", outside, *rate)
    _group(node).mkdir(parents=True, exist_ok=True)
    # A device has its share of the processors even where the machine has other work.
    weight = _group(node) / "cpu.shares"
    if weight.exists():
        weight.write_text("65536")
    else:
        (_group(node) / "cpu.weight").write_text("10000")


def _remove(nodes: Sequence[Node]) -> None:
    for index, node in enumerate(nodes):
        _end_programs(node)
        # A namespace takes its end of a link away later, this takes both at once.
        _try("ip", "link", "del", f"{PREFIX}h{index}")
        _try("ip", "netns", "del", node.namespace)
        if _group(node).is_dir():
            _group(node).rmdir()
    _try("ip", "link", "del", BRIDGE)


def _end_programs(node: Node) -> None:
    """Kill what still runs on the node: a group with programs cannot be removed."""
    listed = _group(node) / "cgroup.procs"
    for _ in range(100):
        running = listed.read_text().split() if listed.exists() else []
        if not running:
            return
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.05)


def _controller() -> Path | None:
    """Folder of the cgroup controller for processors: of its own (version 1), or the common one (version 2)."""
    root = Path("/sys/fs/cgroup")
    if (root / "cpu" / "cpu.cfs_quota_us").exists() or (root / "cpu" / "tasks").exists():
        return root / "cpu" if os.access(root / "cpu", os.W_OK) else None
    listed = root / "cgroup.subtree_control"
    if listed.exists() and "cpu" in listed.read_text().split() and os.access(root, os.W_OK):
        return root
    return None


def _group(node: Node) -> Path:
    folder = _controller()
    assert folder is not None, "missing() was not asked"
    return folder / node.namespace


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def _try(*words: str) -> int:
    return subprocess.run(words, check=False, capture_output=True).returncode
