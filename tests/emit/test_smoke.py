"""What the smoke run compares with, and that its program finds all it imports in every folder."""

from __future__ import annotations

import ast
import json
from itertools import pairwise
from pathlib import Path

import pytest

from planner.calibration.file import shipped
from planner.cluster.spec import ClusterSpec
from planner.cost.communication import all_to_all_seconds
from planner.cost.estimate import Estimator, estimate
from planner.emit.interface import emit, job_of, wheel_cautions
from planner.emit.smoke import smoke_text
from planner.model.spec import ExpertsSpec
from planner.plan.values import Plan
from tests.worlds import GPUS, cluster, gpt, group, nic, plan, pool

WHERE = cluster(pool("a", ("A100",) * 4, 2, (nic("ib", gbps=200.0),)))
MODEL = gpt(4, 512, 8, global_batch=16, vocab=1000, precision="bf16")


def world(target: str) -> tuple[Plan, ClusterSpec]:
    """Two stages of two replicas of two ranks."""
    stage = (group("a", "A100", tp=2, count=2, share=8, steps=8),)
    return plan(target, 1, [2, 2], [stage, stage]), WHERE


@pytest.mark.parametrize("target", ["torch", "deepspeed", "megatron"])
def test_its_modules_are_there(target: str) -> None:
    """Whatever else the runtime's folder holds."""
    chosen = plan(target, 1, [4], [(group("a", "A100", count=8, share=2),)])
    files = {file.path: file.text for file in emit(chosen, WHERE, MODEL)}
    training = {path.stem for path in (Path(__file__).parents[2] / "planner" / "training").glob("*.py")}
    waiting, seen = ["hetplan_smoke"], set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        nodes = ast.walk(ast.parse(files[f"{name}.py"]))
        imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        assert not [module for module in imported if module.startswith("planner")]
        waiting += sorted((imported & training) - seen)
    assert {"smoke_run", "smoke_device", "smoke_measure", "example_model"} <= seen


def test_groups_and_their_planned_times() -> None:
    """Inside replicas, over replicas, and from stage to stage: the plan's own prices, for two sizes at least."""
    found = json.loads(smoke_text(job_of(*world("torch"), MODEL)))
    groups = {entry["what"]: entry for entry in found["groups"]}
    assert set(groups) == {
        *("stage 0, inside replicas on A100", "stage 1, inside replicas on A100"),
        *("stage 0, over replicas", "stage 1, over replicas", "stage 0 to 1"),
    }
    assert groups["stage 0, inside replicas on A100"]["members"] == [[0, 1], [2, 3]]
    assert groups["stage 1, over replicas"]["members"] == [[4, 6], [5, 7]]
    assert groups["stage 0 to 1"]["members"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    for entry in found["groups"]:
        for points in entry["operations"].values():
            assert len(points) >= 2
            assert all(low[0] < high[0] and low[1] < high[1] for low, high in pairwise(points))
    chosen, where = world("torch")
    estimator = Estimator(where, MODEL, shipped())
    ring = estimator.price(chosen).rings[1]
    size, seconds = groups["stage 1, over replicas"]["operations"]["all-reduce"][-1]
    assert seconds == ring.reduce_seconds(size)
    part, seconds = groups["stage 0 to 1"]["operations"]["send"][-1]
    assert seconds == estimator.send_of(chosen, 0, 2 * part).seconds


def test_memory_and_layers_of_every_rank() -> None:
    """The planned peak without the runtime's own, and a share of a layer for its micro-batch."""
    chosen, where = world("torch")
    found = json.loads(smoke_text(job_of(chosen, where, MODEL)))
    memory = estimate(chosen, where, MODEL, shipped()).stages[1].groups[0].memory
    row = found["ranks"][5]
    assert row["memory_bytes"] == round(memory.used_bytes - memory.runtime_bytes)
    layer = found["layers"][row["layer"]]
    assert (layer["tp"], layer["micro_batch"], layer["shape"]["heads"]) == (2, 1, 4)
    assert 0 < layer["forward_seconds"] < layer["backward_seconds"]


def test_a_plan_without_a_price() -> None:
    """It says why, and the rest of the run goes on."""
    apart = cluster(pool("a", ("A100",), 1, (nic("ib"),)), pool("b", ("A100",), 1, (nic("eth"),)))
    both = plan("torch", 1, [4], [(group("a", "A100", share=8), group("b", "A100", share=8))])
    found = json.loads(smoke_text(job_of(both, apart, MODEL)))
    assert "without a common fabric" in found["unpriced"]
    assert (found["groups"], found["layers"]) == ([], [])
    assert [row["memory_bytes"] for row in found["ranks"]] == [None, None]


def test_builds_of_torch_are_told() -> None:
    """The README names the builds that a V100 needs; with a B200 beside it there is none, which is a warning."""
    old, new = (GPUS["A100"].model_copy(update={"compute_capability": age}) for age in (7.0, 10.0))
    own = {"V": old.model_copy(update={"name": "V"}), "B": new.model_copy(update={"name": "B"})}
    both = cluster(pool("v", ("V",), 1, (nic("ib"),)), pool("b", ("B",), 1, (nic("ib"),)), gpus=own)
    alone = plan("torch", 1, [4], [(group("v", "V", share=16),)])
    readme = next(file.text for file in emit(alone, both, MODEL) if file.path == "README.md")
    assert "kernels for V in its builds for CUDA 12.6 only" in readme
    assert wheel_cautions(job_of(alone, both, MODEL)) == ()
    mixed = plan("torch", 1, [4], [(group("v", "V", share=8), group("b", "B", share=8))])
    (warning,) = wheel_cautions(job_of(mixed, both, MODEL))
    assert warning.startswith("no build of PyTorch 2.13 has kernels for all devices")
    assert warning in estimate(mixed, both, MODEL).warnings


@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (2, 2), (8, 1)])
def test_groups_of_experts(ep: int, etp: int) -> None:
    """Consecutive devices share experts, those with other ones exchange tokens: in a node, or over both."""
    experts = ExpertsSpec(number=8, top_k=2, ffn=512)
    spec = MODEL.model_copy(update={"experts": experts, "gated_mlp": True, "mlp_bias": False})
    chosen = plan(
        "megatron",
        1,
        [4],
        [(group("a", "A100", tp=2, count=4, share=4, steps=4),)],
        sequence_parallel=True,
        ep=ep,
        etp=etp,
    )
    found = json.loads(smoke_text(job_of(chosen, WHERE, spec)))
    groups = {entry["what"]: entry for entry in found["groups"]}
    over = groups["stage 0, over experts on A100"]
    members = {
        (4, 1): [[0, 1, 2, 3], [4, 5, 6, 7]],
        (2, 2): [[0, 2], [1, 3], [4, 6], [5, 7]],
        (8, 1): [[0, 1, 2, 3, 4, 5, 6, 7]],
    }
    assert over["members"] == members[ep, etp]
    assert (over["link"], over["curve"]) == (("ib", "ib") if ep == 8 else ("node", "node:A100"))
    topology = Estimator(WHERE, spec, shipped()).topology
    size, seconds = over["operations"]["all-to-all"][-1]
    one = topology.device_type("a", "A100")
    assert seconds == all_to_all_seconds(one, topology, shipped(), size, ep=ep, width=etp)
    inside = groups.get("stage 0, inside experts on A100")
    assert (inside and inside["members"]) == (None if etp == 1 else [[0, 1], [2, 3], [4, 5], [6, 7]])


