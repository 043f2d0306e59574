"""The constants themselves, and what a GPU without any of its own should expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from planner import catalog
from planner.calibration.values import (
    ASSUMED_FAMILY,
    ASSUMED_LINK,
    ASSUMED_STACK,
    Calibration,
    Constant,
    Family,
    Link,
    Stack,
)
from planner.measured.fit import BOUNDS, families_of
from planner.measured.predictions import predict
from planner.report.numbers import significant
from planner.runtimes.registry import REFERENCE
from planner.units import gib_from_bytes
from tools.accuracy.errors import mean_and_bias
from tools.accuracy.material import Material, markdown, paragraph, share

Owner = Family | Stack | Link

BY_DEFINITION = {f"stacks.{REFERENCE.name}.host_factor", f"stacks.{REFERENCE.name}.wire"}
"""Constants that are 1 so that others can be told."""


def constants_section(found: Material) -> str:
    """Every constant with its spread."""
    calibration = found.calibration
    fitted = [item for item in calibration.constants if item.provenance == "fitted"]
    return "\n".join(
        (
            paragraph(
                f"{len(fitted)} constants are fitted: at most {_most(fitted, 'families')} of a GPU family and at most",
                f"{_most(fitted, 'stacks')} of a stack; none belongs to a model, a run or a paper. ± is the relative",
                "standard error; a constant at its bound was stopped by what hardware can do. The",
                "others are assumed: the runs say less about them than the assumption. `planner/calibration/values.py`",
                "says what each means.",
            ),
            "### GPU families\n",
            _table(calibration, "families", calibration.families, ASSUMED_FAMILY),
            paragraph(
                f"The other families of the catalogue ({', '.join(_strangers(calibration))}) and unknown GPUs have",
                "the assumed constants.",
            ),
            "### Stacks\n",
            _table(calibration, "stacks", calibration.stacks, ASSUMED_STACK),
            "### Networks between nodes\n",
            _table(calibration, "links", calibration.links, ASSUMED_LINK),
        )
    )


def newcomer_section(found: Material) -> str:
    """Each family's held-out runs with and without constants of its own."""
    rows = list(_newcomers(found))
    return "\n".join(
        (
            paragraph(
                "Each family's held-out runs once more, with the assumed constants in place of its own; stacks and",
                "networks keep theirs.",
            ),
            markdown(("family ", "runs", "mean", "bias", "mean when assumed", "bias when assumed"), rows),
            paragraph(
                "A GPU that nobody has measured is likely to be predicted too fast. Run `hetplan calibrate` on it",
                "before trusting seconds.",
            )
            if _too_fast(rows)
            else paragraph(
                "Run `hetplan calibrate` on a GPU that nobody has measured before trusting seconds."
            ),
        )
    )


def _newcomers(found: Material) -> Iterator[Sequence[str]]:
    for name in sorted(found.calibration.families):
        own = [
            entry for entry in found.held_out if name in families_of(entry.run) and entry.error is not None
        ]
        if not own:
            continue
        others = {key: value for key, value in found.calibration.families.items() if key != name}
        without = predict([entry.run for entry in own], replace(found.calibration, families=others))
        yield name, str(len(own)), *mean_and_bias(own), *mean_and_bias(without)


def _too_fast(rows: Sequence[Sequence[str]]) -> bool:
    """True when most families are predicted too fast without constants of their own."""
    return 2 * sum(row[-1].startswith(("-", ">")) for row in rows) > len(rows)


def _table(calibration: Calibration, section: str, owners: Mapping[str, Owner], assumed: Owner) -> str:
    known = {item.name: item for item in calibration.constants}
    rows = [
        (
            field.name,
            *(
                _cell(f"{section}.{name}.{field.name}", owner, known)
                for name, owner in sorted(owners.items())
            ),
            _value(field.name, getattr(assumed, field.name)),
        )
        for field in fields(assumed)
    ]
    return markdown(("constant ", *sorted(owners), "assumed"), rows)


def _cell(dotted: str, owner: Owner, known: dict[str, Constant]) -> str:
    """Value and spread, or that it is assumed."""
    section, _, name = dotted.split(".")
    value, item = getattr(owner, name), known.get(dotted)
    shown = _value(name, value)
    if dotted in BY_DEFINITION:
        return f"{shown}, by definition"
    if item is None or item.provenance == "assumed":
        return "assumed"
    spread = f" ±{share(item.spread)}" if item.spread is not None else ""
    ends = BOUNDS.get(f"{section}.{name}", ())
    return f"{shown}{spread}" + (", at its bound" if any(abs(value / end - 1) < 1e-3 for end in ends) else "")


def _value(name: str, value: float) -> str:
    if name.endswith("_seconds"):
        return f"{significant(value * 1e6, 2)} µs"
    return (
        f"{significant(gib_from_bytes(value), 2)} GiB" if name.endswith("_bytes") else significant(value, 2)
    )


def _most(fitted: Sequence[Constant], section: str) -> int:
    """Fitted constants of the owner in a section that has most."""
    owners = [item.name.split(".")[1] for item in fitted if item.name.startswith(f"{section}.")]
    return max((owners.count(name) for name in owners), default=0)


def _strangers(calibration: Calibration) -> list[str]:
    families = {catalog.gpu(name).family for name in catalog.gpu_names()}
    return sorted(families - set(calibration.families))
