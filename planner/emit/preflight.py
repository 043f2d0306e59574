"""``preflight.sh``: what is wrong with the nodes of a job, before it is launched."""

from __future__ import annotations

from planner.emit.cautions import tried_versions
from planner.job.files import EmittedFile
from planner.job.job import Job
from planner.job.nodes import driver_names, is_unnamed
from planner.job.readme import PREFLIGHT


def preflight_files(job: Job, here: bool) -> tuple[EmittedFile, ...]:
    """The script, and the devices that each pool's nodes must have; ``here`` means one node, that of the caller."""
    tried = " ".join(f"{name}={version}" for name, version in tried_versions(job.target).items())
    unnamed = " ".join(pool.name for pool in job.pools if is_unnamed(pool))
    script = (
        SCRIPT.replace("@TRIED@", tried).replace("@UNNAMED@", unnamed).replace("@HERE@", "1" if here else "")
    )
    return (
        EmittedFile("preflight.sh", script, executable=True),
        EmittedFile("devices.txt", devices_table(job)),
    )


def devices_table(job: Job) -> str:
    """One line a device of a pool's node: pool, index, the kind, and what the driver may call it."""
    lines = ["# pool index kind|driver's names"]
    for pool in job.pools:
        for index, kind in enumerate(pool.devices):
            lines.append(f"{pool.name} {index} {'|'.join((kind, *driver_names(kind)))}")
    return "\n".join(lines) + "\n"


README = f"""{PREFLIGHT}
```sh
./preflight.sh            # all nodes, over ssh from here
./preflight.sh --local    # this node only
```

prints one line for each fault and exits with 1 when there is one: hosts that do not answer, GPUs that are missing or \
of another kind, interfaces and RDMA devices of `env/` that are absent, versions of Python, PyTorch, CUDA, NCCL or the \
runtime that differ between nodes, this folder missing or other elsewhere, a node that does not know the first one's \
name, the rendezvous port in use. It warns of versions that were not tried, and of pools with different drivers.
"""

