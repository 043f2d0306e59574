"""Four-bit weights and eight-bit moments of the emitted examples next to those of bitsandbytes."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed, see make test")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed, see make test")
    from bitsandbytes import functional
    from bitsandbytes.optim import AdamW8bit

import torch
from torch.utils._pytree import tree_leaves

from planner.training.example_adapters import dequantised, dequantised_by, fused, quantised
from planner.training.example_optimizers import EightBitAdamW


def drawn(shape: tuple[int, int], form: torch.dtype) -> torch.Tensor:
    """A matrix as models have them."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).mul(0.05).to(form)


@pytest.mark.parametrize("form", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [(256, 512), (320, 64), (96, 704)], ids=str)
def test_four_bits_are_the_same(shape: tuple[int, int], form: torch.dtype) -> None:
    """Codes, scales and what a product is made with."""
    weight = drawn(shape, form)
    codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=False)
    packed, scales = quantised(weight)
    assert packed.flatten().equal(codes.flatten())
    assert scales.view(torch.float32).flatten().equal(state.absmax)
    mine = dequantised(packed, (scales,), shape, torch.float32)
    wanted = functional.dequantize_4bit(codes, state).float()
    # bitsandbytes rounds to the format that the weight had.
    assert torch.allclose(mine, wanted, rtol=2**-8 if form == torch.bfloat16 else 0, atol=0)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("number", [0, 3], ids=["matrix", "experts"])
def test_its_kernel_brings_the_same_back(number: int, double: bool) -> None:
    """What runs on GPUs; it rounds to the working format last, plain torch before it scales."""
    sizes = 96, 704
    made = [quantised(drawn(sizes, torch.float32) * (1 + each), double) for each in range(max(1, number))]
    packed, *scales = (torch.stack(parts) if number else parts[0] for parts in zip(*made, strict=True))
    for form, error in ((torch.float32, 0.0), (torch.bfloat16, 2**-6)):
        mine = dequantised(packed, tuple(scales), sizes, form)
        theirs = dequantised_by(fused(), packed, tuple(scales), sizes, form)
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, rtol=error, atol=0)


def test_without_it_plain_torch_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says once that it takes longer than the plan's price; a version without the kernel is none."""
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setattr(torch.ops, "bitsandbytes", SimpleNamespace())
    fused.cache_clear()
    assert [fused(), fused()] == [None, None]
    fused.cache_clear()
    said = (
        "no bitsandbytes with torch.ops: plain torch brings weights from four bits, in four times the bytes\n"
    )
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("shape", [(256, 512), (320, 64), (96, 704)], ids=str)
def test_narrow_scales_take_as_much_and_lose_as_little(shape: tuple[int, int]) -> None:
    """Scales are integers of eight bits here and floating-point numbers of eight bits there."""
    weight = drawn(shape, torch.float32)
    codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    kept = quantised(weight, double=True)
    theirs = (codes, state.absmax, state.state2.absmax, state.offset)
    assert bytes_of(kept) == bytes_of(theirs)
    mine = (dequantised(kept[0], kept[1:], shape, torch.float32) - weight).square().mean().sqrt().item()
    wanted = (functional.dequantize_4bit(codes, state) - weight).square().mean().sqrt().item()
    assert mine == pytest.approx(wanted, rel=2e-3)


def bytes_of(tensors: tuple[torch.Tensor, ...]) -> int:
    """Of all together."""
    return sum(each.numel() * each.element_size() for each in tensors)


def test_moments_in_eight_bits_are_as_near() -> None:
    """To AdamW's steps in fp32, in the same bytes but for the two maps of 256 codes that every moment has there."""
    start = drawn((256, 512), torch.float32)
    weights = [torch.nn.Parameter(start.clone()) for _ in range(3)]
    exact, mine, theirs = weights
    optimizers = (
        torch.optim.AdamW([exact], lr=1e-3),
        EightBitAdamW([mine], lr=1e-3),
        AdamW8bit([theirs], lr=1e-3, weight_decay=0.01),
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        gradient = torch.randn(256, 512, generator=generator) * torch.rand(256, 1, generator=generator)
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    moved = (exact - start).abs().mean().item()
    assert (mine - exact).abs().mean().item() < 0.03 * moved
    assert (theirs - exact).abs().mean().item() < 0.03 * moved
    here, there = (
        bytes_of(tuple(filter(torch.is_tensor, tree_leaves(optimizer.state[weight]))))
        for optimizer, weight in zip(optimizers[1:], weights[1:], strict=True)
    )
    assert here == there - 2 * 256 * 4
