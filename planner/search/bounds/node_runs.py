"""What the stages on one node hold together, for runtimes that start each node once and have per-stage degrees.

Such a pipeline does not come back to a node that it has left. So the stages that stand on one node alone are
neighbours, in runs: what is between two of a run stays on their node, and each end of a run sends to another node, to
a stage that stands on several nodes, or to nothing. The stages of a run share the devices of one node, whole stages
with whole layers: a relaxation that mixes those at a border with those inside a node knows none of this.

Let every stage have a value: the layers that it holds, or what a price of layers pays for beyond the seconds that it
takes. Which stages stand on several nodes is looked at case by case, as long as these are few. With a price s of a
stage (of any sign), q of a side towards a stage on several nodes, and u of a node, of which a part costs in proportion,
the values of p stages are at most

    s p + u nodes + first + last + their own    where for all runs on a devices of a node with n

    values - s stages - q sides to stages on several nodes <= u a / n

Here ``nodes`` are those that the stages on several nodes leave over, and ``their own`` what these are worth beyond s,
with q for each side on which another stage stands on one node: no run has other such sides. ``first`` and ``last`` are
the most by which the runs, or stages, with an end of the pipeline exceed the price of their nodes, or what they are
worth in the middle. A run on less than a node leaves the rest to a stage that stands on several, and is its neighbour.
u is the least such price. For several depths s p is that of the fewest or of the most stages, which is more. Where
there are too many cases, stages on several nodes pay for their nodes like runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import product, starmap
from math import floor, inf

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

_STAGE_PRICES = np.linspace(-2.0, 2.0, 17)[:, None]
"""Prices of a stage, in layers."""

MOST_MIXES = 100
"""Cases of stages on several nodes, at most."""

_LITTLE = -1e4
"""In place of the value of a stage that holds nothing, which it is above: finite, and with digits left."""

_SIDE_PRICES = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0])[None, :]
"""Prices of a side towards a stage on several nodes, in layers."""


Depths = tuple[int, int]
"""Fewest and most stages of pipelines that are looked at together."""


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
    """The most by which what begins the pipeline exceeds the price of its nodes."""
    last: Numbers


Worths = list[tuple[float, Numbers]]
"""Nodes that runs or stages take, and what these are worth beyond the prices of their stages and sides."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """What a stage on several nodes is worth beyond its price, at most, each [price of a layer][of a stage][of a side].

    With the prices of the sides on which another stage stands on one node.
    """

    middle: tuple[Numbers, Numbers, Numbers]
    """By how many of its neighbours, at most, stand on several nodes too."""
    first: tuple[Numbers, Numbers]
    last: tuple[Numbers, Numbers]


Mix = tuple[tuple[int, int, int], ...]
"""Stages on several nodes: the device type, which of its sizes, and how many of them."""


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
        self._mixes = self._all_mixes()
        """The stages on several nodes of a pipeline; None where there are too many cases."""

    def held(self, caps: Sequence[Numbers], depths: Depths, enough: float = inf) -> float:
        """Layers of so many stages, fewest and most, where they hold so many each, [place][role][part]; at most.

        Where that is ``enough`` it need not be the most.
        """
        values, held = [cap[None] for cap in caps], -inf
        for most in self._most(values, depths, np.ones((1, 1, 1))):
            held = max(held, float(most.min()))
            if held >= enough:
                break
        return held

    def once(
        self,
        caps: Sequence[Numbers],
        depths: Depths,
        layers: int,
        seconds: Numbers,
        prices: Numbers,
        known: float = 0.0,
    ) -> float:
        """Seconds of one micro-batch through so many stages, fewest and most, that hold the layers, at least.

        ``seconds`` of a layer, [part]; ``prices`` of a layer that are tried. Below ``known`` it need not be the most
        that is proven.
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
        once = inf
        for most in self._most(values, depths, price):
            once = min(once, float((price * layers - most).max()))
            if once <= known:
                break
        return once

    def _all_mixes(self) -> list[Mix] | None:
        sizes = [
            (number, index, size / self._nodes[number].devices)
            for number, spread in enumerate(self._spread)
            for index, (size, _) in enumerate(spread)
        ]
        mixes: list[Mix] = [()]
        for number, index, share in sizes:
            most = floor(self._nodes[number].count / share)
            longer = [(*mix, (number, index, count)) for mix in mixes for count in range(1, most + 1)]
            mixes += [mix for mix in longer if self._left(mix, number) >= 0]
            if len(mixes) > MOST_MIXES:
                return None
        return mixes[1:]

    def _left(self, mix: Mix, number: int) -> float:
        """Nodes of a device type that these stages leave over."""
        nodes, spread = self._nodes[number], self._spread[number]
        taken = sum(count * spread[index][0] for kind, index, count in mix if kind == number)
        return nodes.count - taken / nodes.devices

    def _most(self, values: Sequence[Numbers], depths: Depths, unit: Numbers) -> Iterator[Numbers]:
        """The sum of the values of all stages, at most, in each case, [price of a layer][of a stage][of a side].

        ``values`` are [price of a layer][role][part]; prices of stages and sides are in units of ``unit``.
        """
        stage, side = unit * _STAGE_PRICES, unit * _SIDE_PRICES
        fewest, most = depths
        # s p <= the larger of both ends
        paid = np.maximum(stage * fewest, stage * most)
        runs = [self._runs(number, values, stage) for number in range(len(self._nodes))]
        # One run that is the whole pipeline, and runs on whole nodes only.
        for each in runs:
            yield paid + each[-1][..., _END, _END, None]
        yield paid + self._total((), [_whole(each[-1]) for each in runs], [], fewest)
        spread = [
            [_spread([value[:, :, parts] for value in values], stage, side) for _, parts in sizes]
            for sizes in self._spread
        ]
        if self._mixes is None:
            kinds = [
                _parts(
                    each,
                    side,
                    [(size / nodes.devices, worth) for (size, _), worth in zip(sizes, own, strict=True)],
                )
                for each, nodes, sizes, own in zip(runs, self._nodes, self._spread, spread, strict=True)
            ]
            yield paid + self._total((), kinds, [], fewest)
        elif self._mixes:
            kinds = [_parts(each, side) for each in runs]
            yield from (paid + self._total(mix, kinds, spread, fewest) for mix in self._mixes)

    def _total(
        self, mix: Mix, kinds: Sequence[_TypePrices], spread: Sequence[Sequence[_Spread]], fewest: int
    ) -> Numbers:
        """The values of pipelines with these stages on several nodes, less the prices of all stages."""
        own = [(spread[number][index], count) for number, index, count in mix]
        many = sum(count for _, count in own)
        # What begins and what ends a pipeline: 0 for a run, else which of them.
        places = range(len(own) + 1)
        ends: dict[int, list[tuple[int, int]]] = {}
        for begins, other in product(places, places):
            if begins != other or not begins or own[begins - 1][1] > 1:
                # In a row at most; in two where both ends are theirs, with runs between them.
                near = min(2, many - 1 - (begins > 0 and other > 0 and fewest > many))
                ends.setdefault(near, []).append((begins, other))

        def total(near: int, pairs: Sequence[tuple[int, int]]) -> Numbers:
            """Where so many of their neighbours stand on several nodes too, at most."""
            first = [
                _largest(kind.first for kind in kinds),
                *(each.first[min(near, 1)] - each.middle[near] for each, _ in own),
            ]
            last = [
                _largest(kind.last for kind in kinds),
                *(each.last[min(near, 1)] - each.middle[near] for each, _ in own),
            ]
            both = _largest(first[begins] + last[other] for begins, other in pairs)
            return sum((count * each.middle[near] for each, count in own), start=both)

        # values <= u nodes + first + last + their own
        paid = (kind.price * self._left(mix, number) for number, kind in enumerate(kinds))
        return sum(paid, start=_largest(starmap(total, ends.items())))

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
            inner.append(_largest([inner[-1], *(near + inner[room - size] for size, near, _, _, _ in able)]))
            begun.append(
                _largest(
                    [begun[-1], *(opens + inner[room - size][..., None] for size, _, _, opens, _ in able)]
                )
            )
            runs.append(
                _largest(
                    [
                        runs[-1],
                        *(one for size, _, one, _, _ in able if size == room),
                        *(
                            begun[room - size][..., None] + closes[..., None, :]
                            for size, _, _, _, closes in able
                        ),
                    ]
                )
            )
        return runs


