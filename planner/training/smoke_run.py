"""The smoke run: looks, measures, compares with ``smoke.json``, prints and writes what it found."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed

from planner.training.smoke_device import Seen, is_kind, look, runs_on, under_load
from planner.training.smoke_measure import Links, Point, allocated, checksum, keep_busy, layer_seconds

FOLDER = Path(__file__).parent
SLOWER = 1.5
"""How many times the planned seconds a link or a layer may take."""
SLACK = 1e-4
"""Seconds that a timing may differ without a fault."""
PEERS = 1.25
"""How many times the median of its peers' seconds a device may take."""
LINKS_SHARE = 0.4
"""Share of the time that all links together may take."""
GIB = 2**30
OK, FAULT, WARNING, UNKNOWN = "ok", "FAULT", "warning", "not checked"


@dataclass(frozen=True)
class CheckRow:
    """One line of the table."""

    check: str
    where: str
    plan: str
    fact: str
    verdict: str


@dataclass
class Findings:
    """What one rank measured."""

    rank: int
    links: dict[int, dict[str, list[Point]]] = field(default_factory=dict)
    """By entry of ``groups`` and operation."""
    layer: tuple[float, float] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    """Why something could not be measured, by check."""
    memory: int | None = None
    clocks: str = ""
    slowed: str = ""


class Watchdog:
    """Ends a rank that waits for longer than the whole run may take, and says for what."""

    def __init__(self, rank: int, seconds: float) -> None:
        self.doing = "meeting the other ranks"
        self._rank, self._seconds = rank, seconds
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        host = os.environ.get("HETPLAN_HOST", "this node")
        say(f"fault: rank {self._rank} on {host}: still {self.doing} after {self._seconds:g} s")
        os._exit(1)


def run(arguments: Sequence[str] | None = None) -> None:
    """Look, measure, compare; exit code 1 for a fault on any rank."""
    options = parse_options(arguments)
    rank = int(os.environ["RANK"])
    dog = Watchdog(rank, options.seconds)
    spec = json.loads((FOLDER / "smoke.json").read_text(encoding="utf-8"))
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        timeout=datetime.timedelta(seconds=options.seconds),
    )
    if distributed.get_world_size() != len(spec["ranks"]):
        raise SystemExit(
            f"smoke.json is for {len(spec['ranks'])} ranks, this job has {distributed.get_world_size()}"
        )
    dog.doing = "looking at devices"
    seen = shared(own_look(spec, rank, options))
    rows = list(device_rows(spec, seen, options.cpu))
    if "unpriced" in spec:
        rows.append(
            CheckRow("links, layer, memory", "all ranks", f"no price: {spec['unpriced']}", "", WARNING)
        )
    if any(row.verdict == FAULT and row.check in ("architecture", "GPU") for row in rows):
        rows.append(CheckRow("links, layer, memory", "all ranks", "", "", UNKNOWN))
        finish(spec, rows, options, [], [], rank)
    findings = shared(measured(spec, rank, device, options.seconds, dog))
    rows += [
        *link_rows(spec, findings),
        *layer_rows(spec, findings, options.cpu),
        *memory_rows(spec, findings),
        *clock_rows(spec, findings),
    ]
    finish(spec, rows, options, seen, findings, rank)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the plan leaves open; others, such as those of a training script, are ignored."""
    parser = argparse.ArgumentParser(description="Look at a job before it trains.")
    parser.add_argument(
        "--cpu", action="store_true", help="rehearse on processors with gloo: devices are not checked"
    )
    parser.add_argument(
        "--weights", type=Path, help="file or folder of the model to start from, the same on all nodes"
    )
    parser.add_argument(
        "--calibration", type=Path, help="where to write it (smoke-calibration.yaml in this folder)"
    )
    parser.add_argument("--seconds", type=float, default=110.0, help="end after so long (110)")
    return parser.parse_known_args(arguments)[0]


def shared(own: Any) -> list[Any]:
    """What every rank has, by rank."""
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, own)
    return everyone


def own_look(spec: dict[str, Any], rank: int, options: argparse.Namespace) -> Seen:
    """This rank's device, node and starting weights."""
    device = look(rank, spec["ranks"][rank]["device"])
    try:
        return replace(device, weights=checksum(spec["hidden"], 0, options.weights))
    except OSError as error:
        return replace(device, weights=f"cannot be read: {error.strerror}")


