"""Logs of Hugging Face's Trainer, torchtitan and Lightning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import HetplanError
from planner.logs.reading import Log, observed, read_logs
from planner.plan.values import Plan
from tests.logs import jobs
from tests.logs.printing import write

PLAN = jobs.data_parallel()
TORCH = replace(PLAN, target="torch")
TOKENS = PLAN.global_batch * jobs.MODEL.training.sequence_length


def told(path: Path, text: str, plan: Plan = TORCH) -> Log:
    """What a log says."""
    return read_logs([write(path / "node-0.log", text)], plan, jobs.MODEL.training.sequence_length)


def bar(done: int, total: int, elapsed: float, head: str = "") -> str:
    """A progress bar as tqdm draws it."""
    clock = f"{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}"
    return f"{head}{100 * done // total:3d}%|##        | {done}/{total} [{clock}<09:59,  2.00s/it]"


def trainer(step: float, evaluation: float = 0.0) -> str:
    """A run of 60 steps with losses; before it a longer bar, in the middle of it an evaluation's."""
    text = bar(900, 900, 590, "Map: ") + "\r"
    for done in range(61):
        text += bar(done, 60, done * step) + "\r"
        if done and done % 10 == 0:
            text += f"{{'loss': '1.5', 'grad_norm': '2.0', 'learning_rate': '1e-05', 'epoch': '{done / 60:.2f}'}}\n"
        if done == 30 and evaluation:
            text += bar(1, 8, 1) + "\r" + bar(8, 8, evaluation) + "\r"
    return text


def test_the_bar_of_the_trainer(tmp_path: Path) -> None:
    """Means over ten seconds and more, of the bar that losses were printed under."""
    log = told(tmp_path, trainer(2.5, evaluation=500))
    assert log.source == "Hugging Face's Trainer"
    assert observed(log).step_seconds == pytest.approx(2.5, rel=0.1)
    assert len(log.steps) >= 10
    assert "progress bar" in "".join(log.notes)
    with pytest.raises(
        HetplanError, match="is a log of Hugging Face's Trainer, the plan's target is megatron"
    ):
        told(tmp_path, trainer(2.5), jobs.pipeline())


def test_a_long_bar_is_read_in_long_stretches(tmp_path: Path) -> None:
    """Steps of 10.4 s: whole seconds make each 10 or 11, and their median is 4 % off."""
    text = (
        "".join(bar(done, 900, int(done * 10.4)) + "\r" for done in range(901))
        + "{'loss': '1.5', 'epoch': '1'}\n"
    )
    assert observed(told(tmp_path, text)).step_seconds == pytest.approx(10.4, rel=0.01)


def test_a_log_that_adds_nothing_is_named(tmp_path: Path) -> None:
    """The Trainer's beside torchtitan's: one of them is of another run."""
    titan = "".join(
        f"step: {n:2d}  loss:  2.5  memory: 60.1GiB(75%)  tps: 3,900\n" for n in range(10, 90, 10)
    )
    paths = [write(tmp_path / "titan.log", titan), write(tmp_path / "bar.log", trainer(2.5))]
    log = read_logs(paths, TORCH, jobs.MODEL.training.sequence_length)
    assert log.source == "torchtitan"
    assert f"{paths[1]}: not used, a log of Hugging Face's Trainer beside one of torchtitan" in log.notes


@pytest.mark.parametrize("quote", ["'{}'", "{}"])
def test_speeds_of_the_trainer(tmp_path: Path, quote: str) -> None:
    """The mean of the run; a slow rate has too few decimals, so samples count with the plan's batch."""
    line = "{{'train_runtime': {}, 'train_samples_per_second': {}, 'train_steps_per_second': {}, 'epoch': 1.0}}\n"
    fast = told(tmp_path, line.format(*map(quote.format, (100, PLAN.global_batch * 0.5, 0.5))))
    slow = told(tmp_path, line.format(*map(quote.format, (9e3, PLAN.global_batch * 0.0112, 0.011))), PLAN)
    assert [entry.seconds for entry in fast.steps] == [2.0]
    assert [entry.seconds for entry in slow.steps] == pytest.approx([1 / 0.0112])
    assert "the plan's 256 sequences a step" in slow.notes[0]
    assert observed(fast).more_steps is None
    other = told(tmp_path, line.format(*map(quote.format, (100, 32, 0.5))))
    assert "about 64 sequences a step, the plan has 256" in other.notes[1]
    assert len(fast.notes) == len(slow.notes) == 1


