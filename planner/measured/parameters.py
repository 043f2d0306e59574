"""Which constants of the cost model step times can tell, within what bounds, and which runs tell them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from planner.calibration.values import Calibration, Family, Link, Stack
from planner.measured.values import Run
from planner.runtimes.registry import REFERENCE

BOUNDS: dict[str, tuple[float, float]] = {
    "families.matmul_efficiency": (0.2, 0.98),
    "families.attention_efficiency": (0.1, 0.9),
    "families.memory_efficiency": (0.2, 0.92),
    "families.kernel_seconds": (1e-6, 3e-5),
    "families.launch_seconds": (1e-6, 3e-4),
    "families.link_efficiency": (0.2, 0.82),
    "stacks.host_factor": (0.1, 10.0),
    "stacks.overlap": (0.02, 0.98),
    "stacks.wire": (0.02, 1.0),
    "links.efficiency": (0.15, 0.95),
    "links.rail": (0.8, 1.0),
}
"""Smallest and largest value of each kind of constant; shares end where hardware does (NCCL, STREAM)."""

PULLS = {"families.launch_seconds": 20.0, "stacks.host_factor": 20.0, "families.kernel_seconds": 10.0}
"""Relative width of the pull towards the value before the fit; 5 for the others."""

BARE = Calibration(stacks={REFERENCE.name: Stack(host_factor=1.0)})
"""What the shipped constants were fitted from: nothing but the reference.

Without one, families, links and stacks could not be told apart.
"""

STARTS = {"families.launch_seconds": 1e-4, "links.efficiency": 0.4}
"""Where the search for a constant begins when not at its assumed value: where its slope shows."""

GUESSED = (
    "micro-batch",
    "interleaving",
    "global batch",
    "authors warn",
    "second iteration only",
    "formula is not stated",
    "full recomputation assumed",
    "read off a figure",
    "and attention kernel not stated",
)
"""Words of doubts that concern the plan or the measurement itself; such runs are predicted, never fitted to."""

_TYPES: dict[str, type[Family] | type[Stack] | type[Link]] = {
    "families": Family,
    "stacks": Stack,
    "links": Link,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant that is fitted."""

    section: str
    """families, stacks or links."""
    name: str
    """Of the family, stack or kind of link."""
    constant: str

    @property
    def dotted(self) -> str:
        """As in a calibration file."""
        return f"{self.section}.{self.name}.{self.constant}"

    @property
    def kind(self) -> str:
        """Key of ``BOUNDS``."""
        return f"{self.section}.{self.constant}"

    def value(self, base: Calibration) -> float:
        """Its value before the fit: what a calibration says, else what is assumed."""
        owner = {"families": base.family, "stacks": base.stack, "links": base.link}[self.section]
        return float(getattr(owner(self.name), self.constant))

    def start(self, base: Calibration) -> float:
        """Where the search for it begins."""
        known = {*base.families, *base.stacks, *base.links}
        return self.value(base) if self.name in known else STARTS.get(self.kind, self.value(base))

    @property
    def pull(self) -> float:
        """Relative width of the pull towards the value before the fit."""
        return PULLS.get(self.kind, 5.0)

    def concerns(self, run: Run) -> bool:
        """True when the prediction of a run depends on it."""
        if self.section == "families":
            return self.name in families_of(run)
        if self.section == "stacks":
            return self.name == run.plan.target
        return self.name in fabrics_of(run)


def certain(run: Run) -> bool:
    """True for a run whose step time and plan are stated in full."""
    return run.step_seconds is not None and not any(word in run.doubt for word in GUESSED)


def families_of(run: Run) -> frozenset[str]:
    """GPU families of the devices that a run uses."""
    used = {group.gpu for stage in run.plan.stages for group in stage.replicas}
    return frozenset(run.cluster.gpus[name].family for name in used)


def fabrics_of(run: Run) -> frozenset[str]:
    """Kinds of fabrics of a run's cluster."""
    return frozenset(fabric.kind for fabric in run.cluster.fabrics.values())


def parameters_of(runs: Sequence[Run]) -> Iterator[Parameter]:
    """Constants of every family, stack and fabric that a run touches."""
    owners = (
        ("families", {name for run in runs for name in families_of(run) if name}),
        ("stacks", {run.plan.target for run in runs}),
        ("links", {name for run in runs for name in fabrics_of(run)}),
    )
    for section, names in owners:
        for name in sorted(names):
            for field in fields(_TYPES[section]):
                parameter = Parameter(section, name, field.name)
                fixed = name == REFERENCE.name and field.name in ("host_factor", "wire")
                if parameter.kind in BOUNDS and not fixed:
                    yield parameter


def with_values(base: Calibration, values: dict[Parameter, float]) -> Calibration:
    """A calibration in which these constants have these values."""
    from dataclasses import replace

    found: dict[str, dict[str, dict[str, float]]] = {section: {} for section in _TYPES}
    for item, value in values.items():
        found[item.section].setdefault(item.name, {})[item.constant] = value
    families, stacks, links = (found[section].items() for section in ("families", "stacks", "links"))
    return replace(
        base,
        families={**base.families, **{name: replace(base.family(name), **new) for name, new in families}},
        stacks={**base.stacks, **{name: replace(base.stack(name), **new) for name, new in stacks}},
        links={**base.links, **{name: replace(base.link(name), **new) for name, new in links}},
    )
