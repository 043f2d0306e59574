"""Where the shapes of the page's charts and of its map of the cluster are, and what colours they have."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from math import floor, log10

from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cost.timeline import Lane, Span, Step
from planner.files.short_lists import compress_devices
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.report.numbers import TimeUnit, count, duration, runs, significant
from planner.report.ranks import rank_runs

WIDE = 10_000
"""Width of the drawing of a step in its own units; the page stretches it."""
MOST_SPANS = 3000
"""Spans that are drawn one by one; a step with more of them is drawn as shares of equal slices of time."""
MOST_PIECES = 36_000
"""Slices of all lanes and kinds together."""


@dataclass(frozen=True, slots=True)
class SpanBox:
    """A rectangle of a lane, in its drawing's units; ``y`` and ``height`` are parts of the lane's height."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One lane as it is drawn."""

    boxes: tuple[SpanBox, ...]
    """Of a step that is drawn span by span."""
    paths: tuple[tuple[str, str], ...]
    """(kind, SVG path) of one that is drawn in slices, in a square of WIDE x 100."""
    critical: str
    """SVG path around what is on the longest path of the step."""
    stripe: float
    """Height of the stripe that stands for collectives inside forwards and backwards, share of the lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The lanes of a step."""

    strips: tuple[Strip, ...]
    slices: int | None
    """How many slices of time each lane has; None where every span is drawn."""


