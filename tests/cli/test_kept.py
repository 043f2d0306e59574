"""The plan file of a search: there from the first plan on, whatever ends the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED
from planner.cli.inputs import SearchRequest
from planner.cli.search import KeptPlan
from planner.plan.file import read
from planner.search.deadline import Wish, keeping_the_best
from planner.search.values import Goal, Limits, Scored
from tests.cli.running import ROOT, Command
from tests.report import examples


def kept(path: Path) -> KeptPlan:
    """The keeper of the example's search."""
    asked = SearchRequest(
        cluster=examples.cluster(),
        model=examples.model(),
        calibration=ASSUMED,
        used=None,
        limits=Limits(),
        goal=Goal(),
    )
    return KeptPlan(asked, path)


def plans() -> tuple[Scored, Scored, Scored]:
    """Three plans, each faster than the one before."""
    return examples.scored(20), examples.scored(22), examples.scored(24)


def test_the_first_plan_is_written_at_once_and_others_soon(tmp_path: Path) -> None:
    """Within half a second only the last one is, as soon as the half second is over."""
    path = tmp_path / "plan.yaml"
    keeper, (first, second, third) = kept(path), plans()
    with patch("planner.cli.search.monotonic") as clock:
        clock.return_value = 100.0
        keeper.better(first)
        assert read(path).plan == first.plan
        clock.return_value = 100.2
        keeper.better(second)
        keeper.better(third)
        assert read(path).plan == first.plan
        clock.return_value = 100.6
        keeper.catch_up()
    saved = read(path)
    assert saved.plan == third.plan
    assert saved.summary is not None
    assert (saved.summary.status, saved.summary.gap) == ("feasible", 1.0)


def test_the_end_writes_all_that_is_known(tmp_path: Path) -> None:
    """The proof and the families; an error is returned, one on the way is not."""
    path = tmp_path / "plan.yaml"
    keeper = kept(path)
    keeper.better(plans()[0])
    assert keeper.finish(examples.found()) is None
    saved = read(path)
    assert saved.summary is not None
    assert saved.summary.alternatives
    gone = kept(tmp_path / "no" / "plan.yaml")
    gone.better(plans()[0])
    assert gone.finish(examples.found()) is not None
    assert gone.finish(replace(examples.found(), best=None)) is None


SEARCH = ("search", "cluster.yaml", "model.yaml", "--target", "megatron")
STOPPED = """
import time
from planner.cli.app import main
from planner.search.explorer import Explorer
def stuck(self, rounds):
    print("found", flush=True, file=__import__("sys").stderr)
    time.sleep(600)
Explorer._best_first = stuck
main()
"""


def test_a_killed_search_leaves_its_best_plan(files: Path) -> None:
    """SIGKILL while the search goes on; a second Ctrl-C ends it at once with the code of an interrupt."""
    for sent, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        (files / "plan.yaml").unlink(missing_ok=True)
        started = subprocess.Popen(
            [sys.executable, "-c", STOPPED, *SEARCH, "-o", "plan.yaml"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert started.stderr is not None
        assert started.stderr.readline() == "found\n"
        started.send_signal(sent)
        if sent == signal.SIGINT:
            time.sleep(0.3)
            started.send_signal(sent)
        assert started.wait(timeout=60) == code
        started.stderr.close()
        assert read(files / "plan.yaml").plan.devices >= 1


def test_reasons_that_fail_are_one_warning(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan, its file and exit 0 stay; HETPLAN_DEBUG shows where it happened."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops\nand more")

    monkeypatch.setattr("planner.search.explain.reasons.advise", broken)
    done = hetplan(*SEARCH, "-o", "plan.yaml")
    assert done.code == 0
    assert done.err == (
        "warning: the reasons could not be worked out: ZeroDivisionError: oops; please report it with your files\n"
    )
    assert ", proven " in done.out.splitlines()[-1]
    summary = read(files / "plan.yaml").summary
    assert summary is not None
    assert summary.status == "optimal"
    monkeypatch.setenv("HETPLAN_DEBUG", "1")
    assert "in broken" in hetplan(*SEARCH).err


def test_ctrl_c_is_a_wish_at_first() -> None:
    """The second one raises; behind the block everything is as it was."""
    before = signal.getsignal(signal.SIGINT)
    wish = Wish()
    with keeping_the_best(wish):
        assert not wish.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert (wish.is_set(), wish.insisted) == (True, False)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert wish.insisted
    assert signal.getsignal(signal.SIGINT) == before
