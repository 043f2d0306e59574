"""What starts the ranks of the training tests: each is told its place, and a failure is loud and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.training import ranks

PROGRAM = """
import os, sys, time
from pathlib import Path

def main():
    folder, what = Path(sys.argv[1]), Path(sys.argv[2]).name
    rank = os.environ["RANK"]
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    print("rank", rank, "of", os.environ["WORLD_SIZE"])
    while len([*folder.glob("pid-*")]) < 3:
        time.sleep(0.01)
    if what == "fails" and rank == "1":
        raise RuntimeError("what went wrong")
    if what == "dies" and rank == "1":
        os.kill(os.getpid(), 9)
    if what != "ends":
        time.sleep(600)
"""


def run(folder: Path, what: str, limit_seconds: float = 60.0) -> str:
    """Three ranks of the program; what they wrote."""
    (folder / "program.py").write_text(PROGRAM)
    log = folder / "log"
    ranks.run(3, folder / "program.py", folder, folder / what, log=log, limit_seconds=limit_seconds)
    return log.read_text()


def left(folder: Path) -> list[str]:
    """Ranks that are still there, of three."""
    begun = [*folder.glob("pid-*")]
    assert len(begun) == 3
    return [path.name for path in begun if os.path.exists(f"/proc/{path.read_text()}")]


def test_the_first_rank_is_heard(tmp_path: Path) -> None:
    """Of a line that all print, as each has another place; one job follows another."""
    assert run(tmp_path, "ends") == "rank 0 of 3\n"
    assert run(tmp_path, "ends") == "rank 0 of 3\n"
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("what", "said"), [("fails", "RuntimeError: what went wrong"), ("dies", "rank 1 ended with -9")]
)
def test_a_rank_that_fails_ends_all(tmp_path: Path, what: str, said: str) -> None:
    """With what it said, or by what it died."""
    with pytest.raises(pytest.fail.Exception, match=said):
        run(tmp_path, what)
    assert not left(tmp_path)


def test_ranks_that_hang_are_ended(tmp_path: Path) -> None:
    """When their time is up."""
    with pytest.raises(pytest.fail.Exception, match=r"ended after 3 s"):
        run(tmp_path, "hangs", limit_seconds=3.0)
    assert not left(tmp_path)
