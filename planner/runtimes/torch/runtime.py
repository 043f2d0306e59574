"""PyTorch itself: the batch table, a small configuration and an example."""

from __future__ import annotations

from collections.abc import Mapping

from planner.dims.sharding import gradients_of
from planner.job.batches import example_files
from planner.job.files import EmittedFile, document, launch_files, node_file, number_format
from planner.job.job import Job
from planner.runtimes.interface import Runtime
from planner.runtimes.torch.capabilities import CAPABILITIES

CLIP = 1.0
"""Largest norm of the gradients of the whole model."""


class PyTorch(Runtime):
    """Trains by FSDP2, torch's pipeline schedules and DTensor."""

    capabilities = CAPABILITIES
    libraries: Mapping[str, str] = {"torchtitan": "titan"}

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """The example, and what it needs beside the batch table and the model's shape."""
        config = {
            "precision": job.model.training.precision,
            "reduce_dtype": gradients_of(CAPABILITIES, job.model.training, job.plan.zero).reduced,
            "clip": CLIP,
            "on_host": job.plan.offload.parameters != "none",
        }
        return (
            EmittedFile("torch_config.json", document(config)),
            *example_files(job),
            node_file("planner.runtimes.torch.hetplan_torch"),
            node_file("planner.runtimes.torch.hetplan_pipeline"),
            node_file("planner.runtimes.torch.hetplan_exchange"),
            node_file("planner.runtimes.torch.hetplan_shards"),
            node_file("planner.runtimes.torch.hetplan_backups"),
            node_file("planner.runtimes.torch.example_grid"),
            node_file("planner.runtimes.torch.example_stage"),
            node_file("planner.runtimes.torch.example_tensor"),
            node_file("planner.runtimes.torch.train"),
            *launch_files(job, job.program("train.py"), number_format(job.model.training.precision)),
        )

    def notes(self, job: Job) -> Mapping[str, object]:
        """Whether stages run all forwards first."""
        plan = job.plan
        return {"too_few_micro_batches": plan.micro_batches - bool(plan.fewer_steps) < plan.pp}


RUNTIME = PyTorch()
