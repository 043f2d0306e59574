"""The launchers by name, what each adds to a folder, and what looks at the nodes before a start."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.catalog import driver_names, product_labels
from planner.cluster.spec import RDMA, PoolSpec
from planner.cost.compute import MIXED
from planner.errors import EmitError
from planner.files.writing import dump
from planner.job.files import EmittedFile, rendered
from planner.job.job import MASTER_PORT, NVME_FOLDER, Job, is_unnamed, label
from planner.runtimes.deepspeed.capabilities import CAPABILITIES as DEEPSPEED
from planner.runtimes.deepspeed.hostfile import include, keeps_types
from planner.runtimes.interface import runtime_of
from planner.runtimes.torch.capabilities import CAPABILITIES as PYTORCH

POD_FOLDER = "/hetplan/run"
"""Where pods see the launch folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    """Pods of one pool's nodes, each with the place of one host."""

    name: str
    pool: PoolSpec
    hosts: tuple[str, ...]
    index: str
    """The shell's sum for a pod's place among the hosts."""
    has_rdma: bool
    resource: str
    """What Kubernetes calls one of their devices."""
    products: tuple[str, ...]
    """Product labels that these nodes have and no others; none where they have to be named."""

    @property
    def start(self) -> str:
        """What a pod runs in its shell."""
        place = f'hosts=({" ".join(self.hosts)}); export HETPLAN_AS="${{hosts[{self.index}]}}"'
        return f'{place}; exec ./launch.sh "$@"'


def _kubernetes_files(job: Job) -> tuple[EmittedFile, ...]:
    """``trainjob.yaml`` for one pool, ``pytorchjob.yaml`` where the older PyTorchJob can express the pools, else
    ``jobset.yaml``.

    A TrainJob of trainer.kubeflow.org/v1alpha1 has one kind of node; it refers to a TrainingRuntime in the same file.

    A PyTorchJob of kubeflow.org/v1 has two replica specs, Master with one pod and Worker, so one spec for each pool
    is possible only when all nodes behind the first are of one pool. A JobSet (jobset.x-k8s.io/v1alpha2) has any
    number.
    """
    if fits_pytorchjob(job):
        master = _pods(job, "Master", job.pools[0], job.hosts[:1], "0")
        pods = [master, _pods(job, "Worker", job.pools[-1], job.hosts[1:], "RANK-1")]
        older = _resource("pytorchjob.yaml", job, [each for each in pods if each.hosts])
        if len(job.pools) > 1:
            return (older,)
        nodes = _pods(job, "node", job.pools[0], job.hosts, "JOB_COMPLETION_INDEX")
        return (older, _resource("trainjob.yaml", job, [nodes]))
    index = "JOB_COMPLETION_INDEX"
    names = zip(_job_names(job), job.pools, strict=True)
    return (
        _resource(
            "jobset.yaml", job, [_pods(job, name, pool, job.hosts_of(pool), index) for name, pool in names]
        ),
    )


def fits_pytorchjob(job: Job) -> bool:
    """True when the nodes behind the first are of one pool."""
    first, *others = job.pools
    return not others or (len(others) == 1 and len(job.hosts_of(first)) == 1)


def _resource(name: str, job: Job, pods: list[_Pods]) -> EmittedFile:
    return EmittedFile(
        name,
        rendered(
            f"launchers/{name}.j2",
            job=job,
            pods=pods,
            folder=POD_FOLDER,
            port=MASTER_PORT,
            nvme=NVME_FOLDER if job.plan.offload.uses_nvme else "",
            checkout=runtime_of(job).checkout,
        ),
    )


def _pods(job: Job, name: str, pool: PoolSpec, hosts: tuple[str, ...], index: str) -> _Pods:
    has_rdma = any(job.cluster.fabrics[nic.fabric].kind in RDMA for nic in pool.nics)
    library = job.cluster.gpus[pool.devices[0]].library
    resource = "amd.com/gpu" if library == "RCCL" else "nvidia.com/gpu"
    return _Pods(
        name=name,
        pool=pool,
        hosts=hosts,
        index=index,
        has_rdma=has_rdma,
        resource=resource,
        products=_products(job, pool),
    )


