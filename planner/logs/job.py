"""Whether a log is of the job that a plan describes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.errors import UsageError
from planner.logs.values import Log
from planner.plan.placement import Rank
from planner.plan.values import Plan


def require_same_job(log: Log, plan: Plan, ranks: Sequence[Rank]) -> None:
    """Raise UsageError that names each field in which the log's job is not the plan's."""
    wrong = [*_other_facts(log, plan), *_other_ranks(log, ranks)]
    if wrong:
        raise UsageError(
            f"{', '.join(log.files)}: the log is of another job than the plan: {'; '.join(wrong)}",
            hint="give the log of a run of this plan, or the plan that the run had",
        )


def _other_facts(log: Log, plan: Plan) -> Iterator[str]:
    planned = {
        "global batch": plan.global_batch,
        "world size": plan.devices,
        "tensor parallel size": plan.stages[0].replicas[0].tp,
        "pipeline parallel size": len(plan.stages),
    }
    for fact in log.facts:
        if fact.value != planned[fact.field]:
            yield f"{fact.field} {fact.value}, planned {planned[fact.field]}"


def _other_ranks(log: Log, ranks: Sequence[Rank]) -> Iterator[str]:
    told = [(entry.rank, entry.stage) for entry in log.memory]
    told += [(entry.rank, None) for entry in log.parts]
    for rank, stage in dict.fromkeys(told):
        if rank is None:
            continue
        if rank >= len(ranks):
            yield f"world size above {rank}, planned {len(ranks)} ranks"
            return
        if stage is not None and stage != ranks[rank].stage:
            yield f"rank {rank} holds stage {stage}, planned stage {ranks[rank].stage}"
            return
