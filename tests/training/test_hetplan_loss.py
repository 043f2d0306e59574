"""The loss in chunks, next to torch's own operations and to what it is priced with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from planner.cost.compute import loss_bytes  # noqa: E402
from planner.cost.memory import CHUNK  # noqa: E402
from planner.targets import target  # noqa: E402
from planner.training import hetplan_loss  # noqa: E402
from planner.training.hetplan_loss import IGNORED, causal_loss, chunked_losses, plain_losses  # noqa: E402
from planner.training.hetplan_runtime import compute_in_chunks  # noqa: E402


def test_the_planner_counts_as_many_logits_a_chunk() -> None:
    """In its memory."""
    assert hetplan_loss.CHUNK == CHUNK


def made(losses: Any, precision: Any, rows: int, outputs: int) -> tuple[Any, Any]:
    """Losses of the rows of a product, and the gradients of its factors by some weights of the rows."""
    draw = torch.Generator().manual_seed(rows)
    factors = [
        torch.randn(each, 8, generator=draw).to(precision).requires_grad_() for each in (rows, outputs)
    ]
    labels = torch.randint(0, outputs, (rows,), generator=draw)
    labels[::5] = IGNORED
    found = losses(factors[0] @ factors[1].T, labels)
    (found * torch.randn(rows, generator=draw)).sum().backward()
    assert found.dtype == torch.float32
    assert not found[::5].any()
    return found.detach(), [each.grad for each in factors]


@pytest.mark.parametrize("chunk", [1, 30, CHUNK])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, precision: Any, chunk: int) -> None:
    """Neither losses nor gradients, of whole rows or of fewer rows than are left."""
    monkeypatch.setattr(hetplan_loss, "CHUNK", chunk)
    losses, gradients = made(chunked_losses, precision, 23, 11)
    wanted, wanted_gradients = made(plain_losses, precision, 23, 11)
    assert torch.allclose(losses, wanted, atol=1e-5)
    for found, known in zip(gradients, wanted_gradients, strict=True):
        assert torch.allclose(found, known, atol=1e-5, rtol=torch.finfo(precision).eps)


def test_logits_that_are_lost_are_not_used_again() -> None:
    """A second backward would take gradients for logits: torch refuses it."""
    logits = torch.randn(4, 3, requires_grad=True)
    loss = chunked_losses(logits * 1.0, torch.tensor([0, 1, 2, 0])).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def small(kind: str) -> Any:
    """A Hugging Face model with its own loss."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 16, "num_labels": 2}
    config = transformers.GPT2Config(**sizes, pad_token_id=0)
    return getattr(transformers, kind)(config)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_causal_model_of_hugging_face_computes_its_loss_in_chunks(wrapped: bool) -> None:
    """With the same result, also inside of adapters; labels that it leaves out are left out."""
    network = small("GPT2LMHeadModel").eval()
    tokens = torch.arange(8)[None].repeat(2, 1)
    labels = tokens.where(tokens > 2, torch.tensor(IGNORED))
    found: list[list[Any]] = []
    for made in (network, SimpleNamespace(get_base_model=lambda: network) if wrapped else network):
        if found:
            compute_in_chunks(made)
            assert network.loss_function is causal_loss
        network.zero_grad()
        loss = network(tokens, labels=labels).loss
        loss.backward()
        found.append([loss.detach(), *(each.grad.clone() for each in network.parameters())])
    assert all(torch.allclose(*each, atol=1e-6) for each in zip(*found, strict=True))
    shifted = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    again = network(tokens, labels=labels, shift_labels=shifted, num_items_in_batch=20).loss.detach()
    assert again.item() == pytest.approx(loss.item() * 10 / 20, rel=1e-6)


def test_another_loss_stays_as_it_is() -> None:
    """Of a classifier, and of what has none."""
    network = small("GPT2ForSequenceClassification")
    usual = network.loss_function
    compute_in_chunks(network)
    assert network.loss_function == usual
    compute_in_chunks(SimpleNamespace())


@pytest.mark.parametrize(("name", "precision"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_what_the_loss_moves(name: str, precision: Any) -> None:
    """All that its operations read and write of a logit, as the price of a step counts it."""
    rows, outputs, moved = 64, 512, 0

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal moved
            found = function(*args, **(kwargs or {}))
            # A gather and a scatter touch one element of a row.
            if not function.is_view and not {"gather", "scatter_add_"} & {function.overloadpacket.__name__}:
                tensors = [each for each in tree_leaves((args, found)) if isinstance(each, torch.Tensor)]
                moved += sum(each.nbytes for each in tensors if each.numel() >= rows * outputs)
            return found

    logits = torch.randn(rows, outputs, dtype=precision, requires_grad=True) + 0
    found = []
    with Counting():
        loss = chunked_losses(logits, torch.zeros(rows, dtype=torch.long)).sum()
        found.append(moved / logits.numel())
        torch.autograd.grad(loss, logits)
        found.append(moved / logits.numel() - found[0])
    wanted = loss_bytes(target("torch"), "torch", "chunked", logits.element_size())
    assert found == pytest.approx(wanted, rel=0.01), name
