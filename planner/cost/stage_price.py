"""The price of one stage on given replicas, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.arrays import Numbers
from planner.cost.traffic import EndTraffic
from planner.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Seconds of one micro-batch on one replica, all its layers; the parts add up to forward + backward."""

    forward_seconds: float
    backward_seconds: float
    compute_seconds: float
    recompute_seconds: float
    tensor_parallel_seconds: float
    tensor_backward_seconds: float
    """Of these, in the backward."""
    host_seconds: float
    """The host's work for the micro-batch itself that nothing hides; part of ``compute_seconds`` and, stretched, of
    ``straggler_seconds``."""
    zero_seconds: float
    """Exposed ZeRO traffic."""
    offload_seconds: float
    """Exposed copies between device and host."""
    step_copy_seconds: float
    """Copies between device and host once a step, after the last backward."""
    hidden_seconds: float
    first_saves_seconds: float = 0.0
    """What the first micro-batch of a step copies less, where that shows."""
    routing_seconds: float = 0.0
    """Exposed all-to-alls of tokens to their experts and back."""
    routing_hidden: float = 0.0
    """What of them the computation of another micro-batch hides, where one runs beside it."""
    context_seconds: float = 0.0
    """Exposed traffic between replicas that share sequences."""
    weight_seconds: float = 0.0
    """The part of ``backward_seconds`` that nobody else waits for: gradients of weights."""
    straggler_seconds: float = 0.0
    """What the slowest device of the stage takes longer than they do on average."""

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_seconds + self.backward_seconds


def padded_seconds(steps: Sequence[int], largest: Sequence[MicroBatch], one: Sequence[MicroBatch]) -> float:
    """Seconds of all micro-batches when replicas in lock step have different numbers of them, each [group].

    Each waits for the slowest replica; one that has done its own runs one sequence of no weight.
    """
    seconds, before = 0.0, 0
    for count in sorted(set(steps)):
        own = zip(steps, largest, one, strict=True)
        slowest = max(whole.seconds if mine >= count else single.seconds for mine, whole, single in own)
        seconds += (count - before) * slowest
        if not before:
            seconds += max(whole.seconds - whole.first_saves_seconds for whole in largest) - slowest
        before = count
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a stage, as if it were alone."""

    work_seconds: float
    """All its micro-batches."""
    end: EndTraffic
    tied_seconds: float
    """Adding up the gradients of a tied embedding."""
    in_step_seconds: float
    """The part of ``seconds`` in which it waits for the others again and again; 0 where they meet at the end only."""

    @property
    def sync_seconds(self) -> float:
        """Exposed synchronisation at the end of the step."""
        return self.end.seconds + self.tied_seconds

    @property
    def seconds(self) -> float:
        """Work and synchronisation."""
        return self.work_seconds + self.sync_seconds


def common_seconds(replicas: Sequence[Replica]) -> float:
    """Seconds until all replicas have worked and synchronised: what they do in step takes as long as the slowest's."""
    alone = max(each.seconds - each.in_step_seconds for each in replicas)
    together = alone + max(each.in_step_seconds for each in replicas)
    # Rounding must not make it shorter than one of them.
    return max(together, *(each.seconds for each in replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrice:
    """One stage on given replicas."""

    forward: tuple[float, ...]
    """Seconds of the slowest replica, [chunk]."""
    backward: tuple[float, ...]
    work_seconds: float
    """Seconds of all micro-batches of the slowest replica, without waiting for other stages or replicas."""
    waiting_seconds: float
    """What it waits for other replicas with which it keeps step in some of its work."""
    sync_seconds: float
    """Exposed gradient reduction and parameter gather at the end of the step."""
    held_seconds: float
    """The part of ``sync_seconds`` that the last gradient for the stage above waits for."""
    hidden_sync_seconds: float
    optimizer_seconds: float
    copy_seconds: float
    """Copies between device and host after the last backward."""
    micro_batches: tuple[MicroBatch, ...]
    """The largest micro-batch of each group, [group]."""
    works: tuple[float, ...]
    """Seconds of all micro-batches of a replica of each group, as if it were alone, [group]."""
    slowest: int
    """Index of the group that takes longest, with its synchronisation."""
    weight: tuple[float, ...] = ()
    """Gradients of weights where they are apart from the backward, [chunk]; else empty."""
    exchange_seconds: float = 0.0
    """What of a step its island exchanges with others."""
    alone_seconds: float = 0.0
    """All-to-alls of experts in micro-batches that nothing runs beside, as far as others are hidden."""

    @property
    def tail_seconds(self) -> float:
        """What follows the last backward."""
        after = self.sync_seconds + self.optimizer_seconds + self.copy_seconds + self.exchange_seconds
        return after + self.alone_seconds


def islands_price(
    prices: Sequence[StagePrice],
    groups: Sequence[Sequence[int]],
    exchanges: Sequence[float],
    every: int,
) -> StagePrice:
    """A stage whose islands have these prices and exchange once in ``every`` steps; they hold groups of such numbers.

    All have done as many steps when they exchange, so the slowest decides. In every step they exchange ahead of the
    optimizer.
    """

    def until(price: StagePrice) -> float:
        return price.work_seconds + price.waiting_seconds + price.sync_seconds

    def whole(price: StagePrice) -> float:
        return price.work_seconds + price.waiting_seconds + price.tail_seconds

    slowest = max(range(len(prices)), key=lambda number: (until if every == 1 else whole)(prices[number]))
    chosen = prices[slowest]
    optimizer = max(price.optimizer_seconds for price in prices)
    each = {
        number: one
        for price, own in zip(prices, groups, strict=True)
        for number, *one in zip(own, price.micro_batches, price.works, strict=True)
    }
    micro_batches, works = zip(*(each[number] for number in sorted(each)), strict=True)
    return replace(
        chosen,
        optimizer_seconds=optimizer if every == 1 else chosen.optimizer_seconds,
        micro_batches=micro_batches,
        works=works,
        slowest=groups[slowest][chosen.slowest],
        exchange_seconds=max(exchanges) / every,
    )


@dataclass(frozen=True, slots=True)
class EachLength:
    """What ``StagePrice`` says of a stage with each of many numbers of layers, [case]."""

    forward: Numbers
    """[case][chunk]"""
    backward: Numbers
    weight: Numbers
    tail_seconds: Numbers
    held_seconds: Numbers

    @property
    def busy_seconds(self) -> Numbers:
        """Seconds of one micro-batch, forward and backward, [case]."""
        busy: Numbers = self.forward.sum(axis=-1) + self.backward.sum(axis=-1) + self.weight.sum(axis=-1)
        return busy

    def at(self, *index: NDArray[np.intp]) -> EachLength:
        """What stands at these indices of every array, as numpy takes them."""
        return EachLength(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def all_lengths(prices: Sequence[StagePrice]) -> EachLength:
    """The same of prices that are known one by one."""
    return EachLength(
        forward=np.array([price.forward for price in prices]),
        backward=np.array([price.backward for price in prices]),
        weight=np.array([price.weight for price in prices]).reshape(len(prices), -1),
        tail_seconds=np.array([price.tail_seconds for price in prices]),
        held_seconds=np.array([price.held_seconds for price in prices]),
    )


def stacked(every: Sequence[EachLength]) -> EachLength:
    """Several of them as one, [number][case]."""
    return EachLength(
        **{
            field.name: np.stack([getattr(each, field.name) for each in every])
            for field in fields(EachLength)
        }
    )
