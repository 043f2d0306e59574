"""One start script for every node, the table of nodes it reads, and each pool's network environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.cluster.spec import ClusterSpec
from planner.job.files import EmittedFile
from planner.job.network import JobNetwork, job_network, pool_environment
from planner.job.nodes import is_any_node, on_one_node
from planner.plan.placement import Agent

MASTER_PORT = 29500
LOOPBACK = "127.0.0.1"
"""Where the processes of a job on one node meet, whatever the node is called."""
FIRST_HOST = "$(awk '$1 == 0 { print $2 }' nodes.txt)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What every rank runs."""

    command: str
    """Shell words after torchrun's own options; may name shell variables."""
    prologue: str = ""
    """Shell lines before the start, run in the folder."""
    network_per_group: bool = False
    """True when the program itself gives each process group its network."""


def number_format_lines(precision: str) -> tuple[str, ...]:
    """Shell lines of a start script without which PyTorch would not multiply in the model's number format."""
    if precision != "tf32":
        return ()
    return (
        "  # The plan counts on TF32 products of fp32 numbers, which PyTorch leaves off by default.",
        "  export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1",
    )


def launch_files(
    launchers: Sequence[Agent], cluster: ClusterSpec, program: Program
) -> tuple[EmittedFile, ...]:
    """``launch.sh``, ``nodes.txt`` and one environment file for each used pool."""
    network = job_network(cluster, launchers)
    sockets = on_sockets(network) and not program.network_per_group
    return (
        EmittedFile("launch.sh", _script(launchers, cluster, program), executable=True),
        EmittedFile("nodes.txt", nodes_table(launchers)),
        *(
            EmittedFile(f"env/{pool.name}.sh", pool_environment(cluster, pool, network, sockets))
            for pool in cluster.pools
            if pool.name in network.rdma
        ),
    )


def on_sockets(network: JobNetwork) -> bool:
    """True when a communicator of all ranks cannot use RDMA."""
    return network.nodes > 1 and (network.crosses or not network.has_rdma)


def nodes_table(launchers: Sequence[Agent]) -> str:
    """One line a launcher in rank order: node rank, host, pool, devices, first rank."""
    lines = ["# node-rank host pool devices first-rank"]
    for index, agent in enumerate(launchers):
        devices = ",".join(str(device) for device in agent.devices)
        lines.append(f"{index} {agent.host} {agent.pool} {devices} {agent.first_rank}")
    return "\n".join(lines) + "\n"


def _script(launchers: Sequence[Agent], cluster: ClusterSpec, program: Program) -> str:
    return SCRIPT.format(
        nodes=len(launchers),
        address=LOOPBACK if on_one_node(launchers) else FIRST_HOST,
        this_host=FIRST_HOST if is_any_node(launchers, cluster) else "$(hostname)",
        port=MASTER_PORT,
        prologue=program.prologue,
        command=program.command,
    )


SCRIPT = r"""#!/usr/bin/env bash
# Starts this node's part of the job: ./launch.sh [--check] [NODE_RANK] [-- ARGUMENTS OF THE PROGRAM]
# Without NODE_RANK it starts every line of nodes.txt that names this host, or HETPLAN_AS where that is set.
# --check looks at this node with preflight.sh first, and starts nothing when it finds a fault.
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
if [[ -e .hetplan-work/journal ]]; then
  echo "launch.sh: hetplan emit was stopped half-way in this folder, run it again" >&2
  exit 2
fi

NODES={nodes}
MASTER_ADDR="${{MASTER_ADDR:-{address}}}"
export MASTER_ADDR
export MASTER_PORT="${{MASTER_PORT:-{port}}}"
TORCHRUN="${{TORCHRUN:-torchrun}}"

HOST_NAME="${{HETPLAN_AS:-{this_host}}}"

lines_of_this_host() {{
  awk -v name="$HOST_NAME" '
    function short(host) {{ return host ~ /^[0-9.]+$/ ? host : substr(host, 1, index(host ".", ".") - 1) }}
    $1 !~ /^#/ && ($2 == name || short($2) == short(name)) {{ print $1 }}' nodes.txt
}}

start() {{
  local node host pool devices ranks
  read -r node host pool devices _ < <(awk -v wanted="$1" '$1 == wanted' nodes.txt) || {{
    echo "launch.sh: nodes.txt has no node $1, expected 0 to $((NODES - 1))" >&2
    exit 2
  }}
  shift
  ranks=$(tr ',' '\n' <<<"$devices" | wc -l)
  export CUDA_VISIBLE_DEVICES="$devices" HETPLAN_NODE="$node" HETPLAN_HOST="$host" HETPLAN_POOL="$pool"
  # shellcheck disable=SC1090
  source "env/$pool.sh"
{prologue}
  exec "$TORCHRUN" --nnodes "$NODES" --node-rank "$node" --nproc-per-node "$((ranks))" \
    --rdzv-backend static --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
    {command} "$@"
}}

check=
if [[ ${{1:-}} == --check ]]; then
  check=1
  shift
fi
mine=()
if [[ ${{1:-}} =~ ^[0-9]+$ ]]; then
  mine=("$1")
  shift
else
  while read -r line; do mine+=("$line"); done < <(lines_of_this_host)
fi
if [[ ${{1:-}} == -- ]]; then shift; fi
if [[ ${{#mine[@]}} -eq 0 ]]; then
  echo "launch.sh: $HOST_NAME is not in nodes.txt; give its node rank: ./launch.sh NODE_RANK" >&2
  exit 2
fi
if [[ $check ]]; then
  for line in "${{mine[@]}}"; do ./preflight.sh --local "$line"; done
fi
if [[ ${{#mine[@]}} -eq 1 ]]; then start "${{mine[0]}}" "$@"; fi

# This host holds several separate runs of ranks: one torchrun each, and all end with the first that fails.
running=()
trap 'kill "${{running[@]}}" 2>/dev/null || true' EXIT INT TERM
for line in "${{mine[@]}}"; do
  (start "$line" "$@") &
  running+=("$!")
done
for _ in "${{running[@]}}"; do wait -n; done
"""
