"""A Kubernetes resource: Kubeflow's PyTorchJob where it can express the pools, else a JobSet.

A PyTorchJob of kubeflow.org/v1 has two replica specs, Master with one pod and Worker, so one spec for each pool is
possible only when all nodes behind the first are of one pool. A JobSet (jobset.x-k8s.io/v1alpha2) has any number.
"""

from __future__ import annotations

import json
from textwrap import indent

from planner.cluster.spec import PoolSpec
from planner.job.files import EmittedFile
from planner.job.job import Job, label
from planner.job.launch import MASTER_PORT
from planner.job.nodes import product_labels

FOLDER = "/hetplan/run"
"""Where pods see the launch folder."""
RDMA = ("infiniband", "roce")


def files(job: Job) -> tuple[EmittedFile, ...]:
    """``pytorchjob.yaml`` or ``jobset.yaml``."""
    if fits_pytorchjob(job):
        return (EmittedFile("pytorchjob.yaml", _pytorchjob(job)),)
    return (EmittedFile("jobset.yaml", _jobset(job)),)


def fits_pytorchjob(job: Job) -> bool:
    """True when the nodes behind the first are of one pool."""
    first, *others = job.pools
    return not others or (len(others) == 1 and len(job.hosts_of(first)) == 1)


def readme(job: Job) -> str:
    """How to use it."""
    if fits_pytorchjob(job):
        kind, file, needs = "PyTorchJob", "pytorchjob.yaml", "Kubeflow's training operator (kubeflow.org/v1)"
        why = ""
    else:
        kind, file, needs = "JobSet", "jobset.yaml", "the JobSet controller (jobset.x-k8s.io/v1alpha2)"
        why = (
            " A PyTorchJob knows one Master pod and one kind of Worker, which is too few for these pools; a JobSet has "
            "a job for each pool."
        )
    return (
        "## Start with Kubernetes\n\n"
        f"```sh\nkubectl apply -f {file}\n```\n\n"
        f"`{file}` is a {kind} and needs {needs}.{why} Complete its lines marked `EDIT`: the image, the claim of a "
        f"volume that all nodes share with this folder in it (pods see it at `{FOLDER}`), and the RDMA resource. Each "
        "pod takes a whole node, chosen by the label `nvidia.com/gpu.product`, and the place of one host of "
        "`nodes.txt`. Pods use the network of their node (`hostNetwork`), so that the interfaces in `env/` are those "
        "of the nodes. Arguments of the training program go into `args` behind `--`.\n"
    )


def _pytorchjob(job: Job) -> str:
    first, *others = job.pools
    workers = job.hosts_of(others[0]) if others else job.hosts[1:]
    specs = [_replica_spec("Master", 1, _pod(job, first, job.hosts[:1], "0"))]
    if workers:
        pod = _pod(job, others[0] if others else first, workers, "RANK-1")
        specs.append(_replica_spec("Worker", len(workers), pod))
    return (
        f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata:\n  name: {job.name}\n"
        "spec:\n  runPolicy:\n    backoffLimit: 0\n    cleanPodPolicy: Running\n"
        f"  pytorchReplicaSpecs:\n{indent(''.join(specs), '    ')}"
    )


def _replica_spec(kind: str, replicas: int, pod: str) -> str:
    return f"{kind}:\n  replicas: {replicas}\n  restartPolicy: Never\n  template:\n    spec:\n{indent(pod, '      ')}"


def _jobset(job: Job) -> str:
    names = _job_names(job)
    first = f"{job.name}-{names[0]}-0-0.{job.name}"
    parts = []
    for name, pool in zip(names, job.pools, strict=True):
        hosts = job.hosts_of(pool)
        pod = _pod(job, pool, hosts, "JOB_COMPLETION_INDEX", master=first)
        parts.append(
            f"- name: {name}\n  replicas: 1\n  template:\n    spec:\n      completionMode: Indexed\n"
            f"      completions: {len(hosts)}\n      parallelism: {len(hosts)}\n      backoffLimit: 0\n"
            f"      template:\n        spec:\n          restartPolicy: Never\n{indent(pod, '          ')}"
        )
    return (
        f"apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata:\n  name: {job.name}\n"
        f"spec:\n  network:\n    enableDNSHostnames: true\n    subdomain: {job.name}\n"
        f"  failurePolicy:\n    maxRestarts: 0\n  replicatedJobs:\n{indent(''.join(parts), '    ')}"
    )


