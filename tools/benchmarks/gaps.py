"""How near to optimal every shipped cluster and model gets: `python -m tools.benchmarks.gaps [seconds]`.

Clusters where no device has the model's number format train in fp16.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from rich.console import Console

from planner.cli.inputs import Overrides, overridden, read_calibration
from planner.cluster.file import load_cluster
from planner.cluster.topology import Topology
from planner.model.file import load_model
from planner.search.solve import search
from planner.search.space.choices import usable_device_types
from planner.search.values import Limits, SearchResult
from tools.benchmarks.search import ROOT

STEPS = (0.0101, 0.02, 0.05, 0.1, 0.2, 1.0)
"""Upper ends of the classes of gaps."""


def answers(seconds: float) -> Iterator[tuple[str, str, SearchResult]]:
    """Cluster, model and result of each pair within a time limit."""
    calibration = read_calibration(None)
    for path in sorted((ROOT / "cluster_specs").glob("*.yaml")):
        cluster = load_cluster(path)
        for model_path in sorted((ROOT / "model_specs").glob("*.yaml")):
            model = load_model(model_path)
            if not usable_device_types(Topology(cluster), model):
                model = overridden(
                    model, Overrides(precision="fp16", global_batch=None, sequence_length=None)
                )
            limits = Limits(time_limit_seconds=seconds)
            yield path.stem, model_path.stem, search(cluster, model, calibration, limits, explain=False)


def main(seconds: float) -> None:
    """Print one line a pair, then how many pairs lie in each class."""
    console, classes = Console(width=120), Counter[str]()
    for cluster, model, result in answers(seconds):
        gap = "no plan fits" if result.best is None else f"{result.gap:.1%}"
        console.print(f"{cluster:20} {model:14} {result.status:10} {gap:>12} {result.seconds:6.1f} s")
        if result.best is None:
            classes[result.status] += 1
        else:
            classes[f"gap <= {next(step for step in STEPS if result.gap <= step):.0%}"] += 1
    for name, count in sorted(classes.items()):
        console.print(f"{name}: {count}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
