"""Sequence parallelism: activations outside the tensor-parallel matrices are split by tokens (arXiv:2205.05198)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, groups_of, in_words


class SequenceParallelism(Dimension):
    """``Plan.sequence_parallel``."""

    fields = ("Plan.sequence_parallel",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """On or off."""
        return {"sequence parallel": "yes" if plan.sequence_parallel else "no"}

    def words(self, plan: Plan) -> str:
        """Where it is on."""
        return "sequence parallel" if plan.sequence_parallel else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """It needs a runtime that has it, and tensor-parallel degrees that divide the sequence."""
        if not plan.sequence_parallel:
            return
        path, length = ("sequence_parallel",), model.training.sequence_length
        degrees = sorted({group.tp for _, group in groups_of(plan)})
        if not (target.sequence_parallel or target.unemitted_sequence_parallel):
            yield Fault(path, f"{target.name} has no sequence parallelism, expected false")
        elif degrees == [1]:
            yield Fault(path, "sequence parallelism needs tp of at least 2, expected false")
        elif any(length % tp for tp in degrees):
            yield Fault(
                path, f"tp {in_words(degrees)} must divide the sequence length {length}, expected false"
            )

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Off where it is on, and on where it is off."""
        if target.sequence_parallel and any(group.tp > 1 for _, group in groups_of(plan)):
            word = "without" if plan.sequence_parallel else "with"
            changed = replace(plan, sequence_parallel=not plan.sequence_parallel)
            yield Change("sequence parallel", f"{word} sequence parallelism", changed)


def splits_sequence(target: Capabilities, model: ModelSpec, tp: int | None) -> bool:
    """Sequence parallelism is on wherever it can be: same traffic, less memory. None: each stage has its own degree."""
    even = tp is None or (tp > 1 and model.training.sequence_length % tp == 0)
    return target.sequence_parallel and even


def norm_ways(tp: int, sequence_parallel: bool) -> int:
    """Devices of a replica that share what tensor parallelism alone leaves whole."""
    return tp if sequence_parallel else 1