@pytest.mark.parametrize(("kind", "cp"), [("ring", 4), ("ulysses", 4), ("ring", 8)])
def test_groups_that_share_sequences(kind: str, cp: int) -> None:
    """Neighbours send to each other, between nodes where the ring has two; with Ulysses all exchange parts."""
    chosen = plan(
        "megatron",
        1,
        [4],
        [(group("a", "A100", count=8, share=2 * cp, steps=2 * cp),)],
        cp=cp,
        cp_kind=kind,
    )
    found = json.loads(smoke_text(job_of(chosen, WHERE, MODEL)))
    (entry,) = [each for each in found["groups"] if "parts of sequences" in each["what"]]
    members = {
        ("ring", 4): [[0, 1], [2, 3], [4, 5], [6, 7]],
        ("ulysses", 4): [[0, 1, 2, 3], [4, 5, 6, 7]],
        ("ring", 8): [[3, 4], [7, 0]],
    }
    assert entry["members"] == members[kind, cp]
    assert list(entry["operations"]) == [{"ring": "send", "ulysses": "all-to-all"}[kind]]
    assert entry["link"] == ("ib" if cp == 8 else "node")


def test_groups_over_equal_pools() -> None:
    """Two pools of one node each are one of two nodes: their experts exchange tokens over the network."""
    experts = ExpertsSpec(number=8, top_k=2, ffn=512)
    spec = MODEL.model_copy(update={"experts": experts, "gated_mlp": True, "mlp_bias": False})
    apart = cluster(*(pool(name, ("A100",) * 2, 1, (nic("ib"),)) for name in ("a", "b")))
    groups = [group(name, "A100", count=2, share=4, steps=4) for name in ("a", "b")]
    found = json.loads(smoke_text(job_of(plan("megatron", 1, [4], [tuple(groups)], ep=4), apart, spec)))
    (over,) = [entry for entry in found["groups"] if "over experts" in entry["what"]]
    assert (over["members"], over["link"]) == ([[0, 1, 2, 3]], "ib")
