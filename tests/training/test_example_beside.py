"""Matrices beside the layers in torch's example."""

from __future__ import annotations

import pytest

from planner.model.spec import ProductSpec

torch = pytest.importorskip("torch")

PRODUCTS = (
    ProductSpec(inputs=6, outputs=4, tokens=5, times=3, bias=True),
    ProductSpec(inputs=4, outputs=2, tokens=20),
    ProductSpec(inputs=4, outputs=10, tokens=5, weights=False),
)


def test_the_example_has_what_the_plan_counts() -> None:
    """Of a sequence the same, whatever stands beside it in the batch; products of tokens have no weights."""
    from planner.training.example_beside import Beside, BesideShape

    torch.manual_seed(0)
    beside = Beside(tuple(BesideShape(**each.model_dump()) for each in PRODUCTS))
    assert sum(each.numel() for each in beside.parameters()) == sum(each.parameters for each in PRODUCTS)
    tokens, hidden = torch.randint(0, 50, (3, 7)), torch.randn(3, 7, 8)
    both = beside(tokens, hidden)
    alone = torch.cat([beside(tokens[index : index + 1], hidden[index : index + 1]) for index in range(3)])
    torch.testing.assert_close(both, alone)
    assert not torch.equal(both, hidden)
    both.sum().backward()
    assert all(each.grad is not None for each in beside.parameters())


def test_a_product_of_tokens_is_counted_without_weights() -> None:
    """Its operations are those of any other."""
    assert [each.parameters for each in PRODUCTS] == [3 * 4 * 7, 8, 0]
    assert PRODUCTS[2].operations == 2 * 5 * 4 * 10
