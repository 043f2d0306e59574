"""Choices that other processes solve: the same answer, whatever becomes of these processes."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED, Calibration, LayerPoint, LinkPoint
from planner.cluster.spec import NicSpec, PoolSpec
from planner.cost.estimate import Estimator
from planner.search import elsewhere, explorer
from planner.search.deadline import NO_LIMIT, Deadline, Struck
from planner.search.elsewhere import ChoiceElsewhere, Elsewhere, OtherProcess, Scene, Start, serve, step_all
from planner.search.explorer import Explorer
from planner.search.pipeline import OpenChoice
from planner.search.space.choices import Choice
from planner.search.values import Limits, Silent
from tests.quick import first
from tests.worlds import cluster, gpt, pool

MODEL = gpt(15, global_batch=32)
MEASURED = Calibration(
    layers=tuple(
        LayerPoint(
            gpu="A100",
            model=MODEL.name,
            tp=1,
            micro_batch=size,
            forward_seconds=2e-3 * size,
            backward_seconds=4e-3 * size,
        )
        for size in (1, 4)
    ),
    link_points=tuple(
        LinkPoint(link="ib", operation=operation, members=members, size_bytes=size, seconds=size / 1e10)
        for operation in ("send", "all-reduce")
        for members in (2, 8)
        for size in (1e6, 1e9)
    ),
)
"""Layers and collectives, between whose points the search has to look."""


def world(calibration: Calibration = ASSUMED) -> Estimator:
    """Two islands of eight devices, joined by slow Ethernet: some choices take several rounds."""

    def island(name: str, gpu: str, fabric: str) -> PoolSpec:
        fast, slow = (
            NicSpec(fabric=each, bandwidth_gbps=gbps, count=1) for each, gbps in ((fabric, 200), ("eth", 2))
        )
        return pool(name, gpu, nodes=2, per_node=4, nics=(fast, slow))

    pools = island("a", "A100", "ib"), island("b", "V100", "roce")
    return Estimator(cluster(*pools), MODEL, calibration)


def searched(processes: int, calibration: Calibration = ASSUMED) -> Explorer:
    """A whole search for Megatron."""
    limits = Limits(target="megatron", gap=0.0, processes=processes)
    found = Explorer(world(calibration), limits, Silent())
    found.run()
    return found


@contextmanager
def at_once(count: int = 4) -> Iterator[list[OtherProcess]]:
    """Other processes from the first choice on, and many choices at a time; those that were started."""
    started: list[OtherProcess] = []
    begin = OtherProcess.__init__

    def noted(self: OtherProcess) -> None:
        begin(self)
        started.append(self)

    with (
        patch.object(explorer, "ALONE_SECONDS", -1.0),
        patch.object(explorer, "ROUNDS_EACH", 1),
        patch.object(explorer, "MOST_AT_ONCE", count),
        patch.object(explorer, "POLISHED_DEVICES", 0),
        patch.object(OtherProcess, "__init__", noted),
    ):
        yield started


@cache
def alone() -> Explorer:
    """The same search in one process."""
    with at_once() as started:
        found = searched(1)
    assert started == []
    return found


def told(found: Explorer) -> tuple[object, ...]:
    """What a search says."""
    assert found.best is not None
    return found.status, found.best.plan, found.best.estimate.step_seconds, found.bound, found.solved


def test_the_answer_is_the_same_with_two_processes() -> None:
    """Its proof too; they have solved a part of the choices, and end with the search."""
    asked: list[int] = []
    ask = OtherProcess.ask

    def noted(self: OtherProcess, task: Any) -> Any:
        asked.append(task.number)
        return ask(self, task)

    with at_once() as started, patch.object(OtherProcess, "ask", noted):
        assert told(searched(2)) == told(alone())
    assert len(started) == 1
    assert started[0].ended
    assert started[0]._process.poll() is not None
    assert 1 < len(set(asked)) < alone().solved
    assert len(asked) > len(set(asked))


def test_measured_layers_and_links_are_known_to_other_processes() -> None:
    """They anchor prices there as they do here."""
    with at_once() as started:
        here = searched(1, MEASURED)
        assert told(searched(2, MEASURED)) == told(here)
    assert len(started) == 1
    assert told(here) != told(alone())


def end_at_the_third(process: OtherProcess, asked: list[int]) -> None:
    """As the system does where memory is short."""
    asked.append(0)
    if len(asked) == 3:
        process._process.kill()
        process._process.wait()


def test_the_search_goes_on_where_a_process_has_ended() -> None:
    """What it was to solve is solved here."""
    asked: list[int] = []
    ask = OtherProcess.ask

    def fragile(self: OtherProcess, task: Any) -> Any:
        end_at_the_third(self, asked)
        return ask(self, task)

    with at_once(), patch.object(OtherProcess, "ask", fragile):
        found = searched(2)
    best = alone().best
    assert len(asked) >= 3
    assert found.status == "optimal"
    assert found.best is not None
    assert best is not None
    assert found.best.estimate.step_seconds == pytest.approx(best.estimate.step_seconds, rel=1e-5)


@pytest.mark.parametrize("error", first(1, [Struck, KeyboardInterrupt]))
def test_what_is_interrupted_leaves_no_process(error: type[BaseException]) -> None:
    """The bound that is left holds, and the search can go on."""
    step = ChoiceElsewhere.step
    calls: list[int] = []

    def cut(self: ChoiceElsewhere, cutoff: float, deadline: Deadline) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise error
        step(self, cutoff, deadline)

    with at_once() as started, patch.object(ChoiceElsewhere, "step", cut):
        limits = Limits(target="megatron", gap=0.0, processes=2)
        found = Explorer(world(), limits, Silent())
        found.run()
        assert started[0].ended
        assert not found.finished
        best = alone().best
        assert best is not None
        assert found.bound <= best.estimate.step_seconds
        if error is Struck:
            found.go_on(NO_LIMIT, float("inf"))
            assert told(found)[:3] == told(alone())[:3]


def begun() -> tuple[Scene, Start, Explorer]:
    """The first choice of a search."""
    limits = Limits(target="megatron", gap=0.0)
    found = Explorer(world(), limits, Silent())
    found._open()
    found._first_plans()
    while True:
        bound, _, item = found._heap[0]
        if isinstance(item, Choice) and item.depth > 1:
            return Scene(scorer=found.estimator, limits=limits, solver=None), found._start(bound, item), found
        found._heap.pop(0)
        if not isinstance(item, Choice | OpenChoice | ChoiceElsewhere):
            found._expand(bound, item)
        found._heap.sort()


def test_choices_go_where_least_is_to_be_done() -> None:
    """To other processes first; not to one that has ended."""
    scene, start, found = begun()
    partition, busy = found.partition(start.choice.family), Counter[OtherProcess | None]()
    others = Elsewhere(scene, 2)
    try:
        one, two = others._processes
        opened = [others.open(start, partition, busy) for _ in range(4)]
        places = [each.process if isinstance(each, ChoiceElsewhere) else None for each in opened]
        assert places == [one, two, None, one]
        one.end()
        busy.clear()
        places = [
            each.process if isinstance(each, ChoiceElsewhere) else None
            for each in (others.open(start, partition, busy) for _ in range(2))
        ]
        assert places == [two, None]
    finally:
        others.end()
    assert all(process.ended for process in others._processes)


def test_rounds_that_an_ended_process_never_began() -> None:
    """They are solved here; nobody waits for what was cancelled while another round was under way."""
    scene, start, found = begun()
    partition = found.partition(start.choice.family)
    others = Elsewhere(scene, 1)
    (process,) = others._processes
    waiting = threading.Event()
    process._exchanges.submit(waiting.wait)
    opened = ChoiceElsewhere(process, scene, start, partition)
    opened.ask(float("inf"), NO_LIMIT)
    threading.Timer(0.1, waiting.set).start()
    others.end()
    opened.step(float("inf"), Deadline.after(60))
    assert opened._here is not None


class Noted:
    """Notes the thread in which it is pickled."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __reduce__(self) -> tuple[type, tuple[()]]:
        self.threads.append(threading.current_thread())
        return int, ()


