"""A batch script for Slurm: a heterogeneous job with one component for each pool."""

from __future__ import annotations

import re

from planner.cluster.spec import PoolSpec
from planner.job.files import EmittedFile
from planner.job.job import Job


def files(job: Job) -> tuple[EmittedFile, ...]:
    """``job.sbatch``."""
    script = (
        SCRIPT.replace("@COMPONENTS@", "\n#SBATCH hetjob\n".join(_component(job, pool) for pool in job.pools))
        .replace("@NAME@", job.name)
        .replace("@GPUS@", " ".join(str(len(pool.devices)) for pool in job.pools))
        .replace("@POOLS@", " ".join(pool.name for pool in job.pools))
    )
    return (EmittedFile("job.sbatch", script, executable=True),)


def readme(job: Job) -> str:
    """How to use it."""
    count = len(job.pools)
    shape = f"a heterogeneous job of {count} components, one for each pool" if count > 1 else "a plain job"
    return (
        "## Start with Slurm\n\n"
        "```sh\ncd THIS_FOLDER\nsbatch job.sbatch -- ARGUMENTS    # of the training program\n"
        "sbatch job.sbatch --check         # each node looks for faults first\n```\n\n"
        f"It asks for whole nodes in {shape}; add `#SBATCH --partition`, `--account` and `--time` to each component as "
        "your site wants them (`sbatch --partition=...` on the command line reaches the first component only). The "
        "folder has to be on a file system that all nodes share. `--nodelist` names the hosts of the cluster file. "
        "Delete these lines to let Slurm choose: then the nodes of a component take the places of the pool's hosts "
        "in their order. `srun` starts `launch.sh` once on each node, with the rank of the host whose place it has.\n"
    )


def _component(job: Job, pool: PoolSpec) -> str:
    hosts = job.hosts_of(pool)
    lines = [
        f"# Pool {pool.name}",
        f"#SBATCH --nodes={len(hosts)}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={len(pool.devices)}",
        "#SBATCH --exclusive",
    ]
    if not any(re.fullmatch(r"[0-9.]+|.*:.*", host) for host in hosts):
        lines.append(f"#SBATCH --nodelist={','.join(hosts)}")
    return "\n".join(lines)


SCRIPT = r"""#!/usr/bin/env bash
#SBATCH --job-name=@NAME@
@COMPONENTS@

# Submit it in this folder: sbatch job.sbatch [--check] [-- ARGUMENTS OF THE PROGRAM]
# Each node starts launch.sh in the place of one host of nodes.txt; with --check it looks for faults first.
set -euo pipefail
cd "${RUN_DIR:-${SLURM_SUBMIT_DIR:-.}}"
if [[ ! -x launch.sh ]]; then
  echo "job.sbatch: no launch.sh in $PWD; submit in the folder that hetplan wrote, or set RUN_DIR" >&2
  exit 2
fi
check=()
if [[ ${1:-} == --check ]]; then
  check=(--check)
  shift
fi
if [[ ${1:-} == -- ]]; then shift; fi
pools=(@POOLS@)
gpus=(@GPUS@)

short() { if [[ $1 =~ ^[0-9.]+$ ]]; then echo "$1"; else echo "${1%%.*}"; fi; }

# places POOL NODELIST: a word ALLOCATED=PLANNED for each node.
# It goes by name where Slurm gave the planned hosts, else by order.
places() {
  local planned=() got=() host name found
  mapfile -t planned < <(awk -v pool="$1" '$1 !~ /^#/ && $3 == pool && !seen[$2]++ { print $2 }' nodes.txt)
  mapfile -t got < <(scontrol show hostnames "$2")
  if [[ ${#got[@]} -ne ${#planned[@]} ]]; then
    echo "job.sbatch: pool $1 has ${#planned[@]} nodes in nodes.txt, Slurm gave ${#got[@]}: $2" >&2
    return 2
  fi
  local words=()
  for name in "${got[@]}"; do
    found=""
    for host in "${planned[@]}"; do
      if [[ $(short "$host") == "$(short "$name")" ]]; then found=$host; fi
    done
    if [[ -z $found ]]; then break; fi
    words+=("$name=$found")
  done
  if [[ ${#words[@]} -ne ${#got[@]} ]]; then
    words=()
    for name in "${!got[@]}"; do words+=("${got[name]}=${planned[name]}"); done
  fi
  echo "${words[*]}"
}

HETPLAN_PLACES=""
for part in "${!pools[@]}"; do
  list="SLURM_JOB_NODELIST_HET_GROUP_$part"
  taken=$(places "${pools[part]}" "${!list:-${SLURM_JOB_NODELIST:-}}")
  HETPLAN_PLACES+="$taken "
done
export HETPLAN_PLACES
first=$(awk '$1 == 0 { print $2 }' nodes.txt)
for place in $HETPLAN_PLACES; do
  if [[ ${place#*=} == "$first" ]]; then export MASTER_ADDR="${MASTER_ADDR:-${place%%=*}}"; fi
done

# shellcheck disable=SC2016
one_node='
for place in $HETPLAN_PLACES; do
  if [[ ${place%%=*} == "$SLURMD_NODENAME" ]]; then HETPLAN_AS=${place#*=} exec ./launch.sh "$@"; fi
done
echo "job.sbatch: $SLURMD_NODENAME has no place in: $HETPLAN_PLACES" >&2
exit 2'

# Options stand in each component, because srun would else take those of the first one for all.
steps=()
for part in "${!pools[@]}"; do
  if [[ $part -gt 0 ]]; then steps+=(:); fi
  if [[ ${#pools[@]} -gt 1 ]]; then steps+=("--het-group=$part"); fi
  steps+=(--ntasks-per-node=1 "--gpus-per-node=${gpus[part]}" bash -c "$one_node" hetplan)
  steps+=("${check[@]}" -- "$@")
done
srun --label --kill-on-bad-exit=1 "${steps[@]}"
"""
