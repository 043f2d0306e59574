"""Emitted DeepSpeed folders under Hugging Face's Trainer, and the process that they have to equal.

``python -m tests.training.trainer_runs`` trains them all and prints the table of the docs.
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from planner.model.spec import LoraSpec
from planner.plan.values import Plan
from planner.training.example_optimizers import EightBitAdamW, Lion
from planner.training.hetplan_loss import IGNORED, chunked_losses
from planner.training.hetplan_runtime import packed
from tests.training import ranks, reference, trainer_program
from tests.worlds import cluster, group, model, nic, plan, pool

RANKS = 2
BATCH = 7
STEPS = 3
RATES = {"sgd": 0.5, "adamw": 1e-2}
OTHERS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "sgd"},
    "lion": {"optimizer": "lion"},
    "int8": {"optimizer_states": "int8"},
    "narrow": {"master_weights": "bf16"},
}
"""Trainings of the plan by the name of a run's optimizer."""
OTHER_RATES = {"momentum": 0.5, "lion": 1e-3, "int8": 1e-2, "narrow": 1e-2}
"""Learning rates at which three steps go far; they fall linearly to nothing after the last."""
EPSILON = 1e-5
"""Of AdamW. GPT-2's key biases have no gradient but rounding, of 1e-9, which less would blow up to whole steps."""
UNEVEN = (group("big", "A100", share=5, steps=3), group("small", "T4", share=2))
"""Micro-batches 2+2+1 and 2, padded to three with ZeRO 2 and 3."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training with Trainer."""

    zero: int
    optimizer: str = "adamw"
    precision: str = "fp32"
    recompute: str = "none"
    kind: str = "once"
    """``once``; ``own``: with a loss function of the user's; ``masked``: with masked labels; ``packed``: on documents;
    ``peft``: of its adapters; ``nf4`` and ``nf4-double``: of those on a base of bitsandbytes; ``whole``: two shuffled
    passes with dropout and a checkpoint in the second; ``resumed`` from there."""

    @property
    def name(self) -> str:
        """Also the folder's name."""
        return f"zero{self.zero}-{self.optimizer}-{self.precision}-{self.recompute}-{self.kind}"

    def plan(self) -> Plan:
        """Two ranks with other micro-batches and other accumulation steps."""
        return plan("deepspeed", self.zero, [2], [UNEVEN], recompute=self.recompute)


MATRIX = [Run(zero, optimizer) for zero in range(4) for optimizer in RATES]
QUICK = [run for run in MATRIX if run.optimizer == "adamw"]
"""Every ZeRO stage with one optimizer."""
HALF = [Run(3, "narrow", "bf16"), *(Run(zero, precision="bf16") for zero in range(4))]
"""Of weights in bf16 alone, and of fp32 ones."""
PLANNED = [Run(2, "lion"), Run(3, "int8"), Run(0, "momentum")]
"""Optimizers that the plan knows and TrainingArguments are not told of; the last one is slow."""
PACKED = [Run(zero, "momentum", kind="packed") for zero in (3, 0)]
"""Rows of several documents."""
RECOMPUTED = [Run(zero, recompute="full") for zero in (1, 3)]
ADAPTED = [
    Run(zero, "momentum", recompute=how, kind="peft") for zero, how in ((2, "full"), (0, "none"), (3, "none"))
]
"""Adapters of peft; those behind the first are slow."""
QUANTISED = [Run(zero, "momentum", kind=kind) for zero, kind in ((0, "nf4-double"), (2, "nf4"))]
"""The same on a base in four bits of bitsandbytes; the second is slow."""
BASES: dict[str, Any] = {"peft": None, "nf4": "nf4", "nf4-double": "nf4-double"}
"""Formats of the base under adapters."""
LORA: dict[str, Any] = {"rank": 4, "alpha": 8, "targets": ("q_proj", "v_proj", "down_proj")}
OWN_LOSS = Run(0, kind="own")
MASKED = [Run(zero, kind="masked") for zero in (3, 0)]
"""Labels of another number in each micro-batch, as in fine-tuning."""
SAVED_AT = STEPS + 1
"""In the second pass."""


