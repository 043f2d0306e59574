"""Even splits, as the documentation of DeepSpeed and of Megatron-LM has them; tuned by hand, so the best of a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.cluster.topology import Kind
from planner.cost.estimate import Estimator
from planner.plan.values import Plan
from planner.rivals.building import (
    Dealt,
    data_parallel,
    dealt_groups,
    fastest_first,
    filled,
    most_sequences,
    pipeline,
)
from planner.runtimes.capabilities import RECOMPUTES
from planner.search.space.choices import divisors, splits

MICRO_BATCHES = 8
"""Largest micro-batch of the grid of pipelines."""


def equal_batches(estimator: Estimator) -> Iterator[Plan]:
    """DeepSpeed: every device the same micro-batch; each ZeRO stage, with and without recomputation, fewest steps.

    Where the batch is no multiple of the devices, the fastest get one sequence more.
    """
    kinds = fastest_first(estimator)
    batch = estimator.model.training.global_batch
    devices = min(batch, sum(kind.devices for kind in kinds))
    share, extra = divmod(batch, devices)
    for zero in (0, 1, 2, 3):
        for recompute in ("none", "full"):
            most = min(most_sequences(estimator, kind, zero, recompute, devices) for kind in kinds)
            steps = min(share, -(-(share + bool(extra)) // most))
            groups = dealt_groups(kinds, _spread(kinds, devices, share, extra), steps)
            yield data_parallel(estimator, groups, zero, recompute)


def _spread(kinds: Sequence[Kind], devices: int, share: int, extra: int) -> Dealt:
    """``share`` for each of the first ``devices``, one more for the first ``extra``."""
    found = []
    for kind in kinds:
        used = min(kind.devices, devices)
        more = min(used, extra)
        devices, extra = devices - used, extra - more
        found.append([(count, size) for count, size in ((more, share + 1), (used - more, share)) if count])
    return found


def even_pipelines(estimator: Estimator) -> Iterator[Plan]:
    """Megatron-LM: layers and batch divide evenly, one tp, pools one after the other.

    A grid over tp, depth, micro-batch, recomputation and whether the fastest or the slowest pool comes first, with as
    many replicas as divide the batch; devices left over stay idle.
    """
    model, kinds = estimator.model, fastest_first(estimator)
    smallest = min(kind.per_node for kind in kinds)
    for tp in sorted({tp for kind in kinds for tp in divisors(kind.per_node) if tp <= smallest}):
        rooms = [[(kind, kind.replicas(tp) * tp) for kind in order] for order in (kinds, kinds[::-1])]
        total = sum(kind.replicas(tp) for kind in kinds)
        for depth in (depth for depth in divisors(model.layers) if depth <= total):
            if splits(model, tp):
                for room in rooms:
                    yield from _even(estimator, room, tp, depth, widest(estimator, total // depth))


def _even(
    estimator: Estimator, room: Sequence[tuple[Kind, int]], tp: int, depth: int, dp: int
) -> Iterator[Plan]:
    model = estimator.model
    split = tp > 1 and model.training.sequence_length % tp == 0
    share = model.training.global_batch // dp
    for micro_batch in (size for size in divisors(share) if size <= MICRO_BATCHES):
        stages = filled(room, [(tp, dp, share)] * depth, share // micro_batch)
        for recompute in RECOMPUTES:
            yield pipeline(stages, [model.layers // depth] * depth, recompute, sequence_parallel=split)


def widest(estimator: Estimator, most: int) -> int:
    """Most replicas, up to ``most``, that divide the global batch."""
    return max(dp for dp in divisors(estimator.model.training.global_batch) if dp <= most)