def measured(spec: dict[str, Any], rank: int, device: str, seconds: float, dog: Watchdog) -> Findings:
    """Everything that this rank measures; links together with all others."""
    findings = Findings(rank)
    for index, entry in enumerate(spec["groups"]):
        dog.doing = f"measuring: {entry['what']}"
        links = Links(entry, rank, device)
        distributed.barrier()
        findings.links[index] = links.measure(seconds * LINKS_SHARE / len(spec["groups"]))
    own = spec["ranks"][rank]
    layer = None if own["layer"] is None else spec["layers"][own["layer"]]
    if layer is not None:
        dog.doing = "timing a layer"
        attempt(findings, "layer", lambda: layer_seconds(layer, device))
    if device == "cuda":
        keep_busy()
        findings.clocks, findings.slowed = under_load(look(rank, own["device"]).bus)
    dog.doing = "allocating memory"
    findings.memory = allocated(own["memory_bytes"] or 0, device)
    dog.doing = "waiting for the other ranks"
    return findings


def attempt(findings: Findings, what: str, measure: Callable[[], Any]) -> None:
    """Keep what a measurement gives, or why it fails: the other ranks do not depend on it."""
    try:
        setattr(findings, what, measure())
    except RuntimeError as error:
        findings.failed[what] = (str(error).splitlines() or ["failed"])[0]


def named(spec: dict[str, Any], rank: int) -> str:
    """A rank for readers."""
    own = spec["ranks"][rank]
    return f"rank {rank}: {own['host']} GPU {own['device']}"


def device_rows(spec: dict[str, Any], seen: Sequence[Seen], rehearsal: bool) -> Iterator[CheckRow]:
    """Devices, slots, nodes, wheels, versions and weights of all ranks."""
    for own in seen:
        planned = spec["ranks"][own.rank]
        where, names = named(spec, own.rank), spec["devices"][planned["gpu"]]
        if not own.name:
            verdict = UNKNOWN if rehearsal else FAULT
            yield CheckRow("GPU", where, planned["gpu"], "PyTorch sees none", verdict)
            continue
        known = is_kind(own.name, names) or (len(names) == 1 and WARNING)
        yield CheckRow(
            "GPU", where, planned["gpu"], own.name, known if known == WARNING else OK if known else FAULT
        )
        if own.bus and own.slot_bus:
            verdict = OK if own.bus == own.slot_bus else FAULT
            yield CheckRow(
                "PCI slot", where, f"index {planned['device']} at {own.slot_bus}", own.bus, verdict
            )
        verdict = OK if runs_on(own.architecture, own.wheel) else FAULT
        yield CheckRow("architecture", where, own.architecture, "kernels for " + " ".join(own.wheel), verdict)
    yield from node_rows(spec, seen)
    yield from alike("versions", "the same on all ranks", [(own.rank, own.versions) for own in seen], spec)
    yield from alike("weights", "one checksum", [(own.rank, own.weights) for own in seen], spec)


def node_rows(spec: dict[str, Any], seen: Sequence[Seen]) -> Iterator[CheckRow]:
    """Ranks of one host are on one machine, those of two hosts on two, and no two ranks share a device."""
    homes: dict[str, str] = {}
    taken: dict[tuple[str, str], int] = {}
    for own in seen:
        host, where = spec["ranks"][own.rank]["host"], named(spec, own.rank)
        first = homes.setdefault(host, own.machine)
        if own.host != host or first != own.machine:
            yield CheckRow("node", where, host, f"{own.host}, the machine {own.machine.split()[0]}", FAULT)
        if own.bus:
            other = taken.setdefault((own.machine, own.bus), own.rank)
            if other != own.rank:
                yield CheckRow("device", where, "its own", f"that of rank {other} ({own.bus})", FAULT)
    machines: dict[str, str] = {}
    for host, machine in homes.items():
        first = machines.setdefault(machine, host)
        if first != host:
            yield CheckRow("node", host, "a machine of its own", f"the machine of {first}", FAULT)
    yield CheckRow("node", "all ranks", f"nodes: {len(homes)}", f"machines: {len(machines)}", OK)


def alike(
    check: str, plan: str, values: Sequence[tuple[int, str]], spec: dict[str, Any]
) -> Iterator[CheckRow]:
    """One row where all ranks have what the first has, else one for each that differs."""
    usual = values[0][1]
    others = [(rank, value) for rank, value in values if value != usual]
    bad = OK if not usual.startswith("cannot") else FAULT
    yield CheckRow(check, named(spec, 0) if others else "all ranks", plan, usual, bad)
    for rank, value in others:
        yield CheckRow(check, named(spec, rank), plan, value, FAULT)


