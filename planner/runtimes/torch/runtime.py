"""Launch files for PyTorch itself: the batch table, a small configuration and an example."""

from __future__ import annotations

from planner.cluster.spec import ClusterSpec
from planner.job.batches import table_text
from planner.job.files import EmittedFile, document, node_file
from planner.job.launch import Program, launch_files, number_format_lines
from planner.job.network import job_network
from planner.model.spec import ModelSpec
from planner.plan.placement import agents, ranks
from planner.plan.values import Plan
from planner.runtimes.deepspeed.runtime import model_shape
from planner.runtimes.torch.readme import readme

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
        node_file("planner.training.hetplan_runtime"),
        node_file("planner.runtimes.torch.hetplan_torch"),
        node_file("planner.runtimes.torch.hetplan_pipeline"),
        node_file("planner.training.example_model"),
        node_file("planner.runtimes.torch.example_stage"),
        node_file("planner.runtimes.torch.example_tensor"),
        node_file("planner.training.example_data"),
        node_file("planner.training.example_run"),
        node_file("planner.training.step_log"),
        node_file("planner.runtimes.torch.train"),
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
