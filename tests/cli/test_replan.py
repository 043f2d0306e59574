"""``hetplan replan``: the plan that takes over when nodes fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli.app import run
from planner.plan.file import read
from planner.search.replan import Replan, Replanner
from tests.cli.running import MODEL, Command, asked_once

pytestmark = pytest.mark.usefixtures("without_reasons")

CLUSTER = """\
name: four
pools:
  - name: fast
    gpu: A100-SXM-40GB
    hosts: [n-0, n-1, n-2]
    gpus_per_node: 2
    intra_node: nvlink3
    nics: [{fabric: ib, bandwidth_gbps: 100}]
  - name: slow
    gpu: V100-SXM-16GB
    hosts: [v-0]
    gpus_per_node: 2
    intra_node: nvlink2
    nics: [{fabric: ib, bandwidth_gbps: 100}]
fabrics:
  ib: {kind: infiniband}
"""


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plan file of the search."""
    folder = tmp_path_factory.mktemp("searched")
    for name, text in (("cluster.yaml", CLUSTER), ("model.yaml", MODEL)):
        (folder / name).write_text(text)
    words = ("search", folder / "cluster.yaml", folder / "model.yaml", "--target", "megatron", "-q", "-o")
    assert run([*map(str, words), str(folder / "plan.yaml")]) == 0
    return (folder / "plan.yaml").read_text()


@pytest.fixture
def planned(files: Path, searched: str) -> Path:
    """It and its inputs, in the current directory."""
    Path("cluster.yaml").write_text(CLUSTER)
    Path("plan.yaml").write_text(searched)
    return Path("plan.yaml")