def _largest(numbers: Iterable[Numbers]) -> Numbers:
    """Element by element."""
    return reduce(np.maximum, numbers)


def _whole(runs: Numbers) -> _TypePrices:
    """Runs on whole nodes, beside no stage on several."""
    return _prices(
        [(1.0, runs[..., 0, 0, None])], [(1.0, runs[..., _END, 0, None])], [(1.0, runs[..., 0, _END, None])]
    )


def _parts(
    runs: Sequence[Numbers], side: Numbers, spread: Sequence[tuple[float, _Spread]] = ()
) -> _TypePrices:
    """Runs [devices] on nodes and on parts of them, with stages on several nodes that pay for these like runs."""
    most = len(runs) - 1
    middle: Worths = [(share, worth.middle[2]) for share, worth in spread]
    first: Worths = [(share, worth.first[1]) for share, worth in spread]
    last: Worths = [(share, worth.last[1]) for share, worth in spread]
    for count, run in enumerate(runs[1:], start=1):
        share = count / most
        # On less than a node, as where a stage on several nodes leaves some devices of each, it is a neighbour.
        for one, other in product((0, 1), repeat=2):
            if share == 1 or one or other:
                middle.append((share, run[..., one, other, None] - (one + other) * side))
        for one in (0, 1):
            if share == 1 or one:
                first.append((share, run[..., _END, one, None] - one * side))
                last.append((share, run[..., one, _END, None] - one * side))
    return _prices(middle, first, last)


def _prices(middle: Worths, first: Worths, last: Worths) -> _TypePrices:
    """What a node must cost at least."""
    # values - s stages - q sides to stages on several nodes <= u a / n
    price = _largest([np.zeros_like(middle[0][1]), *(worth / share for share, worth in middle)])
    return _TypePrices(
        price,
        _largest([worth - price * share for share, worth in first]),
        _largest([worth - price * share for share, worth in last]),
    )


def _spread(values: Sequence[Numbers], stage: Numbers, side: Numbers) -> _Spread:
    """Of stages on several nodes; ``values`` are [price of a layer][role][part]."""
    # Any number above that of a stage that holds no layer would do; a large one loses digits.
    middle, first, last = (np.maximum(value.max(axis=2), _LITTLE)[..., None, None] for value in values)
    middle = middle.reshape(-1, 3, 3, 1, 1)[:, 1:, 1:] - stage[:, None, None]
    first, last = first[:, 1:] - stage[:, None], last[:, 1:] - stage[:, None]
    none = middle[:, 0, 0] + 2 * side
    one = _largest([none, middle[:, 0, 1] + side, middle[:, 1, 0] + side])
    return _Spread(
        (none, one, np.maximum(one, middle[:, 1, 1])),
        (first[:, 0] + side, np.maximum(first[:, 0] + side, first[:, 1])),
        (last[:, 0] + side, np.maximum(last[:, 0] + side, last[:, 1])),
    )
