"""What was aimed at: goals by source, what stands in the way, and other tools on the same runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planner.measured.predictions import Errors, Prediction, rank_correlation, truth
from planner.report.numbers import MISSING
from tools.accuracy import zero_table
from tools.accuracy.material import Material, bullets, correlation, markdown, paragraph, share


@dataclass(frozen=True, slots=True)
class Goal:
    """One quantity of one source, what others reach and what was aimed at."""

    title: str
    source: str
    """A source, a key of ``TERMS``, or ``EVERY``."""
    quantity: str
    """Key of ``QUANTITIES``."""
    elsewhere: str
    """Best known of other tools."""
    bound: float
    """Largest error or regret, smallest correlation."""
    beside_profile: bool = False
    """True for what is predicted from a profile of the model's layers, as the tools elsewhere do."""

    def of(self, found: Material) -> list[Prediction]:
        """Predictions of its runs, each source left out."""
        if self.source == EVERY:
            return list(found.left_out)
        names = TERMS.get(self.source, (self.source,))
        return [entry for name in names for entry in found.of(name, beside_profile=self.beside_profile)]


@dataclass(frozen=True, slots=True)
class Quantity:
    """How a quantity is found and judged."""

    found: Callable[[Sequence[Prediction]], float | None]
    more_is_better: bool = False
    errors: Callable[[Sequence[Prediction]], Errors | None] = lambda _: None
    """Behind the quantity, when it is a mean error."""
    counts: bool = False
    """True for a number of runs."""

    def met(self, value: float | None, bound: float) -> bool:
        """True when the goal is reached."""
        return value is not None and (value >= bound if self.more_is_better else value <= bound)

    def show(self, value: float | None) -> str:
        """The value in its notation."""
        if self.counts:
            return MISSING if value is None else str(round(value))
        return correlation(value) if self.more_is_better else share(value)


def _time(found: Sequence[Prediction]) -> Errors | None:
    total = truth(found).total
    return total.errors if total else None


def _memory(found: Sequence[Prediction]) -> Errors | None:
    total = truth(found).total_memory
    return total.errors if total else None


def _mean(
    errors: Callable[[Sequence[Prediction]], Errors | None],
) -> Callable[[Sequence[Prediction]], float | None]:
    def mean(found: Sequence[Prediction]) -> float | None:
        known = errors(found)
        return known.mean if known else None

    return mean


def _order(found: Sequence[Prediction]) -> float | None:
    total = truth(found).total
    return total.rank_correlation if total else None


def _order_of_all(found: Sequence[Prediction]) -> float | None:
    timed = [entry for entry in found if entry.error is not None]
    pairs = [(entry.predicted_seconds or 0.0, entry.run.step_seconds or 0.0) for entry in timed]
    return rank_correlation([mine for mine, _ in pairs], [known for _, known in pairs])


def _regret(found: Sequence[Prediction]) -> float | None:
    total = truth(found).total
    return total.mean_regret if total else None


def _false_alarms(found: Sequence[Prediction]) -> float | None:
    fits = truth(found).total_fits
    return fits.false_alarms if fits else None


def _missed(found: Sequence[Prediction]) -> float | None:
    fits = truth(found).total_fits
    return fits.missed if fits else None


QUANTITIES = {
    "step time": Quantity(_mean(_time), errors=_time),
    "memory": Quantity(_mean(_memory), errors=_memory),
    "Spearman": Quantity(_order, more_is_better=True),
    "Spearman over all": Quantity(_order_of_all, more_is_better=True),
    "regret": Quantity(_regret),
    "ran, though said not to fit": Quantity(_false_alarms, counts=True),
    "out of memory, though said to fit": Quantity(_missed, counts=True),
}

EVERY = "all"
"""All sources."""

