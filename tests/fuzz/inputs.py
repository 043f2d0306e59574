"""Damaged files for every command: each must end in an answer or in a clear error, and leave nothing behind.

    python -m tests.fuzz.inputs [--cases 10000] [--seed 1] [--first 0] [--seconds 0] [--only INDEX]

A case is a function of seed and index. Each runs in a process of its own with limits on memory and CPU seconds. Exit
code 1 when one was mishandled: another exit code than the published ones, an exception, an error that does not name
a file, a character on a stream that a terminal would obey, a line that a value of a file began, a document that is
no strict JSON or has a time that is not positive, or anything left in the folder beside the output of an answer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import planner.cli
from planner.calibration.file import shipped
from planner.cli.process import ANSWER, BAD_INPUT, BUG, MEANINGS
from planner.cluster.file import load_cluster
from planner.escaping import is_hidden, visible
from planner.model.file import load_model
from planner.plan.file import PlanFile, load_plan, to_text
from planner.targets import TARGETS
from tests.calibration.test_tables import LAYERS, LINKS
from tests.cli.running import CLUSTER, MODEL, ROOT, SHORT_PLAN, write_plan
from tests.fuzz.damage import MARK, damaged, damaged_argument
from tests.measure.test_nccl_tests import TEXT as NCCL
from tests.model.test_huggingface import PUBLISHED
from tests.probe.test_nvidia_smi import LIST as MIG_LIST
from tests.report.test_trace import profile_text
from tests.search.test_renting import OFFERS
from tests.share.test_search import JOBS

MOST_MEMORY = 3 * 2**30
"""Bytes of address space of one case."""
MOST_SECONDS = 20
"""CPU seconds of one case."""
HUNG, DIED = "more than the CPU seconds allowed", "the process died"
FORMATS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", FORMATS, re.DOTALL)
CALIBRATIONS = tuple(text for text in BLOCKS if text.startswith("format: hetplan-calibration"))
GRID = f"""\
clusters: [{ROOT}/cluster_specs/poplar_v100_t4.yaml]
models: [{ROOT}/model_specs/llama_0.5b.yaml, {ROOT}/model_specs/llama_3_8b.yaml]
time_limit: 0.2
options:
  target: [torch, megatron]
  global_batch: [16]