def slowest(
    spec: dict[str, Any], findings: Sequence[Findings]
) -> Iterator[tuple[int, str, list[Point], list[int]]]:
    """(entry of groups, operation, points of its slowest group, members of that group)."""
    for index, entry in enumerate(spec["groups"]):
        for operation in entry["operations"]:
            reports = [
                (own.links[index][operation], own.rank)
                for own in findings
                if operation in own.links.get(index, {})
            ]
            if not reports:
                continue
            # A group that stopped early is the slowest; else by the time of the largest size.
            points, rank = min(reports, key=lambda each: (len(each[0]), -each[0][-1][1]))
            yield index, operation, points, next(each for each in entry["members"] if rank in each)


def link_rows(spec: dict[str, Any], findings: Sequence[Findings]) -> Iterator[CheckRow]:
    """Each operation of each kind of group at its largest size: that of the slowest group."""
    for index, operation, points, members in slowest(spec, findings):
        entry = spec["groups"][index]
        planned = dict(map(tuple, entry["operations"][operation]))
        size, seconds = points[-1]
        wanted = planned[size]
        verdict = FAULT if seconds > SLOWER * wanted + SLACK else OK
        where = f"{entry['what']}: ranks {short(members)}"
        yield CheckRow(
            f"{operation} {size / 2**20:g} MiB",
            where,
            f"{rate(size, wanted)} over {entry['link'] or 'no path'}",
            rate(size, seconds),
            verdict,
        )


def rate(size: float, seconds: float) -> str:
    """Time and bytes per second of one operation."""
    return f"{1e3 * seconds:.3g} ms ({size / seconds / 1e9:.3g} GB/s)"


def short(ranks: Sequence[int]) -> str:
    """Members of a group."""
    return (
        ",".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]},{ranks[1]}..{ranks[-1]} ({len(ranks)})"
    )


