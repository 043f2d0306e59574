"""What a user allows beyond the usual space, and which of it no plan on a cluster can use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.cost.estimate import Estimator
from planner.dims.offloading import are_superchips, has_nvme
from planner.search.data_parallel import DataParallel, choices
from planner.search.grids import grid_choices
from planner.search.islands import island_choices
from planner.search.space.choices import targets_of, usable_device_types
from planner.search.values import Limits

ISLANDS_NEED = "islands need pools that a slow network joins, and replicas of one device"
GRIDS_NEED = "a grid needs as many devices of one type as divide the model, in one pipeline stage"
QUANTISED_NEED = "ZeRO++ needs ZeRO 3 of a whole model in bf16 or fp16"
UNEQUAL_NEED = "unequal shards need device types with unlike memories, and replicas of one device"


def without_plans(limits: Limits, estimator: Estimator) -> Iterator[tuple[str, str]]:
    """(option, what its plans need) of all that is allowed and has none within the other limits."""
    rows = targets_of(limits)

    def shared() -> Iterable[DataParallel]:
        return (choice for row in rows for choice in choices(row, limits, estimator))

    if limits.syncs and not any(True for row in rows for _ in island_choices(row, limits, estimator)):
        if any(sync.every > 1 for sync in limits.syncs):
            yield "--allow-local-sgd", ISLANDS_NEED
        if any(sync.every == 1 for sync in limits.syncs):
            yield "--allow-compression", ISLANDS_NEED
    if limits.grids and not any(True for row in rows for _ in grid_choices(row, limits, estimator)):
        yield "--allow-tensor-grids", GRIDS_NEED
    if limits.quantised and not any(choice.zero_plus.lossy for choice in shared()):
        yield "--allow-quantised-zero", QUANTISED_NEED
    if limits.unequal_shards and not any(choice.shards for choice in shared()):
        yield "--allow-unequal-shards", UNEQUAL_NEED
    device_types = usable_device_types(estimator.topology, estimator.model)
    if "nvme" in (limits.offload or ()) and not has_nvme(device_types):
        yield "--offload nvme", "every pool needs host.nvme_gBps"
    if "super" in (limits.offload or ()) and not are_superchips(device_types):
        yield "--offload super", "all devices need to be superchips"