"""
NAMES = ("x\n" + MARK, "\x1b[31mred", "a\u202eb", "[bold]", "é")
"""Names of files that somebody else has chosen."""
COMMANDS = (
    *("check {cluster}", "check {cluster} {model}", "check {cluster} {config}"),
    *(
        "search {cluster} {model} --time-limit 0.3 -o {new} --json",
        "search {cluster} {model} --time-limit 0.3",
        "search {cluster} {model} --time-limit 0.3 --calibration {calibration} --pareto -v",
        "search {cluster} {model} --time-limit 0.3 --use-at-most {most} --tp {degrees} --robust -o {new}",
        "search {cluster} {model} --time-limit 0.3 --global-batch {number} --objective cost --json",
    ),
    *(
        "what-if {cluster} {model} --time-limit 0.2 --change {change}",
        "what-if {cluster} {model} --time-limit 0.2 --change {change} --calibration {calibration} --json",
    ),
    *(
        "report {plan} -o {new}",
        "report {plan} -o {new} --compare {plan} --tokens {tokens} --json",
        "report {plan} -o {new} --log {log} --calibration {calibration}",
    ),
    *(
        "trace {plan} -o {new}",
        "trace {plan} -o {new} --log {profile}",
        "trace {plan} -o {new} --log {profile} --calibration {calibration} --json",
    ),
    *(
        "rent {model} --offers {offers} --tokens {tokens} --time-limit 0.3 -o {new}",
        "rent {model} --offers {offers} --tokens {tokens} --deadline {time} --time-limit 0.3 --json",
        "search {cluster} {model} --time-limit 0.3 --tokens {tokens} --deadline {time} --budget {number}",
        "share {cluster} {jobs} --time-limit 0.3 -o {new} --force",
        "share {cluster} {jobs} --objective fairness --time-limit 0.3 --json",
        "sweep {grid} -o {table} -j 1",
    ),
    *("gpus {gpu}", "gpus {gpu} --json", "schema {spec}"),
    *(
        "predict {cluster} {model} {short}",
        "predict {cluster} {model} {short} --calibration {calibration} --json",
        "predict {cluster} {model} {short} -o {new}",
    ),
    *(
        "show {plan}",
        "show {plan} --json",
        "show {calibration}",
        "show {calibration} --json --cluster {cluster}",
    ),
    *("explain {plan}", "explain {plan} --json", "compare {plan} {plan}", "compare {plan} --log {log}"),
    "explain {plan} --calibration {calibration}",
    *("emit {plan} -o {new}", "emit {plan} -o {new} --json", "validate --measured {runs}"),
    *("calibrate import --layers {layers} -o {new}", "calibrate import --links {links} -o {new}"),
    *("calibrate merge {calibration} {calibration} -o {new}", "calibrate run {plan} --log {log} -o {new}"),
    "calibrate sigma {plan} --log {log} -o {new}",
    *(
        "replan {plan} --without {hosts} --time-limit 0.3 -o {new}",
        "replan {plan} --without {hosts} --away {time} --storage {number} --time-limit 0.3 --json",
        "replan {plan} --prepare {new} --calibration {calibration} --time-limit 0.3",
    ),
    "calibrate network --from-nccl-tests {nccl} --link ib -o {new}",
    *(
        "probe --nvidia-smi {nvidia-smi} --topo {topo}",
        "probe --ibstat {ibstat} --hostfile {hostfile} -o {new}",
        "probe --nvidia-smi {nvidia-smi} --sysfs {sysfs} --slurm {slurm} --name {gpu}",
        "probe --gpu-list {gpu-list} --ethtool {ethtool} -o {new}",
    ),
)


ARGUMENTS = {
    "change": (
        *("fabrics.ib.latency_us=3", "pools.fast.nics.ib.bandwidth_gbps=200", "pools.slow.nodes=2"),
        *("training.global_batch=32", "training.precision=bf16", "+2 A100-SXM-40GB", "-slow"),
    ),
    "most": ("2", "1:fast", "0:slow"),
    "degrees": ("1", "1,2", "1..4"),
    "number": ("1", "24", "65536"),
    "tokens": ("300B", "5e9"),
    "time": ("30d", "12h"),
    "hosts": ("fast-0", "slow-0", "fast-[0-0]"),
    "gpu": ("A100-SXM-40GB", "h100", "Tesla T4"),
    "spec": ("cluster", "model"),
}
"""What stands on the command line itself."""
POSITIONS = {
    "gpus": {"no device", "No such option"},
    "schema": {"schema: ", "Missing argument", "No such option"},
}
"""What an error calls an argument without an option."""


@dataclass(frozen=True, slots=True)
class Case:
    """One command with its files."""

    folder: Path
    words: tuple[str, ...]
    files: frozenset[Path]
    outputs: frozenset[Path]
    options: frozenset[str] = frozenset()
    """Beside the files, what an error can name: the options, or positions, whose values the case has chosen."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case did; ``code`` is None for a process that a limit or a signal ended, which ``end`` names."""

    code: int | None
    out: str
    err: str
    end: str = ""


def good_files(work: Path) -> dict[str, tuple[str, ...]]:
    """Texts by kind."""
    samples, specs = ROOT / "tests" / "probe" / "samples", ROOT / "cluster_specs"
    runs = (ROOT / "planner" / "measured" / "data" / "published.csv").read_text(encoding="utf-8").splitlines()
    return {
        "cluster.yaml": (CLUSTER, CLUSTER, *(text for text in BLOCKS if "\npools:" in text)),
        "model.yaml": (MODEL, *(text for text in BLOCKS if "\nhidden:" in text)),
        "config.json": tuple(json.dumps(config) for config, *_ in PUBLISHED.values()),
        "short.yaml": (SHORT_PLAN, *(text for text in BLOCKS if "\nreplicas:" in text or "\ntp:" in text)),
        "plan.yaml": plans(work),
        "profile.json": (profile_text(distributedInfo={"rank": 2, "world_size": 16}), profile_text()),
        "calibration.yaml": CALIBRATIONS,
        "layers.csv": (LAYERS,),
        "links.csv": (LINKS,),
        "runs.csv": tuple("\n".join([runs[0], *runs[at : at + 3], ""]) for at in range(1, 200, 9)),
        "nccl.txt": (NCCL,),
        "log.log": tuple(path.read_text() for path in sorted(ROOT.glob("tests/logs/samples/*.log"))),
        "hostfile.txt": ("worker-1 slots=8\nworker-2 slots=4\n",),
        **{
            name: tuple(path.read_text() for path in sorted(samples.glob(f"*/{name}")))
            for name in ("nvidia-smi.csv", "topo.txt", "ibstat.txt", "ethtool.txt", "sysfs.txt")
        },
        "gpu-list.txt": (MIG_LIST,),
        "offers.yaml": (OFFERS, *(text for text in BLOCKS if "\noffers:" in text)),
        "grid.yaml": (GRID,),
        "jobs.yaml": (
            JOBS.replace("model.yaml", "gpt2_345m").replace("wide.yaml", "bert_large"),
            *(text for text in BLOCKS if "\njobs:" in text),
        ),
        "slurm.txt": ("dgx[01-03,07],login-01\n", "lab-01\nlab-02\n"),
        "shipped.yaml": tuple(path.read_text() for path in sorted(specs.glob("*.yaml"))),
    }