def test_tasks_are_pickled_where_the_search_waits() -> None:
    """In a thread of their own they would be while the search fills the tables that they have in common."""
    process, noted = OtherProcess(), Noted()
    try:
        process.ask(cast("Any", noted)).exception()
    finally:
        process.end()
    assert noted.threads == [threading.current_thread()]


class Served(io.BytesIO):
    """What a process reads or writes."""

    def flush(self) -> None:
        """Nothing is held back."""


def test_what_another_process_does() -> None:
    """Round after round as here, with the partition that came with the first; it ends with its input."""
    scene, start, found = begun()
    partition = found.partition(start.choice.family)
    here = scene.open(start, partition)
    tasks, states = Served(), []
    for number in range(2):
        task = elsewhere._Round(
            number=7,
            start=None if number else start,
            partition=3,
            parts=None if number else (scene, partition.estimator, partition.islands),
            cutoff_seconds=start.cutoff_seconds,
            until=float("inf"),
        )
        pickle.dump(task, tasks)
        if not here.closed:
            here.step(start.cutoff_seconds)
            states.append((here.bound, here.closed, here.comes_to_ilp))
    tasks.seek(0)
    told = Served()
    with (
        patch.object(sys, "stdin", SimpleNamespace(buffer=tasks)),
        patch.object(sys, "stdout", SimpleNamespace(buffer=told)),
    ):
        if here.closed:
            with pytest.raises(KeyError):
                serve()
        else:
            serve()
    told.seek(0)
    for state in states:
        known = pickle.load(told)
        assert (known.bound, known.closed, known.comes_to_ilp) == pytest.approx(state)
    assert not told.read()


