"""The equality matrix: emitted DeepSpeed folders against one process on the whole batch.

``python -m tests.training.equality`` trains it in one start of four ranks and prints the table of the docs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from planner.cluster.spec import ClusterSpec
from planner.emit.interface import emit, write_folder
from planner.model.spec import (
    DocumentsSpec,
    EncoderSpec,
    ExpertsSpec,
    LatentSpec,
    LoraSpec,
    ModelSpec,
    PreferenceSpec,
    RunSpec,
    StateSpec,
)
from planner.plan.values import Plan, ZeroPlus
from tests.training import ranks, reference
from tests.training.launching import losses
from tests.worlds import cluster, group, model, nic, plan, pool

RANKS = 4
STEPS = 3
RATES = {"sgd": 0.5, "adamw": 1e-3}
LION = 1e-4
"""Learning rates at which three steps go far."""
PROGRAM = Path(__file__).with_name("ranks_program.py")


@dataclass(frozen=True, slots=True)
class Case:
    """A plan and the model that it trains."""

    layout: str
    """``data``, or the pipeline as ``PP2 x DP2``."""
    zero: int
    optimizer: str
    precision: str = "fp32"
    steps: int = STEPS
    ranks: int = RANKS
    """Two, each with other micro-batches, are enough for what does not depend on a layout."""
    wrapper: str = "deepspeed"
    """``deepspeed`` runs the emitted ``train.py``, ``ddp`` and ``fsdp2`` a loop around torch's own."""
    formats: tuple[tuple[str, str], ...] = ()
    """Settings of the training by their key, number formats first of all, where they are not DeepSpeed's own."""
    lora: str | None = None
    """Adapters alone are trained, on a base in this number format; ``freeze`` for frozen parts without adapters."""
    experts: bool = False
    """Experts in place of each feed-forward, more of them than most micro-batches choose."""
    cp: int = 1
    """Ranks that share the tokens of their sequences."""
    tp: int = 1
    """Ranks that share the layers of a replica."""
    ep: int = 1
    """Ranks that share the experts of a layer."""
    secondary: int | None = None
    """Ranks that keep a second copy of the parameters."""
    vocabulary: str = "tied"
    """``tied``, or ``own`` for a head of its own, norms of queries and keys, and biases."""
    dense: int = 0
    """Dense layers ahead of those with experts."""
    documents: str = ""
    """``packed`` or ``padded``; ``pairs`` of answers."""
    encoder: bool = False
    """Layers attend to the output of an encoder too, which shares the table of tokens."""
    unlike: str = ""
    """Blocks of unlike layers, by their name in ``UNLIKE``."""

    @property
    def name(self) -> str:
        """Also the folder's name."""
        formats = "".join(f"-{key}-{value}" for key, value in self.formats)
        formats += f"-{self.lora}" if self.lora else ""
        parts = [
            self.wrapper,
            *(["experts"] if self.experts else []),
            *(["encoder"] if self.encoder else []),
            *([self.documents] if self.documents else []),
            *([self.unlike] if self.unlike else []),
            *([f"dense{self.dense}"] if self.dense else []),
            *([f"cp{self.cp}"] if self.cp > 1 else []),
            *([f"ep{self.ep}"] if self.ep > 1 else []),
            *([f"hpz{self.secondary}"] if self.secondary else []),
            *([f"tp{self.tp}-{self.vocabulary}"] if self.tp > 1 else []),
            self.layout,
        ]
        kind = "-".join(parts)
        return f"{kind}-zero{self.zero}-{self.optimizer}-{self.precision}-{self.steps}{formats}"

    @property
    def lr(self) -> float:
        """Learning rate."""
        return RATES.get(self.optimizer, LION)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return sum(LAYERS[self.layout])

    def plan(self) -> Plan:
        """Without a pipeline each rank has another micro-batch and other accumulation steps."""
        layers = LAYERS[self.layout]
        if self.cp > 1:
            replicas = tuple(
                group(*where, count=self.cp, share=share, steps=steps)
                for where, share, steps in zip(POOLS, (6, 3), (2, 2), strict=True)
            )
            return plan("deepspeed", self.zero, layers, [replicas], cp=self.cp, cp_kind="ulysses", ep=self.ep)
        if self.tp > 1:
            how = "full" if self.zero == 2 else "none"
            return plan("deepspeed", self.zero, layers, [SPLIT], recompute=how)
        if self.ep > 1:
            how = "full" if self.zero == 2 else "none"
            return plan("deepspeed", self.zero, layers, [SHARING[self.ep]], ep=self.ep, recompute=how)
        if self.layout == "data":
            plus = ZeroPlus(secondary=self.secondary)
            replicas = UNEVEN if self.ranks == RANKS else UNEVEN_PAIR
            return plan("deepspeed", self.zero, layers, [replicas], zero_plus=plus)
        dp = self.ranks // len(layers)
        stages = [
            (group(*POOLS[stage * 2 // len(layers)], count=dp, share=6, steps=3),)
            for stage in range(len(layers))
        ]
        return plan("deepspeed", self.zero, layers, stages, recompute=RECOMPUTE[self.layout])

    def model(self) -> ModelSpec:
        """A tiny model; its head is tied in one kind of pipeline and not in the other."""
        return model(
            self.plan().global_batch,
            layers=self.layers,
            precision=self.precision,
            optimizer=self.optimizer,
            **dict(self.formats),
            **({"experts": EXPERTS, "dense_layers": self.dense} if self.experts else {}),
            **FROZEN.get(self.lora, {}),
            **(CROSSED if self.encoder else {}),
            **({"documents": DOCUMENTS[self.documents]} if self.documents in DOCUMENTS else {}),
            **({"preference": PreferenceSpec(beta=2.0)} if self.documents == "pairs" else {}),
            **UNLIKE.get(self.unlike, {}),
            kv_heads=4 if self.unlike == "latent" else 2,
            gated_mlp=True,
            tied_embeddings=self.layout != "pp4" and self.vocabulary == "tied",
            **(OWN if self.vocabulary == "own" else {}),
        )


CROSSED: dict[str, Any] = {
    "encoder": EncoderSpec(layers=2, sequence_length=12),
    "block": (RunSpec(feed_forward="none"), RunSpec(mixer="cross")),
}
DOCUMENTS = {
    "packed": DocumentsSpec(mean_length=5),
    "padded": DocumentsSpec(mean_length=7, spread=0.0, packing=False),
}
EXPERTS = ExpertsSpec(number=8, top_k=2, ffn=24, shared_ffn=16)
STATES = {
    "mamba": StateSpec(kind="mamba", head_dim=16, size=8, rank=4, chunk=8),
    "mamba2": StateSpec(kind="mamba2", heads=4, head_dim=8, size=8, chunk=8),
    "delta": StateSpec(kind="delta", heads=4, head_dim=8, groups=2, size=8, conv_bias=False, chunk=8),
    "linear": StateSpec(kind="linear", heads=4, head_dim=8, size=8, groups=4, chunk=8),
    "conv": StateSpec(kind="conv", head_dim=32),
}
UNLIKE: dict[str, dict[str, Any]] = {
    "sizes": {
        "qk_norm": True,
        "block": (RunSpec(kv_heads=4, ffn=48), RunSpec(heads=2, head_dim=16, value_dim=0, ffn=96)),
        "ahead": (RunSpec(ffn=32),),
        "behind": (RunSpec(heads=8, kv_heads=4, head_dim=4, value_dim=6),),
    },
    "halves": {
        "block": (RunSpec(mixer="none"), RunSpec(feed_forward="none", head_dim=16)),
        "ahead": (RunSpec(mixer="none", feed_forward="dense", ffn=40),),
        "experts": ExpertsSpec(number=4, top_k=2, ffn=24, hidden=16, shared_ffn=20),
    },
    "biased": {"experts": ExpertsSpec(number=4, top_k=1, ffn=24, router_bias=True, bias=True)},
    "sinks": {"sinks": True},
    "latent": {
        "latent": LatentSpec(q_rank=20, kv_rank=16, rope_dim=4, value_dim=8),
        "head_dim": 12,
    },
    **{
        kind: {"state": state, "block": (RunSpec(mixer="state"), RunSpec()), "output_gate": kind == "delta"}
        for kind, state in STATES.items()
    },
}
"""Layers of several sizes (Gemma 4, MiMo), halves of layers (Nemotron 3), biases of experts, sinks, latent
attention, and each kind of state."""
POOLS = ("big", "A100"), ("small", "T4")
LAYERS = {"data": [2], "pp2": [3, 1], "pp4": [2, 1, 2, 1]}
"""Layers of each stage."""
RECOMPUTE = {"pp2": "full", "pp4": "none"}
UNEVEN = (
    group("big", "A100", share=6, steps=2),
    group("big", "A100", share=5, steps=3),
    group("small", "T4", share=2),
    group("small", "T4", share=1),
)
"""Micro-batches 3+3, 2+2+1, 2 and 1: padded to three each with ZeRO 2 and 3."""
UNEVEN_PAIR = (group("big", "A100", share=5, steps=3), group("small", "T4", share=2))
"""Micro-batches 2+2+1 and 2."""
SPLIT = (group("big", "A100", tp=2, share=5, steps=3), group("small", "T4", tp=2, share=4))
"""Two ranks for a replica; micro-batches 2+2+1 and 4."""
SHARING = {
    2: (group("big", "A100", count=2, share=5, steps=2), group("small", "T4", count=2, share=2, steps=2)),
    4: (group("big", "A100", count=4, share=5, steps=2),),
}
"""Pairs with batches of their own that share experts, micro-batches 3+2 and 1+1, and all ranks."""
OWN: dict[str, Any] = {
    "vocab": 65,
    "qk_norm": True,
    "qkv_bias": True,
    "output_bias": True,
    "mlp_bias": True,
    "head_bias": True,
    "learned_positions": 16,
}
"""What tensor parallelism deals unevenly, leaves whole, or adds once."""
MATRIX = [
    *(Case("data", zero, optimizer) for zero in range(4) for optimizer in RATES),
    *(Case(layout, zero, optimizer) for layout in ("pp2", "pp4") for zero in (0, 1) for optimizer in RATES),
    *(Case("data", zero, "lion") for zero in range(4)),
    Case("pp2", 1, "lion"),
]
HALF = [
    *(Case("data", zero, "adamw", "bf16") for zero in range(4)),
    *(Case("pp2", zero, "adamw", "bf16") for zero in (0, 1)),
    *(Case("data", zero, "adamw", "bf16", formats=(("reduce_dtype", "fp32"),)) for zero in range(4)),
    *(Case("data", zero, "adamw", "bf16", formats=(("gradient_dtype", "fp32"),)) for zero in (2, 3)),
    Case("data", 2, "adamw", "bf16", formats=(("gradient_dtype", "fp32"), ("reduce_dtype", "fp32"))),
    *(Case("data", zero, "adamw", formats=(("optimizer_states", "bf16"),)) for zero in (0, 2)),
    *(Case("data", zero, "adamw", formats=(("optimizer_states", "int8"),)) for zero in (1, 3)),
    Case("data", 3, "adamw", "bf16", formats=(("master_weights", "bf16"),)),
    Case("data", 3, "adamw", "bf16", formats=(("master_weights", "bf16"), ("optimizer_states", "int8"))),
    Case("pp2", 1, "adamw", "bf16", lora="freeze"),
    Case("pp2", 1, "adamw", "bf16", formats=(("reduce_dtype", "fp32"), ("optimizer_states", "bf16"))),
]
TORCH = [
    *(Case("data", 1, optimizer, wrapper="ddp") for optimizer in RATES),
    *(Case("data", 3, optimizer, wrapper="fsdp2") for optimizer in RATES),
]
WITH_EXPERTS = [
    *(Case("data", zero, "sgd", experts=True) for zero in range(4)),
    *(Case("pp2", zero, "adamw", experts=True) for zero in (0, 1)),
    Case("data", 3, "sgd", experts=True, dense=1),
    Case("pp2", 1, "sgd", experts=True, dense=2),
    Case("data", 1, "sgd", wrapper="ddp", experts=True),
    Case("data", 3, "sgd", wrapper="fsdp2", experts=True),
]
DIVIDED = [
    *(Case("data", zero, "sgd", cp=2) for zero in range(4)),
    Case("data", 1, "adamw", cp=2, experts=True),
]
"""Two ranks for a sequence, each with a half of its tokens; both pairs with batches of their own."""
WITH_DIVIDED_EXPERTS = [
    *(Case("data", zero, "sgd", experts=True, ep=2) for zero in (1, 2, 3)),
    *(Case("data", zero, "adamw", experts=True, ep=4) for zero in (1, 2, 3)),
    Case("data", 3, "sgd", experts=True, dense=1, ep=2),
    Case("data", 1, "lion", experts=True, ep=2),
    *(Case("data", zero, "sgd", ep=2, unlike=name) for zero, name in ((2, "halves"), (3, "biased"))),
    *(Case("data", zero, "sgd", cp=2, experts=True, ep=2) for zero in (1, 3)),
    Case("data", 1, "sgd", experts=True, ep=2, encoder=True),
    Case("data", 2, "adamw", "bf16", experts=True, ep=2),
    Case("data", 3, "sgd", experts=True, ep=2, unlike="sinks"),
    Case("data", 2, "sgd", experts=True, dense=1, ep=2, unlike="latent"),
]
"""Pairs of ranks that have all experts of a layer together, and all four."""
WITH_TENSOR = [
    *(Case("data", zero, "sgd", tp=2) for zero in range(4)),
    *(Case("data", zero, "adamw", tp=2, vocabulary="own") for zero in (1, 3)),
    Case("data", 2, "sgd", tp=2, vocabulary="own"),
    Case("data", 1, "sgd", tp=2, formats=(("cross_entropy", "plain"),), vocabulary="own"),
]
"""Layers and vocabulary divided over the ranks of a replica, ZeRO over the two replicas."""
WITH_SECOND_COPY = [Case("data", 3, "sgd", secondary=2)]
WITH_PAIRS = [
    *(Case("data", zero, "sgd", documents="pairs") for zero in (1, 3)),
    Case("data", 2, "sgd", documents="pairs", lora="whole"),
    Case("pp2", 1, "sgd", documents="pairs", lora="whole"),
    *(Case(layout, zero, "sgd", documents="pairs") for layout, zero in (("pp2", 1), ("pp4", 0))),
]
"""With a copy, also a part of it on each stage, and without adapters."""
WITH_DOCUMENTS = [
    Case("data", 1, "sgd", documents="packed"),
    Case("data", 2, "sgd", cp=2, documents="packed"),
    Case("data", 3, "sgd", documents="padded"),
    Case("pp2", 1, "sgd", documents="packed"),
    Case("pp4", 0, "sgd", documents="padded"),
]
WITH_UNLIKE = [
    *(Case("data", 3, "sgd", unlike=name) for name in ("sizes", "halves", "delta", "mamba")),
    *(Case("data", 1, "sgd", unlike=name) for name in ("linear", "conv")),
    *(Case("pp2", 1, "sgd", unlike=name) for name in ("halves", "mamba2")),
    Case("pp4", 0, "sgd", unlike="sizes"),
    Case("data", 1, "sgd", tp=2, unlike="sizes"),
    Case("data", 2, "sgd", cp=2, unlike="sizes"),
    Case("data", 1, "sgd", cp=2, unlike="delta"),
    Case("data", 3, "sgd", unlike="sinks"),
    Case("data", 1, "sgd", cp=2, unlike="sinks"),
    Case("pp2", 1, "sgd", lora="whole", unlike="sinks"),
    Case("data", 3, "sgd", unlike="latent"),
    Case("pp2", 0, "sgd", unlike="latent"),
]
WITH_ENCODER = [Case("data", zero, "sgd", encoder=True) for zero in (1, 3)]
FROZEN: dict[str | None, dict[str, Any]] = {
    "whole": {"lora": LoraSpec(rank=4, targets=("q_proj", "v_proj", "down_proj"))},
    "every": {"lora": LoraSpec(rank=4)},
    "nf4": {"lora": LoraSpec(rank=4, base="nf4")},
    "freeze": {"freeze": ("embedding", "attention")},
    "experts": {"lora": LoraSpec(rank=8, targets=("q_proj", "experts.up_proj", "experts.down_proj"))},
}
WITH_FROZEN = [
    *(Case("data", zero, "sgd", experts=True, ep=2, lora="experts") for zero in (1, 2, 3)),
    Case("data", 3, "adamw", experts=True, ep=2, dense=1, lora="experts"),
    Case("data", 0, "sgd", experts=True, lora="experts"),
    Case("pp2", 1, "sgd", experts=True, lora="experts"),
    Case("data", 3, "sgd", lora="every", unlike="latent", experts=True, dense=1),
    Case("pp2", 1, "sgd", lora="nf4", unlike="mamba2"),
    Case("data", 2, "sgd", lora="every", unlike="sizes"),
    Case("data", 1, "sgd", lora="every", encoder=True),
    *(Case("data", zero, "sgd", experts=True, ep=2, lora="every") for zero in (1, 2, 3)),
    Case("data", 2, "sgd", experts=True, ep=2, lora="freeze"),
    Case("data", 3, "sgd", experts=True, ep=2, lora="freeze"),
    *(Case("data", zero, "sgd", experts=True, ep=2, lora="nf4") for zero in (1, 3)),
    *(Case("data", zero, "adamw", lora="whole") for zero in (0, 1, 3)),
    Case("data", 3, "sgd", lora="nf4"),
    Case("data", 2, "sgd", lora="freeze"),
    Case("pp2", 1, "sgd", lora="whole"),
    Case("pp4", 0, "sgd", lora="nf4"),
    Case("pp2", 0, "sgd", lora="freeze"),
    Case("data", 1, "sgd", tp=2, lora="every", vocabulary="own"),
    Case("data", 3, "sgd", tp=2, lora="whole"),
    Case("data", 2, "sgd", tp=2, lora="freeze"),
    Case("data", 0, "adamw", tp=2, lora="freeze", vocabulary="own"),
]
"""Adapters, adapters on four bits and frozen parts, on uneven batches, in pipelines and with divided layers."""
LEARNING = Case("data", 1, "adamw", steps=25, ranks=2)
"""Long enough that the loss falls."""
SLOW = frozenset(
    (
        Case("pp2", 1, "adamw"),
        Case("pp2", 1, "adamw", "bf16", lora="freeze"),
        Case("data", 2, "adamw", "bf16", formats=(("gradient_dtype", "fp32"), ("reduce_dtype", "fp32"))),
        Case("data", 2, "adamw", formats=(("optimizer_states", "bf16"),)),
        Case("data", 1, "sgd", wrapper="ddp", experts=True),
        Case("data", 3, "sgd", unlike="sizes"),
        Case("data", 2, "sgd", tp=2, vocabulary="own"),
        Case("data", 1, "adamw", cp=2, experts=True),
        Case("data", 0, "adamw"),
        Case("data", 2, "adamw", "bf16"),
        *(Case("data", zero, "adamw", "bf16", formats=(("reduce_dtype", "fp32"),)) for zero in (0, 2)),
        Case("data", 1, "sgd", documents="packed"),
        Case("data", 1, "sgd", documents="pairs"),
        Case("data", 0, "sgd", cp=2),
        Case("data", 1, "adamw", lora="whole"),
        *(
            case
            for case in WITH_DIVIDED_EXPERTS
            if case
            not in (Case("data", 3, "sgd", experts=True, ep=2), Case("data", 2, "adamw", experts=True, ep=4))
        ),
        *(Case("data", 3, optimizer) for optimizer in ("adamw", "lion")),
        Case("data", 3, "adamw", "bf16", formats=(("reduce_dtype", "fp32"),)),
        *(Case(layout, zero, name) for layout in ("pp2", "pp4") for zero, name in ((0, "adamw"), (1, "sgd"))),
        Case("pp2", 0, "adamw", "bf16"),
        Case("pp2", 0, "adamw", experts=True),
        Case("data", 1, "adamw"),
        *(Case("data", zero, "lion") for zero in (0, 1)),
        Case("data", 1, "adamw", "bf16"),
        Case("data", 1, "adamw", "bf16", formats=(("reduce_dtype", "fp32"),)),
        Case("data", 0, "adamw", formats=(("optimizer_states", "bf16"),)),
        Case("data", 1, "adamw", formats=(("optimizer_states", "int8"),)),
        Case("data", 1, "sgd", wrapper="ddp"),
        Case("data", 3, "sgd", wrapper="fsdp2"),
        *(Case("data", zero, "sgd", experts=True) for zero in (1, 3)),
        Case("data", 1, "sgd", cp=2),
        *(Case("data", zero, "sgd", tp=2) for zero in (0, 2, 3)),
        Case("data", 1, "adamw", tp=2, vocabulary="own"),
        *(Case("data", zero, "adamw", lora="whole") for zero in (0, 3)),
        *(Case("data", zero, "sgd", tp=2, lora=lora) for zero, lora in ((3, "whole"), (2, "freeze"))),
        Case("data", 0, "adamw", tp=2, lora="freeze", vocabulary="own"),
        Case("data", 3, "adamw", "bf16"),
        Case("data", 3, "sgd", documents="pairs"),
        Case("pp2", 1, "adamw", "bf16"),
        Case("pp2", 1, "adamw", experts=True),
        Case("pp2", 1, "lion"),
        Case("data", 3, "adamw", wrapper="fsdp2"),
        Case("data", 2, "adamw"),
        Case("pp4", 1, "adamw"),
        Case("data", 2, "sgd", experts=True),
        Case("pp4", 0, "sgd", documents="pairs"),
        Case("pp4", 0, "sgd", documents="padded"),
        Case("pp2", 1, "sgd", documents="pairs", lora="whole"),
        Case("pp4", 0, "sgd", lora="nf4"),
        Case("pp2", 0, "sgd", lora="freeze"),
        Case("pp2", 1, "sgd", lora="nf4", unlike="mamba2"),
        Case("data", 1, "sgd", lora="every", encoder=True),
        Case("data", 2, "sgd", lora="every", unlike="sizes"),
        *(Case("data", zero, "sgd", experts=True, ep=2, lora="every") for zero in (1, 2)),
        Case("data", 2, "sgd", experts=True, ep=2, lora="experts"),
        Case("data", 0, "sgd", experts=True, lora="experts"),
        Case("pp2", 1, "sgd", experts=True, lora="experts"),
        Case("data", 2, "sgd", experts=True, ep=2, lora="freeze"),
        *(Case("data", 3, "sgd", unlike=name) for name in ("halves", "mamba")),
        Case("data", 1, "sgd", unlike="conv"),
        Case("pp2", 1, "sgd", unlike="mamba2"),
        Case("pp4", 0, "sgd", unlike="sizes"),
        Case("data", 1, "sgd", tp=2, unlike="sizes"),
        Case("data", 2, "sgd", cp=2, unlike="sizes"),
        Case("data", 3, "sgd", unlike="sinks"),
        Case("pp2", 1, "sgd", lora="whole", unlike="sinks"),
        Case("pp2", 0, "sgd", unlike="latent"),
        Case("data", 3, "sgd", encoder=True),
        Case("data", 3, "adamw", "bf16", formats=(("gradient_dtype", "fp32"),)),
        Case("data", 3, "adamw", "bf16", formats=(("master_weights", "bf16"),)),
        Case("data", 3, "adamw", formats=(("optimizer_states", "int8"),)),
        Case("data", 3, "adamw", tp=2, vocabulary="own"),
        Case("data", 3, "sgd", cp=2),
        *(
            Case("data", 3, "sgd", experts=True, ep=2, lora=name)
            for name in ("nf4", "every", "experts", "freeze")
        ),
        Case("data", 3, "adamw", experts=True, ep=2, dense=1, lora="experts"),
        Case("data", 3, "sgd", lora="every", unlike="latent", experts=True, dense=1),
        Case("data", 3, "sgd", unlike="delta"),
    )
)
"""Pairs both sides of which quick cases have too: each layout, ZeRO stage, optimizer and format is in one of those."""


def nodes_of(case: Case) -> ClusterSpec:
    """Two nodes with half of the devices each; one with all of them where they share experts."""
    cards = (nic("eth", "lo"),)
    if case.ep == RANKS:
        return cluster(pool("big", ("A100",) * RANKS, 1, cards))
    each = case.ranks // 2
    return cluster(pool("big", ("A100",) * each, 1, cards), pool("small", ("T4",) * each, 1, cards))


def train_all(folder: Path, cases: Sequence[Case]) -> None:
    """Emit every case into a folder of its own and train all of as many ranks in one start of them."""
    for number in {case.ranks for case in cases}:
        made = {case: folder / case.name for case in cases if case.ranks == number}
        for case, path in made.items():
            write_folder(emit(case.plan(), nodes_of(case), case.model()), path)
        jobs = [
            {
                "folder": str(path),
                "arguments": ["--steps", str(case.steps), "--lr", str(case.lr)],
                "wrapper": case.wrapper,
            }
            # DeepSpeed keeps the grid of a process's first pipeline for every later engine, and the groups of its
            # first engine with tensor parallelism: they come last.
            for case, path in sorted(made.items(), key=lambda item: (item[0].tp, item[0].layout != "data"))
        ]
        (folder / "jobs.json").write_text(json.dumps(jobs))
        ranks.run(number, PROGRAM, folder / "jobs.json", log=folder / "log")


def printed_losses(folder: Path) -> list[float]:
    """The losses that the first rank printed, [step]."""
    return losses((folder / "log-0.txt").read_text())


def weight_errors(folder: Path, wanted: reference.Outcome, tp: int = 1) -> list[float]:
    """How far each rank's weights are from the reference, of the way travelled, [rank]; each has its part of ``tp``."""
    found = []
    for rank in range(len(json.loads((folder / "batches.json").read_text())["ranks"])):
        got = {plain_name(name): value for name, value in torch.load(folder / f"weights-{rank}.pt").items()}
        assert got
        assert set(got) <= set(wanted.end)
        end, start = (
            {name: _part(whole[name], value.shape, tp, rank % tp) for name, value in got.items()}
            for whole in (wanted.end, wanted.start)
        )
        found.append(reference.relative_error(got, end, start))
    return found


def _part(whole: torch.Tensor, shape: torch.Size, ways: int, place: int) -> torch.Tensor:
    """The part of a weight that a rank holds; the first ranks have what does not divide."""
    for dim, (size, held) in enumerate(zip(whole.shape, shape, strict=True)):
        if size != held:
            return whole.tensor_split(ways, dim)[place]
    return whole


def plain_name(name: str) -> str:
    """A parameter's name in the reference: pipelines number the modules, and the first may be tied."""
    if name.startswith("tied_modules."):
        return name.replace("tied_modules.embedding", "parts.0")
    return f"parts.{name}" if name[0].isdigit() else name


def reference_of(case: Case, folder: Path) -> reference.Outcome:
    """The run of one process that a case has to equal, in fp32.

    With bf16 and ZeRO 0 DeepSpeed sets up the states by a step on zero gradients, which Adam counts.
    """
    counted = case.zero == 0 and case.precision == "bf16" and case.layout == "data"
    return reference.train(folder, case.steps, case.lr, step_on_zeros=counted)


def table(made: dict[Case, Path]) -> list[str]:
    """The rows of the docs: the largest distance of any rank's weights by ZeRO stage."""
    rows = ["| runtime | layout | optimizer | ZeRO 0 | 1 | 2 | 3 |", "|---|---|---|---|---|---|---|"]
    for wrapper, layout, optimizer in dict.fromkeys(
        (case.wrapper, case.layout, case.optimizer) for case in made
    ):
        cases = [Case(layout, zero, optimizer, wrapper=wrapper) for zero in range(4)]
        errors = [
            f"{max(weight_errors(made[case], reference_of(case, made[case]))):.1e}" if case in made else ""
            for case in cases
        ]
        rows.append(f"| {wrapper} | {layout} | {optimizer} | {' | '.join(errors)} |")
    return rows


def main() -> None:
    """Train the matrix and print its table."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [*MATRIX, *TORCH]
        train_all(Path(folder), cases)
        print("\n".join(table({case: Path(folder) / case.name for case in cases})))  # noqa: T201


if __name__ == "__main__":
    main()
