"""``hetplan init``: a cluster file and a model file from a few answers."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.catalog import gpu_names, link_names
from planner.cli.options import ForceFiles, argument, option
from planner.cli.output import require_new, show, typed, writing
from planner.cluster.file import problems_of
from planner.errors import Problem, UsageError
from planner.examples import examples
from planner.files.document import Document, fail_on
from planner.files.messages import nearest
from planner.files.nodes import parse
from planner.files.writing import dump, write_whole
from planner.model.file import model_of
from planner.ranges import CARDS, NODE_DEVICES, NODES, PRICE, RATE
from planner.report.layout import Paragraph

_NAMED = {
    "gpu": ("--gpu", "hetplan gpus lists the names"),
    "intra_node": ("--intra-node", "hetplan links lists the names"),
    "kind": ("--network", "kinds are nvlink (in a rack), infiniband, roce and ethernet"),
}
"""The option that gives a key of the cluster file, and where its names are listed."""


class Asking:
    """Answers of options, and on a terminal of the user."""

    def __init__(self) -> None:
        self.lacking: list[str] = []
        self._asks = sys.stdin.isatty()

    def text(self, option: str, given: str | None, question: str, default: str | None = None) -> str:
        """An answer in words."""
        if given is not None:
            return given
        if self._asks:
            return str(typer.prompt(question, default=default))
        if default is None:
            self.lacking.append(option)
        return default or ""

    def whole(self, given: int | None, question: str) -> int:
        """A number of one or more; one where nothing is said."""
        if given is not None:
            return given
        return int(typer.prompt(question, default=1, type=int)) if self._asks else 1

    def number(self, option: str, given: float | None, question: str) -> float:
        """A number without a default."""
        if given is not None:
            return given
        if self._asks:
            return float(typer.prompt(question, type=float))
        self.lacking.append(option)
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """A cluster of one pool."""

    gpu: Annotated[str | None, option("--gpu", "NAME", "Type of the GPUs, as hetplan gpus lists them.")] = (
        None
    )
    gpus_per_node: Annotated[
        int | None, option("--gpus-per-node", "N", "GPUs in each node.", allowed=NODE_DEVICES)
    ] = None
    nodes: Annotated[int | None, option("--nodes", "N", "Number of nodes.", allowed=NODES)] = None
    intra_node: Annotated[
        str | None, option("--intra-node", "LINK", "Network inside a node, as hetplan links lists them.")
    ] = None
    network: Annotated[
        str | None,
        option(
            "--network", "KIND", "Network between nodes: infiniband, roce, ethernet, or nvlink in a rack."
        ),
    ] = None
    bandwidth_gbps: Annotated[
        float | None,
        option("--bandwidth-gbps", "GBPS", "Bandwidth of one network card, gigabit/s.", allowed=RATE),
    ] = None
    cards: Annotated[int | None, option("--cards", "N", "Network cards of a node.", allowed=CARDS)] = None
    price: Annotated[
        float | None,
        option("--price", "PRICE", "Price of one GPU for one hour; left out if absent.", allowed=PRICE),
    ] = None

    def text(self, ask: Asking) -> str:
        """The file's content."""
        pool: dict[str, Any] = {"name": "nodes"}
        pool["gpu"] = ask.text("--gpu", self.gpu, f"GPU type (for example {', '.join(gpu_names()[5:8])})")
        pool["nodes"] = ask.whole(self.nodes, "Nodes")
        pool["gpus_per_node"] = ask.whole(self.gpus_per_node, "GPUs of a node")
        if pool["gpus_per_node"] > 1:
            question = f"Network inside a node (for example {', '.join(link_names()[:4])}, pcie4)"
            pool["intra_node"] = ask.text("--intra-node", self.intra_node, question)
        fabrics = {}
        if pool["nodes"] > 1:
            question = "Network between nodes: infiniband, roce, ethernet, or nvlink in a rack"
            fabrics["net"] = {"kind": ask.text("--network", self.network, question, "ethernet")}
            speed = ask.number("--bandwidth-gbps", self.bandwidth_gbps, "Speed of one card, gigabit/s")
            cards = ask.whole(self.cards, "Cards of a node")
            pool["nics"] = [{"fabric": "net", "bandwidth_gbps": speed, "count": cards}]
        if self.price is not None:
            pool["price_per_gpu_hour"] = self.price
        data = {"name": "mine", "pools": [pool]}
        return dump(data | ({"fabrics": fabrics} if fabrics else {}))


def init(
    folder: Annotated[Path, argument("DIR", "Folder for cluster.yaml and model.yaml.")] = Path(),
    *,
    pool: ClusterOptions,
    model: Annotated[
        str | None,
        option("--model", "NAME", "An example model, as hetplan examples lists them, or a config.json."),
    ] = None,
    force: ForceFiles = False,
) -> None:
    """Write a cluster file and a model file from a few answers.

    Asks on a terminal for what no option gives. Nodes of other types are further pools of the same form; hetplan probe
    drafts the file from the machines themselves.
    """
    cluster_path, model_path = folder / "cluster.yaml", folder / "model.yaml"
    if folder.exists():
        for path in (cluster_path, model_path):
            require_new(path, force, path.name)
    ask = Asking()
    text = pool.text(ask)
    chosen = ask.text("--model", model, "Model (an example such as gpt2_345m, or a config.json)")
    if ask.lacking:
        raise UsageError(
            f"init: there is no terminal to ask on: expected {', '.join(ask.lacking)}",
            hint="hetplan gpus, hetplan links and hetplan examples list the names",
        )
    model_text = _model(chosen)
    document = Document(str(cluster_path), parse(text))
    problems = list(problems_of(document))
    for problem in problems:
        _refuse_name(problem)
    fail_on(problems)
    model_of(model_path, Document(str(model_path), parse(model_text)))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(text, cluster_path, "cluster.yaml")
    write_whole(model_text, model_path, "model.yaml")
    show(
        Paragraph(f"Wrote {cluster_path} and {model_path}"),
        then=typed("hetplan", "search", cluster_path, model_path, "-o", folder / "plan.yaml"),
    )


def _refuse_name(problem: Problem) -> None:
    """A wrong name as an error about its option, since there is no file yet that has it; raises UsageError."""
    named = _NAMED.get(problem.key.rpartition(".")[2])
    if named:
        option, hint = named
        near = (problem.hint or "").partition(", or write its numbers")[0]  # init takes names alone
        is_near = near.startswith(("did you mean", "write one of them"))
        raise UsageError(f"{option}: {problem.what}", hint=near if is_near else hint)


def _model(chosen: str) -> str:
    """An example, or a model file that takes its shape from a configuration."""
    models = {Path(each.path).stem: each.text for each in examples() if each.path.startswith("model_specs/")}
    if chosen in models:
        return models[chosen]
    path = Path(chosen)
    if os.path.isfile(path):
        return dump({"huggingface": str(path.resolve()), "training": {"precision": "bf16"}})
    hint = nearest(chosen, list(models)) or "hetplan examples lists them"
    raise UsageError(f"--model: no example and no file {chosen!r}", hint=hint)
