"""What explains the difference between a run and its prediction, and what to measure again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.logs.comparison import Comparison, Deviation, MemoryDeviation, PartDeviation, PredictedRun
from planner.logs.reading import FEWEST_RECORDS, WARM_UP_STEPS, Observed
from planner.runtimes.interface import runtime

Cause = Literal[
    "warm-up", "spread", "compute", "communication", "optimizer", "outside", "step", "memory", "none"
]

BUSY = 0.10
"""Relative spread of the steps above which the devices had other work."""
MATTERS = 0.05
"""Share of the observed step by which a part has to be off."""
MEMORY_MATTERS = 0.10
"""Share of the observed peak by which memory has to be off."""

DEVICE = "hetplan calibrate device --model model.yaml"
NETWORK = "hetplan calibrate network"
FIT = "hetplan calibrate fit --measured runs.csv -o calibration.yaml"
RUN = ("hetplan", "calibrate", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the numbers say, and the commands that put it right."""

    cause: Cause
    """What is off, in a word."""
    text: str
    """The same in a sentence."""
    commands: tuple[str, ...] = ()
    """What puts it right."""


def findings(
    seen: Observed,
    comparison: Comparison,
    predicted: PredictedRun,
    plan: str = "plan.yaml",
    logs: Sequence[str] = ("FILE",),
) -> tuple[Finding, ...]:
    """Doubts of the measurement first, then what is off, the largest part first; never empty.

    ``plan`` and ``logs`` are the files as the user named them, for commands.
    """
    parts = _parts(comparison, predicted)
    # The file of measurements is there by then; what the run says is added to it.
    words = [
        plan,
        *(word for log in logs for word in ("--log", log)),
        "--calibration",
        "calibration.yaml",
        "--force",
    ]
    run = shlex.join([*RUN, *words])
    # A first step is slow by itself: nothing to measure for it.
    untold = comparison.within or seen.only_warm_up
    step = [] if parts or untold else [_step(seen, comparison, predicted, run)]
    told = (*_doubts(seen), *parts, *step, *_memory(comparison))
    return told or (Finding(cause="none", text="the prediction holds: nothing to measure again"),)


def _doubts(seen: Observed) -> Iterator[Finding]:
    """Why the observation itself may not be true."""
    if seen.more_steps is None:
        text = "the log has one mean of the whole run, warm-up included: log single steps with step_log.py's callback"
        yield Finding(cause="warm-up", text=text)
    elif seen.only_warm_up:
        text = (
            f"the log ends within the first {WARM_UP_STEPS} steps, which are warm-up, or its only record holds "
            f"them: run at least {seen.more_steps} more steps"
        )
        yield Finding(cause="warm-up", text=text)
    elif len(seen.seconds) < FEWEST_RECORDS:
        text = (
            f"step times after the warm-up: {len(seen.seconds)}, too few to trust; "
            f"run at least {seen.more_steps} more steps"
        )
        yield Finding(cause="warm-up", text=text)
    if seen.spread is not None and seen.spread > BUSY:
        text = (
            f"step times vary by {100 * seen.spread:.0f} %: the devices or the network were busy; run again"
        )
        yield Finding(cause="spread", text=text)


def _parts(comparison: Comparison, predicted: PredictedRun) -> tuple[Finding, ...]:
    """Parts that are off by more than the spread and matter to the step, the largest first."""
    off = [*_compute(comparison), *_optimizer(comparison, predicted), *_sync(comparison, predicted)]
    off += _waiting(comparison, predicted, any(finding.cause == "compute" for _, finding in off))
    return tuple(finding for _, finding in sorted(off, key=lambda entry: -entry[0]))


def _matters(difference: Deviation, comparison: Comparison) -> bool:
    """True for a part that is off by more than the spread, and by enough of the step."""
    large = abs(difference.excess) >= MATTERS * comparison.step.observed
    return large and not difference.within(comparison.spread)


