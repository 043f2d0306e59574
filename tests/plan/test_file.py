"""Plan files: written and read back, refused when they are inconsistent."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster.spec import HostSpec
from planner.errors import HetplanError, OutputError, PlanError, SpecError
from planner.files.fields import written as plain
from planner.model.file import load_model
from planner.plan.file import (
    Considered,
    Moment,
    PlanFile,
    Summary,
    UsedCalibration,
    _of_keys,
    cluster_digest,
    cluster_part,
    load_plan,
    read,
    to_text,
    write,
)
from planner.plan.values import Offload, Plan, Stage
from tests.plan.examples import CLUSTER, MODEL, group, plan, stage
from tests.quick import first

SUMMARY = Summary(
    status="optimal",
    step_seconds=0.4123456789012345,
    bound_seconds=0.41,
    gap=1e-9,
    tokens_per_second=9933.1,
    alternatives=(
        Considered(family="pipeline", step_seconds=0.41, reason="chosen"),
        Considered(family="ZeRO-3", step_seconds=None, reason="slow: needs 17.3 GiB, has 13.0"),
    ),
    advice=("4.1 % faster with tp 4 on fast only: needs flagscale",),
)
FILE = PlanFile(plan=plan(), cluster=CLUSTER, model=MODEL, summary=SUMMARY)


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    """The good file with these changes."""
    text = to_text(FILE)
    for old, new in changes:
        assert old in text, text
        text = text.replace(old, new, 1)
    path = folder / "plan.yaml"
    path.write_text(text)
    return path


def error_of(path: Path) -> HetplanError:
    """What reading the file complains about."""
    with pytest.raises((PlanError, SpecError)) as caught:
        read(path)
    return caught.value


def test_reading_undoes_writing(tmp_path: Path) -> None:
    """Plan, inputs and summary; pools come back sorted."""
    path = tmp_path / "plan.yaml"
    write(FILE, path)
    found = read(path)
    assert (found.plan, found.model, found.summary) == (FILE.plan, FILE.model, FILE.summary)
    assert [pool.name for pool in found.cluster.pools] == ["fast", "slow"]
    assert cluster_digest(found.cluster) == cluster_digest(CLUSTER)
    assert to_text(found) == to_text(FILE)


CONFIGURATIONS = json.loads((Path(__file__).parents[1] / "model" / "shapes.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "swin-tiny",
            "resnet-50",
            "segformer-b0",
            "convnext-tiny",
            "siglip2-base",
            "chinese-clip",
            "vit-mae",
        ),
        *("w2v-bert-2.0", "yolos-tiny", "fnet", "timesformer", "blip2-flan-t5"),
    ],
)
def test_models_that_no_model_file_can_say_are_read_back(tmp_path: Path, name: str) -> None:
    """Shapes that follow from a configuration of Hugging Face."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGURATIONS[name][1]))
    model = load_model(path)
    batch = model.training.global_batch
    replicas = group(count=1, local_batch=batch, accumulation_steps=batch)
    chosen = plan(stage(0, model.layers, replicas), target="torch", zero=0)
    plan_file = PlanFile(plan=chosen, cluster=CLUSTER, model=model, summary=None)
    write(plan_file, tmp_path / "plan.yaml")
    assert read(tmp_path / "plan.yaml").model == model
    edited = to_text(plan_file).replace(f"hidden: {model.hidden}", f"hidden: {2 * model.hidden}", 1)
    (tmp_path / "plan.yaml").write_text(edited)
    assert "inputs" in str(error_of(tmp_path / "plan.yaml"))


def test_what_an_earlier_version_held() -> None:
    """Of today's keys those that it had; what was a number then is as it is today."""
    today = {"one": {"a": 1, "b": 2}, "two": [{"a": 1, "b": 2}], "three": {"a": 1}}
    before = {"one": {"a": 5}, "two": [{"b": 5}], "three": 5}
    assert _of_keys(today, before) == {"one": {"a": 1}, "two": [{"b": 2}], "three": {"a": 1}}