def _products(job: Job, pool: PoolSpec) -> tuple[str, ...]:
    """Product labels of a pool's nodes; none where the catalogue has none, or nodes of another pool have one too."""
    types = set(pool.devices)
    labels = product_labels(next(iter(types))) if len(types) == 1 else ()
    others = {gpu for other in job.cluster.pools if other.name != pool.name for gpu in other.devices}
    return () if any(set(labels) & set(product_labels(gpu)) for gpu in others) else labels


def _job_names(job: Job) -> list[str]:
    """A name for each pool's job, no two alike."""
    names: list[str] = []
    for index, pool in enumerate(job.pools):
        name = label(pool.name, "pool")
        names.append(f"{name}-{index}" if name in names else name)
    return names


def _start_script(job: Job, starter: str = "") -> EmittedFile:
    """The script; ``starter`` is a script of the folder that takes the place of torchrun."""
    variables = runtime_of(job).variables
    text = rendered("launchers/start.sh.j2", starter=starter, variables=variables)
    return EmittedFile("start.sh", text, executable=True)


NOT_A_NAME = re.compile(r"[0-9.]+|.*:.*")
"""Hosts that ``--nodelist`` does not take: addresses."""


def _slurm_files(job: Job) -> tuple[EmittedFile, ...]:
    """``job.sbatch``."""
    named = [pool for pool in job.pools if not any(map(NOT_A_NAME.fullmatch, job.hosts_of(pool)))]
    return (
        EmittedFile("job.sbatch", rendered("launchers/job.sbatch.j2", job=job, named=named), executable=True),
    )


STARTER = "./deepspeed.sh"
INSTEAD = "use --launcher ssh, which starts the same ranks with torchrun"


def _deepspeed_files(job: Job) -> tuple[EmittedFile, ...]:
    """``start.sh`` and ``deepspeed.sh``; raises EmitError for ranks that DeepSpeed's launcher would reorder."""
    _check_deepspeed(job)
    chosen = include(job.agents)
    script = rendered("launchers/deepspeed.sh.j2", include=chosen)
    return (_start_script(job, STARTER), EmittedFile("deepspeed.sh", script, executable=True))


def _check_deepspeed(job: Job) -> None:
    if job.plan.target != DEEPSPEED.name:
        raise EmitError(
            f"launcher deepspeed: starts plans for the target deepspeed, this one is for {job.plan.target}",
            hint=INSTEAD,
        )
    if len(job.hosts) < len(job.agents):
        hosts = [agent.host for agent in job.agents]
        twice = next(host for host in hosts if hosts.count(host) > 1)
        raise EmitError(
            f"launcher deepspeed: a hostfile names each host once, and the plan's rank order uses {twice} twice",
            hint=INSTEAD,
        )
    if not keeps_types(job.agents, job.ranks):
        raise EmitError(
            "launcher deepspeed: it numbers the devices of a node in its own way, and would give some ranks another "
            "device type than the plan does",
            hint=INSTEAD,
        )