def drawing_of(step: Step) -> Drawing:
    """Every span where there are few enough to be seen."""
    spans = sum(len(lane.spans) for lane in step.lanes)
    if spans <= MOST_SPANS:
        return Drawing(strips=tuple(_exact(lane, step.seconds) for lane in step.lanes), slices=None)
    slices = max(40, min(800, MOST_PIECES // len(step.lanes) // 4))
    return Drawing(strips=tuple(_sliced(lane, step.seconds, slices) for lane in step.lanes), slices=slices)


def _exact(lane: Lane, seconds: float) -> Strip:
    scale = WIDE / seconds
    boxes = [
        SpanBox(span.kind, span.start * scale, (span.end - span.start) * scale, _title(span))
        for span in lane.spans
    ]
    return Strip(boxes=tuple(boxes), paths=(), critical=_outline(lane, scale), stripe=lane.collectives)


def _title(span: Span) -> str:
    which = "" if span.micro_batch is None else f" of micro-batch {span.micro_batch}"
    chunk = f", chunk {span.chunk}" if span.chunk else ""
    critical = ", on the critical path" if span.critical else ""
    took = f"{duration(span.end - span.start)} from {duration(span.start)}"
    return f"{span.kind}{which}{chunk}: {took}{critical}"


def _outline(lane: Lane, scale: float) -> str:
    """A frame around each run of spans without a gap that are on the longest path."""
    frames: list[list[float]] = []
    for span in lane.spans:
        if not span.critical:
            continue
        if frames and span.start * scale - frames[-1][1] < 1:
            frames[-1][1] = span.end * scale
        else:
            frames.append([span.start * scale, span.end * scale])
    return "".join(f"M{first:.0f} 3H{last:.0f}V97H{first:.0f}Z" for first, last in frames)


def _sliced(lane: Lane, seconds: float, slices: int) -> Strip:
    """Shares of each slice by kind, stacked; what is left of it is waiting."""
    shares: dict[str, list[float]] = defaultdict(lambda: [0.0] * slices)
    for span in lane.spans:
        _fill(shares[span.kind], span, seconds / slices)
    wide = WIDE / slices
    floors = [100.0] * slices
    paths = []
    for kind, parts in shares.items():
        pieces = []
        for index, part in enumerate(parts):
            if part < 0.005:
                continue
            height = min(100 * part, floors[index])
            floors[index] -= height
            pieces.append(f"M{index * wide:.0f} {floors[index]:.0f}h{wide:.0f}v{height:.0f}h-{wide:.0f}z")
        paths.append((kind, "".join(pieces)))
    return Strip(boxes=(), paths=tuple(paths), critical=_outline(lane, WIDE / seconds), stripe=0.0)


def _fill(parts: list[float], span: Span, width: float) -> None:
    """Add a span to the slices that it lies in."""
    first, last = floor(span.start / width), min(floor(span.end / width), len(parts) - 1)
    for index in range(min(first, last), last + 1):
        overlap = min(span.end, (index + 1) * width) - max(span.start, index * width)
        parts[index] += max(0.0, overlap) / width


def ticks(most: float, about: int = 5) -> Iterator[float]:
    """Round numbers from 0 to ``most``, about so many."""
    if most <= 0:
        return
    step = _round_step(most / about)
    number = 0
    while number * step <= most * 1.0001:
        yield number * step
        number += 1


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten: the first that is not below ``least``."""
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, at a part of its length."""

    at: float
    text: str
    fine: bool = False
    """Shown where there is room."""


def time_ticks(seconds: float, unit: TimeUnit) -> list[Tick]:
    """Marks along a step, and finer ones for one that is zoomed into."""
    whole = seconds / unit.seconds
    coarse, fine = list(ticks(whole)), list(ticks(whole, 50))
    marks = [Tick(value / whole, f"{value:.6g} {unit.name}") for value in coarse]
    near = whole / 1000
    between = (value for value in fine if all(abs(value - other) > near for other in coarse))
    return marks + [Tick(value / whole, f"{value:.6g} {unit.name}", fine=True) for value in between]


@dataclass(frozen=True, slots=True)
class Dot:
    """A plan in the scatter, in percent of its area."""

    x: float
    y: float
    kind: str
    title: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Plans by step time and memory."""

    dots: tuple[Dot, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def scatter(
    plans: Sequence[tuple[float, float, str, str]], x_unit: tuple[float, str], y_unit: tuple[float, str]
) -> Scatter:
    """``plans`` are (x, y, kind, title); units are (size, name)."""
    xs, ys = _axis([plan[0] for plan in plans], x_unit), _axis([plan[1] for plan in plans], y_unit)
    dots = [Dot(xs.at(x), ys.at(y), kind, title, number) for number, (x, y, kind, title) in enumerate(plans)]
    return Scatter(dots=tuple(dots), x_ticks=xs.ticks, y_ticks=ys.ticks)


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def _axis(values: Iterable[float], unit: tuple[float, str]) -> _Axis:
    """From a little below the least to a little above the most."""
    known = list(values)
    room = 0.08 * (max(known) - min(known)) or 0.5 * max(known) or 1.0
    low, high = max(0.0, min(known) - room), max(known) + room
    size, name = unit
    marks = [value * size for value in _round_between(low / size, high / size)]
    axis = _Axis(low, high, ())
    return _Axis(low, high, tuple(Tick(axis.at(mark), f"{mark / size:g} {name}") for mark in marks))


def _round_between(low: float, high: float) -> Iterator[float]:
    step = _round_step((high - low) / 4)
    number = -(-low // step)
    while number * step <= high:
        yield round(number * step, 12)
        number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Two quantities that stay as they are until they change, over time; in shares of their room."""

    best: tuple[tuple[float, float], ...]
    """Corners (x, y), from the left."""
    bound: tuple[tuple[float, float], ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def course(moments: Sequence[tuple[float, float, float]], unit: TimeUnit) -> Course:
    """``moments`` are (seconds, best, bound) in order; a bound of 0 is none."""
    times = [moment[0] for moment in moments]
    heights = [height for moment in moments for height in moment[1:] if height > 0]
    end = _Axis(0.0, times[-1] * 1.02 or 1.0, ())
    marks = tuple(Tick(end.at(mark), f"{mark:g} s") for mark in _round_between(0.0, end.high))
    y_axis = _axis(heights, (unit.seconds, unit.name))

    def corners(of: int) -> tuple[tuple[float, float], ...]:
        known = [(moment[0], moment[of]) for moment in moments if moment[of] > 0]
        points = [(end.at(time), y_axis.at(height)) for time, height in known]
        steps = [(right[0], left[1]) for left, right in pairwise(points)]
        return (
            tuple(point for pair in zip(points, [*steps, points[-1]], strict=True) for point in pair)
            if points
            else ()
        )

    return Course(best=corners(1), bound=corners(2), x_ticks=marks, y_ticks=y_axis.ticks)


FARTHEST = 1.0
"""Slower than this, in shares of the step, ends at the edge of a tornado."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBar:
    """A plan that a decision leads to, as a bar from the step of the plan at hand."""

    number: int
    """Index of the plan in the document."""
    word: str
    """``best``, ``worst``, or ``fastest`` of one that does not fit."""
    change: str
    slower: float
    """Its step over that of the plan at hand, less 1."""
    fits: bool
    low: float
    width: float
    """The bar in shares of the room."""
    beyond: bool
    """It goes on outside of the room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A row of a tornado."""

    name: str
    ends: tuple[ChangeBar, ...]
    """The fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado:
    """How the step moves with each single decision, what moves it most first."""

    decisions: tuple[Decision, ...]
    zero: float
    """Where the plan at hand stands."""
    low: float
    high: float
    """One standard error of its step to either side."""
    ticks: tuple[Tick, ...]


def tornado(
    decisions: Sequence[tuple[str, Sequence[tuple[int, str, str, float, bool]]]], spread: float
) -> Tornado:
    """``decisions`` are (name, ends), ends (number, word, change, slower by, whether it fits)."""
    moves = [end[3] for _, ends in decisions for end in ends]
    low = min([-spread, *moves]) * 1.05
    high = min(max([spread, *moves]), max(FARTHEST, spread)) * 1.05

    def at(slower: float) -> float:
        return (min(max(slower, low), high) - low) / (high - low)

    def drawn(end: tuple[int, str, str, float, bool]) -> ChangeBar:
        number, word, change, slower, fits = end
        first, last = sorted((at(0.0), at(slower)))
        return ChangeBar(
            number=number,
            word=word,
            change=change,
            slower=slower,
            fits=fits,
            low=first,
            width=last - first,
            beyond=slower > high,
        )

    rows = sorted(decisions, key=lambda row: -max(abs(end[3]) for end in row[1]))
    marks = _round_between(100 * low, 100 * high)
    return Tornado(
        decisions=tuple(Decision(name=name, ends=tuple(map(drawn, ends))) for name, ends in rows),
        zero=at(0.0),
        low=at(-spread),
        high=at(spread),
        ticks=tuple(Tick(at(mark / 100), f"{mark:+g} %" if mark else "this plan") for mark in marks),
    )


_PALETTE = ("#0072b2", "#e08e0b", "#009e73", "#c75b95", "#56b4e9", "#d55e00", "#7a5cd0", "#8a8a00")
"""After Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers tell apart."""


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour and what to write on it with."""

    fill: str
    ink: str


def colour(index: int, count: int) -> Colour:
    """The colour of one of ``count`` things."""
    if count <= len(_PALETTE):
        return _on(_PALETTE[index])
    red, green, blue = hls_to_rgb(index / count, 0.5 if index % 2 else 0.62, 0.55)
    return _on(f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}")


def _on(fill: str) -> Colour:
    """Black or white letters, whichever has more contrast (WCAG 2.1, relative luminance)."""
    channels = (int(fill[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return Colour(fill, "#000" if luminance > 0.179 else "#fff")


FEW_NODES = 12
"""Nodes of a pool that are drawn one by one; of more, neighbours that do the same are one box."""
FEW_BOXES = 48
"""Boxes of a pool at most; the nodes that are left are counted."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a device does: the colour of its stage or group, its stage and its replica."""

    lane: int
    stage: int
    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMark:
    """Devices of a node side by side that are one replica, or that are idle."""

    lane: int | None
    """None for idle devices."""
    labels: tuple[str, ...]
    """What is written on each device."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node, or several neighbours that do the same."""

    hosts: str
    nodes: int
    teams: tuple[ReplicaMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What joins a pool, or another fabric, to a fabric."""

    fabric: int
    to: int | None
    """The other fabric of a gateway; None for the cards of a pool."""
    width: float
    """Of its line, pixels; ten times the speed is 3 pixels more."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """A pool; or a gateway between fabrics, which has no nodes."""

    name: str
    text: str
    wires: tuple[Wire, ...]
    nodes: tuple[Node, ...] = ()
    left: int = 0
    """Nodes that are not drawn."""
    idle: tuple[str, ...] = ()
    """Its idle devices, each with the reason as far as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """The whole cluster; a line of each fabric runs along its rows."""

    fabrics: tuple[str, ...]
    rows: tuple[PoolRow, ...]
    first: tuple[int, ...]
    """The row where the line of each fabric begins, [fabric]."""
    last: tuple[int, ...]


def lanes_of(plan: Plan) -> list[tuple[int, int | None]]:
    """(stage, group) of every colour: groups of a plan without a pipeline, else stages."""
    if plan.pp == 1:
        return [(0, index) for index in range(len(plan.stages[0].replicas))]
    return [(stage, None) for stage in range(plan.pp)]


def cluster_map(plan: Plan, cluster: ClusterSpec, model: ModelSpec, reasons: tuple[str, ...]) -> Map:
    """The map; ``reasons`` are what the search said of idle devices."""
    index = {name: number for number, name in enumerate(cluster.fabrics)}
    places = _places(plan, cluster)
    rows = []
    for pool in cluster.pools:
        nodes = list(_nodes(pool, places, pipeline=plan.pp > 1))
        wires = tuple(
            Wire(
                fabric=index[nic.fabric],
                to=None,
                width=_width(nic.bandwidth_gbps * nic.count),
                text=f"{f'{nic.count} x ' if nic.count > 1 else ''}{significant(nic.bandwidth_gbps)} Gbit/s "
                f"{nic.fabric}",
            )
            for nic in pool.nics
        )
        rows.append(
            PoolRow(
                name=pool.name,
                text=_pool_text(pool),
                wires=wires,
                nodes=tuple(nodes[:FEW_BOXES]),
                left=sum(node.nodes for node in nodes[FEW_BOXES:]),
                idle=tuple(_idle(pool, places, cluster, model, reasons)),
            )
        )
    for link in cluster.links:
        first, last = sorted(index[name] for name in link.between)
        speed = f"{significant(link.bandwidth_gbps)} Gbit/s, {significant(link.latency_us / 1000)} ms"
        wire = Wire(fabric=first, to=last, width=_width(link.bandwidth_gbps), text=speed)
        rows.append(PoolRow(name=" to ".join(link.between), text=speed, wires=(wire,)))
    touching = [
        [number for number, row in enumerate(rows) for wire in row.wires if fabric in (wire.fabric, wire.to)]
        for fabric in index.values()
    ]
    return Map(
        fabrics=tuple(f"{name} ({fabric.kind})" for name, fabric in cluster.fabrics.items()),
        rows=tuple(rows),
        first=tuple(min(numbers, default=0) for numbers in touching),
        last=tuple(max(numbers, default=0) for numbers in touching),
    )


def _width(gbps: float) -> float:
    return min(12.0, max(1.5, 3 * log10(max(gbps, 1.0))))


def _pool_text(pool: PoolSpec) -> str:
    devices = " + ".join(each.replace(" x ", " ") for each in compress_devices(pool.devices))
    shared = " shared" if pool.intra_node.shared else ""
    inside = f"{significant(pool.intra_node.bandwidth_gBps)} GB/s{shared} inside"
    return f"{count(len(pool.hosts), 'node')} of {devices}, {inside}"


def _places(plan: Plan, cluster: ClusterSpec) -> dict[tuple[str, int], Place]:
    """(host, device) of every rank."""
    ends = [list(accumulate(group.count for group in stage.replicas)) for stage in plan.stages]
    done = Counter[int]()
    places = {}
    for run in rank_runs(plan, cluster):
        group = bisect_right(ends[run.stage], done[run.stage])
        lane = group if plan.pp == 1 else run.stage
        for host in run.hosts:
            for number, device in enumerate(run.devices):
                replica = done[run.stage] + number // run.tp
                places[host, device] = Place(lane, run.stage, replica)
            done[run.stage] += run.replicas_per_host
    return places


def _nodes(pool: PoolSpec, places: dict[tuple[str, int], Place], *, pipeline: bool) -> Iterator[Node]:
    """Every node of a small pool; of a large one neighbours with the same stages on the same devices together."""
    rows = [
        (host, tuple(places.get((host, device)) for device in range(len(pool.devices))))
        for host in pool.hosts
    ]
    if len(rows) <= FEW_NODES:
        for host, row in rows:
            yield Node(hosts=host, nodes=1, teams=tuple(_teams(pool, row, row, pipeline)))
        return
    alike = groupby(rows, key=lambda entry: tuple(place and (place.lane, place.stage) for place in entry[1]))
    for _, members in alike:
        same = list(members)
        teams = tuple(_teams(pool, same[0][1], same[-1][1], pipeline))
        hosts = same[0][0] if len(same) == 1 else f"{same[0][0]} .. {same[-1][0]}"
        yield Node(hosts=hosts, nodes=len(same), teams=teams)


def _teams(
    pool: PoolSpec, row: tuple[Place | None, ...], last: tuple[Place | None, ...], pipeline: bool
) -> Iterator[ReplicaMark]:
    """Devices side by side; ``last`` is the same on the last of several nodes."""
    numbered = enumerate(zip(row, last, pool.devices, strict=True))
    for (place, gpu), members in groupby(numbered, key=lambda entry: (entry[1][0], entry[1][2])):
        same = list(members)
        devices = f"{gpu}, {'device' if len(same) == 1 else 'devices'} {runs([at for at, _ in same])}"
        if place is None:
            yield ReplicaMark(lane=None, labels=("idle",) * len(same), what=f"{devices}: idle")
            continue
        end = same[0][1][1]
        assert end is not None
        replicas = str(place.replica) if end.replica == place.replica else f"{place.replica}-{end.replica}"
        where = f"stage {place.stage}, " if pipeline else ""
        few = "replica" if end.replica == place.replica else "replicas"
        label = f"s{place.stage}" if pipeline else f"r{place.replica}"
        if pipeline and end is place:
            label += f" r{place.replica}"
        yield ReplicaMark(
            lane=place.lane, labels=(label,) * len(same), what=f"{devices}: {where}{few} {replicas}"
        )


def _idle(
    pool: PoolSpec,
    places: dict[tuple[str, int], Place],
    cluster: ClusterSpec,
    model: ModelSpec,
    reasons: tuple[str, ...],
) -> Iterator[str]:
    """What the search said of the idle devices of a pool; else what its own numbers say."""
    precision = model.training.precision
    for gpu in dict.fromkeys(pool.devices):
        left = sum(
            (host, device) not in places
            for host in pool.hosts
            for device, name in enumerate(pool.devices)
            if name == gpu
        )
        if not left:
            continue
        head = f"idle: {left} {gpu} ({pool.name})"
        said = [reason for reason in reasons if reason.startswith(f"{head}:")]
        if said:
            yield said[0]
        elif precision not in cluster.gpus[gpu].tflops:
            yield f"{head}: no {precision}"
        else:
            yield f"{head}: the plan file does not say why"
