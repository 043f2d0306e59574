"""One folder for a plan and for those without each of its nodes, started by torchrun with MIN:MAX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.job.files import EmittedFile, document, node_file, number_format, rendered
from planner.job.job import MASTER_PORT, Job

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