def plans(work: Path) -> tuple[str, ...]:
    """Plan files: a pipeline of two device types, and plans of every runtime on a small cluster."""
    found = [write_plan(work / "plan.yaml").read_text(encoding="utf-8")]
    for name, text in (("cluster", CLUSTER), ("model", MODEL)):
        (work / f"{name}.yaml").write_text(text, encoding="utf-8")
    cluster, model = load_cluster(work / "cluster.yaml"), load_model(work / "model.yaml")
    for target in TARGETS:
        (work / "short.yaml").write_text(SHORT_PLAN.replace("megatron", target), encoding="utf-8")
        plan = load_plan(work / "short.yaml", cluster, model)
        found.append(to_text(PlanFile(plan=plan, cluster=cluster, model=model)))
    return tuple(found)


def make(folder: Path, chance: random.Random, good: dict[str, tuple[str, ...]]) -> Case:
    """Files and arguments of which one at least is damaged, and the command that reads them."""
    kinds = {name.rpartition(".")[0]: name for name in good}
    words = chance.choice(COMMANDS).split()
    slots = [at for at, word in enumerate(words) if word.startswith("{") and word not in ("{new}", "{table}")]
    worst, files, outputs, options = chance.choice(slots), set(), set(), set()
    for at, word in enumerate(words):
        if word == "{new}":
            outputs.add(folder / "new")
            words[at] = str(folder / "new")
        elif word == "{table}":
            outputs |= {folder / "new.csv", folder / "new.csv.points"}
            words[at] = str(folder / "new.csv")
        elif at in slots and word.strip("{}") in ARGUMENTS:
            text = chance.choice(ARGUMENTS[word.strip("{}")])
            words[at] = damaged_argument(text, chance) if at == worst else text
            options |= {words[at - 1]} if words[at - 1].startswith("--") else POSITIONS[words[0]]
        elif at in slots:
            kind = kinds[word.strip("{}")]
            text = chance.choice(good[kind])
            odd = f"-{chance.choice(NAMES)}" if chance.random() < 0.05 else ""
            path = folder / f"{at}{odd}-{kind}"
            path.write_bytes(damaged(text, chance) if at == worst or chance.random() < 0.1 else text.encode())
            files.add(path)
            words[at] = str(path)
    return Case(folder, tuple(words), frozenset(files), frozenset(outputs), frozenset(options))


def ran(case: Case, work: Path) -> Outcome:
    """The case in a process of its own."""
    streams = work / "stdout", work / "stderr"
    child = os.fork()
    if child == 0:
        _become(case, streams)
    _, status = os.waitpid(child, 0)
    out, err = (path.read_bytes().decode("utf-8", "surrogateescape") for path in streams)
    if os.WIFEXITED(status):
        return Outcome(os.WEXITSTATUS(status), out, err)
    hung = os.WTERMSIG(status) in (9, 24)
    return Outcome(None, out, err, HUNG if hung else f"{DIED}: signal {os.WTERMSIG(status)}")


