"""Measured runs in two halves: one to fit constants to, one to test them on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from zlib import crc32

from planner.measured.values import Run


def fitted_half(runs: Sequence[Run]) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The half to fit to and the half held out, both in the order of the runs.

    Each source is split by model, so that none of its models is in both halves; a source with more than half of its
    runs on one model, by run.
    """
    chosen: set[str] = set()
    for source in {run.source for run in runs}:
        chosen |= _fitted_ids([run for run in runs if run.source == source])
    fitted = tuple(run for run in runs if run.id in chosen)
    return fitted, tuple(run for run in runs if run.id not in chosen)


def _fitted_ids(runs: Sequence[Run]) -> set[str]:
    """Ids of one source's runs that are fitted to: by model, by run where one model has more than half of them."""
    models = Counter(run.model.name for run in runs)
    if 2 * max(models.values()) > len(runs):
        return _alternating({run.id for run in runs})
    fitted = _alternating(models)
    return {run.id for run in runs if run.model.name in fitted}


def _alternating(names: Collection[str]) -> set[str]:
    """Every second name in an order that has nothing to do with what the names mean."""
    return set(sorted(names, key=lambda name: (crc32(name.encode()), name))[::2])
