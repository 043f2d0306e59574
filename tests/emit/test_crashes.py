"""Wherever a writer ends, the folder is the old one or the new one."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.emit import folder as writer
from planner.emit.folder import JOURNAL, LINKED, MANIFEST, FolderChange, apply, write_folder, write_journal
from planner.emit.interface import emit
from planner.emit.lock import WORK
from planner.errors import OutputError
from planner.job.files import EmittedFile
from tests.emit.breaking import broken_at, content, interrupted_at, killed_at
from tests.worlds import cluster, group, model, plan, pool

OLD = (
    EmittedFile("env/a.sh", "export A=1\n"),
    EmittedFile("env/gone/b.sh", "export B=1\n"),
    EmittedFile("hosts", "a\n"),
    EmittedFile("launch.sh", "#!/bin/sh\necho old\n", executable=True),
    EmittedFile("same", "same\n"),
)
NEW = (
    EmittedFile("conf/train/plan.yaml", "plan: new\n"),
    EmittedFile("env/a.sh", "export A=2\n"),
    EmittedFile("hosts", "b\n"),
    EmittedFile("launch.sh", "#!/bin/sh\necho new\n", executable=True),
    EmittedFile("same", "same\n"),
)
Ending = Callable[[int, pytest.MonkeyPatch, Callable[[], object]], bool]
ENDINGS: list[Ending] = [killed_at, interrupted_at, broken_at]
MOST = 1000
"""Calls after which a writer must have ended."""
CALLS = [
    pytest.param(ending, range(1 + offset, MOST, 48), id=f"{ending.__name__}-now-and-then")
    for offset, ending in zip((0, 16, 32), ENDINGS, strict=True)
] + [
    pytest.param(ending, range(1, MOST), id=f"{ending.__name__}-every", marks=pytest.mark.slow)
    for ending in ENDINGS
]
"""A way to end and the calls at which it does: each at every 48th, one after the other, so that some way is tried
at every sixteenth call; every way at every call among the slow tests."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of a test need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where the system has one: the tests make and delete a thousand folders."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


def used(folder: Path) -> None:
    """An old folder with the user's own files, one edited file and links."""
    write_folder(OLD, folder)
    (folder / "hosts").write_text("edited\n")
    (folder / "outputs" / "step-1").mkdir(parents=True)
    (folder / "outputs" / "step-1" / "weights").write_text("precious")
    (folder / "env" / "mine.sh").write_text("mine")
    (folder / "latest").symlink_to("outputs/step-1")
    (folder / "elsewhere").symlink_to("../victim")
    (folder / "outputs").chmod(0o555)


def no_exchange(*_: object) -> None:
    """As on NFS."""
    raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.parametrize(("ending", "calls"), CALLS)
