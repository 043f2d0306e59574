"""Options of ``hetplan search --objective time-to-loss``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from planner.cli.goal import GoalOptions
from planner.cli.options import option
from planner.errors import UsageError

TIME_TO_LOSS = "time-to-loss"

Loss = Annotated[
    float | None,
    option(
        "--loss",
        "NATS",
        "With --objective time-to-loss: the loss to reach, by the curve of the model file. With --tokens: the "
        "loss at which the critical batch is taken.",
    ),
]
Batches = Annotated[
    str | None,
    option(
        "--batches",
        "LIST",
        "With --objective time-to-loss: global batches to choose from, in sequences. Default: the model "
        "file's own, halved and doubled up to six times.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """A loss to reach, and how."""

    loss: Loss = None
    batches: Batches = None

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
                f"--objective {TIME_TO_LOSS} has the least time in mind: expected no --{option} with it",
                hint="--pareto shows time against money for growing parts of the cluster",
            )
        return True
