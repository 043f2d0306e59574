"""``hetplan search``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli import search as searching
from planner.plan.file import read, write
from planner.search.values import Goal, Limits, SearchResult
from tests.cli.running import ROOT, Command, asked_once, separately
from tests.report import examples


class Fake:
    """A search with a known answer, and what it was asked."""

    def __init__(self, result: SearchResult) -> None:
        self.result = result
        self.limits = Limits()
        self.goal = Goal()

    def __call__(
        self,
        cluster: object,
        model: object,
        calibration: object,
        limits: Limits,
        goal: Goal,
        *_: object,
        **__: object,
    ) -> SearchResult:
        """The answer."""
        self.limits, self.goal = limits, goal
        return self.result


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, files: Path) -> Fake:
    """Lets every search of the test give one answer, on the example's inputs."""
    fake = Fake(examples.found())
    monkeypatch.setattr("planner.cli.search.choose", fake)
    monkeypatch.setattr("planner.cli.inputs.load_cluster", lambda path: examples.cluster())
    monkeypatch.setattr("planner.cli.inputs.load_model", lambda path: examples.model())
    monkeypatch.setattr("planner.cli.inputs.unsaid", lambda path, said: None)
    monkeypatch.setattr("planner.cli.inputs.batch_at", lambda path, length: None)
    return fake


def test_the_report(hetplan: Command, answer: Fake) -> None:
    """Inputs, answer, alternatives, warnings, next command, and the answer in a line: in this order, at 80 columns."""
    done = hetplan("search", "c.yaml", "m.yaml", "-o", "plan.yaml", "-v")
    assert (done.code, done.err) == (0, "")
    assert done.out[done.out.index("Plan: ") :] == (
        f"{examples.SHOWN_PLAN}"
        f"{examples.SHOWN_FAMILIES}"
        "Faster with another runtime\n"
        "  - 4.1 % faster with tp 2 on the v100 stage: needs flagscale\n"
        "\n"
        "Warnings\n"
        "  ! 4 of 8 V100 (v100) stay idle: their memory does not help this model\n"
        "\n"
        "Next: hetplan emit plan.yaml -o run/\n"
        "llama-7b on example: 27.2 s ±15 % a step, 19.3 k tokens/s, proven within 0.8 %\n"
    )


def test_the_answer_stands_last(hetplan: Command, answer: Fake) -> None:
    """One screen by default, one line with -q, everything with -v; not both."""
    brief = hetplan("search", "c.yaml", "m.yaml", "-o", "plan.yaml").out.splitlines()
    line = "llama-7b on example: 27.2 s ±15 % a step, 19.3 k tokens/s, proven within 0.8 %"
    assert len(brief) <= 18
    assert brief[-2:] == ["Next: hetplan emit plan.yaml -o run/", line]
    assert hetplan("search", "c.yaml", "m.yaml", "-q").out == f"{line}\n"
    assert hetplan("search", "c.yaml", "m.yaml", "-v").out.endswith(f"\n{line}\n")
    both = hetplan("search", "c.yaml", "m.yaml", "-q", "-v")
    assert (both.code, both.out, both.err) == (2, "", "error: -q, -v: expected at most one of them\n")


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (examples.infeasible(), "proven: no plan fits"),
        (examples.unknown(), "no plan found in time, nothing proven"),
        (
            examples.found(gap=0.031, interrupted=True),
            "27.2 s ±15 % a step, 19.3 k tokens/s, stopped early, within 3.1 % of the bound",
        ),
    ],
)
def test_the_line_says_what_there_is(hetplan: Command, answer: Fake, result: SearchResult, line: str) -> None:
    """Also where there is no plan."""
    answer.result = result
    assert hetplan("search", "c.yaml", "m.yaml", "-q").out == f"llama-7b on example: {line}\n"