GOALS = (
    Goal("Megatron 2022", "megatron-2022", "step time", "3.65 %, Calculon, tuned on it", 0.05),
    Goal("Megatron SC21 table 1", "megatron-sc21", "step time", "4 to 12 %, Calculon", 0.05),
    Goal("A100, one node", "vtrain-single-node", "step time", "8.37 %, vTrain, claimed", 0.05),
    Goal("A100, many nodes", "vtrain-multi-node", "step time", "11.1 %, Calculon", 0.055),
    Goal("A100, many nodes", "vtrain-multi-node", "Spearman", MISSING, 0.85),
    Goal("MPT under FSDP", "mpt-fsdp", "step time", "none", 0.12),
    Goal("FSDP on RoCE", "internevo", "step time", "none", 0.12),
    Goal("Holmes, 1 and 2 networks", "holmes", "step time", "none", 0.08),
    Goal("BLOOM tuning", "bloom-tuning", "step time", "29 %, Calculon", 0.10),
    Goal("BLOOM tuning", "bloom-tuning", "memory", MISSING, 0.04),
    Goal("OPT-350M on GH200, beside its profile", "sailor-gh200", "step time", "8.4 %, Sailor", 0.05, True),
    Goal(
        "OPT-350M on GH200, beside its profile", "sailor-gh200", "memory", "5.9 to 6.2 %, Sailor", 0.03, True
    ),
    Goal("GPT-2 on 16 T4", "amp-t4", "step time", "47.6 %, AMP", 0.12),
    Goal("GPT-2 on 16 T4", "amp-t4", "Spearman", "0.93, AMP", 0.85),
    Goal("GPT-2 on 16 T4", "amp-t4", "regret", "10 %, AMP", 0.05),
    Goal("Experts", "experts", "step time", "24 %, a prototype of three constants on 18 runs", 0.20),
    Goal("Experts", "experts", "Spearman over all", "0.72, the same", 0.85),
    Goal("Experts", "experts", "memory", MISSING, 0.10),
    Goal("Context parallelism", "context", "step time", "none", 0.15),
    Goal("Offload", "offload", "step time", "none", 0.25),
    Goal("Runs that ran or did not", EVERY, "ran, though said not to fit", "none", 0),
    Goal("Runs that ran or did not", EVERY, "out of memory, though said to fit", "none", 0),
)

TERMS = {
    "experts": ("bridge-experts", "bridge-skills", "xtuner-moe"),
    "context": ("bridge-context", "xtuner-context"),
    "offload": ("zero-offload", "zero-infinity"),
}
"""Sources of the runs that tell a term."""

ODD_SPLIT = (2, 16, 16)
"""tp, pp and dp of the multi-node runs that are slower than the bubble and the network explain."""

