"""What was seen of one node: the commands to run on it, the files that keep what they print, and their sum."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.errors import UsageError
from planner.files.document import read_text
from planner.files.short_lists import expand_hosts
from planner.probe.devices import (
    FIELDS,
    TITLE,
    SeenGpu,
    Topo,
    is_amd,
    parse_amd_gpus,
    parse_amd_topo,
    parse_gpus,
    parse_mig,
    parse_topo,
)
from planner.probe.nics import Network, parse_ethtool, parse_ibstat, parse_sysfs
from planner.probe.text import Text

TIMEOUT_SECONDS = 60
"""A driver that hangs is given up after this time."""
_TORCH = (
    'import torch; c = torch.cuda; print("index, name, memory.total [MiB]"); '
    '[print(f"{i}, {p.name}, {p.total_memory >> 20} MiB") for i in range(c.device_count()) '
    "for p in [c.get_device_properties(i)]]"
)
_SYSFS = (
    "/sys/class/infiniband/*/ports/*/{rate,state,link_layer} /sys/class/infiniband/*/device/net/*/operstate "
    "/sys/class/net/*/{speed,operstate,device/uevent,bonding/mode,bonding/slaves,bonding_slave/state} "
    "/sys/class/dmi/id/{sys_vendor,product_name}"
)


def _expanded(paths: str) -> str:
    """Braces written out: the plain shell has none."""
    out = []
    for path in paths.split():
        head, brace, rest = path.partition("{")
        names = rest.removesuffix("}").split(",") if brace else [""]
        out += [head + name for name in names]
    return " ".join(out)


@dataclass(frozen=True, slots=True)
class Source:
    """Something that shows a part of a node."""

    name: str
    file: str
    """File that keeps it in a folder of a node."""
    shell: tuple[str, ...]
    """Shell lines that print it; the next one is tried when one fails."""


SOURCES = (
    Source(
        "nvidia_smi",
        "nvidia-smi.csv",
        (
            f"nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv",
            "amd-smi static --asic --bus --vram",
            "rocm-smi --showproductname --showmeminfo vram --csv",
            f"python3 -c {shlex.quote(_TORCH)}",
        ),
    ),
    Source("gpu_list", "gpu-list.txt", ("nvidia-smi -L",)),
    Source("topo", "topo.txt", ("nvidia-smi topo -m", "rocm-smi --showtopotype")),
    Source("ibstat", "ibstat.txt", ("ibstat",)),
    Source("ethtool", "ethtool.txt", ('for i in /sys/class/net/*; do ethtool "${i##*/}"; done',)),
    Source("sysfs", "sysfs.txt", (f"grep -sHm1 . {_expanded(_SYSFS)}; true",)),
)
"""All of them, in the order of the options."""


def collection() -> str:
    """Shell lines that collect the files on a node."""
    lines = [
        "# Run this on every node, in a folder that all of them share; then: hetplan probe --from probe",
        'd="probe/$(hostname -s)"; mkdir -p "$d"',
    ]
    for source in SOURCES:
        tries = [f'{{ {shell}; }} > "$d/{source.file}" 2> /dev/null' for shell in source.shell]
        lines.append(" ||\n  ".join([*tries, f'rm -f "$d/{source.file}"']))
    return "\n".join(lines) + "\n"


def this_machine() -> dict[str, Text]:
    """What the commands print here; those that fail are left out."""
    texts: dict[str, Text] = {}
    for source in SOURCES:
        for shell in source.shell:
            printed = _run(shell.replace("python3", shlex.quote(sys.executable), 1))
            if printed:
                texts[source.name] = Text(printed, f"{source.file} of this machine")
                break
    return texts


def this_host() -> str:
    """Name of this machine without its domain."""
    return platform.node().partition(".")[0]


def _run(shell: str) -> str | None:
    """What a shell line prints; None when it fails or hangs."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.check_output(
            ["sh", "-c", shell],
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def read(path: Path) -> Text:
    """A saved output; raises SpecError."""
    return Text(read_text(path, "text"), str(path))


def folders(root: Path) -> Iterator[tuple[str, dict[str, Text]]]:
    """(host, texts) of every sub-folder with known files, or of the folder itself when it has some.

    Raises UsageError when there is nothing to read, and SpecError.
    """
    if not os.path.isdir(root):
        raise UsageError(f"--from {root}: is not a folder", hint="hetplan probe --commands collects one")
    names = ", ".join(source.file for source in SOURCES)
    entries = [
        (folder, _texts(folder))
        for folder in (root, *sorted(child for child in root.iterdir() if child.is_dir()))
    ]
    nodes = [(folder, texts) for folder, texts in entries if texts]
    if not nodes:
        raise UsageError(f"--from {root}: has none of {names}", hint="hetplan probe --commands collects them")
    if nodes[0][0] == root and len(nodes) > 1:
        raise UsageError(
            f"--from {root}: has files of a node beside folders of nodes", hint="move them into one"
        )
    for folder, texts in nodes:
        host = folder.resolve().name
        try:
            expand_hosts([host])
        except ValueError:
            raise UsageError(f"--from {folder}: is not named like a host", hint="rename the folder") from None
        yield host, texts


def _texts(folder: Path) -> dict[str, Text]:
    return {source.name: read(folder / source.file) for source in SOURCES if (folder / source.file).exists()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedNode:
    """One machine."""

    host: str | None
    """None when its name is not known."""
    gpus: tuple[SeenGpu, ...] | None = None
    """None when they could not be seen, empty when there are none."""
    topo: Topo | None = None
    network: Network | None = None
    """None when nothing was seen of its cards."""


def parse_node(host: str | None, texts: Mapping[str, Text]) -> ProbedNode:
    """The node of texts by the names of their sources; raises SpecError."""
    gpus = _gpus(texts["nvidia_smi"]) if "nvidia_smi" in texts else None
    if gpus and "gpu_list" in texts:
        gpus = parse_mig(texts["gpu_list"], gpus)
    topo = _topo(texts["topo"]) if "topo" in texts else None
    return ProbedNode(host=host, gpus=gpus, topo=topo, network=_network(texts))


def _gpus(text: Text) -> tuple[SeenGpu, ...] | None:
    return parse_amd_gpus(text) if is_amd(text) else parse_gpus(text)


def _topo(text: Text) -> Topo | None:
    return parse_amd_topo(text) if TITLE in text.content else parse_topo(text)


_NETWORKS: dict[str, Callable[[Text], Network]] = {
    "sysfs": parse_sysfs,
    "ethtool": parse_ethtool,
    "ibstat": parse_ibstat,
}
"""Readers of cards; a later one wins over an earlier one."""


def _network(texts: Mapping[str, Text]) -> Network | None:
    networks = [parse(texts[name]) for name, parse in _NETWORKS.items() if name in texts]
    if not networks:
        return None
    whole = Network()
    for network in networks:
        whole = network.over(whole)
    return whole
