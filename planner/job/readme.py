"""Parts of a launch folder's README that all targets share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from planner import __version__
from planner.job.files import EmittedFile
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent
from planner.plan.values import Plan

FILL_IN = "# EDIT:"
"""Marks a line of an environment file that the user has to complete."""
PREFLIGHT = "## Before you start\n"
"""Heading of the look at the nodes."""
START = "## Start\n"
"""Heading of how to start a node by hand; sections of the launcher stand before it."""


def heading(plan: Plan, model: ModelSpec, launchers: Sequence[Agent]) -> str:
    """Title and the plan in one paragraph."""
    hosts = len({agent.host for agent in launchers})
    shape = f"{plan.pp} pipeline stages" if plan.pp > 1 else "no pipeline"
    chunks = f", {plan.interleave} chunks of layers per device" if plan.interleave > 1 else ""
    return (
        f"# {model.name} on {plan.target}\n\n"
        f"Written by hetplan {__version__}. {plan.devices} ranks on {hosts} nodes: {shape}{chunks}, "
        f"{plan.zero_text}, {plan.global_batch} sequences of {model.training.sequence_length} tokens in a "
        "step, "
        f"{model.training.precision}.\n\n" + stage_table(plan)
    )


def stage_table(plan: Plan) -> str:
    """One row for each group of replicas."""
    rows = []
    for index, stage in enumerate(plan.stages):
        layers = f"{stage.first_layer}-{stage.end_layer - 1}"
        for group in stage.replicas:
            rows.append(
                (
                    str(index),
                    layers,
                    f"{group.pool} / {group.gpu}",
                    str(group.count),
                    str(group.tp),
                    sizes_text(group.micro_batch_sizes),
                    str(group.share),
                    stage.recompute,
                )
            )
    titles = (
        "stage",
        "layers",
        "pool / GPU",
        "replicas",
        "tp",
        "micro-batches",
        "sequences each",
        "recompute",
    )
    return markdown_table(titles, rows)


def sizes_text(sizes: Iterable[int]) -> str:
    """Micro-batch sizes, runs of equal ones as a product: ``4 x 3, 2``."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return ", ".join(f"{size} x {count}" if count > 1 else str(size) for size, count in runs)


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def starting(launchers: Sequence[Agent], example_arguments: str) -> str:
    """How to start the job on every node."""
    hosts = len({agent.host for agent in launchers})
    where = (
        "Copy the folder to the same path on every node, or put it on a shared file system. Then run on each node"
        if hosts > 1
        else "Copy the folder to the node, and run there"
    )
    text = f"{START}\n{where}\n\n```sh\n./launch.sh{example_arguments}\n```\n\n"
    text += _meeting(launchers) if hosts > 1 else ALONE
    if hosts < len(launchers):
        text += (
            "\nSome hosts stand in `nodes.txt` more than once, because their devices belong to separate runs of "
            "ranks. Without a node rank the script starts all of them.\n"
        )
    return text


ALONE = (
    "The processes meet at the loopback address, port 29500 or `MASTER_PORT` of the environment. Where the node has "
    "another name than in `nodes.txt`, give its node rank: `./launch.sh 0`.\n"
)
"""Of a job on one node."""


def _meeting(launchers: Sequence[Agent]) -> str:
    """How nodes find their ranks and each other."""
    return (
        "The script finds the node by its host name in `nodes.txt`. Where host names differ from the cluster file, "
        f"give the node rank instead: `./launch.sh 0` to `./launch.sh {len(launchers) - 1}`. The first node is the "
        f"rendezvous: `MASTER_ADDR` (default `{launchers[0].host}`) and `MASTER_PORT` in the environment override "
        "it.\n"
    )


def before_start(readme: EmittedFile, section: str) -> EmittedFile:
    """A README with a section ahead of preflight and of how to start."""
    following = PREFLIGHT if PREFLIGHT in readme.text else START
    return replace(readme, text=readme.text.replace(following, f"{section}\n{following}", 1))


def with_launcher(text: str, before: str, launcher: str) -> str:
    """A README with how to look for faults and how to start by the chosen launcher, where it is not torchrun."""
    start = f"{launcher}\n## Start node by node\n" if launcher else START
    return text.replace(START, f"{before}\n{start}", 1)


def to_edit(files: Sequence[EmittedFile]) -> str:
    """What the user has to complete, by file."""
    open_files = [file.path for file in files if FILL_IN in file.text]
    if not open_files:
        return ""
    names = ", ".join(f"`{path}`" for path in open_files)
    return (
        "## Edit first\n\n"
        "The cluster file does not name all network interfaces. Complete the lines marked `EDIT` in "
        f"{names}, or set "
        "`interface:` and `hca:` of the NICs in the cluster file and emit again. Left as they are, NCCL "
        "chooses "
        "interfaces by itself, which works on nodes with one network only.\n"
    )
