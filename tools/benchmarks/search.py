"""How long `hetplan search` takes, whole process: `python -m tools.benchmarks.search [--json FILE] [case ...]`.

Most clusters are the shipped ones with other numbers of nodes, so that size is all that changes. Goals are CPU seconds
on a machine that takes 2.4 s for the loop of ``loop_seconds``; ratios to that loop compare machines.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]

CONSOLE = Console(width=140)

ADDITIONS = 20_000_000
"""Of the loop that stands for the speed of the machine."""

REFERENCE_SECONDS = 2.4
"""That loop on the machine of the goals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One search, how long it may take and how near to the best plan its answer must be proven."""

    name: str
    cluster: str
    """A shipped cluster, or one of ``LABS``."""
    model: str
    goal_seconds: float | None = None
    """CPU seconds on the machine of the goals; None for a case without a goal of its own."""
    goal_gap: float = 0.01
    nodes: tuple[int, ...] | None = None
    """Nodes of each pool; None leaves the file's."""
    prices: tuple[float, ...] = ()
    """Price of a device of each pool for an hour; none leaves the file's."""
    arguments: tuple[str, ...] = ()
    measured: bool = False
    """With collectives as ``hetplan calibrate network`` measures them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one search answered and took."""

    gpus: int
    wall_seconds: float
    cpu_seconds: float
    loop_seconds: float
    """The loop, measured just before."""
    peak_bytes: int
    answer: dict[str, Any]
    """What ``--json`` prints."""

    @property
    def ratio(self) -> float:
        """CPU seconds over those of the loop."""
        return self.cpu_seconds / self.loop_seconds


SAILOR = ("--global-batch", "1024")
"""As in the comparison of planners of Sailor (SOSP 2025)."""

WITHIN_2_PERCENT = ("--gap", "0.02", "--time-limit", "900")
"""What searches of models with experts ask for, also on a busy machine."""

TARGETS = ("deepspeed", "megatron", "torch", "flagscale")

_LAN = {"kind": "ethernet", "latency_us": 30}

LABS: Mapping[str, dict[str, Any]] = {
    "one": {
        "name": "one",
        "pools": [{"name": "a10", "gpu": "A10", "nodes": 1, "gpus_per_node": 1, "intra_node": "pcie4"}],
        "nics": (10,),
        "fabrics": {"lan": _LAN},
        "reserve_gib": 1,
    },
    "ethernet_28": {
        "name": "ethernet-28",
        "pools": [
            {"name": "a100", "gpu": "A100-SXM-40GB", "nodes": 2, "gpus_per_node": 4, "intra_node": "nvlink3"},
            {"name": "v100", "gpu": "V100-SXM-16GB", "nodes": 3, "gpus_per_node": 4, "intra_node": "nvlink2"},
            {"name": "t4", "gpu": "T4", "nodes": 2, "gpus_per_node": 4, "intra_node": "pcie3"},
        ],
        "nics": (25, 10, 10),
        "fabrics": {"lan": _LAN},
        "reserve_gib": 1,
    },
    **{
        f"odd_{size}": {
            "name": f"odd-{size}",
            "pools": [
                {
                    "name": f"pool-{number}",
                    "gpu": gpu,
                    "nodes": nodes,
                    "gpus_per_node": each,
                    "intra_node": link,
                }
                for number, (gpu, nodes, each, link) in enumerate(pools)
            ],
            "nics": (gbps,) * len(pools),
            "fabrics": {"lan": _LAN},
            "reserve_gib": 1,
        }
        for size, gbps, pools in (
            (20, 100, [("RTX-4090", 4, 5, "pcie4")]),
            (28, 10, [("RTX-4090", 3, 6, "pcie4"), ("A100-SXM-40GB", 2, 5, "nvlink3")]),
            (78, 10, [("RTX-4090", 6, 8, "pcie4"), ("A100-SXM-80GB", 5, 6, "nvlink3")]),
        )
    },
    "h800_2048": {
        "name": "h800-2048",
        "pools": [
            {
                "name": "h800",
                "gpu": "H800-SXM-80GB",
                "nodes": 256,
                "gpus_per_node": 8,
                "intra_node": "nvlink4-h800",
            }
        ],
        "nics": (3200,),
        "fabrics": {"lan": {"kind": "infiniband", "latency_us": 3}},
    },
    "mixed_44": {
        "name": "mixed-44",
        "pools": [
            {
                "name": "mixed",
                "devices": ["2 x RTX-3090", "2 x RTX-2080-Ti"],
                "nodes": 5,
                "intra_node": "pcie3",
            },
            {"name": "titan", "gpu": "Titan-RTX", "nodes": 12, "gpus_per_node": 2, "intra_node": "pcie3"},
        ],
        "nics": (10, 10),
        "fabrics": {"lan": _LAN},
        "reserve_gib": 1,
    },
}
"""Clusters that are not shipped; ``nics`` in Gb/s of each node of a pool, together."""