def test_idle_devices_and_limits_that_cost(hetplan: Command, answer: Fake) -> None:
    """Idle devices in the plan section, limits in one of their own, both in ``--json``."""
    answer.result = replace(
        examples.found(), idle_costs=examples.IDLE_COSTS, limit_costs=examples.LIMIT_COSTS
    )
    done = hetplan("search", "c.yaml", "m.yaml", "--tp", "4", "-v")
    assert (
        "  uses 8 of 16 devices\n"
        "  idle: 4 V100 (v100): using them costs +7.0 % (bubble and sends)\n"
        "  idle: 4 A100 (a100): no plan found that fits and uses them\n"
    ) in done.out
    assert (
        "Cost of the limits\n"
        "  - --tp 4 costs at least 12 %: with --tp 1,2 the step is 24.3 s instead of\n"
        "    27.2 s\n"
    ) in done.out
    found = json.loads(hetplan("search", "c.yaml", "m.yaml", "--json").out)
    assert found["idle_costs"][0]["slower"] == 0.07
    assert found["idle_costs"][1]["step_seconds"] is None
    assert found["limit_costs"][0] == {
        "limit": "tp",
        "given": [4],
        "instead": [1, 2],
        "costs": 0.12,
        "step_seconds": 24.3,
        "tokens_per_second": pytest.approx(256 * 2048 / 24.3),
    }


def test_what_rests_on_speeds_is_told_and_kept(hetplan: Command, answer: Fake) -> None:
    """A section and keys of ``--json``; the plan file keeps both, and ``explain`` says them again."""
    answer.result = replace(examples.found(), ratios=examples.RATIOS, hedge=examples.HEDGE)
    done = hetplan("search", "c.yaml", "m.yaml", "--robust", "-o", "plan.yaml", "-v")
    line = (
        "the split between A100 and V100 depends on speeds known to ±30 %: if V100 runs below 0.80 times its assumed "
        "speed, another plan is better, by up to 14 %; `hetplan calibrate device` on one V100 would settle it"
    )
    assert line in " ".join(done.out.split())
    assert (
        "robust: at worst 8.0 % slower than the best of 31 plans at the ends of the error bars (V100 ±30 %, ib ±6 %), "
        "where the fastest plan is 14 % slower; by the cost model it is 2.0 % slower than that plan, which is within "
        "0.9 % of the bound on the step"
    ) in " ".join(done.out.split())
    summary = read(Path("plan.yaml")).summary
    assert summary is not None
    assert summary.ratios == (line,)
    assert summary.hedge == examples.HEDGE
    step = json.loads(hetplan("explain", "plan.yaml", "--json").out)["step_seconds"]
    kept = read(Path("plan.yaml"))
    write(replace(kept, summary=replace(summary, step_seconds=step)), Path("plan.yaml"))
    assert line in " ".join(hetplan("explain", "plan.yaml").out.split())
    assert json.loads(hetplan("explain", "plan.yaml", "--json").out)["ratios"] == [line]
    found = json.loads(hetplan("search", "c.yaml", "m.yaml", "--json").out)
    assert found["ratios"][0]["slower_than"] == 0.8
    assert found["hedge"]["regret"] == 0.08


@pytest.mark.parametrize("options", [("--pareto",), ("--objective", "energy")])
def test_robust_weighs_step_times(hetplan: Command, options: tuple[str, ...]) -> None:
    """Together with another goal it is an error."""
    files = [str(ROOT / "cluster_specs" / "lab.yaml"), str(ROOT / "model_specs" / "gpt2_345m.yaml")]
    done = hetplan("search", *files, "--robust", *options)
    assert done.code == 2
    assert "--robust weighs step times: expected no --" in done.err


