"""What the example for DeepSpeed resumes from, and what pairs are compared with; test_equality.py has it train."""

from __future__ import annotations

import argparse
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    deepspeed = pytest.importorskip("deepspeed", reason="deepspeed is not installed, see make test")

import torch

from planner.emit.interface import emit, write_folder
from planner.job.batches import model_shape
from planner.model.spec import LoraSpec, PreferenceSpec
from planner.runtimes.deepspeed import train
from planner.training.example_context import ALONE
from planner.training.example_model import Transformer, shape_of
from planner.training.hetplan_runtime import RankPlan, load
from tests.worlds import cluster, group, model, plan, pool


@pytest.fixture(scope="module")
def rank_plan(tmp_path_factory: pytest.TempPathFactory) -> RankPlan:
    """Of the first of two ranks."""
    folder, chosen = (
        tmp_path_factory.mktemp("run"),
        plan("deepspeed", 2, [4], [(group("a", "A100", count=2),)]),
    )
    write_folder(emit(chosen, cluster(pool("a", nodes=1, per_node=2)), model(chosen.global_batch)), folder)
    return load(folder / "batches.json", rank=0)


def engine_of(on_host: Any, loaded: Path | None) -> Any:
    """An engine that has trained three steps in the checkpoint that it loads."""
    return SimpleNamespace(
        optimizer=None,
        zero_offload_optimizer=lambda: on_host,
        load_checkpoint=lambda *_, **__: (loaded, {}),
        global_steps=3,
    )


@pytest.mark.parametrize(
    ("ratio", "in_backward", "refused"),
    [(None, False, False), (1.0, False, False), (0.5, False, True), (1.0, True, True)],
)
def test_what_a_checkpoint_has_of_an_optimizer_on_the_host(
    rank_plan: RankPlan, tmp_path: Path, ratio: float | None, in_backward: bool, refused: bool
) -> None:
    """All of it where it is updated as a whole, and of one on the device; else nothing is loaded."""
    on_host = None if ratio is None else SimpleNamespace(ratio=ratio, super_offload=in_backward)
    engine, options = engine_of(on_host, tmp_path), argparse.Namespace(keep=None, resume=tmp_path)
    if refused:
        with pytest.raises(SystemExit, match="do not have all moments"):
            train.resumed(engine, rank_plan, options)
    else:
        assert train.resumed(engine, rank_plan, options) == 3


def test_where_there_is_no_checkpoint(rank_plan: RankPlan, tmp_path: Path) -> None:
    """Training begins anew where none is named, or none kept yet; a named one must be there, whole experts in none."""
    fresh = argparse.Namespace(keep=tmp_path, resume=None)
    assert train.resumed(engine_of(None, None), rank_plan, fresh) == 0
    (tmp_path / "latest").touch()
    with pytest.raises(SystemExit, match="no checkpoint of DeepSpeed"):
        train.resumed(engine_of(None, None), rank_plan, fresh)
    assert train.resumed(engine_of(None, tmp_path), rank_plan, fresh) == 3
    (tmp_path / "latest_universal").touch()
    assert train.with_resumption({"a": 1}, fresh) == {"a": 1, "checkpoint": {"load_universal": True}}
    with pytest.raises(SystemExit, match="universal checkpoints have all experts"):
        train.resumed(engine_of(None, tmp_path), replace(rank_plan, expert_parallel=2), fresh)


class Engine:
    """Of a model that is not sharded."""

    def __init__(self, module: Transformer) -> None:
        self.module, self.device = module, torch.device("cpu")

    def __call__(self, inputs: torch.Tensor) -> Any:
        """The model's logits."""
        return self.module(inputs)


@pytest.mark.parametrize(
    ("zero", "adapters"), [(0, False), (2, False), (3, False), (1, True), (3, True)], ids=str
)
def test_pairs_are_compared_with_the_model_as_it_began(
    rank_plan: RankPlan, monkeypatch: pytest.MonkeyPatch, zero: int, adapters: bool
) -> None:
    """A copy that trains no more, gathered by DeepSpeed with ZeRO 3 alone, or the model without its adapters."""
    engines: list[Transformer] = []

    def initialize(*, model: Transformer, config: dict[str, Any]) -> tuple[Engine]:
        engines.append(model.double())
        return (Engine(model),)

    monkeypatch.setattr(deepspeed, "initialize", initialize)
    monkeypatch.setattr(deepspeed.zero, "Init", lambda **_: nullcontext())
    lora = LoraSpec(rank=2) if adapters else None
    shape = shape_of(model_shape(model(2, preference=PreferenceSpec(beta=2.0), lora=lora)))
    torch.manual_seed(7)
    trained, inputs = Transformer(shape, sharing=ALONE).double(), torch.arange(16)[None]
    began = trained(inputs).detach()
    before = train.reference_of(
        Engine(trained), replace(rank_plan, zero=zero), shape, {}, seed=7, sharing=ALONE
    )
    with torch.no_grad():
        for each in trained.parameters():
            if each.requires_grad:
                each.add_(0.5)
    assert not torch.allclose(trained(inputs), began)
    assert torch.allclose(before(inputs), began)
    assert len(engines) == (zero == 3 and not adapters)
