"""A Kubernetes resource: Kubeflow's PyTorchJob where it can express the pools, else a JobSet.

A PyTorchJob of kubeflow.org/v1 has two replica specs, Master with one pod and Worker, so one spec for each pool is
possible only when all nodes behind the first are of one pool. A JobSet (jobset.x-k8s.io/v1alpha2) has any number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.catalog import product_labels
from planner.cluster.spec import PoolSpec
from planner.job.files import EmittedFile, rendered
from planner.job.job import MASTER_PORT, Job, label

FOLDER = "/hetplan/run"
"""Where pods see the launch folder."""
RDMA = ("infiniband", "roce")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    """Pods of one pool's nodes, each with the place of one host."""

    name: str
    pool: PoolSpec
    hosts: tuple[str, ...]
    index: str
    """The shell's sum for a pod's place among the hosts."""
    has_rdma: bool

    @property
    def start(self) -> str:
        """What a pod runs in its shell."""
        place = f'hosts=({" ".join(self.hosts)}); export HETPLAN_AS="${{hosts[{self.index}]}}"'
        return f'{place}; exec ./launch.sh "$@"'

    @property
    def products(self) -> tuple[str, ...]:
        """Product labels of the nodes, where they have one device type and the catalogue knows it."""
        types = set(self.pool.devices)
        return product_labels(next(iter(types))) if len(types) == 1 else ()


def files(job: Job) -> tuple[EmittedFile, ...]:
    """``pytorchjob.yaml`` or ``jobset.yaml``."""
    if fits_pytorchjob(job):
        master = _pods(job, "Master", job.pools[0], job.hosts[:1], "0")
        pods = [master, _pods(job, "Worker", job.pools[-1], job.hosts[1:], "RANK-1")]
        return (_file("pytorchjob.yaml", job, [each for each in pods if each.hosts]),)
    index = "JOB_COMPLETION_INDEX"
    names = zip(_job_names(job), job.pools, strict=True)
    return (
        _file(
            "jobset.yaml", job, [_pods(job, name, pool, job.hosts_of(pool), index) for name, pool in names]
        ),
    )


def notes(job: Job) -> Mapping[str, object]:
    """What the README needs besides the job."""
    return {"fits_pytorchjob": fits_pytorchjob(job), "folder": FOLDER}


def fits_pytorchjob(job: Job) -> bool:
    """True when the nodes behind the first are of one pool."""
    first, *others = job.pools
    return not others or (len(others) == 1 and len(job.hosts_of(first)) == 1)


def _file(name: str, job: Job, pods: list[_Pods]) -> EmittedFile:
    return EmittedFile(
        name, rendered(f"launchers/{name}.j2", job=job, pods=pods, folder=FOLDER, port=MASTER_PORT)
    )


def _pods(job: Job, name: str, pool: PoolSpec, hosts: tuple[str, ...], index: str) -> _Pods:
    has_rdma = any(job.cluster.fabrics[nic.fabric].kind in RDMA for nic in pool.nics)
    return _Pods(name=name, pool=pool, hosts=hosts, index=index, has_rdma=has_rdma)


def _job_names(job: Job) -> list[str]:
    """A name for each pool's job, no two alike."""
    names: list[str] = []
    for index, pool in enumerate(job.pools):
        name = label(pool.name, "pool")
        names.append(f"{name}-{index}" if name in names else name)
    return names