def test_files_of_before_a_key_are_read(tmp_path: Path) -> None:
    """Earlier versions had fewer keys and told their digests without them; what was edited is still refused."""
    document = yaml.safe_load(to_text(FILE))
    inputs = document["inputs"]
    del inputs["model"]["dense_layers"]
    for gpu in inputs["cluster"]["gpus"].values():
        del gpu["multiprocessors"]
    model = plain(MODEL)
    del model["dense_layers"]
    cluster = cluster_part(CLUSTER)
    for gpu in cluster["gpus"].values():
        del gpu["multiprocessors"]
    for part, data in (("model", model), ("cluster", cluster)):
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        document["digests"][part] = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    assert read(path).model == MODEL
    inputs["model"]["vocab"] += 1
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    assert "digests.model" in str(error_of(path))


def test_lists_of_the_inputs_may_be_written_out(tmp_path: Path) -> None:
    """Four devices are the same as ``4 x A100``, and the digest is of what they mean."""
    path, text = tmp_path / "plan.yaml", to_text(FILE)
    written = text.replace("[4 x A100]", "[A100, A100, 2 x A100]").replace(
        "['fast-[0-1]']", "[fast-0, fast-1]"
    )
    assert written != text
    path.write_text(written)
    assert cluster_digest(read(path).cluster) == cluster_digest(CLUSTER)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Data-parallel plans with a batch per device, and pipelines."""
    if draw(st.booleans()):
        cut = draw(st.integers(1, 7))
        steps = draw(st.sampled_from([1, 2, 4, 8, 16]))
        stages = (
            stage(0, cut, group(accumulation_steps=steps)),
            stage(cut, 8, group(pool="slow", gpu="T4", accumulation_steps=steps)),
        )
        return plan(*stages, zero=draw(st.integers(0, 1)))
    share = draw(st.integers(1, 31))
    fast = group(count=1, local_batch=share, accumulation_steps=draw(st.integers(1, share)))
    slow = group(
        pool="slow",
        gpu="T4",
        count=1,
        local_batch=32 - share,
        accumulation_steps=draw(st.integers(1, 32 - share)),
    )
    return plan(
        stage(0, 8, fast, slow, recompute=draw(st.sampled_from(["none", "full"]))), target="deepspeed"
    )


@settings(deadline=None)
@given(plans())
def test_any_plan_comes_back(tmp_path_factory: pytest.TempPathFactory, any_plan: Plan) -> None:
    """With its micro-batches derived again."""
    path = tmp_path_factory.mktemp("plans") / "plan.yaml"
    write(PlanFile(plan=any_plan, cluster=CLUSTER, model=MODEL), path)
    assert read(path) == read(path)
    assert read(path).plan == any_plan


def test_the_order_of_pools_leaves_no_trace() -> None:
    """Nor that of GPUs, fabrics and number formats."""
    texts = set()
    for pools in permutations(CLUSTER.pools):
        for turn in (1, -1):
            gpus = {
                name: gpu.model_copy(update={"tflops": dict(list(gpu.tflops.items())[::turn])})
                for name, gpu in list(CLUSTER.gpus.items())[::turn]
            }
            fabrics = dict(list(CLUSTER.fabrics.items())[::turn])
            turned = CLUSTER.model_copy(update={"pools": pools, "gpus": gpus, "fabrics": fabrics})
            texts.add(to_text(PlanFile(plan=plan(), cluster=turned, model=MODEL, summary=SUMMARY)))
    assert len(texts) == 1


@pytest.mark.parametrize("seed", first(1, ["4242", "0", "1"]))
def test_the_hash_seed_leaves_no_trace(seed: str) -> None:
    """Bytes are the same in another process."""
    code = "from tests.plan.test_file import FILE, to_text; print(to_text(FILE), end='')"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
    )
    assert found.stdout.decode() == to_text(FILE)


def test_the_file_is_readable() -> None:
    """The plan first, a line for each group of replicas; the inputs last."""
    text = to_text(FILE)
    assert "- {pool: fast, gpu: A100, tp: 1, count: 2, micro_batch: 4, share: 16, steps: 4}\n" in text
    assert list(yaml.safe_load(text)) == [
        "format",
        "target",
        "zero",
        "interleave",
        "sequence_parallel",
        "stages",
        "summary",
        "digests",
        "inputs",
    ]
    assert text.startswith("# A plan of hetplan.")
    # A line ends behind the entry that passes its width.
    assert max(len(line) for line in text.splitlines()) <= 125


@pytest.mark.parametrize("name", ["1e9", "08", "0x1F", "no", "1.5", "null", "1-2"])
def test_names_that_look_like_numbers_stay_text(tmp_path: Path, name: str) -> None:
    """The dumper and the reader agree on what needs quotes."""
    pools = (CLUSTER.pools[0], CLUSTER.pools[1].model_copy(update={"name": name}))
    cluster = CLUSTER.model_copy(update={"pools": pools})
    path = tmp_path / "plan.yaml"
    write(PlanFile(plan=plan(stage(0, 8, group(pool=name))), cluster=cluster, model=MODEL), path)
    assert read(path).plan.stages[0].replicas[0].pool == name


OFFLOADING = plan(
    stage(0, 8, recompute="full"),
    target="deepspeed",
    zero=3,
    offload=Offload(optimizer="nvme", activations="cpu"),
)


def offloading_file() -> PlanFile:
    """A plan that offloads, on a cluster whose hosts are known."""
    pools = tuple(
        pool.model_copy(update={"host": HostSpec(link_gBps=10, nvme_gBps=5)}) for pool in CLUSTER.pools
    )
    return PlanFile(plan=OFFLOADING, cluster=CLUSTER.model_copy(update={"pools": pools}), model=MODEL)


def test_offload_comes_back(tmp_path: Path) -> None:
    """Only what is offloaded is written; a plan that offloads nothing is written as before there was offload."""
    path = tmp_path / "plan.yaml"
    write(offloading_file(), path)
    assert "offload: {optimizer: nvme, activations: cpu}\n" in path.read_text()
    assert read(path).plan == OFFLOADING
    assert "offload" not in to_text(FILE)
    assert "host" not in cluster_text(FILE)


SHARED = replace(OFFLOADING, offload=Offload(optimizer="cpu", ratio=0.6))


def test_a_share_of_the_optimizer_comes_back(tmp_path: Path) -> None:
    """Beside where it is; all of it, and updates behind the backward, are not written."""
    path = tmp_path / "plan.yaml"
    write(replace(offloading_file(), plan=SHARED), path)
    text = path.read_text()
    assert "offload: {optimizer: cpu, ratio: 0.6}\n" in text
    assert read(path).plan == SHARED
    path.write_text(text.replace("ratio: 0.6", "ratio: 1.0, super_offload: false"))
    assert read(path).plan.offload == Offload(optimizer="cpu")
    for wrong, message in (
        ("ratio: 1.2", "offload.ratio: expected a number from 0.01 to 1, got 1.2"),
        ("ratio: 0", "offload.ratio: expected a number from 0.01 to 1, got 0"),
        ("ratio: most", 'offload.ratio: expected a number from 0.01 to 1, got "most"'),
        ("super_offload: 1", "offload.super_offload: expected true or false, got 1"),
        (
            "super_offload: true",
            "offload.super_offload: SuperOffload updates by gradients that are still scaled",
        ),
    ):
        path.write_text(text.replace("ratio: 0.6", wrong))
        assert f"plan.yaml:8: {message}" in str(error_of(path))
    path.write_text(text.replace("optimizer: cpu", "optimizer: nvme"))
    assert "plan.yaml:8: offload.ratio: it is for states in host memory" in str(error_of(path))
    path.write_text(text.replace("zero: 3", "zero: 2"))
    assert "deepspeed divides the optimizer between host and device with ZeRO 3, got ZeRO 2" in str(
        error_of(path)
    )


def test_hybrid_sharding_comes_back(tmp_path: Path) -> None:
    """Beside the ZeRO stage; a plan without it is written as before there was any."""
    path = tmp_path / "plan.yaml"
    hybrid = plan(stage(0, 8, group(count=4, local_batch=8)), target="torch", zero=3, shard_size=2)
    write(PlanFile(plan=hybrid, cluster=CLUSTER, model=MODEL), path)
    text = path.read_text()
    assert "zero: 3\nshard_size: 2\ninterleave: 1\n" in text
    assert read(path).plan == hybrid
    assert "shard_size" not in to_text(FILE)
    path.write_text(text.replace("shard_size: 2", "shard_size: 3"))
    assert "plan.yaml:6: shard_size: expected a divisor of the 4 replicas" in str(error_of(path))
    path.write_text(text.replace("target: torch", "target: deepspeed"))
    assert "plan.yaml:6: shard_size: deepspeed shards over all replicas" in str(error_of(path))
    path.write_text(text.replace("shard_size: 2", "shard_size: two"))
    assert 'plan.yaml:6: shard_size: expected a whole number from 1 to 1000000, got "two"' in str(
        error_of(path)
    )


def cluster_text(file: PlanFile) -> str:
    """The embedded cluster without the names of its hosts."""
    return to_text(file).split("inputs:")[1].replace("hosts:", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("optimizer: nvme", "optimizer: disk"), "offload.optimizer"),
        (("activations: cpu", "activations: nvme"), "activations can be offloaded to cpu only, got nvme"),
        (("zero: 3", "zero: 2"), "deepspeed offloads optimizer to nvme with ZeRO 3, got ZeRO 2"),
    ],
)
def test_offload_that_cannot_be(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    """Named by its line."""
    path = tmp_path / "plan.yaml"
    path.write_text(to_text(offloading_file()).replace(*change, 1))
    assert message in str(error_of(path))
    assert "plan.yaml:8: offload" in str(error_of(path))


def test_idle_devices_of_the_summary(tmp_path: Path) -> None:
    """They come back; without any the file is as before they were kept."""
    assert "idle" not in to_text(FILE)
    path = tmp_path / "plan.yaml"
    summary = replace(SUMMARY, idle=("2 T4 of slow: 20 % slower",))
    write(replace(FILE, summary=summary), path)
    assert read(path).summary == summary


def test_the_history_of_a_search(tmp_path: Path) -> None:
    """The same: it comes back, and files without are as before."""
    assert "history" not in to_text(FILE)
    path = tmp_path / "plan.yaml"
    summary = replace(SUMMARY, history=(Moment(seconds=0.5, step_seconds=3.0, bound_seconds=0.0),))
    write(replace(FILE, summary=summary), path)
    assert read(path).summary == summary


def test_a_plan_without_summary(tmp_path: Path) -> None:
    """Made by hand."""
    path = tmp_path / "plan.yaml"
    write(PlanFile(plan=plan(), cluster=CLUSTER, model=MODEL), path)
    assert read(path).summary is None


def test_the_calibration_is_remembered(tmp_path: Path) -> None:
    """Its name and digest, between what the search said and the digests; also when the stages are edited."""
    used = UsedCalibration(name="mine.yaml", digest="1234567890123456")
    path = tmp_path / "plan.yaml"
    write(replace(FILE, calibration=used), path)
    assert read(path).calibration == used
    assert list(yaml.safe_load(path.read_text()))[-3:] == ["calibration", "digests", "inputs"]
    path.write_text(path.read_text().replace("zero: 1", "zero: 0", 1))
    assert (read(path).calibration, read(path).summary) == (used, None)
    assert read(written(tmp_path)).calibration is None


def test_a_consistent_edit_drops_the_summary(tmp_path: Path) -> None:
    """Its numbers were of another plan."""
    path = written(tmp_path, ("layers: [0, 5]", "layers: [0, 4]"), ("layers: [5, 8]", "layers: [4, 8]"))
    found = read(path)
    assert (found.plan.stages[0].end_layer, found.summary) == (4, None)


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (
            ("hetplan-plan/1", "hetplan-plan/2"),
            3,
            "format: the file is hetplan-plan/2, this hetplan reads hetplan-plan/1",
        ),
        (("hetplan-plan/1", "1"), 3, "format: expected hetplan-plan/1, got 1"),
        (("format: hetplan-plan/1\n", ""), 3, "format: missing, expected hetplan-plan/1"),
        (("zero: 1", "zero: 3"), 5, "zero: megatron runs ZeRO 0, 1 in a pipeline, got 3"),
        (("target: megatron", "target: mega"), 4, "target: unknown target 'mega'"),
        (("layers: [5, 8]", "layers: [6, 8]"), 13, "stages[1].layers: starts at layer 6, expected 5"),
        (
            ("layers: [5, 8]", "layers: [5, 9]"),
            13,
            "stages[1].layers: the stages hold 9 layers, the model m has 8",
        ),
        (("layers: [5, 8]", "layers: [5, 5]"), 13, "stages[1].layers: a stage needs at least one layer"),
        (("count: 2", "count: 16"), 8, "stages: every stage must process the same number of sequences"),
        (
            ("micro_batch: 4", "micro_batch: 5"),
            12,
            "stages[0].replicas[0].micro_batch: expected 4 (share 16 in 4 steps), got 5",
        ),
        (
            ("share: 16, steps: 4", "share: 3, steps: 4"),
            12,
            "share at least steps, got tp 1, count 2, share 3, steps 4",
        ),
        (("pool: fast", "pool: fats"), 12, 'stages[0].replicas[0].pool: the cluster has no pool "fats"'),
        (("gpu: A100", "gpu: T4"), 12, 'stages[0].replicas[0].gpu: the pool fast has no "T4"'),
        (("tp: 1", "tp: 2"), 16, "stages[1].replicas[0].tp: megatron has one tp for all, expected 2, got 1"),
        (
            ("interleave: 1", "interleave: 9"),
            6,
            "interleave: interleave 9 needs at least as many layers in every stage",
        ),
        (
            ("sequence_parallel: false", "sequence_parallel: true"),
            7,
            "sequence_parallel: sequence parallelism needs tp",
        ),
        (
            ("global_batch: 32", "global_batch: 64"),
            None,
            "digests.model: the model under inputs is not the one",
        ),
        (
            ("latency_us: 2.0", "latency_us: 6.0"),
            None,
            "digests.cluster: the cluster under inputs is not the one",
        ),
    ],
)
def test_inconsistent_plans(tmp_path: Path, change: tuple[str, str], line: int | None, message: str) -> None:
    """File, line, key and the rule."""
    path = written(tmp_path, change)
    error = error_of(path)
    assert isinstance(error, PlanError)
    assert message in error.message
    assert error.message.startswith(f"{path}:{'' if line is None else f'{line}: '}")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("zero: 1", "zero: one"), 'zero: expected a whole number from 0 to 3, got "one"'),
        (("zero: 1", "zero: 4"), "zero: expected a whole number from 0 to 3, got 4"),
        (("zero: 1", "zero: 1\nzeros: 2"), "zeros: unknown key"),
        (
            ("recompute: none", "recompute: some"),
            "stages[0].recompute: expected one of: none, selective, full",
        ),
        (("share: 16, ", ""), "stages[0].replicas[0].share: missing"),
        (("layers: [0, 5]", "layers: 5"), "stages[0].layers: expected a list of 2, got 5"),
        (("layers: [0, 5]", "layers: [0, 5, 6]"), "stages[0].layers: expected a list of 2, got a list of 3"),
        (("status: optimal", "status: best"), "summary.status: expected one of: optimal, feasible"),
        (
            ("step_seconds: 0.4123456789012345", "step_seconds: .nan"),
            "summary.step_seconds: expected a number from 1e-60 to 1e+60",
        ),
        (("digests: {", "digests: {x: 1, "), "digests.x: unknown key"),
        (
            ("learned_positions: 0", "learned_positions: 1"),
            "expected at most the 1 rows of learned_positions",
        ),
        (("- fast-[0-1]", "- 'fast-['"), "inputs.cluster.pools[0].hosts"),
    ],
)
def test_what_is_no_plan_file(tmp_path: Path, change: tuple[str, str], what: str) -> None:
    """The same words as for other files."""
    if change[0].startswith("- fast"):
        change = ("'fast-[0-1]'", "'fast-['")
    path = written(tmp_path, change)
    error = error_of(path)
    assert isinstance(error, SpecError)
    assert what in error.message
    assert all(problem.line for problem in error.problems)


def test_a_short_plan_is_not_a_plan_file(tmp_path: Path) -> None:
    """The hint names the command that takes it."""
    path = tmp_path / "short.yaml"
    path.write_text("target: megatron\ntp: 8\n")
    assert error_of(path).hint == "hetplan predict CLUSTER MODEL PLAN"


def test_more_devices_than_the_cluster_has(tmp_path: Path) -> None:
    """Both stages doubled."""
    many = plan(
        *(
            Stage(first_layer=a, end_layer=b, replicas=(group(count=8, local_batch=4),))
            for a, b in ((0, 5), (5, 8))
        )
    )
    path = tmp_path / "plan.yaml"
    write(PlanFile(plan=many, cluster=CLUSTER, model=MODEL), path)
    assert "stages: more devices than the cluster has" in error_of(path).message


def test_the_embedded_inputs_are_complete(tmp_path: Path) -> None:
    """A file can be emitted without the inputs it came from."""
    found = yaml.safe_load(to_text(FILE))["inputs"]
    assert found["cluster"]["pools"][0]["hosts"] == ["fast-[0-1]"]
    assert found["cluster"]["pools"][0]["devices"] == ["4 x A100"]
    assert found["model"]["training"]["precision"] == "fp16"


def test_writing_replaces_the_file_whole(tmp_path: Path) -> None:
    """Without leftovers, readable like any new file."""
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    write(FILE, path)
    assert path.read_text() == to_text(FILE)
    assert [child.name for child in tmp_path.iterdir()] == ["plan.yaml"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    """The file that it points to is replaced."""
    (tmp_path / "real.yaml").write_text("old")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    write(FILE, tmp_path / "link.yaml")
    assert (tmp_path / "link.yaml").is_symlink()
    assert (tmp_path / "real.yaml").read_text() == to_text(FILE)


def test_a_directory_as_output(tmp_path: Path) -> None:
    """The hint is a file in it."""
    with pytest.raises(OutputError, match="is a directory") as caught:
        write(FILE, tmp_path)
    assert caught.value.hint == f"name a file, e.g. {tmp_path / 'plan.yaml'}"


def test_a_missing_folder(tmp_path: Path) -> None:
    """The folder is named."""
    with pytest.raises(OutputError, match=f"the folder {tmp_path / 'no'} does not exist"):
        write(FILE, tmp_path / "no" / "plan.yaml")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OutputError, match="no permission to write"):
        write(FILE, tmp_path / "plan.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
@pytest.mark.parametrize("protected", ["folder", "file"])
def test_no_permission_for_an_ordinary_user(tmp_path: Path, protected: str) -> None:
    """A folder or a file that is read-only."""
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    (tmp_path if protected == "folder" else path).chmod(0o500)
    with pytest.raises(OutputError, match="no permission to write"):
        write(FILE, path)
    tmp_path.chmod(0o700)
    assert path.read_text() == "old"


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half a file nor a temporary one."""
    path = tmp_path / "plan.yaml"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write(FILE, path)
    assert [child.name for child in tmp_path.iterdir()] == ["plan.yaml"]
    assert path.read_text() == "old"


def test_a_full_plan_for_other_inputs(tmp_path: Path) -> None:
    """It is checked against those inputs."""
    path = written(tmp_path)
    assert load_plan(path, CLUSTER, MODEL) == plan()
    deeper = MODEL.model_copy(update={"layers": 9})
    with pytest.raises(PlanError, match=r"plan.yaml:13: stages\[1\].layers: the stages hold 8 layers"):
        load_plan(path, CLUSTER, deeper)


def test_a_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """A named pipe stays a pipe and carries the plan."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    write(PlanFile(plan=plan(), cluster=CLUSTER, model=MODEL, summary=None), pipe)
    text, _ = reader.communicate(timeout=10)
    assert text == to_text(PlanFile(plan=plan(), cluster=CLUSTER, model=MODEL, summary=None))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
