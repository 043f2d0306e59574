"""Bytes: Korthikanti's formulas, micro-batches in flight."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log2
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED_FRAMEWORK, Framework
from planner.capabilities import Recompute
from planner.cluster.topology import DeviceType, Topology
from planner.cost.memory import (
    CHUNK,
    FRAGMENTS,
    MOST_CONTEXT,
    Footprint,
    Load,
    activation_bytes_per_layer,
    kept_free,
    parameters_of,
    scan_bytes,
    state_activations,
)
from planner.cost.schedules import layers_in_flight
from planner.cost.values import Memory
from planner.model.spec import ExpertsSpec, LatentSpec, ModelSpec, StateSpec
from planner.plan.values import Folding
from tests.worlds import cluster, gpt, pool

KIND = Topology(cluster(pool("p"))).device_types[0]
LOAD = Load(
    first=True,
    last=True,
    tp=1,
    dp=8,
    micro_batch=1,
    recompute="none",
    sequence_parallel=False,
    zero=0,
    gradient_bytes=2,
)


def memory(
    model: ModelSpec,
    device_type: DeviceType,
    framework: Framework,
    load: Load,
    spread: float = 0.0,
    *,
    layers: int = 24,
    in_flight: float = 24.0,
) -> Memory:
    """Of a device with so many layers, and layers in flight."""
    return Footprint(model, device_type, framework, load, spread).memory(layers, in_flight)


def test_activations_are_those_of_korthikanti() -> None:
    """arXiv:2205.05198, table 2, with s b h in bytes."""
    model = gpt(hidden=4096, heads=32, sequence_length=2048, attention="unfused")
    sbh, ratio = 2048 * 4096, 5 * 32 * 2048 / 4096

    def bytes_of(tp: int, recompute: Recompute, split: bool) -> float:
        return activation_bytes_per_layer(
            model,
            tp=tp,
            micro_batch=1,
            recompute=recompute,
            sequence_parallel=split,
        )

    assert bytes_of(1, "none", False) == pytest.approx(sbh * (34 + ratio))
    assert bytes_of(8, "none", False) == pytest.approx(sbh * (10 + 24 / 8 + ratio / 8))
    assert bytes_of(8, "none", True) == pytest.approx(sbh / 8 * (34 + ratio))
    assert bytes_of(8, "selective", False) == pytest.approx(sbh * (10 + 24 / 8))
    assert bytes_of(8, "selective", True) == pytest.approx(sbh * 34 / 8)
    assert bytes_of(8, "full", False) == pytest.approx(sbh * 2)


def test_selective_recomputation_discards_modules() -> None:
    """Norm and nonlinearity of experts, queries, keys and values of latent attention; in fp8 products keep one byte."""
    model = gpt(hidden=1024, heads=8, sequence_length=512).model_copy(update={"gated_mlp": True})
    experts = {"number": 16, "top_k": 4, "ffn": 256, "imbalance": 1.0}
    routed = model.model_copy(update={"experts": ExpertsSpec.model_validate(experts)})
    wide = {"q_rank": 64, "kv_rank": 32, "rope_dim": 16, "value_dim": 64}
    latent = model.model_copy(update={"latent": LatentSpec.model_validate(wide), "head_dim": 80})

    def bytes_of(of: ModelSpec, recompute: Recompute, precision: str = "bf16") -> float:
        training = of.training.model_copy(update={"precision": precision})
        return activation_bytes_per_layer(
            of.model_copy(update={"training": training}),
            tp=1,
            micro_batch=1,
            recompute=recompute,
            sequence_parallel=False,
        )

    rows = 512 * 4
    assert bytes_of(routed, "none") - bytes_of(routed, "selective") == 512 * 2 * 1024 + rows * 2 * 256
    assert bytes_of(routed, "none") - bytes_of(routed, "none", "fp8") == rows * (1024 + 256)
    assert bytes_of(latent, "none") - bytes_of(latent, "selective") == 512 * 2 * (1024 + 8 * (2 * 80 + 64))
    assert bytes_of(model, "none") == bytes_of(model, "selective")


def test_flash_attention_keeps_no_scores() -> None:
    """Without recomputation flash saves what selective recomputation saves."""
    flash, unfused = gpt(), gpt(attention="unfused")
    kept = activation_bytes_per_layer(flash, tp=1, micro_batch=1, recompute="none", sequence_parallel=False)
    again = activation_bytes_per_layer(
        unfused, tp=1, micro_batch=1, recompute="selective", sequence_parallel=False
    )
    assert kept == again


def test_micro_batches_in_flight() -> None:
    """1F1B holds depth - stage of them; interleaving 1 + (p-1)/(pv) of the model on the first stage."""
    plain = [layers_in_flight(layers=6, stage=s, depth=4, micro_batches=99, interleave=1) for s in range(4)]
    assert plain == [24, 18, 12, 6]
    assert layers_in_flight(layers=6, stage=0, depth=4, micro_batches=2, interleave=1) == 12
    found = layers_in_flight(layers=6, stage=0, depth=4, micro_batches=99, interleave=3)
    assert found == pytest.approx(24 * (1 + 3 / (4 * 3)))


def test_a_tied_head_is_a_second_copy_on_another_stage() -> None:
    """The last stage of a pipeline holds the embedding again; one stage holds it once."""
    model = gpt()
    alone = parameters_of(model, layers=24, first=True, last=True, tp=1)
    first = parameters_of(model, layers=12, first=True, last=False, tp=1)
    last = parameters_of(model, layers=12, first=False, last=True, tp=1)
    assert first + last == alone + model.vocab * model.hidden


def test_components_add_up() -> None:
    """Used, reserve and headroom make the capacity."""
    found = memory(gpt(), KIND, ASSUMED_FRAMEWORK, LOAD)
    assert found.used_bytes + found.reserve_bytes + found.headroom_bytes == pytest.approx(
        found.capacity_bytes
    )
    assert found.fits
    assert not memory(gpt(), KIND, ASSUMED_FRAMEWORK, replace(LOAD, micro_batch=500)).fits


def test_buffers_make_memory_not_monotone_in_the_stage() -> None:
    """The bucket that fills while another travels can weigh more than what sharding over two saves."""
    model = gpt(layers=2, hidden=512, heads=8)
    none, one, three = (
        memory(
            model, KIND, ASSUMED_FRAMEWORK, replace(LOAD, zero=zero, dp=2, gradient_bytes=4), layers=2
        ).buffers_bytes
        for zero in (0, 1, 3)
    )
    assert one == 2 * none
    assert three > none


def kept(recompute: Recompute = "none", **training: object) -> float:
    """Bytes that one layer keeps for one sequence."""
    model = gpt(**training)  # type: ignore[arg-type]
    return activation_bytes_per_layer(
        model, tp=1, micro_batch=1, recompute=recompute, sequence_parallel=False
    )


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_dropout_keeps_its_masks(attention: str) -> None:
    """One byte an element of two masks; with unfused attention the mask and the product of every score too."""
    dropped = kept(attention=attention, dropout=True) - kept(attention=attention, dropout=False)
    masks = 2 * 1024 * 2048
    scores = 3 * 16 * 1024**2 if attention == "unfused" else 0
    assert dropped == pytest.approx(masks + scores)
    assert kept("full", attention=attention, dropout=True) == kept("full", attention=attention, dropout=False)


def test_number_formats_store_what_they_store() -> None:
    """tf32 as fp32, and fp8 the states of bf16 where the optimizer is sharded."""
    found = {
        name: memory(gpt(precision=name), KIND, ASSUMED_FRAMEWORK, replace(LOAD, zero=1))
        for name in ("bf16", "fp8", "fp32", "tf32")
    }
    assert found["fp8"].parameters_bytes == found["bf16"].parameters_bytes
    assert found["fp8"].optimizer_bytes == found["bf16"].optimizer_bytes
    assert found["fp8"].activations_bytes < found["bf16"].activations_bytes
    assert found["tf32"] == found["fp32"]
    assert found["tf32"].parameters_bytes == 2 * found["bf16"].parameters_bytes
    assert found["tf32"].activations_bytes == 2 * found["bf16"].activations_bytes
    assert found["tf32"].optimizer_bytes < found["bf16"].optimizer_bytes


def test_measured_layers_scale_the_formulas() -> None:
    """Bytes of activations and numbers of parameters; recomputation keeps the formula's."""
    model = gpt()
    formula = memory(model, KIND, ASSUMED_FRAMEWORK, LOAD)
    measured = replace(LOAD, activation_ratio=1.5, parameter_ratio=2.0)
    found = memory(model, KIND, ASSUMED_FRAMEWORK, measured)
    assert found.activations_bytes - formula.activations_bytes == pytest.approx(24 * 0.5 * kept())
    assert found.parameters_bytes - formula.parameters_bytes == 2 * 24 * model.layer_parameters
    lean, plain = (
        memory(model, KIND, ASSUMED_FRAMEWORK, replace(load, recompute="full")) for load in (measured, LOAD)
    )
    assert lean.activations_bytes - plain.activations_bytes == pytest.approx(0.5 * kept())


