"""What logs say of a run."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles

from planner.described import told
from planner.runtimes.log import Fact, Part, PartTime, RankMemory, Timed

WARM_UP_STEPS = 3
"""First steps that do not count: they allocate, load kernels and open connections."""
FEWEST_RECORDS = 5
"""Step times after the warm-up that a median needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What one or several logs of a run say."""

    source: str
    """Who printed the step times: ``hetplan's example``, a runtime or a library."""
    steps: tuple[Timed, ...] = ()
    parts: tuple[PartTime, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    interval: int | None = 1
    """Steps from one record to the next; None for the one mean of a whole run."""
    files: tuple[str, ...] = ()
    """Paths of the logs as the user wrote them."""


@told(
    "step_times",
    "spread",
    only=("source", "left_out", "only_warm_up"),
    names={"left_out": "warm_up_left_out"},
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A run without its warm-up."""

    source: str
    """Framework that printed it."""
    left_out: int
    """Records of step times that cover warm-up steps."""
    seconds: tuple[float, ...]
    """Of each record that counts, in order; never empty."""
    only_warm_up: bool
    """True when the log has nothing else, so that its last record counts."""
    parts: dict[tuple[Part, int | None], float]
    """Median seconds of each part and rank (None: the slowest)."""
    memory: tuple[RankMemory, ...]
    notes: tuple[str, ...]
    more_steps: int | None = 0
    """Steps beyond these until enough records count; None where more steps bring no more records."""

    @property
    def step_times(self) -> int:
        """Records that count."""
        return len(self.seconds)

    @property
    def step_seconds(self) -> float:
        """Median."""
        return median(self.seconds)

    @property
    def spread(self) -> float | None:
        """Distance of the quartiles as a relative standard deviation; None for fewer than four records."""
        if len(self.seconds) < 4:
            return None
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 1.349 / self.step_seconds


def observed(log: Log) -> Observed:
    """The run after its warm-up; the last record alone where there is nothing after it."""
    kept = [entry.seconds for entry in log.steps if entry.start >= WARM_UP_STEPS]
    return Observed(
        source=log.source,
        left_out=len(log.steps) - (len(kept) or 1),
        seconds=tuple(kept) or (log.steps[-1].seconds,),
        only_warm_up=not kept,
        parts=_parts(log.parts),
        memory=log.memory,
        notes=log.notes,
        more_steps=_more_steps(log, len(kept)),
    )


def _more_steps(log: Log, counted: int) -> int | None:
    """Steps until ``FEWEST_RECORDS`` count, each beginning after the warm-up."""
    if log.interval is None:
        return None
    ahead = 0 if counted else max(0, WARM_UP_STEPS - log.steps[-1].start - log.interval)
    return (-(-ahead // log.interval) + max(0, FEWEST_RECORDS - counted)) * log.interval


def _parts(times: tuple[PartTime, ...]) -> dict[tuple[Part, int | None], float]:
    """Medians after the warm-up; the last one of each where there is nothing after it."""
    mine: dict[tuple[Part, int | None], list[PartTime]] = {}
    for entry in times:
        mine.setdefault((entry.part, entry.rank), []).append(entry)
    return {
        key: median(
            [each.seconds for each in entries if each.start >= WARM_UP_STEPS] or [entries[-1].seconds]
        )
        for key, entries in mine.items()
    }
