"""Going on with a file."""

from __future__ import annotations

from planner.calibration.values import Calibration, LayerPoint
from planner.measure.resume import resumable, with_facts
from tests.worlds import model

MODEL = model(8)
LAYER = LayerPoint(
    gpu="A100", model=MODEL.name, tp=1, micro_batch=1, forward_seconds=1.0, backward_seconds=2.0
)
KEY = f"model.{MODEL.name}"
FACTS = {"device": "NVIDIA A100", "torch": "2.7.0", KEY: "hidden 64"}


def test_the_same_device_goes_on_in_silence() -> None:
    """All points are kept."""
    before = with_facts(Calibration(layers=(LAYER,)), FACTS)
    assert resumable(before, FACTS, "A100", MODEL) == (before, [])


def test_another_torch_is_said() -> None:
    """Its points are kept."""
    before = with_facts(Calibration(layers=(LAYER,)), FACTS | {"torch": "2.5.0", "device": "NVIDIA H100"})
    kept, warnings = resumable(before, FACTS, "A100", MODEL)
    assert kept == before
    assert [line.split(":")[0] for line in warnings] == [
        "was measured with device NVIDIA H100, now NVIDIA A100",
        "was measured with torch 2.5.0, now 2.7.0",
    ]


def test_layers_of_another_shape_are_measured_again() -> None:
    """Those of other models and devices are kept; the first is said."""
    others = (
        LayerPoint(gpu="A100", model="bert", tp=1, micro_batch=1, forward_seconds=1.0, backward_seconds=2.0),
        LayerPoint(
            gpu="H100", model=MODEL.name, tp=1, micro_batch=1, forward_seconds=1.0, backward_seconds=2.0
        ),
    )
    before = with_facts(Calibration(layers=(LAYER, *others)), FACTS | {KEY: "hidden 32"})
    kept, warnings = resumable(before, FACTS, "A100", MODEL)
    assert kept.layers == before.layers[1:]
    assert warnings == [
        f"holds layers of bert, which are kept beside those of {MODEL.name}",
        f"its layers of {MODEL.name} are of another shape (hidden 32): measured again",
    ]