def resumption(zero: int) -> tuple[Run, Run]:
    """A run that goes through and one that starts at its checkpoint."""
    return Run(zero, kind="whole"), Run(zero, kind="resumed")


def two_nodes() -> ClusterSpec:
    """Two nodes with a device each."""
    cards = (nic("eth", "lo"),)
    return cluster(pool("big", ("A100",), 1, cards), pool("small", ("T4",), 1, cards))


def train_all(root: Path, runs: Sequence[Run]) -> None:
    """Emit every run into a folder of its own and train them all in one start of the ranks."""
    for run in runs:
        spec = model(
            BATCH,
            layers=2,
            precision=run.precision,
            lora=LoraSpec(**LORA, base=BASES[run.kind]) if run.kind in BASES else None,
            gated_mlp=run.kind in BASES,
            **OTHERS.get(run.optimizer, {"optimizer": run.optimizer}),
        )
        write_folder(emit(run.plan(), two_nodes(), spec), root / run.name)
    (root / "runs.json").write_text(json.dumps([order(root, run) for run in runs]))
    program = Path(trainer_program.__file__)
    ranks.run(RANKS, program, root / "runs.json", log=root / "log")


def order(root: Path, run: Run) -> dict[str, Any]:
    """What the program is told of a run."""
    twice = run.kind in ("whole", "resumed")
    saved = root / Run(run.zero, kind="whole").name / "out" / f"checkpoint-{SAVED_AT}"
    return {
        "folder": str(root / run.name),
        "output": str(root / run.name / "out"),
        # Two sequences more than the steps need: they fill no global batch and are left out.
        "length": STEPS * BATCH + 2,
        "evaluated": 6,
        "dropout": 0.1 if twice else 0.0,
        "shuffle": 5 if twice else None,
        "own_loss": run.kind == "own",
        "masked": run.kind == "masked",
        "packed": run.kind == "packed",
        "adapters": peft_arguments(root / run.name) if run.kind in BASES else None,
        "resume": str(saved) if run.kind == "resumed" else None,
        "arguments": {
            **(
                {}
                if run.optimizer in OTHERS
                else {"optim": {"sgd": "sgd", "adamw": "adamw_torch"}[run.optimizer]}
            ),
            "learning_rate": {**RATES, **OTHER_RATES}[run.optimizer],
            "adam_epsilon": EPSILON,
            "num_train_epochs": 2 if twice else 1,
            "max_steps": STEPS if run.kind == "own" else -1,
            # bitsandbytes has no gradients on the CPU once it has evaluated.
            "eval_strategy": "no" if twice or run in QUANTISED else "steps",
            "eval_steps": 1,
            "save_strategy": "steps" if run.kind == "whole" else "no",
            "save_steps": SAVED_AT,
        },
    }


def peft_arguments(folder: Path) -> dict[str, Any]:
    """Those that the folder's README has for ``LoraConfig`` and ``BitsAndBytesConfig``."""
    text = (folder / "README.md").read_text()
    return {"adapters": written(text, "LoraConfig"), "bits": written(text, "BitsAndBytesConfig")}


def written(text: str, name: str) -> dict[str, Any] | None:
    """The arguments of a call that a README has, if it has it; those of torch are left out."""
    found = re.findall(rf"`{name}\((.+?)\)`", text)
    if not found:
        return None
    call = ast.parse(f"f({found[0]})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {
        str(each.arg): ast.literal_eval(each.value)
        for each in call.keywords
        if not isinstance(each.value, ast.Attribute)
    }


def weights(root: Path, run: Run) -> list[dict[str, Any]]:
    """The final weights on each rank."""
    return [torch.load(root / run.name / "out" / f"weights-{rank}.pt") for rank in range(RANKS)]


def logged(root: Path, run: Run, key: str) -> list[float]:
    """A value of Trainer's log, [step]."""
    log = json.loads((root / run.name / "out" / "log-0.json").read_text())
    return [entry[key] for entry in log if key in entry]


