"""Rows of slow links and parts of sequences by hand, without a cluster."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import numpy as np

from planner.search.milp.branching import Branching, Subset
from planner.search.milp.program import Program
from planner.search.milp.sequences import Sequence, sequences
from planner.search.milp.slow_links import Edge, SlowSends


def test_halves_of_a_sequence() -> None:
    """The widest interval is divided where a relaxation crosses; blocks beside it keep a stage each."""
    one = Sequence((0, 1), ((1, 5),))
    for reached, at in ((3.4, 3), (0.0, 1), (9.0, 4), (5.0, 4)):
        assert [part.ends for part in one.halves((reached,))] == [((1, at),), ((at + 1, 5),)]
    assert Sequence((0, 1), ((3, 3),)).halves((3.0,)) == ()
    two = Sequence((0, 1, 0), ((1, 2), (2, 6)))
    assert [part.ends for part in two.halves((1.0, 4.5))] == [((1, 2), (2, 4)), ((1, 2), (5, 6))]
    # The first block's end is at 4 or before where the second's is at 5, and the second's at 6 or later behind 5.
    wide = Sequence((0, 1, 0), ((1, 6), (2, 6)))
    assert [part.ends for part in wide.halves((4.0, 0.0))] == [((1, 4), (2, 6)), ((5, 6), (6, 6))]
    late = Sequence((0, 1, 0), ((1, 5), (2, 7)))
    assert [part.ends for part in late.halves((0.0, 3.0))] == [((1, 2), (2, 3)), ((1, 5), (4, 7))]


def test_intervals_are_as_narrow_as_pipelines_are() -> None:
    """Of all that have so many stages on each island, the first and the last stage at which each block may end."""
    compared = 0
    for depth, crossings, most in product((3, 5, 6), (1, 2), product((1, 2, 3, 6), repeat=2)):
        for part in sequences(2, depth, crossings):
            fitting = [
                ends
                for ends in product(*(range(least, end + 1) for least, end in part.ends))
                if list(ends) == sorted(set(ends)) and holds(part.islands, ends, depth, most)
            ]
            tight = part.tightened(depth, most)
            if not fitting:
                continue
            assert tight is not None
            assert tight.ends == tuple((min(column), max(column)) for column in zip(*fitting, strict=True))
            compared += 1
    assert compared > 40


def holds(islands: tuple[int, ...], ends: tuple[int, ...], depth: int, most: tuple[int, ...]) -> bool:
    """Whether islands have room for blocks that end there."""
    counts = [0, 0]
    for island, begin, end in zip(islands, (0, *ends), (*ends, depth), strict=True):
        counts[island] += end - begin
    return all(count <= room for count, room in zip(counts, most, strict=True))


def test_islands_of_each_stage() -> None:
    """Both where a block may have ended or not."""
    part = Sequence((0, 1, 2), ((1, 3), (3, 4)))
    assert list(part.allowed(5)) == [frozenset(each) for each in ((0,), (0, 1), (0, 1), (1, 2), (2,))]
    assert [each.ends for each in sequences(2, 5, 2)] == [((1, 3), (2, 4))] * 2
    assert [each.islands for each in sequences(3, 4, 1)] == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def sends() -> tuple[Program, SlowSends]:
    """One send each from stage 0 to 1 and from 1 to 2, over a slow link."""
    program = Program("slow")
    edges = [
        Edge(stage=stage, islands=(0, 1), members=([4], [6]), column=program.column(f"e{stage}"))
        for stage in range(2)
    ]
    found = object.__new__(SlowSends)
    found._program, found._edges = program, edges
    found._count, found._wide = program.column("crossings"), program.column("wide")
    return program, found


def test_numbers_of_crossings_that_a_part_has() -> None:
    """Bounds of the columns that count them."""
    program, found = sends()
    for crossings, wide in (((1.0, 2.0), (0.0, 3.0)), ((0.0, inf), (0.0, inf))):
        found.limit(crossings, wide)
        assert (program.lower[2:], program.upper[2:]) == tuple(map(list, zip(crossings, wide, strict=True)))


def test_where_a_solution_crosses() -> None:
    """The mean of the stages behind its crossings that the interval holds; 0 where there is none."""
    program, found = sends()
    values = np.zeros(len(program.names))
    values[[program.names.index("e0"), program.names.index("e1")]] = 0.25, 0.75
    assert found.reached(Sequence((0, 1), ((1, 2),)), values) == (1.75,)
    assert found.reached(Sequence((0, 1), ((2, 3),)), values) == (2.0,)
    assert found.reached(Sequence((1, 0), ((1, 2),)), values) == (0.0,)
    values[program.names.index("e0")] = -1e-9
    assert found.reached(Sequence((0, 1), ((1, 2),)), values) == (2.0,)


def branching(
    shares: list[dict[tuple[int, ...], float]],
) -> tuple[Branching, np.ndarray[Any, np.dtype[np.float64]]]:
    """Of stages whose devices a solution has chosen in these parts."""
    program, values, by_stage = Program("parts"), list[float](), list[dict[tuple[int, ...], list[int]]]()
    for row in shares:
        by_stage.append({key: [program.column("x", upper=1.0)] for key in row})
        values += row.values()
    found = object.__new__(Branching)
    found._program, found._crossings, found._by_stage = program, None, by_stage
    return found, np.array(values)


def test_the_stage_that_is_divided_most_evenly() -> None:
    """At the mean of its devices; nothing where all stages have decided."""
    found, values = branching([{(1,): 0.9, (2,): 0.1}, {(1,): 0.4, (2,): 0.3, (4,): 0.3}, {(1,): 1.0}])
    # The mean of the places 0, 1 and 2 is 0.9.
    assert list(found._branches(values)) == [(1, frozenset({(1,)})), (1, frozenset({(2,), (4,)}))]
    found, values = branching([{(1,): 0.0, (2,): 0.5, (4,): 0.5}])
    assert [keys for _, keys in found._branches(values)] == [{(1,), (2,)}, {(4,)}]
    found, values = branching([{(1,): 1.0, (2,): 1e-7}, {(3,): 1.0}])
    assert list(found._branches(values)) == []
    found, values = branching([{(1,): 0.0, (2,): 0.0}])
    assert [keys for _, keys in found._branches(values)] == [{(1,)}, {(2,)}]
    parts = list(found.parts(Subset(assigned=((0, frozenset({(1,)})),)), values))
    assert [part.assigned[1:] for part in parts] == [((0, frozenset({(1,)})),), ((0, frozenset({(2,)})),)]
    found.assign(parts[1])
    assert found._program.upper == [0.0, 0.0]
    found.assign(parts[0])
    assert found._program.upper == [1.0, 0.0]


def test_crossings_of_a_part() -> None:
    """Known where no stage stands on several islands."""
    assert Subset(crossings=(2, inf), wide=(0.0, 0.0)).least_crossings == 2
    assert Subset(crossings=(2, inf)).least_crossings == 0
