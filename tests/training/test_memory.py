"""What the examples' layers and loss really keep, next to the planner's formulas."""

from __future__ import annotations

from typing import Any

import pytest

from tests.quick import every, first

torch = pytest.importorskip("torch")

from planner.cost.memory import (  # noqa: E402
    PLAIN_LOGIT_BYTES,
    Load,
    activation_bytes_per_layer,
    scan_bytes,
    working_bytes,
)
from planner.job.batches import model_shape  # noqa: E402
from planner.model.spec import NF4_BYTES, AdapterTarget, EncoderSpec, LoraSpec, ModelSpec  # noqa: E402
from planner.training import example_adapters, hetplan_loss  # noqa: E402
from planner.training.example_adapters import AdapterShape, Nf4Experts  # noqa: E402
from planner.training.example_model import (  # noqa: E402
    Layer,
    Shape,
    Transformer,
    shape_of,
)
from planner.training.hetplan_loss import chunked_losses, mean_loss, plain_losses  # noqa: E402
from tests.training.held import Held  # noqa: E402
from tests.worlds import model  # noqa: E402

TOKENS = 2 * 128
WIDE: dict[str, Any] = {"hidden": 256, "heads": 8, "kv_heads": 8, "head_dim": 32, "ffn": 1024}
LLAMA = {**WIDE, "kv_heads": 2, "gated_mlp": True, "norm": "layer"}
GPT = {**WIDE, "learned_positions": 128, "dropout": False}


MIXTURE = {**LLAMA, "experts": {"number": 8, "top_k": 2, "ffn": 768, "shared_ffn": 256}}


def spec(**changes: Any) -> ModelSpec:
    """One layer for sequences of 128 tokens."""
    made = model(2, layers=1, **changes)
    training = made.training.model_copy(update={"sequence_length": 128})
    return made.model_copy(update={"training": training})


def kept(of: ModelSpec, recompute: str) -> int:
    """Bytes that a layer keeps of one forward, its parameters aside."""
    layer = Layer(shape_of(model_shape(of)), recompute).to(torch.bfloat16)
    hidden = torch.randn(2, 128, of.hidden, dtype=torch.bfloat16, requires_grad=True)
    with Held(hidden, *layer.parameters(), *layer.buffers()) as held:
        output = layer(hidden)
    assert output.requires_grad
    return int(held.now)  # with its output in place of its input


RANKS = {"q_rank": 32, "kv_rank": 32, "rope_dim": 16, "value_dim": 32}
LATENT = {**WIDE, "gated_mlp": True, "norm": "layer", "head_dim": 48}
ROUTED = {**LATENT, "experts": MIXTURE["experts"]}
ATTENTION: dict[str, dict[str, Any]] = {
    "latent": {**LATENT, "latent": RANKS},
    "latent plain": {**LATENT, "gated_mlp": False, "dropout": False, "latent": RANKS},
    "latent experts": {**ROUTED, "latent": RANKS},
    "latent, whole queries": {**LATENT, "latent": {**RANKS, "q_rank": None}},
    "latent plain, whole queries": {
        **{**LATENT, "gated_mlp": False, "dropout": False},
        "latent": {**RANKS, "q_rank": None},
    },
    "latent experts, whole queries": {**ROUTED, "latent": {**RANKS, "q_rank": None}},
    "sinks": {**LLAMA, "sinks": True},
    "sinks plain": {**GPT, "sinks": True},
    "narrow values": {**LLAMA, "value_dim": 16},
    "wide values": {**LLAMA, "value_dim": 48},
}


@pytest.mark.parametrize("recompute", first(1, ["none", "selective"]))
@pytest.mark.parametrize("name", ATTENTION)
def test_what_attention_of_other_widths_keeps(name: str, recompute: Any) -> None:
    """What is between its products is filled up to one width; on processors attention's output is copied besides."""
    made = spec(**ATTENTION[name])
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute=recompute, sequence_parallel=False, eager=True
    )
    copied = TOKENS * 2 * made.heads * made.value_width if name == "wide values" else 0
    assert kept(made, recompute) == pytest.approx(
        formula + copied * (recompute == "none"), rel=0.1 if made.experts else 0.06
    )


