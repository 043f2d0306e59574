"""Steps of adapters, next to those that Megatron Bridge published; none of them is among the runs of the fit."""

from __future__ import annotations

from planner.calibration.file import shipped
from planner.cost.estimate import Estimator
from planner.measured.table import PUBLISHED, NumberedRow, cluster_of, model_of, plan_of, read_rows
from planner.model.spec import LoraSpec
from tools.accuracy.material import markdown, paragraph, signed

RUNS = ("bridge-070", "bridge-071", "bridge-072")
RECIPE = LoraSpec(rank=16, targets=("q_proj", "k_proj", "v_proj"))
"""Adapters of their recipes: ``target_modules`` is ``linear_qkv``, ``dim`` 16 (``llama3_llm_finetune.py``)."""
HEADINGS = ("run ", "model ", "devices ", "step (s)", "predicted", "error")


def predicted() -> list[tuple[NumberedRow, float]]:
    """Each run with the seconds that are said of its step; hetplan writes no adapters for Megatron, and prices them."""
    rows = {item.row.id: item for item in read_rows(PUBLISHED)}
    found = []
    for item in map(rows.__getitem__, RUNS):
        cluster, model = cluster_of(item), model_of(item).trained_with(lora=RECIPE)
        plan = plan_of(item, cluster, model)
        found.append((item, Estimator(cluster, model, shipped()).estimate(plan).step_seconds))
    return found


def adapters_section() -> str:
    """A line for each run."""
    lines = []
    for item, seconds in predicted():
        row, measured = item.row, item.row.step_seconds or 0.0
        devices = f"{row.nodes * (row.gpus_per_node or 1)} {row.gpu}, pp {row.pp}"
        numbers = (f"{measured:.2f}", f"{seconds:.2f}", signed(seconds / measured - 1))
        lines.append((row.id, f"{row.model}, {row.precision}", devices, *numbers))
    head = paragraph(
        "The three runs of Megatron Bridge that train adapters, of rank 16 on queries, keys and values, by the shipped",
        "constants, which no run with adapters has told anything. The documents packed into each sequence are not",
        "published; whole sequences are assumed.",
    )
    return f"{head}\n{markdown(HEADINGS, lines)}"
