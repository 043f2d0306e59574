"""Which configurations are measured on which kind of device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.capabilities import Recompute
from planner.model.file import load_model
from planner.model.spec import ModelSpec
from tools.benchmarks.training import Configuration

MODEL_SPECS = Path(__file__).parents[3] / "model_specs"

Shape = tuple[int, int, Recompute]
"""Micro-batch, micro-batches of a step, recomputation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Configurations of one model, whose layers are calibrated first."""

    model: ModelSpec
    largest: int
    """Micro-batch at which the calibrated layers end."""
    shapes: tuple[Shape, ...]
    limits: tuple[Recompute, ...] = ()
    """Recomputations for which the largest micro-batch is searched for; not on a CPU."""

    def configurations(self) -> Iterator[Configuration]:
        """All of them."""
        return (self.configuration(*shape) for shape in self.shapes)

    def configuration(self, micro_batch: int, steps: int, recompute: Recompute) -> Configuration:
        """One of them."""
        return Configuration(
            model=with_batch(self.model, micro_batch * steps), micro_batch=micro_batch, recompute=recompute
        )


def with_batch(model: ModelSpec, global_batch: int) -> ModelSpec:
    """The model with another number of sequences in a step."""
    return _trained(model, global_batch=global_batch)


def name_of(asked: Configuration) -> str:
    """``gpt2_345m bf16, micro-batch 8 x 1, full``."""
    training = asked.model.training
    how = f"{asked.micro_batch} x {asked.micro_batches}, {asked.recompute}"
    return f"{asked.model.name} {training.precision}, micro-batch {how}"


def series_of(kind: str, size: str) -> tuple[Series, ...]:
    """Configurations for a ``cuda`` or ``cpu`` device, ``small`` or ``full``."""
    found = tuple(_gpu() if kind == "cuda" else _cpu())
    return found if size == "full" else tuple(_few(item) for item in found[:2])


def _few(series: Series) -> Series:
    """The smallest, the largest of what is kept whole, and one that recomputes."""
    whole = [shape for shape in series.shapes if shape[2] == "none"]
    again = [shape for shape in series.shapes if shape[2] != "none"]
    return Series(model=series.model, largest=whole[-2][0], shapes=(whole[0], whole[-2], *again[:1]))


def _gpu() -> Iterator[Series]:
    """Shipped GPT and Llama models in bf16."""
    gpt = _trained(load_model(MODEL_SPECS / "gpt2_345m.yaml"), precision="bf16", dropout=False)
    yield Series(
        model=gpt,
        largest=32,
        shapes=(
            *((micro_batch, 1, "none") for micro_batch in (1, 2, 4, 8, 16)),
            (4, 4, "none"),
            *((micro_batch, 1, "full") for micro_batch in (8, 16, 32)),
        ),
        limits=("full",),
    )
    llama = _trained(load_model(MODEL_SPECS / "llama_1.1b.yaml"), precision="bf16", dropout=False)
    yield Series(
        model=llama,
        largest=16,
        shapes=(
            *((micro_batch, 1, "none") for micro_batch in (1, 2, 4, 8)),
            (2, 4, "none"),
            *((micro_batch, 1, "full") for micro_batch in (4, 8, 16)),
        ),
        limits=("none",),
    )
    unfused = _trained(gpt.model_copy(update={"name": f"{gpt.name}_unfused"}), attention="unfused")
    yield Series(
        model=unfused,
        largest=8,
        shapes=((4, 1, "none"), (4, 1, "selective"), (8, 1, "selective")),
    )


def _cpu() -> Iterator[Series]:
    """Models of the same kinds that a processor trains in tenths of a second."""
    shape = {
        "layers": 4,
        "hidden": 256,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 64,
        "ffn": 1024,
        "vocab": 2048,
    }
    training = {"sequence_length": 128, "global_batch": 8, "precision": "fp32", "dropout": False}
    gpt = ModelSpec.model_validate(
        {**shape, "name": "small_gpt", "learned_positions": 128, "training": training}
    )
    llama = {"kv_heads": 2, "ffn": 704, "gated_mlp": True, "tied_embeddings": False}
    usual: tuple[Shape, ...] = (
        *((micro_batch, 1, "none") for micro_batch in (1, 2, 4, 8)),
        (2, 4, "none"),
        (4, 1, "full"),
        (8, 1, "full"),
    )
    yield Series(model=gpt, largest=8, shapes=usual)
    yield Series(
        model=ModelSpec.model_validate({**shape, **llama, "name": "small_llama", "training": training}),
        largest=8,
        shapes=usual,
    )
    yield Series(
        model=_trained(gpt.model_copy(update={"name": "small_gpt_unfused"}), attention="unfused"),
        largest=4,
        shapes=((4, 1, "none"), (4, 1, "selective")),
    )


def _trained(model: ModelSpec, **changes: Any) -> ModelSpec:
    """The model with other training."""
    return model.model_copy(update={"training": model.training.model_copy(update=changes)})