def test_old_or_new_at_every_call(
    ending: Ending, calls: range, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at right after its end, and whole after another write, with nothing left beside or inside."""
    pristine = memory / "pristine"
    used(pristine)
    old = content(pristine)
    shutil.copytree(pristine, memory / "changed", symlinks=True)
    write_folder(NEW, memory / "changed", force=True)
    new = content(memory / "changed")
    for call in calls:
        parent = memory / f"at-{call}"
        folder = parent / "run"
        shutil.copytree(pristine, folder, symlinks=True)
        ended = ending(call, monkeypatch, lambda folder=folder: write_folder(NEW, folder, force=True))  # type: ignore[misc]
        assert content(folder) in (old, new), f"at call {call}"
        if ending is interrupted_at:
            assert os.listdir(parent) == ["run"], f"at call {call}"
        write_folder(NEW, folder, force=True)
        assert content(folder) == new, f"after call {call}"
        assert os.listdir(parent) == ["run"], f"after call {call}"
        assert WORK not in os.listdir(folder)
        if not ended:
            break
    assert 50 < call < MOST - 1


@pytest.mark.slow
@pytest.mark.parametrize("signals", [signal.SIGKILL, signal.SIGINT])
def test_old_or_new_at_any_moment(signals: signal.Signals, memory: Path) -> None:
    """Real signals at random moments, between two calls too."""
    rng = random.Random(1)
    pristine = memory / "pristine"
    used(pristine)
    shutil.copytree(pristine, memory / "changed", symlinks=True)
    write_folder(NEW, memory / "changed", force=True)
    old, new = content(pristine), content(memory / "changed")
    seen = set()
    for attempt in range(500):
        folder = memory / f"{attempt}" / "run"
        shutil.copytree(pristine, folder, symlinks=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
                write_folder(NEW, folder, force=True)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signals)
        os.waitpid(child, 0)
        found = content(folder)
        assert found in (old, new)
        seen.add(found == new)
        write_folder(NEW, folder, force=True)
        assert content(folder) == new
        assert os.listdir(folder.parent) == ["run"]
    assert seen == {False, True}


@pytest.mark.parametrize(("ending", "calls"), CALLS)
def test_absent_or_new_at_every_call(
    ending: Ending, calls: range, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new folder is there whole or not at all."""
    write_folder(NEW, memory / "whole")
    new = content(memory / "whole")
    for call in calls:
        parent = memory / f"at-{call}"
        parent.mkdir()
        folder = parent / "run"
        ended = ending(call, monkeypatch, lambda folder=folder: write_folder(NEW, folder))  # type: ignore[misc]
        assert content(folder) in (None, new), f"at call {call}"
        write_folder(NEW, folder, force=True)
        assert content(folder) == new, f"after call {call}"
        assert os.listdir(parent) == ["run"], f"after call {call}"
        assert WORK not in os.listdir(folder)
        if not ended:
            break
    assert 20 < call < MOST - 1


@pytest.mark.parametrize(("ending", "calls"), CALLS)
def test_without_exchange_a_journal_tells_and_undoes(
    ending: Ending, calls: range, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File by file, as on NFS: what is neither old nor new has a journal, by which the next write goes back."""
    monkeypatch.setattr(writer, "exchange", no_exchange)
    pristine = memory / "pristine"
    used(pristine)
    old = content(pristine)
    mixed = 0
    for call in calls:
        parent = memory / f"at-{call}"
        folder = parent / "run"
        shutil.copytree(pristine, folder, symlinks=True)
        ended = ending(call, monkeypatch, lambda folder=folder: write_folder(NEW, folder, force=True))  # type: ignore[misc]
        is_unfinished = (folder / JOURNAL).exists()
        before = content(folder)
        mixed += is_unfinished
        assert is_unfinished <= (ending is killed_at), f"at call {call}"
        with pytest.raises(OutputError, match="not empty"):
            write_folder(NEW, folder)
        assert content(folder) == (old if is_unfinished else before), f"at call {call}"
        if not is_unfinished:
            assert before == old or ("hosts.edited" in before and "conf/train/plan.yaml" in before)  # type: ignore[operator]
        write_folder(NEW, folder, force=True)
        assert os.listdir(parent) == ["run"], f"after call {call}"
        assert WORK not in os.listdir(folder)
        if not ended:
            break
    assert 50 < call < MOST - 1
    assert (mixed > 0) == (ending is killed_at)


def test_without_exchange_nothing_launches_half_way(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start script of a folder that was left half-way says so and starts nothing."""
    plain = [file for file in emitted_example() if file.path != "README.md"]
    folder = memory / "run"
    write_folder(plain, folder)
    (folder / WORK).mkdir()
    (folder / JOURNAL).write_text("{}")
    done = subprocess.run([folder / "launch.sh", "0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "stopped half-way" in done.stderr


def emitted_example() -> tuple[EmittedFile, ...]:
    """A launch folder."""
    replicas = [(group("a", "A100", count=2, share=2),)]
    return emit(plan("torch", 0, [4], replicas), cluster(pool("a", ("A100",) * 2, 1)), model(4))


def test_what_comes_meanwhile_is_kept(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs in the folder loses nothing, be it by path or by its current folder."""
    folder = memory / "run"
    used(folder)
    (folder / "outputs").chmod(0o755)
    inode = folder.stat().st_ino
    inside = os.open(folder, os.O_RDONLY)

    exchange = writer.exchange

    def exchange_and_write(at: int, name: str, other: str) -> None:
        exchange(at, name, other)
        if not (folder / "by-path").exists():
            (folder / "outputs" / "step-2").mkdir()
            (folder / "outputs" / "step-2" / "weights").write_text("by path")
            (folder / "by-path").write_text("by path")
            (folder / "replaced.part").write_text("later")
            (folder / "replaced.part").rename(folder / "env" / "mine.sh")
            with open(os.open("by-folder", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=inside), "w") as file:
                file.write("by folder")

    monkeypatch.setattr(writer, "exchange", exchange_and_write)
    write_folder(NEW, folder, force=True)
    os.close(inside)
    found = content(folder)
    assert found is not None
    assert folder.stat().st_ino == inode
    assert found["outputs/step-2/weights"] == ("by path", False)
    assert found["by-path"] == ("by path", False)
    assert found["by-folder"] == ("by folder", False)
    assert found["env/mine.sh"] == ("later", False)
    assert found["hosts.edited"] == ("edited\n", False)
    assert os.listdir(memory) == ["run"]


def killed_in_the_twins_place(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Kill a writer amid its renames between the exchanges, and return where the folder itself stands."""
    child = os.fork()
    if child == 0:

        def half(change: FolderChange) -> FolderChange:
            return replace(change, put=change.put[: len(change.put) // 2])

        try:
            patch.setattr(writer, "_in_place", lambda at, change: half_way(at, change, half(change)))
            write_folder(NEW, folder, force=True)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] != 0
    return folder.with_name(writer.twin_name(folder.name))


def half_way(folder: int, change: FolderChange, half: FolderChange) -> None:
    """Do the half of a change, and die."""
    write_journal(folder, change)
    apply(folder, half)
    os._exit(1)


@pytest.mark.parametrize("record", [None, "", "{", "[[]]"])
def test_what_came_before_the_next_write_is_kept(
    memory: Path, monkeypatch: pytest.MonkeyPatch, record: str | None
) -> None:
    """After a kill at the worst moment, files of both folders are the user's, also with a damaged record."""
    folder = memory / "run"
    used(folder)
    displaced = killed_in_the_twins_place(folder, monkeypatch)
    (displaced / "by-a-job").write_text("by a job in the old folder")
    (folder / "notes").write_text("by the user")
    if record is not None:
        (displaced / LINKED).unlink()
        (displaced / LINKED).write_text(record)
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda at: sorted(listed(at)))  # the work folder first
    write_folder(NEW, folder, force=True)
    found = content(folder)
    assert found is not None
    assert found["by-a-job"] == ("by a job in the old folder", False)
    assert found["notes"] == ("by the user", False)
    assert found["outputs/step-1/weights"] == ("precious", False)
    assert os.listdir(memory) == ["run"]


def test_what_the_user_deletes_stays_deleted(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a kill and the next write."""
    folder = memory / "run"
    used(folder)
    killed_in_the_twins_place(folder, monkeypatch)
    (folder / "env" / "mine.sh").unlink()
    (folder / "latest").unlink()
    write_folder(NEW, folder, force=True)
    assert not (folder / "env" / "mine.sh").exists()
    assert "latest" not in os.listdir(folder)


def test_a_folder_whose_twin_was_deleted_comes_back(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody loses checkpoints by deleting what a kill left under the folder's name."""
    folder = memory / "run"
    used(folder)
    old = content(folder)
    killed_in_the_twins_place(folder, monkeypatch)
    assert content(folder) != old
    shutil.rmtree(folder)
    with pytest.raises(OutputError, match="not empty"):
        write_folder(NEW, folder)
    assert content(folder) == old
    assert os.listdir(memory) == ["run"]


def test_two_at_once_exclude_each_other(memory: Path) -> None:
    """The second is told; killing the first leaves nothing in the way."""
    folder = memory / "run"
    used(folder)
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"holding\n"
    before = content(folder)
    for force in (False, True):
        with pytest.raises(OutputError, match="another hetplan is writing there"):
            write_folder(NEW, folder, force)
    assert content(folder) == before
    first.send_signal(signal.SIGKILL)
    first.communicate()
    write_folder(NEW, folder, force=True)
    assert content(folder) != before
    assert os.listdir(memory) == ["run"]


HOLDING = """
import sys
from pathlib import Path
from typing import Any
from planner.emit import folder as writer
from planner.job.files import EmittedFile
def waiting(*_):
    print("holding", flush=True)
    sys.stdin.read()
writer.exchange = waiting
writer.write_folder((EmittedFile("launch.sh", "third"),), Path(sys.argv[1]), force=True)
"""


def test_many_at_once_leave_one_whole_folder(memory: Path) -> None:
    """Writers of a new folder and of one in use: every one succeeds or is told, and the folder is one of theirs."""
    for attempt in range(4):
        folder = memory / f"{attempt}" / "run"
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in racing(folder)]
        assert set(ends) <= {0, TOLD}
        assert 0 in ends
        found = content(folder)
        assert found is not None
        del found[MANIFEST]
        assert len(set(found.values())) == 1
        assert sorted(found) == [f"file-{index}" for index in range(8)]
        assert os.listdir(folder.parent) == ["run"]


TOLD = 2
"""Exit status of a writer that was refused."""


def racing(folder: Path) -> list[int]:
    """Four processes that each write the folder five times, and end when one of its writes is refused."""
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(5):
                    files = [EmittedFile(f"file-{index}", str(number)) for index in range(8)]
                    write_folder(files, folder, force=True)
                status = 0
            except OutputError:
                status = TOLD
            finally:
                os._exit(status)
        children.append(child)
    return children


def test_what_a_killed_writer_had_begun_is_not_in_the_folder(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a draft that nobody finished are gone, whatever their names."""
    folder, fill = memory / "run", writer._fill
    child = os.fork()
    if child == 0:

        def half(draft: int, *others: Any) -> None:
            fill(draft, *others)
            for name in ("-first", "zz-last"):
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=draft))
            os._exit(1)

        try:
            monkeypatch.setattr(writer, "_fill", half)
            write_folder(NEW, folder)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] != 0
    assert not folder.exists()
    write_folder(NEW, folder)
    assert not {"-first", "zz-last"} & {*os.listdir(folder)}
    assert os.listdir(memory) == ["run"]
