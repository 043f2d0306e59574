"""What a write replaces, what it keeps, and what it refuses."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.emit import lock, tree
from planner.emit.folder import MANIFEST, write_folder
from planner.errors import OutputError
from planner.job.files import EmittedFile

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


@pytest.mark.parametrize(("umask", "wanted"), [(0o027, [0o750, 0o750, 0o640]), (0, [0o777, 0o777, 0o666])])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, wanted: list[int]) -> None:
    """Scripts may be executed; others get what the umask leaves."""
    before = os.umask(umask)
    try:
        write_folder(FILES, tmp_path / "run")
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) for name in (".", "launch.sh", "env/a.sh")
    ]
    assert modes == wanted


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

    monkeypatch.setattr(os, "fsync", full)
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
    with pytest.raises(OutputError, match=r"run: cannot be written: (Not a directory|File exists)$"):
        write_folder(FILES, tmp_path / "parent" / "run")


def test_edited_files_are_kept_under_another_name(tmp_path: Path) -> None:
    """An edit is never lost: neither in a file that is written anew nor in one that is not, nor a second one."""
    folder = tmp_path / "run"
    write_folder((*FILES, EmittedFile("hostfile", "a slots=1\n")), folder)
    for name in ("env/a.sh", "hostfile", "launch.sh"):
        (folder / name).write_text(f"my {name}")
    (folder / "launch.sh.edited").write_text("a name that is taken")
    after = (EmittedFile("env/a.sh", "export A=2\n"), EmittedFile("launch.sh", "new\n"))
    assert write_folder(after, folder, force=True) == (
        ("env/a.sh", "env/a.sh.edited"),
        ("hostfile", "hostfile.edited"),
        ("launch.sh", "launch.sh.edited-2"),
    )
    assert (folder / "env" / "a.sh.edited").read_text() == "my env/a.sh"
    assert (folder / "hostfile.edited").read_text() == "my hostfile"
    assert (folder / "launch.sh.edited").read_text() == "a name that is taken"
    assert (folder / "launch.sh.edited-2").read_text() == "my launch.sh"
    assert not (folder / "hostfile").exists()
    (folder / "env" / "a.sh").write_text("again")
    assert write_folder(FILES, folder, force=True) == (("env/a.sh", "env/a.sh.edited-2"),)
    assert (folder / "env" / "a.sh.edited").read_text() == "my env/a.sh"


def test_what_is_the_same_is_not_touched(tmp_path: Path) -> None:
    """A second write of the same files changes nothing, also where the user wrote what would be written."""
    folder = tmp_path / "run"
    write_folder(FILES, folder)
    (folder / "env" / "a.sh").write_text("export A=1\n")
    before = {name: (folder / name).stat().st_ino for name in names(folder)}
    assert write_folder(FILES, folder, force=True) == ()
    assert {name: (folder / name).stat().st_ino for name in names(folder)} == before
    (folder / "launch.sh").chmod(0o644)
    assert write_folder(FILES, folder, force=True) == ()
    assert (folder / "launch.sh").stat().st_mode & stat.S_IXUSR


def test_an_older_list_has_no_digests(tmp_path: Path) -> None:
    """Files that may have been edited are kept; those that are as wanted are known."""
    folder = tmp_path / "run"
    write_folder((*FILES, EmittedFile("hostfile", "a slots=1\n")), folder)
    (folder / MANIFEST).write_text("env/a.sh\nhostfile\nlaunch.sh\n")
    assert write_folder(FILES, folder, force=True) == (("hostfile", "hostfile.edited"),)


def test_the_list_is_read_by_sha256sum(tmp_path: Path) -> None:
    """Users see what they edited."""
    write_folder(FILES, tmp_path / "run")
    (tmp_path / "run" / "launch.sh").write_text("mine")
    checked = subprocess.run(
        ["sha256sum", "-c", MANIFEST], cwd=tmp_path / "run", capture_output=True, text=True, check=False
    )
    assert checked.stdout == "env/a.sh: OK\nlaunch.sh: FAILED\n"


@pytest.mark.parametrize("list_of_files", [None, "", b"\xff\xfe", "README.md\n" * 3])
def test_files_of_the_user_in_the_way(tmp_path: Path, list_of_files: str | bytes | None) -> None:
    """What hetplan did not write is neither replaced nor moved."""
    (tmp_path / "launch.sh").write_text("mine")
    if isinstance(list_of_files, bytes):
        (tmp_path / MANIFEST).write_bytes(list_of_files)
    elif list_of_files is not None:
        (tmp_path / MANIFEST).write_text(list_of_files)
    before = names(tmp_path)
    with pytest.raises(OutputError, match=r"in the way of its files: launch\.sh$"):
        write_folder(FILES, tmp_path, force=True)
    assert (tmp_path / "launch.sh").read_text() == "mine"
    assert names(tmp_path) == before


def test_a_folder_or_a_file_in_the_way(tmp_path: Path) -> None:
    """A folder where a file belongs, and a file where a folder does."""
    (tmp_path / "launch.sh").mkdir()
    (tmp_path / "env").write_text("")
    with pytest.raises(OutputError, match=r"in the way of its files: env, launch\.sh$"):
        write_folder(FILES, tmp_path, force=True)


def test_files_and_folders_change_places(tmp_path: Path) -> None:
    """A file of ours gives way to a folder of ours, and a folder that is left empty goes."""
    write_folder((EmittedFile("conf", "x"), EmittedFile("env/a.sh", "y")), tmp_path / "run")
    write_folder((EmittedFile("conf/plan.yaml", "x"),), tmp_path / "run", force=True)
    assert names(tmp_path / "run") == [MANIFEST, "conf/plan.yaml"]
    assert not (tmp_path / "run" / "env").exists()


def victim(tmp_path: Path) -> Path:
    """A folder outside with a file of each name that is written."""
    outside = tmp_path / "victim"
    write_folder((*FILES, EmittedFile("env/deep/b.sh", "b\n")), outside)
    (outside / "a.sh").write_text("mine")
    return outside


LINKS = {"env": "victim", "env/deep": "victim/env", MANIFEST: f"victim/{MANIFEST}", ".hetplan-work": "victim"}


@pytest.mark.parametrize("is_used", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("link", LINKS)
def test_no_link_is_followed(tmp_path: Path, link: str, is_used: bool) -> None:
    """Links in the place of a folder or of the list, made before the first write or after it: refused."""
    outside, folder = victim(tmp_path), tmp_path / "run"
    before = {name: (outside / name).read_bytes() for name in names(outside)}
    files = (*FILES, EmittedFile("env/deep/b.sh", "new\n"))
    if is_used:
        write_folder((*FILES, EmittedFile("env/deep/b.sh", "b\n")), folder)
        if (folder / link).is_dir():
            shutil.rmtree(folder / link)
        (folder / link).unlink(missing_ok=True)
    (folder / link).parent.mkdir(parents=True, exist_ok=True)
    (folder / link).symlink_to(tmp_path / LINKS[link])
    with pytest.raises(OutputError, match="in the way"):
        write_folder(files, folder, force=True)
    assert {name: (outside / name).read_bytes() for name in names(outside)} == before
    assert (folder / link).is_symlink()


def test_links_in_the_place_of_files(tmp_path: Path) -> None:
    """A file that the user replaced by a link was edited: the link is kept, what it names is not touched."""
    outside, folder = tmp_path / "mine.sh", tmp_path / "run"
    write_folder((*FILES, EmittedFile("hostfile", "a slots=1\n")), folder)
    outside.write_text("export A=1\n")
    for name in ("env/a.sh", "hostfile"):
        (folder / name).unlink()
        (folder / name).symlink_to(outside)
    kept = write_folder(FILES, folder, force=True)
    assert kept == (("env/a.sh", "env/a.sh.edited"), ("hostfile", "hostfile.edited"))
    assert os.readlink(folder / "env" / "a.sh.edited") == str(outside)
    assert not (folder / "env" / "a.sh").is_symlink()
    assert outside.read_text() == "export A=1\n"


def test_stale_files_behind_a_link(tmp_path: Path) -> None:
    """A folder that the user replaced by a link is left alone where nothing is written into it."""
    outside, folder = victim(tmp_path), tmp_path / "run"
    write_folder(FILES, folder)
    shutil.rmtree(folder / "env")
    (folder / "env").symlink_to(outside / "env")
    write_folder((EmittedFile("launch.sh", "new\n"),), folder, force=True)
    assert (folder / "env").is_symlink()
    assert (outside / "env" / "a.sh").read_text() == "export A=1\n"


@pytest.mark.parametrize("force", [False, True])
def test_the_folder_itself_is_a_link(tmp_path: Path, force: bool) -> None:
    """It is not followed; the hint names where it points."""
    (tmp_path / "my runs").mkdir()
    (tmp_path / "run").symlink_to("my runs")
    with pytest.raises(OutputError, match="is a link") as caught:
        write_folder(FILES, tmp_path / "run", force)
    assert str(caught.value.hint).endswith(f"-o '{tmp_path}/my runs'")
    assert names(tmp_path / "my runs") == []
    (tmp_path / "above").symlink_to("my runs")
    write_folder(FILES, tmp_path / "above" / "run", force)
    assert (tmp_path / "my runs" / "run" / "launch.sh").exists()


@pytest.mark.parametrize("name", [".", "../run"])
def test_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A shell that stands in the folder still stands in it afterwards."""
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    write_folder(FILES, Path(name))
    write_folder((EmittedFile("launch.sh", "new\n"),), Path(name), force=True)
    assert names(Path.cwd()) == [MANIFEST, "launch.sh"]
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_above_that_cannot_be_written(tmp_path: Path) -> None:
    """The folder alone is enough."""
    folder = tmp_path / "run"
    write_folder(FILES, folder)
    tmp_path.chmod(0o500)
    write_folder((EmittedFile("launch.sh", "new\n"),), folder, force=True)
    assert names(folder) == [MANIFEST, "launch.sh"]


