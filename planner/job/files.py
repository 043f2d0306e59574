"""Files of a launch folder: texts from templates, tables as JSON, modules that run on the nodes; its start script
with the table of nodes that it reads and each pool's network environment; and its README.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from planner import __version__
from planner.cost.shape import chunk_spans
from planner.files.short_lists import expand_hosts
from planner.job.job import FILL_IN, LOOPBACK, MASTER_PORT, NOT_NAMED, Job, pool_environment
from planner.plan.values import Plan
from planner.targets import in_words

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parents[1]
"""Templates stand beside the code that uses them, and are named from here on."""
_OWN_IMPORT = re.compile(r"^( *)from planner\.(?:\w+\.)+(?=\w+ import )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EmittedFile:
    """One file of a launch folder."""

    path: str
    """Path inside the folder, with forward slashes."""
    text: str
    executable: bool = False


@cache
def _templates() -> Environment:
    """Comments begin with ``<#``, because shell scripts have ``${#array[@]}``."""
    # Most commands render nothing.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",
        comment_end_string="#>",
    )
    environment.filters["json"] = json.dumps
    return environment


def rendered(template: str, **values: object) -> str:
    """The text of a template, e.g. ``job/launch.sh.j2``; a value that it names and that is not given is an error."""
    return _templates().get_template(template).render(values)


def node_file(module: str) -> EmittedFile:
    """A module that runs on the nodes as a file of the folder, its imports pointing to its neighbours there."""
    package, _, name = module.rpartition(".")
    text = resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return EmittedFile(f"{name}.py", _OWN_IMPORT.sub(r"\1from ", text))


def rows(head: Mapping[str, object], **tables: Sequence[Mapping[str, object]]) -> str:
    """JSON of plain values and tables, one line for each value and for each row."""
    parts = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for name, table in tables.items():
        body = ",\n".join(f"    {json.dumps(row)}" for row in table)
        parts.append(f"  {json.dumps(name)}: [\n{body}\n  ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def document(value: object) -> str:
    """JSON of any value, indented."""
    return json.dumps(value, indent=2) + "\n"


FIRST_HOST = "$(awk '$1 == 0 { print $2 }' nodes.txt)"


def launch_files(
    job: Job,
    command: str,
    prologue: str,
    *,
    network_per_group: bool = False,
    variables: Sequence[str] = (),
) -> tuple[EmittedFile, ...]:
    """``launch.sh``, ``nodes.txt`` and one environment file for each used pool.

    ``command``: shell words after torchrun's own options; may name shell variables. ``prologue``: shell lines before
    the start, run in the folder. ``network_per_group``: the program itself gives each process group its network.
    ``variables``: lines of the environment files about variables that users set.
    """
    script = rendered(
        "job/launch.sh.j2",
        job=job,
        address=LOOPBACK if job.is_on_one_node else FIRST_HOST,
        this_host=FIRST_HOST if job.is_on_any_node else "$(hostname)",
        port=MASTER_PORT,
        **job.libraries,
        prologue=prologue,
        command=command,
        script=shlex.quote(job.script[0]) if job.script else "",
    )
    networks = {pool.name: job.network_of(pool) for pool in job.pools}
    return (
        EmittedFile("launch.sh", script, executable=True),
        EmittedFile("nodes.txt", nodes_table(job)),
        *(
            EmittedFile(
                f"env/{pool.name}.sh",
                pool_environment(
                    job.cluster,
                    pool,
                    networks[pool.name],
                    networks[pool.name].needs_sockets and not network_per_group,
                )
                + "".join(f"{line}\n" for line in variables),
            )
            for pool in job.cluster.pools
            if pool in job.pools
        ),
    )


def number_format(precision: str) -> str:
    """Shell lines of a start script without which PyTorch would not multiply in the model's number format."""
    if precision != "tf32":
        return ""
    return (
        "  # The plan counts on TF32 products of fp32 numbers, which PyTorch leaves off by default.\n"
        "  export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
    )


def nodes_table(job: Job) -> str:
    """One line an agent in rank order: node rank, host, pool, devices, first rank."""
    lines = ["# node-rank host pool devices first-rank"]
    for index, agent in enumerate(job.agents):
        devices = ",".join(str(device) for device in agent.devices)
        lines.append(f"{index} {agent.host} {agent.pool} {devices} {agent.first_rank}")
    return "\n".join(lines) + "\n"


WORD = re.compile(r"[\w.-]+")
"""What may be a host's name in a file."""


def readme(
    job: Job,
    files: Sequence[EmittedFile],
    notes: Mapping[str, object],
    *,
    template: str,
    placeholders: Sequence[str],
    launcher_readme: str,
) -> EmittedFile:
    """The README beside these files, from this template in the room of the job's runtime.

    ``notes`` are what that template needs besides the job, ``launcher_readme`` is the launcher's template or empty.
    """
    text = rendered(
        f"runtimes/{job.plan.target}/{template}",
        job=job,
        hetplan_version=__version__,
        sizes_text=sizes_text,
        layers_of=layers_of(job.plan),
        listed=listed,
        to_edit=_marked(files, FILL_IN),
        cards_to_name=_marked(files, NOT_NAMED),
        placeholders=placeholders,
        holders=holders(placeholders, files),
        launcher_readme=launcher_readme,
        **notes,
    )
    return EmittedFile("README.md", text)


def _marked(files: Sequence[EmittedFile], mark: str) -> list[str]:
    """Environment files with such a line."""
    return [file.path for file in files if mark in file.text and file.path.startswith("env/")]


def sizes_text(sizes: Iterable[int]) -> str:
    """Micro-batch sizes, runs of equal ones as a product: ``4 x 3, 2``."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return ", ".join(f"{size} x {count}" if count > 1 else str(size) for size, count in runs)


def layers_of(plan: Plan) -> list[str]:
    """The layers of each stage as ranges, one for each of its chunks: ``0-1, 26-27``."""
    ranges: list[list[str]] = [[] for _ in plan.stages]
    for stage, first, end in chunk_spans(plan):
        ranges[stage].append(f"{first}-{end - 1}" if end > first + 1 else str(first))
    return [", ".join(each) for each in ranges]


def listed(words: Sequence[str]) -> str:
    """Code words as a list in a sentence."""
    return in_words([f"`{word}`" for word in words], "and")


def holders(names: Sequence[str], files: Sequence[EmittedFile]) -> tuple[str, ...]:
    """Files that start nodes by one of these hosts, given in short form.

    JSON files and the README name hosts for people only.
    """
    wanted = set(expand_hosts(names))
    paths = (file.path for file in files if wanted.intersection(WORD.findall(file.text)))
    return tuple(sorted(path for path in paths if not path.endswith((".json", ".md"))))
