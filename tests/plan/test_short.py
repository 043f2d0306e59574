"""Short plans: what is left out is filled in, what cannot be is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster.spec import ClusterSpec, HostSpec
from planner.errors import HetplanError, PlanError, SpecError
from planner.model.spec import ModelSpec, RunSpec
from planner.plan.file import load_plan
from planner.plan.values import Offload, Plan
from tests.plan.examples import CLUSTER, MODEL, UNTIED, group, plan, stage
from tests.worlds import nic

BIG = MODEL.model_copy(update={"training": MODEL.training.model_copy(update={"global_batch": 48})})


def short(folder: Path, text: str, cluster: ClusterSpec = CLUSTER, model: ModelSpec = MODEL) -> Plan:
    """The plan of this text."""
    path = folder / "short.yaml"
    path.write_text(text)
    return load_plan(path, cluster, model)


def error_of(folder: Path, text: str, model: ModelSpec = MODEL) -> HetplanError:
    """What the text complains about."""
    with pytest.raises((PlanError, SpecError)) as caught:
        short(folder, text, model=model)
    return caught.value


def test_one_key_is_enough(tmp_path: Path) -> None:
    """Pools are filled in file order with one replica a device."""
    found = short(tmp_path, "tp: 1\n", model=BIG)
    slow = group(pool="slow", gpu="T4", count=4, local_batch=4, accumulation_steps=4)
    assert found == plan(stage(0, 8, slow, group(count=8, local_batch=4, accumulation_steps=4)), zero=0)


def test_layers_are_as_even_as_possible(tmp_path: Path) -> None:
    """Earlier stages take one more."""
    found = short(tmp_path, "pp: 3\ndp: 4\nmicro_batch: 2\n")
    assert [part.layers for part in found.stages] == [3, 3, 2]
    assert [part.replicas[0].pool for part in found.stages] == ["slow", "fast", "fast"]
    assert found.stages[0].replicas[0].micro_batch_sizes == (2, 2, 2, 2)


def test_stages_on_named_pools(tmp_path: Path) -> None:
    """With their own layers."""
    text = (
        "dp: 2\nmicro_batch: 4\nzero: 1\nstages:\n  - {pool: fast, layers: 5}\n  - {pool: slow, layers: 3}\n"
    )
    assert short(tmp_path, text) == plan()


def test_blocks_are_counted_as_blocks(tmp_path: Path) -> None:
    """A stage of a model of blocks holds whole ones, and messages say so."""
    blocks = MODEL.model_copy(update={"block": (RunSpec(layers=3), RunSpec(feed_forward="none"))})
    assert "expected a sum of 8, the blocks of m, got 32" in str(
        error_of(tmp_path, "target: torch\ndp: 2\npp: 2\nlayers: [16, 16]\n", blocks)
    )
    assert "9 stages for 8 blocks, expected at most one stage a block" in str(
        error_of(tmp_path, "target: torch\ndp: 1\npp: 9\n", blocks)
    )


def test_dp_fills_the_named_pools(tmp_path: Path) -> None:
    """The narrowest pool decides."""
    found = short(tmp_path, "stages: [{pool: fast}, {pool: slow}]\n")
    assert [part.dp for part in found.stages] == [4, 4]


def test_one_entry_for_several_stages(tmp_path: Path) -> None:
    """Two stages on the fast pool, one on the slow."""
    found = short(tmp_path, "dp: 4\nstages: [{pool: fast, count: 2}, {pool: slow}]\nlayers: [3, 3, 2]\n")
    assert [part.replicas[0].pool for part in found.stages] == ["fast", "fast", "slow"]
    assert [part.layers for part in found.stages] == [3, 3, 2]


def test_different_degrees_per_stage(tmp_path: Path) -> None:
    """For runtimes that can."""
    text = """\
target: flagscale
recompute: full
stages:
  - {pool: fast, tp: 2, dp: 2, micro_batch: 4, recompute: none}
  - {pool: slow, dp: 4, micro_batch: 2}
"""
    first, last = short(tmp_path, text, model=UNTIED).stages
    assert (first.replicas[0].tp, first.dp, first.recompute) == (2, 2, "none")
    assert (last.replicas[0].tp, last.dp, last.recompute) == (1, 4, "full")


def test_all_keys_of_the_plan_itself(tmp_path: Path) -> None:
    """None is lost."""
    text = """\