def test_a_limit_that_hurts_is_told_from_the_files_on(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both forms, however slow a busy machine makes the explanations."""
    monkeypatch.setattr("planner.search.explain.reasons.LEAST_SECONDS", float("inf"))
    asked_once(monkeypatch, searching, "choose")
    given = ("search", "cluster.yaml", "model.yaml", "--tp", "2")
    found = json.loads(hetplan(*given, "--json").out)
    costs = {entry["limit"]: entry["costs"] for entry in found["limit_costs"]}
    assert costs["tp"] > 0.1
    assert "Cost of the limits\n  - --tp 2 costs" in hetplan(*given, "-v").out
    assert "! --tp 2 costs" in hetplan(*given).out


def test_the_plan_file_keeps_what_was_found(hetplan: Command, answer: Fake) -> None:
    """Plan, bound, alternatives and advice; a second run writes the same bytes."""
    hetplan("search", "c.yaml", "m.yaml", "-o", "plan.yaml")
    saved = read(Path("plan.yaml"))
    assert saved.plan == examples.plan()
    assert saved.summary is not None
    assert saved.summary.gap == 0.008
    assert saved.summary.alternatives[0].reason == "chosen"
    assert saved.summary.advice == ("4.1 % faster with tp 2 on the v100 stage: needs flagscale",)
    first = Path("plan.yaml").read_bytes()
    hetplan("search", "c.yaml", "m.yaml", "-o", "plan.yaml")
    assert Path("plan.yaml").read_bytes() == first


def test_limits_reach_the_search_and_the_report(hetplan: Command, answer: Fake) -> None:
    """Every option, echoed under Inputs."""
    options = "--target megatron --zero 0,1 --tp 1..2 --pp 2,4 --micro-batch 1 --recompute full,none"
    more = "--gap 0.05 --time-limit 9 --processes 3 --top 2 -v"
    done = hetplan("search", "c.yaml", "m.yaml", *options.split(), *more.split())
    assert answer.limits == Limits(
        target="megatron",
        zero=(0, 1),
        tp=(1, 2),
        pp=(2, 4),
        micro_batch=(1,),
        recompute=("none", "full"),
        gap=0.05,
        time_limit_seconds=9.0,
        processes=3,
    )
    assert (
        "  limits    target megatron; zero 0, 1; tp 1, 2; pp 2, 4; micro-batch 1;\n"
        "            recompute none, full; time limit 9 s\n"
    ) in done.out
    assert "2 of 3 families shown" in done.out
    assert "\nNext: the same with -o plan.yaml to keep the plan\n" in done.out


def test_options_become_a_goal(hetplan: Command, answer: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option, echoed under Inputs."""
    monkeypatch.setattr("planner.cli.goal._unknown", lambda *_: iter(()))
    done = hetplan(
        *("search", "c.yaml", "m.yaml", "--objective", "cost", "--max-cost-per-token", "0.5"),
        *("--min-tokens-per-second", "1000", "--use-at-most", "4:a100", "--use-at-most", "6", "-v"),
    )
    assert answer.goal == Goal(
        objective="cost",
        max_cost_per_million_tokens=0.5,
        min_tokens_per_second=1000,
        use_at_most=(("a100", 4), ("", 6)),
    )
    assert "  goal      the lowest cost per token; at most 0.500 per million tokens; at" in done.out


def test_training_settings_override_the_file(hetplan: Command, answer: Fake) -> None:
    """What is overridden is what is understood."""
    options = ("--precision", "bf16", "--global-batch", "64", "--sequence-length", "1024")
    done = hetplan("search", "c.yaml", "m.yaml", *options, "-v")
    assert "  training  64 sequences x 1024 tokens = 65.5 k per step, bf16" in done.out


@pytest.mark.parametrize(
    ("result", "code", "line"),
    [
        (examples.found(), 0, "optimal: proven within 0.8 %"),
        (examples.found(gap=0.031), 0, "best found before the search stopped: within 3.1 % of the bound"),
        (examples.infeasible(), 3, "No plan fits (proven, 96 candidates, 12 ms)"),
        (examples.unknown(), 4, "No plan found yet (time limit; 96 candidates, 5 s)"),
        (examples.unknown(interrupted=True), 130, "No plan found yet (interrupted; 96 candidates, 5 s)"),
        (
            examples.found(gap=0.031, interrupted=True),
            130,
            "interrupted: best so far, within 3.1 % of the bound",
        ),
    ],
)
def test_the_answer_decides_the_exit_code(
    hetplan: Command, answer: Fake, result: SearchResult, code: int, line: str
) -> None:
    """The answer is on stdout whatever it is, the same with --json."""
    answer.result = result
    done = hetplan("search", "c.yaml", "m.yaml", "-o", "plan.yaml", "-v")
    assert (done.code, done.err) == (code, "")
    assert line in done.out
    assert Path("plan.yaml").exists() == (result.best is not None)
    document = hetplan("search", "c.yaml", "m.yaml", "--json")
    assert document.code == code
    found = json.loads(document.out)
    assert (found["status"], found["interrupted"]) == (result.status, result.interrupted)


def test_an_unwritable_output_is_refused_before_the_search(
    hetplan: Command, answer: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory, a missing folder, no permission: exit 2 without an answer."""
    Path("folder").mkdir()
    for output, what in (
        ("folder", "folder: is a directory"),
        ("missing/plan.yaml", "missing/plan.yaml: the folder missing does not exist"),
    ):
        done = hetplan("search", "c.yaml", "m.yaml", "-o", output)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {what}\n  hint: ")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    done = hetplan("search", "c.yaml", "m.yaml", "-o", "plan.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: plan.yaml: no permission to write\n")


def test_an_output_that_fails_after_the_search_keeps_the_answer(
    hetplan: Command, answer: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs the file, not the report."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    done = hetplan("search", "c.yaml", "m.yaml", "-o", "plan.yaml")
    assert done.code == 2
    assert "Plan: megatron" in done.out
    assert done.err.startswith("error: plan.yaml: ")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--tp", "x", "error: --tp: expected whole numbers such as 1,2,4 or 1..4, got 'x'\n"),
        (
            "--target",
            "foo",
            "error: unknown target 'foo', expected one of: deepspeed, megatron, torch, flagscale\n",
        ),
        ("--recompute", "some", "error: --recompute: expected some of none, selective, full, got 'some'\n"),
        (
            "--precision",
            "int8",
            "error: --precision: expected some of bf16, fp16, fp32, tf32, fp8, got 'int8'\n",
        ),
    ],
)
def test_wrong_values_of_options(
    hetplan: Command, answer: Fake, option: str, value: str, message: str
) -> None:
    """One line, exit 2."""
    done = hetplan("search", "c.yaml", "m.yaml", option, value)
    assert (done.code, done.out, done.err) == (2, "", message)


def test_all_problems_of_both_files_come_at_once(hetplan: Command, files: Path) -> None:
    """File, line, key, what, hint; both files in one go."""
    (files / "cluster.yaml").write_text((files / "cluster.yaml").read_text().replace("100}]", "-5}]", 1))
    (files / "model.yaml").write_text((files / "model.yaml").read_text().replace("heads: 8", "heads: eight"))
    done = hetplan("search", "cluster.yaml", "model.yaml")
    assert (done.code, done.out) == (2, "")
    assert "error: cluster.yaml:8: pools[0].nics[0].bandwidth_gbps: " in done.err
    assert "error: model.yaml:4: heads: " in done.err


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_inputs_that_are_no_files(hetplan: Command, files: Path, name: str) -> None:
    """A missing file and a directory."""
    done = hetplan("search", name, "model.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {name}: ")


def test_a_real_search_end_to_end(files: Path) -> None:
    """The real solver on a tiny cluster, from files to a plan file that can be read back."""
    done = separately("search", "cluster.yaml", "model.yaml", "-o", "plan.yaml", "--time-limit", "60")
    assert (done.code, done.err) == (0, "")
    order = [
        done.out.index(word)
        for word in ("small (", "Plan: ", "  family ", "Next: hetplan emit plan.yaml", "small on tiny: ")
    ]
    assert order == sorted(order)
    assert max(len(line) for line in done.out.splitlines()) <= 80
    summary = read(Path("plan.yaml")).summary
    assert summary is not None
    assert summary.status == "optimal"
    assert summary.bound_seconds <= summary.step_seconds


def test_a_model_that_fits_nowhere(files: Path, hetplan: Command) -> None:
    """Exit 3 and an argument."""
    model = (files / "model.yaml").read_text().replace("hidden: 512", "hidden: 32768")
    (files / "model.yaml").write_text(model.replace("heads: 8", "heads: 64"))
    words = ("--target", "torch", "--tp", "1", "--zero", "3", "--offload", "none")
    done = hetplan("search", "cluster.yaml", "model.yaml", *words)
    assert (done.code, done.err) == (3, "")
    assert "No plan fits (proven, " in done.out
    assert "Because " in done.out
    assert "nearest miss" in done.out


GEMMA_3N = {
    "model_type": "gemma3n",
    "text_config": {"model_type": "gemma3n_text"},
    "vision_config": {"model_type": "gemma3n_vision", "architecture": "mobilenetv5_300m_enc"},
    "audio_config": {"model_type": "gemma3n_audio"},
}


def test_a_model_that_no_target_trains(files: Path, hetplan: Command) -> None:
    """That is said, and why, in place of a proof over no candidates."""
    (files / "config.json").write_text(json.dumps(GEMMA_3N))
    done = hetplan("search", "cluster.yaml", "config.json", "--precision", "fp16")
    assert done.code == 3
    assert "fits" not in done.out
    said = " ".join(done.out.partition("No target trains this model\n")[2].split())
    assert said.startswith("Because hetplan trains no attention by other matrices than of queries, keys,")
    assert " with torch yet, expected none, no target trains this model." in said
    answer = done.out.splitlines()[-1]
    assert ": no target trains this model: hetplan trains no attention by other matrices " in answer
    assert answer.endswith(" with torch yet, expected none")


WITHOUT_PRIVILEGE = """
import os, sys
from pathlib import Path
from planner.cli.output import require_writable
from planner.errors import OutputError
if os.getuid() == 0:
    os.setuid(65534)
try:
    require_writable(Path(sys.argv[1]))
except OutputError as error:
    sys.exit(error.message)
"""


def test_a_folder_without_permission() -> None:
    """For a user who is not root."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        path = f"{folder}/plan.yaml"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", WITHOUT_PRIVILEGE, path]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (1, f"{path}: no permission to write\n")


INTERRUPTED_SEARCH = """
import time
import planner.search.solve as solve
from planner.cli.app import main
from planner.search.solve import Explorer
expand = Explorer._expand
def slow(self, bound, item):
    expand(self, bound, item)
    if self.best is not None:
        print("found", flush=True, file=__import__("sys").stderr)
        while not self.deadline.interrupted:
            time.sleep(0.01)
Explorer._expand = slow
main()
"""


def test_ctrl_c_keeps_the_best_so_far(files: Path) -> None:
    """SIGINT during a search that has a plan: exit 130, plan printed and written."""
    words = ("search", "cluster.yaml", "model.yaml", "--target", "megatron", "-o", "plan.yaml")
    started = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_SEARCH, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert started.stderr is not None
    assert started.stderr.readline() == "found\n"
    time.sleep(0.2)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (130, "")
    assert "stopped early" in out.splitlines()[-1]
    assert read(files / "plan.yaml").plan.devices >= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--objective", "cost", "--objective", "energy"), "--objective: expected one, got cost and energy"),
        (
            ("--objective", "time,cost"),
            "--objective: expected one of time, cost, energy, time-to-loss, got 'time,cost'",
        ),
        (("--use-at-most", "0"), "--use-at-most: leaves no device to use"),
        (("--use-at-most", "0:mixed", "--use-at-most", "0:titan"), "--use-at-most: leaves no device to use"),
        (("--history",), "--history is kept in the plan file: expected -o FILE with it"),
        (
            ("--history", "-o", "plan.yaml", "--use-at-most", "8"),
            "--history: only a search for the fastest plan without other limits keeps it",
        ),
        (("--pareto", "--advice"), "--pareto prints a table of plans: --advice has no plan to be about"),
    ],
)
def test_goals_that_make_no_sense(hetplan: Command, options: tuple[str, ...], said: str) -> None:
    """One clear error each, and exit code 2."""
    files = [str(ROOT / "cluster_specs" / "lab.yaml"), str(ROOT / "model_specs" / "gpt2_345m.yaml")]
    done = hetplan("search", *files, *options)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_no_time_at_all_still_gives_a_plan(hetplan: Command, files: Path) -> None:
    """``--time-limit 0``: a first plan, an open gap, and a word on what was left out."""
    found = json.loads(hetplan("search", "cluster.yaml", "model.yaml", "--time-limit", "0", "--json").out)
    assert found["status"] in ("feasible", "optimal")
    assert found["plan"] is not None