def test_a_process_has_the_runtime_of_its_framework() -> None:
    """A constant of the framework, added once; small devices run with less."""
    found = [memory(gpt(), KIND, Framework(runtime_bytes=value), LOAD) for value in (1e9, 3e9)]
    assert found[1].used_bytes - found[0].used_bytes == pytest.approx(2e9)
    small = memory(gpt(), replace(KIND, memory_bytes=4e9), Framework(runtime_bytes=3e9), LOAD)
    assert small.runtime_bytes == pytest.approx(MOST_CONTEXT * 4e9 + FRAGMENTS * tensors_of(small))


def tensors_of(found: Memory) -> float:
    """All but the runtime."""
    return found.used_bytes - found.runtime_bytes


def test_an_allocator_gives_back_what_it_caches() -> None:
    """It holds a share beyond its tensors where there is room, and no run is out of memory for that."""
    roomy = memory(gpt(), KIND, Framework(runtime_bytes=0.0, allocator_slack=0.5), LOAD)
    assert roomy.runtime_bytes == pytest.approx((0.5 + FRAGMENTS) * tensors_of(roomy))
    measured = memory(
        gpt(), KIND, Framework(runtime_bytes=0.0, allocator_slack=0.5), replace(LOAD, allocator_slack=0.1)
    )
    assert measured.runtime_bytes == pytest.approx((0.1 + FRAGMENTS) * tensors_of(roomy))
    needed = (1 + FRAGMENTS) * tensors_of(roomy) + KIND.reserve_bytes
    for room, fits in ((1.0, True), (0.1, True), (-0.1, False)):
        tight = replace(KIND, memory_bytes=needed + room * 1e9)
        found = memory(gpt(), tight, Framework(runtime_bytes=0.0, allocator_slack=0.5), LOAD)
        assert found.fits is fits
        assert found.headroom_bytes == pytest.approx(min(room * 1e9, 0.0), abs=1.0)


