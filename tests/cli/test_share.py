"""``hetplan share`` and jobs files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planner.cluster.file import load_cluster
from planner.plan.file import read
from planner.share.search import ShareSearch
from tests.cli.running import MODEL, ROOT, Command, asked_once
from tests.quick import first
from tests.share.test_search import FOUR_NODES, JOBS, MIXED, THREE, WIDE

LARGE = WIDE.replace("layers: 6", "layers: 60").replace("hidden: 1024", "hidden: 65536")


@pytest.fixture
def jobs(files: Path) -> Path:
    """The small files, made smaller, with jobs on four nodes."""
    (files / "jobs.yaml").write_text(JOBS)
    for name, text in (("model.yaml", MODEL), ("wide.yaml", WIDE)):
        small = text.replace("layers: 6", "layers: 4").replace("global_batch: 16", "global_batch: 8")
        (files / name).write_text(small)
    (files / "cluster.yaml").write_text(FOUR_NODES)
    return files


WORDS = ("share", "cluster.yaml", "jobs.yaml", "--target", "megatron")


def test_who_gets_what(hetplan: Command, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stands last; the files that it writes are ones, and the document tells the same."""
    asked_once(monkeypatch, ShareSearch, "run")
    words = (*WORDS, "--gap", "0.3")
    done = hetplan(*words, "-o", "shared")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines()[:-1])) <= 80
    assert done.out.splitlines()[-1].startswith("2 jobs: the last ends after ")
    found = json.loads(hetplan(*words, "--json").out)
    assert (found["status"], found["jobs"], found["divided"]) == ("optimal", 2, False)
    assert found["value"] == pytest.approx(max(each["seconds"] for each in found["portions"]))
    for each in found["portions"]:
        cluster = load_cluster(Path("shared") / f"{each['job']}.cluster.yaml")
        assert [host for pool in cluster.pools for host in pool.hosts] == each["hosts"]
        plan = Path("shared") / f"{each['job']}.plan.yaml"
        assert read(plan).cluster.pools == cluster.pools
        assert hetplan("emit", plan, "-o", f"run-{each['job']}").code == 0
    again = hetplan(*WORDS, "--gap", "0.5", "-o", "shared")
    assert again.code == 2
    assert again.out.splitlines()[-1].startswith("2 jobs: the last ends after "), (
        "a folder in use loses no answer"
    )
    assert hetplan(*WORDS, "--gap", "0.5", "-o", "shared", "--force").code == 0


@pytest.mark.slow
def test_two_jobs_on_the_same_devices(hetplan: Command, jobs: Path) -> None:
    """What both would take is told, and each plan of the pair is written and can be launched."""
    done = hetplan(*WORDS, "--crossover", "--gap", "0.3", "-o", "shared")
    assert done.code == 0
    (folder,) = (path for path in Path("shared").iterdir() if path.is_dir())
    first, second = folder.name.split("+")
    text = " ".join(done.out.split())
    assert f"{first} waits for the network " in text
    assert f"{second} fits in memory beside it: " in text
    assert "times the work of taking turns; both end after " in text
    for name in (first, second):
        path = folder / f"{name}.plan.yaml"
        assert read(path).model.name in ("small", "wide")
        assert hetplan("emit", path, "-o", f"beside-{name}").code == 0


