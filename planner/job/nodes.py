"""What nodes and their devices are called outside hetplan."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner import catalog
from planner.files.short_lists import expand_hosts
from planner.job.files import EmittedFile

WORD = re.compile(r"[\w.-]+")
"""What may be a host's name in a file."""


def holders(names: Sequence[str], files: Sequence[EmittedFile]) -> tuple[str, ...]:
    """Files that start nodes by one of these hosts, given in short form.

    JSON files and the README name hosts for people only.
    """
    wanted = set(expand_hosts(names))
    found = (file.path for file in files if wanted.intersection(WORD.findall(file.text)))
    return tuple(sorted(path for path in found if not path.endswith((".json", ".md"))))


def driver_names(gpu: str) -> tuple[str, ...]:
    """Names that nvidia-smi may print for a kind of the cluster file; none for a kind that is not in the catalogue."""
    try:
        known = catalog.gpu(gpu)
    except KeyError:
        return ()
    return tuple(dict.fromkeys((*known.aliases, known.name)))


def product_labels(gpu: str) -> tuple[str, ...]:
    """Values of the node label ``nvidia.com/gpu.product``: the driver's name with dashes for blanks."""
    vendor = ("NVIDIA ", "Tesla ")
    return tuple(name.replace(" ", "-") for name in driver_names(gpu) if name.startswith(vendor))
