"""Attention around a ring: each rank has some tokens of a sequence and meets the keys and values of all in turn.

While a rank attends to those that it has, they go on to its next neighbour (arXiv:2310.01889). What it makes of them is
added up by the logarithm of each token's sum of exponents, as the tiles of one flash attention are. A rank has two
pieces of a sequence, the n-th from either end, so that a causal mask leaves all as much to do (arXiv:2311.09431).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed
import torch.nn.functional as functional

aten = torch.ops.aten


class Turn(NamedTuple):
    """Which of a rank's queries attend to which of the keys that have come, in tokens."""

    queries: slice
    keys: slice
    causal: bool


def _turn(place: int, source: int, length: int) -> Turn:
    """Those that may see each other: of an earlier rank's keys the first piece, of a later one's only the second piece
    of the queries sees both."""
    if source == place:
        return Turn(slice(length), slice(length), causal=True)
    if source < place:
        return Turn(slice(length), slice(length // 2), causal=False)
    return Turn(slice(length // 2, length), slice(length), causal=False)


def _around(query: torch.Tensor, pair: torch.Tensor, group: str) -> tuple[torch.Tensor, torch.Tensor]:
    mixed = _by_token(query, pair, torch.float32).zero_()
    total = query.new_full(query.shape[:3], float("-inf"), dtype=torch.float32)
    ring = _Ring(group)
    for turn, here in ring.around(pair):
        _add(mixed, total, query, here, turn)
    return mixed.to(query.dtype), total


def _add(
    mixed: torch.Tensor, total: torch.Tensor, query: torch.Tensor, pair: torch.Tensor, turn: Turn
) -> None:
    """Attention to keys and values that have come, and its sums, to those of the turns before."""
    keys, values = pair[:, :, turn.keys].split((query.shape[-1], mixed.shape[-1]), dim=-1)
    found, sums = _attended(query[:, :, turn.queries], keys, values, causal=turn.causal)
    before, so_far = total[:, :, turn.queries], mixed[:, :, turn.queries]
    so_far.lerp_(found.float(), torch.sigmoid(sums - before).unsqueeze(-1))
    torch.logaddexp(before, sums, out=before)


def _shapes(query: torch.Tensor, pair: torch.Tensor, group: str) -> tuple[torch.Tensor, torch.Tensor]:
    return _by_token(query, pair, query.dtype), query.new_empty(query.shape[:3], dtype=torch.float32)


def _by_token(query: torch.Tensor, pair: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Room for outputs, those of all heads of a token together: nobody needs a copy of it to put them so."""
    sequences, heads, length, width = query.shape
    return query.new_empty((sequences, length, heads, pair.shape[-1] - width), dtype=dtype).transpose(1, 2)


def _kept(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(context: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of keys and values go around behind them, and come home with one turn more."""
    query, pair, mixed, total = context.saved_tensors
    of_query = torch.zeros_like(query, dtype=torch.float32)
    rows = gradient, query, mixed, total
    ring = _Ring(context.group)
    carried: Any = None
    for turn, here in ring.around(pair):
        of_pair = _add_back(of_query, rows, here, turn)
        if carried is not None:
            of_pair += carried()
            carried = None
        carried = ring.pass_on(of_pair)
        del of_pair, here
    return of_query.to(query.dtype), carried(), None


def _add_back(
    of_query: torch.Tensor, rows: Sequence[torch.Tensor], pair: torch.Tensor, turn: Turn
) -> torch.Tensor:
    """Gradients of queries from one turn to those of the turns before; those of its keys and values."""
    widths = rows[1].shape[-1], rows[2].shape[-1]
    some = [each[:, :, turn.queries] for each in rows]
    keys, values = pair[:, :, turn.keys].split(widths, dim=-1)
    of_some, of_keys, of_values = _attended_back(some, (keys, values), causal=turn.causal)
    of_query[:, :, turn.queries] += of_some
    unseen = pair.shape[2] - keys.shape[2]
    return functional.pad(torch.cat((of_keys, of_values), dim=-1), (0, 0, 0, unseen))


ring_attention = torch.library.custom_op("hetplan::ring_attention", _around, mutates_args=())
"""Causal attention of a rank's tokens to those of all ranks of a group, by its name (collective), and the logarithm of
the sum of exponents of each token.

Queries and outputs are [sequence][head][token][width]; so are keys, each with its value behind it, of which there may
be fewer heads. One operation, so that selective checkpoints keep it whole and send nothing again.
"""
ring_attention.register_fake(_shapes)
ring_attention.register_autograd(_gradients, setup_context=_kept)
AROUND = torch.ops.hetplan.ring_attention.default
"""The same, as selective checkpoints see it."""


class _Ring:
    """A rank's place among the members of a group, each of which sends to the next one."""

    def __init__(self, group: str) -> None:
        self.group = torch.distributed.distributed_c10d._resolve_process_group(group)
        self.members = torch.distributed.get_process_group_ranks(self.group)
        self.place = self.members.index(torch.distributed.get_rank())

    def around(self, here: torch.Tensor) -> Iterator[tuple[Turn, torch.Tensor]]:
        """What each member has, one's own first; the next is on its way while one is worked on."""
        ways, length = len(self.members), here.shape[2]
        for back in range(ways):
            arrives = self.pass_on(here) if back < ways - 1 else None
            yield _turn(self.place, (self.place - back) % ways, length), here
            if arrives is not None:
                here = arrives()

    def pass_on(self, tensor: torch.Tensor) -> Any:
        """Send a tensor to the next member while something else is done; call for that of the one before."""
        received = torch.empty_like(tensor)
        index, ways = self.place, len(self.members)
        messages = [
            torch.distributed.P2POp(
                torch.distributed.isend, tensor, self.members[(index + 1) % ways], self.group
            ),
            torch.distributed.P2POp(torch.distributed.irecv, received, self.members[index - 1], self.group),
        ]
        works = torch.distributed.batch_isend_irecv(messages)

        def arrived() -> torch.Tensor:
            for work in works:
                work.wait()
            return received

        return arrived


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """One flash attention, and the logarithms of its sums of exponents."""
    scale, wide = query.shape[-1] ** -0.5, value.shape[-1]
    query, key, value = _filled(query, key, value)
    if query.device.type == "cpu":
        mixed, sums = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
    elif not _has_flash(query):
        mixed, sums, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, causal, scale=scale
        )
    else:
        mixed, sums, *_ = aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False, scale=scale
        )
    return mixed[..., :wide], sums[:, :, : query.shape[2]]


def _attended_back(
    rows: Sequence[torch.Tensor], pair: Sequence[torch.Tensor], *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of queries, keys and values from one turn: with outputs and sums of the whole, parts of the whole.

    ``rows`` are the gradient of the outputs, queries, outputs and sums; ``pair`` keys and values.
    """
    (gradient, query, mixed, total), (key, value) = rows, pair
    scale, heads, (width, wide) = query.shape[-1] ** -0.5, key.shape[1], (key.shape[-1], value.shape[-1])
    query, key, value = _filled(query, key, value)
    gradient, mixed = (_widened(each, query.shape[-1]) for each in (gradient, mixed))
    total = total.contiguous()
    if query.device.type == "cpu":
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, mixed, total, 0.0, causal, scale=scale
        )
    elif not _has_flash(query):
        # Its sums stand in rows of a multiple of 32; nothing is drawn at random, so that seeds are never read.
        total = functional.pad(total, (0, -total.shape[-1] % 32))
        seed = torch.zeros((), dtype=torch.int64, device=query.device)
        found = aten._scaled_dot_product_efficient_attention_backward(
            *(gradient, query, key, value, None, mixed, total, seed, seed, 0.0),
            [True, True, True, False],
            causal,
            scale=scale,
        )
    else:
        seed, lengths = (
            torch.zeros(2, dtype=torch.uint64, device=query.device),
            (query.shape[2], key.shape[2]),
        )
        found = aten._scaled_dot_product_flash_attention_backward(
            *(gradient, query, key, value, mixed, total, None, None, *lengths),
            *(0.0, causal, seed, seed),
            scale=scale,
        )
    of_query, of_key, of_value = found[:3]
    of_key, of_value = (each.unflatten(1, (heads, -1)).sum(2) for each in (of_key, of_value))
    return of_query[..., :width], of_key[..., :width], of_value[..., :wide]


def _has_flash(tensor: torch.Tensor) -> bool:
    """Torch's flash kernels are for 16 bits, and for NVIDIA's devices from Ampere on."""
    if tensor.dtype is torch.float32:
        return False
    return tensor.device.type != "cuda" or bool(torch.cuda.get_device_capability(tensor.device) >= (8, 0))


def _filled(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values for every head of the queries, all of one width that kernels have: channels of zeros."""
    most = max(query.shape[-1], value.shape[-1])
    most += -most % 8
    sharing = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(sharing, dim=1) for each in (key, value))
    query, key, value = (_widened(each, most) for each in (query, key, value))
    return query, key, value


def _widened(tensor: torch.Tensor, width: int) -> torch.Tensor:
    return tensor if tensor.shape[-1] == width else functional.pad(tensor, (0, width - tensor.shape[-1]))
