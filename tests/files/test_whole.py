"""A file is the old one or the new one, at whatever moment its writer ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.errors import OutputError
from planner.files.writing import write_whole

CALLS = ("close", "fchmod", "fsync", "listdir", "open", "replace", "unlink")
LEFT = f".plan.yaml.{'0' * 32}.part"
"""A draft whose writer was killed."""


def test_mode_is_kept(tmp_path: Path) -> None:
    """A private file stays private and a shared one shared; a new one follows the umask."""
    path = tmp_path / "plan.yaml"
    before = os.umask(0o027)
    try:
        write_whole("new", path, "plan.yaml")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        for mode in (0o600, 0o664, 0o444 if os.geteuid() == 0 else 0o644):
            path.chmod(mode)
            write_whole(f"{mode}", path, "plan.yaml")
            assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (f"{mode}", mode)
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owner_is_kept(tmp_path: Path) -> None:
    """Root that writes a user's file leaves it to the user."""
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    os.chown(path, 1234, 4321)
    write_whole("new", path, "plan.yaml")
    assert (path.stat().st_uid, path.stat().st_gid, path.read_text()) == (1234, 4321, "new")


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The file that a link names is replaced, the link stays."""
    (tmp_path / "real").mkdir()
    (tmp_path / "plan.yaml").symlink_to("real/plan.yaml")
    write_whole("new", tmp_path / "plan.yaml", "plan.yaml")
    assert (tmp_path / "plan.yaml").is_symlink()
    assert (tmp_path / "real" / "plan.yaml").read_text() == "new"


@pytest.mark.parametrize(
    "name", ["p" * 250 + ".yaml", "ä" * 120, os.fsdecode(b"\xff\xfe.yaml"), ".", "a\nb", "p" * 300]
)
def test_any_name(tmp_path: Path, name: str) -> None:
    """Long names and those that are no text are written, or refused in one sentence."""
    try:
        write_whole("new", tmp_path / name, "plan.yaml")
    except OutputError:
        assert name in (".", "p" * 300)
        assert os.listdir(tmp_path) == []
    else:
        assert os.listdir(tmp_path) == [name]


def test_drafts_of_killed_writers_go(tmp_path: Path) -> None:
    """What nobody holds is deleted by the next write, and nothing else."""
    for name in (LEFT, ".plan.yaml.part", f".other.yaml.{'0' * 32}.part"):
        (tmp_path / name).write_text("half")
    write_whole("new", tmp_path / "plan.yaml", "plan.yaml")
    assert sorted(os.listdir(tmp_path)) == [f".other.yaml.{'0' * 32}.part", ".plan.yaml.part", "plan.yaml"]


def test_a_draft_that_is_being_written_stays(tmp_path: Path) -> None:
    """Two writers of one file do not take each other's drafts away."""
    import fcntl

    with (tmp_path / LEFT).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_whole("new", tmp_path / "plan.yaml", "plan.yaml")
        assert (tmp_path / LEFT).exists()


def test_many_at_once(tmp_path: Path) -> None:
    """The last wins, whole, and no draft stays."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "f"), str(i)]) for i in range(4)
    ]
    assert [each.wait() for each in writers] == [0] * 4
    text = (tmp_path / "f").read_text()
    assert text == text[0] * 100_000
    assert os.listdir(tmp_path) == ["f"]


WRITER = """
import sys
from pathlib import Path
from planner.files.writing import write_whole
for _ in range(20):
    write_whole(sys.argv[2] * 100_000, Path(sys.argv[1]), "f")
"""


@pytest.mark.parametrize("how", ["killed", "interrupted", "failing"])
def test_old_or_new_at_every_call(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a kill leaves a draft, which the next write deletes."""
    for call in range(1, 100):
        path = tmp_path / f"{call}" / "plan.yaml"
        path.parent.mkdir()
        path.write_text("old")
        ended = _ended(how, call, monkeypatch, path)
        assert path.read_text() in ("old", "new")
        if how != "killed":
            assert os.listdir(path.parent) == ["plan.yaml"], f"at call {call}"
        write_whole("third", path, "plan.yaml")
        assert path.read_text() == "third"
        assert os.listdir(path.parent) == ["plan.yaml"], f"after call {call}"
        if not ended:
            break
    assert 4 < call < 99


def _ended(how: str, call: int, patch: pytest.MonkeyPatch, path: Path) -> bool:
    if how == "killed":
        child = os.fork()
        if child == 0:
            _count(patch, call, lambda: os.kill(os.getpid(), signal.SIGKILL))
            write_whole("new", path, "plan.yaml")
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    def end() -> None:
        raise KeyboardInterrupt if how == "interrupted" else OSError(28, "No space left on device")

    with patch.context() as inner:
        count = _count(inner, call, end)
        try:
            write_whole("new", path, "plan.yaml")
        except (KeyboardInterrupt, OutputError):
            return True
    return count[0] >= call


def _count(patch: pytest.MonkeyPatch, last: int, end: Callable[[], None]) -> list[int]:
    count = [0]

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == last:
                end()
            return function(*arguments, **named)

        return call

    for name in CALLS:
        patch.setattr(os, name, counting(getattr(os, name)))
    return count