def test_something_in_the_twins_place(tmp_path: Path) -> None:
    """What is not hetplan's there is named, and stays."""
    (tmp_path / ".run.hetplan-twin").mkdir()
    (tmp_path / ".run.hetplan-twin" / "mine").write_text("mine")
    for _ in range(2):
        with pytest.raises(OutputError, match="hetplan-twin: is in the way"):
            write_folder(FILES, tmp_path / "run", force=True)
        (tmp_path / "run").mkdir(exist_ok=True)
    assert names(tmp_path) == [".run.hetplan-twin/mine"]


@pytest.mark.parametrize("journal", ["{", "[]", '{"kept": [], "out": ["../x"], "put": []}', '{"kept": 3}'])
def test_a_damaged_journal(tmp_path: Path, journal: str) -> None:
    """It is one error, and nothing is moved by it."""
    write_folder(FILES, tmp_path / "run")
    (tmp_path / "run" / ".hetplan-work").mkdir()
    (tmp_path / "run" / ".hetplan-work" / "journal").write_text(journal)
    with pytest.raises(OutputError, match="journal: damaged"):
        write_folder(FILES, tmp_path / "run", force=True)


PATHS = st.sampled_from(["a", "b", "c/a", "c/b", "c/d/a", "e/f/g/h"])
TEXTS = st.sampled_from(["", "one\n", "two\n", "ü\n"])
FOLDERS = st.dictionaries(PATHS, st.tuples(TEXTS, st.booleans()))
EDITS = st.dictionaries(PATHS, st.sampled_from(["mine\n", "one\n", None]))