REASONS = {
    EVERY: (
        "one run of BLOOM's tuning that was out of memory is predicted to fill its devices to the last 1 %; why "
        "DeepSpeed runs out of memory with 32 sequences a device and not with 24 (`bmtrain-08`, 5 GiB below what there "
        "is), BMTrain's table does not say; adapters of 7 billion with LitGPT's layers and four sequences fill 40 GB "
        "by the prediction, too, but for what the allocator could give back (`litgpt-a100-llama-2-7b-bf16-4`)."
    ),
    "vtrain-single-node": (
        "the source says that all of them recompute, and their layers are too fast for that: on one device of "
        "a replica (h 2048, micro-batch 8) a further layer takes 16.5 ms, in which products and attention "
        "alone would need 268 TFLOP/s if all else ran at the memory's full rate, next to 271 of the best "
        "product measured (at h 1024 more than that), while the same authors' runs on many nodes, with h 3072, "
        "reach two thirds of its model FLOP/s. These runs are predicted 10 to 15 % too slow. Their simulator leaves "
        "recomputation out on the last stage, so in all plans of one; layers take as long in pipelines of one, two "
        "and four stages, so either all of these runs recompute or none does. Taken as if none did, a launch would "
        "take half as long again as with other A100, and 17 % remain when fitted to. The same runs take 9 ms a "
        "sequence for the head, which takes 2.1 on two devices, as if its vocabulary were not aligned; and "
        "runs bound by the host differ between shapes by 12 % in the wrong direction (tp 4, micro-batch 1: "
        "3.65 ms a layer at h 1024, 3.25 ms at h 2048). Within a shape they agree to 1 %. A form of 14 free "
        "constants reaches 4.9 %, with products at 122 % of the peak."
    ),
    "megatron-2022": (
        "its nine runs, of Megatron a year younger than the others with these kernels, are predicted 1 to 9 % too "
        "slow, those that recompute all and those that do not alike. With replicas on several nodes among what is "
        "fitted to (docs/measurements.md) tensor-parallel traffic is slower than it was in them; without, the mean "
        "is 4.2 %."
    ),
    "vtrain-multi-node": (
        "two runs (tp 2, pp 16, dp 16; {odd} of them here) are 1.3 to 1.5 times as slow as their neighbours with the "
        "same bubble; without them the mean is {mean} and Spearman {order}. Five more with tp 2 or 4 on 512 devices "
        "are 9 to 20 % slower than others of the same tp, one slower than the same plan with twice the micro-batch "
        "and bubble (17.6 s, 16.1 s): no term of a plan explains them. Many of the runs differ by less than the error."
    ),
    "mpt-fsdp": (
        "without its own runs nothing tells the attention of FlashAttention 1 from that of today's kernels, nor "
        "an eager host; fitted to, the error is that of the second table."
    ),
    "holmes": (
        "batch, cards a node and half of the rates are recalled, not read (docs/measurements.md). At equal plans "
        "its RoCE runs take 23 % longer than those over InfiniBand on 32 devices and 2 % on 64, and Megatron-LLaMA "
        "hides a reduction that Holmes, which has its optimizer, seems not to."
    ),
    "sailor-gh200": (
        "layers take as long as in the profile, so that what is left is not in them. Its fork runs DeepSpeed's "
        "pipeline engine: transfers of 64 MiB take about 3 ms more than the quarter that a device sends, which its own "
        "benchmark of sends moves at 20 GB/s, and steps of several replicas 0.07 to 0.1 s more than those of one, "
        "whatever their number; steps of one sequence are predicted too slow, as layers run faster in a step than "
        "alone (docs/cost_model.md). Without the profile nothing tells of that device or of eager unfused attention "
        "on it."
    ),
    "amp-t4": (
        "the only runs on T4, whose clock under load (70 W) one machine tells, and the only ones on plain TCP with "
        "unfused Megatron."
    ),
    "offload": (
        "compute, not copies: the same models without offload are as far off (docs/cost_model.md). ZeRO-Infinity's "
        "FLOPs count recomputation, as its authors' code says (docs/measurements.md); ZeRO-Offload's source does not "
        "say and is read like theirs; its nine runs, of 1 to 13 billion, are all a fifth to a third too fast."
    ),
    "bloom-tuning": (
        "its authors read their monitor once a run. Two rows contradict others with half or twice the micro-batch and "
        "nothing else changed: 65 GB where twice as many sequences take 56 (`bloomtune-034`, `-035`), 38 where they "
        "take 60, of which 12 are activations (`-071`, `-069`). A third is the only one without ZeRO. Without these "
        "three the mean is 3.5 %."
    ),
}
"""What stands in the way of a goal that is not met, by source."""

ELSEWHERE = (
    ("megatron-2022", "Calculon", "step time", "3.65 %"),
    ("megatron-sc21", "Calculon", "step time", "4 to 12 %"),
    ("vtrain-multi-node", "Calculon", "step time", "11.1 %, median 7.1 %"),
    ("vtrain-multi-node", "vTrain", "step time", "14.73 %, claimed"),
    ("vtrain-multi-node", "llm-analysis", "step time", "17.9 %"),
    ("vtrain-single-node", "Calculon", "step time", "36.6 %"),
    ("vtrain-single-node", "vTrain", "step time", "8.37 %, claimed"),
    ("vtrain-single-node", "llm-analysis", "step time", "54.6 %"),
    ("bloom-tuning", "Calculon", "step time", "29.1 %"),
    ("sailor-gh200", "Sailor", "step time", "8.4 %"),
    ("sailor-gh200", "Sailor", "memory", "5.9 to 6.2 %"),
    ("amp-t4", "AMP", "step time", "47.6 %"),
    ("amp-t4", "AMP", "Spearman", "0.93"),
)
"""(source, tool, quantity, its error)."""
PROFILED = ("Sailor",)
"""Tools that start from a profile of the model's layers on the device."""


