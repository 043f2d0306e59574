"""Training data as a limit, from files to reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import CLUSTER, MODEL, SHORT_PLAN, Command

pytestmark = pytest.mark.usefixtures("without_reasons")

STARVED = CLUSTER.replace("name: tiny\n", "name: tiny\nstorage_gBps: 0.001\n")
DATA = "  data: {bytes_per_sequence: 100000, dataset_gib: 10}\n"


def test_a_step_that_waits_for_data_says_so(files: Path, hetplan: Command) -> None:
    """search, predict, explain and documents; the proof is by the storage."""
    (files / "cluster.yaml").write_text(STARVED)
    (files / "model.yaml").write_text(MODEL + DATA)
    found = hetplan("search", "cluster.yaml", "model.yaml", "-o", "plan.yaml")
    assert (found.code, found.err) == (0, "")
    assert "! the step waits for data: " in found.out
    assert "for the storage of all nodes" in " ".join(found.out.split())
    assert "proven optimal" in found.out.splitlines()[-1]
    (files / "short.yaml").write_text(SHORT_PLAN)
    predicted = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml")
    assert "waiting for data" in predicted.out
    document = json.loads(hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "--json").out)
    # Both ends of the pipeline read 16 sequences of 100 kB at 1 MB/s.
    assert document["step_seconds"] == pytest.approx(3.2)
    assert 0 < document["breakdown"]["data_seconds"] < 3.2
    assert "the step waits for data: " in hetplan("explain", "plan.yaml").out


def test_what_a_host_says_of_its_feed_is_checked(files: Path, hetplan: Command) -> None:
    """By line and key."""
    wrong = CLUSTER.replace(
        "  - name: slow\n",
        "  - name: slow\n    host: {feed: {storage_gBps: 0, caches: [{kind: tape, gib: 1, gBps: 1}]}}\n",
    )
    (files / "cluster.yaml").write_text(wrong)
    done = hetplan("check", "cluster.yaml")
    assert done.code == 2
    assert "pools[1].host.feed.storage_gBps" in done.err
    assert "pools[1].host.feed.caches[0].kind" in done.err
    (files / "cluster.yaml").write_text(CLUSTER)
    (files / "model.yaml").write_text(MODEL + "  data: {bytes_per_token: -1}\n")
    done = hetplan("check", "cluster.yaml", "model.yaml")
    assert done.code == 2
    assert "training.data.bytes_per_token" in done.err
