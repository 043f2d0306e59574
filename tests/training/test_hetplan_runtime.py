"""The training side deals every sequence once and makes all of them count alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.emit.interface import emit, job_of, write_folder
from planner.job.batches import table_text
from planner.plan.values import Plan
from tests.worlds import cluster, group, model, plan, pool

torch = pytest.importorskip("torch")

from planner.training.hetplan_runtime import PlannedBatches, RankPlan, load  # noqa: E402

CLUSTER = cluster(pool("a", ("A100",) * 2, 1), pool("b", ("T4",) * 2, 1))


def uneven(zero: int) -> Plan:
    """Shares 5, 5, 2 in 2, 2 and 1 micro-batches."""
    replicas = (group("a", "A100", count=2, share=5, steps=2), group("b", "T4", share=2))
    return plan("deepspeed", zero, [4], [replicas])


def loaded(tmp_path: Path, chosen: Plan, **training: object) -> list[RankPlan]:
    """What each rank reads."""
    job = job_of(chosen, CLUSTER, model(chosen.global_batch).trained_with(**training))
    file = tmp_path / "batches.json"
    file.write_text(table_text(job))
    return [load(file, rank=rank.rank) for rank in job.ranks]


@pytest.mark.parametrize("zero", range(4))
def test_every_sequence_once_a_step(tmp_path: Path, zero: int) -> None:
    """All ranks together deal the global batch in order, padding aside."""
    for step in (0, 3):
        dealt = [
            sequence
            for mine in loaded(tmp_path, uneven(zero))
            for micro in mine.micro_batches(step)
            if micro.weight
            for sequence in micro.sequences
        ]
        assert dealt == list(range(step * 12, (step + 1) * 12))


def test_padding_is_one_own_sequence(tmp_path: Path) -> None:
    """ZeRO 3 pads the short rank with one sequence that it has read anyway, at weight zero."""
    last = loaded(tmp_path, uneven(3))[-1]
    real, padding = last.micro_batches(0)
    assert real.sequences == (10, 11)
    assert (padding.sequences, padding.weight) == ((11,), 0.0)
    assert [mine.steps for mine in loaded(tmp_path, uneven(3))] == [2, 2, 2]
    assert [mine.steps for mine in loaded(tmp_path, uneven(1))] == [2, 2, 1]


@pytest.mark.parametrize("zero", [1, 3])
def test_averaged_gradient_is_that_of_the_batch(tmp_path: Path, zero: int) -> None:
    """Weighted micro-batches equal one batch: divided by steps as DeepSpeed does, or not; averaged over ranks."""
    data = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    target = data.sin().sum(1)

    def gradient(sequences: list[int], factor: float) -> list[float]:
        weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
        loss = (data[sequences] @ weight - target[sequences]).square().mean() * factor
        loss.backward()
        found: list[float] = weight.grad.tolist()
        return found

    everyone = loaded(tmp_path, uneven(zero))
    deepspeed, plain = torch.zeros(2, 3, dtype=torch.float64)
    for mine in everyone:
        for micro in mine.micro_batches(0):
            deepspeed += torch.tensor(gradient(list(micro.sequences), micro.weight)) / mine.steps
            plain += torch.tensor(gradient(list(micro.sequences), micro.torch_weight))
    wanted = pytest.approx(gradient(list(range(12)), 1.0), rel=1e-7)
    assert (deepspeed / len(everyone)).tolist() == wanted
    assert (plain / len(everyone)).tolist() == wanted


def test_mean_loss(tmp_path: Path) -> None:
    """The reported loss is the mean over sequences, here from one process without a group."""
    [mine] = loaded(tmp_path, plan("deepspeed", 1, [4], [(group("a", "A100", share=3, steps=2),)]))
    losses = [torch.tensor(value * weight) for value, weight in zip((1.0, 4.0), mine.weights, strict=True)]
    assert mine.mean_loss(losses).item() == pytest.approx((1.0 * 2 + 4.0 * 1) / 3)


def test_deepspeed_config(tmp_path: Path) -> None:
    """Each rank adds its own batch to the common part, and never a train_batch_size."""
    (tmp_path / "ds_config.json").write_text('{"steps_per_print": 5}')
    first, _, last = loaded(tmp_path, uneven(1))
    config = first.deepspeed_config(tmp_path / "ds_config.json")
    assert config == {
        "steps_per_print": 5,
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
    }
    assert last.deepspeed_config(tmp_path / "ds_config.json")["gradient_accumulation_steps"] == 1


def test_sampler_repeats_the_plan(tmp_path: Path) -> None:
    """A DataLoader gets whole global batches; a seed shuffles alike on every rank and anew each pass."""
    everyone = loaded(tmp_path, uneven(1))
    plain = [list(PlannedBatches(mine, length=30)) for mine in everyone]
    assert [len(batches) for batches in plain] == [4, 4, 2]
    assert sorted(index for batches in plain for each in batches for index in each) == list(range(24))
    samplers = [PlannedBatches(mine, length=30, seed=1) for mine in everyone]
    shuffled = [index for sampler in samplers for each in sampler for index in each]
    assert len(shuffled) == len(set(shuffled)) == 24
    assert shuffled != sorted(shuffled)
    for sampler in samplers:
        sampler.set_epoch(1)
    assert [index for sampler in samplers for each in sampler for index in each] != shuffled
    assert len(samplers[0]) == 4
    with pytest.raises(ValueError, match="has 11 sequences, one step needs 12"):
        PlannedBatches(everyone[0], length=11)


def test_rank_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a process reads its own row, and a job of another size is refused."""
    loaded(tmp_path, uneven(1))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert load(tmp_path / "batches.json").rank == 2
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="is for 3 ranks, this job has 4"):
        load(tmp_path / "batches.json")


