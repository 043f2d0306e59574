"""Commands and the files that keep what they print."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from planner.errors import UsageError
from planner.probe.node import SOURCES, collection, folders, this_machine
from tests.probe.seen import SAMPLES, sample


def program(folder: Path, name: str, script: str) -> None:
    """A stand-in for a program of the node."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose nvidia-smi prints the samples of the T4 node, without an ibstat."""
    tools = tmp_path / "bin"
    tools.mkdir()
    answers = SAMPLES / "t4-01"
    script = (
        f'case "$1" in topo) cat {answers}/topo.txt;; -L) exit 9;; *) cat {answers}/nvidia-smi.csv;; esac'
    )
    program(tools, "nvidia-smi", script)
    program(tools, "ethtool", 'echo "Settings for $1:"; echo "Link detected: no"')
    program(tools, "ibstat", "exit 1")
    program(tools, "hostname", "echo t4-07")
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_this_machine_is_asked(machine: Path) -> None:
    """What fails is left out."""
    texts = this_machine()
    assert texts["nvidia_smi"].content == sample("t4-01/nvidia-smi.csv").content
    assert texts["topo"].content == sample("t4-01/topo.txt").content
    assert texts["topo"].file == "topo.txt of this machine"
    assert "gpu_list" not in texts
    assert "ibstat" not in texts


def test_the_printed_lines_collect_what_from_reads(machine: Path) -> None:
    """A folder called after the host; a command that fails leaves no file."""
    subprocess.run(["sh", "-c", collection()], cwd=machine, check=True)
    (found,) = folders(machine / "probe")
    host, texts = found
    assert host == "t4-07"
    assert texts["nvidia_smi"].content == sample("t4-01/nvidia-smi.csv").content
    assert not {"gpu_list", "ibstat"} & set(texts)


def test_every_source_is_collected() -> None:
    """No file that --from reads is forgotten."""
    assert all(source.file in collection() for source in SOURCES)


def test_one_node_without_sub_folders() -> None:
    """The folder is the node."""
    ((host, texts),) = folders(SAMPLES / "dgx-01")
    assert host == "dgx-01"
    assert set(texts) == {"nvidia_smi", "topo", "ibstat", "ethtool"}


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    """Nothing there, two kinds of content, a name that no host can have."""
    with pytest.raises(UsageError, match="is not a folder"):
        list(folders(tmp_path / "no"))
    with pytest.raises(UsageError, match=r"has none of nvidia-smi\.csv"):
        list(folders(tmp_path))
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "topo.txt").write_text("")
    with pytest.raises(UsageError, match="is not named like a host"):
        list(folders(tmp_path))
    (tmp_path / "topo.txt").write_text("")
    with pytest.raises(UsageError, match="files of a node beside folders of nodes"):
        list(folders(tmp_path))
