"""JSON Schemas of the files against the shipped examples and typical mistakes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from planner.cli.schema import schema_of
from planner.cluster.file import load_cluster
from planner.model.file import load_model
from planner.plan.file import PlanFile, to_text
from tests.cli.running import Command
from tests.cli.test_sweep import GRID
from tests.files.writing import CLUSTER, CLUSTERS, MODEL, MODELS, problems
from tests.report import examples
from tests.search.test_renting import OFFERS
from tests.share.test_search import JOBS

POOL = CLUSTER.index("  - name: b")


@cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    """Of the files of a kind."""
    return jsonschema.Draft202012Validator(schema_of(kind))


def valid(kind: str, text: str) -> bool:
    """True when the schema accepts the YAML."""
    return bool(validator(kind).is_valid(yaml.safe_load(text)))


@pytest.mark.parametrize("kind", ["cluster", "model"])
def test_schemas_are_of_their_draft(kind: str) -> None:
    """2020-12."""
    schema = schema_of(kind)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_clusters_are_valid(path: Path) -> None:
    """All of them."""
    validator("cluster").validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_models_are_valid(path: Path) -> None:
    """All of them."""
    validator("model").validate(yaml.safe_load(path.read_text()))


CLUSTER_MISTAKES = [
    ("name: two\n", ""),
    ("pools:", "poolz:"),
    ("nodes: 2", "nodes: 0"),
    ("nodes: 2", "nodes: 2.5"),
    ("nodes: 2", "nodes: many"),
    ("nodes: 2\n", "nodes:\n"),
    ("nodes: 2\n", "hosts: []\n"),
    ("nodes: 2\n", "\n"),
    ("nodes: 2\n", "nodes: 2\n    hosts: [x]\n"),
    ("gpu: A100-SXM-80GB\n", "\n"),
    ("gpu: A100-SXM-80GB\n", "gpu: A100-SXM-80GB\n    devices: [T4]\n"),
    ("gpu: A100-SXM-80GB", "gpu: {memory_gib: 80}"),
    ("gpu: A100-SXM-80GB", "gpu: {memory_gib: 80, memory_bandwidth_gBps: 1, tflops: {}}"),
    ("gpu: A100-SXM-80GB", "gpu: {memory_gib: 80, memory_bandwidth_gBps: 1, tflops: {bf17: 1}}"),
    ("gpu: A100-SXM-80GB", "gpu: [T4]"),
    ("bandwidth_gbps: 200", "bandwidth_gbps: 25G"),
    ("bandwidth_gbps: 200", "bandwidth_gbps: -1"),
    ("bandwidth_gbps: 200", "bandwidth: 200"),
    ("intra_node: nvlink3", "intra_node: {bandwidth_gbps: 300}"),
    ("kind: infiniband", "kind: infinband"),
    ("kind: infiniband", "kind: infiniband, oversubscription: 0.5"),
    ("name: a\n", "name: a b\n"),
    ("fabrics:", "reserve_gib: -1\nfabrics:"),
    ("fabrics:", "links: [{between: [ib], bandwidth_gbps: 1, latency_us: 1}]\nfabrics:"),
]
MODEL_MISTAKES = [
    ("name: small\n", ""),
    ("layers: 8", "layers: 0"),
    ("layers: 8", "layers: eight"),
    ("heads: 8", "heads: 8\nheadz: 8"),
    ("heads: 8", "heads: 8\nkind: both"),
    ("heads: 8", "heads: 8\nhuggingface: config.json"),
    ("global_batch: 64", "precision: bf16"),
    ("global_batch: 64", "global_batch: 64\n  global_batch_tokens: 128"),
    ("global_batch: 64", "global_batch: 64\n  precision: int4"),
    ("sequence_length: 128\n", "\n"),
    ("training:\n", "train:\n"),
]


@pytest.mark.parametrize("change", CLUSTER_MISTAKES, ids=lambda change: change[1].strip())
def test_schema_and_loader_refuse_the_same_clusters(tmp_path: Path, change: tuple[str, str]) -> None:
    """What a schema can say, it says as the loader."""
    assert change[0] in CLUSTER
    text = CLUSTER.replace(*change, 1)
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    assert problems(load_cluster, path)
    assert not valid("cluster", text)


@pytest.mark.parametrize("change", MODEL_MISTAKES, ids=lambda change: change[1].strip())
def test_schema_and_loader_refuse_the_same_models(tmp_path: Path, change: tuple[str, str]) -> None:
    """What a schema can say, it says as the loader."""
    assert change[0] in MODEL
    text = MODEL.replace(*change, 1)
    path = tmp_path / "model.yaml"
    path.write_text(text)
    assert problems(load_model, path)
    assert not valid("model", text)


def test_the_good_files_are_valid() -> None:
    """Those that the mistakes start from."""
    assert valid("cluster", CLUSTER)
    assert valid("model", MODEL)


def test_a_configuration_with_training_is_valid() -> None:
    """All training keys are optional there."""
    assert valid("model", "huggingface: config.json\ntraining: {global_batch: 8}\n")


def described(schema: Any) -> list[dict[str, Any]]:
    """Every property of a schema at any depth."""
    if isinstance(schema, list):
        return [found for item in schema for found in described(item)]
    if not isinstance(schema, dict):
        return []
    own = list(schema.get("properties", {}).values())
    return own + [found for item in schema.values() for found in described(item)]


@pytest.mark.parametrize("kind", ["cluster", "model"])
def test_every_key_is_described(kind: str) -> None:
    """Editors show it."""
    missing = [found for found in described(schema_of(kind)) if "description" not in found]
    assert not missing


def test_editors_may_complete_names_of_the_catalogue() -> None:
    """Without refusing others."""
    choice = schema_of("cluster")["$defs"]["PoolFile"]["properties"]["gpu"]["oneOf"][0]
    assert "H100-SXM-80GB" in choice["examples"]


def test_files_that_hetplan_writes_and_reads_are_valid(tmp_path: Path) -> None:
    """A plan file, and the examples of the other formats in docs."""
    plan = PlanFile(plan=examples.plan(), cluster=examples.cluster(), model=examples.model(), summary=None)
    jsonschema.validate(yaml.safe_load(to_text(plan)), schema_of("plan"))
    jsonschema.validate(yaml.safe_load(OFFERS), schema_of("offers"))
    jsonschema.validate(yaml.safe_load(GRID), schema_of("grid"))
    jsonschema.validate(yaml.safe_load(JOBS), schema_of("jobs"))
    jsonschema.validate({"format": "hetplan-calibration/1"}, schema_of("calibration"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("offers", OFFERS.replace("    price_per_hour: 5\n", "")),
        ("grid", GRID.replace("clusters: [cluster.yaml]\n", "")),
        ("jobs", JOBS.replace("model: wide.yaml, ", "")),
        ("plan", "format: hetplan-plan/1\n"),
        ("calibration", "format: hetplan-calibration/2\n"),
    ],
)
def test_what_is_no_file_of_a_kind(name: str, text: str) -> None:
    """Something that is needed lacks, or is another version."""
    assert not valid(name, text)


def test_commands_have_schemas_too(hetplan: Command) -> None:
    """Of what they print with --json; a name that is none is told with the nearest."""
    found = json.loads(hetplan("schema", "compare --log").out)
    assert found["title"] == "hetplan compare --log --json"
    assert {"format", "command", "step_seconds"} <= set(found["required"])
    assert json.loads(hetplan("schema", "plan").out)["title"] == "hetplan plan file"
    done = hetplan("schema", "serach")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("or a command, got 'serach'\n  hint: did you mean search?\n")
