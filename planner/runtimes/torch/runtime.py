"""PyTorch itself: the batch table, a small configuration and an example; and folders that go on without a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.dims.sharding import gradients_of
from planner.job.batches import example_files
from planner.job.files import EmittedFile, document, launch_files, node_file, number_format, rendered
from planner.job.job import MASTER_PORT, Job
from planner.runtimes.interface import Runtime
from planner.runtimes.torch.capabilities import CAPABILITIES

CLIP = 1.0
"""Largest norm of the gradients of the whole model."""


class PyTorch(Runtime):
    """Trains by FSDP2, torch's pipeline schedules and DTensor."""

    capabilities = CAPABILITIES
    libraries: Mapping[str, str] = {"torchtitan": "torchtitan"}

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """The example, and what it needs beside the batch table and the model's shape."""
        config = {
            "precision": job.model.training.precision,
            "reduce_dtype": _reduced(job),
            "clip": CLIP,
            "on_host": job.plan.offload.parameters != "none",
            "checkpoints_on_host": job.plan.offload.activations != "none",
        }
        return (
            EmittedFile("torch_config.json", document(config)),
            *example_files(job),
            node_file("planner.runtimes.torch.hetplan_torch"),
            node_file("planner.runtimes.torch.hetplan_pipeline"),
            node_file("planner.runtimes.torch.hetplan_exchange"),
            node_file("planner.runtimes.torch.hetplan_shards"),
            node_file("planner.runtimes.torch.hetplan_backups"),
            node_file("planner.training.example_fp8"),
            node_file("planner.runtimes.torch.example_grid"),
            node_file("planner.runtimes.torch.example_stage"),
            node_file("planner.runtimes.torch.example_tensor"),
            node_file("planner.runtimes.torch.train"),
            *launch_files(job, job.program("train.py"), number_format(job.model.training.precision)),
        )

    def notes(self, job: Job) -> Mapping[str, object]:
        """Whether stages keep more by running all forwards first, and the format in which gradients are added up."""
        plan = job.plan
        counts = {plan.micro_batches, plan.micro_batches - bool(plan.fewer_steps)}
        return {
            "too_few_micro_batches": any(1 < count < plan.pp for count in counts),
            "reduced": _reduced(job),
        }


def _reduced(job: Job) -> str:
    """Number format in which gradients are added up over the replicas."""
    return gradients_of(CAPABILITIES, job.model.training, job.plan.zero).reduced


RUNTIME = PyTorch()


WITHOUT = "without"
"""Folder of the plans that were prepared; each in a folder by the name of the node that it does without."""


def elastic_files(
    job: Job,
    files: Sequence[EmittedFile],
    prepared: Sequence[tuple[str, Job, Sequence[EmittedFile]]],
) -> tuple[EmittedFile, ...]:
    """The folder of a run that goes on without any one of its nodes.

    ``prepared``: the node that is gone, the run without it, and the files of its folder; the first one that fits the
    nodes which are there is taken.
    """
    jobs = [(".", job), *((f"{WITHOUT}/{host}", each) for host, each, _ in prepared)]
    devices: dict[str, set[int]] = {}
    pools: dict[str, str] = {}
    for _, each in jobs:
        for rank in each.ranks:
            devices.setdefault(rank.host, set()).add(rank.device)
            pools[rank.host] = rank.pool
    lines = [
        f"{host} {pools[host]} {','.join(map(str, sorted(indices)))}\n" for host, indices in devices.items()
    ]
    script = rendered(
        "runtimes/torch/elastic.sh.j2",
        name=job.name,
        nodes=tuple(devices),
        fewest=len(devices) - 1,
        port=MASTER_PORT,
        library=job.cluster.gpus[job.ranks[0].gpu].library,
        prologue=number_format(job.model.training.precision),
    )
    table = [
        {"folder": folder, "world_size": len(each.ranks), "ranks": _ranks(each)} for folder, each in jobs
    ]
    more = (
        EmittedFile("elastic.sh", script, executable=True),
        EmittedFile("elastic.txt", "# host pool devices\n" + "".join(lines)),
        EmittedFile("elastic.json", document({"plans": table})),
        node_file("planner.training.hetplan_elastic"),
        *(
            replace(file, path=f"{WITHOUT}/{host}/{file.path}")
            for host, _, folder in prepared
            for file in folder
        ),
    )
    return tuple(sorted((*files, *more), key=lambda file: file.path))


def _ranks(job: Job) -> dict[str, dict[str, int]]:
    """Rank by host and index of the device."""
    ranks: dict[str, dict[str, int]] = {}
    for rank in job.ranks:
        ranks.setdefault(rank.host, {})[str(rank.device)] = rank.rank
    return ranks