def _compute(comparison: Comparison) -> Iterator[tuple[float, Finding]]:
    """Forward and backward together, by stage."""
    both = [entry for entry in comparison.parts if entry.part in ("forward", "backward")]
    for stage in sorted({entry.stage for entry in both}):
        mine = [entry for entry in both if entry.stage == stage]
        total = Deviation(
            predicted=sum(entry.seconds.predicted for entry in mine),
            observed=sum(entry.seconds.observed for entry in mine),
        )
        if _matters(total, comparison):
            yield abs(total.excess), _compute_finding(mine[0], total, comparison)


def _compute_finding(entry: PartDeviation, total: Deviation, comparison: Comparison) -> Finding:
    whose = f"forward and backward of stage {entry.stage} ({entry.gpu})"
    what = f"{whose} {_ratio(total, 'take')}{_share(total, comparison)}"
    device = DEVICE if entry.tp == 1 else f"{DEVICE} --tp {entry.tp}"
    text = f"{what}: measure its layers on one {entry.gpu}"
    if entry.tp == 1:
        return Finding(cause="compute", text=text, commands=(device,))
    return Finding(
        cause="compute", text=f"{text}, and the collectives inside a replica", commands=(device, NETWORK)
    )


def _optimizer(comparison: Comparison, predicted: PredictedRun) -> Iterator[tuple[float, Finding]]:
    for entry in comparison.parts:
        if entry.part == "optimizer" and _matters(entry.seconds, comparison):
            what = f"the optimizer of stage {entry.stage} ({entry.gpu}) {_ratio(entry.seconds)}"
            text = f"{what}{_share(entry.seconds, comparison)}: measure it on one {entry.gpu}"
            command = f"{DEVICE} --zero {predicted.plan.zero}"
            yield abs(entry.seconds.excess), Finding(cause="optimizer", text=text, commands=(command,))


def _sync(comparison: Comparison, predicted: PredictedRun) -> Iterator[tuple[float, Finding]]:
    for entry in comparison.parts:
        if entry.part == "gradient sync" and _matters(entry.seconds, comparison):
            stage = predicted.estimate.stages[entry.stage]
            link = stage.copies_cross or stage.crosses
            what = f"gradient sync of stage {entry.stage} over {_named(link)} {_ratio(entry.seconds)}"
            text = f"{what}{_share(entry.seconds, comparison)}: measure that network, under torchrun"
            yield (
                abs(entry.seconds.excess),
                Finding(cause="communication", text=text, commands=(_network(link),)),
            )


def _waiting(
    comparison: Comparison, predicted: PredictedRun, explained: bool
) -> Iterator[tuple[float, Finding]]:
    """Sends and waiting, unless stages that compute otherwise than predicted explain them."""
    timed = [entry.seconds for entry in comparison.parts if entry.part == "sends and waiting"]
    waits = timed or ([comparison.rest] if comparison.rest else [])
    off = [entry for entry in waits if _matters(entry, comparison)]
    if not off or (explained and len(predicted.plan.stages) > 1):
        return
    total = max(off, key=lambda entry: abs(entry.excess))
    if len(predicted.plan.stages) == 1:
        if total.excess > 0:
            text = f"{_percent(total.observed, comparison)} of the step lie outside the runtime's timers"
            advice = (
                "data loading, logging, checkpoints, or waiting for other ranks, which no calibration changes"
            )
            yield total.excess, Finding(cause="outside", text=f"{text}: {advice}")
        return
    stage = max(predicted.estimate.stages[:-1], key=lambda entry: entry.send_seconds)
    text = f"sends and waiting between stages {_ratio(total, 'take')}{_share(total, comparison)}"
    yield (
        abs(total.excess),
        Finding(
            cause="communication",
            text=f"{text}: measure {_named(stage.link)}, under torchrun",
            commands=(_network(stage.link),),
        ),
    )


