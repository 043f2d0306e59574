"""Which of hetplan's files a file is: one that stands in the place of another is told so, not key by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from planner.errors import Problem, SpecError
from planner.files.document import Document, read_document

Kind = Literal["cluster", "model", "plan", "calibration"]


def read_as(path: Path, kind: Kind) -> Document:
    """The file, parsed; raises SpecError when it cannot be read, or is plainly a file of another kind."""
    document = read_document(path)
    found = kind_of(document.data)
    if found not in (None, kind):
        what = f"is a {found} file, expected a {kind} file"
        hint = "files go in this order: CLUSTER MODEL PLAN; a calibration goes with --calibration"
        raise SpecError((Problem(file=document.file, line=None, key="", what=what, hint=hint),))
    return document


def kind_of(data: dict[str, Any]) -> Kind | None:
    """What the keys of a file tell; None when they tell nothing."""
    for kind in ("plan", "calibration"):
        if str(data.get("format", "")).startswith(f"hetplan-{kind}/"):
            return kind
    if "pools" in data:
        return "cluster"
    if "stages" in data or "replicas" in data:
        return "plan"
    if is_config(data) or "huggingface" in data or {"layers", "hidden"} <= data.keys():
        return "model"
    return None


def is_config(data: dict[str, Any]) -> bool:
    """True when the file looks like a ``config.json`` of Hugging Face rather than a model file of ours."""
    return "model_type" in data or "architectures" in data
