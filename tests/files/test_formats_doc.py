"""docs/formats.md says what the loaders do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from planner import catalog
from planner.calibration.file import Entry, LinksEntries, WrittenCalibration, load_calibration
from planner.calibration.values import Framework, GpuFamily, LayerPoint, Link, LinkPoint, Residual
from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.file import ClusterFile, PoolFile, load_cluster
from planner.cluster.offers import load_offers
from planner.cluster.spec import FabricLinkSpec, FabricSpec, NicSpec
from planner.files.document import read_document
from planner.files.fields import form
from planner.model.file import ImportedModelFile, ModelFile, TrainingFile, load_model
from planner.model.huggingface.config import supported
from planner.plan.short import ShortPlan, ShortReplicas, ShortStage
from tools.ranges_table import unlimited, written

TEXT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def block(start: str) -> str:
    """The example that begins like this."""
    (found,) = (text for text in BLOCKS if text.startswith(start))
    return str(found)


def test_the_cluster_example_loads(tmp_path: Path) -> None:
    """As printed."""
    path = tmp_path / "cluster.yaml"
    path.write_text(block("name: two-generations"))
    assert [len(pool.hosts) for pool in load_cluster(path).pools] == [2, 4, 1]


def test_the_model_example_loads(tmp_path: Path) -> None:
    """As printed."""
    path = tmp_path / "model.yaml"
    path.write_text(block("name: llama-3-8b"))
    assert load_model(path).parameters == 8_030_261_248


def test_the_calibration_example_loads(tmp_path: Path) -> None:
    """As printed."""
    path = tmp_path / "calibration.yaml"
    path.write_text(block("format: hetplan-calibration/1"))
    found = load_calibration(path)
    assert found.families["A100"].matmul_efficiency == 0.81
    assert (len(found.layers), len(found.link_points), found.residuals[0].rows) == (2, 2, 41)


@pytest.mark.parametrize("start", ["target: megatron\ntp: 8", "zero: 3"])
def test_the_short_examples_are_short_plans(tmp_path: Path, start: str) -> None:
    """As printed."""
    path = tmp_path / "plan.yaml"
    path.write_text(block(start))
    assert read_document(path).to(ShortPlan)


def test_every_example_is_yaml() -> None:
    """With a mapping at the top, or a list of short plans."""
    assert all(isinstance(yaml.safe_load(text), dict | list) for text in BLOCKS)


@pytest.mark.parametrize(
    "model",
    [
        ClusterFile,
        PoolFile,
        GpuSpec,
        FabricSpec,
        FabricLinkSpec,
        NicSpec,
        IntraNodeSpec,
        ModelFile,
        ImportedModelFile,
        TrainingFile,
        ShortPlan,
        ShortStage,
        ShortReplicas,
        WrittenCalibration,
        Entry,
        GpuFamily,
        Framework,
        Link,
        LinksEntries,
        Residual,
        LayerPoint,
        LinkPoint,
    ],
)
def test_every_key_is_explained(model: type) -> None:
    """In code marks, or in an example for the Hugging Face key."""
    keys = form(model).json_schema()["properties"]
    missing = [key for key in keys if f"`{key}`" not in TEXT and f"\n{key}:" not in TEXT]
    assert not missing


def test_every_number_has_a_range() -> None:
    """Of every file, and the page lists them as they are: `make docs` writes them anew."""
    assert unlimited() == []
    assert written(TEXT) == TEXT


def test_the_families_are_listed() -> None:
    """In order, whatever the lines."""
    assert f"{', '.join(supported())}." in " ".join(TEXT.split())


@pytest.mark.parametrize("name", ["pcie3", "pcie4", "pcie5", "pcie4-switch"])
def test_named_links_exist(name: str) -> None:
    """In the catalogue."""
    assert f"`{name}`" in TEXT
    assert catalog.link(name)


def test_the_offers_example_loads(tmp_path: Path) -> None:
    """As printed."""
    path = tmp_path / "offers.yaml"
    path.write_text(block("name: market"))
    assert [offer.available for offer in load_offers(path).offers] == [16, 16]
