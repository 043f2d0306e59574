"""What differs between two inputs is named by field, with both values."""

from __future__ import annotations

from planner.cluster.spec import ClusterSpec
from planner.plan.file import cluster_differences, differences_text, model_differences
from tests.worlds import GPUS, cluster, model, nic, pool

BIG = pool("big", ("A100",) * 4, 2, (nic("eth", "ens1"),))
SMALL = pool("small", ("T4",) * 2, 1, (nic("eth", "eth0"),))


def where(*pools: object) -> ClusterSpec:
    """A cluster of these pools that defines a T4 whether they have one or not."""
    return cluster(*pools).model_copy(update={"gpus": GPUS})  # type: ignore[arg-type]


def test_equal_inputs_do_not_differ() -> None:
    """The order of pools is no difference."""
    assert cluster_differences(where(BIG, SMALL), where(SMALL, BIG)) == ()
    assert model_differences(model(8), model(8)) == ()


def test_fields_are_named_by_pool() -> None:
    """Hosts that are missing, and a card with another name."""
    fewer = BIG.model_copy(update={"hosts": ("big-0",), "nics": (nic("eth", "ens2"),)})
    found = cluster_differences(where(BIG, SMALL), where(fewer, SMALL))
    assert differences_text(found, "c.yaml") == (
        "pools[big].hosts is ['big-[0-1]'] in the plan, ['big-0'] in c.yaml; "
        "pools[big].nics[0].interface is ens1 in the plan, ens2 in c.yaml"
    )


def test_absent_parts() -> None:
    """A pool that only one side has, and a field that only one side sets; long lists are cut."""
    found = cluster_differences(where(BIG, SMALL), where(BIG))
    assert [entry.field for entry in found] == ["pools[small]"]
    assert differences_text(found, "c.yaml").endswith("... in the plan, absent in c.yaml")
    priced = BIG.model_copy(update={"price_per_gpu_hour": 2.0})
    found = cluster_differences(where(BIG), where(priced))
    assert (
        differences_text(found, "c.yaml")
        == "pools[big].price_per_gpu_hour is absent in the plan, 2.0 in c.yaml"
    )


def test_first_differences_only() -> None:
    """A wholly different model is told by its first fields."""
    found = model_differences(model(8), model(16, layers=8, name="other", hidden=64))
    text = differences_text(found, "m.yaml")
    assert text.startswith(
        "name is tiny in the plan, other in m.yaml; layers is 4 in the plan, 8 in m.yaml; "
    )
    assert text.endswith("; and 2 more")
    assert found[-1].field == "training.global_batch"
