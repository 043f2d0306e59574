"""Degrees of parallelism that no plan of a model has, on whatever devices: mistakes, not proofs that nothing fits."""

from __future__ import annotations

from collections.abc import Iterator

from planner.dims.context import context_faults
from planner.dims.expert import whole_because
from planner.model.spec import ModelSpec
from planner.plan.values import Context
from planner.search.space.choices import targets_of
from planner.search.values import Limits


def degree_faults(limits: Limits, model: ModelSpec) -> Iterator[tuple[str, str]]:
    """Limits of whose degrees the model allows none, each with what was expected."""
    yield from _of_experts(limits, model)
    degrees, rows = limits.cp or (1,), targets_of(limits)
    if 1 in degrees:
        return
    ways = [(row, Context(ways=cp, kind=kind)) for cp in degrees for row in rows for kind in row.context]
    faults = [list(context_faults(context, row, model, 1)) for row, context in ways]
    if all(faults):
        reasons = [fault for found in faults for fault in found[:1]]
        names = " and ".join(row.name for row in rows)
        reasons = reasons or [f"{names} keep{'s' if len(rows) == 1 else ''} sequences whole, expected 1"]
        yield "cp", "; ".join(dict.fromkeys(reasons))


def _of_experts(limits: Limits, model: ModelSpec) -> Iterator[tuple[str, str]]:
    asked = [(name, degrees) for name, degrees in (("ep", limits.ep), ("etp", limits.etp)) if degrees]
    if model.experts is None:
        for name, degrees in asked:
            if 1 not in degrees:
                said = ", ".join(map(str, degrees))
                yield name, f"the model {model.name} has no experts, expected 1, got {said}"
        return
    divided = {
        "ep": (model.experts.number, "experts of a layer"),
        "etp": (model.experts.ffn, "channels of an expert"),
    }
    for name, degrees in asked:
        if name == "etp" and 1 not in degrees:
            whole = [whole_because(row, model) for row in targets_of(limits)]
            if all(whole):
                yield name, f"{'; '.join(dict.fromkeys(whole))}, expected 1"
                continue
        number, what = divided[name]
        if not any(number % degree == 0 for degree in degrees):
            yield name, f"expected a divisor of the {number} {what}, got {', '.join(map(str, degrees))}"
