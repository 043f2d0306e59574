"""Any calibration that a file can hold."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from hypothesis import strategies as st

from planner.calibration.merge import kernel_key, layer_key, link_key, sections
from planner.calibration.values import (
    Calibration,
    Constant,
    CurveError,
    Framework,
    GpuFamily,
    Kernel,
    KernelPoint,
    LayerPoint,
    Link,
    LinkPoint,
    Operation,
    Provenance,
    Residual,
)

NAMES = st.sampled_from(["A100", "H100-80", "V100", "1e9", "no", "RTX-3090", "x.y", "x", "null"])
FAMILIES = NAMES | st.sampled_from(["A100.torch", "A100.deepspeed", "V100.torch"])
"""Some under one kernel set."""
SHARES = st.one_of(st.floats(0.001, 1), st.sampled_from([1.0, 0.75, 0.7]))
SHARE_NAMES = ("overlap", "link_utilisation", "rail", "matmul_factor", "sigma")
POSITIVE = st.one_of(st.floats(1e-9, 1e6), st.integers(1, 2**19).map(float))
BYTES = st.one_of(st.floats(1, 1e15), st.integers(1, 2**40).map(float))
SPREADS = st.none() | st.floats(0, 2)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20)


def parts(kind: Any) -> st.SearchStrategy[Any]:
    """A GpuFamily, a Framework or a Link; some constants at their assumed values."""
    made = {}
    for field in fields(kind):
        share = field.name.endswith("efficiency") or field.name in SHARE_NAMES
        own = BYTES if "bytes" in field.name else SHARES if share else POSITIVE
        made[field.name] = st.just(field.default) | own
    return st.builds(kind, **made)


LAYERS = st.builds(
    LayerPoint,
    gpu=NAMES,
    model=NAMES,
    tp=st.integers(1, 8),
    micro_batch=st.integers(1, 64),
    forward_seconds=POSITIVE,
    backward_seconds=POSITIVE,
    activation_bytes=st.none() | BYTES,
    parameters=st.none() | BYTES,
    spread=SPREADS,
    peak_bytes=st.none() | BYTES,
    reserved_bytes=st.none() | BYTES,
    without_collectives=st.booleans(),
)
KERNELS = st.builds(
    KernelPoint,
    gpu=NAMES,
    kernel=st.sampled_from(get_args(Kernel)),
    precision=st.sampled_from(["bf16", "fp32"]),
    shape=st.lists(st.integers(1, 2**31), min_size=1, max_size=4).map(
        lambda sizes: "x".join(map(str, sizes))
    ),
    flops=st.just(0.0) | BYTES,
    moved_bytes=st.just(0.0) | BYTES,
    seconds=POSITIVE,
    spread=SPREADS,
).filter(lambda point: point.kernel not in ("factors", "largest") or point.shape.count("x") == 1)
CURVE_ERRORS = st.builds(
    CurveError, curve=NAMES, points=st.integers(1, 99), mean=st.floats(0, 9), largest=st.floats(0, 9)
)


@st.composite
def link_curves(draw: st.DrawFn) -> list[LinkPoint]:
    """Two sizes or more of one operation."""
    link = draw(st.sampled_from(["ib", "roce-1", "node:A100", "eth+wan"]))
    operation: Any = draw(st.sampled_from(get_args(Operation)))
    members = draw(st.integers(2, 64))
    concurrent = 1 if link.startswith("node:") else draw(st.sampled_from([1, 1, 8]))
    return [
        LinkPoint(
            link=link,
            operation=operation,
            members=members,
            size_bytes=size,
            seconds=draw(POSITIVE),
            concurrent=concurrent,
            spread=draw(SPREADS),
        )
        for size in draw(st.lists(BYTES, min_size=2, max_size=3, unique=True))
    ]


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    """With a provenance for some of its constants."""
    curves = draw(st.lists(link_curves(), max_size=2))
    bare = Calibration(
        families=draw(st.dictionaries(FAMILIES, parts(GpuFamily), max_size=3)),
        frameworks=draw(st.dictionaries(NAMES, parts(Framework), max_size=2)),
        links=draw(
            st.dictionaries(st.sampled_from(["infiniband", "roce", "ethernet"]), parts(Link), max_size=3)
        ),
        layers=tuple(draw(st.lists(LAYERS, max_size=4, unique_by=layer_key))),
        link_points=tuple({link_key(point): point for curve in curves for point in curve}.values()),
        kernel_points=tuple(draw(st.lists(KERNELS, max_size=3, unique_by=kernel_key))),
        curve_errors=tuple(draw(st.lists(CURVE_ERRORS, max_size=3, unique_by=lambda item: item.curve))),
        residuals=tuple(draw(st.lists(RESIDUALS, max_size=3, unique_by=lambda item: item.family))),
        default_spread=draw(st.floats(0.01, 2)),
        device_spread=draw(st.none() | st.floats(0.01, 2)),
        family_spread=draw(st.none() | st.floats(0.01, 2)),
        sibling_spread=draw(st.none() | st.floats(0.01, 2)),
        notes=draw(WORDS),
        provenance=draw(st.dictionaries(NAMES, WORDS, max_size=3)),
    )
    return Calibration(**{**_as_dict(bare), "constants": tuple(_constants(draw, bare))})


RESIDUALS = st.builds(
    Residual,
    family=NAMES,
    framework=NAMES,
    rows=st.integers(1, 1000),
    spread=st.floats(0, 2),
    devices=st.lists(NAMES, max_size=2, unique=True).map(tuple),
)


def _as_dict(calibration: Calibration) -> dict[str, Any]:
    return {field.name: getattr(calibration, field.name) for field in fields(calibration)}


def _constants(draw: st.DrawFn, calibration: Calibration) -> list[Constant]:
    """Provenance of some constants, in the order of the file."""
    found = []
    for section, named, _ in sections(calibration):
        for name in _in_file_order(section, named):
            for field in fields(named[name]):
                value = getattr(named[name], field.name)
                # What has no end has no source either.
                if value < float("inf") and draw(st.booleans()):
                    provenance = draw(
                        st.sampled_from([word for word in get_args(Provenance) if word != "assumed"])
                    )
                    found.append(
                        Constant(
                            name=f"{section}.{name}.{field.name}",
                            value=value,
                            provenance=provenance,
                            spread=draw(SPREADS),
                        )
                    )
    return found


def _in_file_order(section: str, named: dict[str, Any]) -> list[str]:
    """Kinds of links have an order of their own."""
    order = ["infiniband", "roce", "ethernet"]
    return [kind for kind in order if kind in named] if section == "links" else list(named)
