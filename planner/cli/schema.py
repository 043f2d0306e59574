"""``hetplan schema``: JSON Schemas of the files that users write, and of what ``--json`` prints."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter

from planner.calibration.file import WrittenCalibration
from planner.catalog import gpu_names, link_names
from planner.cli.catalogue import ExamplesDocument
from planner.cli.options import argument
from planner.cli.process import write
from planner.cli.sweep import SweepDocument
from planner.cluster.file import ClusterFile
from planner.cluster.offers import OffersFile
from planner.errors import UsageError
from planner.field_metadata import schema as document
from planner.files.messages import nearest
from planner.model.file import ImportedModelFile, ModelFile
from planner.plan.file import WrittenPlan
from planner.report.calibrated import (
    CalibrateDocument,
    FittedDocument,
    LossFitDocument,
    TrialDocument,
    VariationDocument,
)
from planner.report.calibration import CalibrationDocument
from planner.report.catalogue import GpusDocument, LinksDocument
from planner.report.document import (
    CheckDocument,
    CompareDocument,
    EmitDocument,
    ExplainDocument,
    PlanDocument,
    PredictDocument,
    SearchDocument,
)
from planner.report.loss import LossDocument, SizesDocument
from planner.report.measured import DeviceDocument, NetworkDocument, PoplarDocument
from planner.report.observed import ObservedDocument
from planner.report.page import ReportDocument
from planner.report.pareto import FrontDocument
from planner.report.rent import RentDocument
from planner.report.replan import ReplanDocument
from planner.report.share import ShareDocument
from planner.report.trace import TraceDocument
from planner.report.validation import ValidationDocument
from planner.report.what_if import WhatIfDocument
from planner.search.sweep import Sweep
from planner.share.jobs import JobsFile
from planner.targets import in_words

DOCUMENTS: dict[str, type] = {
    "search": SearchDocument,
    "search --pareto": FrontDocument,
    "search --objective time-to-loss": LossDocument,
    "search --objective time-to-loss --pareto": SizesDocument,
    "predict": PredictDocument,
    "predict --plans": CompareDocument,
    "show": PlanDocument,
    "explain": ExplainDocument,
    "compare": CompareDocument,
    "check": CheckDocument,
    "emit": EmitDocument,
    "validate": ValidationDocument,
    "show calibration": CalibrationDocument,
    "calibrate import": CalibrateDocument,
    "calibrate merge": CalibrateDocument,
    "calibrate fit": FittedDocument,
    "calibrate loss": LossFitDocument,
    "calibrate device": DeviceDocument,
    "calibrate device --as-poplar": PoplarDocument,
    "calibrate network": NetworkDocument,
    "calibrate run": TrialDocument,
    "calibrate sigma": VariationDocument,
    "compare --log": ObservedDocument,
    "report": ReportDocument,
    "trace": TraceDocument,
    "what-if": WhatIfDocument,
    "replan": ReplanDocument,
    "rent": RentDocument,
    "share": ShareDocument,
    "sweep": SweepDocument,
    "gpus": GpusDocument,
    "links": LinksDocument,
    "examples": ExamplesDocument,
}
"""The class of each command's document, by the command."""

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def cluster_schema() -> Schema:
    """Schema of a cluster file."""
    schema = _of(ClusterFile, "hetplan cluster file")
    pool = schema["$defs"]["PoolFile"]
    _suggest(pool["properties"]["gpu"], gpu_names())
    _suggest(pool["properties"]["devices"]["items"], gpu_names())
    _suggest(pool["properties"]["intra_node"], link_names())
    pool["allOf"] = [
        {"oneOf": [{"required": ["gpu"]}, {"required": ["devices"]}]},
        {"oneOf": [{"required": ["nodes"]}, {"required": ["hosts"]}]},
    ]
    return schema


def model_schema() -> Schema:
    """Schema of a model file: by shape, or by a Hugging Face configuration."""
    schema = _of(ModelFile | ImportedModelFile, "hetplan model file")
    one_batch: list[Schema] = [{"required": ["global_batch"]}, {"required": ["global_batch_tokens"]}]
    schema["$defs"]["TrainingFile"]["oneOf"] = one_batch
    schema["$defs"]["ImportedTrainingFile"]["not"] = {"required": ["global_batch", "global_batch_tokens"]}
    return schema


def _suggest(choice: Schema, names: tuple[str, ...]) -> None:
    """Catalogue names for an editor's completion; other names stay allowed."""
    for option in choice.get("oneOf") or choice.get("anyOf") or []:
        if option.get("type") == "string":
            option["examples"] = list(names)


def _of(files: Any, title: str) -> Schema:
    schema = TypeAdapter[BaseModel](files).json_schema()
    _clean(schema)
    return {"$schema": DRAFT, **schema, "title": title}


def _clean(schema: Any) -> None:
    """Drop the titles and nulls that pydantic adds: an absent key is left out, not written as null."""
    if isinstance(schema, list):
        for item in schema:
            _clean(item)
    if not isinstance(schema, dict):
        return
    for value in schema.values():
        _clean(value)
    if isinstance(schema.get("title"), str):
        del schema["title"]
    if schema.get("default", 0) is None:
        del schema["default"]
    if isinstance(schema.get("description"), str):
        schema["description"] = schema["description"].replace("``", "").strip()
    _without_null(schema)


def _without_null(schema: Schema) -> None:
    options = schema.get("anyOf")
    if not isinstance(options, list):
        return
    kept = [option for option in options if option.get("type") != "null"]
    if len(kept) == 1 and len(kept) < len(options):
        del schema["anyOf"]
        schema.update({**kept[0], **schema})
    else:
        schema["anyOf"] = kept


def schema_of(name: str) -> Schema:
    """Schema of a file by the name of its kind."""
    plain: dict[str, Any] = {
        "plan": WrittenPlan,
        "calibration": WrittenCalibration,
        "offers": OffersFile,
        "grid": Sweep,
        "jobs": JobsFile,
    }
    if name in plain:
        schema = _of(plain[name], f"hetplan {name} file")
        if name == "plan":
            schema["$defs"]["Stage"]["required"] = ["layers", "replicas"]
            # Written short: ``8 x V100``.
            schema["$defs"]["PoolSpec"]["properties"]["devices"]["items"] = {"type": "string"}
        return schema
    return cluster_schema() if name == "cluster" else model_schema()


FILES = ("cluster", "model", "plan", "calibration", "offers", "grid", "jobs")
"""Files with a schema."""


def document_schema(command: str) -> Schema:
    """Schema of what a command prints with ``--json``; later versions may add keys."""
    return {"$schema": DRAFT, **document(DOCUMENTS[command]), "title": f"hetplan {command} --json"}


def schema(
    name: Annotated[
        str,
        argument(
            "FILE",
            "Which schema: cluster, model, plan, calibration, offers, grid or jobs; or a command, such as search or "
            "'compare --log', for the document that its --json prints.",
        ),
    ],
) -> None:
    """Print the JSON Schema of a file or of a --json document.

    Editors can use it to validate YAML as you type.
    """
    if name not in (*FILES, *DOCUMENTS):
        hint = nearest(name, [*FILES, *DOCUMENTS]) or f"or a command with --json: {', '.join(DOCUMENTS)}"
        raise UsageError(f"schema: expected {in_words(FILES, 'or')}, or a command, got {name!r}", hint=hint)
    found = schema_of(name) if name in FILES else document_schema(name)
    write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
