"""What exchanges between islands cost beside their network: measured with the runtime's own code, and priced so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.values import ASSUMED, Calibration
from planner.cost import islands
from planner.cost.estimate import estimate
from planner.cost.measured_curves import EXCHANGES, ExchangeCurves
from planner.plan.values import Plan, Sync
from tests.worlds import cluster, gpt, group, model, nic, plan, pool

torch = pytest.importorskip("torch")

from planner.measure.backend import open_backend  # noqa: E402
from planner.measure.kernels import exchange_cases  # noqa: E402
from planner.measure.session import Request, Session  # noqa: E402
from planner.runtimes.torch import hetplan_exchange  # noqa: E402

MODEL = gpt(4, 512, 8, global_batch=16)
TWO = cluster(
    pool("near", "A100", 1, (nic("eth", gbps=1.0),), per_node=1),
    pool("far", "V100", 1, (nic("eth"),), per_node=1),
)


@pytest.mark.usefixtures("quick")
def test_every_way_is_measured_once(tmp_path: object) -> None:
    """Beside kernels and layers, scaled to the elements of a model; a file keeps them."""
    small = model(8, layers=2, precision="fp32", dropout=False)
    kept: list[Calibration] = []
    cpu = open_backend("cpu", "a-cpu")
    request = Request(model=small, largest=1, zeros=(), exchange=hetplan_exchange)
    session = Session(cpu, request, ASSUMED, kept.append, lambda event: None)
    session._exchanges()
    points = kept[-1].kernel_points
    assert {point.kernel for point in points} == {*EXCHANGES}
    assert len(points) == len([*exchange_cases(small)])
    assert all(point.seconds > 0 for point in points)
    assert not torch.distributed.is_initialized()
    curves = ExchangeCurves(Calibration(kernel_points=points))
    elements = points[0].sizes[-1]
    for sync in (
        Sync(rank=4),
        Sync(ratio=0.01),
        Sync(format="int8"),
        Sync(every=8),
        Sync(every=8, method="average"),
    ):
        once = curves.seconds("a-cpu", sync, elements)
        assert once is not None
        assert curves.seconds("a-cpu", sync, 3 * elements) == pytest.approx(3 * once)
        assert curves.seconds("other", sync, elements) is None
    path = tmp_path / "c.yaml"  # type: ignore[operator]
    save_calibration(kept[-1], path)
    assert {point.kernel for point in load_calibration(path).kernel_points} == {*EXCHANGES}
    assert session.total >= len(points)


def exchanging(sync: Sync) -> Plan:
    """A device at each site."""
    groups = tuple(group(name, gpu, share=8, steps=8) for name, gpu in (("near", "A100"), ("far", "V100")))
    return replace(plan("torch", 0, [4], [groups]), sync=replace(sync, islands=(("near",), ("far",))))


@pytest.mark.parametrize(("sync", "kernel"), [(Sync(rank=4), "factors"), (Sync(ratio=0.01), "largest")])
def test_what_was_measured_is_priced(sync: Sync, kernel: str) -> None:
    """In place of assumed streams and passes: a second more on one device is a second more of the step."""
    from planner.calibration.values import KernelPoint

    elements = 2**20
    setting = sync.rank or round((sync.ratio or 0.0) * elements)

    def measured(seconds: float) -> Calibration:
        points = tuple(
            KernelPoint(
                gpu=gpu,
                kernel=kernel,  # type: ignore[arg-type]
                precision="fp32",
                shape=f"{setting}x{elements}",
                flops=0.0,
                moved_bytes=0.0,
                seconds=seconds,
            )
            for gpu in ("A100", "V100")
        )
        return replace(ASSUMED, kernel_points=points)

    one, two, assumed = (
        estimate(exchanging(sync), TWO, MODEL, each).step_seconds
        for each in (measured(0.1), measured(0.2), ASSUMED)
    )
    assert two - one == pytest.approx(0.1 * MODEL.parameters / elements, rel=1e-3)
    assert one > assumed


def test_an_island_is_told_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours of one type, no more than fit, a large tensor by itself; as large as they are priced."""
    assert (islands.BUCKET, islands.BLOCK) == (hetplan_exchange.BUCKET, hetplan_exchange.BLOCK)
    monkeypatch.setattr(hetplan_exchange, "BUCKET", 10)
    sizes = (4, 6, 1, 20, 3, 3)
    tensors = [torch.zeros(size) for size in sizes[:-1]] + [torch.zeros(3, dtype=torch.bfloat16)]
    found = [[each.numel() for each in bucket] for bucket in hetplan_exchange._buckets(tensors)]
    assert found == [[4, 6], [1], [20], [3], [3]]
