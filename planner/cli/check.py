"""``hetplan check``: are the files right, and what was understood?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import RenderableType

from planner.cli.inputs import read_calibration, read_given
from planner.cli.options import AsJson, ClusterFile, argument
from planner.cli.output import show, show_document, typed
from planner.cluster.topology import Topology
from planner.model.spec import ModelSpec
from planner.report.document import check_document
from planner.report.inputs import (
    family_warnings,
    inventory_section,
    links_section,
    memory_warnings,
    node_warnings,
    precision_warnings,
    rack_warnings,
    understood,
    unit_warnings,
    unreachable,
)
from planner.report.layout import warnings_section


def check(
    cluster: ClusterFile,
    model: Annotated[
        Path | None, argument("[MODEL]", "Model file (YAML, or a Hugging Face config.json).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Validate input files and print how they were understood.

    Prints device totals, number formats and the links between pools. No search is run.
    """
    cluster_spec, model_spec = read_given(cluster, model)
    topology = Topology(cluster_spec)
    warnings = _warnings(topology, model_spec)
    if as_json:
        show_document(check_document(topology, model_spec, warnings))
        return
    then = typed("hetplan", "search", cluster, model or "MODEL", "-o", "plan.yaml")
    show(*_report(topology, model_spec, warnings), then=then)


def _warnings(topology: Topology, model: ModelSpec | None) -> list[str]:
    lines = precision_warnings(topology.device_types, model) if model is not None else []
    memory = memory_warnings(topology.device_types)
    cluster = topology.cluster
    families = family_warnings(cluster, read_calibration(None).families)
    odd = (*unit_warnings(cluster), *families, *node_warnings(cluster), *rack_warnings(cluster))
    return [*lines, *memory, *unreachable(topology), *odd]


def _report(topology: Topology, model: ModelSpec | None, warnings: list[str]) -> list[RenderableType]:
    return [
        understood(topology.cluster, model),
        inventory_section(topology.device_types, read_calibration(None).memory_spread),
        links_section(topology),
        warnings_section(warnings),
    ]
