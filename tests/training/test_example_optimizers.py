"""Eight-bit moments: their codes, how near they come to AdamW, what they move, and that checkpoints keep them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._inductor import metrics  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from planner.cost.compute import PLAIN_UPDATE_BYTES  # noqa: E402
from planner.training import example_optimizers  # noqa: E402
from planner.training.example_optimizers import (  # noqa: E402
    BLOCK,
    EightBitAdamW,
    Lion,
    NarrowAdamW,
    OnLocals,
    WideAdamW,
    codes,
    in_blocks,
    seed_of,
)
from tests.quick import every  # noqa: E402

WIDE = 700
"""Elements of a weight: two whole blocks and a part of one."""


def problem(make: Any, steps: int) -> tuple[list[float], Any, Any]:
    """Losses of a small regression, the optimizer and the weight."""
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(256, WIDE, generator=generator) / WIDE**0.5
    wanted = torch.randn(256, generator=generator)
    weight = torch.nn.Parameter(torch.zeros(WIDE))
    optimizer, losses = make([weight], lr=0.03), []
    for _ in range(steps):
        losses.append(step(optimizer, weight, given, wanted))
    return losses, optimizer, (weight, given, wanted)


def step(optimizer: Any, weight: Any, given: Any, wanted: Any) -> float:
    """One of them."""
    optimizer.zero_grad()
    loss = (given @ weight - wanted).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize("signed", [True, False])
def test_codes(signed: bool) -> None:
    """256 of them in rising order; with a sign they mirror each other but for one."""
    found = codes(signed, torch.device("cpu"))
    assert found.shape == (256,)
    assert bool((found.diff() > 0).all())
    assert found[-1] == 1.0
    assert 0.0 in found
    assert torch.equal(found[:127], -found[128:255].flip(0)) == signed


@pytest.mark.parametrize("name", ["first", "second"])
def test_moments_come_back_near_and_then_the_same(name: str) -> None:
    """Within half a step of the codes, which is 0.7 % of the largest of a block; the largest itself to the bit."""
    moment = torch.randn(WIDE, generator=torch.Generator().manual_seed(0))
    moment = moment if name == "first" else moment.square()
    kept = (optimizer := EightBitAdamW([moment], 0.1)).packed(name, moment)
    assert [each.shape for each in kept] == [(3, BLOCK), (3, 1)]
    back = optimizer.unpacked(name, kept, moment)
    for block, again in zip(moment.split(BLOCK), back.split(BLOCK), strict=True):
        most = block.abs().argmax()
        assert again[most] == block[most]
        assert float((again - block).abs().max()) <= 0.008 * float(block.abs().max())
    assert all(map(torch.equal, optimizer.packed(name, back), kept))


def test_rounding_is_right_in_the_mean() -> None:
    """A second moment falls by a thousandth a step though no code is so near."""
    moment = torch.full((16 * BLOCK,), 0.5)
    moment[::BLOCK] = 1.0
    optimizer = EightBitAdamW([moment], 0.1)
    (kept,) = optimizer.cut("second", optimizer.packed("second", moment))
    others = in_blocks(moment) < 1.0
    for step in range(400):
        values = optimizer.read(kept)
        values[others] *= 0.999
        optimizer.write("second", kept, values, seed_of(step))
    assert float(optimizer.read(kept)[others].mean()) == pytest.approx(0.5 * 0.999**400, rel=0.01)


def test_a_zero_gradient_makes_no_leap() -> None:
    """A second moment that is nothing beside the largest is kept above zero."""
    weight = torch.nn.Parameter(torch.zeros(BLOCK))
    optimizer = EightBitAdamW([weight], lr=0.1)
    for _ in range(20):
        weight.grad = torch.full((BLOCK,), 1e-6)
        weight.grad[0] = 1.0
        optimizer.step()
    assert float(weight.detach().abs().max()) < 0.1 * 20 * 1.1


def test_as_near_to_adamw_as_bf16() -> None:
    """A hundred steps of a regression."""
    usual = problem(partial(torch.optim.AdamW, weight_decay=0.01), 100)[0]
    for kind in (NarrowAdamW, EightBitAdamW):
        found = problem(kind, 100)[0]
        assert found == pytest.approx(usual, abs=0.01 * usual[0])
        assert found != usual


@pytest.mark.parametrize("kind", [Lion, NarrowAdamW, EightBitAdamW])
def test_a_checkpoint_keeps_the_moments(kind: Any) -> None:
    """In the shape of the weight, as all plans share it; what goes on takes the same steps, in as many bytes."""
    _, optimizer, (weight, *data) = problem(kind, 5)
    saved = deepcopy(optimizer.state_dict())
    moments = [value for value in saved["state"][0].values() if isinstance(value, torch.Tensor)]
    assert all(each.shape == weight.shape for each in moments)
    other = torch.nn.Parameter(weight.detach().clone())
    resumed = kind([other], lr=0.03)
    resumed.load_state_dict(saved)
    before, after = optimizer.state[weight], resumed.state[other]
    assert {name: getattr(each, "dtype", None) for name, each in before.items()} == {
        name: getattr(each, "dtype", None) for name, each in after.items()
    }
    assert [step(resumed, other, *data) for _ in range(3)] == [
        step(optimizer, weight, *data) for _ in range(3)
    ]


@pytest.mark.parametrize(
    ("kind", "priced"),
    [(NarrowAdamW, ("adamw", "bf16")), (EightBitAdamW, ("adamw", "int8")), (Lion, ("lion", "fp32"))],
)
def test_what_an_update_moves_uncompiled(kind: Any, priced: tuple[str, str]) -> None:
    """All that its operations read and write of an element, as the price of a step counts it on old devices."""
    size, moved = 1 << 16, 0

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal moved
            found = function(*args, **(kwargs or {}))
            if not function.is_view:
                tensors = [each for each in tree_leaves((args, found)) if isinstance(each, torch.Tensor)]
                moved += sum(each.nbytes for each in tensors if each.numel() >= size // BLOCK)
            return found

    weight = torch.nn.Parameter(torch.randn(size))
    weight.grad = torch.randn_like(weight)
    optimizer = kind([weight], 0.1)
    optimizer.step()
    with Counting():
        optimizer.step()
    assert moved / size - weight.itemsize == pytest.approx(PLAIN_UPDATE_BYTES[priced], rel=0.03)


SIZES = ((64, BLOCK), (WIDE,), (5,), (1,), (0,), (3, WIDE), (BLOCK,))
"""Of weights: whole blocks and parts of them, one element, none."""
KINDS = [
    (Lion, torch.float32),
    (NarrowAdamW, torch.float32),
    (EightBitAdamW, torch.float32),
    (WideAdamW, torch.bfloat16),
    (NarrowAdamW, torch.bfloat16),
    (EightBitAdamW, torch.bfloat16),
]


def named(value: Any) -> str:
    """Of a class or a number format."""
    return getattr(value, "__name__", str(value))


def updated(kind: Any, form: Any, steps: int = 4) -> tuple[list[Any], list[Any]]:
    """Weights after some steps with a rate of its own each, and moments."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size, generator=generator).to(form)) for size in SIZES]
    optimizer = kind(weights, lr=0.03)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.03 / (step + 1)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).mul(10.0**-step).to(form)
        optimizer.step()
    moments = [[optimizer.state[weight][name] for name in kind.moments] for weight in weights]
    return [each.detach() for each in weights], tree_leaves(moments)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Compiles on processors too."""
    torch._dynamo.reset()
    monkeypatch.setattr(example_optimizers, "COMPILED_ON", ("cpu",))
    yield monkeypatch
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what TorchInductor imports
@pytest.mark.parametrize(("kind", "form"), KINDS, ids=named)
def test_a_compiled_update_is_the_same(
    kind: Any, form: Any, compiling: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the bit, but for weights in fp32 behind the square roots of torch on processors, which are not to the nearest;
    in one kernel where no code is looked up, for which processors have none."""
    metrics.reset()
    weights, moments = updated(kind, form)
    assert capsys.readouterr().err == ""
    compilations = 2
    assert kind is EightBitAdamW or metrics.generated_kernel_count == compilations
    compiling.undo()
    plain_weights, plain_moments = updated(kind, form)
    assert all(map(torch.equal, moments, plain_moments))
    rounding = 1e-6 if kind is not Lion and form == torch.float32 else 0.0
    for found, wanted in zip(weights, plain_weights, strict=True):
        assert torch.allclose(found, wanted, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("kind", "form"), every(3, KINDS), ids=named)