def test_half_precision_gradients_are_copied_for_the_optimizer() -> None:
    """fp32 copies of two-byte gradients, sharded with ZeRO, where activations were; fp32 ones and ZeRO-3 need none."""
    model = gpt(sequence_length=1)
    parameters = parameters_of(model, layers=24, first=True, last=True, tp=1)

    def copied(zero: int) -> float:
        half, full = (
            memory(model, KIND, ASSUMED_FRAMEWORK, replace(LOAD, zero=zero, gradient_bytes=size))
            for size in (2, 4)
        )
        freed = half.activations_bytes + half.logits_bytes if zero < 3 else 0.0
        return half.buffers_bytes - full.buffers_bytes + freed

    assert [copied(zero) for zero in range(4)] == pytest.approx(
        [4.0 * parameters, 4.0 * parameters / 8, 4.0 * parameters / 8, 0.0]
    )


@given(st.integers(1, 64), st.sampled_from(["none", "selective", "full"]), st.integers(0, 3))
@settings(deadline=None)
def test_a_larger_micro_batch_needs_more(size: int, recompute: Recompute, zero: int) -> None:
    """Activations and logits grow, states stay."""
    small, large = (
        memory(
            gpt(attention="unfused"),
            KIND,
            ASSUMED_FRAMEWORK,
            replace(LOAD, micro_batch=item, recompute=recompute, zero=zero),
        )
        for item in (size, size + 1)
    )
    assert large.activations_bytes > small.activations_bytes
    assert large.logits_bytes >= small.logits_bytes
    assert large.optimizer_bytes == small.optimizer_bytes


