"""Rows of slow links and parts of sequences by hand, without a cluster."""

from __future__ import annotations

from itertools import product
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.search.milp.branching import Branching, Subset
from planner.search.milp.program import Program
from planner.search.milp.sequences import Sequence, sequences
from planner.search.milp.slow_links import Edge, SlowSends
from planner.search.space.stages import StageOptions


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


def sends(
    depth: int, steps: int, *, plain: bool = True, few: bool = True, lost: float = 0.0
) -> tuple[Program, SlowSends]:
    """One send each from stage 0 to 1 and from 1 to 2, over a link that takes 2 s up and 3 s down."""

    def option(stage: int, composition: int, layers: int) -> Any:
        assert layers == 1
        return SimpleNamespace(forward=[1.0 + composition], backward=[10.0 + composition])

    stages = SimpleNamespace(
        few_pairs=few,
        choice=SimpleNamespace(
            plain=plain, depth=depth, interleave=1, family=SimpleNamespace(micro_batches=steps)
        ),
        option=option,
        least_sent=lambda stage, composition, *, slow_next, slow_before: (
            inf if composition == 9 else 2.0 * slow_next,
            3.0 * slow_before + lost,
        ),
    )
    program = Program("slow")
    end, once = program.column("T"), program.column("once")
    columns = [program.column(f"e{number}") for number in range(2)]
    edges = [
        Edge(stage=stage, islands=(0, 1), members=([4, 5], [6, 9]), column=column)
        for stage, column in enumerate(columns)
    ]
    found = object.__new__(SlowSends)
    found._program, found._stages, found._edges = program, cast("StageOptions", stages), edges
    found._scale, found._waived, found._options, found._take = 100.0, {}, [], []
    found._count, found._wide = program.column("crossings"), program.column("wide")
    found.end_after(end, {once: 1.0})
    return program, found


def test_what_a_stage_at_a_crossing_still_has_to_do() -> None:
    """The quickest of the stages that may stand there: 6 forwards, or 5, and 7 backwards behind those of the first."""
    program, found = sends(4, 8)
    sender, receiver = found._work(found._edges[1], False), found._work(found._edges[1], True)
    # The second stage of four runs two ahead: 1 + 5 forwards of 8, and all backwards; 5 s forward, 14 s backward.
    assert sender == pytest.approx((5 * (5 + 2) + 7 * 14) / 100, rel=1e-5)
    # The third runs one ahead; a stage that nothing is known of the sends of cannot stand there.
    assert receiver == pytest.approx((6 * 7 + 7 * (16 + 3)) / 100, rel=1e-5)
    assert sends(4, 8, lost=inf)[1]._work(found._edges[0], False) == 0.0
    rows = [
        {program.names[program.columns[at]]: program.factors[at] for at in range(first, end)}
        for first, end in zip(program.starts, program.starts[1:], strict=False)
    ]
    assert len(rows) == 4
    for number, (row, back) in enumerate(zip(rows, (False, True) * 2, strict=True)):
        times = 1 + number // 2
        assert (row["T"], row["once"], row[f"waived_0_1_{times}"]) == (1.0, -1.0, 1.0)
        assert row["e1"] == pytest.approx(-found._work(found._edges[1], back) / times)
        assert row["e0"] == pytest.approx(-found._work(found._edges[0], back) / times)
    assert program.least == [0.0] * 4
    for kept in ({"plain": False}, {"few": False}):
        assert sends(4, 8, **kept)[0].rows == 0


def test_rows_that_a_sequence_keeps() -> None:
    """Those for as many crossings of a kind as it has, or more; all are waived where it is not known."""
    program, found = sends(4, 8)
    names = program.names.index
    for islands, kept in (((0, 1), [0.0, 0.0]), ((0, 1, 0, 1), [inf, 0.0]), ((0, 1, 0, 1, 0, 1), [inf, inf])):
        found.limit(Sequence(islands, ()), (1.0, 2.0), (0.0, 3.0))
        assert [program.upper[names(f"waived_0_1_{number}")] for number in (1, 2)] == kept
    assert (program.lower[names("crossings")], program.upper[names("crossings")]) == (1.0, 2.0)
    assert (program.lower[names("wide")], program.upper[names("wide")]) == (0.0, 3.0)
    found.limit(None, (0.0, inf), (0.0, inf))
    assert [program.upper[names(f"waived_0_1_{number}")] for number in (1, 2)] == [inf, inf]


def test_where_a_solution_crosses() -> None:
    """The mean of the stages behind its crossings that the interval holds; 0 where there is none."""
    program, found = sends(4, 8)
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