def missed(found: Material) -> list[Goal]:
    """Goals that are not met."""
    return [goal for goal in GOALS if not _met(goal, goal.of(found))]


def goal_section(found: Material) -> str:
    """Goals, each source left out of the fit that predicts it."""
    columns = ("data ", "what ", "runs", "ours, mean", "median", "best known elsewhere ", "goal", "met ")
    rows = [*(_goal_row(goal, goal.of(found)) for goal in GOALS), _zero_row()]
    open_goals = missed(found)
    done = len(rows) - len(open_goals)
    parts = [
        paragraph(
            f"{done} of {len(rows)} goals are met. Errors are |predicted / measured - 1|. Spearman is the mean",
            "over groups of at least four runs that differ in their plan only, weighted by their runs; regret is the",
            "measured time of the plan predicted best over that of the best, less 1.",
        ),
        markdown(columns, rows),
    ]
    if open_goals:
        names = dict.fromkeys(goal.source for goal in open_goals)
        parts += ["What stands in the way:\n", bullets(f"`{name}`: {_reason(name, found)}" for name in names)]
    return "\n".join(parts)


def others_section(found: Material) -> str:
    """Other tools on the same rows."""
    rows = [
        (
            f"`{source}`",
            quantity,
            tool,
            theirs,
            *_ours(quantity, found.of(source, beside_profile=tool in PROFILED)),
        )
        for source, tool, quantity, theirs in ELSEWHERE
    ]
    text = paragraph(
        "Their numbers are as published or as run by us on the full sets; ours are of each source left out, next to",
        "Sailor's beside the profile of the layers that it starts from.",
    )
    columns = ("data ", "what ", "tool ", "its mean ", "ours, mean", "median")
    return text + "\n" + markdown(columns, rows)


def _met(goal: Goal, found: Sequence[Prediction]) -> bool:
    quantity = QUANTITIES[goal.quantity]
    return quantity.met(quantity.found(found), goal.bound)


def _goal_row(goal: Goal, found: Sequence[Prediction]) -> Sequence[str]:
    quantity = QUANTITIES[goal.quantity]
    value, errors = quantity.found(found), quantity.errors(found)
    timed = sum(entry.error is not None for entry in found)
    return (
        f"{goal.title} (`{goal.source}`)",
        goal.quantity,
        str(errors.runs if errors else len(found) if quantity.counts else timed),
        quantity.show(value),
        share(errors.median if errors else None),
        goal.elsewhere,
        quantity.show(goal.bound),
        "yes" if _met(goal, found) else "no",
    )


def _zero_row() -> Sequence[str]:
    """Model states of the ZeRO paper's table 1 to the printed digit."""
    rows = zero_table.rows()
    exact = sum(zero_table.agrees(row) for row in rows)
    shown = "exact" if exact == len(rows) else f"{exact} of {len(rows)}"
    met = "yes" if exact == len(rows) else "no"
    return ("ZeRO paper, table 1", "model states", str(len(rows)), shown, MISSING, MISSING, "exact", met)


def _reason(source: str, found: Material) -> str:
    own = found.of(source)
    rest = [entry for entry in own if _split(entry) != ODD_SPLIT]
    odd = len(own) - len(rest)
    mean, order = (QUANTITIES[name].show(QUANTITIES[name].found(rest)) for name in ("step time", "Spearman"))
    return REASONS.get(source, "unexplained.").format(odd=odd or "none", mean=mean, order=order)


def _split(entry: Prediction) -> tuple[int, int, int]:
    group = entry.run.plan.stages[0].replicas[0]
    return group.tp, entry.run.plan.pp, group.count


def _ours(name: str, predictions: Sequence[Prediction]) -> Iterator[str]:
    quantity = QUANTITIES[name]
    errors = quantity.errors(predictions)
    yield quantity.show(quantity.found(predictions))
    yield share(errors.median if errors else None)
