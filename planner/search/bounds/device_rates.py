"""Best rates of each device type, whatever the plan: a bound for all sub-clusters of a cluster at once."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain, product
from typing import cast

import numpy as np

from planner.capabilities import Capabilities
from planner.cluster.multi_node import widened
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.cost.shape import whole_model
from planner.dims.context import contexts
from planner.dims.tensor import splits_sequence, tp_degrees
from planner.plan.placement import replicas_on
from planner.search.bounds.peak import least_seconds
from planner.search.bounds.rates import Rates
from planner.search.data_parallel import most_offered, most_sequences_per_second
from planner.search.space.choices import (
    Family,
    batch_per_replica,
    family_recomputes,
    recomputes_of,
    targets_of,
    usable_device_types,
)
from planner.search.space.multi_node import wide_degrees, wide_pools
from planner.search.space.partitions import networks
from planner.search.values import Limits
from planner.targets import TARGETS
from planner.units import divisors

Key = tuple[str, str]
"""(pool, gpu)."""


class DeviceRates:
    """Best rates of the devices of a cluster, with the traffic inside replicas, without any between them or stages.

    Embedding and head count as so many layers as they take at least where that is least: then no device does more of
    layers and ends together than it does of layers alone.
    """

    def __init__(self, estimator: Estimator, limits: Limits) -> None:
        self.estimator, self.limits = estimator, limits
        self._types = usable_device_types(estimator.topology, estimator.model)
        keys = [device_type.key for device_type in self._types]
        self._layers, self._whole = dict.fromkeys(keys, 0.0), dict.fromkeys(keys, 0.0)
        """Layers times sequences a second of a device; sequences of one in a replica that has the whole model."""
        self.over_nodes: dict[tuple[str, int], tuple[DeviceRates, ...]] = {}
        """Of devices in replicas that fill several nodes where their own is smaller, by (target, degree): on each
        network that such a job may see, since replicas talk over it."""
        for row in targets_of(limits):
            _raise(self._layers, self._in_replicas(row))
            _raise(self._whole, self._alone(row))
            for tp in wide_degrees(row, limits, estimator.model, estimator.topology):
                self.over_nodes[row.name, tp] = tuple(self._over_nodes(row, tp))
        for wide in chain.from_iterable(self.over_nodes.values()):
            _raise(self._layers, wide._layers.items())
            _raise(self._whole, wide._whole.items())

    def _over_nodes(self, row: Capabilities, tp: int) -> Iterator[DeviceRates]:
        """The rates of clusters whose nodes hold such replicas."""
        estimator = self.estimator
        limits = replace(self.limits, target=row.name, tp=(tp,))
        for seen in networks(row, estimator.topology).values():
            if pools := wide_pools(Topology(seen), tp):
                yield DeviceRates(estimator.part(widened(seen, pools)), limits)

    def least_over_nodes(self, devices: Mapping[Key, int]) -> dict[tuple[str, int], float]:
        """No step of plans with such replicas is shorter, by (target, degree): the least over the networks."""
        return {
            key: min(
                wide.least_seconds({each: count for each, count in devices.items() if each in wide._layers})
                for wide in ways
            )
            for key, ways in self.over_nodes.items()
            if ways
        }

    def tokens_per_second(self) -> dict[Key, float]:
        """Tokens a second of one device of each type: any devices together do no more than the sum of theirs."""
        tokens = self.estimator.model.training.sequence_tokens
        return {key: rate * tokens for key, rate in self._sequences_per_second(self._layers).items()}

    def least_seconds(self, devices: Mapping[Key, int]) -> float:
        """No step on these devices of the cluster, numbers by (pool, gpu), is shorter."""
        own = self._sequences_per_second([key for key, count in devices.items() if count])
        # T >= sequences / sum of what the devices do of them a second
        rate = sum(count * own.get(key, 0.0) for key, count in devices.items())
        least = self.estimator.model.training.global_batch / rate if rate else math.inf
        return max(least, least_seconds(self.estimator, devices))

    def _sequences_per_second(self, keys: Collection[Key]) -> dict[Key, float]:
        """What a device of each of these types does at best beside the others."""
        able = [key for key in keys if self._layers.get(key, 0.0) > 0]
        # Embedding and head may be on unlike devices.
        layers = self.estimator.model.layers + sum(
            min((end[key] * self._layers[key] for key in able if key in end), default=0.0)
            for end in self._ends
        )
        return {key: max(self._layers.get(key, 0.0) / layers, self._whole.get(key, 0.0)) for key in keys}

    @cached_property
    def _ends(self) -> tuple[dict[Key, float], ...]:
        """Device-seconds that the embedding of one sequence, and its head, takes at least, by type."""
        model = self.estimator.model
        batch = model.training.global_batch
        sequences = np.array(sorted({*divisors(batch), *range(1, min(batch, most_offered(model)) + 1)}))
        least: tuple[dict[Key, float], ...] = {}, {}
        for row in targets_of(self.limits):
            for tp in tp_degrees(row, self.limits.tp, model, self._types):
                able = [device_type for device_type in self._types if device_type.per_node >= tp]
                split = splits_sequence(row, model, tp)
                # Dense layers ahead of the others take least without recomputation.
                shape = replace(whole_model(model, 0, "none"), sequence_parallel=split)
                for context, device_type in product(contexts(row, model, tp, self.limits.cp), able):
                    group = replicas_on(device_type, tp)
                    pricer = self.estimator.pricer(row.name, context=context)
                    ends = pricer.ends_seconds(shape, group, cast("int", sequences))
                    for known, end in zip(least, ends, strict=True):
                        seconds = float(np.min(tp * context.ways * end / sequences))
                        known[device_type.key] = min(seconds, known.get(device_type.key, math.inf))
        for wide in chain.from_iterable(self.over_nodes.values()):
            for known, other in zip(least, wide._ends, strict=True):
                for key, seconds in other.items():
                    known[key] = min(seconds, known.get(key, math.inf))
        return least

    def _in_replicas(self, row: Capabilities) -> Iterator[tuple[Key, float]]:
        """Layers times sequences a second of a device in a replica with equal micro-batches."""
        model, rates = self.estimator.model, Rates(self.estimator, ())
        batch = model.training.global_batch
        degrees = tp_degrees(row, self.limits.tp, model, self._types)
        if any(kind.experts for kind in model.kinds):
            # Replicas that share experts have as many rows for each as one device with all their sequences.
            degrees = tuple(dict.fromkeys((1, *degrees)))
        for recompute in family_recomputes(row, self.limits, model, self._types):
            for tp in degrees:
                able = [device_type for device_type in self._types if device_type.per_node >= tp]
                sizes = product(divisors(batch), contexts(row, model, tp, self.limits.cp))
                for size, context in sizes:
                    family = Family(
                        target=row.name,
                        zero=min(TARGETS[row.name].zero_without_pipeline),
                        recompute=recompute,
                        tp=tp,
                        dp=context.ways,
                        batch=size,
                        micro_batches=batch // size,
                        context=context,
                    )
                    for device_type, rate in zip(able, rates.free_rates(family), strict=True):
                        yield device_type.key, rate.layers * size / (tp * context.ways)

    def _alone(self, row: Capabilities) -> Iterator[tuple[Key, float]]:
        """Sequences a second of a device in a replica that has the whole model and a batch of its own."""
        estimator, wanted = self.estimator, self.limits.tp
        one = (1,) if wanted is None or 1 in wanted else ()
        degrees = dict.fromkeys((*one, *tp_degrees(row, wanted, estimator.model, self._types)))
        for tp in (tp for tp in degrees if batch_per_replica(row, estimator.model, tp)):
            able = [device_type for device_type in self._types if device_type.per_node >= tp]
            recomputes = recomputes_of(row, self.limits, estimator.model, self._types)
            for recompute, device_type in product(recomputes, able):
                rate = most_sequences_per_second(estimator, row.name, device_type.key, recompute, tp)
                yield device_type.key, rate / tp


def _raise(best: dict[Key, float], rates: Iterable[tuple[Key, float]]) -> None:
    for key, rate in rates:
        best[key] = max(best[key], rate)