def test_the_command(hetplan: Command, planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both plans, what moves, what failures take; and a plan file that emit takes."""
    asked_once(monkeypatch, Replanner, "without")
    words = ("replan", planned, "--without", "n-1", "--failures", "1", "--storage", "2")
    shown = hetplan(*words, "-o", "then.yaml")
    assert shown.code == 0, shown.err
    assert max(map(len, shown.out.splitlines())) <= 80
    for part in (
        "before",
        "without n-1",
        "What moves",
        "Failures",
        "of the time is useful work",
        "spare node",
    ):
        assert part in shown.out
    then = read(Path("then.yaml"))
    hosts = {host for pool in then.cluster.pools for host in pool.hosts}
    assert hosts == {"n-0", "n-2", "v-0"}
    assert then.summary is not None
    assert then.summary.bound_seconds > 0
    assert hetplan("emit", "then.yaml", "-o", "run").code == 0
    assert "n-1" not in Path("run/nodes.txt").read_text()

    document = json.loads(hetplan(*words, "--json").out)
    (loss,) = document["losses"]
    assert loss["without"] == ["n-1"]
    assert loss["step_seconds"] == pytest.approx(loss["before_step_seconds"] * (1 + loss["slower"]))
    parts = [
        (each["kept_bytes"] + each["moved_bytes"] + each["lost_bytes"]) for each in loss["move"]["hosts"]
    ]
    assert parts == pytest.approx([each["needed_bytes"] for each in loss["move"]["hosts"]])
    assert document["failures"]["checkpoint_seconds"] == pytest.approx(
        document["failures"]["checkpoint_bytes"] / 2e9
    )


def test_several_hosts_in_short(hetplan: Command, planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated, in one list, or as a range."""
    asked_once(monkeypatch, Replanner, "without")
    answered, named = Replanner.without, set[tuple[str, ...]]()

    def noted(search: Replanner, hosts: Sequence[str]) -> Replan:
        named.add(tuple(hosts))
        return answered(search, hosts)

    monkeypatch.setattr(Replanner, "without", noted)
    for words in (
        ("--without", "n-[0-1]"),
        ("--without", "n-0,n-1,n-0"),
        ("--without", "n-[0,1]"),
        ("--without", "n-0", "--without", "n-1"),
    ):
        (loss,) = json.loads(hetplan("replan", planned, *words, "--json").out)["losses"]
        assert loss["without"] == ["n-0", "n-1"]
    assert named == {("n-0", "n-1")}


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ((), "replan: expected --without HOST", "--without"),
        (("--without", "n-7"), "--without: the cluster four has no host 'n-7'", "n-0"),
        (("--without", "n-[0-2],v-0"), "--without: leaves no host to train on", "keep one"),
        (("--without", ""), '--without: "" is not a host name', "node-"),
        (("--without", "n-[0-"), '--without: "n-[0-" is not a host name', ""),
        (("--without", "n-[2-1]"), "--without: the range", ""),
        (("--without", "n-[0-99999999999]"), "--without: more than 100,000 hosts", ""),
        (("--without", "n-0\x1b[31m"), "--without: ", ""),
        (("--without", "n-0", "--away", "soon"), "--away: expected a time", ""),
        (("--without", "n-0", "--failures", "-1"), "--failures: expected a number", ""),
        (("--without", "n-0", "--storage", "0"), "--storage: expected gigabyte/s", ""),
        (("--without", "n-0", "--restart-time", "5m"), "--restart-time says what failures take", ""),
        (
            ("--without", "n-0", "--failures", "1", "--storage", "1", "--checkpoint-time", "5s"),
            "both say what a checkpoint takes",
            "",
        ),
    ],
)
def test_one_clear_error(
    hetplan: Command, planned: Path, words: tuple[str, ...], said: str, hint: str
) -> None:
    """On stderr, with exit code 2."""
    done = hetplan("replan", planned, *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert said in done.err
    assert hint in done.err


def test_a_plan_whose_files_changed(hetplan: Command, planned: Path) -> None:
    """Named by what differs, or by its line where the plan file itself was edited."""
    Path("cluster.yaml").write_text(CLUSTER.replace("bandwidth_gbps: 100", "bandwidth_gbps: 50"))
    done = hetplan("replan", planned, "--without", "n-0", "--cluster", "cluster.yaml")
    assert done.code == 2
    assert "made for another cluster than cluster.yaml" in done.err
    planned.write_text(planned.read_text().replace("bandwidth_gbps: 100", "bandwidth_gbps: 50"))
    done = hetplan("replan", planned, "--without", "n-0")
    assert done.code == 2
    assert "the cluster under inputs is not the one that the plan was made for" in done.err


def test_storage_in_other_commands(hetplan: Command, planned: Path) -> None:
    """A slower one writes checkpoints less often, and leaves less time for work."""
    words = ("predict", "cluster.yaml", "model.yaml", planned, "--tokens", "1B", "--failures", "5", "--json")
    fast, slow = (json.loads(hetplan(*words, "--storage", rate).out)["training"] for rate in ("10", "0.001"))
    assert fast["goodput"] > slow["goodput"]
    assert fast["checkpoint_interval_seconds"] < slow["checkpoint_interval_seconds"]
    assert hetplan(*words, "--storage", "1", "--checkpoint-time", "5s").code == 2


def test_every_node_is_prepared_for(hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row and a launch folder for each, and one start script that goes from one to the other."""
    asked_once(monkeypatch, Replanner, "without", by=lambda _, hosts: tuple(hosts))
    Path("cluster.yaml").write_text(CLUSTER)
    words = (
        "search",
        "cluster.yaml",
        "model.yaml",
        "--target",
        "torch",
        "--zero",
        "1",
        "-q",
        "-o",
        "plan.yaml",
    )
    assert hetplan(*words).code == 0
    planned = Path("plan.yaml")
    done = hetplan("replan", planned, "--prepare", "ready")
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    used = {line.split()[1] for line in Path("ready/nodes.txt").read_text().splitlines()[1:]}
    assert {path.name for path in Path("ready/without").iterdir()} == used
    table = json.loads(Path("ready/elastic.json").read_text())["plans"]
    assert table[0]["folder"] == "."
    assert {each["folder"] for each in table[1:]} == {f"without/{host}" for host in used}
    for entry in table[1:]:
        folder = Path("ready") / entry["folder"]
        gone = folder.name
        assert gone not in entry["ranks"]
        batches = json.loads((folder / "batches.json").read_text())
        ranks = {(row["host"], str(row["device"])): row["rank"] for row in batches["ranks"]}
        assert ranks == {(host, at): rank for host, row in entry["ranks"].items() for at, rank in row.items()}
        assert read(folder / "plan.yaml").plan.devices == entry["world_size"] == len(ranks)
    hosts = [line.split()[0] for line in Path("ready/elastic.txt").read_text().splitlines()[1:]]
    assert f"--nnodes {len(hosts) - 1}:{len(hosts)} " in Path("ready/elastic.sh").read_text()
    assert hetplan("replan", planned, "--prepare", "ready").code == 2
    assert hetplan("replan", planned, "--prepare", "ready", "--force").code == 0


@pytest.mark.slow
def test_other_targets_get_folders_too(hetplan: Command, files: Path) -> None:
    """To start by hand, as none of them goes on by itself."""
    Path("cluster.yaml").write_text(CLUSTER)
    words = ("cluster.yaml", "model.yaml", "--target", "deepspeed", "-o", "plan.yaml", "-q")
    assert hetplan("search", *words).code == 0
    done = hetplan("replan", "plan.yaml", "--prepare", "ready", "--json")
    assert done.code == 0, done.err
    losses = json.loads(done.out)["losses"]
    for loss in losses:
        assert (Path("ready/without") / loss["without"][0] / "ds_config.json").exists()
    assert not Path("ready/elastic.sh").exists()
    assert "without/" in Path("ready/PREPARED.md").read_text()


def test_nothing_to_prepare(hetplan: Command, files: Path) -> None:
    """One host, or options that contradict each other."""
    Path("cluster.yaml").write_text(
        CLUSTER.replace("[n-0, n-1, n-2]", "[n-0]").split("  - name: slow")[0]
        + "fabrics:\n  ib: {kind: infiniband}\n"
    )
    assert (
        hetplan("search", "cluster.yaml", "model.yaml", "--target", "megatron", "-o", "one.yaml", "-q").code
        == 0
    )
    done = hetplan("replan", "one.yaml", "--prepare", "ready")
    assert (done.code, done.out) == (2, "")
    assert "n-0 is the only host of the cluster" in done.err
    assert hetplan("replan", "one.yaml", "--prepare", "ready", "--without", "n-0").code == 2
    assert hetplan("replan", "one.yaml", "--prepare", "ready", "-o", "x.yaml").code == 2


def test_ctrl_c_keeps_the_best_plan_that_takes_over(
    hetplan: Command, planned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed and written; a folder for every node is written whole or not at all."""
    whole = Replanner.without

    def stopped(self: Replanner, hosts: Sequence[str]) -> Replan:
        answer = whole(self, hosts)
        return replace(answer, result=replace(answer.result, interrupted=True))

    monkeypatch.setattr(Replanner, "without", stopped)
    done = hetplan("replan", planned, "--without", "n-1", "-o", "without.yaml")
    assert done.code == 130
    assert "What moves" in done.out
    assert read(Path("without.yaml")).plan.target == "megatron"
    done = hetplan("replan", planned, "--prepare", "prepared")
    assert (done.code, done.out) == (130, "")
    assert not Path("prepared").exists()
