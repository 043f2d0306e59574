"""Emulated nodes have the speed that they were given."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.rehearsal.emulation import Node, address, command, emulated, environment, missing, throttle

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "possible here")

BYTES = 2_000_000
RECEIVE = f"""
import socket, time
server = socket.create_server(("0.0.0.0", 4000))
print("ready", flush=True)
connection, _ = server.accept()
begin, left = time.perf_counter(), {BYTES}
while left > 0:
    left -= len(connection.recv(65536))
print(time.perf_counter() - begin)
"""
SEND = f"""
import socket
with socket.create_connection(("{address(0)}", 4000)) as connection:
    connection.sendall(bytes({BYTES}))
"""
SPIN = """
import time
begin, spent = time.perf_counter(), time.process_time()
while time.process_time() - spent < 0.2:
    pass
print(time.perf_counter() - begin)
"""


def start(node: Node, program: str) -> subprocess.Popen[str]:
    """A program on a node."""
    words = command(node, [sys.executable, "-c", program], environment())
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_links_are_shaped() -> None:
    """The slower of the two network cards limits a transfer."""
    nodes = (Node("wide", 1000, 1.0), Node("narrow", 50, 1.0))
    with emulated(nodes):
        receiver = start(nodes[0], RECEIVE)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        sender = start(nodes[1], SEND)
        sender.communicate(timeout=30)
        assert sender.returncode == 0
        seconds = float(receiver.communicate(timeout=30)[0])
    assert 0.8 < seconds / (8 * BYTES / 50e6) < 1.5


def test_devices_are_throttled() -> None:
    """A quarter of a processor takes four times as long, or longer beside other work."""
    node = Node("quarter", 1000, 0.25)
    with emulated((node,)):
        throttle((node,))
        slow = float(start(node, SPIN).communicate(timeout=30)[0])
        throttle((node,), on=False)
    assert slow > 0.2 / 0.25 * 0.9


def test_nothing_is_left_behind() -> None:
    """A program that still runs ends with its node."""
    node = Node("left", 1000, 1.0)
    with emulated((node,)):
        running = start(node, "import time; print(1, flush=True); time.sleep(60)")
        assert running.stdout is not None
        running.stdout.readline()
    running.communicate(timeout=10)
    assert running.returncode != 0
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert node.namespace not in found
