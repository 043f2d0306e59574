"""What holds of memory whatever the pipeline: all devices, with their hosts, have room for what training keeps.

Weights, gradients and optimizer states of a layer are held once by all replicas together where ZeRO shards them, else
once by each. Activations, buffers and what embedding and head need come on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf
from typing import NamedTuple

from planner.capabilities import Capabilities
from planner.cost.estimate import Estimator
from planner.cost.shape import whole_model
from planner.dims.offloading import offloads
from planner.dims.sharding import states_zero, zeros
from planner.plan.placement import replicas_on
from planner.plan.values import WHOLE_EXPERTS, Folding, Offload
from planner.search.space.choices import family_recomputes, recomputes_of, targets_of, usable_device_types
from planner.search.values import Limits

_ROUNDING = 1e-9

_REPLICAS = 2
"""Replicas of which a layer's bytes are taken: some are doubled where one is alone."""


class _Needs(NamedTuple):
    """What all devices of a type and their hosts have, and what all layers of the model need of it."""

    free_bytes: float
    once_bytes: float
    """Of what ZeRO shards, whatever the replicas."""
    dense_bytes: float
    """Of what each replica has."""
    expert_bytes: float
    """Of what each group of devices that divide the experts has."""
    host_free_bytes: float
    host_bytes: float
    """Of what hosts keep, once at least."""


class StateRoom:
    """The room for states that the devices of a cluster have together, as one target keeps them."""

    def __init__(self, row: Capabilities, estimator: Estimator) -> None:
        self._row, self._estimator = row, estimator
        self._device_types = usable_device_types(estimator.topology, estimator.model)
        self._needs: dict[tuple[int, Offload], list[_Needs]] = {}

    def holds_any(self, limits: Limits) -> bool:
        """False when no plan of the target fits, whatever else the limits allow."""
        model, device_types = self._estimator.model, self._device_types
        recomputes = {
            *recomputes_of(self._row, limits, model, device_types),
            *family_recomputes(self._row, limits, model, device_types),
        }
        return any(
            self.holds(zero, offload)
            for zero in zeros(self._row, model, None, limits.zero)
            for recompute, stages in product(recomputes, (False, True))
            for offload in offloads(
                self._row, zero, recompute, limits.offload, model, device_types, stages=stages
            )
        )

    def holds(
        self, zero: int, offload: Offload, tp: int = 1, dp: int = 1, folding: Folding = WHOLE_EXPERTS
    ) -> bool:
        """False when no plan with stages of ``dp`` replicas of ``tp`` devices fits."""
        if self._estimator.calibration.layers:
            return True  # measured layers may have fewer bytes
        if (zero, offload) not in self._needs:
            self._needs[zero, offload] = list(self._needs_with(zero, offload))
        divided = tp * dp / folding.ways
        room = 0.0
        for each in self._needs[zero, offload]:
            need = each.once_bytes + dp * each.dense_bytes + divided * each.expert_bytes
            room += min(_ratio(each.free_bytes, need), _ratio(each.host_free_bytes, each.host_bytes))
        # sum over devices of the part of the model for whose states each, with its host, has room >= 1
        return room >= 1 - _ROUNDING

    def _needs_with(self, zero: int, offload: Offload) -> Iterator[_Needs]:
        model, pricer = self._estimator.model, self._estimator.pricer(self._row.name)
        # Plans of one stage keep no less.
        zero = states_zero(self._row, model.training, zero, 2)
        # No plan keeps less of gradients than one whose steps have one micro-batch.
        shape = replace(whole_model(model, zero, "none", offload), lone=True)
        for device_type in self._device_types:
            group = replicas_on(device_type, 1, _REPLICAS, _REPLICAS)
            footprint = pricer.footprint(shape, group, _REPLICAS, 1)
            held = footprint.layer_states()
            elements, ways = held.dense_elements + held.expert_elements, _REPLICAS if zero else 1
            each = held.weights_bytes, held.gradients_bytes, held.states_bytes
            # ZeRO 3 shards weights, ZeRO 2 gradients, those of such steps ZeRO 1 too, and optimizer states.
            stages = 3, 1 if pricer.relieves(offload) else 2, 1
            sharded = sum(size for size, least in zip(each, stages, strict=True) if zero >= least)
            own = sum(each) - sharded
            frozen = held.frozen_bytes * (_REPLICAS if zero == 3 else 1)
            once = frozen if zero == 3 or model.experts is not None else 0.0
            # Parameters on hosts are whole below ZeRO 3.
            divided = ways if zero == 3 or offload.parameters == "none" else 1
            host = divided * (held.host_bytes * elements + held.host_frozen_bytes)
            yield _Needs(
                free_bytes=device_type.devices * footprint.free_bytes,
                once_bytes=model.layers * (ways * sharded * elements + once),
                dense_bytes=model.layers * (own * held.dense_elements + frozen - once),
                expert_bytes=model.layers * own * held.expert_elements,
                host_free_bytes=device_type.devices * device_type.host.memory_bytes,
                host_bytes=model.layers * host,
            )


def targets_with_room(limits: Limits, estimator: Estimator) -> tuple[Capabilities, ...]:
    """Those of the limits' targets that may have plans that fit."""
    return tuple(row for row in targets_of(limits) if StateRoom(row, estimator).holds_any(limits))


def _ratio(room: float, need: float) -> float:
    return room / need if need else inf