@pytest.mark.slow
def test_nodes_are_divided_where_there_are_too_few(
    hetplan: Command, jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs on two nodes: the devices of one are named, and the plan is one for them."""
    asked_once(monkeypatch, ShareSearch, "run")
    Path("cluster.yaml").write_text(MIXED)
    Path("jobs.yaml").write_text(THREE)
    words = (*WORDS, "--objective", "throughput", "--gap", "0.5")
    done = hetplan(*words, "-o", "shared")
    assert done.code == 0
    assert "HETPLAN_DEVICES=" in done.out
    found = json.loads(hetplan(*words, "--json").out)
    assert found["divided"]
    assert any(each["devices"] for each in found["portions"])
    for each in found["portions"]:
        saved = read(Path("shared") / f"{each['job']}.plan.yaml")
        assert saved.plan.devices <= each["gpus"]


@pytest.mark.slow
def test_the_shipped_example(hetplan: Command) -> None:
    """Its models are found beside it."""
    cluster, jobs = ROOT / "cluster_specs" / "v100_t4_10g.yaml", ROOT / "job_specs" / "three_runs.yaml"
    found = json.loads(hetplan("share", cluster, jobs, "--target", "torch", "--gap", "0.3", "--json").out)
    assert [each["job"] for each in found["portions"]] == ["pretrain", "encoder", "small"]
    assert found["portions"][1]["gpus"] <= 12


@pytest.mark.slow
def test_jobs_that_fit_nowhere_together(hetplan: Command, jobs: Path) -> None:
    """Which, what each needs, and the proof: exit 3."""
    text = (
        JOBS.replace("weight: 3", "least_gpus: 6")
        + "  - {name: third, model: gpt2_345m, tokens: 1, least_gpus: 4}\n"
    )
    Path("jobs.yaml").write_text(text)
    done = hetplan(*WORDS, "-o", "shared")
    assert done.code == 3
    assert done.out.splitlines()[-1] == "3 jobs: proven: second, third fit nowhere together"
    assert "! second needs 6 GPUs at least" in done.out
    assert "! third needs 4 GPUs at least" in done.out
    assert not Path("shared").exists()


def test_a_model_that_no_part_fits(hetplan: Command, jobs: Path) -> None:
    """The job, why, and what would help."""
    Path("wide.yaml").write_text(LARGE)
    done = hetplan(*WORDS, "--time-limit", "10")
    assert done.code == 3
    assert "! second: " in done.out
    assert done.out.splitlines()[-1] == "2 jobs: proven: second fits nowhere"


@pytest.mark.parametrize("objective", first(1, ["makespan", "fairness"]))
def test_a_format_that_no_device_has(hetplan: Command, jobs: Path, objective: str) -> None:
    """The job cannot run anywhere, whatever the objective, and is named."""
    Path("cluster.yaml").write_text(FOUR_NODES.replace("A100-SXM-40GB", "V100-SXM-32GB"))
    Path("wide.yaml").write_text(WIDE.replace("fp16", "bf16"))
    done = hetplan(*WORDS, "--objective", objective, "--time-limit", "10")
    assert done.code == 3
    assert "! second: V100-SXM-16GB, V100-SXM-32GB cannot be used: no bf16" in " ".join(done.out.split())
    assert done.out.splitlines()[-1] == "2 jobs: proven: second fits nowhere"


def test_a_deadline_that_the_cluster_cannot_keep(hetplan: Command, jobs: Path) -> None:
    """With both rates."""
    Path("jobs.yaml").write_text(JOBS.replace("tokens: 1.0e+9", "tokens: 1.0e+15, deadline_hours: 1"))
    done = hetplan(*WORDS)
    assert done.code == 3
    assert "first: its deadline asks for 277,777,777,778 tokens/s" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name: second", "name: first"), "jobs[1].name: first is already on line 2"),
        (("wide.yaml", "wine.yaml"), "jobs[1].model: wine.yaml: no such file, and no model of that name"),
        (
            (", tokens: 1.0e+9", ""),
            "jobs[0].tokens: missing: the objective makespan needs what is left to do",
        ),
        (("tokens: 1.0e+9", "tokens: many"), "jobs[0].tokens: expected a number"),
        (
            ("tokens: 1.0e+9", "tokens: 1e9, steps: 3"),
            "jobs[0].steps: given beside tokens, which says the same",
        ),
        (("weight: 3", "weight: 0"), "jobs[1].weight: expected a number from 0.000001 to 1000000"),
        (("weight: 3", "target: jax"), "jobs[1].target: expected "),
        (
            ("weight: 3", "least_gpus: 9"),
            "jobs[1].least_gpus: expected at most the 8 devices of the cluster, got 9",
        ),
        (
            ("weight: 3", "least_gpus: 3, most_gpus: 2"),
            "jobs[1].most_gpus: expected at least least_gpus, 3, got 2",
        ),
        (("weight: 3", "wait: 3"), "jobs[1].wait: "),
        (("jobs:\n", "jobs: []\nmore:\n"), "jobs: "),
    ],
)
def test_bad_jobs(hetplan: Command, jobs: Path, change: tuple[str, str], message: str) -> None:
    """File, line and key."""
    assert change[0] in JOBS
    Path("jobs.yaml").write_text(JOBS.replace(*change, 1))
    done = hetplan(*WORDS)
    assert (done.code, done.out) == (2, "")
    assert re.search(r"error: jobs\.yaml:\d+: " + re.escape(message), done.err), done.err


def test_files_in_the_wrong_order(hetplan: Command, jobs: Path) -> None:
    """What each is."""
    done = hetplan("share", "jobs.yaml", "cluster.yaml")
    assert (done.code, done.out) == (2, "")
    assert "jobs.yaml: is a jobs file, expected a cluster file" in done.err
    assert hetplan(*WORDS, "--objective", "luck").code == 2
