"""What must hold of every answer: each check returns the faults that it found, in words."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path

from planner.cluster.equal_pools import joined
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import estimate
from planner.plan.equal_pools import on_joined_pools
from planner.plan.file import PlanFile, read, write
from planner.plan.placement import place, widths
from planner.plan.values import Plan
from planner.report.plan_table import in_short
from tests.fuzz.asked import Answer, Json, Said, ask, plan_of, tell
from tests.fuzz.rewritten import BETTER, SAME, faster_wires, one_of, renamed
from tests.fuzz.rivals import Field, fastest, outside, straddles
from tests.fuzz.worlds import World

SLACK = 1 + 1e-6
"""Steps and bounds are compared with the tolerance of the solver (docs/search.md)."""
DRAWS, STEPS = 400, 1200
"""Plans drawn, and steps downhill, to beat a proof."""


@dataclass(frozen=True, slots=True)
class Case:
    """One world with both answers to it: the search's and the command's."""

    rng: random.Random
    folder: Path
    seconds: float
    """Time limit of each search."""
    answer: Answer
    said: Said

    @property
    def plan_path(self) -> Path:
        """Where the command writes its plan."""
        return self.folder / "plan.yaml"


def opened(world: World, folder: Path, seconds: float, rng: random.Random) -> Case:
    """The world searched both ways."""
    answer = ask(world, folder, seconds)
    words = (
        "search",
        *answer.files,
        "-o",
        folder / "plan.yaml",
        "--time-limit",
        seconds,
        "--json",
    )
    return Case(rng, folder, seconds, answer, tell(*words, *answer.constants, *world.options))


# ---------------------------------------------------------------- the command and the search agree


EXIT_CODES = {"optimal": 0, "feasible": 0, "infeasible": 3, "unknown": 4}


def command_agrees(case: Case) -> Iterator[str]:
    """The same answer from both, the exit code that goes with it, and a plan file where there is a plan."""
    said, document, result = case.said, case.said.document, case.answer.result
    if not document:
        yield f"search exits with {said.code} and prints no document: {said.errors[:300]}"
        return
    status, step = document["status"], document["step_seconds"]
    if said.code != EXIT_CODES[status]:
        yield f"search says {status} and exits with {said.code}"
    if case.plan_path.exists() != (step is not None):
        yield f"search says {status}, a plan file was {'not ' * (step is not None)}written"
    if said.errors.startswith("error"):
        yield f"search complains: {said.errors[:300]}"
    if "infeasible" in (status, result.status) and (step is not None or result.best is not None):
        yield f"the command says {status}, the search {result.status}"
    if (
        step is not None
        and step * SLACK < case.answer.bound
        and _in_space(case.answer, _plan_of(case), case.answer)
    ):
        yield f"the command's plan takes {step:.9g} s, the search has proven {case.answer.bound:.9g}"
    if document["bound_seconds"] is not None and document["bound_seconds"] > case.answer.step * SLACK:
        yield f"the command has proven {document['bound_seconds']:.9g} s, the search found {case.answer.step:.9g}"
    if status == result.status == "optimal" and step * 0.99 > case.answer.step * SLACK:
        yield f"both optimal, {step:.9g} s by the command and {case.answer.step:.9g} s by the search"


def limit_is_kept(case: Case) -> Iterator[str]:
    """The command takes little more CPU time than its limit, its reasons included."""
    if case.said.cpu_seconds > 1.6 * case.seconds + 3:
        yield f"search took {case.said.cpu_seconds:.1f} CPU s with a limit of {case.seconds:g}"


def commands_price_alike(case: Case) -> Iterator[str]:
    """show, predict, explain and compare of the plan file give the step that search gave."""
    if not case.plan_path.exists():
        return
    step, path = case.said.document.get("step_seconds"), case.plan_path
    for words in (
        ("show", path),
        ("predict", *case.answer.files, path),
        ("explain", path),
        ("compare", path, path),
    ):
        said = tell(*words, *case.answer.constants, "--json")
        if said.code or not said.document:
            yield f"{words[0]} exits with {said.code}: {said.errors[:300]}"
            continue
        plans = (
            [entry["plan"] for entry in said.document["plans"]] if words[0] == "compare" else [said.document]
        )
        for plan in plans:
            if step is None or abs(plan["step_seconds"] / step - 1) > 1e-9:
                yield f"{words[0]} says {plan['step_seconds']}, search {step}"
            if not plan["fits"]:
                yield f"{words[0]} says that the answer does not fit: {plan['misfits']}"


def plan_is_emitted(case: Case) -> Iterator[str]:
    """What the search proposes can be launched."""
    if not case.plan_path.exists():
        return
    target = plan_of(case.plan_path)["target"]
    launcher = (
        "torchrun" if target == "flagscale" else case.rng.choice(("torchrun", "slurm", "ssh", "kubernetes"))
    )
    folder = case.folder / "run"
    said = tell("emit", case.plan_path, "-o", folder, "--launcher", launcher)
    if said.code:
        yield f"emit of {target} for {launcher} exits with {said.code}: {said.errors[:300]}"
    elif not (folder / "README.md").stat().st_size:
        yield f"emit of {target} for {launcher} wrote an empty README.md"


# ---------------------------------------------------------------- the plan is sound


def proof_is_sound(case: Case) -> Iterator[str]:
    """Status, step, bound and gap fit together, in the search and in the document."""
    yield from _proof(
        "search", case.answer.result.status, case.answer.step, case.answer.bound, case.answer.result.gap
    )
    document = case.said.document
    if document and document["step_seconds"] is not None:
        found = (document[key] for key in ("step_seconds", "bound_seconds", "gap"))
        yield from _proof("command", document["status"], *found)


def _proof(who: str, status: str, step: float, bound: float, gap: float) -> Iterator[str]:
    if status not in EXIT_CODES:
        yield f"{who}: unknown status {status}"
    if step == float("inf"):
        if status not in ("infeasible", "unknown"):
            yield f"{who}: {status} without a plan"
        return
    if status not in ("optimal", "feasible"):
        yield f"{who}: {status} with a plan"
    if not step > 0:
        yield f"{who}: a step of {step} s"
    if not 0 <= bound <= step * SLACK:
        yield f"{who}: bound {bound:.9g}, step {step:.9g}"
    if abs(max(0.0, 1 - bound / step) - gap) > 1e-6:
        yield f"{who}: gap {gap:.6g} with bound {bound:.9g} and step {step:.9g}"
    if status == "optimal" and gap > 0.01 + 1e-9:
        yield f"{who}: optimal with a gap of {gap:.4f}"


def plan_is_sound(case: Case) -> Iterator[str]:
    """Layers and batch add up, devices exist and are used once, memory is within capacity less the reserve."""
    if not case.plan_path.exists():
        return
    plan, model = plan_of(case.plan_path), case.answer.world.model
    layers = [edge for stage in plan["stages"] for edge in stage["layers"]]
    inner = zip(layers[1:-1:2], layers[2::2], strict=True)
    if (layers[0], layers[-1]) != (0, model["layers"]) or any(end != first for end, first in inner):
        yield f"stages hold the layers {layers} of {model['layers']}"
    for number, stage in enumerate(plan["stages"]):
        batch = sum(group["count"] * group["share"] for group in stage["replicas"])
        batch -= plan.get("fewer_steps", 0) * stage["replicas"][0]["micro_batch"]
        if batch != model["training"]["global_batch"]:
            yield f"stage {number} takes {batch} of {model['training']['global_batch']} sequences"
        for group in stage["replicas"]:
            if not group["share"] <= group["steps"] * group["micro_batch"] < group["share"] + group["steps"]:
                yield f"stage {number}: {group['steps']} micro-batches of {group['micro_batch']} for {group['share']}"
    shown = tell("show", case.plan_path, *case.answer.constants, "--json").document
    yield from _devices(case, shown)
    yield from _memory(shown)


def _devices(case: Case, shown: Json) -> Iterator[str]:
    there = {
        (host, number): gpu
        for pool in case.answer.cluster.pools
        for host in pool.hosts
        for number, gpu in enumerate(pool.devices)
    }
    used = Counter(
        ((host, device), row["gpu"])
        for row in shown.get("ranks", [])
        for host in row["hosts"]
        for device in row["devices"]
    )
    for (spot, gpu), count in used.items():
        if there.get(spot) != gpu:
            yield f"{gpu} on {spot} is {there.get(spot, 'no device')}"
        if count > 1:
            yield f"the device {spot} is used {count} times"
    if shown and used.total() != shown["devices"]:
        yield f"{used.total()} devices have ranks, the plan says {shown['devices']}"


def _memory(shown: Json) -> Iterator[str]:
    for number, stage in enumerate(shown.get("stages", [])):
        for group in stage["replicas"]:
            memory = group["memory_bytes"]
            free = memory["capacity"] - memory["reserve"] - memory["used"]
            if free < -1e-6 * memory["capacity"]:
                yield f"stage {number} on {group['gpu']} lacks {-free:.4g} bytes"


# ---------------------------------------------------------------- nothing beats the answer


def nothing_listed_is_faster(case: Case) -> Iterator[str]:
    """Families that lost, and plans with idle devices, are no faster than the answer; neighbours not than the bound."""
    document = case.said.document
    if not document or document["step_seconds"] is None:
        return
    step, bound = document["step_seconds"], document["bound_seconds"] or 0.0
    listed = [entry for entry in document["alternatives"] if entry["step_seconds"] is not None]
    for entry in sorted(listed, key=lambda one: float(one["step_seconds"]))[:1]:
        if entry["step_seconds"] * SLACK < step:
            yield f"{entry['family']} is listed with {entry['step_seconds']:.9g} s, the answer takes {step:.9g}"
    idle = [entry for entry in document["idle_costs"] if entry["slower"] is not None]
    for entry in sorted(idle, key=lambda one: float(one["slower"]))[:1]:
        if entry["slower"] < 1 / SLACK - 1:
            yield f"using idle {entry['gpu']} is listed as {-entry['slower']:.4%} faster"
    if case.answer.world.limits:
        return
    for entry in tell("explain", case.plan_path, *case.answer.constants, "--json").document.get(
        "neighbours", []
    ):
        if entry["fits"] and entry["step_seconds"] * SLACK < bound:
            yield f"explain: {entry['change']} takes {entry['step_seconds']:.9g} s, proven is {bound:.9g}"


def no_rival_beats_the_proof(case: Case) -> Iterator[str]:
    """Plans that no search made: none that fits is below the bound, and none fits what is called infeasible."""
    answer = case.answer
    field = Field(
        answer.cluster, answer.model, answer.world.searched(case.seconds), case.rng, answer.calibration
    )
    best = answer.result.best
    rival = fastest(field, best.plan if best else None, DRAWS, STEPS)
    if rival is None:
        return
    document = case.said.document
    bounds = [answer.bound, (document.get("bound_seconds") or 0.0) if document else 0.0]
    infeasible = "infeasible" in (answer.result.status, document.get("status"))
    if rival.seconds * SLACK >= max(bounds) and not infeasible:
        return
    path = case.folder / "rival.yaml"
    write(PlanFile(plan=rival.plan, cluster=answer.cluster, model=answer.model), path)
    priced = tell("predict", *answer.files, path, *answer.constants, "--json")
    if (
        priced.code
        or not priced.document["fits"]
        or abs(priced.document["step_seconds"] / rival.seconds - 1) > 1e-9
    ):
        yield f"predict does not price the rival as the estimate does: {rival.seconds:.9g} s, {priced}"
    elif infeasible:
        yield f"infeasible, and yet a plan fits: {rival.seconds:.6g} s, {in_short(rival.plan)}"
    else:
        proof = f"proven {max(bounds):.6g} s ({answer.result.status}, answer {answer.step:.6g})"
        yield f"{proof}, a rival takes {rival.seconds:.6g}: {in_short(rival.plan)}"


# ---------------------------------------------------------------- other words, better clusters


def same_cluster_same_answer(case: Case) -> Iterator[str]:
    """The cluster in other words: neither's bound is above the other's plan, so that the answers are within the gap."""
    # Measurements name fabrics and devices.
    same = tuple(change for change in SAME if change is not renamed or not case.answer.world.measured)
    name, changed = one_of(same, case.rng, case.answer.world.cluster)
    other = _other(case, changed)
    yield from _proof(name, other.result.status, other.step, other.bound, other.result.gap)
    for first, second, whose in ((case.answer, other, "as drawn"), (other, case.answer, name)):
        if second.result.best is None or not _in_space(second, second.result.best.plan, first):
            continue
        if first.result.status == "infeasible":
            yield f"{whose}: infeasible, and in other words {second.step:.9g} s"
        elif first.bound > second.step * SLACK:
            yield f"{name}: bound {first.bound:.9g} {whose} is above the other's step {second.step:.9g}"


def _in_space(answer: Answer, plan: Plan, other: Answer) -> bool:
    """False for plans that either proof names outside: the answer may be one that was met beside the space."""
    as_one = on_joined_pools(plan, joined(answer.cluster), answer.cluster)
    # A replica on several nodes lies in one pool, so equal pools in other parts have room for others.
    apart = [len(joined(each).pools) < len(each.pools) for each in (answer.cluster, other.cluster)]
    torn = any(apart) and bool(widths(plan, answer.cluster))
    return (
        not torn
        and not straddles(plan, answer.cluster, answer.model)
        and not outside(as_one, answer.world.searched(0.0), answer.model)
    )


def _plan_of(case: Case) -> Plan:
    """The plan that the command has written."""
    return read(case.plan_path).plan


def better_cluster_no_slower(case: Case) -> Iterator[str]:
    """With better hardware the old plan is no slower on the same nodes, and nothing is proven that it beats.

    Of a pool with one more node a stage may take that, and cross to it. What a stage of several device types uses up
    may be other numbers than whole stages leave over of more devices, which the proof names outside.
    """
    best = case.answer.result.best
    if best is None:
        return
    # Layers measured on several devices have the collectives of the wires that they were measured on.
    divided = any(layer["tp"] > 1 for layer in case.answer.world.measured.get("layers", ()))
    better = tuple(change for change in BETTER if change is not faster_wires or not divided)
    name, changed = one_of(better, case.rng, case.answer.world.cluster)
    other = _other(case, changed)
    if _way_is_longer(case.answer.cluster, other.cluster):
        return
    again = estimate(best.plan, other.cluster, other.model, other.calibration)
    stays = place(best.plan, other.cluster) == place(best.plan, case.answer.cluster)
    limits = case.answer.world.searched(0.0)
    if stays and again.step_seconds > case.answer.step * SLACK:
        yield f"{name}: the same plan takes {again.step_seconds:.9g} s, before {case.answer.step:.9g}"
    elif other.result.status == "infeasible":
        yield f"{name}: infeasible, before it took {case.answer.step:.9g} s"
    elif other.bound > case.answer.step * SLACK and not outside(
        on_joined_pools(best.plan, joined(other.cluster), other.cluster), limits, other.model
    ):
        yield f"{name}: bound {other.bound:.9g}, the old plan takes {case.answer.step:.9g} s"


def _way_is_longer(before: ClusterSpec, after: ClusterSpec) -> bool:
    """True where a way that has become the widest has more latency, by which small messages lose."""
    old, new = Topology(before), Topology(after)
    names = [pool.name for pool in before.pools]
    return any(
        new.path(one, two).latency_seconds > old.path(one, two).latency_seconds
        for one, two in combinations_with_replacement(names, 2)
    )


def _other(case: Case, cluster: Json) -> Answer:
    return ask(replace(case.answer.world, cluster=cluster), case.folder / "changed", case.seconds)


CHECKS = (
    *(command_agrees, limit_is_kept, commands_price_alike, plan_is_emitted, proof_is_sound, plan_is_sound),
    *(nothing_listed_is_faster, no_rival_beats_the_proof, same_cluster_same_answer, better_cluster_no_slower),
)
