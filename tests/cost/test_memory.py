"""Bytes: ZeRO's table, Korthikanti's formulas, micro-batches in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration import DEFAULT
from planner.cost.memory import Load, activation_bytes_per_layer, layers_in_flight, memory, parameters_of
from planner.targets import Recompute
from planner.topology import Topology
from tests.clusters import cluster, gpt, pool

ZERO_TABLE_1 = {
    # arXiv:1910.02054, table 1: GB of model states of 7.5 B parameters for ZeRO 1, 2 and 3
    1: (120, 120, 120),
    4: (52.5, 41.3, 30),
    16: (35.6, 21.6, 7.5),
    64: (31.4, 16.6, 1.88),
    256: (30.4, 15.4, 0.47),
    1024: (30.1, 15.1, 0.12),
}
KIND = Topology(cluster(pool("p"))).kinds[0]
LOAD = Load(
    layers=24,
    first=True,
    last=True,
    tp=1,
    dp=8,
    micro_batch=1,
    layers_in_flight=24.0,
    recompute="none",
    sequence_parallel=False,
    zero=0,
    gradient_bytes=2,
)


@pytest.mark.parametrize(("dp", "row"), ZERO_TABLE_1.items())
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_are_those_of_the_zero_paper(dp: int, row: tuple[float, ...], zero: int) -> None:
    """Exact to the rounding of the printed table."""
    model = gpt()
    found = memory(model, KIND, DEFAULT, replace(LOAD, dp=dp, zero=zero))
    states = found.parameters_bytes + found.gradients_bytes + found.optimizer_bytes
    scale = 7.5e9 / parameters_of(model, layers=24, first=True, last=True, tp=1)
    assert states * scale / 1e9 == pytest.approx(row[zero - 1], rel=0.01, abs=0.006)


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
    found = memory(gpt(), KIND, DEFAULT, LOAD)
    assert found.used_bytes + found.reserve_bytes + found.headroom_bytes == pytest.approx(
        found.capacity_bytes
    )
    assert found.fits
    assert not memory(gpt(), KIND, DEFAULT, replace(LOAD, micro_batch=500)).fits


def test_buffers_make_memory_not_monotone_in_the_stage() -> None:
    """The bucket that fills while another travels can weigh more than what sharding over two saves."""
    model = gpt(layers=2, hidden=512, heads=8)
    none, one, three = (
        memory(model, KIND, DEFAULT, replace(LOAD, layers=2, zero=zero, dp=2)).buffers_bytes
        for zero in (0, 1, 3)
    )
    assert one == 2 * none
    assert three > none
