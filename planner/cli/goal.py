"""Options for the goal of a search: objectives, limits, the training run, and a loss to reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, cast

from planner.cli.options import (
    flag,
    option,
    seconds_of,
    tokens_of,
)
from planner.cluster.spec import ClusterSpec
from planner.cost.failures import NEVER, Interruptions
from planner.errors import Problem, UsageError
from planner.files.document import fail_on, read_document
from planner.files.messages import within
from planner.ranges import DEVICES, FAILURES, MONEY, PREDICTED, RATE
from planner.search.values import Goal, Objective
from planner.units import bytes_per_second_from_gigabytes

Deadline = Annotated[
    str | None, option("--deadline", "TIME", "The training of --tokens must end within this time, e.g. 30d.")
]
Budget = Annotated[
    float | None,
    option(
        "--budget",
        "PRICE",
        "The training of --tokens may cost at most this much, in the currency of the cluster file.",
    ),
]

TIME_TO_LOSS = "time-to-loss"
"""An objective with a search of its own (``planner/cli/loss.py``)."""
OBJECTIVES = ("time", "cost", "energy", TIME_TO_LOSS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOptions:
    """What stops a run, and what that takes."""

    failures: Annotated[
        float | None,
        option(
            "--failures",
            "RATE",
            "Failures per GPU in 30 days, e.g. 0.014 as in Llama 3's run: includes the time of checkpoints, "
            "restarts and lost work.",
        ),
    ] = None
    checkpoint_time: Annotated[
        str | None,
        option("--checkpoint-time", "TIME", "Time to write a checkpoint, e.g. 90s. Default: 60s, assumed."),
    ] = None
    restart_time: Annotated[
        str | None,
        option(
            "--restart-time", "TIME", "Time from a failure until training resumes, e.g. 10m. Default: 15m."
        ),
    ] = None
    storage: Annotated[
        float | None,
        option(
            "--storage",
            "RATE",
            "Storage bandwidth of all nodes together in gigabyte/s; gives the time of a checkpoint.",
        ),
    ] = None

    def interruptions(self) -> Interruptions:
        """Raises UsageError for an option that needs another, or is out of range."""
        failures, storage = self.failures, self.storage
        given = {
            "--checkpoint-time": self.checkpoint_time,
            "--restart-time": self.restart_time,
            "--storage": storage,
        }
        idle = [name for name, value in given.items() if value is not None]
        if failures is None and idle:
            raise UsageError(f"{idle[0]} says what failures take: expected --failures with it")
        within("--failures", failures, FAILURES)
        if storage is not None and self.checkpoint_time is not None:
            raise UsageError(
                "--storage, --checkpoint-time: both say what a checkpoint takes, expected one of them"
            )
        checkpoint = seconds_of("--checkpoint-time", self.checkpoint_time, least=0)
        restart = seconds_of("--restart-time", self.restart_time, least=0)
        return Interruptions(
            per_gpu_month=failures or 0.0,
            checkpoint_seconds=NEVER.checkpoint_seconds if checkpoint is None else checkpoint,
            restart_seconds=NEVER.restart_seconds if restart is None else restart,
            storage_bytes_per_second=self.storage_rate(),
        )

    def storage_rate(self) -> float | None:
        """The rate of --storage, byte/s; raises UsageError for what is none."""
        rate = within("--storage", self.storage, RATE, "gigabyte/s")
        return None if rate is None else bytes_per_second_from_gigabytes(rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """A whole training run: how long it is, what it may take, what stops it."""

    tokens: Annotated[
        str | None,
        option(
            "--tokens",
            "N",
            "Tokens of the whole training, e.g. 300B, 1T or 5e9: adds its time and cost.",
        ),
    ] = None
    deadline: Deadline = None
    budget: Budget = None
    stops: StopOptions = StopOptions()

    def goal(self) -> Goal:
        """The fastest plan for this run; raises UsageError for an option that needs another, or is out of range."""
        more = {
            "--deadline": self.deadline,
            "--budget": self.budget,
            "--failures": self.stops.failures,
        }
        given = [name for name, value in more.items() if value is not None]
        if self.tokens is None and given:
            raise UsageError(
                f"{given[0]} is about a whole training run: expected --tokens with it",
                hint="e.g. --tokens 300B",
            )
        return Goal(
            tokens=None if self.tokens is None else tokens_of(self.tokens),
            deadline_seconds=seconds_of("--deadline", self.deadline),
            budget=within("--budget", self.budget, MONEY),
            interruptions=self.stops.interruptions(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalOptions:
    """What is wanted of the plan."""

    objective: Annotated[
        list[str] | None,
        option(
            "--objective",
            "NAME",
            "What to minimise: time per step (the default), cost per token, energy per token (at board power), or "
            "time-to-loss, which chooses the global batch too.",
        ),
    ] = None
    simple: Annotated[
        bool,
        flag(
            "--simple",
            "Instead of the fastest plan take a simpler one that is slower by less than the error bar, and by at "
            "most 5 %: it needs fewer devices, fewer stages or less money, or keeps RDMA, and is worse in none of "
            "these.",
        ),
    ] = False
    max_cost_per_token: Annotated[
        float | None,
        option(
            "--max-cost-per-token",
            "PRICE",
            "Only plans that cost at most this much per million tokens, in the currency of the cluster file.",
        ),
    ] = None
    min_tokens_per_second: Annotated[
        float | None, option("--min-tokens-per-second", "N", "Only plans with at least this throughput.")
    ] = None
    use_at_most: Annotated[
        list[str] | None,
        option("--use-at-most", "N[:POOL]", "Use at most N devices of one pool, or in total; repeatable."),
    ] = None
    run: RunOptions = RunOptions()
    pareto: Annotated[
        bool,
        flag(
            "--pareto",
            "Print time against cost for sub-clusters of growing size, and how many devices are worth using.",
        ),
    ] = False
    robust: Annotated[
        bool,
        flag(
            "--robust",
            "Instead of the fastest plan, take the one with the least worst-case regret over the uncertain "
            "speeds of devices and networks.",
        ),
    ] = False

    def goal(self, run: Goal, path: Path, cluster: ClusterSpec) -> Goal:
        """The goal of the options and their run, for the cluster of a file.

        Raises UsageError, or SpecError where the file lacks a price or a power.
        """
        objective, pareto, robust = self._objective(), self.pareto, self.robust
        if robust and (objective != "time" or pareto):
            other = "--pareto" if pareto else f"--objective {objective}"
            raise UsageError(f"--robust weighs step times: expected no {other} with it")
        # Time is one axis of the front already; the other is cost unless energy is asked for.
        wanted: Objective = "cost" if pareto and objective == "time" else objective
        goal = replace(
            run,
            objective=wanted,
            max_cost_per_million_tokens=within("--max-cost-per-token", self.max_cost_per_token, PREDICTED),
            min_tokens_per_second=within("--min-tokens-per-second", self.min_tokens_per_second, PREDICTED),
            use_at_most=tuple(_limit(text, cluster) for text in self.use_at_most or ()),
            robust=robust,
        )
        if self.simple and (robust or not goal.fastest):
            raise UsageError(
                "--simple is about plans nearly as fast as the fastest: expected no other goal with it",
                hint="leave out --simple, or --robust, --pareto, --objective and limits on devices, time and money",
            )
        _require_devices(cluster, goal)
        if goal.priced or goal.objective == "energy":
            fail_on(_unknown(path, cluster, goal, pareto))
        return goal

    def _objective(self) -> Objective:
        names = self.objective or ["time"]
        if len(names) > 1:
            raise UsageError(
                f"--objective: expected one, got {' and '.join(names)}",
                hint="--pareto shows time against cost; with --objective energy, time against energy",
            )
        if names[0] not in OBJECTIVES:
            raise UsageError(f"--objective: expected one of {', '.join(OBJECTIVES)}, got {names[0]!r}")
        return cast("Objective", names[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """A loss to reach, and how."""

    loss: Annotated[
        float | None,
        option(
            "--loss",
            "NATS",
            "With --objective time-to-loss: the loss to reach, by the curve of the model file. With --tokens: the "
            "loss at which the critical batch is taken.",
        ),
    ] = None
    batches: Annotated[
        str | None,
        option(
            "--batches",
            "LIST",
            "With --objective time-to-loss: global batches to choose from, in sequences. Default: the model "
            "file's own, halved and doubled up to six times.",
        ),
    ] = None

    def given(self, wanted: GoalOptions, **others: object) -> bool:
        """True with the objective time-to-loss; raises UsageError for options that have no meaning then, or without."""
        own = {"--loss": self.loss, "--batches": self.batches}
        if wanted.objective != [TIME_TO_LOSS]:
            for option in (name for name, value in own.items() if value is not None):
                raise UsageError(
                    f"{option} is about the time to a loss", hint=f"add --objective {TIME_TO_LOSS}"
                )
            return False
        given = {
            "max-cost-per-token": wanted.max_cost_per_token,
            "min-tokens-per-second": wanted.min_tokens_per_second,
            "deadline": wanted.run.deadline,
            "budget": wanted.run.budget,
            "robust": wanted.robust,
            **{name.replace("_", "-"): value for name, value in others.items()},
        }
        for option in (name for name, value in given.items() if value not in (None, False)):
            raise UsageError(
                f"--objective {TIME_TO_LOSS} minimises the time alone: expected no --{option} with it",
                hint="--pareto shows time against money for growing parts of the cluster",
            )
        return True


def require_one_plan(pareto: bool, **options: object) -> None:
    """Refuse options that are about one plan, by their names, beside ``--pareto``; raises UsageError."""
    given = [name for name, value in options.items() if value is not None]
    if pareto and given:
        named = "-o" if given[0] == "output" else f"--{given[0].replace('_', '-')}"
        raise UsageError(
            f"--pareto prints a table of plans: {named} has no plan to be about",
            hint="choose a row, then search with its --use-at-most in place of --pareto",
        )


def _needs_prices(goal: Goal) -> str:
    if goal.objective == "cost":
        return "--objective cost"
    return "--budget" if goal.budget is not None else "--max-cost-per-token"


def _limit(text: str, cluster: ClusterSpec) -> tuple[str, int]:
    """``8:a100`` as (a100, 8), ``16`` as ("", 16)."""
    number, colon, pool = text.partition(":")
    if not number.isdecimal() or len(number) > len(f"{DEVICES.most:.0f}") or int(number) > DEVICES.most:
        raise UsageError(f"--use-at-most: expected a number of devices such as 16 or 8:POOL, got {text!r}")
    names = [entry.name for entry in cluster.pools]
    if colon and pool not in names:
        raise UsageError(
            f"--use-at-most: the cluster has no pool {pool!r}", hint=f"its pools are {', '.join(names)}"
        )
    return pool, int(number)


def _require_devices(cluster: ClusterSpec, goal: Goal) -> None:
    none = {pool for pool, most in goal.use_at_most if not most}
    if "" in none or none >= {pool.name for pool in cluster.pools}:
        raise UsageError("--use-at-most: leaves no device to use", hint="allow one device at least")


def _unknown(path: Path, cluster: ClusterSpec, goal: Goal, pareto: bool) -> Iterator[Problem]:
    """Every pool that may be used and lacks its price, or its power."""
    needs_prices, needs_power = (
        ("--pareto", "--pareto") if pareto else (_needs_prices(goal), "--objective energy")
    )
    document = read_document(path)
    unused = {pool for pool, most in goal.use_at_most if not most}
    for index, pool in enumerate(cluster.pools):
        if pool.name in unused:
            continue
        if goal.priced and pool.price_per_gpu_hour is None:
            yield document.problem(
                ("pools", index, "price_per_gpu_hour"),
                f"missing, {needs_prices} needs the price of every pool",
                "write the price of one device for one hour, for example price_per_gpu_hour: 1.5",
            )
        dark = [gpu for gpu in dict.fromkeys(pool.devices) if cluster.watts_of(pool, gpu) is None]
        if goal.objective == "energy" and dark:
            yield document.problem(
                ("pools", index, "watts_per_gpu"),
                f"missing, the board power of {dark[0]} is unknown and {needs_power} needs it",
                "write the power of one device, for example watts_per_gpu: 400",
            )