def test_bytes_of_the_logits() -> None:
    """In the working format and in fp32, one for each token and word of the vocabulary; only where the head is.

    Beside them are the inputs of the final norm and of the output layer, which tensor parallelism leaves whole; the
    gradients of a layer, that of its output and two of each element between the products of its feed-forward, meet
    when all of these are gone.
    """
    tokens, words = 3 * 1024, 51200
    for precision, size in (("fp16", 2), ("bf16", 2), ("fp32", 4)):
        model = gpt(precision=precision, vocab=words)
        load = replace(LOAD, micro_batch=3)
        ends, met = 2 * size * tokens * model.hidden, size * tokens * (model.hidden + model.ffn)
        found = memory(model, KIND, ASSUMED_FRAMEWORK, load).logits_bytes
        assert found == (size + 4) * tokens * words + ends - met
        split = memory(model, KIND, ASSUMED_FRAMEWORK, replace(load, tp=4)).logits_bytes
        met = size * tokens * (model.hidden + model.ffn // 4)
        assert split == (size + 4) * tokens * words / 4 + ends - met
        assert memory(model, KIND, ASSUMED_FRAMEWORK, replace(load, last=False)).logits_bytes == 0


def test_grouped_queries_keep_fewer_keys_and_values() -> None:
    """Two bytes for each element of queries, output, keys and values: 2 d (2 a + 2 k) a token, d wide heads."""
    many, few = gpt(), gpt().model_copy(update={"kv_heads": 2})
    saved = kept() - activation_bytes_per_layer(
        few, tp=1, micro_batch=1, recompute="none", sequence_parallel=False
    )
    assert many.kv_heads == 16
    assert saved == pytest.approx(1024 * 2 * 128 * 2 * (16 - 2))


def test_a_gated_mlp_keeps_a_third_matrix() -> None:
    """SwiGLU: gate, up and their product in place of one input of the activation and one output; no dropout."""
    plain = gpt(dropout=False)
    gated = plain.model_copy(update={"gated_mlp": True})
    found = [
        activation_bytes_per_layer(model, tp=tp, micro_batch=2, recompute="none", sequence_parallel=False)
        for model in (plain, gated)
        for tp in (1, 4)
    ]
    assert found[2] - found[0] == 2 * 1024 * 2 * 8192
    assert found[3] - found[1] == 2 * 1024 * 2 * 8192 / 4


def test_tensor_parallelism_divides_the_parameters() -> None:
    """Layers and embeddings alike, ends included."""
    model = gpt()
    for first, last in ((True, True), (True, False), (False, True), (False, False)):
        whole = parameters_of(model, layers=12, first=first, last=last, tp=1)
        assert parameters_of(model, layers=12, first=first, last=last, tp=4) == whole / 4
    inner = parameters_of(model, layers=12, first=False, last=False, tp=1)
    assert inner == 12 * model.layer_parameters
    untied = model.model_copy(update={"tied_embeddings": False})
    ends = parameters_of(untied, layers=12, first=False, last=True, tp=1) - inner
    assert ends == untied.head_parameters


def test_embeddings_are_alive_with_the_micro_batches() -> None:
    """Only on the first stage: one output of the embedding for each micro-batch in flight."""
    model = gpt()
    load = replace(LOAD, micro_batch=2)
    output = 2 * (2 * 1024) * 2048
    for tp, split in ((1, False), (4, False), (4, True)):
        one = replace(load, tp=tp, sequence_parallel=split)
        first, inner = (
            memory(model, KIND, ASSUMED_FRAMEWORK, each, layers=6, in_flight=18.0).activations_bytes
            for each in (one, replace(one, first=False))
        )
        assert first - inner == pytest.approx(3 * output / (tp if split else 1))


def test_recomputation_works_on_one_layer_at_a_time() -> None:
    """Checkpoints of all layers in flight, everything else of the layer that is computed again, and its gradients."""
    model = gpt(attention="unfused")
    load = replace(LOAD, first=False, recompute="full")
    found = memory(model, KIND, ASSUMED_FRAMEWORK, load).activations_bytes
    again = kept(attention="unfused") - kept("full", attention="unfused")
    met = 2 * 1024 * (model.hidden + model.ffn)
    assert found == pytest.approx(24 * kept("full", attention="unfused") + again + met)


BUCKET = 2e8
"""Elements of a DeepSpeed bucket."""


@pytest.mark.parametrize(
    ("zero", "expected"), [(0, 2 * BUCKET), (1, 4 * BUCKET), (2, 4 * BUCKET), (3, 2 * BUCKET)]
)
def test_buckets(zero: int, expected: float) -> None:
    """One where gradients are reduced, two where one fills while the other travels; none on one device."""
    model = gpt(layers=96, hidden=4096, heads=32)
    load = replace(LOAD, zero=zero, gradient_bytes=4, first=False, last=False)
    layers_ahead = 2 * 2 * 2 * model.layer_parameters if zero == 3 else 0
    found = memory(model, KIND, ASSUMED_FRAMEWORK, load, layers=96).buffers_bytes
    assert found == pytest.approx(expected + layers_ahead, rel=1e-12)
    assert memory(model, KIND, ASSUMED_FRAMEWORK, replace(load, dp=1), layers=96).buffers_bytes == 0
    small = gpt(layers=1, hidden=64, heads=1)
    few = memory(small, KIND, ASSUMED_FRAMEWORK, replace(load, zero=0), layers=1)
    assert few.buffers_bytes == 2 * small.layer_parameters


def test_zero_3_gathers_the_embedding_where_it_is_largest() -> None:
    """Two layers ahead, or the embedding on an end of the pipeline."""
    model = gpt(layers=4, hidden=512, heads=8, vocab=500_000)
    load = replace(LOAD, zero=3, gradient_bytes=4, tp=2)
    ends = (
        memory(model, KIND, ASSUMED_FRAMEWORK, replace(load, first=first, last=last), layers=4)
        for first, last in ((True, False), (False, True), (False, False))
    )
    first, last, inner = (found.buffers_bytes for found in ends)
    layers = 2.0 * 2 * 2 * model.layer_parameters / 2
    table = 2.0 * 2 * model.embedding_parameters / 2
    bucket = 2 * 4 * model.layer_parameters / 2
    assert inner == pytest.approx(bucket + layers)
    assert first == pytest.approx(2 * parameters_of(model, layers=4, first=True, last=False, tp=2) + table)
    assert last == pytest.approx(2 * parameters_of(model, layers=4, first=False, last=True, tp=2) + table)


@pytest.mark.parametrize(
    ("optimizer", "precision", "size"),
    [("adamw", "fp16", 12), ("sgd", "fp16", 8), ("adamw", "fp32", 8), ("sgd", "fp32", 4)],
)
def test_states_of_the_optimizers(optimizer: str, precision: str, size: int) -> None:
    """Moments, and a copy in fp32 where the working format is another."""
    model = gpt(optimizer=optimizer, precision=precision)
    parameters = parameters_of(model, layers=24, first=True, last=True, tp=1)
    assert memory(model, KIND, ASSUMED_FRAMEWORK, LOAD).optimizer_bytes == size * parameters
    assert (
        memory(model, KIND, ASSUMED_FRAMEWORK, replace(LOAD, zero=1)).optimizer_bytes == size * parameters / 8
    )


@pytest.mark.parametrize(
    ("optimizer", "states", "layer", "end"),
    [
        ("lion", "fp32", 8, 8),
        ("muon", "fp32", 8, 12),
        ("adafactor", "fp32", 4, 4),
        ("adamw", "bf16", 8, 8),
        ("adamw", "int8", 6 + 2 * 4 / 256, 6 + 2 * 4 / 256),
    ],
)
def test_states_of_other_optimizers_and_formats(
    optimizer: str, states: str, layer: float, end: float
) -> None:
    """Muon leaves embeddings to AdamW; 8-bit moments have a scale for 256 (arXiv:2110.02861, section 2.1)."""
    model = gpt(optimizer=optimizer, optimizer_states=states)
    ends = parameters_of(model, layers=0, first=True, last=True, tp=1)
    found = memory(model, KIND, ASSUMED_FRAMEWORK, replace(LOAD, zero=1)).optimizer_bytes
    assert found == pytest.approx((24 * model.layer_parameters * layer + ends * end) / 8)


def test_plain_torch_has_twelve_bytes_a_logit_and_more_activations() -> None:
    """Of its own loss; libraries write the gradient over the logits. The head's peak comes before a layer's."""
    plain = replace(LOAD, micro_batch=3, eager=True, cross_entropy="plain")
    tokens = 3 * 1024 * 51200
    model = gpt(vocab=51200)
    # The inputs of the final norm and the output layer stand beside, less the gradients that meet in a layer.
    beside = 3 * 1024 * (4 * model.hidden - 2 * (model.hidden + model.ffn))
    assert memory(model, KIND, ASSUMED_FRAMEWORK, plain).logits_bytes == 12 * tokens + beside
    fused = replace(plain, cross_entropy="fused")
    assert memory(model, KIND, ASSUMED_FRAMEWORK, fused).logits_bytes == 4 * tokens + beside
    chunked = replace(plain, cross_entropy="chunked")
    assert memory(model, KIND, ASSUMED_FRAMEWORK, chunked).logits_bytes == 2 * tokens + 4 * CHUNK + beside
    few = memory(gpt(vocab=8192), KIND, ASSUMED_FRAMEWORK, replace(chunked, micro_batch=1)).logits_bytes
    assert few == (2 + 4) * 1024 * 8192 + beside / 3
    again = memory(model, KIND, ASSUMED_FRAMEWORK, replace(plain, recompute="full"))
    whole = 3 * activation_bytes_per_layer(
        model, tp=1, micro_batch=1, recompute="none", sequence_parallel=False, eager=True
    )
    checkpoint = 3 * 1024 * 2 * model.hidden
    assert again.logits_bytes == pytest.approx(12 * tokens + beside - (whole - checkpoint))


def test_fp8_products_keep_their_inputs_in_fp8() -> None:
    """Transformer Engine's: both norms' outputs and the last factor of the MLP, and a copy of attention's output."""
    model = gpt().model_copy(update={"gated_mlp": True})
    eight = gpt(precision="fp8").model_copy(update={"gated_mlp": True})
    both = [
        activation_bytes_per_layer(each, tp=1, micro_batch=1, recompute="none", sequence_parallel=False)
        for each in (model, eight)
    ]
    assert both[0] - both[1] == pytest.approx(1024 * (2 * 2048 + 8192 - 2048))


@pytest.mark.parametrize("ways", [1, 2, 4, 8])
def test_gathered_experts_are_those_of_the_device(ways: int) -> None:
    """DeepSpeed fetches the experts that a device has as two matrices, the first of double width, and one gradient."""
    experts = ExpertsSpec.model_validate({"number": 8, "top_k": 2, "ffn": 14336})
    model = gpt(layers=8, hidden=4096).model_copy(update={"experts": experts, "gated_mlp": True})
    load = replace(LOAD, dp=8, zero=3, first=False, last=False, gathers_matrices=True)
    load = replace(load, folding=Folding(ep=ways))
    matrix = 8 / ways * 2 * 4096 * 14336
    layers = 2 * (model.layer_parameters - (1 - 1 / ways) * model.expert_parameters)
    held = memory(model, KIND, ASSUMED_FRAMEWORK, load, layers=8).buffers_bytes
    assert held == pytest.approx(2 * BUCKET + 2 * (max(min(layers, 1e9), matrix) + matrix))


def test_gathered_matrices_are_fewer_than_layers() -> None:
    """DeepSpeed fetches matrix by matrix, up to a limit of live parameters."""
    model = gpt(layers=8, hidden=16384, heads=128)
    load = replace(LOAD, zero=3, gradient_bytes=4, first=False, last=False)
    layer, matrix = (
        memory(model, KIND, ASSUMED_FRAMEWORK, each, layers=8).buffers_bytes
        for each in (load, replace(load, gathers_matrices=True))
    )
    largest = 4 * 16384**2
    assert layer - 2 * BUCKET == pytest.approx(8 * model.layer_parameters)
    assert matrix - 2 * BUCKET == pytest.approx(2 * (max(1e9, largest) + largest))


def test_torch_keeps_no_bf16_shard() -> None:
    """FSDP2 casts fp32 parameters when it gathers them."""
    load = replace(LOAD, zero=3, by_units=True)
    assert memory(gpt(), KIND, ASSUMED_FRAMEWORK, load).parameters_bytes == 0
    assert memory(gpt(precision="fp32"), KIND, ASSUMED_FRAMEWORK, load).parameters_bytes > 0
    assert memory(gpt(), KIND, ASSUMED_FRAMEWORK, replace(load, zero=1)).parameters_bytes > 0


@given(
    st.sampled_from([1e-6, 0.001, 0.01, 0.1, 0.3, 0.499]),
    st.floats(0.01, 0.5),
    st.integers(1, 120),
    st.floats(0, 0.5),
)
def test_a_plan_fits_where_its_chance_to_run_out_is_small(
    safe: float, spread: float, layers: int, kept: float
) -> None:
    """Beside a reserve either way decides alone: whichever keeps more free."""
    reserve = kept * KIND.memory_bytes
    asked = replace(KIND, safe=safe, reserve_bytes=reserve)
    found, plain = (
        memory(gpt(), device_type, ASSUMED_FRAMEWORK, LOAD, spread, layers=layers, in_flight=float(layers))
        for device_type in (asked, replace(KIND, reserve_bytes=reserve))
    )
    assert found.reserve_bytes == kept_free(asked, spread) >= reserve
    assert found.fits == (plain.fits and plain.out_of_memory <= safe)
    if plain.fits:
        assert found.out_of_memory == pytest.approx(plain.out_of_memory, rel=1e-6, abs=1e-12)


def test_a_chance_of_one_half_is_where_need_meets_capacity() -> None:
    """One standard error above it is 16 %; without an error there is no chance, only a fact."""
    one = memory(gpt(), KIND, ASSUMED_FRAMEWORK, LOAD, 0.2)
    needed = one.used_bytes - one.slack_bytes

    def on(capacity: float, spread: float) -> float:
        return replace(one, capacity_bytes=capacity, spread=spread).out_of_memory

    assert on(needed, 0.2) == pytest.approx(0.5)
    assert on(needed * exp(0.2), 0.2) == pytest.approx(0.158655, abs=1e-6)
    assert (on(needed * 0.99, 0.0), on(needed * 1.01, 0.0)) == (1.0, 0.0)


def state(kind: str, **changes: object) -> StateSpec:
    """Of ten channels, three heads, two groups of four, and chunks of five tokens."""
    sizes = {"inner": 10, "rank": 3, "size": 4, "convolved": 7, "heads": 3, "chunk": 5, "groups": 2}
    made = SimpleNamespace(kind=kind, matrices=lambda hidden: [(hidden, 100), (1, 1)], **{**sizes, **changes})
    return cast("StateSpec", made)


def test_what_layers_with_a_state_keep_of_a_token() -> None:
    """Two bytes of an element: the first product, the last one's input, and what kernels cannot make again."""
    first = 2 * (100 + 10)
    assert state_activations(state("mamba"), eager=True) == first
    assert state_activations(state("mamba"), eager=False) == first + 2 * (2 * 10 + 3 + 2 * 4)
    assert state_activations(state("mamba", rank=None), eager=False) == first + 2 * (2 * 10 + 1 + 2 * 4)
    assert state_activations(state("delta"), eager=False) == first + 2 * (7 + 10 + 3 * (2 * 4 + 5))
    assert state_activations(state("conv"), eager=False) == first + 4 * 10
    assert state_activations(state("mamba2"), eager=False) == first


def test_what_the_example_has_at_the_peak_of_a_states_backward() -> None:
    """Multiples of its sizes, as fitted to torch's allocator."""
    assert scan_bytes(state("mamba2"), 20) == pytest.approx(7 * 15 + 14 * 40 / 5 + 38 * 10 + 20 * 8)
    assert scan_bytes(state("linear"), 20) == pytest.approx(8.5 * 15 + 9.5 * 40 / 5 + 60 * 10)
    assert scan_bytes(state("delta"), 20) == pytest.approx(3 * (14 * 5 + 74 * 4) + 38 * 10)
    rounds = 11 * log2(5)
    assert scan_bytes(state("mamba"), 20) == pytest.approx(72 * 10 + 40 * (8 / 5 + rounds * 5 / 20))
    # A sequence of one token is a chunk of one.
    assert scan_bytes(state("mamba"), 1) == pytest.approx(72 * 10 + 40 * (8 + 11))
    assert scan_bytes(state("conv"), 20) == 24 * 10
