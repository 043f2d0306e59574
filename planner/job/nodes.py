"""Nodes that the cluster file does not name: what a launch folder calls them, and what the user has to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner import catalog
from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.files.short_lists import compress_hosts, numbered_hosts
from planner.job.files import EmittedFile
from planner.plan.placement import Agent
from planner.plan.values import Plan


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


WORD = re.compile(r"[\w.-]+")
"""What may be a host's name in a file."""


def is_unnamed(pool: PoolSpec) -> bool:
    """True where hosts are called as hetplan calls them itself, after their pool."""
    return pool.hosts == numbered_hosts(pool.name, len(pool.hosts))


def placeholders(plan: Plan, cluster: ClusterSpec) -> tuple[str, ...]:
    """Names that stand for the nodes of unnamed pools that the plan uses, in short form: ``fast-[0-3]``."""
    used = {group.pool for stage in plan.stages for group in stage.replicas}
    unnamed = (pool for pool in cluster.pools if pool.name in used and is_unnamed(pool))
    return tuple(name for pool in unnamed for name in compress_hosts(pool.hosts))


def is_any_node(launchers: Sequence[Agent], cluster: ClusterSpec) -> bool:
    """True for a job on one node of an unnamed pool: it runs where it is started."""
    first = launchers[0]
    pool = next(pool for pool in cluster.pools if pool.name == first.pool)
    return on_one_node(launchers) and is_unnamed(pool)


def on_one_node(launchers: Sequence[Agent]) -> bool:
    """True for a job whose processes meet without a network."""
    return len({agent.host for agent in launchers}) == 1


def holders(hosts: Sequence[str], files: Sequence[EmittedFile]) -> tuple[str, ...]:
    """Files that start nodes by one of the hosts; batches.json and README.md name them for people only."""
    wanted = set(hosts)
    found = (file.path for file in files if wanted.intersection(WORD.findall(file.text)))
    return tuple(sorted(path for path in found if not path.endswith((".json", ".md"))))


def readme(names: Sequence[str], files: Sequence[str]) -> str:
    """What to do before a start."""
    return (
        f"## Name the nodes first\n\n{_listed(names)}: placeholders in {_listed(files)}, made from the pools' names "
        "because the cluster file names no hosts. Write the nodes' names into these files, or write them as `hosts:` "
        "into the cluster file, search and emit again.\n"
    )


def _listed(words: Sequence[str]) -> str:
    *others, last = (f"`{word}`" for word in words)
    return f"{', '.join(others)} and {last}" if others else last
