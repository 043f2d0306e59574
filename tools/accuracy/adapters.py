"""Steps and memory of models of which adapters are trained, by source and number format of what is under them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from planner.measured.predictions import Prediction
from planner.report.numbers import MISSING
from tools.accuracy.material import markdown, paragraph, share, signed

HEADINGS = ("source ", "devices ", "base ", "runs", "step", "bias", "runs", "memory", "bias")


def adapters_section(left_out: Sequence[Prediction]) -> str:
    """A line for each source and format."""
    groups: dict[tuple[str, str], list[Prediction]] = defaultdict(list)
    for each in left_out:
        if each.run.model.training.lora is not None:
            groups[each.run.source, base_of(each)].append(each)
    head = (
        "The runs that train adapters, each predicted with its source left out: means of errors and of errors with",
        "their signs. A base is in the format of the training, in fp8 (Megatron's `fp8_params`) or in four bits",
        "(QLoRA).",
    )
    lines = (_line(source, base, found) for (source, base), found in sorted(groups.items()))
    return f"{paragraph(*head)}\n{markdown(HEADINGS, lines)}"


def base_of(entry: Prediction) -> str:
    """Number format of the linear layers under the adapters."""
    training = entry.run.model.training
    assert training.lora is not None
    return training.lora.base or training.precision.replace("fp8", "bf16")


def _line(source: str, base: str, found: Sequence[Prediction]) -> tuple[str, ...]:
    families = sorted(
        {device for each in found for pool in each.run.cluster.pools for device in pool.devices}
    )
    times = [each.error for each in found if each.error is not None]
    peaks = [each.memory_error for each in found if each.memory_error is not None]
    return (source, ", ".join(families), base, *_errors(times), *_errors(peaks))


def _errors(errors: Sequence[float]) -> Iterable[str]:
    """Their number, mean and signed mean."""
    if not errors:
        return ("0", MISSING, MISSING)
    return (str(len(errors)), share(fmean(map(abs, errors))), signed(fmean(errors)))
