"""The sequence of islands along a pipeline: every plan has exactly one, so that they divide the plans of a choice.

Islands are joined by slow links only. A relaxation that may mix the islands of a stage crosses those links in thin
slices. With the number of crossings, their order and about where they are it pays for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

from planner.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Sequence:
    """Pipelines whose stages stand on these islands in turn, with about so many stages on each."""

    islands: tuple[int, ...]
    """Of the blocks of stages, neighbours differ."""
    ends: tuple[tuple[int, int], ...]
    """The least and the largest number of the first stage behind each block but the last."""

    def allowed(self, depth: int) -> Iterator[frozenset[int]]:
        """The islands that each stage may stand on."""
        begins = (0, *(least for least, _ in self.ends))
        ends = (*(most for _, most in self.ends), depth)
        for stage in range(depth):
            yield frozenset(
                island
                for island, begin, end in zip(self.islands, begins, ends, strict=True)
                if begin <= stage < end
            )

    def halves(self, reached: tuple[float, ...]) -> tuple[Sequence, ...]:
        """Two parts that share no sequence and leave none out; none where each stage knows its island.

        The widest interval is divided where a relaxation crosses: ``reached`` is the mean of each block's end there.
        """
        wide = [most - least for least, most in self.ends]
        block = max(range(len(wide)), key=lambda index: wide[index])
        least, most = self.ends[block]
        if least == most:
            return ()
        at = min(most - 1, max(least, int(reached[block])))
        low = [
            (first, min(last, at - block + index)) for index, (first, last) in enumerate(self.ends[:block])
        ]
        high = [
            (max(first, at + 1 + 1 + index), last)
            for index, (first, last) in enumerate(self.ends[block + 1 :])
        ]
        parts = (
            (*low, (least, at), *self.ends[block + 1 :]),
            (*self.ends[:block], (at + 1, most), *high),
        )
        return tuple(
            Sequence(self.islands, ends) for ends in parts if all(first <= last for first, last in ends)
        )

    def tightened(self, depth: int, most: tuple[int, ...]) -> Sequence | None:
        """The part with at most so many stages on each island, in narrower intervals; None where there is none."""
        low = [0, *(least for least, _ in self.ends), depth]
        high = [0, *(end for _, end in self.ends), depth]
        before = None
        while before != (low, high):
            before = low[:], high[:]
            blocks = range(1, len(low))
            least = [max(1, low[block] - high[block - 1]) for block in blocks]
            for block, island in zip(blocks, self.islands, strict=True):
                # A block has what its island holds less the least of the island's other blocks.
                others = sum(
                    count for at, count in enumerate(least) if self.islands[at] == island and at != block - 1
                )
                longest, shortest = most[island] - others, least[block - 1]
                high[block] = min(high[block], high[block - 1] + longest)
                low[block] = max(low[block], low[block - 1] + shortest)
                low[block - 1] = max(low[block - 1], low[block] - longest)
                high[block - 1] = min(high[block - 1], high[block] - shortest)
            if any(first > last for first, last in zip(low, high, strict=True)):
                return None
        return Sequence(self.islands, tuple(zip(low, high, strict=True))[1:-1])


def sequences(islands: int, depth: int, crossings: int) -> Iterator[Sequence]:
    """All sequences of so many crossings, in as few parts as have one order of islands each."""
    for order in product(range(islands), repeat=crossings + 1):
        if all(before != after for before, after in pairwise(order)):
            # Each block has a stage at least.
            yield Sequence(order, tuple((1 + at, depth - crossings + at) for at in range(crossings)))
