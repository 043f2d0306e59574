"""Files below an open folder, reached without ever following a symbolic link.

Paths are relative to the open folder and have forward slashes. All raise OSError.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def open_folder(name: str, at: int | None = None) -> int:
    """A descriptor of a folder; NotADirectoryError for a link, on every system."""
    try:
        return os.open(name, FOLDER, dir_fd=at)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
        raise


@contextmanager
def opened(name: str, at: int | None = None) -> Iterator[int]:
    """A folder as a descriptor, which stays with it wherever it is moved."""
    folder = open_folder(name, at)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def holding(root: int, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """The open folder that holds a path, and the path's last name; with ``make`` folders that lack are made."""
    *folders, name = path.split("/")
    here = os.dup(root)
    try:
        for folder in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=here)
            above, here = here, open_folder(folder, here)
            os.close(above)
        yield here, name
    finally:
        os.close(here)


def look(root: int, path: str) -> os.stat_result | None:
    """What stands at a path, a link as itself; None for nothing, and for what lies behind a link."""
    try:
        with holding(root, path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read(root: int, path: str) -> bytes | None:
    """The bytes of a regular file; None where there is none."""
    status = look(root, path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    with holding(root, path) as (folder, name):
        opening = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with open(opening, "rb") as file:
        return file.read()


def write(root: int, path: str, text: str, executable: bool = False) -> None:
    """A new file with the permissions that the user's umask leaves, its bytes on the disk."""
    with holding(root, path, make=True) as (folder, name):
        opening = os.open(name, os.O_WRONLY | NEW, 0o777 if executable else 0o666, dir_fd=folder)
    with open(opening, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def move(root: int, path: str, to: str, into: int | None = None) -> None:
    """Rename, into another folder where one is named; the folders of the new path are made."""
    other = root if into is None else into
    with holding(root, path) as (folder, name), holding(other, to, make=True) as (there, new):
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=there)


def remove(root: int, path: str) -> None:
    """Delete a file, a link or a folder with all that is in it, read-only folders too."""
    status = look(root, path)
    if status is None:
        return
    with holding(root, path) as (folder, name):
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=folder)
            return
        with suppress(PermissionError):
            os.chmod(name, 0o700, dir_fd=folder)
        with opened(name, folder) as inside:
            for each in os.listdir(inside):
                remove(inside, each)
        os.rmdir(name, dir_fd=folder)


def remove_empty(root: int, path: str) -> None:
    """Delete a folder unless something is in it, or it is none."""
    try:
        with holding(root, path) as (folder, name):
            os.rmdir(name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def finish(work: Callable[[], None]) -> None:
    """Do the work, from its start again where Ctrl-C interrupts it, which is raised afterwards."""
    try:
        work()
    except KeyboardInterrupt:
        work()
        raise


def parents(path: str) -> list[str]:
    """The folders that a path lies in, the outermost first."""
    words = path.split("/")
    return ["/".join(words[:end]) for end in range(1, len(words))]


def sync(root: int, paths: set[str]) -> None:
    """Put the names of the folder and of those below it on the disk, where the file system can."""
    for folder in (".", *sorted({f"{above}/." for path in paths for above in parents(path)})):
        with suppress(OSError), holding(root, folder) as (here, _):
            os.fsync(here)