@lru_cache
def one_process(
    optimizer: str,
    step_on_zeros: bool = False,
    masked: bool = False,
    packs: bool = False,
    adapters: Path | None = None,
) -> tuple[reference.Outcome, tuple[float, ...]]:
    """A plain loop over whole global batches, and its losses of evaluation; ``adapters``: as in a folder."""
    if adapters is None:
        network = trainer_program.network(dropout=0.0)
    else:
        network = trainer_program.adapted(**peft_arguments(adapters))
    start = reference.copy_of(network)
    rows = trainer_program.sequences(STEPS * BATCH, masked)
    rows = packed(trainer_program.documents(), trainer_program.TOKENS)[: STEPS * BATCH] if packs else rows
    places = torch.stack([row["position_ids"] for row in rows]) if packs else None
    data, labels = (torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels"))
    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "momentum": partial(torch.optim.SGD, momentum=0.9),
        "adamw": partial(torch.optim.AdamW, weight_decay=0.0, eps=EPSILON),
        "int8": partial(EightBitAdamW, eps=EPSILON),
        "lion": Lion,
    }
    rate = {**RATES, **OTHER_RATES}[optimizer]
    chosen = kinds[optimizer](network.parameters(), lr=rate)
    if optimizer in ("int8", "lion"):
        chosen.param_groups[0]["weight_decay"] = 0.0  # which is Trainer's
    if step_on_zeros:
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        chosen.step()
    losses, norms, evaluated = [], [], []
    for step, batch in enumerate(zip(data.split(BATCH), labels.split(BATCH), strict=True)):
        chosen.param_groups[0]["lr"] = rate * (1 - step / STEPS)
        chosen.zero_grad()
        now = None if places is None else places[step * BATCH : (step + 1) * BATCH]
        loss = loss_of(network, *batch) if now is None else loss_by_document(network, *batch, now)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0).item())
        chosen.step()
        losses.append(loss.item())
        with torch.no_grad():
            evaluated.append(loss_of(network, data[:6], labels[:6]).item())
    outcome = reference.Outcome(tuple(losses), tuple(norms), start, reference.copy_of(network))
    return outcome, tuple(evaluated)


def loss_of(network: Any, tokens: Any, labels: Any) -> Any:
    """Mean cross-entropy of the next token over those that have a label, rounded as Trainer's.

    Biases of keys have no gradient but what rounding leaves, of which Lion takes the sign.
    """
    losses = chunked_losses(network(tokens).logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    return losses.sum() / (labels[:, 1:] != IGNORED).sum()


def loss_by_document(network: Any, tokens: Any, labels: Any, places: Any) -> Any:
    """The same where each document goes through the model on its own."""
    total, count = torch.zeros(()), 0
    for row, wanted, at in zip(tokens, labels, places, strict=True):
        begins = [*torch.nonzero(at == 0).flatten().tolist(), len(row)]
        for begin, end in pairwise(begins):
            mine = wanted[begin + 1 : end]
            logits = network(row[None, begin:end]).logits[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, mine, reduction="sum")
            count += int((mine != -100).sum())
    return total / count


def weight_error(root: Path, run: Run) -> float:
    """The largest distance of a rank's weights from one process, of the way travelled."""
    adapters = root / run.name if run.kind in BASES else None
    wanted, _ = one_process(
        run.optimizer, masked=run.kind == "masked", packs=run.kind == "packed", adapters=adapters
    )
    return max(reference.relative_error(got, wanted.end, wanted.start) for got in weights(root, run))


def main() -> None:
    """Train the matrix and print its rows of the docs' table."""
    with tempfile.TemporaryDirectory() as folder:
        train_all(Path(folder), MATRIX)
        for optimizer in RATES:
            errors = [f"{weight_error(Path(folder), Run(zero, optimizer)):.1e}" for zero in range(4)]
            print(f"| Trainer | data parallel | {optimizer} | {' | '.join(errors)} |")  # noqa: T201


if __name__ == "__main__":
    main()
