"""Sequences divided over replicas, which have some of the tokens each and attend to those of all.

Either queries, keys and values of all tokens come together for some of the heads, which attend as usual, and what they
make of them goes back to the replicas that have the tokens (Ulysses, arXiv:2309.14509, section 3); or keys and values
go around (``example_ring``). What carries a state along the sequence needs its tokens one after the other: they come
together for some of its heads in either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional

from planner.training.example_ring import ring_attention
from planner.training.hetplan_runtime import RankPlan


class Sharing:
    """The replicas that share this rank's sequences; one alone has all of their tokens."""

    def __init__(self, ways: int = 1, place: int = 0, group: Any = None) -> None:
        self.ways, self.place, self.group = ways, place, group

    def pieces(self, length: int) -> list[slice]:
        """Where the tokens of a part of that length stand in the sequence."""
        return [slice(self.place * length, (self.place + 1) * length)]

    def part(self, tokens: torch.Tensor) -> torch.Tensor:
        """This rank's tokens of whole sequences, [sequence][position]."""
        return torch.cat([tokens[:, each] for each in self.pieces(tokens.shape[1] // self.ways)], dim=1)

    def positions(self, length: int, device: torch.device) -> torch.Tensor:
        """Positions of the tokens of a part of that length."""
        pieces = self.pieces(length)
        return torch.cat([torch.arange(each.start, each.stop, device=device) for each in pieces])

    def rows(self, table: Any, length: int) -> Any:
        """The rows of a table of positions for them: slices, which a table may be that is spread over ranks."""
        rows = [table[each] for each in self.pieces(length)]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool, sinks: Any = None
    ) -> torch.Tensor:
        """Attention of this rank's tokens to all, [sequence][head][position][width]; keys have fewer heads perhaps.

        ``sinks`` of all heads, where they have some.
        """
        if self.ways > 1:
            query, key, value = (
                _Exchange.apply(each, self.group, self.ways, 1, 2) for each in (query, key, value)
            )
            sinks = None if sinks is None else sinks.chunk(self.ways)[self.place]
        sharing = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(sharing, dim=1) for each in (key, value))
        mixed = self.mix(query, key, value, causal, sinks)
        return _Exchange.apply(mixed, self.group, self.ways, 2, 1) if self.ways > 1 else mixed

    def gather(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """This rank's share of the channels of each part, side by side, for all tokens of the sequences.

        ``parts`` have all channels of its own tokens, [sequence][position][channel].
        """
        shares = torch.cat([each.unflatten(-1, (self.ways, -1)) for each in parts], dim=-1)
        return self.in_order(_Exchange.apply(shares.flatten(-2), self.group, self.ways, 2, 1))

    def scatter(self, whole: torch.Tensor) -> torch.Tensor:
        """All channels of this rank's tokens, of which it has its share for all tokens."""
        exchanged: torch.Tensor = _Exchange.apply(self.by_rank(whole), self.group, self.ways, 1, 2)
        return exchanged

    def in_order(self, gathered: torch.Tensor) -> torch.Tensor:
        """Tokens of whole sequences from those of one rank after the other."""
        return gathered

    def by_rank(self, whole: torch.Tensor) -> torch.Tensor:
        """The other way round."""
        return whole

    def again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that may run once more for the same sequences, when others have come meanwhile."""
        return function

    def mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, sinks: Any
    ) -> torch.Tensor:
        """Attention among all tokens of a sequence."""
        if sinks is not None or query.shape[-1] != value.shape[-1]:
            return _widened(query, key, value, causal, sinks)
        mixed: torch.Tensor = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return mixed


class Around(Sharing):
    """Replicas among which keys and values go around; each has the n-th piece of a sequence from either end."""

    def pieces(self, length: int) -> list[slice]:
        """Two, which leave every replica as many scores to compute."""
        half = length // 2
        return [slice(piece * half, (piece + 1) * half) for piece in self._pair(self.place)]

    def in_order(self, gathered: torch.Tensor) -> torch.Tensor:
        """The same, of pieces from either end."""
        pieces = gathered.chunk(2 * self.ways, dim=1)
        return torch.cat([pieces[self._held.index(piece)] for piece in range(len(pieces))], dim=1)

    def by_rank(self, whole: torch.Tensor) -> torch.Tensor:
        """The same."""
        pieces = whole.chunk(2 * self.ways, dim=1)
        return torch.cat([pieces[piece] for piece in self._held], dim=1)

    @property
    def _held(self) -> list[int]:
        """The pieces that one rank after the other has."""
        return [piece for place in range(self.ways) for piece in self._pair(place)]

    def _pair(self, place: int) -> tuple[int, int]:
        return place, 2 * self.ways - 1 - place

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool, sinks: Any = None
    ) -> torch.Tensor:
        """The same; no plan passes models around that have no causal mask, or sinks."""
        pair = torch.cat((key, value), dim=-1)
        mixed: torch.Tensor = ring_attention(query, pair, self.group.group_name)[0]
        return mixed


class Packed(Sharing):
    """Sequences of several documents, each of which attends to itself alone and counts positions from its beginning."""

    def __init__(self, ways: int = 1, place: int = 0, group: Any = None) -> None:
        super().__init__(ways, place, group)
        self.lengths: tuple[tuple[int, ...], ...] = ()
        """Tokens of the documents of the sequences that come next, [sequence][document]."""

    def again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same, which finds their documents as they are now."""
        lengths = self.lengths

        def of_these(*inputs: Any) -> Any:
            self.lengths = lengths
            return function(*inputs)

        return of_these

    def positions(self, length: int, device: torch.device) -> torch.Tensor:
        """By document, [sequence][position]."""
        rows = [torch.cat([torch.arange(each) for each in row]) for row in self.lengths]
        return self.part(torch.stack(rows)).to(device)

    def rows(self, table: Any, length: int) -> Any:
        """The same."""
        return self.part(torch.stack([torch.cat([table[:each] for each in row]) for row in self.lengths]))

    def mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, sinks: Any
    ) -> torch.Tensor:
        """A call for each document: what no token may see is not computed."""
        rows, attend = [], super().mix
        for index, lengths in enumerate(self.lengths):
            one = (each[index : index + 1].split(lengths, dim=2) for each in (query, key, value))
            documents = [
                attend(own, keys, values, causal, sinks) for own, keys, values in zip(*one, strict=True)
            ]
            rows.append(torch.cat(documents, dim=2))
        return torch.cat(rows)


SINK_COLUMNS = 8
"""Channels that sinks take: fused kernels want widths that are multiples of it."""


def _widened(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Attention with values of another width than keys, or whose softmax has one score more for each head, its sink,
    whose value is zero (arXiv:2508.10925).

    Torch's fused kernels have neither, so that channels of zeros make all equally wide. For sinks a key stands ahead of
    all, and a query ahead so that the mask stays causal: in a channel of its own that key is 1, all others are 0 and
    queries are what makes the score the sink.
    """
    width, wide, ahead = query.shape[-1], value.shape[-1], int(sinks is not None)
    most = max(width + SINK_COLUMNS * ahead, wide)
    query, key, value = (
        functional.pad(each, (0, most - each.shape[-1], ahead, 0)) for each in (query, key, value)
    )
    if sinks is not None:
        query[..., width] = (sinks * width**0.5).to(query.dtype).unsqueeze(-1)
        key[:, :, 0, width] = 1
    mixed: torch.Tensor = functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=width**-0.5
    )
    return mixed[:, :, ahead:, :wide]


ALONE = Sharing()
"""Whole sequences."""


def sharing_of(plan: RankPlan, *, packed: bool = False) -> Sharing:
    """The replicas that share a rank's sequences, of several documents or of one; every rank of the job calls it."""
    ways = plan.context_parallel
    if ways == 1:
        return Packed() if packed else ALONE
    grid = torch.tensor(plan.grid).view(-1, ways, plan.tensor_parallel)
    groups = grid.transpose(1, 2).reshape(-1, ways).tolist()
    group, _ = torch.distributed.new_subgroups_by_enumeration(groups)
    place = next(members.index(plan.rank) for members in groups if plan.rank in members)
    kind = Packed if packed else Around if plan.context_kind == "ring" else Sharing
    return kind(ways, place, group)


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Deals one dimension over the ranks of a group and gathers another one; its gradient goes the other way."""

    @staticmethod
    def forward(
        context: Any, inputs: torch.Tensor, group: Any, ways: int, dealt: int, gathered: int
    ) -> torch.Tensor:
        context.arguments = group, ways, gathered, dealt
        return _exchanged(inputs, group, ways, dealt, gathered)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _exchanged(gradient, *context.arguments), None, None, None, None


def _exchanged(inputs: torch.Tensor, group: Any, ways: int, dealt: int, gathered: int) -> torch.Tensor:
    parts = torch.stack(inputs.chunk(ways, dim=dealt))
    received = torch.empty_like(parts)
    torch.distributed.all_to_all_single(received, parts, group=group)
    return torch.cat(received.unbind(), dim=gathered)