target: megatron
tp: 2
pp: 2
dp: 2
micro_batch: 2
interleave: 2
zero: 1
recompute: selective
sequence_parallel: true
layers: [4, 4]
"""
    found = short(tmp_path, text)
    assert (found.target, found.zero, found.interleave, found.sequence_parallel) == ("megatron", 1, 2, True)
    assert {part.recompute for part in found.stages} == {"selective"}
    assert found.stages[0].replicas[0] == group(pool="slow", gpu="T4", tp=2, accumulation_steps=8)


def test_offload(tmp_path: Path) -> None:
    """What is not named stays on the devices; a mistake is named by its line."""
    known = tuple(pool.model_copy(update={"host": HostSpec(link_gBps=10)}) for pool in CLUSTER.pools)
    cluster = CLUSTER.model_copy(update={"pools": known})
    text = "target: deepspeed\nzero: 2\ndp: 4\noffload: {optimizer: cpu}\n"
    assert short(tmp_path, text, cluster).offload == Offload(optimizer="cpu")
    error = error_of(tmp_path, text.replace("cpu", "nvme"))
    assert "short.yaml:4: offload.optimizer: deepspeed offloads optimizer to nvme with ZeRO 3" in str(error)
    error = error_of(tmp_path, text.replace("optimizer", "parameters"))
    assert "short.yaml:4: offload: parameters off the device need the optimizer states" in str(error)
    error = error_of(tmp_path, text.replace("cpu", "cpu, ratio: 7"))
    assert "short.yaml:4: offload.ratio: expected a number from 0.01 to 1, got 7" in str(error)
    error = error_of(tmp_path, text.replace("cpu", "nvme, ratio: 0.5"))
    assert "short.yaml:4: offload.ratio: it is for states in host memory" in str(error)


def test_hybrid_sharding(tmp_path: Path) -> None:
    """With a batch per device and in a pipeline; a mistake is named by its line."""
    text = "target: torch\nzero: 2\nshard_size: 2\ndp: 4\npp: 2\n"
    found = short(tmp_path, text)
    assert (found.shard_size, found.pp, found.stages[0].dp) == (2, 2, 4)
    own = "target: torch\nzero: 3\nshard_size: 4\nreplicas: [{pool: fast, count: 8, micro_batch: 2}]\n"
    assert short(tmp_path, own).shard_size == 4
    error = error_of(tmp_path, text.replace("shard_size: 2", "shard_size: 3"))
    assert "short.yaml:3: shard_size: expected a divisor of the 4 replicas" in str(error)
    error = error_of(tmp_path, text.replace("torch", "deepspeed").replace("zero: 2", "zero: 1"))
    assert "short.yaml:3: shard_size: deepspeed shards over all replicas" in str(error)


def test_replicas_with_a_batch_of_their_own(tmp_path: Path) -> None:
    """ZeRO data parallelism as Poplar deals it; steps follow from the global batch."""
    text = """\
zero: 3
replicas:
  - {pool: fast, count: 2, micro_batch: 3}
  - {pool: slow, count: 2, micro_batch: 1}
"""
    found = short(tmp_path, text)
    groups = (
        group(local_batch=12, accumulation_steps=4),
        group(pool="slow", gpu="T4", local_batch=4, accumulation_steps=4),
    )
    assert found == plan(stage(0, 8, *groups), target="deepspeed", zero=3)


def test_replicas_with_shares(tmp_path: Path) -> None:
    """The last micro-batches are smaller."""
    text = """\
replicas:
  - {pool: fast, count: 2, micro_batch: 4, share: 11}
  - {pool: slow, count: 2, micro_batch: 1, steps: 5}
