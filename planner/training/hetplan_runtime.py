"""Runs a plan in which GPUs have different batches: deals sequences, weighs losses, splits the pipeline.

Needs torch and nothing else of hetplan, but with Trainer for an optimizer of ``example_optimizers.py``; a launch folder
holds it as ``hetplan_runtime.py``::

    plan = load()                                          # this rank's part of batches.json
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=plan.deepspeed_config())
    for micro in plan.micro_batches(step):                 # at each optimizer step
        loss = loss_of(engine, data[micro.sequences]) * micro.weight

The weight of a micro-batch makes every sequence of the global batch count alike, provided that the loss
is a mean over the sequences of the micro-batch and that sequences have equally many tokens. Where labels are
padded or masked, ``plan.token_weights(tokens of each micro-batch)`` has the weights of a step. With torch's own
DDP or FSDP2 it is ``micro.torch_weight``. Hugging Face's Trainer does all this in two lines::

    arguments = TrainingArguments(**plan.trainer_arguments(), output_dir=folder)
    trainer = plan.trainer_class(Trainer)(model=model, args=arguments, train_dataset=data)
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from planner.training.hetplan_loss import IGNORED, causal_loss

FORMAT = 1
"""Version of batches.json that this file reads."""
USUAL_LOSS = "ForCausalLMLoss"
"""Loss of a Hugging Face model that names none."""

V_SHAPED = ("zb-v", "dualpipe-v")
"""Schedules in which each stage has two chunks, so that the first one has the first layers and the last."""

PAGED = {"paged-fp32": "paged_adamw_32bit", "paged-int8": "paged_adamw_8bit"}
"""What Trainer calls optimizers whose moments share the memory of device and host; they are bitsandbytes's."""


@dataclass(frozen=True)
class MicroBatch:
    """Sequences that a rank processes at a time."""

    sequences: tuple[int, ...]
    """Indices in the data set; one stand-in sequence in a padding micro-batch."""
    weight: float
    """Factor of the mean loss for DeepSpeed, which divides it by the accumulation steps; 0 for padding."""
    torch_weight: float
    """Factor of the mean loss where nothing divides it: ``loss.backward()`` under DDP or FSDP2."""


@dataclass(frozen=True)
class StagePlan:
    """Layers of one pipeline stage."""

    first_layer: int
    end_layer: int
    """One past the last layer."""
    recompute: str
    """``none``, ``selective`` or ``full``."""


@dataclass(frozen=True)
class SyncPlan:
    """What islands of ranks exchange, and how often."""

    islands: tuple[tuple[int, ...], ...]
    """Ranks of each island, which are exact among themselves; the first of each exchanges with the others."""
    weights: tuple[float, ...]
    """Share of the global batch of each island."""
    every: int
    """Optimizer steps between two exchanges; 1: gradients are exchanged in every step."""
    format: str
    """``fp32``, ``bf16``, ``fp8`` or ``int8``."""
    method: str = "average"
    """``average`` or ``diloco``."""
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    rank: int | None = None
    """Of the factors that travel in place of a matrix of gradients."""
    ratio: float | None = None
    """Share of a gradient's elements that travels."""


