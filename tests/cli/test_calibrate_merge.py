"""``hetplan calibrate merge``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.values import Calibration, Constant, GpuFamily, LayerPoint, LinkPoint
from tests.cli.running import Command

FACTS = {
    "device": "NVIDIA A100",
    "torch": "2.7.0",
    "date": "2026-03-02",
    "model.gpt": "hidden 64, sequence 32",
}


def layer(micro_batch: int, seconds: float, gpu: str = "A100-SXM-40GB") -> LayerPoint:
    """A measured layer with a spread of 1 %."""
    return LayerPoint(
        gpu=gpu,
        model="gpt",
        tp=1,
        micro_batch=micro_batch,
        forward_seconds=seconds / 3,
        backward_seconds=2 * seconds / 3,
        spread=0.01,
    )


ONE = Calibration(
    families={"A100": GpuFamily(matmul_efficiency=0.8)},
    constants=(Constant(name="families.A100.matmul_efficiency", value=0.8, provenance="measured"),),
    layers=(layer(1, 0.1), layer(2, 0.2)),
    provenance=FACTS,
)
OTHER = Calibration(
    layers=(layer(1, 0.5, "V100-SXM-16GB"),),
    link_points=tuple(
        LinkPoint(link="ib", operation="send", members=2, size_bytes=size, seconds=size)
        for size in (1.0, 2.0)
    ),
    provenance={**FACTS, "device": "Tesla V100", "date": "2026-03-03"},
)
MERGE = ("calibrate", "merge", "a.yaml", "b.yaml", "-o", "c.yaml")


def put(**files: Calibration) -> None:
    """Write them as a.yaml, b.yaml."""
    for name, found in files.items():
        save_calibration(found, Path(f"{name}.yaml"))


def test_each_point_keeps_its_source(hetplan: Command, files: Path) -> None:
    """One file of each kind of node becomes one that search takes; merging again changes nothing."""
    put(a=ONE, b=OTHER)
    done = hetplan(*MERGE)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Wrote 5 measured points to c.yaml\n")
    assert f"\n  - {len(ONE.constants)} constant" in done.out
    found = load_calibration(files / "c.yaml")
    told = {point.gpu: found.sources[point.source]["device"] for point in found.layers}
    assert told == {"A100-SXM-40GB": "NVIDIA A100", "V100-SXM-16GB": "Tesla V100"}
    assert found.sources[found.constants[0].source]["date"] == "2026-03-02"
    assert found.families == ONE.families
    assert found.provenance["command"].startswith("hetplan")
    again = json.loads(hetplan("calibrate", "merge", "c.yaml", "a.yaml", "-o", "d.yaml", "--json").out)
    assert (again["command"], again["layer_points"], again["link_points"]) == ("calibrate merge", 3, 2)
    assert {**load_calibration(files / "d.yaml").sources} == found.sources


@pytest.mark.parametrize("order", [("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")])
def test_the_newer_wins_in_any_order(hetplan: Command, files: Path, order: tuple[str, str]) -> None:
    """Far apart with a warning that names both."""
    newer = replace(
        ONE,
        families={"A100": GpuFamily(matmul_efficiency=0.4)},
        constants=(Constant(name="families.A100.matmul_efficiency", value=0.4, provenance="measured"),),
        layers=(layer(1, 0.3),),
        provenance={**FACTS, "date": "2026-04-01"},
    )
    put(a=ONE, b=newer)
    done = hetplan("calibrate", "merge", *order, "-o", "c.yaml")
    values = ["0.1 s (2026-03-02)", "0.3 s (2026-04-01)"]
    first, last = values if order[0] == "a.yaml" else values[::-1]
    assert done.code == 0
    assert done.err == (
        f"warning: {order[0]} and {order[1]} are far apart: layer of gpt on A100-SXM-40GB, tp 1, micro-batch 1: "
        f"{first} and {last}, and 1 more; the newer is kept\n"
    )
    found = load_calibration(files / "c.yaml")
    assert {point.micro_batch: point.forward_seconds for point in found.layers} == {
        1: pytest.approx(0.1),
        2: pytest.approx(0.2 / 3),
    }
    assert found.families["A100"].matmul_efficiency == 0.4


def test_near_values_are_no_contradiction(hetplan: Command, files: Path) -> None:
    """The last file wins where nobody knows the newer."""
    put(a=ONE, b=replace(ONE, layers=(layer(1, 0.12),)))
    done = hetplan(*MERGE)
    assert (done.code, done.err) == (0, "")
    assert load_calibration(files / "c.yaml").layers[0].forward_seconds == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            replace(ONE, layers=(layer(1, 0.3),)),
            "layer of gpt on A100-SXM-40GB, tp 1, micro-batch 1: 0.1 s (2026-03-02) and 0.3 s (2026-03-02)",
        ),
        (
            replace(ONE, layers=(layer(1, 0.3),), provenance={"device": "NVIDIA A100"}),
            "layer of gpt on A100-SXM-40GB, tp 1, micro-batch 1: 0.1 s (2026-03-02) and 0.3 s (no date)",
        ),
        (
            replace(ONE, provenance={**FACTS, "date": "2026-05-01", "model.gpt": "hidden 64, sequence 64"}),
            "layers of gpt: hidden 64, sequence 32 and hidden 64, sequence 64",
        ),
        (
            replace(ONE, layers=(replace(layer(4, 0.4), parameters=200.0),)),
            "parameters of a layer of gpt, tp 1: 100 and 200",
        ),
    ],
)
def test_files_that_contradict_each_other(
    hetplan: Command, files: Path, other: Calibration, message: str
) -> None:
    """One error that names both, the point and the values; nothing is written."""
    put(a=replace(ONE, layers=tuple(replace(point, parameters=100.0) for point in ONE.layers)), b=other)
    done = hetplan(*MERGE)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"error: a.yaml and b.yaml contradict each other: {message}\n"
        "  hint: measure again with --force where the wrong one is from, or leave its file out\n"
    )
    assert not (files / "c.yaml").exists()


def test_what_cannot_be_merged(hetplan: Command, files: Path) -> None:
    """One file, broken ones, an output that is there."""
    put(a=ONE, b=OTHER, c=ONE)
    assert hetplan("calibrate", "merge", "a.yaml", "-o", "d.yaml").code == 2
    assert "c.yaml: exists already" in hetplan(*MERGE).err
    Path("b.yaml").write_text("format: hetplan-calibration/1\nlayers:\n- {gpu: A100, mod")
    done = hetplan(*MERGE, "--force")
    assert done.code == 2
    assert done.err.startswith("error: b.yaml:4: not YAML")
    assert load_calibration(Path("c.yaml")) == load_calibration(Path("a.yaml"))


def test_a_point_that_has_nothing_to_do_with_the_others(hetplan: Command, files: Path) -> None:
    """The error names its curve; nothing is written."""
    put(a=ONE, b=replace(OTHER, layers=(layer(4, 0.4), layer(8, 1e-9), layer(16, 1.6))))
    result = hetplan(*MERGE)
    assert result.code == 2
    assert "layers of gpt on A100-SXM-40GB, tp 1: one of 5 points is " in result.err
    assert not Path("c.yaml").exists()


def test_a_source_that_the_file_lacks(hetplan: Command, files: Path) -> None:
    """Is named by its line."""
    put(a=ONE, b=OTHER)
    text = Path("b.yaml").read_text()
    Path("b.yaml").write_text(text.replace("micro_batch: 1", "micro_batch: 1, source: lost"))
    done = hetplan(*MERGE)
    assert done.code == 2
    assert "layers[0].source: expected a key of sources, got lost" in done.err
