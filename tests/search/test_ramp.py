"""The closed bound of pipelines against every way to place two stages."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.pipeline_end import stage_ends
from planner.search.bounds.ramp import RampBound
from planner.search.bounds.rates import Policy, Room, Speed

ROOM = Room(free_bytes=100.0, layer_bytes=1.0, activation_bytes=0.0)
SECONDS = st.floats(0.1, 10.0)


def speed(layer: float, first: float, last: float) -> Speed:
    """A device type with room for all layers and two slots."""
    return Speed(
        device_type=("pool", f"{layer} {first} {last}"),
        slots=2.0,
        layer_seconds=layer,
        tail_seconds=0.0,
        most_layers=100,
        policies=(Policy(layer, 0.0, ROOM),),
        first_seconds=first,
        last_seconds=last,
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=2, max_size=2),
    st.integers(2, 6),
    st.integers(1, 5),
)
def test_no_pair_of_stages_ends_sooner(
    kinds: list[tuple[float, float, float]], layers: int, micro_batches: int
) -> None:
    """Whichever type has the embedding, and whichever the head."""
    speeds = sorted((speed(*kind) for kind in kinds), key=lambda each: each.layer_seconds)
    bound = RampBound(speeds, layers, micro_batches, 2).bounds(1)[1]
    for ahead, behind, own in product(speeds, speeds, range(1, layers)):
        both = [
            own * ahead.layer_seconds + ahead.first_seconds,
            (layers - own) * behind.layer_seconds + behind.last_seconds,
        ]
        halves = [[seconds / 2] for seconds in both]
        assert bound <= max(stage_ends(halves, halves, micro_batches)) * (1 + 1e-9)
