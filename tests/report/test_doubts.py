"""Calibrations that cannot be true."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibration.values import (
    ASSUMED_FAMILY,
    ASSUMED_FRAMEWORK,
    Calibration,
    LayerPoint,
    LinkPoint,
    Operation,
)
from planner.cli.inputs import Overrides, read_inputs
from planner.cluster.spec import ClusterSpec
from planner.cost.compute import layer_flops, model_flops
from planner.model.spec import ModelSpec
from planner.report.doubts import doubts

ROOT = Path(__file__).parents[2]


def inputs() -> tuple[ClusterSpec, ModelSpec]:
    """8 H100 and 8 A100 on InfiniBand, Llama 7B."""
    return read_inputs(
        ROOT / "cluster_specs" / "h100_a100.yaml", ROOT / "model_specs" / "llama_7b.yaml", Overrides()
    )


LAYER = LayerPoint(
    gpu="A100-SXM-80GB", model="Llama-7B", tp=2, micro_batch=4, forward_seconds=0.03, backward_seconds=0.06
)


def test_a_layer_has_its_part_of_the_model() -> None:
    """The rest is the head."""
    _, model = inputs()
    forward, whole = layer_flops(model)
    assert whole == 3 * forward
    assert 0.9 < model.layers * whole * model.training.global_batch / model_flops(model) < 1.0


@pytest.mark.parametrize(
    ("share_of_least", "said"),
    [(1.1, ""), (0.5, "would need 2.00 times the peak"), (0.001, "need 1000 times")],
)
@pytest.mark.parametrize("forward_alone", [False, True])
def test_layers_faster_than_the_peak_are_doubted(
    share_of_least: float, said: str, forward_alone: bool
) -> None:
    """Two devices share a layer of four sequences; a slower backward excuses no forward."""
    cluster, model = inputs()
    least = 4 * layer_flops(model)[0] / (2 * 312e12)
    seconds = share_of_least * least
    point = replace(
        LAYER, forward_seconds=seconds, backward_seconds=9 * least if forward_alone else 2 * seconds
    )
    lines = list(doubts(Calibration(layers=(point, LAYER)), cluster, model))
    assert len(lines) == (said != "")
    assert all(said in line for line in lines)


@pytest.mark.parametrize(
    ("gpu", "scale", "is_said"), [("A100-SXM-80GB", 1, 0), ("A100-SXM-80GB", 1000, 1), ("T4", 1000, 0)]
)
def test_layers_in_milliseconds_are_doubted(gpu: str, scale: float, is_said: bool) -> None:
    """In place of seconds; of a device that the cluster has."""
    cluster, model = inputs()
    point = replace(LAYER, gpu=gpu, forward_seconds=0.03 * scale, backward_seconds=0.06 * scale)
    lines = [line for line in doubts(Calibration(layers=(point,)), cluster, model) if "check seconds" in line]
    assert len(lines) == is_said
    assert all("times what they would at the peak of the device" in line for line in lines)


def test_small_layers_wait_for_their_launches() -> None:
    """A layer of 12 ms may do next to nothing."""
    cluster, model = inputs()
    small = model.model_copy(update={"hidden": 64, "heads": 1, "kv_heads": 1, "head_dim": 64, "ffn": 256})
    point = replace(LAYER, forward_seconds=0.004, backward_seconds=0.008)
    assert list(doubts(Calibration(layers=(point,)), cluster, small)) == []


def test_layers_of_other_models_are_not_compared() -> None:
    """Nor those of the same name and another size, of which another line says so."""
    cluster, model = inputs()
    fast = replace(LAYER, forward_seconds=1e-6, backward_seconds=1e-6)
    for calibration in (
        Calibration(layers=(replace(fast, model="bert"), LAYER)),
        Calibration(
            layers=(replace(fast, source="here"),),
            sources={"here": {"model.llama_7b": "hidden 64, heads 4/4, ffn 256, sequence 128, bf16, flash"}},
        ),
        Calibration(layers=(replace(fast, gpu="T4"), LAYER)),
    ):
        assert not any("times the peak" in line for line in doubts(calibration, cluster, model))


@pytest.mark.parametrize(
    ("link", "wire"),
    [("node:A100-SXM-80GB", 300e9), ("ib", 8 * 400e9 / 8), ("eth", 100e9 / 8), ("ib+eth", 12.5e9)],
)
@pytest.mark.parametrize(
    ("operation", "sent"),
    [
        ("all-reduce", 1.75),
        ("all-gather", 0.875),
        ("reduce-scatter", 0.875),
        ("send", 1.0),
        ("broadcast", 1.0),
    ],
)
def test_links_faster_than_their_wire_are_doubted(
    link: str, wire: float, operation: Operation, sent: float
) -> None:
    """Beyond what switches that add up can do; of links that the cluster does not have nothing is known."""
    cluster, model = inputs()
    size = 2.0**28
    for times, doubted in ((1.9, False), (2.1, True)):
        point = LinkPoint(
            link=link, operation=operation, members=8, size_bytes=size, seconds=sent * size / wire / times
        )
        said = list(doubts(Calibration(link_points=(point,)), cluster, model))
        assert any("times the bandwidth that h100-a100 gives the link" in line for line in said) == doubted
        there = replace(point, link="elsewhere", seconds=1e-9)
        assert not any(
            "times the" in line for line in doubts(Calibration(link_points=(there,)), cluster, model)
        )


def test_links_in_milliseconds_are_doubted() -> None:
    """In place of microseconds; small messages wait for their hops, and are not."""
    cluster, model = inputs()
    for size, seconds, said in ((2.0**28, 1.6e-3, 0), (2.0**28, 1.6, 1), (2.0**10, 0.02, 0)):
        point = LinkPoint(
            link="node:A100-SXM-80GB", operation="all-reduce", members=8, size_bytes=size, seconds=seconds
        )
        lines = list(doubts(Calibration(link_points=(point,)), cluster, model))
        assert len(lines) == said
        assert all("takes 1020 times what it would at the bandwidth" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"activation_bytes": 9.4e8, "parameters": 1.01e8}, ""),
        ({"activation_bytes": 9.4e8 / 2**20}, "times the activation_bytes that formulas give them"),
        ({"parameters": 101.0}, "times the parameters that formulas give them"),
    ],
)
def test_bytes_in_another_unit_are_doubted(change: dict[str, float], said: str) -> None:
    """Mebibytes or millions in place of bytes and elements, of two devices that share a layer of four sequences."""
    cluster, model = inputs()
    point = replace(LAYER, **change)  # type: ignore[arg-type]
    lines = list(doubts(Calibration(layers=(point,)), cluster, model))
    assert len(lines) == (said != "")
    assert all(said in line for line in lines)
    elsewhere = replace(point, gpu="T4")
    assert not any(
        "formulas give" in line for line in doubts(Calibration(layers=(elsewhere,)), cluster, model)
    )


@pytest.mark.parametrize(
    ("family", "kernels", "said"),
    [
        ("A100", "megatron", []),
        ("T4.torch", "torch-2023", []),
        ("A1000", "megatron", ["its constants of A1000 are of no family of devices"]),
        ("A100.tensorflow", "megatorn", ["megatorn are of no kernel set", "tensorflow are of no kernel set"]),
    ],
)
def test_constants_that_no_plan_reads_are_doubted(family: str, kernels: str, said: list[str]) -> None:
    """Families of devices that the cluster lacks are not."""
    cluster, model = inputs()
    own = Calibration(
        families={family: replace(ASSUMED_FAMILY, matmul_efficiency=0.5)},
        frameworks={kernels: replace(ASSUMED_FRAMEWORK, overlap=0.5)},
    )
    lines = list(doubts(own, cluster, model))
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))
