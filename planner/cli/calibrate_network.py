"""``hetplan calibrate network``: curves of collectives, measured under torchrun or read from nccl-tests."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from planner.calibration.file import save_calibration
from planner.calibration.merge import CurveKey, clashes, curve_key, link_key, merged
from planner.calibration.values import (
    ASSUMED,
    LINK_PATTERN,
    LONGEST_LINK,
    Calibration,
    LinkPoint,
    Operation,
    in_node,
)
from planner.cli.calibrate import (
    EXAMPLE,
    Minutes,
    Output,
    before,
    budget_seconds,
    clashes_told,
    require_torch,
)
from planner.cli.inputs import with_calibration
from planner.cli.options import AsJson, Force, choices, option
from planner.cli.output import require_writable, show, show_document
from planner.cli.process import BAD_INPUT, as_typed, fail, warn
from planner.cli.progress import measuring
from planner.cluster.file import load_cluster
from planner.errors import UsageError
from planner.escaping import visible
from planner.measure.fits import with_errors, without_lonely
from planner.measure.nccl_tests import read_nccl_tests
from planner.measure.process_groups import (
    BrokenError,
    FirstStoppedError,
    MeasurementPlan,
    cluster_teams,
    teams,
)
from planner.measure.resume import resumable, run_facts, with_facts
from planner.ranges import DEVICES, TENSOR_MIB, Range
from planner.report.measured import network_document, network_sections

if TYPE_CHECKING:
    from planner.measure.network import World


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclOptions:
    """What nccl-tests printed, and what that does not say."""

    from_nccl_tests: Annotated[
        Path | None,
        option("--from-nccl-tests", "FILE", "Read the output of nccl-tests instead of measuring."),
    ] = None
    link: Annotated[
        str | None,
        option(
            "--link",
            "NAME",
            "Link that the nccl-tests output was measured on: node:GPU, or the name of a fabric.",
        ),
    ] = None
    operation: Annotated[
        str | None,
        option(
            "--operation",
            "NAME",
            "Collective to take in place of the one that FILE names, if any: all-reduce.",
        ),
    ] = None
    members: Annotated[
        int | None,
        option(
            "--members",
            "N",
            "Ranks of a group, in place of those that FILE lists, if any.",
            allowed=Range(2, DEVICES.most),
        ),
    ] = None
    concurrent: Annotated[
        int,
        option(
            "--concurrent",
            "N",
            "Groups of the same nodes that the test ran in at once, each with one rank of a node.",
            allowed=Range(1, DEVICES.most),
        ),
    ] = 1

    def points(self, path: Path) -> tuple[LinkPoint, ...]:
        """What it measured; raises UsageError for a name that is none."""
        link, operation = self.link, self.operation
        if link is None or len(link) > LONGEST_LINK or not re.fullmatch(LINK_PATTERN, link):
            got = "" if link is None else f", got {link!r}"
            raise UsageError(
                f"--from-nccl-tests: expected --link with the name of the link{got}",
                hint="--link node:A100-SXM-80GB inside a node, or the name of a fabric of the cluster file",
            )
        if in_node(link) and self.concurrent > 1:
            raise UsageError(
                f"--concurrent {self.concurrent}: expected the name of a fabric, got --link {link}",
                hint="leave it out: inside a node all groups are measured at once",
            )
        choices("--operation", operation, get_args(Operation))
        known: dict[str, Operation] = {name: name for name in get_args(Operation)}
        kind = None if operation is None else known[operation]
        return read_nccl_tests(path, link, kind, self.members, concurrent=self.concurrent)


def measure_network(
    *,
    output: Output = Path(EXAMPLE),
    cluster: Annotated[
        Path | None, option("--cluster", "FILE", "Cluster file that assigns hosts to pools.")
    ] = None,
    fabric: Annotated[
        str | None,
        option(
            "--fabric", "NAME", "Name of the network between nodes; with --cluster, measure only this fabric."
        ),
    ] = None,
    largest_mib: Annotated[
        float,
        option("--largest-mib", "MIB", "Largest message size, MiB.", allowed=TENSOR_MIB),
    ] = 256.0,
    minutes: Minutes = None,
    device: Annotated[
        str | None, option("--device", "NAME", "cuda (NCCL) or cpu (gloo). Default: cuda if available.")
    ] = None,
    nccl: NcclOptions,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure the networks inside nodes, within pools and across pools.

    Runs on every device under torchrun; rank 0 reads and writes the files. An existing output file is continued:
    its points are not measured again unless --force is given. Points measured before Ctrl-C, the --minutes limit
    or the failure of a process are kept.
    """
    require_writable(output, EXAMPLE)
    if nccl.from_nccl_tests is not None:
        text = nccl.from_nccl_tests
        _import(nccl.points(text), text, output, force, as_json)
        return
    if nccl != NcclOptions():
        raise UsageError(
            "--link, --operation, --members and --concurrent: expected --from-nccl-tests FILE with them"
        )
    require_torch()
    choices("--device", device, ("cuda", "cpu"))
    request = _Request(output, cluster, fabric, int(largest_mib * 2**20), budget_seconds(minutes), force)
    from planner.measure.network import close_world, open_world

    try:
        with _parting_told(output):
            _measure(open_world(device), request, as_json)
    except FirstStoppedError:
        # The first process has said why.
        raise typer.Exit(BAD_INPUT) from None
    finally:
        close_world()