SCRIPT = r"""#!/usr/bin/env bash
# Looks for faults on the nodes before a launch: ./preflight.sh [--local [NODE_RANK]]
# Prints a line for each fault and exits with 1 when there is one. With --local it looks at this node only, else at
# every host of nodes.txt over ssh. SSH_OPTIONS: of ssh. REMOTE_DIR: this folder on the nodes. PYTHON: their Python.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2
TRIED="@TRIED@"
UNNAMED="@UNNAMED@"
HERE="@HERE@" # Not empty for a job on one node that has no name: this one.
PORT="${MASTER_PORT:-29500}"
SYSFS="${SYSFS:-/sys}"

fault() { echo "fault: $*"; }
warning() { echo "warning: $*"; }
fact() { echo "fact: $*"; }

# A name without vendor words, blanks and dashes, in small letters.
plain() {
  tr '[:upper:]' '[:lower:]' <<<"$1" |
    sed -E 's/\b(nvidia|geforce|tesla|quadro)\b//g; s/[^a-z0-9]//g; s/gb$//'
}

# One look at a device's name: is it one of those in KIND|NAME|NAME?
is_kind() {
  local name
  while read -r name; do
    if [[ $(plain "$name") == "$(plain "$1")" ]]; then return 0; fi
  done < <(tr '|' '\n' <<<"$2")
  return 1
}

look_at_devices() {
  local pool=$1 seen index names expected=0 count
  if ! command -v nvidia-smi >/dev/null; then
    if command -v rocm-smi >/dev/null; then
      warning "GPUs are not looked at: this script reads nvidia-smi only"
    else
      fault "nvidia-smi is missing"
    fi
    return
  fi
  if ! seen=$(nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader 2>&1); then
    fault "nvidia-smi failed: $(head -n 1 <<<"$seen")"
    return
  fi
  count=$(grep -c . <<<"$seen")
  while read -r _ index names; do
    expected=$((expected + 1))
    local line name
    line=$(awk -F', *' -v index_="$index" '$1 == index_ { print $2 }' <<<"$seen")
    if [[ -z $line ]]; then
      fault "GPU $index is missing, the plan has ${names%%|*}"
    elif ! is_kind "$line" "$names"; then
      name=${names%%|*}
      if [[ $names == "$name" ]]; then
        warning "GPU $index is $line; whether that is $name cannot be told"
      else
        fault "GPU $index is $line, the plan has $name"
      fi
    fi
  done < <(awk -v pool="$pool" '$1 == pool' devices.txt)
  if [[ $count -gt $expected ]]; then warning "$count GPUs, the plan knows of $expected"; fi
  fact "driver $(awk -F', *' 'NR == 1 { print $3 }' <<<"$seen")"
}

# look_for LIST FOLDER WHAT: every entry of NCCL's list is in the folder of sysfs.
look_for() {
  local list=$1 exact="" name
  if [[ -z $list || $list == ^* ]]; then return; fi
  if [[ $list == =* ]]; then exact=1 list=${list#=}; fi
  while read -r name; do
    name=${name%%:*}
    if [[ $exact && ! -e $2/$name ]] || ! compgen -G "$2/$name*" >/dev/null; then
      fault "$3 $name is missing"
    elif [[ -r $2/$name/operstate && $(<"$2/$name/operstate") == down ]]; then
      fault "$3 $name is down"
    fi
  done < <(tr ',' '\n' <<<"$list")
}

look_at_network() {
  local sockets hca
  if grep -q '^# EDIT:' "env/$1.sh"; then warning "env/$1.sh has lines to complete, marked EDIT"; fi
  # shellcheck disable=SC1090,SC2153
  sockets=$(source "env/$1.sh" && echo "${NCCL_SOCKET_IFNAME:-}")
  # shellcheck disable=SC1090,SC2153
  hca=$(source "env/$1.sh" && echo "${NCCL_IB_HCA:-}")
  look_for "$sockets" "$SYSFS/class/net" "network interface"
  look_for "$hca" "$SYSFS/class/infiniband" "RDMA device"
}

look_at_versions() {
  local python=${PYTHON:-} found
  if [[ -z $python ]]; then python=$(command -v python3 || command -v python); fi
  if ! found=$("${python:-python3}" - "$TRIED" 2>&1 <<'PYTHON'
import importlib.util, os, platform, re, sys
from importlib import metadata

def megatron():
    try:
        text = open(os.path.join(os.environ["MEGATRON_PATH"], "megatron/core/package_info.py")).read()
    except (KeyError, OSError):
        return None
    return ".".join(re.search(rf"^{part} *= *(\d+)", text, re.M)[1] for part in ("MAJOR", "MINOR", "PATCH"))

def version(name):
    if name == "megatron":
        return megatron()
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

print("fact: python", platform.python_version())
for entry in sys.argv[1].split():
    name = entry.split("=")[0]
    found = version(name)
    if found:
        print("fact:", name, found)
    elif name == "megatron":
        print("fault: MEGATRON_PATH does not name a checkout of Megatron-LM")
    else:
        print("fault:", name, "is not installed for Python", platform.python_version(), sys.executable)

def cuda():
    spec = importlib.util.find_spec("torch")
    if spec and spec.origin:
        text = open(os.path.join(os.path.dirname(spec.origin), "version.py")).read()
        found = re.search(r"^cuda\b[^=]*= *'([^']+)'", text, re.M)
        return found and found[1]

nccl = next((v for v in map(version, ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")) if v), None)
for name, found in (("nccl", nccl), ("cuda", cuda())):
    if found:
        print("fact:", name, found)
PYTHON
  ); then
    fault "Python does not run: ${found##*$'\n'}"
    return
  fi
  echo "$found"
}

look_at_port() {
  local python=${PYTHON:-}
  if [[ -z $python ]]; then python=$(command -v python3 || command -v python) || return; fi
  if ! "$python" -c 'import socket, sys
with socket.socket() as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("", int(sys.argv[1])))' "$PORT" 2>/dev/null; then
    fault "port $PORT is in use, set MASTER_PORT to another"
  fi
}

# All ranks meet at the first node, whose name every node has to know where there are several.
look_at_rendezvous() {
  local master=${MASTER_ADDR:-$(awk '$1 == 0 { print $2 }' nodes.txt)}
  if [[ $(awk '$1 !~ /^#/ { print $2 }' nodes.txt | sort -u | wc -l) -eq 1 ]]; then master=${MASTER_ADDR:-localhost}; fi
  if command -v getent >/dev/null && ! getent ahosts "$master" >/dev/null; then
    fault "the first node's name $master is not known here$(why "$master"), or set MASTER_ADDR"
  fi
}

# why HOST: what is wrong with a name that is still as hetplan made it.
why() {
  local pool
  pool=$(awk -v host="$1" '$1 !~ /^#/ && $2 == host { print $3; exit }' nodes.txt)
  if [[ -n $pool && " $UNNAMED " == *" $pool "* && $1 =~ ^"$pool"-[0-9]+$ ]]; then
    echo ": it is a placeholder, write the node's name into nodes.txt"
  fi
}

look_at_folder() {
  local file
  if [[ -e .hetplan-work/journal ]]; then fault "hetplan emit was stopped half-way in $PWD, run it again"; fi
  while read -r _ file; do [[ -e $file ]] || fault "$file is missing in $PWD"; done <.hetplan-files
  fact "folder $(while read -r _ file; do cksum "$file"; done <.hetplan-files 2>/dev/null | cksum | tr -d ' ')"
}

# Everything about this node, for the ranks of one line of nodes.txt.
look_here() {
  local node=$1 pool
  pool=$(awk -v wanted="$node" '$1 == wanted { print $3 }' nodes.txt)
  if [[ -z $pool ]]; then
    fault "nodes.txt has no node $node"
    return
  fi
  look_at_devices "$pool"
  look_at_network "$pool"
  look_at_versions
  if [[ $node == 0 ]]; then look_at_port; fi
  look_at_rendezvous
  look_at_folder
}

node_of_this_host() {
  if [[ $HERE ]]; then echo 0 && return; fi
  awk -v name="${HETPLAN_AS:-$(hostname)}" '
    function short(host) { return host ~ /^[0-9.]+$/ ? host : substr(host, 1, index(host ".", ".") - 1) }
    $1 !~ /^#/ && ($2 == name || short($2) == short(name)) { print $1; exit }' nodes.txt
}

if [[ ${1:-} == --local ]]; then
  node=${2:-$(node_of_this_host)}
  if [[ -z $node ]]; then
    echo "preflight.sh: this host is not in nodes.txt; give its node rank: --local NODE_RANK" >&2
    exit 2
  fi
  report=$(look_here "$node")
  if [[ ${HETPLAN_FACTS:-} ]]; then echo "$report"; else grep -v '^fact: ' <<<"$report"; fi
  if grep -q '^fault: ' <<<"$report"; then exit 1; fi
  exit 0
elif [[ $# -gt 0 ]]; then
  echo "preflight.sh: unknown option $1, expected --local" >&2
  exit 2
fi

reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
read -ra options <<<"${SSH_OPTIONS:-}"
settings=(HETPLAN_FACTS=1 "MASTER_PORT=$PORT")
for name in PYTHON MEGATRON_PATH MASTER_ADDR; do
  if [[ -n ${!name:-} ]]; then settings+=("$name=${!name}"); fi
done
folder=$(printf '%q' "${REMOTE_DIR:-$PWD}")

# ask NODE HOST: the node's own report, or why there is none.
ask() {
  local answer code command
  command="if cd $folder 2>/dev/null && [ -x preflight.sh ]; then
    env $(printf '%q ' "${settings[@]}")./preflight.sh --local $1; else echo 'fault: no preflight.sh in '$folder; fi"
  local reach=(ssh -o BatchMode=yes -o ConnectTimeout=10 "${options[@]}" "$2")
  if [[ $HERE ]]; then reach=(bash -c); fi
  answer=$("${reach[@]}" "$command" </dev/null 2>&1)
  code=$?
  if [[ $code -eq 255 ]]; then
    fault "cannot be reached$(why "$2"): $(tail -n 1 <<<"$answer")"
  elif ! grep -qE '^(fact|fault): ' <<<"$answer"; then
    fault "gives no report: $(tail -n 1 <<<"$answer")"
  else
    grep -E '^(fact|fault|warning): ' <<<"$answer"
  fi
}

# Each host once, by its first line in nodes.txt; fifty at a time.
hosts=()
while read -r node host; do
  hosts+=("$host")
  ask "$node" "$host" >"$reports/$host" &
  if [[ $((${#hosts[@]} % 50)) -eq 0 ]]; then wait; fi
done < <(awk '$1 !~ /^#/ && !seen[$2]++ { print $1, $2 }' nodes.txt)
wait

faults=0
for host in "${hosts[@]}"; do
  while IFS= read -r line; do
    echo "$host: ${line#fault: }"
    if [[ $line == fault:* ]]; then faults=$((faults + 1)); fi
  done < <(grep -E '^(fault|warning): ' "$reports/$host")
done

# compare WHAT HOST..: what the hosts tell must be what the first of them tells that tells it, which is left in `first`.
compare() {
  local what=$1 host value tried
  first="" first_host=""
  shift
  for host in "$@"; do
    value=$(sed -n "s/^fact: $what //p" "$reports/$host")
    if [[ -z $value ]]; then continue; fi
    if [[ -z $first ]]; then
      first=$value first_host=$host
      tried=$(tr ' ' '\n' <<<"$TRIED" | sed -n "s/^$what=//p")
      if [[ -n $tried && "${value%%+*}." != "$tried".* ]]; then
        echo "warning: $what is $value, these files were tried with $tried"
      fi
    elif [[ $value != "$first" ]]; then
      faults=$((faults + 1))
      if [[ $what == folder ]]; then
        echo "$host: the files of this folder differ from those on $first_host"
      else
        echo "$host: $what is $value, on $first_host it is $first"
      fi
    fi
  done
}

for what in python torch cuda deepspeed megatron nccl folder; do compare "$what" "${hosts[@]}"; done

# Devices of different age may need different drivers, those of one pool do not.
first_pool="" first_driver=""
while read -r pool; do
  mapfile -t members < <(awk -v pool="$pool" '$1 !~ /^#/ && $3 == pool && !seen[$2]++ { print $2 }' nodes.txt)
  compare driver "${members[@]}"
  if [[ -z $first ]]; then continue; fi
  if [[ -z $first_driver ]]; then
    first_pool=$pool first_driver=$first
  elif [[ $first != "$first_driver" ]]; then
    echo "warning: driver is $first in pool $pool, $first_driver in pool $first_pool"
  fi
done < <(awk '$1 !~ /^#/ && !seen[$3]++ { print $3 }' nodes.txt)
if [[ $faults -gt 0 ]]; then exit 1; fi
echo "preflight: ${#hosts[@]} hosts, no fault"
"""
