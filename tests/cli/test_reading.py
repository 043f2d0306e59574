"""Commands that read a plan: predict, compare, show, explain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cost.values import Estimate
from planner.plan.values import Plan
from planner.search.values import Alternative
from tests.cli.running import ROOT, Command, write_plan
from tests.report import examples


def priced(plan: Plan, *_: object) -> Estimate:
    """Made-up seconds that grow as the first stage shrinks."""
    return examples.estimate(plan, 27.2 * 24 / plan.stages[0].layers)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the cost model give known numbers."""
    monkeypatch.setattr("planner.cli.inputs.estimate", priced)
    monkeypatch.setattr("planner.cli.predict.estimate", priced)


def test_predict_prices_a_short_plan(hetplan: Command, files: Path) -> None:
    """What was left out is filled in and shown; the real cost model."""
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml")
    assert (done.code, done.err) == (0, "")
    assert "Plan: megatron, 2 stages, ZeRO 0, no recomputation" in done.out
    order = ("Inputs", "Plan: ", "Step time by cause", "Memory per device (GiB)")
    assert sorted(order, key=done.out.index) == list(order)
    found = json.loads(hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "--json").out)
    assert (found["status"], found["bound_seconds"], found["gap"]) == ("predicted", None, None)
    assert found["step_seconds"] == pytest.approx(
        sum(found["breakdown"].values()) - found["breakdown"]["hidden_seconds"]
    )