def test_a_wait_ends_at_the_deadline() -> None:
    """Whatever the other process does; what was known before still holds."""
    scene, start, found = begun()
    partition = found.partition(start.choice.family)
    others = Elsewhere(scene, 1)
    try:
        opened = others.open(start, partition, Counter())
        assert isinstance(opened, ChoiceElsewhere)
        never = SimpleNamespace(done=set())
        with patch.object(elsewhere, "wait", return_value=never), pytest.raises(Struck):
            step_all([opened], start.cutoff_seconds, Deadline.after(0.0))
        assert (opened.bound, opened.best, opened.closed) == (start.bound_seconds, None, False)
    finally:
        others.end()
    # Then it is solved here.
    opened.step(start.cutoff_seconds, NO_LIMIT)
    here = scene.open(start, partition)
    here.step(start.cutoff_seconds)
    assert (opened.bound, opened.closed) == (here.bound, here.closed)


def test_a_process_without_a_parent_is_told_to_end() -> None:
    """By the deadline of its rounds."""
    flag = elsewhere._Orphaned()
    assert not flag.is_set()
    with patch("os.getppid", return_value=flag._parent + 1):
        assert flag.is_set()
        with pytest.raises(Struck):
            Deadline(float("inf"), flag).check()


def test_a_process_gets_no_keys_of_the_terminal() -> None:
    """Ctrl-C is for the search alone."""
    with patch.object(subprocess, "Popen") as popen:
        OtherProcess()
    assert popen.call_args.kwargs["start_new_session"]


def test_a_process_starts_whatever_stands_among_the_folders_of_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scripts add paths of pathlib, which Python ignores."""
    monkeypatch.setattr("sys.path", [*sys.path, Path("beside")])
    started = OtherProcess()
    assert started._process.stdin is not None
    started._process.stdin.close()
    assert started._process.wait() == 0
    started.end()