@settings(max_examples=60, deadline=None)
@given(writes=st.lists(st.tuples(FOLDERS, EDITS), min_size=1, max_size=4))
def test_any_writes_and_edits(
    writes: list[tuple[dict[str, tuple[str, bool]], dict[str, str | None]]],
) -> None:
    """After every write its files are there; no text of the user is ever gone, and nothing is left of ours."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as top:
        folder = Path(top) / "run"
        theirs, refusals = 0, list[str]()
        for wanted, edits in writes:
            files = tuple(EmittedFile(path, *wanted[path]) for path in sorted(wanted))
            try:
                kept = write_folder(files, folder, force=True)
            except OutputError as error:
                refusals.append(str(error))
            else:
                assert {path: (folder / path).read_text() for path in wanted} == {
                    path: text for path, (text, _) in wanted.items()
                }
                others = set(names(folder)) - set(wanted) - {MANIFEST}
                assert {name for _, name in kept} <= others
            assert sum(text.read_text() == "mine\n" for text in folder.rglob("*") if text.is_file()) == theirs
            assert all("in the way" in refusal for refusal in refusals)
            assert os.listdir(top) == ["run"]
            for path, text in edits.items():
                if text is None and (folder / path).is_file():
                    theirs -= (folder / path).read_text() == "mine\n"
                    (folder / path).unlink()
                elif text is not None and not (folder / path).is_dir():
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    theirs -= (folder / path).exists() and (folder / path).read_text() == "mine\n"
                    (folder / path).write_text(text)
                    theirs += text == "mine\n"


def test_a_link_in_the_place_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind of error on every system: some call it too many links; what is not there is another error."""
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError):
        tree.open_folder(str(tmp_path / "link"))
    with pytest.raises(FileNotFoundError):
        tree.open_folder(str(tmp_path / "absent"))

    def too_many(*_: object, **__: object) -> int:
        raise OSError(errno.ELOOP, "too many links")

    monkeypatch.setattr(os, "open", too_many)
    with pytest.raises(NotADirectoryError):
        tree.open_folder("link")


def test_a_lock_that_goes_away_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last holder may take it away between the two looks at it."""
    taken, gone = lock._taken, [lock._GoneError()]

    def going(at: int, name: str, folder: int, shown: Path) -> int:
        if gone:
            raise gone.pop()
        return taken(at, name, folder, shown)

    monkeypatch.setattr(lock, "_taken", going)
    write_folder(FILES, tmp_path / "run")
    assert names(tmp_path / "run") == [MANIFEST, "env/a.sh", "launch.sh"]
