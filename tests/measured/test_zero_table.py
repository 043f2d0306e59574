"""Model states of the whole table 1 of the ZeRO paper."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibration.values import Stack
from planner.cluster.topology import Topology
from planner.cost.memory import Load, memory, parameters_of
from tests.clusters import cluster, gpt, pool

KIND = Topology(cluster(pool("p"))).kinds[0]
LOAD = Load(
    layers=24,
    first=True,
    last=True,
    tp=1,
    dp=1,
    micro_batch=1,
    layers_in_flight=24.0,
    recompute="none",
    sequence_parallel=False,
    zero=0,
    gradient_bytes=2,
)


def rows() -> list[dict[str, str]]:
    """The printed numbers."""
    with (Path(__file__).parent / "zero_table1.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def last_digit(printed: str) -> float:
    """One unit of the last printed digit: the paper rounds some numbers and cuts others."""
    return 10.0 ** -len(printed.partition(".")[2])


def agrees(row: dict[str, str]) -> bool:
    """True when parameters, gradients and optimizer equal the printed number to its digits."""
    model = gpt()
    found = memory(model, KIND, Stack(), replace(LOAD, dp=int(row["dp"]), zero=int(row["zero"])))
    states = found.parameters_bytes + found.gradients_bytes + found.optimizer_bytes
    scale = float(row["parameters_billions"]) / parameters_of(model, layers=24, first=True, last=True, tp=1)
    printed = row["model_state_gb"]
    return abs(states * scale - float(printed)) <= 1.001 * last_digit(printed)


@pytest.mark.parametrize(
    "row", rows(), ids=lambda row: f"{row['parameters_billions']}B-{row['dp']}-{row['zero']}"
)
def test_states_equal_the_printed_ones(row: dict[str, str]) -> None:
    """Every row of the table."""
    assert agrees(row)


def test_the_table_is_whole() -> None:
    """Three models, six widths, three ZeRO stages."""
    keys = {(row["parameters_billions"], row["dp"], row["zero"]) for row in rows()}
    assert len(keys) == len(rows()) == 3 * 6 * 3