@pytest.mark.parametrize("recompute", first(2, ["none", "selective", "full"]))
@pytest.mark.parametrize("changes", [LLAMA, GPT, MIXTURE], ids=["gated", "plain", "experts"])
def test_activations_of_a_layer(changes: dict[str, Any], recompute: Any) -> None:
    """By all storages that live between forward and backward, small ones (rotary tables, statistics) included."""
    made = spec(**changes)
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute=recompute, sequence_parallel=False, eager=True
    )
    assert kept(made, recompute) == pytest.approx(formula, rel=0.06)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("norm", ["rms", "layer", "plain"])
def test_unfused_norms_keep_copies(norm: str, recompute: Any) -> None:
    """Of what they take in fp32, and of what their weights multiply."""
    made = spec(**{**LLAMA, "norm": norm}).trained_with(norms="unfused")
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute=recompute, sequence_parallel=False, eager=True
    )
    # The layer's input, which is not counted here, is kept in fp32 alone.
    copied = 2.0 * TOKENS * made.hidden * (recompute == "none")
    assert kept(made, recompute) == pytest.approx(formula + copied, rel=0.06)


def highest(of: ModelSpec, recompute: Any, layers: int) -> int:
    """Most bytes at a time in the backward of some layers, but for their parameters, gradients and outputs."""
    shape = shape_of(model_shape(of))
    stack = torch.nn.ModuleList(Layer(shape, recompute) for _ in range(layers)).to(torch.bfloat16)
    hidden = torch.randn(2, 128, of.hidden, dtype=torch.bfloat16, requires_grad=True)
    for each in stack.parameters():
        each.grad = torch.zeros_like(each) if each.requires_grad else None
    gradients = [each.grad for each in stack.parameters() if each.grad is not None]
    with Held(*stack.parameters(), *gradients, *stack.buffers()) as held:
        outputs = hidden * 1.0
        for layer in stack:
            outputs = layer(outputs)
        given = torch.ones_like(outputs)
        torch.autograd.backward(outputs, given)
    return int(held.most - 2 * outputs.nbytes)


NARROW: dict[str, Any] = {"hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn": 256}
"""Of many tokens beside its weights, so that these and what is made of them count little."""
PEAKS: dict[str, dict[str, Any]] = {
    "gated": {**NARROW, "gated_mlp": True, "norm": "layer"},
    "plain": {**NARROW, "learned_positions": 128, "dropout": False},
    "adapters": {
        **NARROW,
        "gated_mlp": True,
        "norm": "layer",
        "lora": LoraSpec(rank=4, targets=("q_proj", "v_proj")),
    },
    "experts": {
        **NARROW,
        "gated_mlp": True,
        "norm": "layer",
        "experts": {"number": 4, "top_k": 2, "ffn": 128},
    },
    "shared experts": {
        **NARROW,
        "gated_mlp": True,
        "norm": "layer",
        "experts": {"number": 4, "top_k": 1, "ffn": 256, "shared_ffn": 256, "imbalance": 1.0},
    },
}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", every(2, PEAKS))
def test_gradients_meet_in_the_backward_of_a_layer(name: str, recompute: Any) -> None:
    """Beside all that layers have kept, or compute again."""
    changes = dict(PEAKS[name])
    lora = changes.pop("lora", None)
    made = spec(**changes).trained_with(**({"lora": lora} if lora else {}))
    load = Load(
        first=False,
        last=False,
        tp=1,
        dp=1,
        micro_batch=2,
        recompute=recompute,
        sequence_parallel=False,
        zero=0,
        gradient_bytes=2,
        eager=True,
    )
    each = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute=recompute, sequence_parallel=False, eager=True
    )
    counted = 2 * each + working_bytes(made, load)
    assert highest(made, recompute, 2) == pytest.approx(counted, rel=0.06)


STATES: dict[str, dict[str, Any]] = {
    "mamba": {"kind": "mamba", "head_dim": 512, "size": 16, "rank": 16, "chunk": 32},
    "mamba2": {"kind": "mamba2", "heads": 16, "head_dim": 32, "size": 64, "groups": 2, "chunk": 64},
    "delta": {"kind": "delta", "heads": 8, "head_dim": 64, "size": 32, "groups": 4, "chunk": 32},
    "linear": {"kind": "linear", "heads": 8, "head_dim": 64, "size": 64, "groups": 8, "chunk": 32},
    "conv": {"kind": "conv", "head_dim": 256, "conv": 3},
}