def _become(case: Case, streams: tuple[Path, Path]) -> None:
    """Turn the process into the command; never returns."""
    from planner.cli.app import main

    code: int | str | None = BUG
    try:
        for number, path in enumerate(streams, start=1):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        sys.stdout, sys.stderr = (
            os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2)
        )
        os.chdir(case.folder)
        os.environ |= {"HETPLAN_DEBUG": "1", "COLUMNS": "80"}
        sys.argv = ["hetplan", *case.words]
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 1))
        main()
    except SystemExit as done:
        code = done.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else BUG)


def faults(case: Case, seen: Outcome) -> Iterator[str]:
    """Everything that the case shows to be wrong."""
    if seen.code is None:
        yield seen.end
        return
    if seen.code not in MEANINGS or seen.code == BUG:
        yield f"exit code {seen.code}: {' < '.join(reversed(seen.err.strip().splitlines()[-3:]))[:300]}"
        return
    for name, text in (("stdout", seen.out), ("stderr", seen.err)):
        bad = next((letter for letter in text if letter != "\n" and is_hidden(letter)), None)
        if bad is not None:
            yield f"{bad!r} on {name}"
        if re.search(rf"(?m)^\W*{MARK}", text):
            yield f"a value began a line of {name}"
    yield from _error_faults(case, seen)
    if seen.code == ANSWER and "--json" in case.words:
        yield from _document_faults(seen.out)
    kept = case.files | (case.outputs if seen.code == ANSWER else frozenset())
    left = sorted(path.name for path in set(case.folder.iterdir()) - kept)
    if left:
        yield f"left behind with exit code {seen.code}: {', '.join(left)}"


def _error_faults(case: Case, seen: Outcome) -> Iterator[str]:
    errors = [line for line in seen.err.splitlines() if line.startswith(("error: ", "Error: "))]
    if seen.code == BAD_INPUT and not errors:
        yield f"no error line: {seen.err[:200]!r}"
    elif seen.code == BAD_INPUT and not any(
        name in seen.err for name in {visible(path.name) for path in case.files} | case.options
    ):
        yield f"the error names no file and no option: {errors[0][:200]}"


def _document_faults(text: str) -> Iterator[str]:
    try:
        found = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        yield f"no strict JSON: {error}"
        return
    for key in ("step_seconds", "tokens_per_second"):
        if key in found and found[key] is not None and not 0 < found[key] < float("inf"):
            yield f"{key} is {found[key]}"


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def tried(seed: int, index: int, good: dict[str, tuple[str, ...]]) -> tuple[Case, Outcome, list[str]]:
    """One case, and what was wrong with its outcome."""
    with tempfile.TemporaryDirectory(prefix="hetplan-fuzz-") as name:
        folder = Path(name) / "case"
        folder.mkdir()
        case = make(folder, random.Random(f"{seed}:{index}"), good)
        seen = ran(case, Path(name))
        return case, seen, list(faults(case, seen))


def main() -> int:
    """Try the cases; the exit code."""
    parser = argparse.ArgumentParser(description="Damaged files for every command.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this time; 0 for no limit")
    parser.add_argument("--only", type=int, help="one case; print what it did")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="hetplan-fuzz-"))
    try:
        good = good_files(work)
    finally:
        shutil.rmtree(work)
    if options.only is not None:
        case, seen, wrong = tried(options.seed, options.only, good)
        _tell(f"{case.words!a}\nexit code {seen.code}\n{seen.out}\n{seen.err}\n{wrong!a}")
        return bool(wrong)
    _warm()
    begin, codes, bad = time.monotonic(), Counter[int | None](), 0
    for index in range(options.first, options.first + options.cases):
        if options.seconds and time.monotonic() - begin > options.seconds:
            break
        case, seen, wrong = tried(options.seed, index, good)
        codes[seen.code] += 1
        if wrong:
            bad += 1
            _tell(f"case {index}: {' '.join(case.words[:2])!a}: {'; '.join(wrong)!a}")
    _tell(f"{bad} of {codes.total()} inputs mishandled with seed {options.seed}; exit codes {dict(codes)}")
    return bool(bad)


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _warm() -> None:
    """Import and read once what the cases need: it takes longer than most of them."""
    for module in pkgutil.iter_modules(planner.cli.__path__, "planner.cli."):
        importlib.import_module(module.name)
    for target in TARGETS:
        importlib.import_module(f"planner.runtimes.{target}.runtime")
    shipped()


if __name__ == "__main__":
    sys.exit(main())
