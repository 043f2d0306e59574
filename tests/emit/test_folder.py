"""A launch folder is written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from planner.emit.files import EmittedFile
from planner.emit.folder import MANIFEST, write_folder
from planner.errors import OutputError

FILES = (EmittedFile("env/a.sh", "export A=1\n"), EmittedFile("launch.sh", "#!/bin/sh\n", executable=True))


def names(folder: Path) -> list[str]:
    """Every file below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_new_folder_with_spaces(tmp_path: Path) -> None:
    """Files arrive with their text, missing parents are made, and nothing else is left behind."""
    folder = tmp_path / "my runs" / "a run"
    write_folder(FILES, folder)
    assert names(folder) == [MANIFEST, "env/a.sh", "launch.sh"]
    assert (folder / "env" / "a.sh").read_text() == "export A=1\n"
    assert names(folder.parent) == [f"a run/{name}" for name in names(folder)]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    """Scripts may be executed; others get what the umask leaves."""
    before = os.umask(0o027)
    try:
        write_folder(FILES, tmp_path / "run")
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) for name in (".", "launch.sh", "env/a.sh")
    ]
    assert modes == [0o750, 0o750, 0o640]


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    """A folder that is there but empty needs no force."""
    (tmp_path / "run").mkdir()
    write_folder(FILES, tmp_path / "run")
    assert (tmp_path / "run" / "launch.sh").exists()


def test_used_folder_is_refused(tmp_path: Path) -> None:
    """Without force nothing of a folder in use is touched, and the hint says how."""
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(OutputError, match="not empty") as caught:
        write_folder(FILES, tmp_path)
    assert "--force" in str(caught.value.hint)
    assert names(tmp_path) == ["notes"]


def test_force_replaces_own_files_only(tmp_path: Path) -> None:
    """With force, files of an earlier write go when they are stale; the user's stay."""
    folder = tmp_path / "run"
    write_folder((*FILES, EmittedFile("hostfile", "a slots=1\n")), folder)
    (folder / "checkpoint").write_text("precious")
    write_folder((EmittedFile("launch.sh", "new\n"),), folder, force=True)
    assert names(folder) == [MANIFEST, "checkpoint", "launch.sh"]
    assert (folder / "launch.sh").read_text() == "new\n"


def test_manifest_cannot_reach_outside(tmp_path: Path) -> None:
    """A manifest changed by hand never deletes a file outside the folder."""
    folder, outside = tmp_path / "run", tmp_path / "outside"
    write_folder(FILES, folder)
    outside.write_text("mine")
    (folder / MANIFEST).write_text("../outside\n")
    write_folder(FILES, folder, force=True)
    assert outside.read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A file in the way is named, with force or without."""
    (tmp_path / "run").write_text("")
    for force in (False, True):
        with pytest.raises(OutputError, match="is a file"):
            write_folder(FILES, tmp_path / "run", force)


def test_dangling_link(tmp_path: Path) -> None:
    """A link to nowhere is refused."""
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    with pytest.raises(OutputError, match="points nowhere"):
        write_folder(FILES, tmp_path / "run")


def test_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk fills up half way, neither the folder nor its draft remains."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "chmod", full)
    with pytest.raises(OutputError, match="No space left"):
        write_folder(FILES, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(tmp_path: Path) -> None:
    """A parent that cannot be written is one message."""
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot be written"):
        write_folder(FILES, tmp_path / "run")


def test_parent_is_a_file(tmp_path: Path) -> None:
    """A parent that is no folder is one message, also for root."""
    (tmp_path / "parent").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_folder(FILES, tmp_path / "parent" / "run")