def test_torchtitan(tmp_path: Path) -> None:
    """Tokens per second of a device become seconds by the plan's tokens and devices; validation does not count."""
    speed = round(TOKENS / (PLAN.devices * 4.0))
    line = "\x1b[31mstep: {:2}  \x1b[32mloss:  7.1  memory: 30.10GiB(38.00%)  tps: {:,}  tflops: 9.50  mfu: 3.05%\n"
    text = "".join(line.format(step, speed) for step in (1, 10, 20, 30))
    log = told(tmp_path, text + line.format(30, 9).replace("step", "validate step"))
    assert [entry.seconds for entry in log.steps] == pytest.approx([4.0] * 4, rel=1e-3)
    assert f"(tps) and the plan's {TOKENS:,} tokens a step on 4 devices" in log.notes[0]
    assert observed(log).more_steps == 30
    with pytest.raises(HetplanError, match="is a log of torchtitan"):
        told(tmp_path, text, PLAN)


def test_the_bar_of_lightning(tmp_path: Path) -> None:
    """Batches are micro-batches, of which the plan has 32 a step; epochs follow each other."""
    text = "".join(
        bar(done, 640, done / 8, f"Epoch {epoch}: ") + "\r" for epoch in range(2) for done in range(0, 641, 8)
    )
    log = told(tmp_path, text)
    assert log.source == "Lightning"
    assert observed(log).step_seconds == pytest.approx(4.0, rel=0.1)
    assert "32 a step" in log.notes[0]


def test_metrics_of_lightning(tmp_path: Path) -> None:
    """Rows without a time are of something else."""
    rows = [f"0,{step},{step * 1.5},\n0,{step},,2.5\n" for step in range(9, 100, 10)]
    log = told(tmp_path, "epoch,step,train/time,loss\n" + "".join(rows))
    assert [entry.seconds for entry in log.steps] == pytest.approx([1.5] * 9)
    assert observed(log).more_steps == 0
    assert log.notes == ()


def test_bars_of_two_ranks_and_of_two_runs(tmp_path: Path) -> None:
    """A rank that is a little behind changes nothing; of two runs the last counts."""

    def run(step: float, behind: int) -> str:
        return "".join(
            bar(done, 640, done * step, f"Epoch {epoch}: ") + "\n"
            for epoch in range(2)
            for ahead in range(0, 641, 8)
            for done in (ahead, max(0, ahead - behind))
        )

    alone = told(tmp_path, run(0.125, 0)).steps
    assert told(tmp_path, run(0.125, 8)).steps == alone
    assert told(tmp_path, run(0.5, 0) + run(0.125, 0)).steps == alone


@pytest.mark.parametrize(
    "text",
    [
        "{'train_runtime': 1e308, 'train_steps_per_second': 1e-320}\n",
        "{'loss': 1.0, 'epoch': 0.1}\n",
        "epoch,step,train/time\n0,1,inf\n0,2,nan\n",
        bar(1, 10, 0, "Epoch 0: "),
        "step:  1  loss:  1.0  tps: 0  tflops: 1",
    ],
)
def test_lines_without_times_are_refused(tmp_path: Path, text: str) -> None:
    """One message that says what is expected."""
    with pytest.raises(HetplanError, match="has none of the lines that are known"):
        told(tmp_path, text)


def test_trainer_state(tmp_path: Path) -> None:
    """The file that the Trainer leaves has the same speeds, a key a line."""
    history = [
        {"epoch": 1.0, "loss": 1.5, "step": 9},
        {"step": 9, "train_runtime": 18.0, "train_steps_per_second": 0.5},
    ]
    log = told(tmp_path, json.dumps({"global_step": 9, "log_history": history}, indent=2))
    assert [entry.seconds for entry in log.steps] == [2.0]
    assert len(log.notes) == 1


def test_the_bar_of_nemo_1(tmp_path: Path) -> None:
    """It counts steps; where it has the time of the last one, that counts."""
    plan = jobs.pipeline()
    head = "v_num=, reduced_train_loss=3.090, global_step={}.0, consumed_samples=1.6e+6"

    def text(more: str) -> str:
        drawn = (
            f"{bar(done, 900, 2.5 * done, 'Epoch 0: ')}, {head.format(done - 1)}{more}]\r"
            for done in range(1, 61)
        )
        return "".join(drawn)

    log = told(tmp_path, text(""), plan)
    assert log.source == "NeMo"
    assert observed(log).step_seconds == pytest.approx(2.5, rel=0.1)
    assert "progress bar" in log.notes[0]
    timed = told(tmp_path, text(", train_step_timing in s=2.400"), plan)
    assert {entry.seconds for entry in timed.steps} == {2.4}
    assert timed.notes == ()


