"""Starts a rank under the plan for the nodes that are there: ``torchrun .. hetplan_elastic.py PROGRAM ARGUMENTS``.

``elastic.json`` has a plan for all nodes and one without each of them, each in a folder of its own. Whenever
torchrun starts the ranks, at first and after a node has failed or come back, they meet, tell each other their hosts,
take the first plan whose hosts are all there, and run the program of its folder with the rank that the plan gives
their device. Devices without a rank wait until the others have ended well. The program goes on from its own
checkpoint.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore

FOLDER = Path(__file__).parent
DONE, GONE = "done", "gone"
"""Keys that are set when the training has ended, and counted by those that have seen it."""
FOR_EVER = timedelta(days=365)


def main() -> None:
    """Run the program as one rank of the plan, or wait."""
    number, group, groups = (int(os.environ[name]) for name in ("RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"))
    host = os.environ["HETPLAN_HOST"]
    device = os.environ["HETPLAN_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=number == 0, wait_for_workers=False)
    table: dict[str, Any] = json.loads((FOLDER / "elastic.json").read_text(encoding="utf-8"))
    store.set(f"host-{group}", host)
    present = {store.get(f"host-{index}").decode() for index in range(groups)}
    plan = fitting(table["plans"], present)
    rank = plan["ranks"].get(host, {}).get(device)
    if number == 0:
        print(f"plan {plan['folder']} on {', '.join(sorted(plan['ranks']))}", flush=True)  # noqa: T201
    first = meeting_point(store, rank == 0, host)
    idle = int(os.environ["WORLD_SIZE"]) - plan["world_size"]
    code = 0
    if rank is not None:
        words, environment = command(plan, rank, first)
        if number != 0 and rank != 0:
            os.execvpe(words[0], words, environment)
        code = subprocess.run(words, env=environment, check=False).returncode
        if code:
            sys.exit(code)
        if rank == 0:
            store.set(DONE, "1")
    finish(store, number == 0, rank is None, idle)


def fitting(plans: list[dict[str, Any]], present: set[str]) -> dict[str, Any]:
    """The first plan all of whose hosts are there."""
    for plan in plans:
        if set(plan["ranks"]) <= present:
            return plan
    missing = sorted(set().union(*(plan["ranks"] for plan in plans)) - present)
    raise SystemExit(
        f"hetplan_elastic.py: no plan was prepared without {', '.join(missing)}; make one with "
        f"hetplan replan plan.yaml {' '.join(f'--without {host}' for host in missing)}"
    )


def meeting_point(store: TCPStore, is_first: bool, host: str) -> tuple[str, str]:
    """Address and port at which the plan's first rank will wait for the others, which is free there now."""
    place = PrefixStore("first", store)
    if is_first:
        with socket.socket() as probe:
            probe.bind(("", 0))
            place.set("port", str(probe.getsockname()[1]))
        place.set("address", os.environ.get("HETPLAN_ADDRESS", host))
    point = place.get("address").decode(), place.get("port").decode()
    # The store is gone when its process becomes the program: all have to know by then.
    ready = place.add("ready", 1)
    if ready == int(os.environ["WORLD_SIZE"]):
        place.set("all", "1")
    place.wait(["all"], timedelta(minutes=5))
    return point


def command(plan: dict[str, Any], rank: int, first: tuple[str, str]) -> tuple[list[str], dict[str, str]]:
    """Words and environment of the program: in the network environment of its pool, with the rank of the plan."""
    folder = FOLDER / plan["folder"]
    program, *arguments = sys.argv[1:]
    own = program if os.path.isabs(program) else str(folder / program)
    network = folder / "env" / f"{os.environ['HETPLAN_POOL']}.sh"
    words = [sys.executable, "-u", own, *arguments]
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(plan["world_size"]),
        "MASTER_ADDR": first[0],
        "MASTER_PORT": first[1],
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])),
    }
    return ["bash", "-c", f"source {shlex.quote(str(network))}; exec {shlex.join(words)}"], environment


def finish(store: TCPStore, is_host: bool, is_idle: bool, idle: int) -> None:
    """Wait for the end of the training: without a rank, or with the store at which others wait."""
    if is_idle or is_host:
        store.wait([DONE], FOR_EVER)
    if is_idle:
        store.add(GONE, 1)
    if is_host and idle:
        while int(store.add(GONE, 0)) < idle:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
