"""What layers of Hugging Face's classes keep for the backward, next to what a plan counts."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed, see make test")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed, see make test")

from planner.cost.memory import activation_bytes_per_layer  # noqa: E402
from tests.worlds import gpt  # noqa: E402

HIDDEN, HEADS, FFN, LENGTH, SEQUENCES = 256, 4, 688, 128, 2


def kept(layers: int) -> float:
    """Bytes that a forward of a Llama in bf16 keeps, but for its weights."""
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=FFN,
        num_hidden_layers=layers,
        vocab_size=64,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    found: dict[int, tuple[int, Any]] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(input_ids=torch.zeros(SEQUENCES, LENGTH, dtype=torch.long)).logits
    del output
    return sum(size for size, _ in found.values())


def test_norms_keep_copies_in_fp32() -> None:
    """Eight bytes for each token and hidden unit of a layer more than is counted, as docs/launching.md says."""
    model = gpt(1, HIDDEN, HEADS, sequence_length=LENGTH, dropout=False)
    model = model.model_copy(update={"ffn": FFN, "gated_mlp": True})
    counted = activation_bytes_per_layer(
        model, tp=1, micro_batch=SEQUENCES, recompute="none", sequence_parallel=False, eager=True
    )
    units = SEQUENCES * LENGTH * HIDDEN
    assert counted / units == 37.5
    assert (kept(3) - kept(1)) / 2 / units == pytest.approx(45.6, abs=0.05)
