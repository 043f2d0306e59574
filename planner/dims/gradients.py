"""Number formats of gradients: what the user asks for, where a runtime has it."""

from __future__ import annotations

from collections.abc import Iterator

from planner.capabilities import Capabilities, Gradients
from planner.model.spec import HALVES, TrainingSpec


def gradients_at(target: Capabilities, training: TrainingSpec, zero: int) -> Gradients | None:
    """The formats of a training with a ZeRO stage; None where the runtime does not have those asked for.

    fp16 training keeps its gradients in fp16 in every runtime, fp32 training in fp32.
    """
    return next((each for each in _fitting(target, training) if zero in each.zero), None)


def gradients_of(target: Capabilities, training: TrainingSpec, zero: int) -> Gradients:
    """The same of a plan that may break a rule: then the formats asked for, whatever the stage."""
    return gradients_at(target, training, zero) or next(_fitting(target, training), target.gradients[0])


def _fitting(target: Capabilities, training: TrainingSpec) -> Iterator[Gradients]:
    kept, reduced = training.gradient_dtype, training.reduce_dtype
    own = {"fp16": (Gradients("fp16", "fp16"),), "fp32": (FULL,), "tf32": (FULL,)}
    for each in own.get(training.precision, target.gradients):
        if kept in (None, each.kept) and reduced in (None, each.reduced):
            yield each


FULL = Gradients("fp32", "fp32")


def gradient_faults(target: Capabilities, training: TrainingSpec, zeros: tuple[int, ...]) -> Iterator[str]:
    """What is wrong where none of these ZeRO stages has the formats asked for."""
    if any(gradients_at(target, training, zero) for zero in zeros):
        return
    given = {"gradient_dtype": training.gradient_dtype, "reduce_dtype": training.reduce_dtype}
    asked = " and ".join(f"{key} {value}" for key, value in given.items() if value)
    if training.precision not in HALVES:
        yield f"gradients of {training.precision} training have its own format, expected no {asked}"
        return
    able = (f"{each.kept} added up in {each.reduced}" for each in target.gradients if {*zeros} & {*each.zero})
    stages = f" with ZeRO {', '.join(map(str, zeros))}" if len(zeros) == 1 else ""
    yield f"{target.name} keeps gradients{stages} in {' or '.join(dict.fromkeys(able))}, got {asked}"
