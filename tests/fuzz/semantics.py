"""Fuzz what answers mean: random worlds, and what must hold of every answer to them.

    python -m tests.fuzz.semantics [--cases N] [--seed S] [--seconds X] [--only I] [--keep DIR] [--report FILE]

Each world is a function of (seed, index) and is tried in a process of its own. The checks are in checks.py.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypedDict

CPU_SECONDS, MEMORY_BYTES = 90, 4 * 2**30
"""What the process of one world may take."""
TIME_LIMIT = 2.0
"""Seconds of each search."""


class Record(TypedDict):
    """What came of one world."""

    index: int
    faults: list[str]
    status: str
    seconds: float
    """CPU seconds of its process."""


def tried(seed: int, index: int, folder: Path, time_limit: float = TIME_LIMIT) -> Record:
    """All checks on one world, in this process."""
    from tests.fuzz.checks import CHECKS, opened
    from tests.fuzz.worlds import draw_world

    os.environ["HETPLAN_DEBUG"] = "1"
    found, status = [], "crashed"
    try:
        case = opened(draw_world(seed, index), folder, time_limit, random.Random(f"checks {seed} {index}"))
        status = case.answer.result.status
        for check in CHECKS:
            try:
                found += [f"{check.__name__}: {fault}" for fault in check(case)]
            except Exception as error:
                found.append(f"{check.__name__}: {_place(error)}")
    except Exception as error:
        found.append(f"search: {_place(error)}")
    return {"index": index, "faults": found, "status": status, "seconds": round(time.process_time(), 1)}


def _place(error: Exception) -> str:
    """An exception, and the last line of the planner that it went through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "planner" in Path(frame.filename).parts
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the fuzzer"
    return f"{type(error).__name__} at {place}: {str(error)[:200]}"


def tried_apart(seed: int, index: int, folder: Path | None = None, time_limit: float = TIME_LIMIT) -> Record:
    """The same in a process of its own, which may neither hang nor take all memory."""
    with tempfile.TemporaryDirectory(prefix="hetplan-fuzz-") as temporary:
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(["tests.fuzz.checks"])
        receiver, sender = processes.Pipe(duplex=False)
        place = folder or Path(temporary)
        process = processes.Process(target=_child, args=(sender, seed, index, place, time_limit))
        process.start()
        sender.close()
        try:
            record: Record = receiver.recv()
        except EOFError:
            process.join()
            what = f"the process ended with {process.exitcode} (more than {CPU_SECONDS} CPU s, or a crash)"
            record = {"index": index, "faults": [what], "status": "died", "seconds": float(CPU_SECONDS)}
        process.join()
        return record


def _child(sender: Connection, seed: int, index: int, folder: Path, time_limit: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sender.send(tried(seed, index, folder, time_limit))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.semantics", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--cases", type=int, default=100, help="worlds to try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no world after this time")
    parser.add_argument("--first", type=int, default=0, help="index of the first world")
    parser.add_argument("--only", type=int, help="try this world alone")
    parser.add_argument("--keep", type=Path, help="keep the files of each world in a sub-folder of this")
    parser.add_argument("--report", type=Path, help="append a line of JSON for each world")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT, help="seconds of each search")
    return parser.parse_args()


def main() -> int:
    """Try the worlds; 1 when a rule is broken."""
    asked = _asked()
    indices = [asked.only] if asked.only is not None else range(asked.first, asked.first + asked.cases)
    start, records = time.monotonic(), []
    for index in indices:
        if time.monotonic() - start > asked.seconds:
            break
        keep = asked.keep / str(index) if asked.keep else None
        record = tried_apart(asked.seed, index, keep, asked.time_limit)
        records.append(record)
        for fault in record["faults"]:
            print(f"world {asked.seed}/{index}: {fault}", flush=True)  # noqa: T201
        if asked.report:
            with asked.report.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    broken = sum(bool(record["faults"]) for record in records)
    statuses = ", ".join(
        f"{count} {status}" for status, count in Counter(one["status"] for one in records).items()
    )
    print(f"{len(records)} worlds ({statuses}), {broken} break a rule")  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