def layer_rows(spec: dict[str, Any], findings: Sequence[Findings], rehearsal: bool) -> Iterator[CheckRow]:
    """A layer's forward and backward against the plan, and each device against its like.

    Ranks of a rehearsal share processors, whose turns are not equal: there is no like.
    """
    for index, layer in enumerate(spec["layers"]):
        own = [each for each in findings if spec["ranks"][each.rank]["layer"] == index]
        times = {each.rank: sum(each.layer) for each in own if each.layer is not None}
        wanted = layer["forward_seconds"] + layer["backward_seconds"]
        usual = sorted(times.values())[len(times) // 2] if times else 0.0
        for each in own:
            where = named(spec, each.rank)
            plan = f"{1e3 * wanted:.3g} ms, {layer['micro_batch']} sequences on {layer['gpu']}"
            if each.rank not in times:
                yield CheckRow("layer", where, plan, each.failed.get("layer", "failed"), FAULT)
                continue
            seconds = times[each.rank]
            lags = not rehearsal and len(times) > 2 and seconds > PEERS * usual + SLACK
            slow = seconds > SLOWER * wanted + SLACK
            text = f"{1e3 * seconds:.3g} ms" + (f", its like {1e3 * usual:.3g} ms" if lags else "")
            yield CheckRow("layer", where, plan, text, FAULT if slow or lags else OK)


def memory_rows(spec: dict[str, Any], findings: Sequence[Findings]) -> Iterator[CheckRow]:
    """The planned peak of every rank."""
    for each in findings:
        wanted = spec["ranks"][each.rank]["memory_bytes"]
        if wanted is None:
            continue
        got = each.memory or 0
        verdict = OK if got >= wanted else FAULT
        yield CheckRow(
            "memory", named(spec, each.rank), f"{wanted / GIB:.1f} GiB", f"{got / GIB:.1f} GiB", verdict
        )


def clock_rows(spec: dict[str, Any], findings: Sequence[Findings]) -> Iterator[CheckRow]:
    """Clocks under load, where the driver tells them."""
    for each in findings:
        if each.clocks:
            text = f"{each.clocks}{': ' if each.slowed else ''}{each.slowed}"
            verdict = OK if not each.slowed else WARNING if each.slowed == "low clock" else FAULT
            yield CheckRow("clock", named(spec, each.rank), "not slowed down", text, verdict)


def finish(
    spec: dict[str, Any],
    rows: Sequence[CheckRow],
    options: argparse.Namespace,
    seen: Sequence[Seen],
    findings: Sequence[Findings],
    rank: int,
) -> None:
    """The table and the calibration from the first rank; then all ranks end with one exit code."""
    faults = sum(row.verdict == FAULT for row in rows)
    if rank == 0:
        print_table(spec, rows)
        if findings:
            path = options.calibration or FOLDER / "smoke-calibration.yaml"
            text = calibration(spec, seen, findings, rehearsal=options.cpu)
            try:
                path.write_text(text, encoding="utf-8")
                say(f"wrote {path}: hetplan search --calibration {path.name} plans with what was measured")
            except OSError as error:
                say(f"warning: {path} cannot be written: {error.strerror}")
        say(
            f"smoke run: {faults} {'fault' if faults == 1 else 'faults'}" if faults else "smoke run: no fault"
        )
    distributed.barrier()
    sys.stdout.flush()
    # Libraries' threads may outlive the interpreter and abort; all that matters is written.
    os._exit(1 if faults else 0)


def print_table(spec: dict[str, Any], rows: Iterable[CheckRow]) -> None:
    """Rows that say the same of several ranks as one; faults once more at the end."""
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        merged.setdefault((row.check, row.plan, row.fact, row.verdict), []).append(row.where)
    table = [("check", "where", "plan", "found", "")]
    for (check, plan, fact, verdict), places in merged.items():
        where = places[0] if len(places) == 1 else f"{len(places)} ranks, first {places[0]}"
        table.append((check, where, plan, fact, verdict))
    say(f"smoke run of {spec['model']} on {spec['target']}: {len(spec['ranks'])} ranks")
    widths = [min(44, max(len(line[at]) for line in table)) for at in range(4)]
    for line in table:
        cells = [line[at].ljust(widths[at]) for at in range(4)]
        say("  ".join([*cells, line[4]]).rstrip())
    for row in rows:
        if row.verdict == FAULT:
            say(f"fault: {row.where}: {row.check}: {row.fact or 'nothing'}, the plan has {row.plan}")


def calibration(
    spec: dict[str, Any], seen: Sequence[Seen], findings: Sequence[Findings], *, rehearsal: bool
) -> str:
    """A calibration file of hetplan's, in JSON, which is YAML."""
    about = {
        "device": ", ".join(dict.fromkeys(each.name or "processor" for each in seen)),
        "versions": seen[0].versions,
        "date": datetime.date.today().isoformat(),
        "command": "launch.sh --smoke",
        **spec["facts"],
    }
    layers = []
    for index, layer in enumerate(spec["layers"]):
        times = sorted(
            each.layer for each in findings if each.layer and spec["ranks"][each.rank]["layer"] == index
        )
        if times:
            point = {key: layer[key] for key in ("gpu", "model", "tp", "micro_batch")}
            forward, backward = times[len(times) // 2]
            point |= {"forward_seconds": forward, "backward_seconds": backward, "source": "smoke"}
            if layer["tp"] > 1:
                point["without_collectives"] = True
            layers.append(point)
    points: dict[tuple[str, str, int, int, float], float] = {}
    for index, operation, reached, members in slowest(spec, findings):
        entry = spec["groups"][index]
        for size, seconds in reached if entry["curve"] else ():
            key = (entry["curve"], operation, len(members), entry["sharing"], size)
            points[key] = max(seconds, points.get(key, 0.0))
    names = ("link", "operation", "members", "concurrent", "size_bytes")
    links = [
        {**dict(zip(names, key, strict=True)), "seconds": seconds, "source": "smoke"}
        for key, seconds in points.items()
    ]
    notes = "rehearsed on processors: these are no times of the devices" if rehearsal else "one smoke run"
    head = {
        "format": "hetplan-calibration/1",
        "notes": notes,
        "provenance": about,
        "sources": {"smoke": about},
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in head.items()]
    for title, table in (("layers", layers), ("link_points", links)):
        lines += [f"{title}:", *(f"- {json.dumps(row)}" for row in table)] if table else []
    return "\n".join(lines) + "\n"


def say(text: str) -> None:
    """Print a line in which nothing moves the cursor."""
    print("".join(each if each.isprintable() else "?" for each in text), flush=True)  # noqa: T201