def _step(seen: Observed, comparison: Comparison, predicted: PredictedRun, run: str) -> Finding:
    """The step is off, and no part says why: what the prediction holds to be its largest cause."""
    causes = predicted.estimate.breakdown
    compute = causes.compute_seconds + causes.recompute_seconds
    talking = causes.tensor_parallel_seconds + causes.zero_seconds + causes.gradient_sync_seconds
    what = f"the step {_ratio(comparison.step)}, beyond ±{100 * comparison.spread:.0f} %"
    reason = f"the log has no parts ({_how_to_time(seen, predicted)})"
    if comparison.parts:
        reason = "the parts that the log has do not explain it"
    first = f"compute of stage {predicted.critical} ({predicted.gpus(predicted.critical)})"
    first, command = (first, DEVICE) if compute >= talking else ("communication", NETWORK)
    text = f"{what}, and {reason}: the largest predicted cause is {first}, measure that first"
    if predicted.plan.pp == 1 or comparison.step.excess < 0:
        return Finding(cause="step", text=text, commands=(command,))
    text += "; the rest is host overhead per micro-batch, which can be fitted to this log"
    return Finding(cause="step", text=text, commands=(command, run))


def _how_to_time(seen: Observed, predicted: PredictedRun) -> str:
    """How this run would print its parts."""
    own = runtime(predicted.plan.target).how_to_time(predicted.plan)
    return own or f"{seen.source} cannot print them for this plan"


def _memory(comparison: Comparison) -> Iterator[Finding]:
    """The rank whose peak is off by most, and which of its parts."""
    off = [entry for entry in comparison.memory if _memory_matters(entry.peak, entry)]
    if off:
        yield _memory_finding(max(off, key=lambda entry: abs(entry.peak.error)))
    fixed = [entry for entry in comparison.memory if entry.fixed and _memory_matters(entry.fixed, entry)]
    if fixed:
        entry = max(fixed, key=lambda entry: abs(entry.fixed.excess) if entry.fixed else 0.0)
        assert entry.fixed is not None
        text = f"context and libraries on {_where(entry)} {_ratio(entry.fixed, 'need')}: measure a device"
        yield Finding(cause="memory", text=text, commands=(DEVICE,))


def _memory_matters(difference: Deviation, entry: MemoryDeviation) -> bool:
    return abs(difference.excess) > MEMORY_MATTERS * entry.peak.observed


def _memory_finding(entry: MemoryDeviation) -> Finding:
    what = f"tensors on {_where(entry)} {_ratio(entry.peak, 'need')}"
    if entry.states is None or entry.activations is None:
        text = f"{what}: give the peaks of five runs or more to calibrate fit"
        return Finding(cause="memory", text=text, commands=(FIT,))
    if abs(entry.states.excess) > abs(entry.activations.excess):
        text = f"{what}, most of it parameters, gradients and optimizer states: does the run use the plan's ZeRO stage,"
        return Finding(
            cause="memory", text=f"{text} optimizer and precision? No calibration can change these"
        )
    text = f"{what}, most of it activations and buffers: does the run use the plan's recomputation, attention and"
    text = f"{text} micro-batch? If so, give the peaks of five runs or more to calibrate fit"
    return Finding(cause="memory", text=text, commands=(FIT,))


def _where(entry: MemoryDeviation) -> str:
    whose = "the fullest device" if entry.rank is None else f"rank {entry.rank}"
    return f"{whose} (stage {entry.stage}, {entry.gpu})"


def _ratio(difference: Deviation, verb: str = "takes") -> str:
    """``takes 1.42 x the predicted``; in full where next to nothing was predicted."""
    if difference.observed > 100 * difference.predicted:
        return f"{verb} what was hardly predicted"
    return f"{verb} {difference.observed / difference.predicted:.2f} x the predicted"


def _share(difference: Deviation, comparison: Comparison) -> str:
    """How much of the step's difference a part explains; empty where the step is as predicted."""
    share = difference.excess / comparison.step.excess if comparison.step.excess else 0.0
    return f" ({100 * share:.0f} % of the difference)" if not comparison.within and share > 0 else ""


def _percent(seconds: float, comparison: Comparison) -> str:
    return f"{100 * seconds / comparison.step.observed:.0f} %"


def _named(link: str) -> str:
    return {"node": "the links inside nodes", "device": "nothing, waiting only,", "": "the links"}.get(
        link, link
    )


def _network(link: str) -> str:
    """The command that measures a link: inside a node, or a fabric between nodes."""
    return NETWORK if link in ("node", "device", "") else f"{NETWORK} --fabric {link}"
