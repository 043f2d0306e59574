"""When the stages of a pipeline end (``stage_ends``): as ``pipeline_events`` has it, in closed form.

1F1B (``schedules``) runs p stages and m >= p micro-batches; f and b are seconds,
c = f + b, and stage s warms up with w(s) = p - 1 - s forwards. A path through its graph has three parts. The warm-up
ends with the first forward of some stage t that a backward follows, after f_0 + .. + f_t + w(t) max(f_0 .. f_t). The
middle visits one stage per micro-batch, for a forward and a backward, and ends with the backward that follows
the last forward of some stage u. The cool-down to the end of stage s <= u adds b_s + .. + b_(u-1) and
w(u) max(b_s .. b_u). Where a stage y holds its last gradient back for r_y, it adds r_(s+1) + .. + r_y too, and the
w(u) visits are to a stage from y to u: past y only the last micro-batch is left.

Let H(s) = b_s + .. + b_(p-1) and z(s) = end of a backward of stage s - H(s). A visit of the middle is then
z(s) <- c_s + max(z(t) for t >= s - 1): up by at most one stage, down by any number. Coming down to u is part of
the last visit. Let x be the slowest stage the middle visits. On its way up to x it visits the stages between t
and x, on its way up to u those between x and u; no other visit takes longer than c_x, and visits of x may
follow each other. So the longest middle passes those stages once and stays at x for the rest. With
L(s) = f_0 + .. + f_s - H(s + 1), it ends at H(u) plus the maximum over t and x of

    w(t) max(f_0 .. f_t) + L(max(t, x)) + L(max(u, x)) - L(x) + (m - p - x + min(t, x) + min(u, x)) c_x

where the last factor, the visits that remain for x, is not negative. With m < p all this holds of the last m
stages, counted from the first of them; the others do all their forwards first and are on no longer path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from operator import add, mul, sub

from planner.capabilities import Schedule
from planner.cost.pipeline_events import Pipeline, Seconds, simulate
from planner.cost.schedules import divides, is_v_shaped, warm_up
from planner.cost.v_shaped import VShapedSlots


def stage_ends(
    forward: Seconds,
    backward: Seconds,
    micro_batches: int,
    held: Sequence[float] = (),
    weight: Seconds = (),
    schedule: Schedule = "1f1b",
) -> tuple[float, ...]:
    """Seconds after which each stage ends, [stage]: those of ``simulate``, without its timeline.

    1F1B takes O(depth^2) operations for any number of micro-batches (see the module's text); an interleaved
    pipeline, and one with a divided backward, takes the slots until it repeats itself.
    """
    if is_v_shaped(schedule):
        v_shaped = VShapedSlots(forward, backward, weight, micro_batches, schedule)
        _repeat(v_shaped)
        v_shaped.finish()
        return tuple(v_shaped.ended)
    if divides(schedule):
        return divided_ends(forward, backward, weight, micro_batches)
    if len(forward[0]) == 1:
        return plain_ends([row[0] for row in forward], [row[0] for row in backward], micro_batches, held)
    return interleaved_ends(forward, backward, micro_batches, held)


RUN_MICRO_BATCHES = 200
"""Micro-batches up to which slots take longer than all operations of a graph that is known."""


def ends_of_many(pipeline: Pipeline) -> tuple[float, ...]:
    """The same where many pipelines of one graph are asked for: it is built once, which takes as long as ten ends."""
    slots = len(pipeline.forward[0]) > 1 or divides(pipeline.schedule)
    if slots and pipeline.micro_batches <= RUN_MICRO_BATCHES:
        return simulate(*pipeline).stage_ends()
    return stage_ends(*pipeline)


_ROUNDING = 1e-13
"""Shifts that differ by less than this part of the time so far are equal."""


def plain_ends(
    forward: Sequence[float],
    backward: Sequence[float],
    micro_batches: int,
    held: Sequence[float],
) -> tuple[float, ...]:
    """Seconds after which each stage of 1F1B ends, [stage]: the longest path of the module's text, in O(p^2).

    ``forward`` and ``backward`` are seconds of one micro-batch, [stage]; ``held`` those for which a stage holds back
    the gradient of the last one, [stage], nothing where it is empty.
    """
    depth, active = len(forward), min(len(forward), micro_batches)
    idle = depth - active
    below = [*accumulate(reversed(backward), initial=0.0)][::-1]
    level = [*map(sub, accumulate(forward), below[1:])][idle:]
    ahead = [warm_up(stage, depth, micro_batches) for stage in range(idle, depth)]
    begun = [*map(mul, [*accumulate(forward, max)][idle:], ahead)]
    cycle = [*map(add, forward, backward)][idle:]
    middle = [-inf] * idle + _middle(level, begun, cycle, micro_batches - active)
    if any(held):
        return tuple(map(add, below, _held_cool_downs(middle, backward, held)))
    return tuple(below[stage] + _cool_down(middle[stage:], backward[stage:]) for stage in range(depth))


def _middle(
    level: Sequence[float], warm_up: Sequence[float], cycle: Sequence[float], spare: int
) -> list[float]:
    """Longest warm-up and middle that end at u, less H(u), [u]; ``spare`` is m - p."""
    above = [*accumulate(map(add, reversed(warm_up), reversed(level)), max, initial=-inf)][::-1]
    ends: list[float] = []
    climb = -inf
    for stay, seconds in enumerate(cycle):
        starts = _starts(warm_up[: stay + 1], seconds, level[stay], above[stay + 1])
        ends.append(climb + level[stay])
        climb = max(climb, starts[0] + spare * seconds - level[stay])
        ends = _stay(ends, starts, spare, seconds)
    return ends


def _starts(warm_up: Sequence[float], seconds: float, level: float, above: float) -> list[float]:
    """Best warm-up that ends at t or above, [t]; the path stays at the last of these stages."""
    stage = len(warm_up) - 1
    best = above + stage * seconds
    starts = []
    for warm in reversed(warm_up):
        start = warm + stage * seconds + level
        if start > best:
            best = start
        starts.append(best)
        stage -= 1
    return starts[::-1]


def _stay(ends: list[float], starts: Sequence[float], spare: int, seconds: float) -> list[float]:
    """``ends`` or, where later, those of the paths that stay at the last of these stages."""
    visits = spare + 1 - len(ends)
    # A path with few micro-batches reaches the stage only from one not far below it.
    late = max(0, -visits)
    nearest = [*starts[late:0:-1], *[starts[0]] * (len(ends) - late)]
    rest = visits * seconds
    return [
        end if end > (path := start + (rest + stage * seconds)) else path
        for stage, (end, start) in enumerate(zip(ends, nearest, strict=True))
    ]


def _cool_down(middle: Sequence[float], backward: Sequence[float]) -> float:
    """Latest end of the first of these stages, less its H."""
    slowest, best, waits = 0.0, -inf, len(backward)
    for end, seconds in zip(middle, backward, strict=True):
        waits -= 1
        if seconds > slowest:
            slowest = seconds
        if end + waits * slowest > best:
            best = end + waits * slowest
    return best


def _held_cool_downs(
    middle: Sequence[float], backward: Sequence[float], held: Sequence[float]
) -> list[float]:
    """As ``_cool_down``, of every stage, where stages hold back the last gradient, [stage]."""
    depth = len(backward)
    ends = [-inf] * depth
    for turn, end in enumerate(middle):
        waits, slowest, longest = depth - 1 - turn, 0.0, -inf
        for stage in range(turn, -1, -1):
            slowest = max(slowest, backward[stage])
            longest = max(longest, waits * slowest)
            ends[stage] = max(ends[stage], end + longest)
            longest += held[stage]
    return ends


def interleaved_ends(
    forward: Seconds, backward: Seconds, micro_batches: int, held: Sequence[float]
) -> tuple[float, ...]:
    """Seconds after which each device of an interleaved pipeline ends, [stage].

    ``forward`` and ``backward`` are seconds of one micro-batch, [stage][chunk]. Once a period of slots moves
    the ends of all devices by one constant, every later one does, until the forwards run out: the system is
    linear in the (max, +) algebra (Baccelli et al. 1992, section 3.7). ``held`` as in ``simulate``.
    """
    if micro_batches % len(forward):
        raise ValueError(f"{micro_batches} micro-batches cannot be interleaved over {len(forward)} stages")
    slots = _Slots(forward, backward, micro_batches, held)
    slots.run_to(slots.lag + 1)
    _repeat(slots)
    slots.run_to(slots.total + slots.lag)
    return tuple(slots.ended)


def _repeat(slots: _Slots | _DividedSlots | VShapedSlots) -> None:
    """Run all whole periods, at once from the first that moves the ends of all devices by one constant."""
    before = slots.state()
    while slots.now + slots.period <= slots.total:
        slots.run_to(slots.now + slots.period)
        after = slots.state()
        shift = _common_shift(before, after)
        if shift is not None:
            slots.skip((slots.total - slots.now) // slots.period, shift)
        before = after


def _common_shift(before: Sequence[float], after: Sequence[float]) -> float | None:
    """The constant between two states, or None before the steady state."""
    shifts = [*map(sub, after, before)]
    longest = max(shifts)
    return longest if longest - min(shifts) <= _ROUNDING * max(after) else None


class _Slots:
    """Ends of the last operations of p devices with v chunks, slot by slot.

    Forward i of device s is in slot i + s and backward i in slot i - s + ``lag``, where both follow the slot of
    the operation they depend on: that of a neighbour, around a ring from one chunk to the next.
    """

    def __init__(
        self, forward: Seconds, backward: Seconds, micro_batches: int, held: Sequence[float]
    ) -> None:
        self.depth, chunks = len(forward), len(forward[0])
        self.held = held
        self.total, self.period = micro_batches * chunks, self.depth * chunks
        self.lag = self.period + self.depth - 2
        self.now = 0
        self.forward, self.backward, self.ended = ([0.0] * self.depth for _ in range(3))
        devices = range(self.depth)
        self.forward_seconds = [
            [forward[s][(slot - s) % self.period // self.depth] for s in devices]
            for slot in range(self.period)
        ]
        self.backward_seconds = [
            [backward[s][-1 - (slot - self.lag + s) % self.period // self.depth] for s in devices]
            for slot in range(self.period)
        ]

    def run_to(self, slot: int) -> None:
        """Run the slots before ``slot``."""
        while self.now < slot:
            self._forwards()
            self._backwards()
            self.now += 1

    def state(self) -> list[float]:
        """What the ends of later slots depend on while every device alternates."""
        return self.forward + self.backward

    def skip(self, periods: int, shift: float) -> None:
        """Pass slots that only shift the state."""
        self.now += periods * self.period
        self.forward = [end + periods * shift for end in self.forward]
        self.backward = [end + periods * shift for end in self.backward]
        self.ended = [end + periods * shift for end in self.ended]

    def _forwards(self) -> None:
        part = slice(max(0, self.now - self.total + 1), self.now + 1)
        # The first chunk of a micro-batch waits for no other.
        wrapped = self.forward[-1] if self.now % self.period >= self.depth else 0.0
        seconds = self.forward_seconds[self.now % self.period]
        ready = [wrapped, *self.forward[:-1]]
        self.forward[part] = self.ended[part] = _ends(ready[part], self.ended[part], seconds[part])

    def _backwards(self) -> None:
        part = slice(max(0, self.lag - self.now), max(0, self.total + self.lag - self.now))
        # The last chunk of a micro-batch waits for its own forward.
        wrapped = self.backward[0] if (self.now + 1) % self.period >= self.depth else 0.0
        seconds = self.backward_seconds[self.now % self.period]
        ready = [*self.backward[1:], wrapped]
        self.backward[part] = self.ended[part] = _ends(ready[part], self.ended[part], seconds[part])
        # The device whose last operation this was.
        last = self.total - 1 + self.lag - self.now
        if self.held and 0 <= last < self.depth:
            self.backward[last] += self.held[last]


def divided_ends(
    forward: Seconds, backward: Seconds, weight: Seconds, micro_batches: int
) -> tuple[float, ...]:
    """Seconds after which each device of a zero-bubble pipeline ends, [stage]; its end is where it repeats itself."""
    if len(forward[0]) > 1 and micro_batches % len(forward):
        raise ValueError(f"{micro_batches} micro-batches cannot be interleaved over {len(forward)} stages")
    slots = _DividedSlots(forward, backward, weight, micro_batches)
    slots.run_to(min(slots.regular, slots.total))
    _repeat(slots)
    slots.run_to(slots.end)
    return tuple(slots.ended)


class _DividedSlots:
    """As ``_Slots`` where the backward is divided.

    Forward i of device s is in slot i + s, backward i in slot i + ``ahead`` on all devices, the last device first, and
    the gradients of its weights in slot i + s + ``ahead``: each slot has one of a kind, in this order.
    """

    def __init__(self, forward: Seconds, backward: Seconds, weight: Seconds, micro_batches: int) -> None:
        self.depth, self.chunks = len(forward), len(forward[0])
        self.seconds = forward, backward, weight
        self.total, self.group = micro_batches * self.chunks, self.depth * self.chunks
        self.period = self.group if self.chunks > 1 else 1
        self.ahead = self.group - 1
        self.regular = self.ahead + self.depth - 1
        """From this slot on all devices have operations of all kinds, until the forwards run out."""
        self.end = self.total + self.depth - 1 + self.ahead
        self.now = 0
        self.forward, self.ended = [0.0] * self.depth, [0.0] * self.depth
        self.around = deque([0.0] * self.depth, maxlen=self.depth)
        """Ends of the first device's last backwards, which go on with the chunk before on the last one."""

    def run_to(self, slot: int) -> None:
        """Run the slots before ``slot``."""
        while self.now < slot:
            self._forwards()
            self._backwards()
            self._weights()
            self.now += 1

    def state(self) -> list[float]:
        """What the ends of later slots depend on while all devices have operations of all kinds."""
        return [*self.forward, *self.ended, *self.around]

    def skip(self, periods: int, shift: float) -> None:
        """Pass slots that only shift the state."""
        self.now += periods * self.period
        self.forward = [end + periods * shift for end in self.forward]
        self.ended = [end + periods * shift for end in self.ended]
        self.around.extend([end + periods * shift for end in self.around])

    def _chunk(self, index: int) -> int:
        return index % self.group // self.depth

    def _forwards(self) -> None:
        before = [self.forward[-1], *self.forward[:-1]]
        for stage in range(self.depth):
            index = self.now - stage
            if 0 <= index < self.total:
                chunk = self._chunk(index)
                ready = before[stage] if stage or chunk else 0.0
                end = max(ready, self.ended[stage]) + self.seconds[0][stage][chunk]
                self.forward[stage] = self.ended[stage] = end

    def _backwards(self) -> None:
        index = self.now - self.ahead
        if not 0 <= index < self.total:
            return
        chunk = self.chunks - 1 - self._chunk(index)
        # The last chunk of a micro-batch waits for its own forward, which is ahead of it on its device.
        end = self.around[0] if chunk < self.chunks - 1 else 0.0
        for stage in reversed(range(self.depth)):
            end = self.ended[stage] = max(end, self.ended[stage]) + self.seconds[1][stage][chunk]
        self.around.append(end)

    def _weights(self) -> None:
        for stage in range(self.depth):
            index = self.now - self.ahead - stage
            if 0 <= index < self.total:
                self.ended[stage] += self.seconds[2][stage][self.chunks - 1 - self._chunk(index)]


def _ends(ready: Sequence[float], free: Sequence[float], seconds: Sequence[float]) -> list[float]:
    return [(a if a > b else b) + c for a, b, c in zip(ready, free, seconds, strict=True)]
