"""The largest files that the documentation allows, in a few seconds and little memory.

Processor time is compared with that of a reference task beside it, so that a slow machine changes nothing.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from planner.cluster.file import MOST_POOLS
from planner.cluster.topology import Path as LinkPath
from planner.cluster.topology import Topology
from planner.files.document import MOST_BYTES
from planner.report.inputs import SHOWN
from tests.cli.running import Command, measured, measured_hetplan

REFERENCE = """\
import yaml
rows = [{"gpu": "A100", "model": f"model-{index}", "tp": 1, "forward_seconds": index / 7} for index in range(12000)]
yaml.dump({"layers": rows}, Dumper=yaml.SafeDumper)
"""
"""About two seconds on a processor of 2023."""


@cache
def reference_seconds() -> float:
    """Processor time of the reference here."""
    return measured(REFERENCE).cpu_seconds


@pytest.mark.slow
def test_the_largest_table_is_imported(tmp_path: Path) -> None:
    """4 MiB of layers; through the YAML library alone it took ten times the reference and 410 MB."""
    table, output = tmp_path / "layers.csv", tmp_path / "calibration.yaml"
    lines = ["gpu,model,tp,micro_batch,forward_seconds,backward_seconds"]
    size = len(lines[0]) + 1
    while size < MOST_BYTES - 100:
        batch = len(lines) % 64 + 1
        lines.append(f"A100-SXM-80GB,model-{len(lines) // 64},1,{batch},{batch / 1000:g},{batch / 500:g}")
        size += len(lines[-1]) + 1
    table.write_text("\n".join(lines) + "\n")
    spent = measured_hetplan("calibrate", "import", "--layers", table, "-o", output)
    assert spent.code == 0
    assert spent.peak_bytes < 300e6
    assert spent.cpu_seconds < 3 * reference_seconds()
    assert output.read_text().count("micro_batch:") == len(lines) - 1
    assert "MiB, more than the 4 MiB that hetplan reads" in spent.err


def many_pools(count: int) -> str:
    """A cluster of pools on forty fabrics in a chain, half of them on a common Ethernet too."""
    fabrics = [f"f{index}" for index in range(40)]
    lines = ["name: big", "fabrics:", "  eth: {kind: ethernet}"]
    lines += [f"  {name}: {{kind: infiniband}}" for name in fabrics]
    lines += ["links:"]
    lines += [
        f"  - {{between: [{first}, {last}], bandwidth_gbps: 100, latency_us: 10}}"
        for first, last in pairwise(fabrics)
    ]
    lines += ["pools:"]
    for index in range(count):
        nics = f"{{fabric: {fabrics[index % 40]}, bandwidth_gbps: {100 + index}}}"
        nics += ", {fabric: eth, bandwidth_gbps: 25}" if index % 2 else ""
        shape = "gpu: A100-SXM-80GB, nodes: 2, gpus_per_node: 8, intra_node: nvlink3"
        lines.append(f"  - {{name: pool-{index}, {shape}, nics: [{nics}]}}")
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_the_most_pools_are_checked(tmp_path: Path) -> None:
    """A thousand, all unequal: the pairs that the screen shows are priced, not half a million."""
    path = tmp_path / "cluster.yaml"
    path.write_text(many_pools(MOST_POOLS))
    spent = measured_hetplan("check", path)
    assert (spent.code, spent.err) == (0, "")
    assert spent.cpu_seconds < 3 * reference_seconds()


def test_the_links_of_many_pools(hetplan: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen says what it leaves out, which is not priced either; the document has every pair."""
    price, priced = Topology.path, set[frozenset[str]]()

    def noted(topology: Topology, first: str, last: str) -> LinkPath:
        priced.add(frozenset((first, last)))
        return price(topology, first, last)

    monkeypatch.setattr(Topology, "path", noted)
    path = tmp_path / "cluster.yaml"
    path.write_text(many_pools(60))
    shown = hetplan("check", path)
    assert "and 20 more pools; --json has the links between all" in shown.out
    assert len(priced) == SHOWN * (SHOWN + 1) / 2
    found = json.loads(hetplan("check", path, "--json").out)
    assert len(found["links"]) == len(priced) == 60 * 61 / 2