def _each_target(name: str, cluster: str, model: str, goal: float | None) -> Iterator[Case]:
    for target in TARGETS:
        yield Case(
            name=f"{name}, {target}",
            cluster=cluster,
            model=model,
            goal_seconds=goal,
            arguments=("--target", target),
        )


def _each_objective(name: str, cluster: str, model: str, goal: float) -> Iterator[Case]:
    """With prices at which A100 and V100 cost about the same for what they do, so that no sub-cluster is far off."""
    for objective in (("--objective", "energy"), ("--objective", "cost"), ("--pareto",)):
        yield Case(
            name=f"{name}, {objective[-1].removeprefix('--')}",
            cluster=cluster,
            model=model,
            goal_seconds=goal,
            prices=(3.0, 1.2),
            arguments=(*SAILOR, *objective),
        )


CASES = (
    Case(name="1 GPU", cluster="one", model="gpt2_345m"),
    Case(
        name="16, 2 kinds",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(1, 1),
        goal_seconds=1.0,
    ),
    Case(name="128, 2 kinds", cluster="a100_v100_128", model="opt_350m", arguments=SAILOR, goal_seconds=1.5),
    Case(
        name="136, no powers of two",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(7, 10),
    ),
    *_each_objective("128, 2 kinds", "a100_v100_128", "opt_350m", 5),
    Case(
        name="512, 2 kinds",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(16, 48),
        goal_seconds=2,
    ),
    Case(
        name="1024, 2 kinds",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(32, 96),
        goal_seconds=2.5,
    ),
    Case(
        name="measured 128, 2 kinds",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        measured=True,
    ),
    Case(
        name="measured 512, 2 kinds",
        cluster="a100_v100_128",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(16, 48),
        measured=True,
    ),
    Case(
        name="96, 3 kinds",
        cluster="a100_v100_gh200_96",
        model="opt_350m",
        arguments=SAILOR,
        goal_seconds=2.5,
    ),
    Case(
        name="192, 3 kinds",
        cluster="a100_v100_gh200_96",
        model="opt_350m",
        arguments=SAILOR,
        nodes=(8, 8, 64),
        goal_seconds=3,
    ),
    Case(name="16384, 6 kinds", cluster="three_sites", model="llama_3_405b", goal_seconds=20, goal_gap=0.015),
    Case(
        name="131072, 6 kinds",
        cluster="three_sites",
        model="llama_3_405b",
        nodes=(4096, 1024, 4096, 3072, 2048, 2048),
        goal_seconds=25,
        goal_gap=0.015,
    ),
    Case(
        name="experts 32, 2 kinds",
        cluster="h100_a100",
        model="qwen3_30b_a3b",
        nodes=(2, 2),
        arguments=WITHIN_2_PERCENT,
        goal_seconds=5,
        goal_gap=0.02,
    ),
    Case(
        name="experts 2048",
        cluster="h800_2048",
        model="deepseek_v3",
        arguments=WITHIN_2_PERCENT,
        goal_seconds=20,
        goal_gap=0.02,
    ),
    Case(name="Holmes 3.6B", cluster="holmes_hybrid", model="gpt_3.6b", goal_seconds=4),
    Case(name="Holmes 7.5B", cluster="holmes_hybrid", model="gpt_7.5b", goal_seconds=4),
    Case(name="Holmes 39.1B", cluster="holmes_hybrid", model="gpt_39.1b", goal_seconds=4),
    *_each_target("Holmes 3.6B", "holmes_hybrid", "gpt_3.6b", 6),
    *_each_target("Holmes 7.5B", "holmes_hybrid", "gpt_7.5b", 6),
    *_each_target("Holmes 39.1B", "holmes_hybrid", "gpt_39.1b", 6),
    Case(name="56, Holmes 7.5B", cluster="holmes_hybrid", model="gpt_7.5b", nodes=(3, 4)),
    Case(name="Ethernet 28", cluster="ethernet_28", model="llama_7b", goal_seconds=4),
    *_each_target("Ethernet 28", "ethernet_28", "llama_7b", 4),
    *(
        Case(
            name=f"odd nodes {size}",
            cluster=f"odd_{size}",
            model=model,
            arguments=("--precision", "fp16", "--global-batch", batch),
        )
        for size, model, batch in ((20, "gpt2_345m", "64"), (28, "opt_350m", "96"), (78, "gpt2_345m", "512"))
    ),
    Case(
        name="Ethernet 20, 2 kinds",
        cluster="v100_t4_10g",
        model="gpt_7.5b",
        arguments=("--precision", "fp16"),
    ),
    Case(name="mixed nodes 44", cluster="mixed_44", model="gpt2_345m", arguments=("--precision", "fp16")),
)
"""Goals are those of the table in docs/search.md."""


NO_PLAN = 3
"""The exit code of a search that proved that nothing fits."""