def test_limits_that_leave_nothing_say_which_to_lift(hetplan: Command, files: Path) -> None:
    """Exit code 3, and the limit that is in the way with a value that fits."""
    done = hetplan("search", "cluster.yaml", "model.yaml", "--tp", "64", "--target", "deepspeed")
    assert done.code == 3
    assert re.search(r"fits with --tp [12] instead of --tp 64", " ".join(done.out.split()))


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("qwen3_8b", "--ep 2,4", "--ep: the model qwen3_8b has no experts, expected 1, got 2, 4"),
        ("qwen3_30b_a3b", "--ep 3,5", "--ep: expected a divisor of the 128 experts of a layer, got 3, 5"),
        ("qwen3_8b", "--etp 2", "--etp: the model qwen3_8b has no experts, expected 1, got 2"),
        ("qwen3_30b_a3b", "--etp 5", "--etp: expected a divisor of the 768 channels of an expert, got 5"),
        (
            "qwen3_30b_a3b",
            "--etp 2 --target torch",
            "--etp: torch keeps experts whole on a device, expected 1",
        ),
        ("gpt_oss_20b", "--etp 2 --target megatron", "--etp: megatron keeps experts with biases whole"),
        (
            "llama_3_8b_128k",
            "--cp 3 --target megatron",
            "--cp: 6 pieces for cp 3 do not divide the sequence length 131072",
        ),
        (
            "qwen2.5_7b",
            "--cp 8 --target deepspeed",
            "--cp: cp 8 x tp 1 does not divide the 28 attention heads, expected a divisor",
        ),
        ("bert_large", "--cp 2", "--cp: divided sequences need a causal mask, expected a decoder"),
    ],
)
def test_degrees_that_the_model_does_not_allow(
    hetplan: Command, files: Path, model: str, options: str, said: str
) -> None:
    """Are a mistake, not a proof that nothing fits."""
    path = str(ROOT / f"model_specs/{model}.yaml")
    done = hetplan("search", "cluster.yaml", path, *options.split())
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_one_device_and_far_too_many_pools(hetplan: Command, tmp_path: Path) -> None:
    """A single device is planned; 131,072 pools of one device are refused before anything is worked out."""
    model = str(ROOT / "model_specs" / "gpt2_345m.yaml")
    pool = "{name: p0, gpu: A100-SXM-80GB, gpus_per_node: 1, nodes: 1, intra_node: nvlink3}"
    one, many = tmp_path / "one.yaml", tmp_path / "many.yaml"
    one.write_text(f"name: one\npools:\n- {pool}\n")
    found = json.loads(hetplan("search", str(one), model, "--json").out)
    assert found["devices"] == 1
    many.write_text(
        "name: many\npools:\n" + "".join(f"- {pool}\n".replace("p0", f"p{i}") for i in range(131072))
    )
    done = hetplan("search", str(many), model)
    assert done.code == 2
    assert "expected at most" in done.err
