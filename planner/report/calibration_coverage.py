"""What a calibration has measured of a cluster and a model, what is assumed, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Literal

from rich.console import Group

from planner.calibration.merge import link_name_key, merged, name_key
from planner.calibration.values import Calibration, Constant
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Kind, Topology
from planner.cost.communication import carried_rates, inside_rate
from planner.model.spec import ModelSpec
from planner.report.layout import section
from planner.report.numbers import percent, significant
from planner.report.table import table, words
from planner.runtimes.registry import TARGETS

State = Literal["measured", "fitted", "datasheet", "assumed", "missing"]
SHARES = (
    ("matmul_efficiency", "matmul"),
    ("attention_efficiency", "attention"),
    ("memory_efficiency", "memory"),
    ("kernel_seconds", "kernel floor"),
    ("launch_seconds", "launch"),
)
"""Constants of a family, and what a reader calls them."""
PLANNED = ("all-reduce", "all-gather", "reduce-scatter", "send")
"""Operations that plans are priced with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """One thing that plans are priced with."""

    part: str
    """A device, a framework, or a link."""
    what: str
    """A constant, layers of a model by tp, or operations."""
    state: State
    """measured, fitted, datasheet, assumed, or missing where the constants stand in."""
    detail: str
    """The number and where it is from, or what stands in for it."""


def coverage(
    own: Calibration, base: Calibration, cluster: ClusterSpec, model: ModelSpec | None = None
) -> tuple[Covered, ...]:
    """Every kind of device, framework and link of a cluster; ``base`` is what ``own`` wins over."""
    both, topology = merged(base, own), Topology(cluster)
    names = frozenset(constant.name for constant in own.constants)
    kinds = {kind.gpu: kind for kind in topology.kinds}
    found = [item for kind in kinds.values() for item in _device(kind, both, names, model)]
    found += [_stack(name, both, names) for name in TARGETS]
    return (*found, *_inside(topology, both, names), *_between(topology, both, names))


def coverage_section(rows: tuple[Covered, ...], cluster: ClusterSpec, model: ModelSpec | None) -> Group:
    """The table; each part is named once."""
    cells, before = [], ""
    for row in rows:
        cells.append((row.part if row.part != before else "", row.what, row.state, row.detail))
        before = row.part
    columns = [words("part"), words("what", least=8), words("state", least=9), words("from", least=20)]
    whose = cluster.name if model is None else f"{cluster.name} and {model.name}"
    return section(
        f"What {whose} need of it" if model else f"What {whose} needs of it", table(columns, cells)
    )


def _device(kind: Kind, both: Calibration, own: frozenset[str], model: ModelSpec | None) -> Iterator[Covered]:
    rates = ", ".join(f"{name} {significant(rate / 1e12)}" for name, rate in sorted(kind.peak_flops.items()))
    told = f"TFLOP/s {rates}; {significant(kind.memory_bytes_per_second / 1e9)} GB/s"
    yield Covered(
        part=kind.gpu, what="peaks", state="datasheet", detail=f"{told}, by cluster file or catalogue"
    )
    for key, what in SHARES:
        value = getattr(both.family(kind.family), key)
        yield _constant(kind.gpu, what, f"families.{kind.family}.{key}", value, both, own)
    if model is not None:
        yield from _layers(kind, both, model)


def _layers(kind: Kind, both: Calibration, model: ModelSpec) -> Iterator[Covered]:
    """Curves of the model's layers by degree."""
    sizes: dict[int, list[int]] = {}
    for point in both.layers:
        if (name_key(point.gpu), name_key(point.model)) == (name_key(kind.gpu), name_key(model.name)):
            sizes.setdefault(point.tp, []).append(point.micro_batch)
    for tp, own in sorted(sizes.items()):
        detail = f"micro-batch {', '.join(str(size) for size in sorted(own))}"
        yield Covered(part=kind.gpu, what=f"layers, tp {tp}", state="measured", detail=detail)
    if not sizes:
        detail = f"none of {model.name}: the shares above price its layers"
        yield Covered(part=kind.gpu, what="layers", state="missing", detail=detail)


def _stack(name: str, both: Calibration, own: frozenset[str]) -> Covered:
    value = both.stack(name).runtime_bytes
    return _constant(name, "runtime bytes", f"stacks.{name}.runtime_bytes", value, both, own)


def _constant(
    part: str, what: str, name: str, value: float, both: Calibration, own: frozenset[str]
) -> Covered:
    known = next((constant for constant in both.constants if constant.name == name), None)
    if known is None:
        return Covered(part=part, what=what, state="assumed", detail=f"{value:.3g}")
    spread = "" if known.spread is None else f" ±{percent(known.spread)}"
    return Covered(
        part=part,
        what=what,
        state=known.provenance,
        detail=f"{value:.3g}{spread}, {_origin(known, both, own)}",
    )


def _origin(known: Constant, both: Calibration, own: frozenset[str]) -> str:
    """Device and date where they are known, else which file."""
    if known.name not in own:
        return "shipped"
    facts = both.sources.get(known.source, {})
    return ", ".join(facts[key] for key in ("device", "date") if key in facts) or "this file"


def _inside(topology: Topology, both: Calibration, own: frozenset[str]) -> Iterator[Covered]:
    """The network inside each kind of node."""
    for kind in {kind.gpu: kind for kind in topology.kinds if kind.per_node > 1}.values():
        link = f"node:{kind.gpu}"
        rate = f"{significant(inside_rate(kind, both) / 1e9)} GB/s of the cluster file's "
        rate += significant(kind.intra_bytes_per_second / 1e9)
        name = f"families.{kind.family}.link_efficiency"
        share = _constant(link, "", name, both.family(kind.family).link_efficiency, both, own)
        yield from _curves(link, both, f"{rate} GB/s: share {share.detail}", share.state)


def _between(topology: Topology, both: Calibration, own: frozenset[str]) -> Iterator[Covered]:
    """Every fabric, or fabrics joined by gateways, that two nodes talk over."""
    told: set[str] = set()
    for pair in combinations_with_replacement([pool.name for pool in topology.cluster.pools], 2):
        path = topology.path(*pair)
        if path.fabric in ("", "node") or link_name_key(path.fabric) in told:
            continue
        told.add(link_name_key(path.fabric))
        rate = f"{significant(min(carried_rates(path, both)) / 1e9)} GB/s of the cluster file's "
        rate += significant(path.bytes_per_second / 1e9)
        name = f"links.{path.kind}.efficiency"
        share = _constant(path.fabric, "", name, both.link(path.kind).efficiency, both, own)
        yield from _curves(path.fabric, both, f"{rate} GB/s: {path.kind} share {share.detail}", share.state)


def _curves(link: str, both: Calibration, formula: str, state: State) -> Iterator[Covered]:
    """Measured operations with their numbers of members; one line for what the formula prices."""
    members: dict[str, set[int]] = {}
    for point in both.link_points:
        if link_name_key(point.link) == link_name_key(link):
            members.setdefault(point.operation, set()).add(point.members)
    for operation, counts in members.items():
        detail = f"{', '.join(str(size) for size in sorted(counts))} devices"
        yield Covered(part=link, what=operation, state="measured", detail=detail)
    rest = [operation for operation in PLANNED if operation not in members]
    if rest:
        what = "all operations" if len(rest) == len(PLANNED) else ", ".join(rest)
        yield Covered(part=link, what=what, state=state, detail=formula)
