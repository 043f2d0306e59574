"""The fastest plan is the answer; with ``--simple`` a device that hardly makes a step shorter is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import api
from planner.cli import search as searching
from planner.cluster.file import load_cluster
from planner.model.file import load_model
from planner.plan.file import read
from planner.search.values import Limits
from tests.cli.running import MODEL, Command, asked_once

CLUSTER = """\
name: nearly
pools:
  - {name: fast, gpu: A100-SXM-40GB, nodes: 1, gpus_per_node: 8, intra_node: nvlink3, price_per_gpu_hour: 2,
     nics: [{fabric: ib, bandwidth_gbps: 100}]}
  - {name: slow, gpu: RTX-2080-Ti, nodes: 1, gpus_per_node: 1, price_per_gpu_hour: 0.5,
     nics: [{fabric: ib, bandwidth_gbps: 100}]}
fabrics:
  ib: {kind: infiniband}
"""


def test_the_simpler_plan_wins_and_names_the_faster(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine devices are 1 % faster than eight; the plan file has what won, with its gap."""
    Path("cluster.yaml").write_text(CLUSTER)
    Path("model.yaml").write_text(
        MODEL.replace("layers: 6\nhidden: 512", "layers: 8\nhidden: 1024")
        .replace("sequence_length: 512", "sequence_length: 1024")
        .replace("global_batch: 16", "global_batch: 1800")
    )
    asked_once(monkeypatch, searching, "choose", by=lambda *_, simple, advice, **__: (simple, advice))
    # With advice, reasons have the time limit, however busy the machine is: they find the simpler plan.
    words = (
        "search",
        "cluster.yaml",
        "model.yaml",
        "--target",
        "deepspeed",
        "--recompute",
        "none",
        "--pp",
        "1",
        "--advice",
        "-o",
        "plan.yaml",
    )
    fast = json.loads(hetplan(*words, "--json").out)
    assert (fast["devices"], fast["tie"], fast["status"]) == (9, None, "optimal")
    assert read(Path("plan.yaml")).plan.devices == 9
    few = json.loads(hetplan(*words, "--simple", "--json").out)
    assert (few["devices"], few["tie"]["fewer_devices"], few["tie"]["less_per_hour"]) == (8, 1, 0.5)
    assert (
        few["tie"]["step_seconds"] == fast["step_seconds"] < few["step_seconds"] < 1.05 * fast["step_seconds"]
    )
    assert few["gap"] > fast["gap"]
    saved = read(Path("plan.yaml"))
    assert saved.plan.devices == 8
    assert saved.summary is not None
    assert saved.summary.step_seconds == few["step_seconds"]
    (chosen,) = (entry for entry in saved.considered if entry.chosen)
    assert chosen.step_seconds == few["step_seconds"]
    done = hetplan(*words, "--simple", "-v")
    assert "\n\nWhat could be chosen instead\n  - " in done.out
    assert "faster, within the error bar" in " ".join(done.out.split())
    assert saved.summary.tie is not None
    for shown in (done, hetplan("explain", "plan.yaml")):
        said = " ".join(shown.out.split())
        assert "simpler than the fastest plan that was found: within" in said
        assert "before the search stopped" not in said
    limits = Limits(target="deepspeed", recompute=("none",), pp=(1,))
    same = api.search(
        load_cluster(Path("cluster.yaml")), load_model(Path("model.yaml")), limits=limits, simple=True
    )
    assert same.best is not None
    assert same.best.estimate.step_seconds == few["step_seconds"]
    offered = " ".join(hetplan(*words, "--advice").out.split())
    assert "simpler and" in offered
    assert "1 device less, 0.500 less an hour; --simple chooses it" in offered


@pytest.mark.parametrize(
    "others", [["--robust"], ["--pareto"], ["--use-at-most", "2"], ["--history", "-o", "p.yaml"]]
)
def test_simple_is_about_the_fastest_plan(hetplan: Command, files: Path, others: list[str]) -> None:
    """Where something else is wanted it would change nothing: one error says so."""
    done = hetplan("search", "cluster.yaml", "model.yaml", "--simple", *others)
    assert done.code == 2
    assert "--simple" in done.err
    assert not Path("p.yaml").exists()
