"""A script that starts every node over ssh from one place."""

from __future__ import annotations

from planner.job.files import EmittedFile
from planner.job.job import Job


def files(job: Job) -> tuple[EmittedFile, ...]:
    """``start.sh``."""
    return (start_script(),)


def start_script(starter: str = "") -> EmittedFile:
    """The script; ``starter`` is a script of the folder that takes the place of torchrun."""
    setting = f'export TORCHRUN="${{TORCHRUN:-{starter}}}"\n' if starter else ""
    return EmittedFile("start.sh", SCRIPT.replace("@SETTING@\n", setting), executable=True)


def readme(job: Job) -> str:
    """How to use it."""
    return (
        "## Start over ssh\n\n"
        "```sh\n./start.sh --check            # preflight.sh first; starts nothing when it finds a fault\n"
        "./start.sh --dry-run          # prints the commands\n"
        "./start.sh -- ARGUMENTS       # of the training program\n```\n\n"
        "It runs `launch.sh NODE_RANK` on every host of `nodes.txt` by `ssh`, which must ask for no password, and puts "
        "the node before each line of output. When one node fails, or on Ctrl-C, it ends all. The folder is taken to "
        "be at the same path everywhere; `REMOTE_DIR` names another. `SSH_OPTIONS` goes to ssh (`-p 2222`), and "
        "`FORWARD` lists further variables of your shell that the nodes shall have.\n"
    )


SCRIPT = r"""#!/usr/bin/env bash
# Starts every node of nodes.txt over ssh: ./start.sh [--check] [--dry-run] [-- ARGUMENTS OF THE PROGRAM]
# --check runs preflight.sh first; --dry-run prints the commands and runs nothing.
# REMOTE_DIR: path of this folder on the nodes. SSH_OPTIONS: options of ssh. FORWARD: variables to hand on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
@SETTING@

check="" dry=""
while [[ $# -gt 0 ]]; do
  case $1 in
    --check) check=1 ;;
    --dry-run) dry=1 ;;
    --) shift; break ;;
    *) echo "start.sh: unknown option $1, expected --check, --dry-run or --" >&2; exit 2 ;;
  esac
  shift
done

quoted() { printf '%q ' "$@"; }

settings=()
for name in ${FORWARD:-} MASTER_ADDR MASTER_PORT TORCHRUN MEGATRON_PATH TRAIN_ITERS LR CLIP_GRAD DATA_ARGS_FILE; do
  if [[ -n ${!name:-} ]]; then settings+=("$name=${!name}"); fi
done
read -ra options <<<"${SSH_OPTIONS:-}"
folder="${REMOTE_DIR:-$PWD}"
# A terminal (-tt) makes the node's processes end when the connection does.
ssh=(ssh -tt -o BatchMode=yes "${options[@]}")

if [[ $check ]]; then ./preflight.sh; fi

nodes=() hosts=() running=()
while read -r node host _; do
  nodes+=("$node") hosts+=("$host")
done < <(grep -v '^#' nodes.txt)

end_all() { kill "${running[@]}" 2>/dev/null || true; }
trap 'end_all; exit 130' INT TERM

for index in "${!nodes[@]}"; do
  node=${nodes[index]} host=${hosts[index]}
  command="cd $(quoted "$folder")&& exec env $(quoted "${settings[@]}" ./launch.sh "$node" -- "$@")"
  if [[ $dry ]]; then
    quoted "${ssh[@]}" "$host" "$command"
    echo
    continue
  fi
  "${ssh[@]}" "$host" "$command" </dev/null > >(sed -u "s/\r\$//; s/^/[$node $host] /") 2>&1 &
  running+=("$!")
done

for _ in "${running[@]}"; do
  if wait -n; then continue; else code=$?; fi
  for index in "${!running[@]}"; do
    if ! kill -0 "${running[index]}" 2>/dev/null && ! wait "${running[index]}"; then
      echo "start.sh: node ${nodes[index]} (${hosts[index]}) ended with exit code $code; ending all others" >&2
      break
    fi
  done
  end_all
  wait || true
  exit "$code"
done
"""
