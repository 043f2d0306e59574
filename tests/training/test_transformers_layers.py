"""What layers of Hugging Face's classes keep for the backward, and what their norms move, next to a plan's count."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed, see make test")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed, see make test")
    peft = pytest.importorskip("peft", reason="peft is not installed, see make test")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from planner.cost.compute import UNFUSED_NORM, UNFUSED_NORM_KERNELS, UNFUSED_NORM_WEIGHT  # noqa: E402
from planner.cost.memory import activation_bytes_per_layer  # noqa: E402
from planner.model.spec import LoraSpec, ModelSpec  # noqa: E402
from tests.worlds import gpt  # noqa: E402

RANK = 8
HIDDEN, HEADS, FFN, LENGTH, SEQUENCES = 256, 4, 688, 128, 2
UNITS = SEQUENCES * LENGTH * HIDDEN
FREE = ("view", "detach", "expand", "alias", "aten.t.", "transpose", "empty", "slice", "unsqueeze")
"""Operations that move nothing."""


def kept(
    layers: int, kind: Any = torch.bfloat16, trained: bool = True, dropout: float | None = None
) -> float:
    """Bytes that a forward of a Llama keeps, but for its weights; with adapters of PEFT that drop ``dropout``."""
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
    model = transformers.LlamaForCausalLM(config).to(kind)
    if dropout is not None:
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = peft.LoraConfig(r=RANK, lora_dropout=dropout, target_modules=targets)
        model.enable_input_require_grads()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    elif not trained:
        model.requires_grad_(False)
        model.enable_input_require_grads()
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


def spec(**training: Any) -> ModelSpec:
    """The same model."""
    made = gpt(1, HIDDEN, HEADS, sequence_length=LENGTH, dropout=False)
    made = made.model_copy(update={"ffn": FFN, "gated_mlp": True, "norm": "rms"})
    return made.trained_with(**training)


def counted(model: ModelSpec) -> float:
    """What a plan counts of a layer."""
    return activation_bytes_per_layer(
        model, tp=1, micro_batch=SEQUENCES, recompute="none", sequence_parallel=False, eager=True
    )


FROZEN = ("embedding", "attention", "mlp", "norms", "head")


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_layers_keep_what_unfused_norms_count(precision: str, trained: bool) -> None:
    """Within a per cent, of which rotary tables and statistics of rows are a third; fused norms count too little."""
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    more: dict[str, Any] = {"precision": precision, **({} if trained else {"freeze": FROZEN})}
    measured = (kept(3, kind, trained) - kept(1, kind, trained)) / 2
    unfused, fused = (counted(spec(norms=norms, **more)) for norms in ("unfused", "fused"))
    assert measured / UNITS == pytest.approx(unfused / UNITS, rel=0.01)
    apart = {("bf16", True): 8.0, ("bf16", False): 4.0, ("fp32", True): 8.0, ("fp32", False): 0.0}
    assert (unfused - fused) / UNITS == apart[precision, trained]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_adapters_of_peft_keep_what_they_have_not_dropped(dropout: float) -> None:
    """And a mask; without dropout those of one input share it. Norms are those of transformers."""
    measured = (kept(3, dropout=dropout) - kept(1, dropout=dropout)) / 2
    lora = LoraSpec(rank=RANK, dropout=dropout > 0)
    made = spec(norms="unfused", lora=lora)
    # On processors a mask has the format of what it is of; on GPUs it has bytes.
    masks = SEQUENCES * LENGTH * sum(inputs for inputs, _ in made.adapted.values()) * (dropout > 0)
    assert measured / UNITS == pytest.approx((counted(made) + masks) / UNITS, rel=0.02)


def test_frozen_layers_that_keep_their_inputs() -> None:
    """As many bytes as trained ones, beside what lies between the products of adapters."""
    lora = LoraSpec(rank=RANK, targets=("q_proj", "v_proj"))
    usual = counted(spec(lora=lora))
    keeping = counted(spec(lora=lora.model_copy(update={"keeps_inputs": True})))
    # Of the feed-forward its input and that of its second half, which has no adapter either.
    assert (keeping - usual) / UNITS == 2.0 + 2.0 * FFN / HIDDEN
    assert keeping / UNITS == counted(spec()) / UNITS + 2 * 2.0 * RANK / HIDDEN


class Moved(TorchDispatchMode):  # type: ignore[misc]
    """Bytes that operations on whole rows read and write, and how many operations there are."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.kernels = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if not any(name in str(function) for name in FREE):
            self.kernels += 1
            tensors = [each for each in tree_leaves((args, kwargs, made)) if isinstance(each, torch.Tensor)]
            # What is spread over rows is read once.
            self.bytes += sum(
                min(each.numel() * each.element_size(), each.untyped_storage().nbytes()) for each in tensors
            )
        return made


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_what_an_unfused_norm_moves(kind: Any, trained: bool) -> None:
    """A fused kernel reads and writes an element, and in the backward reads two and writes one."""
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm(HIDDEN).to(kind).requires_grad_(trained)
    hidden = torch.randn(SEQUENCES * LENGTH, HIDDEN, dtype=kind, requires_grad=True) * 1.0
    size = kind.itemsize
    with Moved() as ahead:
        output = norm(hidden)
    gradient, inputs = torch.ones_like(output), [hidden, *(norm.parameters() if trained else ())]
    with Moved() as back:
        torch.autograd.grad(output, inputs, gradient)
    more = UNFUSED_NORM_WEIGHT[size] if trained else 0.0
    assert ahead.bytes / UNITS - 2 * size == pytest.approx(UNFUSED_NORM[size][0], rel=0.01)
    assert back.bytes / UNITS - 3 * size == pytest.approx(UNFUSED_NORM[size][1] + more, rel=0.01)
    if kind is torch.bfloat16 and trained:
        assert (ahead.kernels - 1, back.kernels - 1) == UNFUSED_NORM_KERNELS
