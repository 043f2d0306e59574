"""Model states of the whole table 1 of the ZeRO paper (arXiv:1910.02054) next to those of the cost model."""

from __future__ import annotations

import csv
from dataclasses import replace

from planner.calibration.values import Framework
from planner.cluster.file import load_cluster
from planner.cluster.topology import Topology
from planner.cost.memory import Footprint, Load, parameters_of
from planner.measured.table import PUBLISHED
from planner.model.file import load_model
from tools.accuracy.material import ROOT

MODEL = load_model(ROOT / "model_specs" / "gpt2_345m.yaml")
KIND = Topology(load_cluster(ROOT / "cluster_specs" / "lab.yaml")).device_types[0]
LOAD = Load(
    first=True,
    last=True,
    tp=1,
    dp=1,
    micro_batch=1,
    recompute="none",
    sequence_parallel=False,
    zero=0,
    gradient_bytes=2,
)


def rows() -> list[dict[str, str]]:
    """The printed numbers."""
    with PUBLISHED.with_name("zero_table1.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def last_digit(printed: str) -> float:
    """One unit of the last printed digit: the paper rounds some numbers and cuts others."""
    return 10.0 ** -len(printed.partition(".")[2])


def agrees(row: dict[str, str]) -> bool:
    """True when parameters, gradients and optimizer equal the printed number to its digits."""
    load = replace(LOAD, dp=int(row["dp"]), zero=int(row["zero"]))
    found = Footprint(MODEL, KIND, Framework(), load).memory(layers=24, in_flight=24.0)
    states = found.parameters_bytes + found.gradients_bytes + found.optimizer_bytes
    scale = float(row["parameters_billions"]) / parameters_of(MODEL, layers=24, first=True, last=True, tp=1)
    printed = row["model_state_gb"]
    return abs(states * scale - float(printed)) <= 1.001 * last_digit(printed)