def test_what_trains_by_the_trainer(tmp_path: Path) -> None:
    """LLaMA-Factory's trainer_log.jsonl, ms-swift's lines, and the table at the end."""
    rows = "".join(
        f'{{"current_steps": {done}, "total_steps": 100, "loss": 4.4, "epoch": 0.9, "percentage": 9.9, '
        f'"elapsed_time": "1:{done * 6 // 60:02d}:{done * 6 % 60:02d}", "remaining_time": "0:01:00"}}\n'
        for done in range(1, 40)
    )
    lines = "".join(
        f"{{'loss': 0.4, 'train_speed(iter/s)': 0.1, 'epoch': 0.2, 'global_step/max_steps': '{done}/100', "
        f"'percentage': '9%', 'elapsed_time': '2h {done * 6 // 60}m {done * 6 % 60}s', 'remaining_time': '9m'}}\n"
        for done in range(1, 40)
    )
    for text in (rows, lines):
        log = told(tmp_path, text)
        assert {entry.seconds for entry in log.steps} == {6.0}
        assert log.source == "Hugging Face's Trainer"
    table = "  train_runtime            = 0:36:58.55\n  train_steps_per_second   =      0.185\n"
    assert [entry.seconds for entry in told(tmp_path, table).steps] == pytest.approx([1 / 0.185])


def test_older_torchtitan(tmp_path: Path) -> None:
    """Until 2024 it called tokens words."""
    log = told(
        tmp_path, f"step: 10  loss:  7.1  memory: 30.1GiB(38.00%)  wps: {TOKENS // 16:,}  mfu: 3.05%\n"
    )
    assert [entry.seconds for entry in log.steps] == pytest.approx([4.0], rel=1e-3)


def test_nanogpt(tmp_path: Path) -> None:
    """A line is one step, whatever stands ahead of it; of two runs the last counts."""
    run = "".join(
        f"2023-03-22 09:30:{step:02d} iter {step}: loss nan, time {{}}ms, mfu 15.34%\n" for step in range(9)
    )
    log = told(tmp_path, run.replace("{}", "900.00") + run.replace("{}", "450.50"))
    assert log.source == "nanoGPT"
    assert {entry.seconds for entry in log.steps} == {0.4505}
    assert "holds 2 runs" in log.notes[0]
    with pytest.raises(HetplanError, match="is a log of nanoGPT, the plan's target is megatron"):
        told(tmp_path, run.replace("{}", "900.00"), jobs.pipeline())


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("Epoch 1 | iter {} step {} | loss train: 1.6, val: n/a | iter time: {} ms", " (step)"),
        ("iter {} step {}: loss 3.5551, iter time: {}ms", " (optimizer.step)"),
        ("Ep 1 | iter {} | step {}: loss train (curr): 1.5, val: None | iter time: {} ms", " (opt.step)"),
    ],
)
def test_litgpt(tmp_path: Path, line: str, mark: str) -> None:
    """A step is its micro-batches, of which the last is marked; one of which some are missing does not count."""
    lines = [
        line.format(iteration, (iteration + 3) // 4, f"{100:.2f}") + (mark if iteration % 4 == 0 else "")
        for iteration in range(1, 25)
    ]
    log = told(tmp_path, "\n".join(lines))
    assert log.source == "LitGPT"
    assert [entry.seconds for entry in log.steps] == pytest.approx([0.4] * 6)
    del lines[9]
    assert len(told(tmp_path, "\n".join(lines)).steps) == 5


@pytest.mark.parametrize(("shown", "seconds"), [("845", 0.845), ("41.2", 0.0412), ("3.07K", 3.07)])
def test_nanotron(tmp_path: Path, shown: str, seconds: float) -> None:
    """Thousands are short; a batch that is not the plan's is another job, one that is rounded may be any."""
    line = (
        "11/22/2026 09:15:{:02d} [INFO|DP=0|PP=1|TP=0|lab-01]: iteration: {} / 40 | consumed_tokens: 5.2M | "
        "elapsed_time_per_iteration_ms: {} | tokens_per_sec: 90.1K | tokens_per_sec_per_gpu: 22.5K | "
        "global_batch_size: {} | lm_loss: 7.3 | lr: 0.0003 | model_tflops_per_gpu: 12.1\n"
    )

    def run(time: str, batch: object) -> str:
        return "".join(line.format(step, step, time, batch) for step in range(1, 9))

    log = told(tmp_path, run("9.9K", PLAN.global_batch) + run(shown, PLAN.global_batch))
    assert log.source == "nanotron"
    assert [entry.seconds for entry in log.steps] == pytest.approx([seconds] * 8)
    assert "holds 2 runs" in log.notes[0]
    assert [(fact.field, fact.value) for fact in log.facts] == [("global batch", PLAN.global_batch)]
    assert told(tmp_path, run(shown, "1.02K")).facts == ()
    with pytest.raises(HetplanError, match="is a log of nanotron, the plan's target is deepspeed"):
        told(tmp_path, run(shown, PLAN.global_batch), PLAN)
