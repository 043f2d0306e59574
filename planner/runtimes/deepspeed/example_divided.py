"""How replicas divide the experts of the example, by DeepSpeed's groups: of ranks that have all experts of a layer
together, and of ranks that have the same ones, over which their gradients are reduced and ZeRO shards them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deepspeed.moe.layer import MoE
from deepspeed.runtime.zero import GatheredParameters
from deepspeed.utils import groups
from torch import nn

from planner.training.example_experts import Owners
from planner.training.example_model import Experts, as_it_is


class Replicas(Owners):
    """Consecutive ranks that have some of the experts each."""

    def own(self, weight: Any) -> torch.Tensor:
        """A weight has this rank's experts alone; DeepSpeed divides its gradient by all ranks, as all others."""
        return weight


class Marked(MoE):  # type: ignore[misc]
    """What tells DeepSpeed that experts are divided; it has none of its own."""

    def __init__(self, name: str, number: int) -> None:
        nn.Module.__init__(self)
        self.expert_group_name, self.num_experts, self.num_local_experts = name, number, 0

    def set_deepspeed_parallelism(self, *_: Any) -> None:
        """The groups are there already."""


def dividing(ways: int, zero: int) -> Callable[[nn.Module], nn.Module]:
    """A function that leaves this rank its part of a new module's experts (collective)."""
    if ways == 1:
        return as_it_is
    name = f"ep_size_{ways}"
    groups._create_expert_and_data_parallel(ways)
    owners = Replicas(ways, groups._get_expert_parallel_group(name))
    place = groups._get_expert_parallel_rank(name)

    def part(whole: Any) -> Any:
        if not isinstance(whole, nn.Parameter):
            return whole.chunk(ways)[place].clone()
        with GatheredParameters([whole]):
            own: Any = whole.detach().chunk(ways)[place].clone()
        own = nn.Parameter(own, requires_grad=whole.requires_grad)
        own.allreduce, own.group_name = False, name
        if zero == 3:
            # As DeepSpeed's AutoEP marks those that it divides.
            own.ds_zero_placement_family, own.ds_zero_partition_group_name = "autoep_expert", name
            own.ds_zero_partition_process_group = groups._get_expert_data_parallel_group(name)
            whole.convert_to_zero_parameters([own])
        return own

    def divide(module: nn.Module) -> nn.Module:
        for each in module.modules():
            if isinstance(each, Experts):
                each.divide(owners, part)
                if zero < 3 and each.trained:
                    each.divided = Marked(name, each.number)
        return module

    return divide