def _accelerate_files(job: Job) -> tuple[EmittedFile, ...]:
    """``start.sh``, ``accelerate.sh`` and ``accelerate.yaml``; raises EmitError for what Accelerate cannot express."""
    plan = job.plan
    if plan.target not in (DEEPSPEED.name, PYTORCH.name):
        raise EmitError(f"launcher accelerate: does not start {plan.target}", hint=INSTEAD)
    if plan.pp > 1 or any(group.tp > 1 for group in plan.stages[0].replicas):
        raise EmitError(
            "launcher accelerate: its FSDP and DeepSpeed have no stages or tensor parallelism", hint=INSTEAD
        )
    if plan.ep > 1:
        raise EmitError("launcher accelerate: its FSDP and DeepSpeed divide no experts", hint=INSTEAD)
    lacking = {
        "share of an offloaded optimizer": plan.offload.ratio < 1,
        "SuperOffload": plan.offload.super_offload,
        "ZeRO++": plan.zero_plus.anything,
        "folder of each pool's own on NVMe": plan.offload.uses_nvme,
        "activations in host memory": plan.offload.activations != "none",
        "groups of replicas that share states (HSDP)": plan.shard_size is not None,
        "unequal shards": plan.unequal_shards,
        "divided sequences": plan.cp > 1,
        "islands": not plan.sync.exact,
        "backup replicas": plan.backup > 0,
        "products in fp8": job.model.training.precision == "fp8",
    }
    for what in (name for name, used in lacking.items() if used):
        raise EmitError(f"launcher accelerate: its configuration has no {what}", hint=INSTEAD)
    if job.library:
        raise EmitError(f"launcher accelerate: {job.library[0]} starts without it", hint=INSTEAD)
    sizes = sorted({len(agent.devices) for agent in job.agents})
    if len(job.hosts) < len(job.agents) or len(sizes) > 1:
        raise EmitError(
            f"launcher accelerate: takes as many ranks on every node, the plan has {', '.join(map(str, sizes))}",
            hint=INSTEAD,
        )
    script = EmittedFile("accelerate.sh", rendered("launchers/accelerate.sh.j2"), executable=True)
    return (
        _start_script(job, "./accelerate.sh"),
        script,
        EmittedFile("accelerate.yaml", dump(_accelerate(job))),
    )


def _accelerate(job: Job) -> dict[str, object]:
    """Accelerate's configuration of a plan without stages."""
    plan, precision = job.plan, job.model.training.precision
    half = precision if precision in MIXED else "no"
    on_host = plan.offload.parameters != "none"
    kind: dict[str, object] = {"distributed_type": "MULTI_GPU", "mixed_precision": half}
    if plan.target == DEEPSPEED.name:
        own = {
            "zero_stage": plan.zero,
            "zero3_init_flag": plan.zero == 3,
            "gradient_clipping": 1.0,
            "offload_optimizer_device": plan.offload.optimizer,
            "offload_param_device": plan.offload.parameters,
            "deepspeed_multinode_launcher": "standard",
        }
        kind = {"distributed_type": "DEEPSPEED", "mixed_precision": half, "deepspeed_config": own}
    elif plan.zero:
        shards = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            # FSDP2 keeps gathered parameters until the backward for ZeRO 2; it has no ZeRO 1.
            "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_offload_params": on_host,
            "fsdp_activation_checkpointing": plan.stages[0].recompute == "full",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        kind = {"distributed_type": "FSDP", "mixed_precision": half, "fsdp_config": shards}
    return {
        "compute_environment": "LOCAL_MACHINE",
        **kind,
        "num_machines": len(job.hosts),
        "num_processes": plan.devices,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }


SKYPILOT = {
    "A100-SXM-80GB": "A100-80GB",
    "A100-PCIe-80GB": "A100-80GB",
    "A100-SXM-40GB": "A100",
    "H100-SXM-80GB": "H100",
    "V100-SXM-16GB": "V100",
    "V100-SXM-32GB": "V100-32GB",
    "RTX-3090": "RTX3090",
    "RTX-4090": "RTX4090",
    "RTX-5090": "RTX5090",
    "RTX-A6000": "RTXA6000",
    "RTX-6000-Ada": "RTX6000-Ada",
    **{name: name for name in ("A10", "A10G", "A40", "B200", "H200", "L4", "L40", "L40S", "MI300X", "T4")},
}
"""What SkyPilot calls devices of the catalogue (https://github.com/skypilot-org/skypilot-catalog)."""


def _skypilot_files(job: Job) -> tuple[EmittedFile, ...]:
    """``task.yaml``; raises EmitError for a job on several pools or on nodes that mix device types."""
    types = {gpu for pool in job.pools for gpu in pool.devices}
    if len(job.pools) > 1 or len(types) > 1:
        raise EmitError(
            f"launcher skypilot: a task has machines of one type, the plan has {', '.join(sorted(types))} in "
            f"{len(job.pools)} pools",
            hint="use --launcher ray or ssh on machines that you hold, or kubernetes",
        )
    text = rendered(
        "launchers/task.yaml.j2",
        job=job,
        accelerator=SKYPILOT.get(types.pop()),
        checkout=runtime_of(job).checkout,
    )
    return (EmittedFile("task.yaml", text),)


