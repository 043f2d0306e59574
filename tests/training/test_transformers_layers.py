"""What layers of Hugging Face's classes keep for the backward, and what their norms move, next to a plan's count."""

from __future__ import annotations

import json
import warnings
from typing import Any, get_args

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
from planner.job.batches import model_shape  # noqa: E402
from planner.job.files import document, rendered  # noqa: E402
from planner.job.job import UNTRAINED, Job  # noqa: E402
from planner.model.spec import Activation, LoraSpec, ModelSpec, NumericsSpec  # noqa: E402
from planner.training.example_model import Layer, Transformer, rotate, shape_of  # noqa: E402
from tests.worlds import cluster, gpt, group, plan, pool  # noqa: E402
from tests.worlds import model as world_model  # noqa: E402

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


ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu-tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "squared-relu": "relu2",
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_example_has_the_numerics_of_the_model_file(activation: str) -> None:
    """Activation, epsilon and base of positions are those of a Llama of transformers with the same weights."""
    torch.manual_seed(7)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=32,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            num_hidden_layers=2,
            vocab_size=64,
            hidden_act=ACTIVATIONS[activation],
            rms_norm_eps=0.01,
            rope_parameters={"rope_type": "default", "rope_theta": 50.0},
            tie_word_embeddings=False,
            initializer_range=0.5,
            use_cache=False,
        )
    )
    numerics = NumericsSpec(activation=activation, norm_epsilon=0.01, rope_base=50.0)  # type: ignore[arg-type]
    spec = world_model(8, layers=2, ffn=48, heads=4, kv_heads=2, gated_mlp=True, tied_embeddings=False)
    ours = Transformer(
        shape_of(json.loads(document(model_shape(spec.model_copy(update={"numerics": numerics})))))
    )
    assert ours.head is not None
    with torch.no_grad():
        ours.embedding.weight.copy_(theirs.model.embed_tokens.weight)
        ours.head.project.weight.copy_(theirs.lm_head.weight)
        ours.finish.norm.weight.copy_(theirs.model.norm.weight)
        for own, other in zip(ours.layers, theirs.model.layers, strict=True):
            attention, mlp = other.self_attn, other.mlp
            own.query.weight.copy_(attention.q_proj.weight)
            own.key_value.weight.copy_(
                torch.cat(
                    [each.weight.view(2, 8, 32) for each in (attention.k_proj, attention.v_proj)], 1
                ).view(-1, 32)
            )
            own.output.weight.copy_(attention.o_proj.weight)
            for name in ("gate", "up", "down"):
                getattr(own, name).weight.copy_(getattr(mlp, f"{name}_proj").weight)
    tokens = torch.randint(64, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_the_example_has_every_activation_or_says_that_it_has_not() -> None:
    """Those that would keep more than is counted are left out."""
    assert {*ACTIVATIONS} | {*UNTRAINED} == {*get_args(Activation)}
    assert not {*ACTIVATIONS} & {*UNTRAINED}
    for name in get_args(Activation):
        numerics = NumericsSpec(activation=name)
        spec = world_model(8, gated_mlp=True).model_copy(update={"numerics": numerics})
        stage = [(group("a", "A100", count=1, share=8, steps=8),)]
        job = Job(
            plan=plan("torch", 0, [4], stage), cluster=cluster(pool("a", "A100", 1)), model=spec, ranks=()
        )
        told = "in place of the model's own activation" in rendered("job/layers.md.j2", job=job)
        assert told == (model_shape(spec).get("activation") is None)


def test_a_part_of_a_head_is_rotated() -> None:
    """The rest of its width is as it was, and the part as a head of that width."""
    spec = world_model(8, heads=2, gated_mlp=True)
    shape = shape_of({**model_shape(spec), "rope_share": 0.5, "rope_base": 100.0})
    layer = Layer(shape, "none")
    heads, places = torch.randn(1, 2, 6, 16), torch.arange(6)
    turned = layer._rotated(heads, places)
    assert torch.equal(turned[..., 8:], heads[..., 8:])
    assert torch.equal(turned[..., :8], rotate(heads[..., :8], places, 100.0))
    assert not torch.equal(turned[..., :8], heads[..., :8])
    none = Layer(shape_of({**model_shape(spec), "rope_share": 0}), "none")
    assert torch.equal(none._rotated(heads, places), heads)
