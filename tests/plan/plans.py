"""What is made of every case of ``tests/cases.py`` before it is priced: ``plans.csv`` and ``refusals.csv``.

``python -m tests.plan.plans`` writes both anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.dims import DIMENSIONS
from planner.errors import HetplanError
from planner.files.document import Document
from planner.files.nodes import parse
from planner.model.spec import ModelSpec
from planner.plan.checks import faults, listed, target_faults
from planner.plan.placement import agents, by_pipeline, place, ranks
from planner.plan.short import short_plan
from planner.plan.values import Plan
from planner.targets import NAMES, target
from tests.cases import CASES, Case, gpt
from tests.tables import Row, rows, written

PLANS, REFUSALS = (Path(__file__).with_name(f"{name}.csv") for name in ("plans", "refusals"))


def plan_rows(name: str, case: Case) -> Iterator[Row]:
    """The decisions of a plan, where its ranks are, and the plans next to it."""
    plan = case.whole
    for dimension in DIMENSIONS:
        yield from rows(name, "decision", dict(dimension.traits(plan)))
        yield from rows(name, "words", {type(dimension).__name__: dimension.words(plan)})
    yield from rows(
        name, "plan", {"global_batch": plan.global_batch, "zero": plan.zero_text, "devices": plan.devices}
    )
    for number, slots in enumerate(place(plan, case.on)):
        yield from rows(
            name, f"stage {number}", {f"slot {index}": str(tuple(slot)) for index, slot in enumerate(slots)}
        )
    own = ranks(plan, case.on)
    for order, chosen in (("replica by replica", own), ("stage by stage", by_pipeline(own))):
        starts = [f"{one.first_rank}: {one.host} {_listed(one.devices)}" for one in agents(chosen)]
        yield from rows(name, "launchers", {order: "; ".join(starts)})
    device_types = Topology(case.on).device_types
    for dimension in DIMENSIONS:
        for number, change in enumerate(dimension.neighbours(plan, target(plan.target), device_types)):
            place_ = f"{type(dimension).__name__} neighbour {number}"
            yield from rows(name, place_, {change.decision: f"{change.what} = {_short(change.plan)}"})
            broken = faults(change.plan, case.on, case.like or case.model)
            yield from rows(name, place_, {"refused": listed(broken)})


def _listed(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def _short(plan: Plan) -> str:
    """A plan in a line."""
    words = [text for dimension in DIMENSIONS if (text := dimension.words(plan))]
    stages = [
        f"[{stage.first_layer} {stage.end_layer}] {stage.recompute} "
        + " + ".join(
            f"{group.count} x {group.tp} {group.pool} {group.local_batch}/{group.accumulation_steps}"
            for group in stage.replicas
        )
        for stage in plan.stages
    ]
    return "; ".join((*words, *stages))


CHANGES: tuple[dict[str, Any], ...] = (
    *({"target": name} for name in NAMES),
    *({"zero": stage} for stage in range(4)),
    *({"tp": degree} for degree in (2, 3, 4, 8, 16)),
    {"tp": {"rows": 2, "columns": 2}},
    {"tp": {"rows": 2, "columns": 1}},
    {"tp": {"rows": 2, "columns": 2, "depth": 2}},
    *({"pp": depth, "dp": 1} for depth in (2, 3, 5)),
    *({"dp": width} for width in (1, 2, 3, 7, 100)),
    *({"micro_batch": size} for size in (2, 3, 64)),
    {"interleave": 2},
    {"interleave": 3, "pp": 2, "dp": 1},
    *({"schedule": name, "interleave": 2} for name in ("zb-v", "dualpipe-v")),
    *({"schedule": name, "pp": 2, "dp": 1} for name in ("zero-bubble", "zb-v")),
    *({"zero": stage, "shard_size": size} for stage, size in ((0, 2), (1, 2), (3, 3), (2, 4))),
    {"zero": 3, "zero_plus": {"secondary": 2}},
    {"zero": 3, "zero_plus": {"int8_weights": True}},
    *({"ep": ways} for ways in (2, 3, 8)),
    {"ep": 2, "etp": 2},
    *({"cp": ways, "dp": 2} for ways in (2, 3)),
    *({"cp": ways, "dp": 1, "cp_kind": "ulysses"} for ways in (2, 16)),
    *({"recompute": kind} for kind in ("none", "selective", "full")),
    {"sequence_parallel": True},
    {"sequence_parallel": True, "tp": 2},
    {"zero": 1, "offload": {"optimizer": "cpu"}},
    {"zero": 3, "offload": {"optimizer": "cpu", "parameters": "cpu"}},
    {"zero": 3, "offload": {"optimizer": "nvme"}},
    {"zero": 3, "offload": {"optimizer": "cpu", "ratio": 0.5}},
    {"zero": 3, "offload": {"optimizer": "cpu", "super_offload": True}},
    {"recompute": "full", "offload": {"activations": "cpu"}},
    {"sync": {"every": 10}},
    {"sync": {"format": "int8"}},
    {"sync": {"rank": 4}},
    {"backup": 1},
    {"fewer_steps": 1},
    {"stage_nodes": 2},
    {"stage_nodes": 2, "pp": 2, "dp": 2},
    {"layers": [1, 3]},
)
"""What is changed in a plan."""

CHANGED = (
    *(
        "dp over nodes",
        "zero 3 torch",
        "zero 2 deepspeed",
        "hsdp",
        "zero++",
        "tp with sequences split",
        "tp over nodes",
    ),
    *(
        "grid",
        "pipeline by stage",
        "pipeline with tp",
        "interleaved",
        "zb-v",
        "own networks",
        "nodes of two types",
    ),
    *(
        "experts divided with tp",
        "ring",
        "ulysses",
        "a share on the host",
        "superchips",
        "powersgd",
        "backup",
    ),
    *("fewer steps", "unequal shards", "unequal steps"),
)
"""Plans of which each is changed in each way."""

TRIED = (
    *(
        "one device",
        "tp",
        "tp with sequences split",
        "tp of torch",
        "grid",
        "pipeline with tp",
        "interleaved",
    ),
    *(
        "zero bubble",
        "zero 3 torch",
        "hsdp",
        "zero++",
        "backup",
        "fewer steps",
        "unequal shards",
        "experts divided",
    ),
    *("ring", "ulysses", "unfused attention, selective", "optimizer on the host", "parameters on the host"),
    *("a share on the host", "superchips", "checkpoints on the host", "diloco", "powersgd"),
)
"""Plans that are tried with each model on each target."""


def refusal_rows(name: str) -> Iterator[Row]:
    """Changes of a plan that are refused, and why; those that are not have no row."""
    case = CASES[name]
    for change in CHANGES:
        asked = {**yaml.safe_load("{" + case.plan + "}"), **change}
        yield from rows(
            name, "changed", {_key(change): "; ".join(refusal(asked, case.on, case.like or case.model))}
        )


def model_rows(name: str) -> Iterator[Row]:
    """Plans on each target that the model of a case is refused in, and why, where a GPT is not for the same reason.

    Each reason is said with the first plan that has it.
    """
    for runtime in NAMES:
        said: set[str] = set()
        for tried in TRIED:
            found = _broken(CASES[name].model, tried, runtime)
            new = [one for one in found if one not in said and one not in _usual(tried, runtime)]
            yield from rows(name, runtime, {tried: "; ".join(new)})
            said |= set(found)


def _broken(model: ModelSpec, tried: str, runtime: str) -> list[str]:
    plan = replace(CASES[tried].whole, target=runtime)
    fitting = model.model_copy(update={"layers": plan.layers}).trained_with(global_batch=plan.global_batch)
    return listed(target_faults(plan, fitting)).splitlines()


@cache
def _usual(tried: str, runtime: str) -> list[str]:
    return _broken(gpt(), tried, runtime)


def refusal(asked: dict[str, Any], on: ClusterSpec, model: ModelSpec) -> list[str]:
    """Why a short plan is refused."""
    try:
        short_plan(Document("", parse(json.dumps(asked))), on, model)
    except HetplanError as error:
        return str(error).replace(":1: ", "").splitlines()
    return []


def _key(change: dict[str, Any]) -> str:
    return json.dumps(change)[1:-1].replace('"', "")


def named_models() -> list[str]:
    """A case of each model but those that are the same in all that a rule looks at."""
    found: dict[ModelSpec, str] = {}
    for name, case in CASES.items():
        plain = case.model.model_copy(update={"layers": 4}).trained_with(global_batch=16)
        found.setdefault(plain, name)
    return list(found.values())


def refusals() -> Iterator[Row]:
    """Of all plans that are changed, and of all models."""
    for name in CHANGED:
        yield from refusal_rows(name)
    for name in named_models():
        yield from model_rows(name)


def plans() -> Iterator[Row]:
    """Of all cases."""
    for name, case in CASES.items():
        yield from plan_rows(name, case)


def main() -> None:
    """Write the tables of today."""
    PLANS.write_text(written(plans()), encoding="utf-8")
    REFUSALS.write_text(written(refusals()), encoding="utf-8")


if __name__ == "__main__":
    main()
