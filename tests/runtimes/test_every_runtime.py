"""What must hold of every runtime: registration, launch folders, refusals, READMEs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import planner
from planner.emit.interface import emit, installed_versions, job_of
from planner.errors import EmitError, PlanError
from planner.launchers.registry import LAUNCHERS
from planner.runtimes.interface import runtime
from planner.runtimes.log import LogReader
from planner.targets import NAMES, TARGETS, target
from tests.quick import first
from tests.runtimes.generated import cases, drawn
from tests.worlds import cluster, group, model, plan, pool

ROOMS = Path(planner.__file__).parent / "runtimes"
CLUSTER = cluster(pool("a", ("A100",) * 4, 2))
REPLICAS = [(group("a", "A100", count=4, share=2),)]


def test_every_room_is_registered() -> None:
    """And called as its capabilities are."""
    assert {path.parent.name for path in ROOMS.glob("*/runtime.py")} == set(NAMES)
    assert list(TARGETS) == [row.name for row in TARGETS.values()] == list(NAMES)


def test_the_runtime_has_the_capabilities_of_its_room(name: str) -> None:
    """Search and launch files go by the same row."""
    assert runtime(name).capabilities is target(name)


def test_files_are_sorted_and_repeatable(name: str) -> None:
    """The same plan gives the same files in the same order, each once."""
    made = [emit(plan(name, 1, [4], REPLICAS), CLUSTER, model(8)) for _ in range(2)]
    assert made[0] == made[1]
    paths = [file.path for file in made[0]]
    assert paths == sorted(set(paths))
    assert {"README.md", "launch.sh"} <= set(paths)
    if not runtime(name).starts_itself:
        assert {"nodes.txt", "env/a.sh", "preflight.sh", "devices.txt"} <= set(paths)
    assert all(file.text.endswith("\n") for file in made[0])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher(name: str, launcher: str) -> None:
    """The README starts with the launcher, and NCCL is never told to go on when networks differ."""
    chosen = plan(name, 1, [4], REPLICAS)
    if runtime(name).starts_itself and launcher != "torchrun":
        with pytest.raises(
            EmitError, match=f"launcher {launcher}: {name} starts the nodes by its own runner"
        ):
            emit(chosen, CLUSTER, model(8), launcher)
        return
    if launcher in NAMES and launcher != name:
        with pytest.raises(EmitError, match=f"starts plans for the target {launcher}"):
            emit(chosen, CLUSTER, model(8), launcher)
        return
    if launcher == "accelerate" and name == "megatron":
        with pytest.raises(EmitError, match="does not start megatron"):
            emit(chosen, CLUSTER, model(8), launcher)
        return
    files = emit(chosen, CLUSTER, model(8), launcher)
    assert len({file.path for file in files}) == len(files)
    assert not [file.path for file in files if "NCCL_IGNORE_NET_MISMATCH" in file.text]
    readme = next(file.text for file in files if file.path == "README.md")
    headings = [line for line in readme.splitlines() if line.startswith("## ")]
    own = {
        "deepspeed": "## Start with DeepSpeed's launcher",
        "slurm": "## Start with Slurm",
        "kubernetes": "## Start with Kubernetes",
        "ssh": "## Start over ssh",
        "accelerate": "## Start with Accelerate",
        "skypilot": "## Start with SkyPilot",
        "ray": "## Start with Ray",
    }
    start = [own[launcher], "## Start node by node"] if launcher in own else ["## Start"]
    if not runtime(name).starts_itself:
        start = ["## Before you start", *start]
    at = headings.index(start[0])
    assert headings[at : at + len(start)] == start


@pytest.mark.parametrize("number", first(1, [15, 200]))
def test_generated_plans_keep_the_rules(name: str, number: int) -> None:
    """What is emitted for a plan that the capabilities allow passes the runtime's own rules."""
    rules = import_module(f"tests.runtimes.{name}.rules")
    emitted = 0
    for case in cases(target(name), number, seed=3):
        try:
            files = emit(case.plan, case.cluster, case.model)
        except (EmitError, PlanError):
            continue  # refused by name: too few devices, or widths that its check knows
        rules.check_files(
            {file.path: file.text for file in files}, job_of(case.plan, case.cluster, case.model)
        )
        emitted += 1
    assert emitted >= number // 2


def test_what_capabilities_forbid_is_refused(name: str) -> None:
    """No folder is written for a plan that the runtime cannot run."""
    refused = 0
    for case, allowed in drawn(target(name), 200, seed=5):
        if not allowed:
            with pytest.raises(EmitError):
                emit(case.plan, case.cluster, case.model)
            refused += 1
    assert refused > 5


@pytest.mark.parametrize("number", first(1, [6, 60]))
def test_scripts_stand_on_their_own(name: str, number: int) -> None:
    """No import of the planner is left, every neighbour that is imported is there, and all of it compiles."""
    for case in cases(target(name), number, seed=8):
        try:
            files = {file.path: file.text for file in emit(case.plan, case.cluster, case.model)}
        except (EmitError, PlanError):
            continue
        scripts = {path: text for path, text in files.items() if path.endswith(".py")}
        for path, text in scripts.items():
            assert "planner" not in text
            compile(text, path, "exec")
            imported = {line.split()[1] for line in text.splitlines() if line.startswith("from ")}
            ours = {word for word in imported if word.startswith(("hetplan_", "example_", "step_log"))}
            assert {f"{word}.py" for word in ours} <= set(scripts)


def test_cluster_too_small(name: str) -> None:
    """A plan for more devices than the cluster has is a plan error."""
    with pytest.raises(PlanError):
        emit(plan(name, 1, [4], [(group("a", "A100", count=9, share=1),)]), CLUSTER, model(9))


def test_tf32_is_switched_on(name: str) -> None:
    """PyTorch multiplies fp32 in full unless the environment says otherwise."""
    for precision, on in (("tf32", True), ("fp32", False)):
        files = emit(plan(name, 1, [4], REPLICAS), CLUSTER, model(8, precision=precision))
        assert any("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" in file.text for file in files) == on


def test_versions_that_were_tried(name: str) -> None:
    """Whole version numbers, PyTorch's among them."""
    tried = runtime(name).tried
    assert tried["torch"] == target("torch").version
    assert all(version.replace(".", "").isdigit() for version in tried.values())
    assert set(installed_versions(name)) <= set(tried)


def test_what_it_prints_is_read(name: str) -> None:
    """Its reader takes any line, begins with nothing, and is new each time."""
    chosen = plan(name, 1, [4], REPLICAS)
    reader = runtime(name).log_reader(chosen)
    if reader is None:
        assert runtime(name).how_to_time(chosen) is None
        return
    assert isinstance(runtime(name).log_reader(chosen), type(reader))
    assert runtime(name).log_reader(chosen) is not reader
    _read_nothing(reader)


def _read_nothing(reader: LogReader) -> None:
    for line in ("", "\n", "iteration", "step 3"):
        assert not reader.restarts(line)
        reader.read(line)
    assert (reader.parts, reader.memory, reader.facts, reader.notes) == ((), (), (), ())
    assert reader.steps.timed() == ()
