"""What a user should know of a launch folder although nothing is wrong with the plan."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from planner.emit.versions import is_tried, tried_versions
from planner.plan import Plan
from planner.spec.cluster import ClusterSpec
from planner.spec.runs import numbered_hosts


def installed_versions(target: str) -> dict[str, str]:
    """Versions of a target's packages in this Python; absent ones are left out."""
    found = {}
    for name in tried_versions(target):
        try:
            found[name] = metadata.version("megatron-core" if name == "megatron" else name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cautions(plan: Plan, cluster: ClusterSpec, installed: Mapping[str, str]) -> tuple[str, ...]:
    """Versions that were not tried, and hosts whose names the cluster file does not say."""
    tried = tried_versions(plan.target)
    versions = [
        f"{name} {version} is installed here, the launch files were tried with {tried[name]}"
        for name, version in installed.items()
        if not is_tried(version, tried[name])
    ]
    used = {group.pool for stage in plan.stages for group in stage.replicas}
    unnamed = [
        f"pool {pool.name}: hosts are called {pool.hosts[0]}{f' to {pool.hosts[-1]}' if len(pool.hosts) > 1 else ''} "
        "after the pool, as where the cluster file has no `hosts:`; write their names there and search again, or "
        "start each node by its rank"
        for pool in cluster.pools
        if pool.name in used and pool.hosts == numbered_hosts(pool.name, len(pool.hosts))
    ]
    return (*versions, *unnamed)