def _ray_files(job: Job) -> tuple[EmittedFile, ...]:
    """``ray_start.py``."""
    several = len(job.pools) > 1
    nodes = [
        [host, {"GPU": len(pool.devices), "CPU": 1, **({pool.name: 1} if several else {})}]
        for pool in job.pools
        for host in job.hosts_of(pool)
    ]
    order = {host: place for place, host in enumerate(job.hosts)}
    nodes.sort(key=lambda node: order[str(node[0])])  # the first is the rendezvous
    variables = runtime_of(job).variables
    text = rendered("launchers/ray_start.py.j2", job=job, nodes=nodes, port=MASTER_PORT, variables=variables)
    return (EmittedFile("ray_start.py", text),)


def preflight_files(job: Job, *, here: bool) -> tuple[EmittedFile, ...]:
    """The script, and the devices that each pool's nodes must have; ``here`` means one node, that of the caller."""
    own = runtime_of(job)
    script = rendered(
        "launchers/preflight.sh.j2",
        tried=own.tried,
        checkout=own.checkout,
        packages=[name for name in own.tried if name != PYTORCH.name],
        unnamed=[pool.name for pool in job.pools if is_unnamed(pool)],
        here=here,
        nvme=job.plan.offload.uses_nvme,
        **job.libraries,
    )
    return (
        EmittedFile("preflight.sh", script, executable=True),
        EmittedFile("devices.txt", devices_table(job)),
    )


def devices_table(job: Job) -> str:
    """One line a device of a pool's node: pool, index, the device type, and what the driver may call it."""
    lines = ["# pool index device-type|driver's names"]
    for pool in job.pools:
        for index, gpu in enumerate(pool.devices):
            lines.append(f"{pool.name} {index} {'|'.join((gpu, *driver_names(gpu)))}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Launcher:
    """What starts the nodes."""

    files: Callable[[Job], tuple[EmittedFile, ...]]
    """Files beside launch.sh; may raise EmitError."""
    readme: str = ""
    """Template of how to start by it; empty where launch.sh is all there is."""
    notes: Callable[[Job], Mapping[str, object]] = lambda _: {}
    """What that template needs besides the job."""
    needs_names: bool = True
    """False when it gives each node its place, whatever the hosts of nodes.txt are called."""
    runs_here: bool = False
    """True when a job on one node starts where it is called, and needs no name."""


LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher(lambda _: (), runs_here=True),
    DEEPSPEED.name: Launcher(_deepspeed_files, "launchers/deepspeed.md.j2"),
    "slurm": Launcher(_slurm_files, "launchers/slurm.md.j2"),
    "kubernetes": Launcher(
        _kubernetes_files,
        "launchers/kubernetes.md.j2",
        lambda job: {
            "fits_pytorchjob": fits_pytorchjob(job),
            "folder": POD_FOLDER,
            "nvme": NVME_FOLDER,
            "checkout": runtime_of(job).checkout,
        },
        needs_names=False,
    ),
    "ssh": Launcher(lambda job: (_start_script(job),), "launchers/ssh.md.j2"),
    "accelerate": Launcher(_accelerate_files, "launchers/accelerate.md.j2"),
    "skypilot": Launcher(_skypilot_files, "launchers/skypilot.md.j2", needs_names=False),
    "ray": Launcher(
        _ray_files,
        "launchers/ray.md.j2",
        lambda job: {"variables": runtime_of(job).variables},
        needs_names=False,
    ),
}
"""Every launcher; all of them run launch.sh on the nodes."""


def check_launcher(name: str) -> None:
    """Raise EmitError for a name that is not known."""
    if name not in LAUNCHERS:
        raise EmitError(f"launcher {name}: not known, expected one of: {', '.join(LAUNCHERS)}")


def launcher_files(name: str, job: Job) -> tuple[EmittedFile, ...]:
    """The files of the launcher, and those that look at the nodes before a start."""
    launcher = LAUNCHERS[name]
    return (*launcher.files(job), *preflight_files(job, here=launcher.runs_here and job.is_on_any_node))
