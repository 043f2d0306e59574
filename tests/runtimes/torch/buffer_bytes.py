"""Bytes that FSDP2 copies to and from its buffers in a step of four micro-batches: ``buffer_bytes.py ZERO``.

One of eight ranks, which are not there; prints bytes of what is gathered, of what is reduced, and of sums.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.measure.layers import share_of
from planner.runtimes.torch.hetplan_torch import Layout
from planner.training.example_model import Transformer
from planner.training.hetplan_loss import mean_loss
from planner.training.hetplan_runtime import RankPlan, StagePlan
from tests.worlds import model

RANKS = 8
MICRO_BATCHES = 4
MODEL = model(RANKS * MICRO_BATCHES, 6, hidden=128, head_dim=32, ffn=512, vocab=256, tied_embeddings=False)
KINDS = {
    torch.ops.fsdp.split_with_sizes_copy.default: "gathered",
    torch.ops.fsdp.chunk_cat.default: "reduced",
}


class Counter(TorchDispatchMode):  # type: ignore[misc]
    """Adds up what operations on whole gradients and parameters read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = dict.fromkeys(("gathered", "reduced", "summed"), 0)
        self.weights: set[torch.Size] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        read, written = args[0], kwargs.get("out")
        if function in KINDS:
            self.moved[KINDS[function]] += sum(each.nbytes for each in tree_leaves([read, written]))
        adds = function is torch.ops.aten.add_.Tensor and read.dtype == torch.float32
        if adds and args[1].dtype == torch.bfloat16:
            self.moved["summed"] += 2 * read.nbytes + args[1].nbytes
        if function is torch.ops.aten._to_copy.default and read.shape in self.weights:
            widens = read.dtype == torch.bfloat16 and result.dtype == torch.float32
            self.moved["summed"] += widens * (read.nbytes + result.nbytes)
        return result


def main() -> None:
    """The counts as JSON."""
    zero = int(sys.argv[1])
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    plan = RankPlan(
        rank=0,
        world_size=RANKS,
        data_parallel=RANKS,
        global_batch=RANKS * MICRO_BATCHES,
        zero=zero,
        stages=(StagePlan(0, MODEL.layers, "none"),),
        stage=0,
        first_sequence=0,
        sizes=(1,) * MICRO_BATCHES,
        weights=(1.0,) * MICRO_BATCHES,
        grid=tuple(range(RANKS)),
    )
    layout = Layout(plan, "cpu", torch.bfloat16)
    whole = Transformer(share_of(MODEL, 1))
    counter = Counter()
    counter.weights = {each.shape for each in whole.parameters()}
    for part in (whole.embedding, *whole.layers):
        layout.shard(part)
    layout.shard(whole.head, last=True)
    layout.shard(whole)
    tokens = torch.randint(MODEL.vocab, (1, MODEL.training.sequence_length + 1))
    with counter:
        for index in range(MICRO_BATCHES):
            layout.accumulate(whole, last=index == MICRO_BATCHES - 1)
            mean_loss(whole(tokens[:, :-1]), tokens[:, 1:]).backward()
    print(json.dumps(counter.moved))  # noqa: T201
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