@pytest.mark.parametrize("name", STATES)
def test_what_a_layer_with_a_state_keeps_and_takes(name: str) -> None:
    """Between forward and backward, and at the peak of its backward."""
    made = spec(**LLAMA, mixer="state", state=STATES[name])
    layer = Layer(shape_of(model_shape(made))).to(torch.bfloat16)
    hidden = torch.randn(2, 128, made.hidden, dtype=torch.bfloat16, requires_grad=True)
    with Held(hidden, *layer.parameters(), *layer.buffers()) as held:
        output = layer(hidden)
        between = held.now
        output.sum().backward()
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute="none", sequence_parallel=False, eager=True
    )
    assert between == pytest.approx(formula, rel=0.01)
    assert made.state is not None
    assert (held.most - between) / TOKENS == pytest.approx(scan_bytes(made.state, 128), rel=0.15)


@pytest.mark.parametrize(("changes", "inputs"), first(2, [(LLAMA, 32), (GPT, 512), (LLAMA, 512), (GPT, 32)]))
def test_what_a_layer_that_attends_to_an_encoder_keeps(changes: dict[str, Any], inputs: int) -> None:
    """Keys and values of all inputs, whose own elements the stage keeps once."""
    encoder = EncoderSpec(layers=1, sequence_length=inputs, hidden=192, heads=6)
    made = spec(**changes, mixer="cross", encoder=encoder)
    layer = Layer(shape_of(model_shape(made))).to(torch.bfloat16)
    hidden = torch.randn(2, 128, made.hidden, dtype=torch.bfloat16, requires_grad=True)
    encoded = torch.randn(2, inputs, 192, dtype=torch.bfloat16, requires_grad=True)
    with Held(hidden, encoded, *layer.parameters()) as held:
        output = layer(hidden, encoded)
        between = held.now
        output.sum().backward()
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute="none", sequence_parallel=False, eager=True
    )
    assert between == pytest.approx(formula, rel=0.07)


FROZEN: dict[str, dict[str, Any]] = {
    "adapters": {"lora": LoraSpec(rank=16)},
    "nf4": {"lora": LoraSpec(rank=16, base="nf4")},
    "nf4-double": {"lora": LoraSpec(rank=16, base="nf4-double")},
    "two": {"lora": LoraSpec(rank=8, targets=("q_proj", "v_proj"))},
    "down": {"lora": LoraSpec(rank=8, targets=("down_proj",))},
    "attention": {"freeze": ("attention",)},
    "mlp": {"freeze": ("mlp",)},
}


@pytest.mark.parametrize("frozen", every(2, ["adapters", "nf4", "attention", "mlp"]))
@pytest.mark.parametrize(
    "changes",
    [
        MIXTURE,
        ATTENTION["latent experts"],
        {**LLAMA, "mixer": "none"},
        {**LLAMA, "feed_forward": "none", "output_gate": True},
        {**LLAMA, "mixer": "state", "state": STATES["mamba2"]},
    ],
    ids=["experts", "latent", "feed-forward", "gate", "state"],
)
def test_activations_of_other_layers_beside_frozen_weights(frozen: str, changes: dict[str, Any]) -> None:
    """The same of experts, low ranks and states."""
    made = spec(**changes, **FROZEN[frozen])
    if not made.trained_layer_parameters:
        pytest.skip("nothing would be trained")
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute="none", sequence_parallel=False, eager=True
    )
    assert kept(made, "none") == pytest.approx(formula, rel=0.12 if made.latent else 0.07)


OF_EXPERTS: tuple[AdapterTarget, ...] = ("experts.gate_proj", "experts.up_proj", "experts.down_proj")


