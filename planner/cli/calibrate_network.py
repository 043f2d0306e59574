"""``hetplan calibrate network``: curves of collectives, measured under torchrun or read from nccl-tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from planner.cli.calibrate import EXAMPLE, Force
from planner.cli.calibrate_device import Minutes, Output, before, require_torch
from planner.cli.files import require_writable
from planner.cli.options import AsJson, choices
from planner.cli.output import show, show_document, warn
from planner.errors import HetplanError, UsageError

if TYPE_CHECKING:
    from planner.calibration import LinkPoint
    from planner.measure.network import World

Fabric = Annotated[
    str | None, typer.Option("--fabric", metavar="NAME", help="Name of the network between the nodes.")
]
LargestSize = Annotated[
    float, typer.Option("--largest-mib", metavar="MIB", min=0.01, help="Largest tensor, MiB.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="cuda (nccl) or cpu (gloo); cuda where there is one."),
]
NcclTests = Annotated[
    Path | None,
    typer.Option(
        "--from-nccl-tests", metavar="FILE", help="Read what nccl-tests printed instead of measuring."
    ),
]
LinkOption = Annotated[
    str | None,
    typer.Option("--link", metavar="NAME", help="Link of that text: node:GPU, or the name of a fabric."),
]
OperationOption = Annotated[
    str | None,
    typer.Option("--operation", metavar="NAME", help="Operation of that text where it names none."),
]
Members = Annotated[
    int | None,
    typer.Option("--members", metavar="N", min=2, help="Devices of that text where it lists none."),
]


def measure_network(
    output: Output = Path(EXAMPLE),
    fabric: Fabric = None,
    largest_mib: LargestSize = 256.0,
    minutes: Minutes = None,
    device: Device = None,
    from_nccl_tests: NcclTests = None,
    link: LinkOption = None,
    operation: OperationOption = None,
    members: Members = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure the networks inside a node and between nodes.

    Runs on every device under torchrun; the first process writes. An output that exists keeps its other points.
    """
    require_writable(output, EXAMPLE)
    if from_nccl_tests is not None:
        points = _read(from_nccl_tests, link, operation, members)
        _finish(output, force, points, {"nccl-tests": str(from_nccl_tests)}, as_json)
        return
    if link or operation or members:
        raise UsageError("--link, --operation and --members: expected --from-nccl-tests FILE with them")
    require_torch()
    choices("--device", device, ("cuda", "cpu"))
    from planner.measure.network import close_world, everyones_points, open_world

    world = open_world(device)
    try:
        found, failure = _measured(world, fabric, largest_mib, minutes)
        if failure is None:
            found = everyones_points(found)
    finally:
        close_world()
    if world.rank == 0:
        _finish(output, force, found, world.backend.facts, as_json)
    if isinstance(failure, RuntimeError):
        what = f"calibrate network: rank {world.rank}: {str(failure).splitlines()[0]}"
        raise HetplanError(what, hint=f"the first process has written its points so far to {output}")
    if failure is not None:
        raise failure


def _measured(
    world: World, fabric: str | None, largest_mib: float, minutes: float | None
) -> tuple[tuple[LinkPoint, ...], BaseException | None]:
    """The points of this process, and what ended it: Ctrl-C, or another process that is gone."""
    from planner.measure.network import measure_network as measure
    from planner.measure.network import teams

    found: list[LinkPoint] = []
    left_out: dict[str, None] = {}
    groups = teams(world.hosts, world.gpus, fabric)
    limit = float("inf") if minutes is None else 60 * minutes
    complete, failure = False, None
    try:
        complete = measure(
            world,
            groups,
            int(largest_mib * 2**20),
            limit,
            found.append,
            lambda what: left_out.update({what: None}),
        )
    except (KeyboardInterrupt, RuntimeError) as error:
        failure = error
    if world.rank == 0:
        for what in left_out:
            warn(f"left out: {what}")
        if not complete:
            warn("ended before all was measured")
    return tuple(found), failure


def _read(path: Path, link: str | None, operation: str | None, members: int | None) -> tuple[LinkPoint, ...]:
    from planner.calibration import Operation
    from planner.measure.nccl_tests import read_nccl_tests

    if link is None or not re.fullmatch(r"(node:)?[A-Za-z0-9][A-Za-z0-9._-]*", link):
        got = "" if link is None else f", got {link!r}"
        raise UsageError(
            f"--from-nccl-tests: expected --link with the name of the link{got}",
            hint="--link node:A100-SXM-80GB inside a node, or the name of a fabric of the cluster file",
        )
    choices("--operation", operation, get_args(Operation))
    known: dict[str, Operation] = {name: name for name in get_args(Operation)}
    return read_nccl_tests(path, link, None if operation is None else known[operation], members)


def _finish(
    output: Path, force: bool, points: tuple[LinkPoint, ...], facts: dict[str, str], as_json: bool
) -> None:
    """Write, and say what was found."""
    from datetime import UTC, datetime

    from planner.calibration import Calibration
    from planner.calibration_file import save_calibration
    from planner.calibration_merge import merged
    from planner.measure.curve_error import with_errors, without_lonely
    from planner.report.measured_network import network_document, network_sections

    told = {"date": datetime.now(UTC).date().isoformat(), "command": " ".join(["hetplan", *sys.argv[1:]])}
    own = Calibration(link_points=points, provenance={**facts, **told})
    found = without_lonely(merged(before(output, force), own))
    points = tuple(point for point in points if point in found.link_points)
    if not points:
        raise UsageError(
            "calibrate network: nothing was measured", hint="give it more time or larger tensors"
        )
    found = with_errors(found)
    save_calibration(found, output)
    if as_json:
        show_document(network_document(points, found, output))
        return
    show(
        *network_sections(points, found, output), then=f"hetplan search CLUSTER MODEL --calibration {output}"
    )
