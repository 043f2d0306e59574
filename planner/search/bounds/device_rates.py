"""Best rates of each device type, whatever the plan: a bound for all sub-clusters of a cluster at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
from planner.search.data_parallel import most_sequences_per_second
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
    """Best rates of the devices of a cluster, with the traffic inside replicas, without any between them or stages."""

    def __init__(self, estimator: Estimator, limits: Limits, *, alone: bool = True) -> None:
        """``alone``: devices may have the whole model."""
        self.estimator, self.limits = estimator, limits
        self._types = usable_device_types(estimator.topology, estimator.model)
        self._rates = dict.fromkeys((device_type.key for device_type in self._types), 0.0)
        self.over_nodes: dict[tuple[str, int], tuple[DeviceRates, ...]] = {}
        """Of devices in replicas that fill several nodes where their own is smaller, by (target, degree): on each
        network that such a job may see, since replicas talk over it."""
        for row in targets_of(limits):
            for key, rate in (*self._in_replicas(row), *(self._alone(row) if alone else ())):
                self._rates[key] = max(self._rates[key], rate)
            for tp in wide_degrees(row, limits, estimator.model, estimator.topology):
                self.over_nodes[row.name, tp] = tuple(self._over_nodes(row, tp))
        for wide in chain.from_iterable(self.over_nodes.values()):
            for key, rate in wide._rates.items():
                self._rates[key] = max(self._rates[key], rate)

    def _over_nodes(self, row: Capabilities, tp: int) -> Iterator[DeviceRates]:
        """The rates of clusters whose nodes hold such replicas."""
        estimator = self.estimator
        limits = replace(self.limits, target=row.name, tp=(tp,))
        for seen in networks(row, estimator.topology).values():
            if pools := wide_pools(Topology(seen), tp):
                wide = Estimator(widened(seen, pools), estimator.model, estimator.calibration)
                yield DeviceRates(wide, limits, alone=False)

    def least_over_nodes(self, devices: Mapping[Key, int]) -> dict[tuple[str, int], float]:
        """No step of plans with such replicas is shorter, by (target, degree): the least over the networks."""
        return {
            key: min(
                wide.least_seconds({each: count for each, count in devices.items() if each in wide._rates})
                for wide in ways
            )
            for key, ways in self.over_nodes.items()
            if ways
        }

    def tokens_per_second(self) -> dict[Key, float]:
        """Tokens a second of one device of each type: any devices together do no more than the sum of theirs.

        Embedding and head are counted as so many layers as they take at least on the device on which that is least;
        then no device does more of layers and ends together than it does of layers alone.
        """
        model = self.estimator.model
        layers = model.layers + min(
            (seconds * self._rates[key] for key, seconds in self._ends().items() if self._rates[key] > 0),
            default=0.0,
        )
        return {key: rate / layers * model.training.sequence_tokens for key, rate in self._rates.items()}

    def _ends(self) -> dict[Key, float]:
        """Device-seconds that embedding and head of one sequence take at least, by type."""
        model = self.estimator.model
        sequences = np.arange(1, model.training.global_batch + 1)
        least: dict[Key, float] = {}
        for row in targets_of(self.limits):
            for tp in tp_degrees(row, self.limits.tp, model, self._types):
                able = [device_type for device_type in self._types if device_type.per_node >= tp]
                split = splits_sequence(row, model, tp)
                # Dense layers ahead of the others take least without recomputation.
                shape = replace(whole_model(model, 0, "none"), sequence_parallel=split)
                for context, device_type in product(contexts(row, model, tp, self.limits.cp), able):
                    group = replicas_on(device_type, tp)
                    pricer = self.estimator.pricer(row.name, context=context)
                    ends = sum(pricer.ends_seconds(shape, group, cast("int", sequences)))
                    seconds = float(np.min(tp * context.ways * ends / sequences))
                    least[device_type.key] = min(seconds, least.get(device_type.key, math.inf))
        for wide in chain.from_iterable(self.over_nodes.values()):
            for key, seconds in wide._ends().items():
                least[key] = min(seconds, least.get(key, math.inf))
        return least

    def least_seconds(self, devices: Mapping[Key, int]) -> float:
        """No step on these devices of the cluster, numbers by (pool, gpu), is shorter."""
        model = self.estimator.model
        # T >= layers x sequences / sum of what the devices do of both a second
        rate = sum(count * self._rates.get(key, 0.0) for key, count in devices.items())
        least = model.layers * model.training.global_batch / rate if rate else float("inf")
        return max(least, least_seconds(self.estimator, devices))

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
                    for device_type, (_, rate) in zip(able, rates.free_rates(family), strict=True):
                        yield device_type.key, rate * size / (tp * context.ways)

    def _alone(self, row: Capabilities) -> Iterator[tuple[Key, float]]:
        """The same of a device in a replica that has the whole model and a batch of its own."""
        model, pricer = self.estimator.model, self.estimator.pricer(row.name)
        degrees = dict.fromkeys((1, *tp_degrees(row, self.limits.tp, model, self._types)))
        for tp in (tp for tp in degrees if batch_per_replica(row, model, tp)):
            able = [device_type for device_type in self._types if device_type.per_node >= tp]
            for recompute, device_type in product(recomputes_of(row, self.limits, model, self._types), able):
                rate = most_sequences_per_second(pricer, device_type, recompute, tp)
                yield device_type.key, model.layers * rate / tp
