"""``hetplan probe``: draft a cluster file from machines or from what they printed."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from planner.cli.options import Force, flag, option, require_name
from planner.cli.output import require_new, typed
from planner.cli.process import warn, write
from planner.errors import UsageError
from planner.files.writing import write_whole
from planner.probe.draft import assumptions, draft, lacking, unseen
from planner.probe.hosts import ListedHost, parse_hostfile, parse_slurm, require_same_names
from planner.probe.node import ProbedNode, collection, folders, parse_node, read, this_host, this_machine
from planner.probe.text import Text

EXAMPLE = "cluster.yaml"
"""Name of an output, for hints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutputs:
    """Files with what the commands of one node printed, by source."""

    nvidia_smi: Annotated[
        Path | None, option("--nvidia-smi", "FILE", "Devices: output of nvidia-smi --query-gpu (CSV).")
    ] = None
    gpu_list: Annotated[
        Path | None, option("--gpu-list", "FILE", "MIG devices: output of nvidia-smi -L.")
    ] = None
    topo: Annotated[
        Path | None, option("--topo", "FILE", "Links between devices: output of nvidia-smi topo -m.")
    ] = None
    ibstat: Annotated[Path | None, option("--ibstat", "FILE", "RDMA NICs: output of ibstat.")] = None
    ethtool: Annotated[
        Path | None, option("--ethtool", "FILE", "Network interfaces: output of ethtool for each.")
    ] = None
    sysfs: Annotated[
        Path | None, option("--sysfs", "FILE", "RDMA and Ethernet NICs: files under /sys/class.")
    ] = None

    def given(self) -> dict[str, Path]:
        """Those that are there."""
        return {source: path for source, path in asdict(self).items() if path is not None}


def probe(
    *,
    outputs: NodeOutputs,
    hostfile: Annotated[
        Path | None, option("--hostfile", "FILE", "Host names: a DeepSpeed hostfile.")
    ] = None,
    slurm: Annotated[
        Path | None,
        option(
            "--slurm",
            "FILE",
            "Host names: SLURM_JOB_NODELIST, or output of scontrol show hostnames or sinfo -N -o.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, option("--from", "FOLDER", "Folder of saved outputs, one sub-folder per node.")
    ] = None,
    commands: Annotated[
        bool, flag("--commands", "Print the shell commands that save these outputs on a node.")
    ] = False,
    name: Annotated[str, option("--name", "NAME", "Name of the cluster.")] = "cluster",
    output: Annotated[
        Path | None, option("--output -o", "FILE", "Cluster file to write. Default: stdout.")
    ] = None,
    force: Force = False,
) -> None:
    """Draft a cluster file from this machine or from saved outputs.

    Unknown values are left as marked lines to fill in; missing keys are listed on stderr.
    """
    if commands:
        write(collection())
        return
    if output is not None:
        require_new(output, force, EXAMPLE)
    require_name(name)
    given = outputs.given()
    if folder is not None and given:
        raise UsageError("probe: expected --from FOLDER or files of one node, not both")
    hosts = _hosts(hostfile, slurm, live=folder is None and not given)
    _deliver(_nodes(folder, given, hosts), hosts, name, output)


def _hosts(hostfile: Path | None, slurm: Path | None, *, live: bool) -> tuple[ListedHost, ...]:
    """Hosts of a list, that of the Slurm job around us where nothing else is said."""
    if hostfile is not None and slurm is not None:
        raise UsageError("probe: expected --hostfile or --slurm, not both")
    if hostfile is not None:
        return parse_hostfile(read(hostfile))
    if slurm is not None:
        return parse_slurm(read(slurm))
    job = os.environ.get("SLURM_JOB_NODELIST", "") if live else ""
    return parse_slurm(Text(job, "SLURM_JOB_NODELIST")) if job else ()


def _nodes(folder: Path | None, given: dict[str, Path], hosts: tuple[ListedHost, ...]) -> list[ProbedNode]:
    """The nodes of the folder, the node of the files, or this machine."""
    if folder is not None:
        nodes = dict(folders(folder))
        require_same_names(nodes, hosts)
        return [parse_node(host, texts) for host, texts in nodes.items()]
    if given:
        return [parse_node(None, {source: read(path) for source, path in given.items()})]
    names = {host.name.partition(".")[0]: host.name for host in hosts}
    # A machine that the list lacks only shows what the listed ones look like.
    host = names.get(this_host()) if hosts else this_host()
    return [parse_node(host, this_machine())]


def _deliver(nodes: list[ProbedNode], hosts: tuple[ListedHost, ...], name: str, output: Path | None) -> None:
    """The draft on stdout or in the file; what it lacks on stderr."""
    text = draft(nodes, hosts, name)
    if output is None:
        write(text)
    else:
        write_whole(text, output, EXAMPLE)
    file = str(output or EXAMPLE)
    for problem in lacking(text, file):
        warn(f"to fill in: {problem}")
    missing = unseen(text)
    if missing:
        warn(f"{file}: not seen: {', '.join(f'{key} (line {line})' for line, key in missing)}")
    count = assumptions(text)
    if count:
        warn(f'{file}: {count} {"value is" if count == 1 else "values are"} assumed; look for "# assumed"')
    if output is not None:
        write(f"Next: {typed('hetplan', 'check', output)}\n")