@pytest.mark.parametrize("base", [None, "nf4"])
@pytest.mark.parametrize(
    "targets",
    [
        pytest.param(OF_EXPERTS, id="all"),
        pytest.param(OF_EXPERTS[:1], id="gate", marks=pytest.mark.slow),
        pytest.param(OF_EXPERTS[2:], id="down", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("changes", [MIXTURE, ATTENTION["latent experts"]], ids=["plain", "latent"])
def test_activations_beside_adapters_of_experts(
    changes: dict[str, Any], targets: tuple[AdapterTarget, ...], base: Any
) -> None:
    """Inputs of what has adapters, and what is between their halves, of each row."""
    made = spec(**{**changes, "lora": LoraSpec(rank=32, targets=("o_proj", *targets), base=base)})
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute="none", sequence_parallel=False, eager=True
    )
    assert kept(made, "none") == pytest.approx(formula, rel=0.12 if made.latent else 0.07)
    network = Layer(shape_of(model_shape(made)))
    trained = sum(each.numel() for each in network.parameters() if each.requires_grad)
    assert made.trained_layer_parameters == trained
    alone = made.layer_adapters.experts
    assert alone == sum(
        each.numel()
        for name, each in network.named_parameters()
        if ".adapters." in name and "experts" in name
    )
    without = spec(**{**changes, "lora": LoraSpec(rank=32, targets=("o_proj",), base=base)})
    assert formula > 1.05 * activation_bytes_per_layer(
        without, tp=1, micro_batch=2, recompute="none", sequence_parallel=False, eager=True
    )


@pytest.mark.parametrize("changes", [LLAMA, GPT], ids=["gated", "plain"])
@pytest.mark.parametrize("frozen", FROZEN)
def test_activations_beside_frozen_weights(frozen: str, changes: dict[str, Any]) -> None:
    """A product whose weight is not trained keeps no input, unless an adapter needs it."""
    made = spec(**changes, **FROZEN[frozen])
    formula = activation_bytes_per_layer(
        made, tp=1, micro_batch=2, recompute="none", sequence_parallel=False, eager=True
    )
    assert kept(made, "none") == pytest.approx(formula, rel=0.07)
    if frozen in ("two", "down", "mlp"):
        assert formula < 0.95 * activation_bytes_per_layer(
            spec(**changes), tp=1, micro_batch=2, recompute="none", sequence_parallel=False, eager=True
        )


@pytest.mark.parametrize("frozen", FROZEN)
def test_what_is_trained_is_counted(frozen: str) -> None:
    """As the example's parameters with gradients say."""
    made = spec(**LLAMA, **FROZEN[frozen], tied_embeddings=False)
    numbers: dict[str, Any] = {**model_shape(made)}
    numbers["lora"] = AdapterShape(**numbers["lora"]) if "lora" in numbers else None
    network = Transformer(Shape(**numbers))
    trained = sum(each.numel() for each in network.parameters() if each.requires_grad)
    assert made.trained_parameters == trained
    codes = sum(each.numel() * each.element_size() for each in network.buffers())
    assert codes == pytest.approx(made.quantised_bytes * made.quantised_layer_parameters, rel=1e-3)


@pytest.mark.parametrize("double", [False, True])
def test_experts_in_four_bits(monkeypatch: pytest.MonkeyPatch, double: bool) -> None:
    """They are as few bytes as is counted, and the matrices of all are whole while they are multiplied by."""
    monkeypatch.setattr(example_adapters, "AT_A_TIME", 2**16)
    number, inputs, outputs, rows = 16, 128, 256, 64
    experts = Nf4Experts(number, inputs, outputs, double=double)
    kept = sum(each.nbytes for each in experts.buffers())
    elements = number * inputs * outputs
    assert kept == pytest.approx(NF4_BYTES["nf4-double" if double else "nf4"] * elements, rel=0.01)
    ends = torch.arange(1, number + 1, dtype=torch.int32) * (rows // number)
    given = torch.randn(rows, inputs, requires_grad=True)
    with Held(given, *experts.buffers()) as held:
        experts.product(given, ends, lambda part: part).sum().backward()
    assert held.most == pytest.approx(4 * elements, rel=0.4)  # and what of some is on the way
    assert given.grad is not None


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("losses", [plain_losses, chunked_losses])
def test_bytes_of_a_logit(monkeypatch: pytest.MonkeyPatch, losses: Any, precision: Any) -> None:
    """The peak of the loss and its backward."""
    logits, tokens = 5000, 256
    chunk = 2**17
    monkeypatch.setattr(hetplan_loss, "CHUNK", chunk)
    hidden = torch.randn(2, 128, 16, dtype=precision, requires_grad=True)
    weight = torch.randn(logits, 16, dtype=precision, requires_grad=True)
    labels = torch.randint(0, logits, (2, 128))
    with Held(hidden, weight) as held:
        mean_loss(torch.nn.functional.linear(hidden, weight), labels, losses).backward()
    wanted = PLAIN_LOGIT_BYTES * logits * tokens
    if losses is chunked_losses:
        wanted = precision.itemsize * logits * tokens + 4 * chunk
    assert held.most == pytest.approx(wanted, rel=0.05)
