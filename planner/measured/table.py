"""Tables of measured runs: the published one, and the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.cluster.spec import ClusterSpec
from planner.errors import PlanError, Problem, SpecError, UsageError, dotted
from planner.files.document import fail_on
from planner.measured.cells import NumberedRow, read_rows
from planner.measured.inputs import (
    cluster_of,
    cluster_problems,
    model_of,
    model_problems,
    plan_of,
    plan_problems,
)
from planner.measured.values import Run, Skipped, Table
from planner.plan.checks import faults
from planner.plan.faults import Fault

_PACKAGE = Path(__file__).parents[1]


def published_path(package: Path = _PACKAGE) -> Path:
    """The published measurements of the installation or the checkout; raises UsageError without any."""
    places = (
        package / "measured" / "data" / "published.csv",
        package.parent / "tests" / "measured" / "published.csv",
    )
    for place in places:
        if place.is_file():
            return place
    raise UsageError(
        "this installation comes without published measurements",
        hint="name a table of measured runs: --measured FILE",
    )


def load_table(path: Path) -> Table:
    """All rows of a table as runs, or skipped with the reason; raises SpecError with everything wrong in it.

    A row becomes no run when it says so (``inexpressible``) or when its plan breaks a rule of its target.
    """
    rows = read_rows(path)
    wanted = [item for item in rows if not item.row.inexpressible]
    fail_on([problem for item in wanted for problem in _problems(item)])
    made = _Made(path)
    outcomes = [made.outcome(item) for item in rows]
    fail_on(made.problems)
    return Table(
        runs=tuple(item for item in outcomes if isinstance(item, Run)),
        skipped=tuple(item for item in outcomes if isinstance(item, Skipped)),
    )


def _problems(item: NumberedRow) -> list[Problem]:
    row = item.row
    found = [*cluster_problems(item), *model_problems(item), *plan_problems(item)]
    if row.step_seconds is None and row.peak_memory_bytes is None and row.fits:
        found.append(item.problem("step_seconds", "missing, expected it, peak_memory_bytes, or fits no"))
    if row.step_seconds is not None and not row.fits:
        found.append(item.problem("step_seconds", "given for a run that was out of memory (fits no)"))
    return found


class _Made:
    """Runs made so far; equal clusters are made once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self._clusters: dict[tuple[object, ...], ClusterSpec] = {}

    def outcome(self, item: NumberedRow) -> Run | Skipped | None:
        """The run of a row, or why there is none; None after a problem with a file that it names."""
        row, source = item.row, item.row.source or self.path.stem
        if row.inexpressible:
            return Skipped(id=row.id, source=source, reason=row.inexpressible)
        try:
            return self._run(item, source)
        except SpecError as error:
            self.problems += error.problems
        except PlanError as error:
            return Skipped(id=row.id, source=source, reason=error.message)
        return None

    def _run(self, item: NumberedRow, source: str) -> Run:
        row, cluster, model = item.row, self._cluster(item), model_of(item)
        plan = plan_of(item, cluster, model)
        broken = faults(plan, cluster, model)
        if broken:
            raise PlanError(_first(broken))
        return Run(
            id=row.id,
            source=source,
            reference=row.reference,
            stack=row.stack,
            cluster=cluster,
            model=model,
            plan=plan,
            step_seconds=row.step_seconds,
            peak_memory_bytes=row.peak_memory_bytes,
            fits=row.fits,
            doubt=row.doubt,
        )

    def _cluster(self, item: NumberedRow) -> ClusterSpec:
        row = item.row
        place = (row.cluster_file, row.gpu, row.nodes, row.devices_per_node, row.intra_node)
        key = (*place, row.fabric, row.nic_gbps, row.nics, row.host_gBps, row.nvme_gBps)
        if key not in self._clusters:
            self._clusters[key] = cluster_of(item)
        return self._clusters[key]


def _first(broken: Sequence[Fault]) -> str:
    """The first broken rule, and how many more there are."""
    fault, more = broken[0], len(broken) - 1
    where = f"{dotted(fault.path)}: " if fault.path else ""
    return f"{where}{fault.what}" + (f" (and {more} more)" if more else "")