def test_predict_prices_many_plans(hetplan: Command, files: Path) -> None:
    """Each as alone, in the order of the file; with or without a key above the list."""
    (files / "many.yaml").write_text("- {tp: 2, pp: 2}\n- {tp: 1, micro_batch: 2}\n")
    (files / "named.yaml").write_text("plans:\n  - {tp: 2, pp: 2}\n  - {tp: 1, micro_batch: 2}\n")
    done = hetplan("predict", "cluster.yaml", "model.yaml", "--plans", "many.yaml")
    assert (done.code, done.err) == (0, "")
    assert "- plans[1]: megatron, ZeRO 0, dp 4, micro-batch 2" in done.out
    assert done.out == hetplan("predict", "cluster.yaml", "model.yaml", "--plans", "named.yaml").out
    found = json.loads(hetplan("predict", "cluster.yaml", "model.yaml", "--plans", "many.yaml", "--json").out)
    assert [entry["name"] for entry in found["plans"]] == ["plans[0]", "plans[1]"]
    for entry, text in zip(found["plans"], ("tp: 2\npp: 2\n", "tp: 1\nmicro_batch: 2\n"), strict=True):
        (files / "alone.yaml").write_text(text)
        alone = json.loads(hetplan("predict", "cluster.yaml", "model.yaml", "alone.yaml", "--json").out)
        assert entry["plan"]["step_seconds"] == alone["step_seconds"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- {tp: 1}\n- {tp: x}\n", "bad.yaml:2: plans[1].tp: expected a whole number"),
        ("- {tp: 1}\n- {tp: 1}\n- {pp: 999}\n- {zero: 9}\n", "bad.yaml:3: plans[2].pp: 999 stages"),
        ("- {tp: 1}\n- {tp: 1}\n- {pp: 999}\n- {zero: 9}\n", "bad.yaml:4: plans[3].zero: "),
        ("- {tp: 1}\n- three\n", "bad.yaml:2: plans[1]: expected a mapping"),
        ("tp: 1\n", "expected a list of plans"),
        ("[]\n", "expected a list of plans"),
    ],
)
def test_bad_plans_are_named_by_their_number(hetplan: Command, files: Path, text: str, told: str) -> None:
    """With the line; all that are bad at once."""
    (files / "bad.yaml").write_text(text)
    done = hetplan("predict", "cluster.yaml", "model.yaml", "--plans", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_many_wrong_plans_are_told_as_the_first_of_them(hetplan: Command, files: Path) -> None:
    """A hundred, and how many more there are; whatever rule they break."""
    (files / "bad.yaml").write_text("- {tp: 7}\n" * 150 + "- {tpp: 1}\n")
    done = hetplan("predict", "cluster.yaml", "model.yaml", "--plans", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 101
    assert lines[-1] == "error: bad.yaml: and 51 more problems at least"


def test_predict_takes_one_plan_or_many(hetplan: Command, files: Path) -> None:
    """Neither both nor none; what is kept of one plan is not kept of many."""
    for arguments in (
        (),
        ("short.yaml", "--plans", "short.yaml"),
        ("--plans", "short.yaml", "-o", "mine.yaml"),
    ):
        done = hetplan("predict", "cluster.yaml", "model.yaml", *arguments)
        assert (done.code, done.out) == (2, "")
        assert "--plans" in done.err


def test_predict_writes_a_plan_that_other_commands_take(hetplan: Command, files: Path) -> None:
    """A plan written by hand goes on like one that was found; the next command is to write its launch files."""
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "-o", "mine.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("Next: hetplan emit mine.yaml -o run/\n")
    assert hetplan("show", "mine.yaml").code == 0
    emitted = hetplan("emit", "mine.yaml", "-o", "run")
    assert (emitted.code, emitted.err) == (0, "")
    again = [
        json.loads(hetplan("predict", "cluster.yaml", "model.yaml", path, "--json").out)["step_seconds"]
        for path in ("short.yaml", "mine.yaml")
    ]
    assert again[0] == again[1]
    missing = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "-o", "none/mine.yaml")
    assert missing.code == 2
    assert "the folder none does not exist" in missing.err


def test_predict_takes_a_plan_file_too(hetplan: Command, files: Path) -> None:
    """A full plan is priced on other inputs if they allow it."""
    write_plan(Path("plan.yaml"))
    done = hetplan("predict", "cluster.yaml", "model.yaml", "plan.yaml")
    assert done.code == 2
    assert done.err.startswith("error: plan.yaml:")


def test_predict_says_when_a_plan_does_not_fit(hetplan: Command, files: Path) -> None:
    """Still an answer: the numbers, and where memory lacks."""
    options = ("--sequence-length", "2097152")
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", *options)
    assert done.code == 0
    assert "  ! does not fit: stage " in done.out
    found = json.loads(hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", *options, "--json").out)
    assert found["fits"] is False
    assert found["misfits"]


def test_compare_puts_plans_side_by_side(hetplan: Command, files: Path, made_up: None) -> None:
    """The first is the reference."""
    write_plan(Path("best.yaml"))
    write_plan(Path("even.yaml"), 16)
    done = hetplan("compare", "best.yaml", "even.yaml")
    assert (done.code, done.err) == (0, "")
    assert (
        "  best.yaml  27.2      19.3       1.00     8   16.3         3.3\n"
        "  even.yaml  40.8      12.9       1.50     8   16.3         3.3\n"
    ) in done.out
    assert "  - even.yaml: takes 1.50 x the time" in done.out
    found = json.loads(hetplan("compare", "best.yaml", "even.yaml", "--json").out)
    assert [entry["name"] for entry in found["plans"]] == ["best.yaml", "even.yaml"]
    assert [entry["idle_devices"] for entry in found["plans"]] == [8, 8]
    assert "layers 16" in found["plans"][1]["short"]


def test_compare_marks_other_batches_and_refuses_other_models(
    hetplan: Command, files: Path, made_up: None
) -> None:
    """Seconds of different models say nothing about plans."""
    write_plan(Path("best.yaml"))
    write_plan(Path("short.yaml"), sequence_length=1024)
    assert (
        "! short.yaml: sequence_length 1024 instead of 2048"
        in hetplan("compare", "best.yaml", "short.yaml").out
    )
    text = Path("short.yaml").read_text()
    assert "hidden: 4096" in text
    other = examples.model().model_copy(update={"ffn": 8192, "name": "other"})
    from planner.plan.file import PlanFile, write

    write(PlanFile(plan=examples.plan(), cluster=examples.cluster(), model=other), Path("other.yaml"))
    done = hetplan("compare", "best.yaml", "other.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: other.yaml: a plan of other, expected one of llama-7b as the first\n")


def test_compare_needs_something_to_compare(hetplan: Command, files: Path) -> None:
    """One plan alone is refused, unless --baselines adds others."""
    write_plan(Path("best.yaml"))
    done = hetplan("compare", "best.yaml")
    assert (done.code, done.out) == (2, "")
    assert "--baselines" in done.err


def test_compare_with_what_people_do_today(
    hetplan: Command, files: Path, made_up: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Baselines without a plan give their reason."""
    today = (
        Alternative(
            family="even split, equal batches", scored=examples.scored(16, 41.7), chosen=False, reason="slow"
        ),
        Alternative(family="fastest pool only", scored=None, chosen=False, reason="A100 lacks 3.1 GiB"),
    )
    asked: list[str | None] = []

    def todays(*arguments: Any) -> tuple[Alternative, ...]:
        asked.append(arguments[-1].target)
        return today

    monkeypatch.setattr("planner.cli.compare.baselines", todays)
    write_plan(Path("best.yaml"))
    done = hetplan("compare", "best.yaml", "--baselines")
    assert asked == [None]  # not the plan's runtime alone
    assert done.code == 0
    assert "! fastest pool only: A100 lacks 3.1 GiB" in done.out
    assert "- even split, equal batches: takes 1.53 x the time" in done.out


def test_the_best_single_pool_may_use_host_memory_as_the_plan_does(hetplan: Command, files: Path) -> None:
    """Neither pool holds the states of 7 B parameters: the pool alone offloads what the plan offloads."""
    (files / "short.yaml").write_text(
        "{target: deepspeed, zero: 3, recompute: full, offload: {optimizer: cpu, parameters: cpu}}"
    )
    model = ROOT / "model_specs" / "llama_7b.yaml"
    hetplan("predict", "cluster.yaml", model, "short.yaml", "-o", "plan.yaml", "--precision", "fp16")
    done = hetplan("compare", "plan.yaml", "--baselines", "--json")
    assert (done.code, done.err) == (0, "")
    alone = json.loads(done.out)["plans"][-1]
    assert (alone["name"], alone["plan"]["fits"]) == ("only fast", True)


def test_show_is_complete(hetplan: Command, files: Path, made_up: None) -> None:
    """Stages, proof, time, balance, memory, ranks, idle devices, next command."""
    write_plan(Path("plan.yaml"))
    done = hetplan("show", "plan.yaml")
    assert (done.code, done.err) == (0, "")
    order = (
        "Inputs",
        "Plan: ",
        "optimal: ",
        "Step time by cause",
        "Balance",
        "Memory per",
        "Ranks",
        "Idle: 8",
        "Next: ",
    )
    assert sorted(order, key=done.out.index) == list(order)
    assert done.out.endswith("Next: hetplan explain plan.yaml\n")
    found = json.loads(hetplan("show", "plan.yaml", "--json").out)
    assert (found["status"], found["gap"]) == ("optimal", 0.008)
    assert [run["first_rank"] for run in found["ranks"]] == [0, 4]


def test_explain_says_why(hetplan: Command, files: Path) -> None:
    """Time, balance, what binds, idle devices by name, one decision changed; the real cost model."""
    write_plan(Path("plan.yaml"))
    done = hetplan("explain", "plan.yaml")
    assert (done.code, done.err) == (0, "")
    order = (
        "Plan: ",
        "Step time by cause",
        "Balance",
        "Bottlenecks",
        "Idle: 8 devices",
        "One decision changed",
        "Next: ",
    )
    assert sorted(order, key=done.out.index) == list(order)
    assert "4 A100 (a100): a100-02, devices 0-3" in done.out
    found = json.loads(hetplan("explain", "plan.yaml", "--json").out)
    assert {"neighbours", "alternatives", "idle"} <= set(found)
    device, links = found["binding"]["device"], found["binding"]["links"]
    assert f"memory: stage {device['stage']} on {device['gpu']} ({device['pool']})" in done.out
    assert links
    assert all(f"{link['traffic']} over" in done.out for link in links)
    assert links[0]["share"] == pytest.approx(links[0]["seconds"] / found["step_seconds"])


def test_a_plan_edited_by_hand_loses_its_proof(hetplan: Command, files: Path, made_up: None) -> None:
    """A changed stage is priced; nothing is claimed about its bound."""
    path = write_plan(Path("plan.yaml"))
    path.write_text(path.read_text().replace("zero: 1", "zero: 0", 1))
    done = hetplan("show", "plan.yaml")
    assert done.code == 0
    assert "ZeRO 0" in done.out
    assert "optimal" not in done.out


@pytest.mark.parametrize("command", ["show", "explain", "compare", "emit"])
def test_plans_that_cannot_be_used(hetplan: Command, files: Path, command: str) -> None:
    """Missing, a directory, another version, inconsistent: exit 2 with a reason."""
    path = write_plan(Path("plan.yaml"))
    text = path.read_text()
    Path("version.yaml").write_text(text.replace("hetplan-plan/1", "hetplan-plan/9"))
    Path("layers.yaml").write_text(text.replace("layers: [24, 32]", "layers: [25, 32]"))
    extra = ["-o", "run"] if command == "emit" else ["--baselines"] if command == "compare" else []
    for name in ("missing.yaml", ".", "version.yaml", "layers.yaml"):
        done = hetplan(command, name, *extra)
        assert (done.code, done.out) == (2, ""), name
        assert done.err.startswith("error: ")
