"""A limit on the power of devices: their clock, their power and their error bar."""

from __future__ import annotations

from math import hypot, log
from pathlib import Path

import pytest

from planner.calibration.file import shipped
from planner.cluster.file import load_cluster
from planner.cluster.topology import CLOCK_DEVIATION, Topology
from planner.cost.estimate import Estimator
from planner.errors import SpecError
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests.worlds import gpt

POOLS = """\
name: lab
gpus:
  slow: {{memory_gib: 80, memory_bandwidth_gBps: 2000, tflops: {{bf16: 300}}, {device}}}
pools:
  - name: whole
    gpu: H100-SXM-80GB
    nodes: 1
    gpus_per_node: 2
    intra_node: nvlink4
    nics: [{{fabric: ib, bandwidth_gbps: 200}}]
  - name: limited
    gpu: {gpu}
    nodes: 1
    gpus_per_node: 2
    intra_node: nvlink4
    nics: [{{fabric: ib, bandwidth_gbps: 200}}]
    {pool}
fabrics:
  ib: {{kind: infiniband}}
"""


def written(
    folder: Path, *, gpu: str = "H100-SXM-80GB", pool: str = "", device: str = "tdp_watts: 400"
) -> Path:
    """A cluster file with a limit on a pool or on a device type."""
    path = folder / "cluster.yaml"
    path.write_text(POOLS.format(gpu=gpu, pool=pool, device=device), encoding="utf-8")
    return path


def test_the_clock_falls_with_the_cube_root_of_the_power(tmp_path: Path) -> None:
    """In every format; memory and links stay as they are, and so does what a limit above the board power leaves."""
    cluster = load_cluster(written(tmp_path, pool="power_limit_watts: 350"))
    whole, limited = Topology(cluster).device_types
    for name, rate in whole.peak_flops.items():
        assert limited.peak_flops[name] == pytest.approx(rate * 0.5 ** (1 / 3))
    assert limited.memory_bytes_per_second == whole.memory_bytes_per_second
    assert limited.clock_spread == pytest.approx(CLOCK_DEVIATION * log(2))
    assert cluster.watts_of(cluster.pools[1], "H100-SXM-80GB") == 350
    above = load_cluster(written(tmp_path, pool="power_limit_watts: 900"))
    assert Topology(above).device_types[1].peak_flops == whole.peak_flops
    assert above.watts_of(above.pools[1], "H100-SXM-80GB") == 700


def test_a_device_type_may_have_a_limit_and_a_pool_its_own(tmp_path: Path) -> None:
    """The pool's wins."""
    device = "tdp_watts: 400, power_limit_watts: 200"
    cluster = load_cluster(written(tmp_path, gpu="slow", device=device))
    assert cluster.power_share_of(cluster.pools[1], "slow") == 0.5
    cluster = load_cluster(written(tmp_path, gpu="slow", device=device, pool="power_limit_watts: 300"))
    assert cluster.power_share_of(cluster.pools[1], "slow") == 0.75


def test_a_limited_device_takes_longer_and_has_a_wider_bar(tmp_path: Path) -> None:
    """Of the same plan on either pool."""
    estimator = Estimator(load_cluster(written(tmp_path, pool="power_limit_watts: 350")), gpt(), shipped())
    found = []
    for pool in ("whole", "limited"):
        group = ReplicaGroup(
            pool=pool, gpu="H100-SXM-80GB", tp=1, count=2, local_batch=32, accumulation_steps=16
        )
        stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="none")
        found.append(estimator.estimate(Plan(target="megatron", zero=1, stages=(stage,))))
    whole, limited = found
    assert 1.03 < limited.step_seconds / whole.step_seconds < 2 ** (1 / 3)
    assert limited.spread == pytest.approx(hypot(whole.spread, CLOCK_DEVIATION * log(2)))


@pytest.mark.parametrize(
    ("device", "pool", "where"),
    [
        ("power_limit_watts: 200", "", "gpus.slow.tdp_watts: missing, power_limit_watts is a part of it"),
        (
            "multiprocessors: 100",
            "power_limit_watts: 200",
            "pools[1].power_limit_watts: the board power of a device is unknown, of which the limit is a part",
        ),
        ("tdp_watts: 400", "power_limit_watts: 0", "pools[1].power_limit_watts"),
    ],
)
def test_a_limit_needs_the_board_power(tmp_path: Path, device: str, pool: str, where: str) -> None:
    """Named with file, line and key."""
    with pytest.raises(SpecError, match=r"cluster\.yaml:") as error:
        load_cluster(written(tmp_path, gpu="slow", device=device, pool=pool))
    assert where in str(error.value)