def _job_names(job: Job) -> list[str]:
    """A name for each pool's job, no two alike."""
    names: list[str] = []
    for index, pool in enumerate(job.pools):
        name = label(pool.name, "pool")
        names.append(f"{name}-{index}" if name in names else name)
    return names


def _pod(job: Job, pool: PoolSpec, hosts: tuple[str, ...], index: str, master: str = "") -> str:
    """The pod's spec; ``index`` is the shell's sum for a pod's place among the hosts.

    The operator of a PyTorchJob sets the rendezvous; elsewhere ``master`` is its address.
    """
    environment = {"MASTER_ADDR": master, "MASTER_PORT": str(MASTER_PORT)} if master else {}
    variables = "".join(
        f"      - {{name: {key}, value: {json.dumps(value)}}}\n" for key, value in environment.items()
    )
    variables = f"    env:\n{variables}" if variables else ""
    start = f'hosts=({" ".join(hosts)}); export HETPLAN_AS="${{hosts[{index}]}}"; exec ./launch.sh "$@"'
    rdma = any(job.cluster.fabrics[nic.fabric].kind in RDMA for nic in pool.nics)
    return (
        f"# Pool {pool.name}\nhostNetwork: true\ndnsPolicy: ClusterFirstWithHostNet\n{_affinity(pool, hosts)}"
        "containers:\n  - name: pytorch\n    image: pytorch  # EDIT: an image with PyTorch and the runtime.\n"
        f"    workingDir: {FOLDER}\n    command: [bash, -c, {json.dumps(start)}, launch]\n"
        f'    args: ["--"]\n{variables}'
        f"    resources:\n      limits:\n        nvidia.com/gpu: {len(pool.devices)}\n{RESOURCE if rdma else ''}"
        f"{IPC if rdma else ''}"
        f"    volumeMounts:\n      - {{name: run, mountPath: {FOLDER}}}\n      - {{name: shm, mountPath: /dev/shm}}\n"
        "volumes:\n  - name: run\n    persistentVolumeClaim:\n"
        "      claimName: hetplan-run  # EDIT: a claim of a shared volume with this folder in it.\n"
        "  - name: shm\n    emptyDir: {medium: Memory}\n"
    )


RESOURCE = (
    "        # EDIT: the RDMA resource of your cluster's device plugin, and uncomment.\n"
    "        # rdma/hca: 1\n"
)
"""Cannot be known: every cluster names it in its own way."""
IPC = "    securityContext:\n      capabilities:\n        add: [IPC_LOCK]\n"
"""Lets a pod pin memory for RDMA."""


def _affinity(pool: PoolSpec, hosts: tuple[str, ...]) -> str:
    """Nodes of the pool: by product where the node has one kind that the catalogue knows, else by name."""
    kinds = set(pool.devices)
    products = product_labels(next(iter(kinds))) if len(kinds) == 1 else ()
    if products:
        key, values, why = "nvidia.com/gpu.product", products, ""
    else:
        key, values = "kubernetes.io/hostname", hosts
        why = "# EDIT: no product label is known for these devices, so the nodes are named; check their names.\n"
    term = f"- {{key: {key}, operator: In, values: {json.dumps(list(values))}}}"
    return (
        f"{why}affinity:\n  nodeAffinity:\n    requiredDuringSchedulingIgnoredDuringExecution:\n"
        f"      nodeSelectorTerms:\n        - matchExpressions:\n            {term}\n"
    )
