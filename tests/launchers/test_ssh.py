"""The script over ssh, with a stand-in that runs the commands here."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.launchers.stand_ins import SSH, TORCHRUN, folder_of, install, journal, run

BOTH = {"ssh": SSH, "torchrun": TORCHRUN}


def test_every_node_is_started_once(tmp_path: Path) -> None:
    """Each node rank has its devices and network, and output says where it is from."""
    folder = folder_of(tmp_path, "ssh")
    done = run(tmp_path, BOTH, [str(folder / "start.sh"), "--", "--text", "my file"])
    assert done.returncode == 0, done.stderr
    started = journal(tmp_path)
    assert [entry["node"] for entry in started] == ["0", "1", "2"]
    assert [entry["pool"] for entry in started] == ["big", "big", "small"]
    assert [entry["devices"] for entry in started] == ["0,1,2,3", "0,1,2,3", "0,1"]
    assert [entry["socket"] for entry in started] == ["=ens1", "=ens1", "=eth0"]
    assert {entry["master"] for entry in started} == {"big-0:29500"}
    assert all(entry["arguments"].endswith("train.py --text my file") for entry in started)
    assert all(f"--nnodes 3 --node-rank {entry['node']} " in entry["arguments"] for entry in started)
    assert "[2 small-0] node=2 pool=small" in done.stdout


def test_settings_travel(tmp_path: Path) -> None:
    """The rendezvous and variables that the user names reach the nodes, blanks included."""
    folder = folder_of(tmp_path, "ssh")
    done = run(
        tmp_path, BOTH, [str(folder / "start.sh"), "--dry-run"], MASTER_PORT="5", FORWARD="MINE", MINE="a b"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("ssh -tt -o BatchMode=yes small-0 ")
    script = subprocess.run(
        ["bash", "-c", f'set -- {lines[2]}; printf %s "${{!#}}"'], capture_output=True, text=True, check=True
    )
    assert script.stdout.startswith(
        f"cd {str(folder).replace(' ', chr(92) + ' ')} && exec env MINE=a\\ b MASTER_PORT=5 "
    )
    assert "./launch.sh 2 --" in script.stdout
    assert not (tmp_path / "journal").exists()


def test_a_failing_node_ends_the_others(tmp_path: Path) -> None:
    """The exit code is that of the node that failed, which is named."""
    folder = folder_of(tmp_path, "ssh")
    done = run(tmp_path, BOTH, [str(folder / "start.sh")], NODE_THAT_FAILS="1", OTHERS_WAIT="1")
    assert done.returncode == 7
    assert "node 1 (big-1) ended with exit code 7; ending all others" in done.stderr


def test_dead_host(tmp_path: Path) -> None:
    """A host that does not answer ends the job too."""
    folder = folder_of(tmp_path, "ssh")
    done = run(tmp_path, BOTH, [str(folder / "start.sh")], DEAD="small-0", OTHERS_WAIT="1")
    assert done.returncode == 255
    assert "node 2 (small-0) ended with exit code 255" in done.stderr
    assert "[2 small-0] ssh: connect to host small-0 port 22: No route to host" in done.stdout


def test_interrupt_ends_all(tmp_path: Path) -> None:
    """Ctrl-C leaves no process behind."""
    folder = folder_of(tmp_path, "ssh")
    place = install(
        tmp_path, {"ssh": SSH, "torchrun": f"#!/bin/bash\necho $$ >>'{tmp_path}/pids'\nexec sleep 60\n"}
    )
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
    started = subprocess.Popen(
        [str(folder / "start.sh")], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    pids = tmp_path / "pids"
    deadline = time.monotonic() + 20
    while (not pids.exists() or len(pids.read_text().split()) < 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=20) == 130
    deadline = time.monotonic() + 10
    left = [int(pid) for pid in pids.read_text().split()]
    assert len(left) == 3
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if _runs(pid)]
    assert left == []


def _runs(pid: int) -> bool:
    """True while a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_unknown_option(tmp_path: Path) -> None:
    """A wrong option starts nothing."""
    done = run(tmp_path, BOTH, [str(folder_of(tmp_path, "ssh") / "start.sh"), "--steps"])
    assert done.returncode == 2
    assert "unknown option --steps" in done.stderr
