"""Sequences so short that thousands of them make one micro-batch."""

from __future__ import annotations

import time

from planner.calibration.values import ASSUMED
from planner.search.data_parallel import MAX_SIZES, most_offered
from planner.search.solve import search
from planner.search.values import Limits
from tests.worlds import cluster, gpt, pool


def test_more_sequences_are_offered_where_they_are_short() -> None:
    """As many as make 131,072 tokens, from 512 to some thousands."""
    assert [most_offered(gpt(sequence_length=length)) for length in (4096, 256, 128, 32, 1)] == [
        *(512, 512, 1024, 4096),
        MAX_SIZES,
    ]


def test_their_prices_keep_to_the_time_limit() -> None:
    """A plan, and CPU seconds near the limit, although all sizes of two types of device would take far longer."""
    model = gpt(4, 512, 8, global_batch=100_000, sequence_length=1)
    spec = cluster(pool("a", nodes=2), pool("b", "V100", nodes=2))
    start = time.process_time()
    found = search(spec, model, ASSUMED, Limits(time_limit_seconds=1.0))
    assert found.best is not None
    assert time.process_time() - start < 4.0