@contextmanager
def _parting_told(output: Path) -> Iterator[None]:
    """One error where the processes lose each other, and where torchrun ends the first because another has failed."""

    def ended(*_: object) -> None:
        # What is being told already stays as it is.
        if sys.exception() is None:
            raise BrokenError("torchrun ended it, as it does where another process has failed")

    before = signal.getsignal(signal.SIGTERM)
    if os.environ.get("RANK") == "0":
        signal.signal(signal.SIGTERM, ended)
    try:
        yield
    except BrokenError as error:
        fail(
            UsageError(
                f"calibrate network: rank {os.environ['RANK']}: {error}",
                hint="see in torchrun's report which process ended first, else whether all hosts reach each other; "
                f"{output} keeps what was measured; run the same command again to continue",
            )
        )
        raise typer.Exit(BAD_INPUT) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, slots=True)
class _Request:
    """Options of a measurement."""

    output: Path
    cluster: Path | None
    fabric: str | None
    largest_bytes: int
    seconds: float
    force: bool


class _Record:
    """The output of the first process: written after every point."""

    def __init__(self, path: Path, kept: Calibration, facts: dict[str, str]) -> None:
        self.path, self.latest = path, kept
        self.new: list[LinkPoint] = []
        self.missing: dict[str, None] = {}
        self._kept, self._facts = kept, facts

    def keep(self, points: tuple[LinkPoint, ...]) -> None:
        """Write what there is, one point or more; a curve of one size waits for its second."""
        self.new += points
        calibration = without_lonely(merged(self._kept, Calibration(link_points=tuple(self.new))))
        self.latest = with_facts(calibration, self._facts)
        save_calibration(self.latest, self.path)

    def left_out(self, what: str) -> None:
        """Remember it for the end."""
        self.missing[what] = None

    def close(self) -> None:
        """Write the errors of the curves, and say what is missing."""
        if self.new:
            self.latest = with_errors(self.latest)
            save_calibration(self.latest, self.path)
        for what in self.missing:
            warn(f"left out: {what}")

    def report(self, curves: set[CurveKey], complete: bool, as_json: bool) -> None:
        """Close it and tell what the file has of these curves; raises UsageError for nothing."""
        if not complete:
            warn("stopped before everything was measured: run the same command again to continue")
        self.close()
        points = tuple(point for point in self.latest.link_points if curve_key(point) in curves)
        if not points:
            what = "calibrate network: nothing was measured"
            raise UsageError(what, hint="give it more time or larger tensors")
        new = len(set(map(link_key, points)) & set(map(link_key, self.new)))
        if as_json:
            show_document(network_document(points, new, self.latest, self.path))
        else:
            then = with_calibration("hetplan search CLUSTER MODEL", self.path)
            show(*network_sections(points, new, self.latest, self.path), then=then)


def _measure(world: World, request: _Request, as_json: bool) -> None:
    """Measure, write and report on the first process; whatever ends it, the points so far are written.

    Raises BrokenError, after which there is no report.
    """
    from planner.measure import network

    facts = {**world.backend.facts, **run_facts(as_typed())}
    first = world.rank == 0
    kept = ASSUMED

    def decide() -> MeasurementPlan:
        nonlocal kept
        kept = _kept(request, facts)
        return _work(world, request, kept)

    work = network.agreed(world, decide)
    record = _Record(request.output, kept, facts)
    curves = {curve for team in work.teams for curve in team.curves}
    try:
        with measuring(first) as tell:
            complete = network.measure_network(world, work, record, tell)
    except BrokenError:
        if first:
            record.close()
        raise
    except KeyboardInterrupt:
        if first:
            record.report(curves, False, as_json)
        raise
    if first:
        record.report(curves, complete, as_json)


def _kept(request: _Request, facts: dict[str, str]) -> Calibration:
    """What the output has already."""
    calibration, warnings = resumable(before(request.output, request.force), facts)
    for line in warnings:
        warn(f"{request.output}: {line}")
    return calibration


def _work(world: World, request: _Request, kept: Calibration) -> MeasurementPlan:
    """Groups by the cluster file, or by host names alone, and what is known of them."""
    if request.cluster is None:
        groups = teams(world.hosts, world.gpus, request.fabric)
    else:
        groups, notes = cluster_teams(load_cluster(request.cluster), world.hosts, world.gpus, request.fabric)
        for line in notes:
            warn(f"{request.cluster}: {line}")
    return MeasurementPlan(
        teams=groups,
        largest_bytes=request.largest_bytes,
        seconds=request.seconds,
        known=frozenset(link_key(point) for point in kept.link_points),
    )


def _import(points: tuple[LinkPoint, ...], text: Path, output: Path, force: bool, as_json: bool) -> None:
    """What nccl-tests printed becomes points."""
    facts = {"nccl-tests": visible(str(text)), **run_facts(as_typed())}
    kept = before(output, force)
    if conflicts := [*clashes(kept, with_facts(Calibration(link_points=points), facts))]:
        warn(f"{output} and {text} are far apart: {clashes_told(conflicts)}; the latter is kept")
    record = _Record(output, kept, facts)
    record.keep(points)
    record.report(set(map(curve_key, points)), True, as_json)