"""
    fast, slow = short(tmp_path, text).stages[0].replicas
    assert (fast.local_batch, fast.accumulation_steps, fast.micro_batch_sizes) == (11, 3, (4, 4, 3))
    assert (slow.local_batch, slow.accumulation_steps) == (5, 5)


def test_replicas_with_steps_of_their_own(tmp_path: Path) -> None:
    """Padding makes up for different numbers of micro-batches under ZeRO 2."""
    text = (
        "zero: 2\nreplicas:\n  - {pool: fast, count: 2, micro_batch: 4, share: 8}\n"
        "  - {pool: slow, count: 2, micro_batch: 1, share: 8}\n"
    )
    assert [part.accumulation_steps for part in short(tmp_path, text).stages[0].replicas] == [2, 8]


@pytest.mark.parametrize("key", ["backup", "fewer_steps"])
def test_replicas_cannot_be_fewer_than_none(tmp_path: Path, key: str) -> None:
    """In the words of all other numbers."""
    error = error_of(tmp_path, f"target: torch\n{key}: -1\n")
    assert f"{key}: expected a whole number from 0 to 1000000, got -1" in str(error)


def test_backups_have_batches_that_do_not_count(tmp_path: Path) -> None:
    """The others share the global batch, whether a plan says how many replicas it has, or each has a batch."""
    whole = MODEL.training.global_batch
    text = "target: torch\nbackup: 1\n"
    for asked in ("dp: 5\nstages: [{pool: fast}]", "replicas:\n  - {pool: fast, count: 5, micro_batch: 1}"):
        found = short(tmp_path, f"{text}{asked}\n")
        assert found.global_batch == whole
        assert (found.stages[0].dp, found.stages[0].replicas[0].local_batch) == (5, whole // 4)
    error = error_of(tmp_path, f"{text}dp: 8\nstages: [{{pool: fast}}]\n")
    assert "(dp 8 - backup 1) x micro_batch 1, dp 5 would do" in str(error)


def test_a_mixed_pool_needs_the_kind(tmp_path: Path) -> None:
    """Else its first kind is taken."""
    mixed = CLUSTER.pools[0].model_copy(update={"devices": ("T4", "A100", "T4", "A100")})
    cluster = CLUSTER.model_copy(update={"pools": (mixed,)})
    found = short(tmp_path, "dp: 2\nstages: [{pool: slow, gpu: A100}]\n", cluster)
    assert found.stages[0].replicas[0].gpu == "A100"
    assert short(tmp_path, "dp: 2\nstages: [{pool: slow}]\n", cluster).stages[0].replicas[0].gpu == "T4"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "stages: [{pool: fast, gpu: T4}]",
            'stages[0].gpu: the pool fast has no device "T4", it has: A100',
        ),
        ("stages: [{gpu: H100}]", 'stages[0].gpu: the cluster has no device "H100", it has: T4, A100'),
    ],
)
def test_places_that_the_cluster_does_not_have(tmp_path: Path, text: str, what: str) -> None:
    """By what it has."""
    assert what in str(error_of(tmp_path, f"{text}\n"))


def test_what_all_stages_have_in_common_is_said_once(tmp_path: Path) -> None:
    """It stands in one place of the file."""
    error = error_of(tmp_path, "tp: 3\npp: 2\ndp: 1\n")
    assert str(error).count("tp 3 does not divide") == 1


def test_a_short_plan_where_a_plan_is_expected(tmp_path: Path) -> None:
    """Commands take both forms."""
    path = tmp_path / "short.yaml"
    path.write_text("dp: 2\nmicro_batch: 4\nstages: [{pool: fast}]\n")
    assert load_plan(path, CLUSTER, MODEL) == plan(stage(0, 8), zero=0)


GRID = "target: torch\ntp: {rows: 2, columns: 2}\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("tp: 0\n", 1, "tp: expected a whole number from 1 to 1000, got 0"),
        ("tp: 1\nppp: 2\n", 2, "ppp: unknown key"),
        ("zero: 4\n", 1, "zero: expected a whole number from 0 to 3, got 4"),
        ("recompute: yes\n", 1, "recompute: expected one of: none, selective, full"),
        ("layers: []\n", 1, "layers: expected a list with at least 1 item, got a list of 0"),
        ("stages: [{poool: fast}]\n", 1, "stages[0].poool: unknown key"),
        ("dp: 2\ntarget: mega\n", 2, "target: unknown target 'mega'"),
        ("dp: 3\n", 1, "dp: the global batch 32 does not divide by dp 3 x micro_batch 1, dp 2 would do"),
        ("dp: 2\nmicro_batch: 3\n", 1, "dp 2 x micro_batch 3, no dp would do"),
        ("dp: 2\nmicro_batch: 5\n", 1, "dp: the global batch 32 does not divide by dp 2 x micro_batch 5"),
        ("dp: 32\n", 1, "dp: 32 replicas of 1 device, the cluster has room for 12 more"),
        ("tp: 16\n", None, "1 replica of 16 devices, the cluster has room for 0 more"),
        (GRID + "pp: 2\n", 3, "pp: grids train whole models, expected 1 stage, got 2"),
        (GRID + "stages: [{}, {}]\n", 3, "stages: grids train whole models, expected 1 stage, got 2"),
        (GRID + "dp: 1\nmicro_batch: 1\n", 4, "micro_batch: 2 rows do not divide 32 sequences"),
        (
            "dp: 8\nstages: [{pool: slow}]\n",
            2,
            "stages[0]: 8 replicas of 1 device, the pool slow has room for 4 more",
        ),
        (
            "dp: 2\nstages:\n  - pool: fats\n",
            3,
            'stages[0].pool: the cluster has no pool "fats", it has: slow, fast',
        ),
        ("dp: 2\npp: 3\nstages: [{pool: fast}]\n", 2, "pp: expected 1, the number of stages, got 3"),
        ("dp: 1\npp: 9\n", 2, "pp: 9 stages for 8 layers, expected at most one stage a layer"),
        ("dp: 2\npp: 2\nlayers: [4, 5]\n", 3, "layers: expected a sum of 8, the layers of m, got 9"),
        ("dp: 2\npp: 2\nlayers: [8]\n", 3, "layers: expected 2 numbers, one for each stage, got 1"),
        (
            "dp: 2\nstages:\n  - {layers: 4}\n  - {pool: fast}\n",
            4,
            "stages[1]: layers are given for some stages only",
        ),
        (
            "dp: 1\ntp: 2\npp: 2\ntarget: deepspeed\n",
            2,
            "tp: deepspeed divides layers over groups that know no stages, expected 1 in 2 stages, got 2",
        ),
        (
            "dp: 4\nzero: 2\nzero_plus: {secondary: 2}\ntarget: deepspeed\n",
            3,
            "zero_plus: it is a part of ZeRO 3, expected none with ZeRO 2",
        ),
        (
            "dp: 4\nzero: 3\nzero_plus: {secondary: 3}\ntarget: deepspeed\n",
            3,
            "zero_plus: expected a divisor of the 4 replicas of a stage",
        ),
        (
            "dp: 4\nzero: 3\nzero_plus: {int4_gradients: true}\ntarget: deepspeed\n",
            3,
            "gradients in four bits are added up among the replicas of a second copy first, expected secondary",
        ),
        (
            "dp: 4\nzero: 3\nzero_plus: {secondary: 2}\ntarget: torch\n",
            3,
            "zero_plus: torch has no ZeRO++, expected none",
        ),
        ("dp: 2\npp: 2\ninterleave: 5\n", 3, "interleave: interleave 5 needs at least as many layers"),
        ("dp: 2\npp: 2\nzero: 3\n", 3, "zero: megatron runs ZeRO 0, 1 in a pipeline, got 3"),
        ("dp: 2\nrecompute: selective\ntarget: deepspeed\n", 2, "recompute: deepspeed recomputes none, full"),
        (
            "replicas: [{pool: fast, count: 1, micro_batch: 1}]\ndp: 1\n",
            2,
            "dp: each of the replicas has its own count, expected no dp beside them",
        ),
        (
            "replicas: [{pool: fast, count: 1, micro_batch: 1}]\nmicro_batch: 2\n",
            2,
            "micro_batch: each of the replicas has its own micro_batch, expected no micro_batch beside them",
        ),
        (
            "pp: 2\nreplicas: [{pool: fast, count: 1, micro_batch: 1}]\n",
            2,
            "replicas: replicas are for plans without pipeline",
        ),
        (
            "replicas:\n  - {pool: fast, count: 1, micro_batch: 3}\n",
            2,
            "replicas[0]: the micro-batches add up to 3, which does not divide the global batch 32",
        ),
        (
            "replicas:\n  - {pool: fast, count: 1, micro_batch: 4, share: 32, steps: 4}\n",
            2,
            "replicas[0].share: 32 sequences in 4 steps of at most 4, expected from 4 to 16",
        ),
        (
            "replicas:\n  - {pool: x, count: 1, micro_batch: 4}\n",
            2,
            'replicas[0].pool: the cluster has no pool "x"',
        ),
        (
            "replicas:\n  - {pool: fast, count: 9, micro_batch: 1, share: 1}\n",
            None,
            "the shares add up to 9 sequences",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    """File, line, key and the rule."""
    error = error_of(tmp_path, text)
    assert message in error.message
    assert error.message.startswith(f"{tmp_path / 'short.yaml'}:{'' if line is None else f'{line}: '}")


def test_pools_that_cannot_talk(tmp_path: Path) -> None:
    """The stage that cannot be reached is named by its entry."""
    slow, fast = CLUSTER.pools
    apart = slow.model_copy(update={"nics": (nic("lonely"),)})
    fabrics = {**CLUSTER.fabrics, "lonely": CLUSTER.fabrics["ib"]}
    cluster = CLUSTER.model_copy(update={"pools": (apart, fast), "fabrics": fabrics})
    with pytest.raises(PlanError, match="cannot talk") as caught:
        short(tmp_path, "dp: 2\nstages:\n  - {pool: fast}\n  - {pool: slow}\n", cluster)
    assert "short.yaml:4: stages[1]: stage 1: the pools fast and slow cannot talk" in str(caught.value)
