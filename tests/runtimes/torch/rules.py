"""What the example for PyTorch itself takes for granted of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping

from planner.job.job import Job
from planner.runtimes.torch.capabilities import CAPABILITIES


def check_files(files: Mapping[str, str], job: Job) -> None:
    """Assert that every rank has a row in a full grid, and that the number format is one that it trains in."""
    table, config = json.loads(files["batches.json"]), json.loads(files["torch_config.json"])
    assert config["precision"] in CAPABILITIES.precisions
    assert config["on_host"] == (job.plan.offload.parameters != "none")
    assert config["checkpoints_on_host"] == (job.plan.offload.activations != "none")
    grid = len(table["stages"]) * table["data_parallel"] * table["tensor_parallel"]
    assert grid == table["world_size"] == len(table["ranks"]) == len(job.ranks)
