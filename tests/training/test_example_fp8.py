"""Products in fp8, as the example makes them; test_hetplan_torch.py trains with them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from planner.cost.memory import activation_bytes_per_layer
from planner.job.batches import model_shape
from planner.model.spec import LoraSpec

torch = pytest.importorskip("torch")

from planner.training import example_fp8  # noqa: E402
from planner.training.example_fp8 import Fp8Linear, cast, fp8_product, use_fp8  # noqa: E402
from planner.training.example_model import Layer, Linear, shape_of  # noqa: E402
from tests.training.held import Held  # noqa: E402
from tests.training.test_memory import GPT, LLAMA, spec  # noqa: E402

RESOLUTION = {"forward": 0.04, "backward": 0.08}
"""Half of 2^-3 and of 2^-2 of an element, in the mean over many, of two factors."""


def far(found: Any, wanted: Any) -> float:
    """Distance over length."""
    return float((found - wanted).detach().float().norm() / wanted.detach().float().norm())


@pytest.mark.parametrize("rows", [(2, 16), (3, 7)], ids=["multiple", "odd"])
def test_products_and_gradients_are_within_the_formats(rows: tuple[int, ...]) -> None:
    """Of any number of rows, with a bias; not exact, which would be no fp8."""
    torch.manual_seed(0)
    exact = Linear(64, 48).to(torch.bfloat16)
    torch.nn.init.normal_(exact.bias)
    coarse = deepcopy(exact)
    use_fp8(coarse)
    assert isinstance(coarse, Fp8Linear)
    inputs = [torch.randn(*rows, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(2)]
    with torch.no_grad():
        inputs[1].copy_(inputs[0])
    outputs = [layer(each) for layer, each in zip((coarse, exact), inputs, strict=True)]
    gradient = torch.randn_like(outputs[0])
    for each in outputs:
        each.backward(gradient)
    assert 1e-3 < far(outputs[0], outputs[1]) < RESOLUTION["forward"]
    assert 1e-3 < far(inputs[0].grad, inputs[1].grad) < RESOLUTION["backward"]
    assert 1e-3 < far(coarse.weight.grad, exact.weight.grad) < RESOLUTION["backward"]
    assert torch.equal(coarse.bias.grad, exact.bias.grad)


def test_frozen_weights_and_inputs_without_gradients() -> None:
    """Whatever needs no gradient gets none, and of a frozen weight no input is kept."""
    layer = Fp8Linear(32, 32).to(torch.bfloat16).requires_grad_(False)
    inputs = torch.randn(16, 32, dtype=torch.bfloat16, requires_grad=True)
    with Held(inputs, layer.weight) as held:
        outputs = fp8_product(inputs, layer.weight)
    scales = 2 * 4
    assert held.now == outputs.nbytes + scales
    outputs.sum().backward()
    assert inputs.grad is not None
    assert layer.weight.grad is None
    first = Fp8Linear(32, 32).to(torch.bfloat16)
    first(inputs.detach()).sum().backward()
    assert first.weight.grad is not None


def test_zeros_stay_zeros() -> None:
    """A scale of nothing divides by nothing."""
    zeros = torch.zeros(16, 32, dtype=torch.bfloat16)
    rows, columns, scale = cast(zeros, None, torch.float8_e4m3fn, True, True)
    assert scale > 0
    assert not rows.float().any()
    assert not columns.float().any()


def test_what_stays_in_bf16() -> None:
    """Adapters, whose rank may be any, and sizes that tensor cores do not take."""
    made = spec(**LLAMA).trained_with(lora=LoraSpec(rank=16))
    layer = Layer(shape_of(model_shape(made)))
    use_fp8(layer)
    names = {name for name, part in layer.named_modules() if isinstance(part, Fp8Linear)}
    assert names == {f"{part}.base" for part in ("query", "key_value", "output", "gate", "up", "down")}
    odd = torch.nn.Sequential(Linear(40, 64), Linear(64, 40), Linear(64, 64))
    use_fp8(odd)
    assert [isinstance(part, Fp8Linear) for part in odd] == [False, False, True]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("changes", [LLAMA, GPT], ids=["gated", "plain"])
def test_activations_are_kept_in_bf16(changes: dict[str, Any], recompute: Any) -> None:
    """Products share their inputs as ever; with selective recomputation every second one is kept, as a plan counts."""
    made = spec(**changes).trained_with(precision="fp8")
    layer = Layer(shape_of(model_shape(made)), recompute).to(torch.bfloat16)
    use_fp8(layer)
    hidden = torch.randn(2, 128, made.hidden, dtype=torch.bfloat16, requires_grad=True)
    with Held(hidden, *layer.parameters()) as held:
        output = layer(hidden)
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute=recompute, sequence_parallel=False, eager=True
    )
    assert held.now == pytest.approx(formula, rel=0.06)
    output.sum().backward()


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Compiles on processors too."""
    torch._dynamo.reset()
    example_fp8._fastest.cache_clear()
    monkeypatch.setattr(example_fp8, "COMPILED_ON", ("cpu",))
    yield monkeypatch
    example_fp8._fastest.cache_clear()
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what TorchInductor imports
def test_compiled_casts_are_the_same(
    compiling: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the bit, of a whole layer, selective recomputation included."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        layer = Layer(shape_of(model_shape(spec(**LLAMA))), "selective").to(torch.bfloat16)
        use_fp8(layer)
        hidden = torch.randn(2, 128, 256, dtype=torch.bfloat16, requires_grad=True)
        outputs = layer(hidden)
        outputs.sum().backward()
        found.append([outputs, hidden.grad, *(each.grad for each in layer.parameters())])
        assert (example_fp8._fastest("cpu") is cast) == bool(found[1:])
        compiling.undo()
        example_fp8._fastest.cache_clear()
    assert capsys.readouterr().err == ""
    assert all(map(torch.equal, *found))


def test_what_cannot_be_compiled_is_said(
    compiling: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, and products go on."""

    def refuse(function: Any, **_: Any) -> Any:
        raise RuntimeError("no compiler\n\nhints")

    compiling.setattr(torch, "compile", refuse)
    layer = Fp8Linear(32, 32)
    for _ in range(2):
        layer(torch.randn(16, 32, requires_grad=True)).sum().backward()
    error = capsys.readouterr().err
    assert error == (
        "casts to fp8: not compiled, so that they take many times as long: RuntimeError: no compiler\n"
    )
