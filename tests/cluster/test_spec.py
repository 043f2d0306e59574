"""The cluster as a value: compact to write, equal when read back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import ClusterSpec, FabricSpec, NicSpec, PoolSpec

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,6}", fullmatch=True)
POSITIVE = st.floats(min_value=1e-3, max_value=1e6)
LINK = IntraNodeSpec(bandwidth_gBps=300)


def gpu(name: str, reserve_gib: float | None = None) -> GpuSpec:
    """A device type."""
    return GpuSpec(
        name=name, memory_gib=80, memory_bandwidth_gBps=2000, tflops={"bf16": 312}, reserve_gib=reserve_gib
    )


@st.composite
def pools(draw: st.DrawFn, kinds: list[str]) -> PoolSpec:
    """Any pool of these device types."""
    return PoolSpec(
        name=draw(NAMES),
        devices=tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=10))),
        hosts=tuple(draw(st.lists(NAMES, min_size=1, max_size=12))),
        intra_node=IntraNodeSpec(bandwidth_gBps=draw(POSITIVE), shared=draw(st.booleans())),
        nics=tuple(
            NicSpec(fabric="f", bandwidth_gbps=draw(POSITIVE)) for _ in range(draw(st.integers(0, 2)))
        ),
        reserve_gib=draw(st.none() | POSITIVE),
    )


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    """Any cluster."""
    kinds = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    return ClusterSpec(
        name=draw(NAMES),
        gpus={kind: gpu(kind) for kind in kinds},
        pools=tuple(draw(st.lists(pools(kinds), min_size=1, max_size=3))),
        fabrics={"f": FabricSpec(kind="roce", latency_us=draw(POSITIVE))},
        reserve_gib=draw(POSITIVE),
    )


@given(clusters())
def test_reading_undoes_writing(cluster: ClusterSpec) -> None:
    """As JSON text, whatever the hosts and devices."""
    assert ClusterSpec.model_validate_json(cluster.model_dump_json()) == cluster


@given(clusters())
def test_reading_undoes_writing_of_plain_data(cluster: ClusterSpec) -> None:
    """As the plan file embeds it: without absent values."""
    text = json.dumps(cluster.model_dump(mode="json", exclude_none=True))
    assert ClusterSpec.model_validate_json(text) == cluster


def test_hosts_and_devices_are_written_short() -> None:
    """512 nodes of 8 devices take a line each."""
    hosts = tuple(f"a-{index:03d}" for index in range(512))
    pool = PoolSpec(name="a", devices=("A",) * 8, hosts=hosts, intra_node=LINK)
    written = pool.model_dump(mode="json")
    assert (written["hosts"], written["devices"]) == (["a-[000-511]"], ["8 x A"])


def test_values_keep_their_full_form_in_python() -> None:
    """Only files are short."""
    pool = PoolSpec(name="a", devices=("A", "A"), hosts=("h1", "h2"), intra_node=LINK)
    assert pool.model_dump()["hosts"] == ("h1", "h2")


def test_a_broken_host_is_refused() -> None:
    """Also when a plan file was edited."""
    with pytest.raises(ValidationError, match="not a host name"):
        PoolSpec(name="a", devices=("A",), hosts=("a b",), intra_node=LINK)


def test_specs_are_immutable() -> None:
    """A spec can be shared."""
    with pytest.raises(ValidationError, match="frozen"):
        gpu("A").memory_gib = 1


@pytest.mark.parametrize(
    ("of_pool", "of_kind", "expected"),
    [(None, None, 2.0), (None, 3.0, 3.0), (0.5, 3.0, 0.5), (0.0, None, 0.0)],
)
def test_the_nearest_reserve_counts(of_pool: float | None, of_kind: float | None, expected: float) -> None:
    """The pool's, else the kind's, else the cluster's."""
    pool = PoolSpec(name="a", devices=("A",), hosts=("h",), intra_node=LINK, reserve_gib=of_pool)
    cluster = ClusterSpec(name="c", gpus={"A": gpu("A", of_kind)}, pools=(pool,))
    assert cluster.reserve_of(pool, "A") == expected
