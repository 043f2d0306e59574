"""Matrices beside a model's layers, as data: patch embeddings, projectors, and layers of other widths."""

from __future__ import annotations

from itertools import pairwise

from planner.model.huggingface.families import Shape


def linear(tokens: int, *widths: int, bias: bool = True, times: int = 1) -> list[Shape]:
    """Linear layers one behind the other, from each width to the next."""
    return [
        {"inputs": inputs, "outputs": outputs, "tokens": tokens, "times": times, "bias": bias}
        for inputs, outputs in pairwise(widths)
    ]


def scores(tokens: int, width: int, seen: int, times: int = 1) -> list[Shape]:
    """Queries of this width by the keys of so many tokens, and the sum of their values."""
    return [{"inputs": width, "outputs": 2 * seen, "tokens": tokens, "times": times, "weights": False}]


def attention(
    tokens: int,
    width: int,
    *,
    seen: int | None = None,
    bias: bool = True,
    out_bias: bool | None = None,
    times: int = 1,
) -> list[Shape]:
    """Queries, keys and values of the same tokens, scores, and an output."""
    return [
        *linear(tokens, width, 3 * width, bias=bias, times=times),
        *scores(tokens, width, seen or tokens, times),
        *linear(tokens, width, width, bias=bias if out_bias is None else out_bias, times=times),
    ]


def feeds(
    tokens: int, width: int, ffn: int, *, gated: bool = False, bias: bool = True, times: int = 1
) -> list[Shape]:
    """A feed-forward of two matrices, or three."""
    ahead = linear(tokens, width, (2 if gated else 1) * ffn, bias=bias, times=times)
    return [*ahead, *linear(tokens, ffn, width, bias=bias, times=times)]


def layers(tokens: int, times: int, width: int, ffn: int) -> list[Shape]:
    """Equal layers of full attention and a feed-forward of two matrices, without their norms."""
    return [*attention(tokens, width, times=times), *feeds(tokens, width, ffn, times=times)]


def parameters(products: list[Shape]) -> int:
    """Those of matrices that are trained."""
    return sum(
        each["times"] * each["outputs"] * (each["inputs"] + each["bias"])
        for each in products
        if each.get("weights", True)
    )


def added(shape: Shape, products: list[Shape], others: int = 0) -> Shape:
    """The shape with these beside its layers, and ``others`` parameters that take part in few operations."""
    if others < 0:
        raise ValueError("parameters")
    beside = (*shape.get("beside", ()), *(each for each in products if each["times"]))
    return {**shape, "beside": beside, "other_parameters": shape.get("other_parameters", 0) + others}
