"""Launch files for PyTorch itself: the batch table, a small configuration and an example."""

from __future__ import annotations

from planner.cluster.spec import ClusterSpec
from planner.emit.batch_table import table_text
from planner.emit.deepspeed.files import model_shape
from planner.emit.files import EmittedFile, runtime_file
from planner.emit.json_text import document
from planner.emit.launch import Program, launch_files, number_format_lines
from planner.emit.network import job_network
from planner.emit.torch_native.readme import readme
from planner.model.spec import ModelSpec
from planner.plan.placement import agents, ranks
from planner.plan.values import Plan

CLIP = 1.0
"""Largest norm of the gradients of the whole model."""


def files(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> tuple[EmittedFile, ...]:
    """Every file of the folder."""
    everyone = ranks(plan, cluster)
    launchers = agents(everyone)
    prologue = "\n".join(number_format_lines(model.training.precision))
    launch = launch_files(launchers, cluster, Program(command="train.py", prologue=prologue))
    return (
        EmittedFile("torch_config.json", document(config(plan, model))),
        EmittedFile("batches.json", table_text(plan, everyone)),
        EmittedFile("model.json", document(model_shape(model))),
        runtime_file("batches", "hetplan_runtime.py"),
        runtime_file("torch_native", "hetplan_torch.py"),
        runtime_file("torch_pipeline", "hetplan_pipeline.py"),
        runtime_file("example_model", "example_model.py"),
        runtime_file("example_stage", "example_stage.py"),
        runtime_file("example_tensor", "example_tensor.py"),
        runtime_file("example_data", "example_data.py"),
        runtime_file("example_run", "example_run.py"),
        runtime_file("step_log", "step_log.py"),
        runtime_file("example_torch", "train.py"),
        *launch,
        EmittedFile("README.md", readme(plan, model, launchers, job_network(cluster, launchers), launch)),
    )


def config(plan: Plan, model: ModelSpec) -> dict[str, object]:
    """What the example needs beside the batch table and the model's shape."""
    return {
        "precision": model.training.precision,
        "clip": CLIP,
        "on_host": plan.offload.parameters != "none",
    }