def test_compiled_once(kind: Any, form: Any, compiling: pytest.MonkeyPatch) -> None:
    """For all steps, rates and sizes, and once more for one element or block."""
    graphs = []

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiling.setattr(example_optimizers, "COMPILER", {"backend": compiler})
    weights, moments = updated(kind, form)
    assert len(graphs) == 2
    compiling.undo()
    plain_weights, plain_moments = updated(kind, form)
    assert all(map(torch.equal, (*weights, *moments), (*plain_weights, *plain_moments)))


@pytest.mark.parametrize(("kind", "form"), every(2, KINDS), ids=named)
def test_uncompiled_where_no_compiler_works(
    kind: Any, form: Any, compiling: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so, and no update is lost or made twice, though the first has run in part."""
    tried = 0

    def compiler(graph: Any, inputs: Any) -> Any:
        nonlocal tried
        tried += 1

        def run(*given: Any) -> Any:
            for each in given:
                if isinstance(each, torch.Tensor) and each.is_floating_point():
                    each.zero_()
            raise OSError("no kernel image\nfor this device\n\nSee elsewhere")

        return run

    compiling.setattr(example_optimizers, "COMPILER", {"backend": compiler})
    weights, moments = updated(kind, form)
    said = "not compiled, so that updates take many times as long: OSError: no kernel image for this device"
    assert capsys.readouterr().err == f"{kind.__name__}: {said}\n"
    assert tried == 1
    compiling.undo()
    plain_weights, plain_moments = updated(kind, form)
    assert all(map(torch.equal, (*weights, *moments), (*plain_weights, *plain_moments)))


@pytest.mark.parametrize("kind", [NarrowAdamW, EightBitAdamW])
def test_a_long_training(kind: Any) -> None:
    """Seeds of the noise stay within 32 bits."""
    weight = torch.nn.Parameter(torch.zeros(WIDE))
    weight.grad = torch.ones(WIDE)
    optimizer = kind([weight], lr=0.1)
    optimizer.step()
    optimizer.state[weight]["step"] = 1_000_000
    optimizer.step()
    assert bool(weight.isfinite().all())


def test_muon_updates_each_expert_on_its_own() -> None:
    """It takes matrices alone; experts of a layer are in one tensor."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.nn.Parameter(torch.randn(3, 8, 4, generator=generator))
    gradient = torch.randn(3, 8, 4, generator=generator)
    make = partial(torch.optim.Muon, lr=0.1)
    each = [torch.nn.Parameter(part) for part in weight.detach().clone()]
    for part, own in zip(each, gradient, strict=True):
        part.grad = own.clone()
    make(each).step()
    optimizer, weight.grad = OnLocals([weight], make, matrices=True), gradient
    optimizer.step()
    assert torch.equal(weight, torch.stack(each))
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(weight, torch.stack(each))
