"""The batch table, which says what sequences each rank processes in a step and what each micro-batch weighs, and what
of the example that reads it is the same for every runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from planner.cost.shape import chunk_spans
from planner.job.files import EmittedFile, document, node_file, rows
from planner.job.job import UNTRAINED, Job
from planner.model.spec import ModelSpec
from planner.plan.placement import Rank, by_copies
from planner.plan.values import Plan, ReplicaGroup

FORMAT = 1
"""Version of batches.json; the runtime refuses any other."""


OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
"""Of the outer optimizer, SGD with Nesterov's momentum (arXiv:2311.08105, section 3)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rank does in one optimizer step."""

    micro_batches: tuple[int, ...]
    """Sequences of each micro-batch, [step]; 0 is padding, run on one sequence at weight zero."""
    loss_weights: tuple[float, ...]
    """Factor of each micro-batch's mean loss, [step]."""

    @property
    def share(self) -> int:
        """Sequences of the global batch."""
        return sum(self.micro_batches)


def batch(plan: Plan, group: ReplicaGroup, of: tuple[int, int, int] | None = None) -> Batch:
    """The batch of each replica of a group, padded where the ZeRO stage needs it.

    Notes
    -----
    The runtime divides a micro-batch's loss by the rank's steps and averages gradients over the dp
    replicas; ``size * dp * steps / global batch`` undoes both and weighs every sequence alike. Each
    of ``cp`` replicas that share a sequence has the mean loss of its part, which counts that much less. Gradients of a
    grid's rows are added up, not averaged.
    Replicas of an island do so among themselves: ``of`` are its replicas, their sequences, and the most steps of one.

    ZeRO 2 reduces gradients and ZeRO 3 gathers parameters in every micro-batch, so there all ranks
    need the same number of them; ZeRO 0 and 1 communicate once a step and take any number.
    """
    if plan.grid is not None:
        plan, group = plan.copies, plan.copies_of(group)
    rows = plan.grid.rows if plan.grid else 1
    replicas, sequences, most = of or (plan.stages[0].dp, plan.global_batch, plan.micro_batches)
    steps = most if plan.zero >= 2 else group.accumulation_steps
    sizes = tuple(size // rows for size in group.micro_batch_sizes)
    sizes += (0,) * (steps - group.accumulation_steps)
    scale = replicas * steps / plan.cp
    return Batch(sizes, tuple(size * scale / sequences for size in sizes))


def table_text(job: Job) -> str:
    """The table as JSON: stages, the distinct batches, and one row for each rank."""
    plan, ranks, training = job.plan.copies, lines_of(job), job.model.training
    batches = _batches(job)
    distinct = sorted({*batches}, key=lambda each: (each.micro_batches, each.loss_weights))
    chunks = [
        {"first_layer": first, "end_layer": end, "recompute": plan.stages[stage].recompute}
        for stage, first, end in chunk_spans(plan)
    ]
    head = {
        "format": FORMAT,
        "world_size": len(ranks),
        "data_parallel": plan.stages[0].dp,
        "tensor_parallel": plan.grid.columns if plan.grid else plan.stages[0].replicas[0].tp,
        **({"sequence_parallel": True} if plan.sequence_parallel else {}),
        **({"tensor_rows": plan.grid.rows} if plan.grid else {}),
        "global_batch": plan.global_batch,
        "zero": plan.zero,
        **({} if plan.cp == 1 else {"context_parallel": plan.cp, "context_kind": plan.cp_kind}),
        **({} if plan.ep == 1 else {"expert_parallel": plan.ep}),
        **({} if plan.shard_size is None else {"shard_size": plan.shard_size}),
        **({} if plan.sync.exact else {"sync": _sync(job)}),
        **({"backup": plan.backup} if plan.backup else {}),
        **({"shards": list(plan.stages[0].shards)} if plan.unequal_shards else {}),
        **({} if plan.schedule == "1f1b" else {"schedule": plan.schedule}),
        **({} if training.optimizer == "adamw" else {"optimizer": training.optimizer}),
        **({} if training.optimizer_states == "fp32" else {"optimizer_states": training.optimizer_states}),
        **({} if training.master_weights != "bf16" else {"master_weights": "bf16"}),
        **({} if training.norms == "fused" else {"norms": training.norms}),
    }
    return rows(
        head,
        stages=[
            {"first_layer": stage.first_layer, "end_layer": stage.end_layer, "recompute": stage.recompute}
            for stage in plan.stages
        ],
        **({"chunks": chunks} if plan.interleave > 1 else {}),
        batches=[
            {"micro_batches": list(each.micro_batches), "loss_weights": list(each.loss_weights)}
            for each in distinct
        ],
        ranks=_rank_rows(ranks, plan.cp, batches, {each: index for index, each in enumerate(distinct)}),
    )


def lines_of(job: Job) -> tuple[Rank, ...]:
    """The ranks of the plan; those of a grid by its rows, each of which has sequences of its own as a replica has."""
    grid = job.plan.grid
    if grid is None:
        return job.ranks
    return tuple(
        replace(
            rank,
            replica=rank.replica * grid.rows + rank.tp_rank // grid.columns,
            tp_rank=rank.tp_rank % grid.columns,
        )
        for rank in by_copies(job.plan, job.ranks)
    )


def _batches(job: Job) -> list[Batch]:
    """What each rank does."""
    plan = job.plan
    if plan.sync.exact:
        mine = [plan.group_of(rank.stage, rank.group, rank.replica) for rank in job.ranks]
        each = {group: batch(plan, group) for group in dict.fromkeys(mine)}
        return [each[group] for group in mine]
    groups, batches = plan.stages[0].replicas, {}
    for island in job.islands:
        own = [groups[rank.group] for rank in island]
        of = (
            len(own),
            sum(group.local_batch for group in own),
            max(group.accumulation_steps for group in own),
        )
        batches.update({rank.rank: batch(plan, groups[rank.group], of) for rank in island})
    return [batches[rank.rank] for rank in job.ranks]


def _sync(job: Job) -> dict[str, object]:
    """What islands exchange, for the runtime: their ranks, and the share of the global batch that each counts for."""
    sync, groups = job.plan.sync, job.plan.stages[0].replicas
    shares = [sum(groups[rank.group].local_batch for rank in island) for island in job.islands]
    outer = {"outer_lr": OUTER_LR, "outer_momentum": OUTER_MOMENTUM} if sync.method == "diloco" else {}
    return {
        "every": sync.every,
        **({"method": sync.method, **outer} if sync.local else {}),
        "format": sync.format,
        **({} if sync.rank is None else {"rank": sync.rank}),
        **({} if sync.ratio is None else {"ratio": sync.ratio}),
        "islands": [[rank.rank for rank in island] for island in job.islands],
        "weights": [share / job.plan.global_batch for share in shares],
    }


def _rank_rows(
    ranks: tuple[Rank, ...], cp: int, batches: list[Batch], index: dict[Batch, int]
) -> list[dict[str, object]]:
    table: list[dict[str, object]] = []
    starts: dict[int, int] = {}
    followings: dict[int, int] = {}
    for rank in ranks:
        # All ranks of a replica process the same sequences, and those of replicas that share them.
        if rank.tp_rank == 0 and rank.replica % cp == 0:
            starts[rank.stage] = followings.get(rank.stage, 0)
        first, mine = starts[rank.stage], batches[rank.rank]
        table.append(
            {
                "rank": rank.rank,
                "host": rank.host,
                "device": rank.device,
                "stage": rank.stage,
                "replica": rank.replica,
                "tensor_rank": rank.tp_rank,
                "batch": index[mine],
                "first_sequence": first,
                "share": mine.share,
            }
        )
        followings[rank.stage] = first + mine.share
    return table


def example_files(job: Job) -> tuple[EmittedFile, ...]:
    """The table, the model's shape, and what examples need whatever the runtime."""
    modules = (
        "hetplan_runtime",
        "hetplan_loss",
        "example_context",
        "example_ring",
        "example_experts",
        "example_model",
        "example_state",
        "example_beside",
        "example_tower",
        "example_encoder",
        "example_adapters",
        "example_data",
        "example_optimizers",
        "example_run",
        "step_log",
    )
    return (
        EmittedFile("batches.json", table_text(job)),
        EmittedFile("model.json", document(model_shape(job.model))),
        *(node_file(f"planner.training.{module}") for module in modules),
    )


_OF_RUNS = {"__all__": {"projections", "attention_other", "window"}}
_PRICED: dict[str, Any] = {
    "projections": True,
    "numerics": True,
    **{"ahead": _OF_RUNS, "block": _OF_RUNS, "behind": _OF_RUNS, "encoder": {"block": _OF_RUNS}},
}
"""What no example has."""
_NUMERICS = {"activation", "norm_epsilon", "rope_base", "rope_share"}
"""What it has of a model's numerics."""


def model_shape(model: ModelSpec) -> dict[str, object]:
    """What the example needs to build a model of the planned shape."""
    training = model.training
    shape: dict[str, object] = model.model_dump(exclude={"training": True, **_PRICED})
    if not model.beside:
        del shape["beside"]
    if model.numerics is not None:
        said = model.numerics.model_dump(include=_NUMERICS, exclude_none=True)
        shape |= said if said.get("activation") not in UNTRAINED else {**said, "activation": None}
    names = ("sequence_length", "optimizer", "optimizer_states")
    shape |= {name: getattr(training, name) for name in names}
    if training.master_weights == "bf16":
        shape["master_weights"] = "bf16"
    if training.preference is not None:
        shape["preference"] = training.preference.model_dump()
    if training.documents is not None:
        shape["documents"] = training.documents.model_dump()
    if training.cross_entropy is not None:
        shape["cross_entropy"] = training.cross_entropy
    if training.norms != "fused":
        shape["norms"] = training.norms
    if training.freeze is not None:
        shape["freeze"] = list(training.freeze)
    if training.lora is not None:
        rank, alpha = training.lora.rank, training.lora.alpha
        adapters = {"rank": rank, "alpha": alpha or 2 * rank, "targets": list(model.adapter_targets)}
        shape["lora"] = {**adapters, **({"base": training.lora.base} if model.quantised else {})}
    return shape
