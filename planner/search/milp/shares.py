"""The ILP of the batches of given replicas without a pipeline, for people and other solvers.

The search finds the same by bisection (``planner/search/batch_partition.py``). Variables are

    x_i_s_n    replicas of device type i that do a share of s sequences in n micro-batches
    y_i_s_n    1 where any do
    A, S       the longest that a replica takes on its own, and in step with the others
    T          the step

or, where all replicas do as many micro-batches in step (ZeRO 2 and 3),

    z_n        1 where they are n
    y_i_m_n    1 where those of device type i are of up to m sequences
    T          the step

Only what a plan up to a tenth slower than the given one may do has a variable.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from planner.search.batch_partition import Seconds
from planner.search.data_parallel import Ways
from planner.search.milp.program import Column, Program, Terms, total

SLOWER = 1.1
"""Steps over that of the plan up to which the program has plans: without slower ones there would be nothing to read."""

Way = tuple[int, int, int, float, float]
"""Device type, share, micro-batches, and seconds on its own and in step."""


class SharesModel:
    """Shares of a batch that end first."""

    def __init__(self, ways: Ways, batch: int, step_seconds: float) -> None:
        """``step_seconds`` are those of a plan, of which slower ones need not be among the solutions."""
        self.ways, self.batch, self.most = ways, batch, SLOWER * step_seconds
        self.scale = step_seconds
        """Seconds of a unit of T."""
        types = (f"{number}_{each.pool}_{each.gpu}" for number, each in enumerate(ways.device_types))
        self.program = Program("_".join(("_types", *types)))
        self._step = self.program.column("T")
        if ways.left:
            self._in_lock_step()
        else:
            self._each_its_own()

    def _each_its_own(self) -> None:
        """T = A + S + what follows, for the longest of the replicas in both."""
        program, kinds = self.program, range(len(self.ways.counts))
        own, together = program.column("A"), program.column("S")
        self._ends({own: 1.0, together: 1.0})
        offered = [list(self._ways(kind)) for kind in kinds]
        largest = [max((way[1] for way in ways), default=0) for ways in offered]
        spare = int(np.dot(self.ways.counts, largest)) - self.batch
        placed: list[list[tuple[int, Column]]] = []
        for kind, count in enumerate(self.ways.counts):
            columns = []
            for _, share, steps, alone, in_step in offered[kind]:
                # s >= the largest - what all largest shares together are too much, else the batch is not done
                if share < largest[kind] - spare:
                    continue
                name = f"{kind}_{share}_{steps}"
                number = program.column(f"x_{name}", upper=count, whole=True)
                any_does = program.column(f"y_{name}", upper=1.0, whole=True)
                program.row({number: 1.0, any_does: -count}, most=0.0)
                program.row({own: 1.0, any_does: -alone / self.scale}, least=0.0)
                program.row({together: 1.0, any_does: -in_step / self.scale}, least=0.0)
                columns.append((share, number))
            program.equal(total((1.0, number) for _, number in columns), count)
            placed.append(columns)
        program.equal(total(pair for columns in placed for pair in columns), self.batch)

    def _ways(self, kind: int) -> Iterator[Way]:
        """Ways to split every share of a device of one type that are fast enough; none that another one beats."""
        first = sum(len(one) for one in self.ways.micro[:kind])
        micro = self.ways.micro[kind]
        sizes = len(micro)
        larger = np.append(micro[1:], np.inf)
        part = slice(first, first + sizes)
        tables = [(added.equal[part], added.mixed[part]) for added in (self.ways.alone, self.ways.in_step)]
        for share in range(1, self.batch + 1):
            steps = np.arange(max(1, -(-share // sizes)), (1 if self.ways.once else share) + 1)
            size, more = share // steps, share % steps
            at = size - 1
            alone, in_step = (np.where(more > 0, mixed[at], equal[at]) for equal, mixed in tables)
            alone = alone + (steps - more) * micro[at] + more * np.where(more > 0, larger[at], 0.0)
            fast = alone + in_step + self.ways.end <= self.most
            yield from _fastest(kind, share, steps[fast], alone[fast], in_step[fast])

    def _in_lock_step(self) -> None:
        """T = what the slowest device type does in n micro-batches and behind them."""
        program, counts = self.program, self.ways.counts
        chosen: list[Column] = []
        done: list[tuple[float, Column]] = []
        of_kind: list[list[tuple[float, Column]]] = [[] for _ in counts]
        for steps in range(1, (1 if self.ways.once else self.batch // sum(counts)) + 1):
            ends = [self._ends_of(kind, steps) for kind in range(len(counts))]
            largest = [int(np.searchsorted(one, self.most - self.ways.end, side="right")) for one in ends]
            sequences = steps * int(np.dot(counts, largest))
            if min(largest) < 1 or sequences < self.batch:
                continue
            number = program.column(f"z_{steps}", upper=1.0, whole=True)
            chosen.append(number)
            for kind, most in enumerate(largest):
                # n (all largest sizes - those of this type + c m) >= the batch, else the batch is not done
                least = most - (sequences - self.batch) // (steps * counts[kind])
                sizes = range(max(1, least), most + 1)
                columns = [program.column(f"y_{kind}_{m}_{steps}", upper=1.0, whole=True) for m in sizes]
                program.equal({**total((1.0, column) for column in columns), number: -1.0})
                done += [(steps * counts[kind] * m, column) for m, column in zip(sizes, columns, strict=True)]
                of_kind[kind] += [
                    (float(ends[kind][m - 1]), column) for m, column in zip(sizes, columns, strict=True)
                ]
        program.equal(total((1.0, column) for column in chosen), 1.0)
        program.row(total(done), least=self.batch)
        for pairs in of_kind:
            self._ends(total((seconds / self.scale, column) for seconds, column in pairs), exact=False)

    def _ends_of(self, kind: int, steps: int) -> Seconds:
        """When so many micro-batches of 1, 2, ... sequences end; a larger one that takes no longer counts for it."""
        ends = steps * self.ways.micro[kind] + self.ways.left[kind]
        rising: Seconds = np.minimum.accumulate(ends[::-1])[::-1]
        return rising

    def _ends(self, terms: Terms, *, exact: bool = True) -> None:
        """T = terms + what follows, or no less."""
        end = self.ways.end / self.scale
        row = {self._step: 1.0, **{column: -factor for column, factor in terms.items()}}
        self.program.row(row, least=end, most=end if exact else float("inf"))


def _fastest(
    kind: int, share: int, steps: NDArray[np.int64], alone: Seconds, in_step: Seconds
) -> Iterator[Way]:
    """Ways to do a share of which none takes less both on its own and in step."""
    least = np.inf
    for at in np.lexsort((in_step, alone)):
        if in_step[at] < least:
            least = in_step[at]
            yield kind, share, int(steps[at]), float(alone[at]), float(in_step[at])