@dataclass(frozen=True)
class RankPlan:
    """What one rank does in every optimizer step."""

    rank: int
    world_size: int
    data_parallel: int
    """Replicas of each stage."""
    global_batch: int
    """Sequences of one optimizer step over all ranks."""
    zero: int
    stages: tuple[StagePlan, ...]
    """Their numbers of layers; where a stage has several chunks, ``passed`` tells which layers."""
    stage: int
    """Index of this rank's stage."""
    first_sequence: int
    """Offset of this rank's sequences in the global batch."""
    sizes: tuple[int, ...]
    """Sequences of each micro-batch, [step]; 0 is padding."""
    weights: tuple[float, ...]
    """Loss factor of each micro-batch, [step]."""
    tensor_parallel: int = 1
    """Ranks of one replica; of a grid those of one row, which have the same sequences."""
    sequence_parallel: bool = False
    """True when each rank of a replica has the hidden states of some tokens between the matrices that are divided."""
    tensor_rows: int = 1
    """Rows of the grid that a replica is, each with sequences of its own."""
    grid: tuple[int, ...] = ()
    """All ranks by stage, replica and place in the replica, the last one fastest."""
    shard_size: int | None = None
    """Consecutive replicas that share one copy of what ZeRO shards; None: all of them."""
    context_parallel: int = 1
    """Consecutive replicas that share the tokens of their sequences, a part each."""
    context_kind: str = "ulysses"
    """How they attend to each other's: by parts of the heads (``ulysses``) or around a ring (``ring``)."""
    expert_parallel: int = 1
    """Consecutive replicas that have some of the experts of each layer, each others."""
    sync: SyncPlan | None = None
    """None where all replicas are exact."""
    backup: int = 0
    """Slowest replicas of each step whose gradients are dropped."""
    shards: tuple[int, ...] = ()
    """Parts of what ZeRO shards that each replica holds, [replica]; none where all hold equally much."""
    chunks: tuple[StagePlan, ...] = ()
    """Chunks of layers in the order in which a micro-batch passes them; none where each stage has one. The i-th is on
    stage i modulo their number, in a V-shaped pipeline of the second half on the stages in reverse order."""
    schedule: str = "1f1b"
    """``1f1b``, ``zero-bubble``, ``zb-v`` or ``dualpipe-v``: how a pipeline orders the work of a stage; the last two
    are V-shaped."""
    optimizer: str = "adamw"
    """``adamw``, ``sgd`` or ``lion``; of plans of DeepSpeed, for Trainer."""
    optimizer_states: str = "fp32"
    """Number format of AdamW's moments: ``fp32``, ``bf16`` or ``int8``, or ``paged-fp32`` or ``paged-int8``."""
    master_weights: str = "fp32"
    """Number format of the weights that it updates: ``fp32`` or ``bf16``."""
    norms: str = "fused"
    """``fused``, or ``unfused`` where the plan counts on copies that norms keep."""

    @property
    def steps(self) -> int:
        """Micro-batches of one optimizer step, padding included: the gradient accumulation steps."""
        return len(self.sizes)

    @property
    def dealt(self) -> int:
        """Sequences of a step, those included whose gradients are dropped."""
        return self.global_batch * self.data_parallel // (self.data_parallel - self.backup)

    @property
    def passed(self) -> tuple[StagePlan, ...]:
        """What a micro-batch passes one after the other: stages, or their chunks."""
        return self.chunks or self.stages

    @property
    def v_shaped(self) -> bool:
        """True where the first stage has the first layers and the last."""
        return self.schedule in V_SHAPED

    @property
    def own(self) -> tuple[int, ...]:
        """Which of them this rank has."""
        if self.v_shaped:
            return self.stage, len(self.passed) - 1 - self.stage
        return tuple(range(self.stage, len(self.passed), len(self.stages)))

    @property
    def makes_losses(self) -> bool:
        """True where the last layers are."""
        return self.own[-1] == len(self.passed) - 1

    @property
    def recompute(self) -> str:
        """How this rank's stage recomputes activations."""
        return self.stages[self.stage].recompute

    @property
    def island(self) -> tuple[int, ...]:
        """Ranks with which this one is exact: all without islands."""
        if self.sync is None:
            return self.grid
        return next(island for island in self.sync.islands if self.rank in island)

    def micro_batches(self, step: int, order: Sequence[int] | None = None) -> Iterator[MicroBatch]:
        """This rank's micro-batches of an optimizer step; all ranks together deal each sequence once.

        ``order`` permutes the data set (the same on every rank); it starts again when it is used up.
        """
        at = step * self.dealt + self.first_sequence
        for size, weight in zip(self.sizes, self.weights, strict=True):
            # Padding runs a sequence of this rank's own, so that no other data has to be at hand.
            places = range(at, at + size) if size else range(at - 1, at)
            sequences = tuple(order[i % len(order)] if order else i for i in places)
            yield MicroBatch(sequences, weight, torch_weight=weight / self.steps)
            at += size

    def deepspeed_config(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """``ds_config.json`` with this rank's micro-batch size and accumulation steps.

        ``train_batch_size`` stays out: DeepSpeed derives it from this rank alone.
        """
        file = Path(path) if path else Path(__file__).with_name("ds_config.json")
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        config["train_micro_batch_size_per_gpu"] = max(self.sizes)
        config["gradient_accumulation_steps"] = self.steps
        for key in ("offload_optimizer", "offload_param"):
            section = config.get("zero_optimization", {}).get(key, {})
            if section.get("device") == "nvme":
                section["nvme_path"] = _nvme_folder()
        return config

    def token_weights(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Weights in place of ``weight`` that make every token of the global batch count alike (collective).

        ``tokens``: of each micro-batch of this rank's step, those that its mean loss is over. Divided by ``steps`` they
        are what ``torch_weight`` is.
        """
        real = [float(count) if size else 0.0 for count, size in zip(tokens, self.sizes, strict=True)]
        total = torch.tensor(sum(real), dtype=torch.float64)
        if torch.distributed.is_initialized():
            total = total.cuda() if "nccl" in torch.distributed.get_backend() else total
            torch.distributed.all_reduce(total)
        # Each rank of a replica, and each stage of a pipeline, has counted the same tokens.
        everyone = max(float(total) / (self.tensor_parallel * len(self.stages)), 1.0)
        return tuple(count * self.data_parallel * self.steps / everyone for count in real)

    def mean_loss(self, weighted_losses: Sequence[torch.Tensor], group: Any = None) -> torch.Tensor:
        """Mean loss over the global batch from this rank's weighted losses of one step (collective).

        With the process ``group`` of its island the mean is over the sequences of that.
        """
        total = torch.stack([loss.detach().float() for loss in weighted_losses]).sum() / self.steps
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(total, group=group)
        islands = self.sync is not None
        return total / (len(self.island) if islands else self.data_parallel * self.tensor_parallel)

    def pipeline_parts(self, before: int = 1, after: int = 1, each: int = 1) -> list[int]:
        """Bounds of the stages in a list of modules with ``before`` ahead of the plan's layers and ``after`` behind.

        ``each`` modules stand for one of these, where they are blocks.
        """
        inner = [before + each * stage.end_layer for stage in self.stages[:-1]]
        return [0, *inner, before + each * self.stages[-1].end_layer + after]

    def pipeline_class(self, pipeline_module: type, before: int = 1, after: int = 1, each: int = 1) -> type:
        """DeepSpeed's PipelineModule with this plan's uneven stages, which it has no option for."""
        parts = self.pipeline_parts(before, after, each)

        topology = self._topology(pipeline_module)

        class PlannedPipeline(pipeline_module):  # type: ignore[misc]
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options, **topology)

            def _partition_layers(self, method: str = "planned") -> None:
                if len(self._layer_specs) != parts[-1]:
                    raise ValueError(
                        f"the plan places {parts[-1]} modules, the model has {len(self._layer_specs)}"
                    )
                stage = self._topo.get_coord(self.global_rank).pipe
                self.parts = parts
                self._set_bounds(start=parts[stage], stop=parts[stage + 1])

        return PlannedPipeline

    def _topology(self, pipeline_module: type) -> dict[str, Any]:
        """What DeepSpeed's PipelineModule is told of ranks that are numbered stage before replica; it takes them for
        replica before stage."""
        if list(self.grid) == sorted(self.grid):
            return {}
        beside = import_module(".topology", pipeline_module.__module__.rpartition(".")[0])
        sizes = [self.data_parallel, len(self.stages)]
        return {"topology": beside.ProcessTopology(axes=["data", "pipe"], dims=sizes)}

    def trainer_arguments(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """What Hugging Face's TrainingArguments have to be given of this plan and of ``ds_config.json``."""
        config = self.deepspeed_config(path)
        unfit = {
            "a pipeline": len(self.stages) > 1,
            "tensor parallelism": self.tensor_parallel > 1,
            "expert parallelism": self.expert_parallel > 1,
            "divided sequences": self.context_parallel > 1,
            # Layers that it recomputes keep their inputs on the device, whatever this key says.
            "activations in host memory": "activation_checkpointing" in config,
        }
        for what in (name for name, has in unfit.items() if has):
            raise ValueError(f"plans with {what} are not for Trainer")
        return {
            **({"optim": PAGED[self.optimizer_states]} if self.optimizer_states in PAGED else {}),
            "deepspeed": config,
            "per_device_train_batch_size": max(self.sizes),
            "gradient_accumulation_steps": self.steps,
            "max_grad_norm": config["gradient_clipping"],
            "bf16": "bf16" in config,
            "fp16": "fp16" in config,
            "gradient_checkpointing": self.recompute == "full",
        }

    def trainer_optimizer(self, arguments: Any) -> tuple[Any, dict[str, Any]] | None:
        """The plan's optimizer and its options, as Trainer asks for them; None for those that it knows itself."""
        given = {"lr": arguments.learning_rate}
        if self.optimizer == "sgd":
            return torch.optim.SGD, {**given, "momentum": 0.9}
        narrow = self.optimizer_states in ("bf16", "int8") or self.master_weights == "bf16"
        if self.optimizer == "adamw" and not narrow:
            return None
        own = import_module(f"{__package__}.example_optimizers" if __package__ else "example_optimizers")
        if self.optimizer == "lion":
            return own.Lion, given
        given |= {"betas": (arguments.adam_beta1, arguments.adam_beta2), "eps": arguments.adam_epsilon}
        return own.ADAMW[self.optimizer_states], given

    def trainer_class(self, trainer: type, seed: int | None = None) -> type:
        """Hugging Face's Trainer with this plan's batches and weights, for ``plan.trainer_arguments()``.

        A ``seed`` shuffles the data set, in another way in each pass.
        """
        plan = self

        class PlannedTrainer(trainer):  # type: ignore[misc]
            def __init__(self, *given: Any, **named: Any) -> None:
                super().__init__(*given, **named)
                self.shifts_labels = shifts_labels(self.model)
                compute_in_chunks(self.model)
                uncounted = unfused_norms(self.model) if plan.norms == "fused" else None
                if uncounted is not None:
                    warnings.warn(
                        f"{uncounted} keeps copies in fp32 that this plan does not count, and the devices may run out "
                        "of memory: plan with norms: unfused in the training section of the model file",
                        stacklevel=2,
                    )
                # Trainer would weigh by the tokens of this rank's step, and no longer divide by its steps.
                self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = False
                self.planned_weights = cycle(plan.weights)

            @staticmethod
            def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
                # What the plan counted memory for, unless the script asks for another optimizer than Trainer's own.
                usual = str(getattr(args.optim, "value", args.optim)) in ("adamw_torch", "adamw_torch_fused")
                planned = plan.trainer_optimizer(args) if usual else None
                return planned or trainer.get_optimizer_cls_and_kwargs(args, model)  # type: ignore[attr-defined]

            def get_train_dataloader(self) -> DataLoader:
                self.planned_weights = cycle(plan.weights)
                return PlannedLoader(
                    self.train_dataset,
                    batch_sampler=PlannedBatches(plan, len(self.train_dataset), seed),
                    collate_fn=self._get_collator_with_removed_columns(self.data_collator),
                    num_workers=self.args.dataloader_num_workers,
                    pin_memory=self.args.dataloader_pin_memory,
                )

            def get_total_train_batch_size(self, *_: Any) -> int:
                return plan.global_batch

            def get_batch_samples(self, *given: Any, **named: Any) -> Any:
                samples, items = super().get_batch_samples(*given, **named)
                # A loss function of the user's is a mean over sequences, the model's own one over tokens.
                tokens = None if self.compute_loss_func else counted(samples, self.shifts_labels)
                if tokens is not None:
                    self.planned_weights = cycle(plan.token_weights(tokens))
                return samples, items

            def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
                loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
                if model.training:
                    weight = next(self.planned_weights)
                    # A mean over no token is no number, and would still be none at weight zero.
                    logits = None if weight else getattr(outputs, "logits", None)
                    loss = loss * weight if logits is None else 0.0 * logits.float().sum()
                return (loss, outputs) if return_outputs else loss

        return PlannedTrainer


def packed(
    documents: Iterable[Mapping[str, Sequence[int]]], length: int, filler: int = 0
) -> list[dict[str, Any]]:
    """Rows of ``length`` tokens for a Hugging Face model, each with as many of the documents as fit in a row, in order.

    A document has ``input_ids`` and may have ``labels``; one longer than a row is cut. Positions begin anew, by
    which models of transformers 5 keep attention inside it where they get no attention mask; no token is predicted
    from another document's, and ``filler`` at the end of a row counts for nothing.
    """
    rows, row, left = list[list[Mapping[str, Sequence[int]]]](), list[Mapping[str, Sequence[int]]](), 0
    for document in documents:
        for begin in range(0, len(document["input_ids"]), length):
            part = {
                name: document[name][begin : begin + length]
                for name in ("input_ids", "labels")
                if name in document
            }
            if len(part["input_ids"]) > left:
                row, left = [], length
                rows.append(row)
            row.append(part)
            left -= len(part["input_ids"])
    return [_row(parts, length, filler) for parts in rows]


def _row(parts: Sequence[Mapping[str, Sequence[int]]], length: int, filler: int) -> dict[str, Any]:
    tokens, labels, places = list[int](), list[int](), list[int]()
    for part in parts:
        tokens += part["input_ids"]
        labels += [IGNORED, *part.get("labels", part["input_ids"])[1:]]
        places += range(len(part["input_ids"]))
    rest = length - len(tokens)
    columns = {
        "input_ids": [*tokens, *[filler] * rest],
        "labels": [*labels, *[IGNORED] * rest],
        "position_ids": [*places, *range(rest)],
    }
    return {name: torch.tensor(column) for name, column in columns.items()}


def shifts_labels(model: Any) -> bool:
    """True when a Hugging Face model's loss compares each position with the label of the next."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return getattr(getattr(model, "loss_function", None), "__name__", USUAL_LOSS) == USUAL_LOSS


def compute_in_chunks(model: Any) -> None:
    """Have the usual loss of a Hugging Face model computed as the plan's memory counts on."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # of peft's adapters
    if getattr(getattr(inner, "loss_function", None), "__name__", "") == USUAL_LOSS:
        inner.loss_function = causal_loss


def unfused_norms(model: Any) -> str | None:
    """Class of the model's norms where they keep copies in fp32; None where one kernel each does without."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    kinds = {type(module) for module in parts if type(module).__name__.endswith("RMSNorm")}
    names = {kind.__name__ for kind in kinds if not issubclass(kind, torch.nn.RMSNorm)}
    return min((name for name in names if not name.startswith("Liger")), default=None)


def counted(batches: Sequence[Any], shifted: bool) -> list[int] | None:
    """Tokens with a label in each batch, as the mean loss of a Hugging Face model counts them; None without labels."""
    if not all("labels" in batch or "shift_labels" in batch for batch in batches):
        return None
    counts = []
    for batch in batches:
        labels = batch.get("shift_labels")
        if labels is None:
            labels = batch["labels"][..., 1:] if shifted and batch["labels"].ndim > 1 else batch["labels"]
        counts.append(int((labels != IGNORED).sum()))
    return counts


class PlannedLoader(DataLoader):  # type: ignore[misc]
    """DataLoader that passes on which pass over the data begins, as Trainer tells it."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the pass over the data."""
        self.batch_sampler.set_epoch(epoch)


class PlannedBatches(Sampler):  # type: ignore[misc]
    """Batch sampler for a DataLoader: this rank's micro-batches of whole passes over a data set.

    The order is the same on every rank: as stored, or shuffled anew by ``seed + epoch``. Sequences that
    fill no global batch at the end of a pass are left out. ``plan.weights`` repeats along.
    """

    def __init__(self, plan: RankPlan, length: int, seed: int | None = None) -> None:
        if length < plan.global_batch:
            raise ValueError(f"the data has {length} sequences, one step needs {plan.global_batch}")
        self.plan = plan
        self.length = length
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the pass over the data; changes the order when there is a seed."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length // self.plan.global_batch * self.plan.steps

    def __iter__(self) -> Iterator[list[int]]:
        order = None
        if self.seed is not None:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.length, generator=generator).tolist()
        for step in range(self.length // self.plan.global_batch):
            for micro in self.plan.micro_batches(step, order):
                yield list(micro.sequences)


def load(path: str | os.PathLike[str] | None = None, rank: int | None = None) -> RankPlan:
    """A rank's part of ``batches.json``: by default of this process (RANK), from beside this file."""
    file = Path(path) if path else Path(__file__).with_name("batches.json")
    table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if table.get("format") != FORMAT:
        raise ValueError(f"{file}: format {table.get('format')}, this file reads format {FORMAT}")
    _check_world(file, table["world_size"])
    number = int(os.environ["RANK"]) if rank is None else rank
    row = table["ranks"][number]
    batch = table["batches"][row["batch"]]
    return RankPlan(
        rank=number,
        world_size=table["world_size"],
        data_parallel=table["data_parallel"],
        global_batch=table["global_batch"],
        zero=table["zero"],
        stages=tuple(StagePlan(**stage) for stage in table["stages"]),
        stage=row["stage"],
        first_sequence=row["first_sequence"],
        sizes=tuple(batch["micro_batches"]),
        weights=tuple(batch["loss_weights"]),
        tensor_parallel=table["tensor_parallel"],
        sequence_parallel=table.get("sequence_parallel", False),
        tensor_rows=table.get("tensor_rows", 1),
        grid=tuple(each["rank"] for each in sorted(table["ranks"], key=_place)),
        shard_size=table.get("shard_size"),
        context_parallel=table.get("context_parallel", 1),
        context_kind=table.get("context_kind", "ulysses"),
        expert_parallel=table.get("expert_parallel", 1),
        sync=_sync(table.get("sync")),
        backup=table.get("backup", 0),
        shards=tuple(table.get("shards", ())),
        chunks=tuple(StagePlan(**chunk) for chunk in table.get("chunks", ())),
        schedule=table.get("schedule", "1f1b"),
        optimizer=table.get("optimizer", "adamw"),
        optimizer_states=table.get("optimizer_states", "fp32"),
        master_weights=table.get("master_weights", "fp32"),
        norms=table.get("norms", "fused"),
    )


def _nvme_folder() -> str:
    """The folder of this node for what is kept on NVMe."""
    folder = os.environ.get("NVME_PATH", "")
    if not os.access(folder, os.W_OK):
        what = f"NVME_PATH={folder}" if folder else "NVME_PATH is not set"
        raise ValueError(f"{what}: expected a writable folder on NVMe; set NVME_PATH in env/POOL.sh")
    return folder


def _sync(table: dict[str, Any] | None) -> SyncPlan | None:
    if table is None:
        return None
    islands = tuple(map(tuple, table["islands"]))
    return SyncPlan(**{**table, "islands": islands, "weights": tuple(table["weights"])})


def _place(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["stage"], row["replica"], row["tensor_rank"]


def _check_world(file: Path, planned: int) -> None:
    """A job of another size would deal sequences twice or not at all."""
    started = os.environ.get("WORLD_SIZE")
    if started is not None and int(started) != planned:
        raise ValueError(f"{file} is for {planned} ranks, this job has {started}")
