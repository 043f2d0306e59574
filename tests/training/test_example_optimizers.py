"""Eight-bit moments: their codes, how near they come to AdamW, what they move, and that checkpoints keep them."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from planner.cost.compute import EAGER_UPDATE_BYTES  # noqa: E402
from planner.training.example_optimizers import (  # noqa: E402
    BLOCK,
    EightBitAdamW,
    Lion,
    NarrowAdamW,
    WideAdamW,
    codes,
)

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
    assert kept.shape == (3, BLOCK + 4)
    back = optimizer.unpacked(name, kept, moment)
    for block, again in zip(moment.split(BLOCK), back.split(BLOCK), strict=True):
        most = block.abs().argmax()
        assert again[most] == block[most]
        assert float((again - block).abs().max()) <= 0.008 * float(block.abs().max())
    assert torch.equal(optimizer.packed(name, back), kept)


def test_rounding_is_right_in_the_mean() -> None:
    """A second moment falls by a thousandth a step though no code is so near."""
    moment = torch.full((16 * BLOCK,), 0.5)
    moment[::BLOCK] = 1.0
    optimizer = EightBitAdamW([moment], 0.1)
    kept, others = optimizer.packed("second", moment), moment < 1.0
    for seed in range(400):
        values = optimizer.read("second", kept)
        values[others] *= 0.999
        optimizer.write("second", kept, values, seed)
    assert float(optimizer.read("second", kept)[others].mean()) == pytest.approx(0.5 * 0.999**400, rel=0.01)


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


FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize(
    ("kind", "priced"),
    [
        (NarrowAdamW, ("adamw", "bf16", "fp32")),
        (EightBitAdamW, ("adamw", "int8", "fp32")),
        (Lion, ("lion", "fp32", "fp32")),
        (WideAdamW, ("adamw", "fp32", "bf16")),
        (NarrowAdamW, ("adamw", "bf16", "bf16")),
        (EightBitAdamW, ("adamw", "int8", "bf16")),
    ],
)
def test_what_an_update_moves(kind: Any, priced: tuple[str, str, str]) -> None:
    """All that its operations read and write of an element, as the price of a step counts it."""
    size, moved = 1 << 16, 0

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal moved
            found = function(*args, **(kwargs or {}))
            if not function.is_view:
                tensors = [each for each in tree_leaves((args, found)) if isinstance(each, torch.Tensor)]
                moved += sum(each.nbytes for each in tensors if each.numel() >= size // BLOCK)
            return found

    weight = torch.nn.Parameter(torch.randn(size).to(FORMATS[priced[-1]]))
    weight.grad = torch.randn_like(weight)
    optimizer = kind([weight], 0.1)
    optimizer.step()
    with Counting():
        optimizer.step()
    assert moved / size - weight.itemsize == pytest.approx(EAGER_UPDATE_BYTES[priced], rel=0.03)
