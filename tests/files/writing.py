"""Small files to start from, and what went wrong when one is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import Problem, SpecError

CLUSTERS = Path(__file__).parents[2] / "cluster_specs"
MODELS = Path(__file__).parents[2] / "model_specs"

CLUSTER = """\
name: two
pools:
  - name: a
    gpu: A100-SXM-80GB
    nodes: 2
    gpus_per_node: 8
    intra_node: nvlink3
    nics: [{fabric: ib, bandwidth_gbps: 200}]
  - name: b
    gpu: V100-SXM-16GB
    hosts: ["v[1-2]"]
    gpus_per_node: 4
    intra_node: nvlink2
    nics: [{fabric: ib, bandwidth_gbps: 100}]
fabrics:
  ib: {kind: infiniband}
"""
MODEL = """\
name: small
layers: 8
hidden: 512
heads: 8
vocab: 1000
training:
  sequence_length: 128
  global_batch: 64
"""


def problems(load: Callable[[Path], object], path: Path) -> tuple[Problem, ...]:
    """What loading the file complains about."""
    with pytest.raises(SpecError) as caught:
        load(path)
    return caught.value.problems


def the_problem(load: Callable[[Path], object], path: Path) -> Problem:
    """The one thing that loading the file complains about."""
    found = problems(load, path)
    assert len(found) == 1, [str(problem) for problem in found]
    return found[0]
