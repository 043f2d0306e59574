"""What the stages on one node hold together, for runtimes that start each node once and have per-stage degrees.

Such a pipeline does not come back to a node that it has left. So the stages that stand on one node alone are
neighbours, in runs: what is between two of a run stays on their node, and each end of a run sends to another node, to
a stage that stands on several nodes, or to nothing. The stages of a run share the devices of one node, whole stages
with whole layers: a relaxation that mixes those at a border with those inside a node knows none of this.

Let every stage have a value: the layers that it holds, or what a price of layers pays for beyond the seconds that it
takes. With a price s of a stage (of any sign), q of a side towards a stage on several nodes, and u of a node, of which
a part costs in proportion, the values of p stages are at most

    s p + u nodes + first + last    where for all runs on a devices of a node with n, and stages on several nodes

    values - s stages - q sides to stages on several nodes <= u a / n
    value  - s                      + 2 q                  <= u devices / n

and ``first`` and ``last`` are the most by which the runs, or stages, with an end of the pipeline exceed this. A stage
on several nodes has two neighbours, so that there are no more than twice as many such sides. A run on less than a
node leaves the rest to a stage that stands on several, and is its neighbour. u is the least such price.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from planner.cost.arrays import Numbers
from planner.frozen import dataclass
from planner.search.space.sends import Sides

NEAR = 0
"""Of the places of a neighbour: the same node. Behind it are another node, and several."""

_END = 2
"""Of the ends of a run: that of the pipeline. Before it are those towards another node, and to several."""

MOST_DEVICES = 16
"""Largest node whose runs are counted."""

_STAGE_PRICES = np.linspace(-1.0, 1.0, 9)[:, None]
"""Prices of a stage, in layers."""

_SIDE_PRICES = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0])[None, :]
"""Prices of a side towards a stage on several nodes, in layers."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of one device type."""

    count: int
    devices: int
    """Of each."""


def countable(nodes: Sequence[Nodes], pools: Sequence[str]) -> bool:
    """True where stages of less than a node stand on one node: their numbers of devices divide its."""
    alone = len(set(pools)) == len(pools)
    return alone and all(
        each.devices <= MOST_DEVICES and not each.devices & (each.devices - 1) for each in nodes
    )


@dataclass(frozen=True, slots=True)
class _TypePrices:
    """Of one device type, each [price of a layer][of a stage][of a side]."""

    price: Numbers
    """Of a node."""
    first: Numbers
    """The most by which the run, or stage, that begins the pipeline exceeds the price."""
    last: Numbers
    alone: Numbers
    """What a run is worth that is the whole pipeline."""