def scaled(cluster: str, nodes: tuple[int, ...] | None) -> dict[str, Any]:
    """A cluster with so many nodes in each pool."""
    if cluster in LABS:
        document = json.loads(json.dumps(LABS[cluster]))
        for pool, gbps in zip(document["pools"], document.pop("nics"), strict=True):
            pool["nics"] = [{"fabric": "lan", "bandwidth_gbps": gbps}]
    else:
        document = yaml.safe_load((ROOT / "cluster_specs" / f"{cluster}.yaml").read_text())
    for pool, count in zip(document["pools"], nodes or (), strict=nodes is not None):
        pool["nodes"] = count
    found: dict[str, Any] = document
    return found


def measured(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """A calibration with collectives at four fifths of what each pool's cards have, and at 100 GB/s inside nodes."""
    rates = {f"node:{pool['gpu']}": 100e9 for pool in cluster["pools"]}
    for pool in cluster["pools"]:
        for nic in pool["nics"]:
            rates[nic["fabric"]] = 0.8 * nic["bandwidth_gbps"] * nic["count"] * 1e9 / 8
    points = [
        {
            "link": link,
            "operation": operation,
            "members": members,
            "size_bytes": 2**exponent,
            "seconds": 2e-5 * members + (members - 1) / members * 2**exponent / rate,
        }
        for link, rate in rates.items()
        for operation in ("all-gather", "reduce-scatter")
        for members in (2, 8, 32, 128)
        for exponent in range(16, 32, 3)
    ]
    return {"format": "hetplan-calibration/1", "link_points": points}


def loop_seconds() -> float:
    """CPU seconds of a plain loop of additions, at the speed that the machine has now."""
    start, total = process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return process_time() - start


def _gpus(pool: Mapping[str, Any]) -> int:
    per_node = pool.get("gpus_per_node") or sum(int(item.split(" x ")[0]) for item in pool["devices"])
    return int(per_node) * int(pool.get("nodes") or len(pool["hosts"]))


def measure(case: Case) -> Outcome:
    """Run one search in a process of its own."""
    loop = loop_seconds()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{case.cluster}.yaml"
        document = scaled(case.cluster, case.nodes)
        for pool, price in zip(document["pools"], case.prices, strict=bool(case.prices)):
            pool["price_per_gpu_hour"] = price
        path.write_text(yaml.safe_dump(document))
        command = [sys.executable, "-c", "from planner.cli.app import main; main()", "search", str(path)]
        command += [str(ROOT / "model_specs" / f"{case.model}.yaml"), "--json", *case.arguments]
        if case.measured:
            constants = Path(folder) / "measured.yaml"
            constants.write_text(yaml.safe_dump(measured(document)))
            command += ["--calibration", str(constants)]
        # Other processes take as much time together, or a little more.
        command += ["--processes", "1"]
        # As installed, with its modules compiled.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        start = monotonic()
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            assert child.stdout is not None
            text = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        wall = monotonic() - start
    if child.returncode not in (0, NO_PLAN):
        raise SystemExit(f"{case.name}: exit {child.returncode}: {' '.join(command)}")
    return Outcome(
        gpus=sum(map(_gpus, document["pools"])),
        wall_seconds=wall,
        cpu_seconds=_cpu(usage),
        loop_seconds=loop,
        peak_bytes=usage.ru_maxrss * 1024,
        answer=json.loads(text),
    )


def _cpu(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


HEADINGS = (
    "case",
    "GPUs",
    "choices",
    "solved",
    "wall s",
    "CPU s",
    "ratio",
    "goal",
    "gap",
    "goal gap",
    "step s",
    "MB",
)


def main(names: list[str], out: Path | None = None) -> None:
    """Measure the cases whose names start with one of ``names``, or all, and print one table.

    ``out`` gets a JSON list with an object for each case that is done so far.
    """
    table = Table(
        title="hetplan search, whole process; ratio and goal: CPU over that of a loop of 20 M additions"
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "case" else "right")
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if names and not any(case.name.startswith(name) for name in names):
            continue
        CONSOLE.print(f"{case.name} ...", style="dim")
        outcome = measure(case)
        rows.append({**asdict(case), **asdict(outcome), "ratio": outcome.ratio})
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))
        found = outcome.answer
        table.add_row(
            case.name,
            f"{outcome.gpus:,}",
            str(found.get("candidates", "")),
            str(found.get("solved", "")),
            f"{outcome.wall_seconds:.1f}",
            f"{outcome.cpu_seconds:.1f}",
            f"{outcome.ratio:.1f}",
            "" if case.goal_seconds is None else f"{case.goal_seconds / REFERENCE_SECONDS:.1f}",
            f"{max(point['gap'] for point in found.get('points', (found,))):.1%}",
            f"{case.goal_gap:.1%}",
            f"{found['step_seconds']:.4g}" if found.get("step_seconds") else "",
            f"{outcome.peak_bytes / 1e6:.0f}",
        )
    CONSOLE.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write every outcome to this file too")
    parser.add_argument("case", nargs="*", help="the beginning of a case's name; all without")
    arguments = parser.parse_args()
    main(arguments.case, arguments.json)
