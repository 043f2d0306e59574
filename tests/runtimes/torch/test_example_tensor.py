"""What the ranks of a replica that divide a layer say to each other, and keep; test_hetplan_torch.py has them train."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.compute import dealt_tensors
from planner.cost.memory import activation_bytes_per_layer
from planner.job.batches import model_shape
from planner.model.spec import LoraSpec
from tests.quick import first
from tests.worlds import model

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402

from planner.runtimes.torch.example_tensor import split  # noqa: E402
from planner.training.example_model import Kind, Layer, shape_of  # noqa: E402
from tests.training.held import Held  # noqa: E402
from tests.training.test_memory import GPT, LLAMA, TOKENS  # noqa: E402
from tests.training.test_memory import spec as of_128_tokens  # noqa: E402


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
@pytest.mark.parametrize("norms", [1, 2, 4])
def test_tokens_come_together_for_products_alone(norms: int) -> None:
    """A gather behind each norm and a scatter behind each half of a layer, and the other way round in the backward."""
    spec = model(1, gated_mlp=True, kv_heads=2, layer_norms=norms)
    layer = Layer(shape_of(model_shape(spec)))
    split(layer, init_device_mesh("cpu", (2,)), by_tokens=True)
    hidden = torch.randn(1, 8 // 2, spec.hidden, requires_grad=True)
    with CommDebugMode() as forward:
        outputs = layer(hidden)
    with CommDebugMode() as backward:
        outputs.sum().backward()
    assert outputs.shape == hidden.shape
    gathers, scatters = torch.ops.c10d._allgather_base_, torch.ops.c10d._reduce_scatter_base_
    ahead = min(2, norms)
    assert forward.get_comm_counts() == {gathers: ahead, scatters: 2}
    assert backward.get_comm_counts() == {gathers: 2, scatters: ahead}


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"gated_mlp": True, "kv_heads": 2, "qkv_bias": False, "output_bias": False, "mlp_bias": False},
        {"qk_norm": True, "norm": "rms", "layer_norms": 4},
        {"lora": LoraSpec(rank=4), "gated_mlp": True},
        {"freeze": ("mlp",)},
    ],
    ids=["gated", "norms", "adapters", "frozen"],
)
def test_what_is_dealt_is_what_a_host_is_priced_for(changes: dict[str, Any], by_tokens: bool) -> None:
    """Matrices, biases, and norms that see a part of the heads or of the tokens."""
    spec = model(1, **changes)
    layer = Layer(shape_of(model_shape(spec)))
    split(layer, init_device_mesh("cpu", (2,)), by_tokens=by_tokens)
    dealt = [each for each in layer.parameters() if isinstance(each, DTensor)]
    trained = [each for each in dealt if each.requires_grad]
    assert dealt_tensors(spec, split=by_tokens) == (len(dealt), len(trained))


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("recompute", first(2, ["none", "selective", "full"]))
@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("changes", [LLAMA, GPT], ids=["gated", "plain"])
def test_activations_of_half_a_layer(changes: dict[str, Any], by_tokens: bool, recompute: Any) -> None:
    """Hidden states are divided by tokens, but for those that have come together for a product."""
    made = of_128_tokens(**changes)
    layer = Layer(shape_of(model_shape(made)), recompute).to(torch.bfloat16)
    split(layer, init_device_mesh("cpu", (2,)), by_tokens=by_tokens)
    length = TOKENS // 2 // (1 + by_tokens)
    hidden = torch.randn(2, length, made.hidden, dtype=torch.bfloat16, requires_grad=True)
    with Held(hidden, *layer.parameters()) as held:
        output = layer(hidden)
    assert output.requires_grad
    formula = activation_bytes_per_layer(
        made,
        tp=2,
        micro_batch=2,
        recompute=recompute,
        sequence_parallel=by_tokens,
        gathered=by_tokens,
        eager=True,
    )
    assert held.now == pytest.approx(formula, rel=0.06)


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
