"""Outer choices that are solved in other processes, one for each further core.

A choice stays where it was begun, with its program and its cuts; only bounds and plans travel. What a round finds
depends on the choice, on its rounds before and on the plan to beat, not on where it runs: so the answer of a search is
the same with any number of processes. Where one of them ends early, its choices go on in the search's own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import field, replace

from planner.cost.estimate import Estimator
from planner.frozen import dataclass
from planner.search.deadline import Deadline, Struck
from planner.search.pipeline import KeptPrograms, OpenChoice
from planner.search.space.choices import Choice, Islands
from planner.search.space.partitions import NetworkPartition
from planner.search.values import Limits, Scored

PAUSE_SECONDS = 0.05
"""How often a search that waits for other processes looks at its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An outer choice that is to be solved, and what is known of it."""

    choice: Choice
    cutoff_seconds: float
    """Only faster plans are wanted."""
    bound_seconds: float
    """No plan of the choice is faster."""
    once_seconds: float
    """No plan below the cutoff takes less for one micro-batch alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What all choices of a search are solved with."""

    scorer: Estimator
    """Of the whole cluster."""
    limits: Limits
    solver: str | None
    kept: KeptPrograms = field(default_factory=KeptPrograms, compare=False)

    def open(self, start: Start, partition: NetworkPartition) -> OpenChoice:
        """The choice, to be solved in this process."""
        return OpenChoice(
            start.choice,
            partition.estimator,
            self.limits,
            islands=partition.islands,
            scorer=self.scorer,
            cutoff_seconds=start.cutoff_seconds,
            bound_seconds=start.bound_seconds,
            once_seconds=start.once_seconds,
            solver=self.solver,
            kept=self.kept,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What is known of a choice that is being solved, as in ``OpenChoice``."""

    bound: float
    best: Scored | None
    closed: bool
    comes_to_ilp: bool

    @classmethod
    def of(cls, opened: OpenChoice) -> _State:
        return cls(
            bound=opened.bound, best=opened.best, closed=opened.closed, comes_to_ilp=opened.comes_to_ilp
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What another process is asked for: one round of a choice."""

    number: int
    """Of the choice in that process."""
    start: Start | None
    """In the first round."""
    partition: int
    """Its number in that process."""
    parts: tuple[Scene, Estimator, Islands] | None
    """Of a partition that is new there. Together, as estimators may be one."""
    cutoff_seconds: float
    until: float
    """On the monotonic clock, which the processes of a machine share."""


class OtherProcess:
    """A process that solves choices, one round after the other."""

    def __init__(self) -> None:
        # Paths of pathlib, which scripts add and Python ignores, cannot be written as code.
        folders = [folder for folder in sys.path if isinstance(folder, str)]
        code = f"import sys; sys.path[:] = {folders!r}; from {__name__} import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the search alone.
            start_new_session=True,
        )
        self._exchanges = ThreadPoolExecutor(1)
        self._choices = 0
        self._partitions: dict[NetworkPartition, int] = {}
        self.ended = False

    def next_number(self) -> int:
        """For a choice that is to be solved there."""
        self._choices += 1
        return self._choices

    def number_of(self, partition: NetworkPartition) -> tuple[int, bool]:
        """The number of a partition there, and whether it is new."""
        new = partition not in self._partitions
        return self._partitions.setdefault(partition, len(self._partitions)), new

    def ask(self, task: _Round) -> Future[_State]:
        """What is known after that round and those asked for before."""
        # Pickled here and now: the search goes on meanwhile and changes what a task has in common with it.
        return self._exchanges.submit(self._exchange, pickle.dumps(task))

    def _exchange(self, task: bytes) -> _State:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(task)
        self._process.stdin.flush()
        state = pickle.load(self._process.stdout)
        assert isinstance(state, _State)
        return state

    def end(self) -> None:
        """At once, whatever it does."""
        self.ended = True
        self._process.kill()
        self._process.wait()
        self._exchanges.shutdown(cancel_futures=True)
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


class ChoiceElsewhere:
    """An outer choice that another process solves."""

    def __init__(
        self, process: OtherProcess, scene: Scene, start: Start, partition: NetworkPartition
    ) -> None:
        self.choice = start.choice
        self.process = process
        self._number = process.next_number()
        self._scene, self._start, self._partition = scene, start, partition
        self._known: OpenChoice | _State = _State(
            bound=start.bound_seconds, best=None, closed=False, comes_to_ilp=False
        )
        self._begun = False
        self._asked: Future[_State] | None = None
        self._here: OpenChoice | None = None

    @property
    def bound(self) -> float:
        """No plan of the choice is faster than the smaller of this and the plan to beat."""
        return max(self._known.bound, self._start.bound_seconds)

    @property
    def best(self) -> Scored | None:
        """The fastest plan found."""
        return self._known.best

    @property
    def closed(self) -> bool:
        """True when nothing is left to find."""
        return self._known.closed

    @property
    def comes_to_ilp(self) -> bool:
        """True when the next round is the first that solves an ILP."""
        return self._known.comes_to_ilp

    def ask(self, cutoff_seconds: float, deadline: Deadline) -> None:
        """Have a round begun; ``step`` waits for its end."""
        if self.process.ended or self._here is not None:
            return
        number, new = self.process.number_of(self._partition)
        task = _Round(
            number=self._number,
            start=None if self._begun else self._start,
            partition=number,
            parts=(self._scene, self._partition.estimator, self._partition.islands) if new else None,
            cutoff_seconds=cutoff_seconds,
            until=deadline.at,
        )
        self._begun = True
        self._asked = self.process.ask(task)

    def step(self, cutoff_seconds: float, deadline: Deadline) -> None:
        """The round that was asked for, or one here where that process has ended.

        Raises ``Struck`` when the deadline comes first; what the choice had known before still holds.
        """
        state = self._answer(deadline)
        if state is not None:
            self._known = state
            return
        if self._here is None:
            # What has been found there is kept, the way to it is not.
            start = replace(self._start, bound_seconds=self.bound, cutoff_seconds=cutoff_seconds)
            self._known = self._here = self._scene.open(start, self._partition)
        self._here.step(cutoff_seconds, deadline)

    def _answer(self, deadline: Deadline) -> _State | None:
        """What the other process said; None without one."""
        if self._asked is None:
            return None
        # A round that was cancelled before it began is done, but ``wait`` knows of none that nobody was told of.
        while not self._asked.done():
            wait([self._asked], PAUSE_SECONDS)
            deadline.check()
        asked, self._asked = self._asked, None
        try:
            return asked.result()
        except (CancelledError, OSError, EOFError, pickle.PickleError):
            self.process.end()
            return None


class Elsewhere:
    """The other processes of a search; they start when the first choice is for them."""

    def __init__(self, scene: Scene, processes: int) -> None:
        self._scene = scene
        self._processes = [OtherProcess() for _ in range(processes)]

    def open(
        self, start: Start, partition: NetworkPartition, busy: Counter[OtherProcess | None]
    ) -> OpenChoice | ChoiceElsewhere:
        """The choice where least is to be done: ``busy`` counts choices by process, None for this one."""
        alive = [process for process in self._processes if not process.ended]
        process = min((*alive, None), key=lambda place: busy[place])
        busy[process] += 1
        if process is None:
            return self._scene.open(start, partition)
        return ChoiceElsewhere(process, self._scene, start, partition)

    def end(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.end()


def step_all(
    choices: Iterable[OpenChoice | ChoiceElsewhere], cutoff_seconds: float, deadline: Deadline
) -> None:
    """A round of each, at the same time where they are in different processes; raises ``Struck``."""
    here: list[OpenChoice] = []
    elsewhere: list[ChoiceElsewhere] = []
    for choice in choices:
        if isinstance(choice, ChoiceElsewhere):
            choice.ask(cutoff_seconds, deadline)
            elsewhere.append(choice)
        else:
            here.append(choice)
    for own in here:
        own.step(cutoff_seconds, deadline)
    for other in elsewhere:
        other.step(cutoff_seconds, deadline)


class _Orphaned:
    """Asks for an end when the process of the search has ended."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def is_set(self) -> bool:
        return os.getppid() != self._parent


def serve() -> None:
    """What another process does until the search closes its input."""
    inbox, outbox, flag = sys.stdin.buffer, sys.stdout.buffer, _Orphaned()
    partitions: dict[int, tuple[Scene, NetworkPartition]] = {}
    choices: dict[int, OpenChoice] = {}
    with suppress(EOFError, BrokenPipeError):
        while True:
            task: _Round = pickle.load(inbox)
            if task.parts is not None:
                scene, estimator, islands = task.parts
                partitions[task.partition] = scene, NetworkPartition(estimator, islands, whole=False)
            if task.start is not None:
                scene, partition = partitions[task.partition]
                choices[task.number] = scene.open(task.start, partition)
            opened = choices[task.number]
            with suppress(Struck):
                opened.step(task.cutoff_seconds, Deadline(task.until, flag))
            pickle.dump(_State.of(opened), outbox)
            outbox.flush()
            if opened.closed:
                del choices[task.number]
