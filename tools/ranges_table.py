"""The ranges of every number of every file, as docs/formats.md lists them.

``python -m tools.ranges_table`` writes them there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.calibration.file import WrittenCalibration
from planner.cluster.file import ClusterFile
from planner.files.fields import figure, form
from planner.measured.table import MeasuredRow
from planner.model.file import ModelFile
from planner.plan.file import WrittenPlan
from planner.plan.short import ShortPlan
from planner.ranges import (
    BATCH,
    COUNT,
    DEVICES,
    EXCHANGE_STEPS,
    FRACTION,
    NODE_DEVICES,
    PREDICTED,
    SEQUENCE,
    STAGES,
    TIME_LIMIT,
    ZERO,
    Range,
)
from planner.share.jobs import JobsFile

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
BEGIN, END = "<!-- ranges: written by make docs -->\n", "<!-- end of ranges -->\n"
FILES: dict[str, type] = {
    "cluster": ClusterFile,
    "model": ModelFile,
    "short plan": ShortPlan,
    "plan": WrittenPlan,
    "calibration and its tables": WrittenCalibration,
    "table of measured runs": MeasuredRow,
    "jobs": JobsFile,
}
OPTIONS: dict[str, Range] = {
    **{
        "--tp": NODE_DEVICES,
        "--pp": STAGES,
        "--cp": DEVICES,
        "--ep": DEVICES,
        "--etp": NODE_DEVICES,
        "--micro-batch": BATCH,
        "--zero": ZERO,
        "--allow-local-sgd": Range(2, EXCHANGE_STEPS.most),
    },
    **{"--global-batch": BATCH, "--sequence-length": SEQUENCE, "--use-at-most": Range(0, DEVICES.most)},
    **{"--max-cost-per-token": PREDICTED, "--min-tokens-per-second": PREDICTED},
    **{"--gap": FRACTION, "--time-limit": TIME_LIMIT, "--top": COUNT},
}
"""Options of ``hetplan search`` that take numbers; --time-limit takes inf too."""
Schema = dict[str, Any]


def table() -> str:
    """One line for the keys of a file that have the same range."""
    lines = ["| file | keys | from | to |\n", "|---|---|---|---|\n"]
    before: set[tuple[str, float, float]] = set()
    for file, model in FILES.items():
        groups: dict[tuple[float, float], dict[str, None]] = {}
        found = set(_ranges(form(model).json_schema()))
        # A plan file holds its cluster and its model, whose keys are listed.
        fresh = found - before if model is WrittenPlan else found
        before |= found if model in (ClusterFile, ModelFile) else set()
        for key, least, most in sorted(fresh):
            groups.setdefault((least, most), {})[f"`{key}`"] = None
        for (least, most), keys in groups.items():
            lines.append(f"| {file} | {', '.join(keys)} | {figure(least)} | {figure(most)} |\n")
    for (least, most), options in _together(OPTIONS).items():
        lines.append(f"| options | {', '.join(options)} | {figure(least)} | {figure(most)} |\n")
    return "".join(lines)


def _together(options: dict[str, Range]) -> dict[Range, list[str]]:
    found: dict[Range, list[str]] = {}
    for option, allowed in options.items():
        found.setdefault(allowed, []).append(f"`{option}`")
    return found


def unlimited() -> list[str]:
    """Numbers of the files that have no range."""
    found = []
    for file, model in FILES.items():
        schema = form(model).json_schema()
        found += [
            f"{file}: {key}"
            for key, number in _numbers(schema)
            if "minimum" not in number or "maximum" not in number
        ]
    return found


def written(page: str) -> str:
    """The page with today's table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def _ranges(schema: Schema) -> Iterator[tuple[str, float, float]]:
    for key, number in _numbers(schema):
        yield key, number["minimum"], number["maximum"]


def _numbers(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """(key, schema) of every number of the file, that of a list's items by the key of the list."""
    for part in (schema, *schema.get("$defs", {}).values()):
        for key, value in part.get("properties", {}).items():
            yield from ((key, number) for number in _leaves(value, schema))


def _leaves(value: Schema, schema: Schema) -> Iterator[Schema]:
    """The numbers that a value may be, itself or inside it; those of records come with their own keys."""
    if value.get("type") in ("number", "integer"):
        yield value
    inner = [value.get("items"), value.get("additionalProperties"), *value.get("prefixItems", ())]
    for part in (*inner, *value.get("anyOf", ()), *value.get("oneOf", ())):
        if isinstance(part, dict) and "$ref" not in part:
            yield from _leaves(part, schema)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
