"""The report of a measured device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group

from planner.calibration.values import Calibration, Constant, CurveError, KernelPoint, LayerPoint
from planner.measure.fits import Peaks
from planner.measure.samples import Limit
from planner.model.spec import ModelSpec
from planner.report.measured import Told, declaration, device_sections, warnings
from tests.report.drawing import drawn
from tests.worlds import model

CALIBRATION = Calibration(
    constants=(
        Constant(name="families.Abacus.kernel_seconds", value=4e-6, provenance="measured"),
        Constant(name="families.Abacus.matmul_efficiency", value=0.8, provenance="measured", spread=0.02),
        Constant(name="families.A100.matmul_efficiency", value=0.7, provenance="measured"),
    ),
    layers=(
        LayerPoint(
            gpu="Abacus",
            model="gpt",
            tp=1,
            micro_batch=2,
            forward_seconds=0.01,
            backward_seconds=0.02,
            spread=0.3,
        ),
    ),
    kernel_points=(
        KernelPoint(
            gpu="Abacus", kernel="copy", precision="fp32", shape="8", flops=0.0, moved_bytes=64.0, seconds=1.0
        ),
    ),
    curve_errors=(CurveError(curve="layers of gpt on Abacus, tp 1", points=4, mean=0.02, largest=0.05),),
)


def told(**changes: Any) -> Told:
    """A device outside the catalogue with one layer, ended by Ctrl-C."""
    fields: dict[str, Any] = {
        "calibration": CALIBRATION,
        "path": Path("c.yaml"),
        "gpu": "Abacus",
        "family": "Abacus",
        "peaks": Peaks(flops={"fp32": 2e11}, memory_bytes_per_second=4e10, multiprocessors=0),
        "memory_bytes": 2.0**34,
        "limits": {1: Limit(2, 3)},
        "load": (),
        "ended": "Ctrl-C",
        "model": named("gpt"),
    }
    return Told(**{**fields, **changes})


def named(name: str) -> ModelSpec:
    """A model of that name."""
    return model(8, dropout=False).model_copy(update={"name": name})


def test_the_report_shows_constants_layers_and_errors() -> None:
    """Of this device only."""
    text = drawn(Group(*device_sections(told())))
    assert "families.Abacus.matmul_efficiency" in text
    assert "families.A100" not in text
    assert "tp 1: largest micro-batch 2; 3 runs out of memory" in text
    assert "layers of gpt on Abacus, tp 1" in text
    assert "Layers of" not in drawn(Group(*device_sections(told(model=named("bert")))))


def test_a_device_without_a_datasheet_is_declared() -> None:
    """In lines that a cluster file takes as they are."""
    import yaml

    from planner.catalog import GpuSpec

    found = yaml.safe_load("\n".join(declaration(told())))["gpus"]["Abacus"]
    assert found.pop("source") == "hetplan calibrate device"
    spec = GpuSpec(name="Abacus", **found)
    assert (spec.tflops, spec.memory_bandwidth_gBps, spec.memory_gib) == ({"fp32": 0.2}, 40.0, 16.0)
    assert declaration(told(peaks=None)) == []


def test_doubts_are_said() -> None:
    """What ended it, a wide spread, a loaded machine, shares of a layer."""
    text = "\n".join(warnings(told(load=("load 9.0 on 2 processors",))))
    assert "stopped by Ctrl-C" in text
    assert "layer at tp 1, micro-batch 2 ±30 %" in text
    assert "load 9.0 on 2 processors" in text
    assert list(warnings(told(ended="", model=None, calibration=Calibration()))) == []