class NodeRuns:
    """The bound for stages of one family."""

    def __init__(
        self,
        device_type: Sequence[int],
        devices: Sequence[int],
        sides: Sequence[Sides],
        ends: Sequence[tuple[float, float, float]],
        nodes: Sequence[Nodes],
    ) -> None:
        """The device type, devices and sides of each part; ``ends``: seconds beside layers and sends.

        Those of a stage in the middle, of the first one and of the last one; ``nodes`` of each device type.
        """
        self._nodes = nodes
        after = np.array([each.next_seconds for each in sides]).reshape(-1, 3).T
        before = np.array([each.before_seconds for each in sides]).reshape(-1, 3).T
        middle, first, last = np.array(ends).reshape(-1, 3).T
        self.more: tuple[Numbers, Numbers, Numbers] = (
            (middle + before[:, None] + after[None, :]).reshape(9, -1),
            first + after,
            last + before,
        )
        """Seconds beside the layers, [role][part]: of the middle by both sides, of the first and of the last stage."""
        self._small: list[list[tuple[int, list[int]]]] = []
        """(devices, parts) of stages on one node, by device type."""
        self._spread: list[list[tuple[int, list[int]]]] = []
        for number in range(len(nodes)):
            sizes: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
            for part, (kind, count, side) in enumerate(zip(device_type, devices, sides, strict=True)):
                if kind == number:
                    sizes[side.spread].setdefault(count, []).append(part)
            self._small.append(sorted(sizes[False].items()))
            self._spread.append(sorted(sizes[True].items()))

    def held(self, caps: Sequence[Numbers], depth: int) -> float:
        """Layers of so many stages, at most, where they hold so many each, [place][role][part]."""
        values = [cap[None] for cap in caps]
        return float(self._most(values, depth, np.ones((1, 1, 1))).min())

    def once(
        self, caps: Sequence[Numbers], depth: int, layers: int, seconds: Numbers, prices: Numbers
    ) -> float:
        """Seconds of one micro-batch through so many stages that hold the layers, at least.

        ``seconds`` of a layer, [part]; ``prices`` of a layer that are tried.
        """
        price = prices[:, None, None]
        # Linear in layers, so worth most with one or with all.
        values = [
            np.where(
                cap > 0, np.maximum(price - seconds, np.maximum(cap, 1.0) * (price - seconds)) - more, -inf
            )
            for cap, more in zip(caps, self.more, strict=True)
        ]
        # once >= the price of all layers - what stages are worth beyond their seconds, at most, for any prices.
        return float((price * layers - self._most(values, depth, price)).max())

    def _most(self, values: Sequence[Numbers], depth: int, unit: Numbers) -> Numbers:
        """The sum of the values of all stages, at most, [price of a layer][of a stage][of a side].

        ``values`` are [price of a layer][role][part]; prices of stages and sides are in units of ``unit``.
        """
        stage, side = unit * _STAGE_PRICES, unit * _SIDE_PRICES
        kinds = [self._kind(number, values, stage, side) for number in range(len(self._nodes))]
        paid = sum(kind.price * nodes.count for kind, nodes in zip(kinds, self._nodes, strict=True))
        first = np.maximum.reduce([kind.first for kind in kinds])
        last = np.maximum.reduce([kind.last for kind in kinds])
        alone = np.maximum.reduce([kind.alone for kind in kinds])
        # values <= s p + u nodes + first + last, or those of one run that is the whole pipeline
        most: Numbers = stage * depth + np.maximum(alone, paid + first + last)
        return most

    def _kind(self, number: int, values: Sequence[Numbers], stage: Numbers, side: Numbers) -> _TypePrices:
        """What one device type needs as a price of its nodes, and what the ends of a pipeline exceed it by."""
        devices, runs = self._nodes[number].devices, self._runs(number, values, stage)
        spread = [
            (
                size / devices,
                *(value[:, :, parts].max(axis=(1, 2))[:, None, None] - stage for value in values),
            )
            for size, parts in self._spread[number]
        ]
        # (part of a node, run, sides to stages on several nodes): on less than a node, as where a stage on several
        # nodes leaves some devices of each, there is one such side.
        ends = [
            (count / devices, runs[count], one, other)
            for count in range(1, devices + 1)
            for one in (0, 1)
            for other in (0, 1)
        ]
        price: Numbers = np.zeros_like(stage + side)
        for share, run, one, other in ends:
            if share == 1 or one or other:
                # values - s stages - q sides <= u a / n
                price = np.maximum(price, (run[..., one, other, None] - (one + other) * side) / share)
        for share, middle, _, _ in spread:
            # value - s + 2 q <= u devices / n
            price = np.maximum(price, (middle + 2 * side) / share)
        first = [begins + 2 * side - price * share for share, _, begins, _ in spread]
        last = [finishes + 2 * side - price * share for share, _, _, finishes in spread]
        for share, run, one, other in ends:
            if one == other and (share == 1 or one):
                first.append(run[..., _END, one, None] - one * side - price * share)
                last.append(run[..., one, _END, None] - one * side - price * share)
        return _TypePrices(
            price,
            np.maximum.reduce(first),
            np.maximum.reduce(last),
            runs[devices][..., _END, _END, None],
        )

    def _runs(self, number: int, values: Sequence[Numbers], stage: Numbers) -> list[Numbers]:
        """The values of a run on so many devices of a node, less the prices of its stages.

        [devices][price of a layer][of a stage][end before][end behind]
        """
        sizes = []
        for size, parts in self._small[number]:
            best = [value[:, :, parts].max(axis=2)[:, None, :] - stage for value in values]
            middle = best[0].reshape(*best[0].shape[:2], 3, 3)
            one = np.full_like(middle, -inf)
            one[..., :_END, :_END], one[..., _END, :_END] = middle[..., 1:, 1:], best[1][..., 1:]
            one[..., :_END, _END] = best[2][..., 1:]
            opens = np.concatenate([middle[..., 1:, NEAR], best[1][..., :1]], axis=-1)
            closes = np.concatenate([middle[..., NEAR, 1:], best[2][..., :1]], axis=-1)
            sizes.append((size, middle[..., NEAR, NEAR], one, opens, closes))
        count, devices = stage.shape[:2], self._nodes[number].devices
        inner = [np.zeros(count)]
        begun, runs = [np.full((*count, 3), -inf)], [np.full((*count, 3, 3), -inf)]
        for room in range(1, devices + 1):
            able = [item for item in sizes if item[0] <= room]
            # Stages between two others of the run, those with the first one of it, and all.
            inner.append(
                np.maximum.reduce([inner[-1], *(near + inner[room - size] for size, near, _, _, _ in able)])
            )
            begun.append(
                np.maximum.reduce(
                    [begun[-1], *(opens + inner[room - size][..., None] for size, _, _, opens, _ in able)]
                )
            )
            runs.append(
                np.maximum.reduce(
                    [
                        runs[-1],
                        *(one for _, _, one, _, _ in able),
                        *(
                            begun[room - size][..., None] + closes[..., None, :]
                            for size, _, _, _, closes in able
                        ),
                    ]
                )
            )
        return runs
