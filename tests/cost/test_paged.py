"""Moments in memory that device and host share: where they are, what moving them takes, and who has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.cost.values import Estimate
from planner.emit.interface import emit, write_folder
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.plan.values import Plan
from planner.search.solve import search
from planner.search.values import Limits
from tests.search.exhaustive import exhaustive
from tests.worlds import cluster, group, model, plan, pool


def linked(rate: float | None) -> ClusterSpec:
    """A node of which it is known, or not, how fast its devices reach host memory."""
    bare = cluster(pool("a", "A100", 1))
    gpus = {name: gpu.model_copy(update={"host_link_gBps": rate}) for name, gpu in bare.gpus.items()}
    return bare.model_copy(update={"gpus": gpus})


WHERE = linked(32.0)


def trained(states: str) -> ModelSpec:
    """A small model in mixed precision."""
    return model(8, hidden=256, heads=4, head_dim=64, optimizer_states=states, precision="fp16")


def chosen(target: str = "deepspeed", zero: int = 2) -> Plan:
    """Four replicas."""
    return plan(target, zero, [4], [(group("a", "A100", count=4, share=2),)])


def priced(states: str) -> Estimate:
    """A step of it."""
    return estimate(chosen(), WHERE, trained(states))


@pytest.mark.parametrize(("states", "size"), [("fp32", 4.0), ("int8", 1.0 + 4.0 / 256)])
def test_paged_moments_are_counted_on_the_host(states: str, size: float) -> None:
    """None of them on the device; the fp32 copy of the weights stays there. Both ways over the host link each step."""
    usual, paged = (priced(name).stages[0].groups[0].memory for name in (states, f"paged-{states}"))
    moments = 2 * size * trained(states).parameters / 4
    assert usual.optimizer_bytes - paged.optimizer_bytes == pytest.approx(moments)
    assert usual.host_bytes == 0.0
    assert paged.host_bytes == pytest.approx(moments)
    host = WHERE.host_link_of(WHERE.pools[0], "A100")
    assert host is not None
    moving = 2 * moments / (host * 1e9)
    plain, update = (priced(name).breakdown.optimizer_seconds for name in (states, f"paged-{states}"))
    assert update - moving == pytest.approx(plain)


@pytest.mark.parametrize("target", ["torch", "megatron", "flagscale"])
def test_others_have_none(target: str) -> None:
    """DeepSpeed's folders alone, whose flat tensors bitsandbytes can update."""
    found = [fault.what for fault in faults(chosen(target, 1), WHERE, trained("paged-int8"))]
    assert any(f"{target} does not train with optimizer_states paged-int8" in what for what in found)


@pytest.mark.slow
def test_the_search_finds_the_best_of_them() -> None:
    """As exhaustion does; and looks at no device whose way to its host is not known."""
    spec = trained("paged-fp32")
    best = search(WHERE, spec, limits=Limits(gap=0.0), explain=False).best
    wanted = exhaustive(WHERE, spec, limits=Limits(target="deepspeed"))
    assert best is not None
    assert wanted is not None
    assert best.plan.target == "deepspeed"
    assert best.estimate.step_seconds == pytest.approx(wanted.estimate.step_seconds)
    assert search(linked(None), spec, limits=Limits(), explain=False).best is None


@pytest.mark.parametrize(
    ("states", "name"), [("paged-fp32", "paged_adamw_32bit"), ("paged-int8", "paged_adamw_8bit")]
)
def test_trainer_is_given_the_name(tmp_path: Path, states: str, name: str) -> None:
    """As transformers' own arguments take it; the folder says which library it needs."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from planner.training.hetplan_runtime import load

    write_folder(emit(chosen(), WHERE, trained(states)), tmp_path / "folder")
    readme = (tmp_path / "folder" / "README.md").read_text()
    assert "pip install bitsandbytes" in readme
    assert name in readme
    ours = load(tmp_path / "folder" / "batches.json", rank=0)
    given = ours.trainer_arguments(tmp_path / "folder" / "ds_config.json")
    del given["deepspeed"], given["fp16"], given["gradient_checkpointing"]
    found = transformers.TrainingArguments(**given, output_dir=str(tmp_path), use_cpu=True)
    assert found.optim == name
    assert ours.trainer_optimizer(found) is None
