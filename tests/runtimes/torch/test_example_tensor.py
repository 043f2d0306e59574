"""What the ranks of a replica that divide a layer say to each other; test_hetplan_torch.py has them train."""

from __future__ import annotations

import pytest

from planner.job.batches import model_shape
from tests.worlds import model

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402

from planner.runtimes.torch.example_tensor import split  # noqa: E402
from planner.training.example_model import Kind, Layer, shape_of  # noqa: E402


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(("norms", "behind"), [(2, 2), (1, 1)])
def test_products_behind_a_norm_share_a_sum(norms: int, behind: int) -> None:
    """Forward one after attention and one after the feed-forward, backward one for each norm, as plans are priced."""
    spec = model(1, gated_mlp=True, kv_heads=2, layer_norms=norms)
    layer = Layer(shape_of(model_shape(spec)))
    split(layer, init_device_mesh("cpu", (2,)))
    hidden = torch.randn(1, 8, spec.hidden, requires_grad=True)
    with CommDebugMode() as forward:
        outputs = layer(hidden)
    with CommDebugMode() as backward:
        outputs.sum().backward()
    assert (forward.get_total_counts(), backward.get_total_counts()) == (2, behind)
    assert hidden.grad is not None


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(
    "kind", [("none", "dense", ()), ("attention", "none", ()), ("attention", "dense", ())]
)
def test_layers_without_a_part_sum_the_others(kind: Kind) -> None:
    """Of attention and feed-forward a layer may have one alone, with norms of queries and keys where it attends."""
    spec = model(1, gated_mlp=True, kv_heads=2, qk_norm=True)
    layer = Layer(shape_of(model_shape(spec)), kind=kind)
    split(layer, init_device_mesh("cpu", (2,)))
    hidden = torch.randn(1, 8, spec.hidden, requires_grad=True)
    with CommDebugMode() as forward:
        outputs = layer(hidden)
    outputs.sum().backward()
    assert forward.get_total_counts() == 2 - kind.count("none")
    assert all(parameter.grad is not None for parameter in layer.parameters())