def test_sharding_groups(tmp_path: Path) -> None:
    """Read where the plan has them."""
    assert {mine.shard_size for mine in loaded(tmp_path, uneven(3))} == {None}
    replicas = (group("a", "A100", count=2, share=5, steps=2), group("b", "T4", count=2, share=1))
    hybrid = plan("torch", 3, [4], [replicas], shard_size=2)
    assert {mine.shard_size for mine in loaded(tmp_path, hybrid)} == {2}


def test_other_format(tmp_path: Path) -> None:
    """A table of another version is refused."""
    (tmp_path / "batches.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="format 99, this file reads format 1"):
        load(tmp_path / "batches.json", rank=0)


def test_pipeline_parts(tmp_path: Path) -> None:
    """Bounds count the modules ahead of and behind the layers."""
    replicas = (group("a", "A100", share=2),)
    first = loaded(tmp_path, plan("deepspeed", 0, [3, 1], [replicas, (group("b", "T4", share=2),)]))[0]
    assert first.pipeline_parts(before=1, after=2) == [0, 4, 7]
    assert first.pipeline_parts(before=0, after=0) == [0, 3, 4]
    assert first.pipeline_parts(before=2, after=3, each=4) == [0, 14, 21]


def test_pipeline_class_sets_the_bounds(tmp_path: Path) -> None:
    """The subclass cuts where the plan says, and refuses a list of another length."""

    class Coordinates:
        pipe = 1

        def get_coord(self, _: int) -> Coordinates:
            return self

    class PipelineModule:
        global_rank = 0
        _topo = Coordinates()

        def __init__(self, layers: list[int]) -> None:
            self._layer_specs = layers
            self._partition_layers(method="parameters")  # type: ignore[attr-defined]

        def _set_bounds(self, start: int, stop: int) -> None:
            self.bounds = (start, stop)

    replicas = (group("a", "A100", share=2),)
    first = loaded(tmp_path, plan("deepspeed", 0, [3, 1], [replicas, (group("b", "T4", share=2),)]))[0]
    planned = first.pipeline_class(PipelineModule, before=1, after=1)
    assert planned(layers=[0] * 6).bounds == (4, 6)
    with pytest.raises(ValueError, match="the plan places 6 modules, the model has 7"):
        planned(layers=[0] * 7)


@pytest.mark.parametrize(("precision", "recompute"), [("bf16", "full"), ("fp16", "none"), ("fp32", "none")])
def test_trainer_arguments(tmp_path: Path, precision: str, recompute: str) -> None:
    """Every rank's arguments are of its own micro-batches and of the emitted configuration."""
    chosen = plan("deepspeed", 1, [4], [uneven(1).stages[0].replicas], recompute=recompute)
    write_folder(emit(chosen, CLUSTER, model(12, precision=precision)), tmp_path / "run")
    found = [
        load(tmp_path / "run" / "batches.json", rank).trainer_arguments(tmp_path / "run" / "ds_config.json")
        for rank in range(3)
    ]
    assert [each.pop("deepspeed")["gradient_accumulation_steps"] for each in found] == [2, 2, 1]
    assert [each.pop("gradient_accumulation_steps") for each in found] == [2, 2, 1]
    assert [each.pop("per_device_train_batch_size") for each in found] == [3, 3, 2]
    assert found == 3 * [
        {
            "max_grad_norm": 1.0,
            "bf16": precision == "bf16",
            "fp16": precision == "fp16",
            "gradient_checkpointing": recompute == "full",
        }
    ]


def test_plans_that_are_not_for_trainer(tmp_path: Path) -> None:
    """Trainer would train another plan without a word."""
    mine = loaded(tmp_path, uneven(1))[0]
    config = tmp_path / "ds_config.json"
    config.write_text('{"activation_checkpointing": {"cpu_checkpointing": true}, "gradient_clipping": 1.0}')
    unfit: tuple[tuple[dict[str, Any], str], ...] = (
        ({"stages": mine.stages * 2}, "a pipeline"),
        ({"tensor_parallel": 2}, "tensor parallelism"),
        ({"expert_parallel": 2}, "expert parallelism"),
        ({"context_parallel": 2}, "divided sequences"),
        ({}, "activations in host memory"),
    )
    for changes, what in unfit:
        with pytest.raises(ValueError, match=f"^plans with {what} are not for Trainer$"):
            replace(mine, **changes).trainer_arguments(config)


def test_trainer_class(tmp_path: Path) -> None:
    """A trainer gets this rank's batches, weighs the losses of training, and leaves those of evaluation alone."""

    class Trainer:
        model_accepts_loss_kwargs = True

        def __init__(self, train_dataset: list[int]) -> None:
            self.train_dataset, self.data_collator, self.model = train_dataset, sum, None
            self.args = SimpleNamespace(dataloader_num_workers=0, dataloader_pin_memory=False)

        def _get_collator_with_removed_columns(self, collator: Any) -> Any:
            return collator

        def compute_loss(self, model: Any, inputs: int, return_outputs: bool = False) -> Any:
            return (inputs, model) if return_outputs else inputs

    mine = loaded(tmp_path, uneven(3))[-1]
    made = mine.trainer_class(Trainer)(train_dataset=list(range(0, 240, 10)))
    assert made.model_accepts_loss_kwargs is False
    assert made.get_total_train_batch_size(made.args) == mine.global_batch
    assert list(made.get_train_dataloader()) == [100 + 110, 110, 220 + 230, 230]
    training, evaluation = SimpleNamespace(training=True), SimpleNamespace(training=False)
    assert [made.compute_loss(training, 1, num_items_in_batch=9) for _ in range(3)] == [1.0, 0.0, 1.0]
    assert made.compute_loss(evaluation, 1) == 1
    assert made.compute_loss(training, 1, return_outputs=True) == (0.0, training)


def norm_named(name: str) -> Any:
    """A module of a class of this name."""
    return type(name, (torch.nn.Module,), {})()


class OfOneModel:
    """A trainer that trains nothing."""

    def __init__(self, model: Any) -> None:
        self.model = model


def test_trainer_class_says_that_norms_are_not_counted(tmp_path: Path) -> None:
    """Of a plan that counts on one kernel for each, with a class that keeps copies in fp32."""
    trainer = loaded(tmp_path, uneven(3))[-1].trainer_class(OfOneModel)
    trainer(torch.nn.Sequential(torch.nn.RMSNorm(2), torch.nn.LayerNorm(2), norm_named("LigerRMSNorm")))
    with pytest.warns(UserWarning, match="LlamaRMSNorm keeps copies .* norms: unfused"):
        trainer(torch.nn.Sequential(norm_named("LlamaRMSNorm")))
    made = loaded(tmp_path, uneven(3), norms="unfused")[-1]
    assert made.norms == "unfused"
    made.trainer_class(OfOneModel)(torch.nn.Sequential(norm_named("LlamaRMSNorm")))


@pytest.mark.parametrize("zero", [1, 3])
def test_tokens_count_alike(tmp_path: Path, zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted means of micro-batches, divided and averaged as DeepSpeed does, are the mean over all tokens."""
    ranks = loaded(tmp_path, uneven(zero))
    tokens = [[3, 0], [5, 2], [7, 9][: ranks[-1].steps]]
    real = [
        [count for count, size in zip(own, mine.sizes, strict=True) if size]
        for own, mine in zip(tokens, ranks, strict=True)
    ]
    total = sum(map(sum, real))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda sent: sent.fill_(total))
    found = 0.0
    for mine, own in zip(ranks, tokens, strict=True):
        for count, weight, size in zip(own, mine.token_weights(own), mine.sizes, strict=True):
            found += weight * (1.0 if count else 0.0) / mine.steps / mine.world_size
            assert weight == pytest.approx(count * 3 * mine.steps / total if size else 0.0)
    assert found == pytest.approx(1.0)
