"""Runs a plan with what PyTorch has itself: FSDP2 as ZeRO 0 to 3, accumulation, and clipping over all ranks.

Needs torch 2.13 and the batch runtime; a launch folder holds it as ``hetplan_torch.py``::

    layout = Layout(plan, "cuda", torch.bfloat16)
    for part in (model.embedding, *model.layers):
        layout.shard(part)
    layout.shard(model.head, last=True)
    layout.shard(model)                                    # the rest, as one group: a tied embedding
    for index, micro in enumerate(plan.micro_batches(step)):
        layout.accumulate(model, last=index == plan.steps - 1)
        (loss_of(model, data[micro.sequences]) * micro.weight / plan.steps).backward()
    layout.clip(model.parameters(), 1.0)                   # then optimizer.step()

Gradients are averaged over the replicas and nothing divides a loss by the accumulation steps, so the weights of
the batch table are divided by the steps here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard._fsdp_common import (
    FSDPMeshInfo,
    HSDPMeshInfo,
    ShardPlacementResult,
)
from torch.distributed.tensor import DTensor, Shard

from planner.training.hetplan_runtime import RankPlan

SMALL = 1e-6
"""Added to a norm that is divided by, as in torch's own clipping."""

GROWS_AFTER = 1000
"""Steps after which a loss scale is doubled."""


class Layout:
    """Process groups of a plan, and how parameters and gradients are spread over them."""

    def __init__(
        self,
        plan: RankPlan,
        device: str,
        working_type: torch.dtype,
        reduce_type: torch.dtype = torch.float32,
        *,
        on_host: bool = False,
    ) -> None:
        """Parameters rest in the format that they have and compute in the working type.

        ``on_host`` keeps them in host memory meanwhile.
        Gradients are added up in ``reduce_type``, over the replicas and, before that, over micro-batches.
        """
        self.plan = plan
        # Every rank takes part in the making of all groups.
        islands = plan.sync.islands if plan.sync else (plan.grid,)
        meshes = [self._mesh(device, ranks) for ranks in islands]
        groups = [torch.distributed.new_group(list(ranks)) for ranks in islands] if plan.sync else [None]
        own = islands.index(plan.island)
        self.mesh, self.group = meshes[own], groups[own]
        """``group``: ranks that are exact with this one; None for all."""
        self._replicas = self.mesh["copy"], self.mesh["shard"]
        """The replicas of this rank's stage, along each way in which they are spread: torch makes a mesh each time."""
        self.experts: Any = None
        """Those of ``mesh`` by the experts that they have, where these are divided."""
        if plan.expert_parallel > 1:
            self.experts = self._mesh(device, plan.grid, plan.expert_parallel)
            self._experts_spread = self._spread_of(self.experts)
        self.working_type = working_type
        self.policies = {
            "mp_policy": MixedPrecisionPolicy(param_dtype=working_type, reduce_dtype=reduce_type),
            "offload_policy": CPUOffloadPolicy() if on_host else OffloadPolicy(),
        }
        self._tied: Any = None
        self._pair: Any = None

    def _mesh(self, device: str, ranks: tuple[int, ...], owners: int = 1) -> DeviceMesh:
        """Ranks that are exact among themselves by stage, copy, shard and place in the replica, in a grid by row.

        Of experts that have other ``owners`` each a replica is all of these.
        """
        plan = self.plan
        replicas = len(ranks) // (len(plan.stages) * plan.tensor_rows * plan.tensor_parallel * owners)
        # With ZeRO 0 each replica is a shard of one and all-reduces with its copies.
        shard = 1 if plan.zero == 0 else (plan.shard_size or replicas * owners) // owners
        rows = {"rows": plan.tensor_rows} if plan.tensor_rows > 1 else {}
        sizes = {"stage": len(plan.stages), "copy": replicas // shard, "shard": shard, **rows}
        sizes |= {"expert": owners} if owners > 1 else {"tensor": plan.tensor_parallel}
        names, shape = tuple(sizes), tuple(sizes.values())
        return DeviceMesh(device, torch.tensor(ranks).view(shape), mesh_dim_names=names)

    def shard(self, module: nn.Module, *, last: bool = False) -> None:
        """Spread what is not spread yet of a module's parameters over the replicas, as the ZeRO stage says.

        They are gathered together, and with ZeRO 3 let go after the forward, but those of the ``last`` module, with
        which the backward begins, and what is left of one that has parts of its own. All replicas start from the first
        one's weights, whatever each has drawn (collective). What is not trained rests in the working type, whole on
        every device except with ZeRO 3; integers stay what they are.
        """
        self._start_alike(module)
        frozen = {
            each for each in module.parameters() if not each.requires_grad and not self._is_spread(each)
        }
        for each in frozen:
            form = self.working_type if each.is_floating_point() else each.dtype
            narrow = each.detach().to(self.mesh.device_type, form)
            torch.utils.swap_tensors(each, nn.Parameter(narrow, requires_grad=False))
        # What a part shares with one that is spread already is spread with that.
        theirs = {each for each in module.parameters() if self._is_spread(each)} - _inside(module)
        others = theirs | frozen if self.plan.zero < 3 else theirs
        more: dict[str, Any] = {"ignored_params": others} if others else {}
        if self.experts is not None:
            more["shard_placement_fn"] = self._placement
        mesh = self.mesh["copy", "shard"] if self._several else self.mesh["shard"]
        leaves = self.plan.zero == 3 and not (last or _parts(module))
        fully_shard(module, mesh=mesh, reshard_after_forward=leaves, **self.policies, **more)

    @property
    def _several(self) -> bool:
        """True where there are several copies of what is sharded."""
        return self.plan.zero == 0 or self.plan.shard_size is not None

    def deal(self, weight: torch.Tensor) -> torch.Tensor:
        """This rank's part of what all experts of a layer have, the first dimension of which counts these."""
        mesh = self.experts["expert"]
        own = weight.detach().chunk(mesh.size())[mesh.get_local_rank()].to(mesh.device_type, copy=True)
        dealt = DTensor.from_local(own, mesh, [Shard(0)])
        trained = weight.requires_grad
        return nn.Parameter(dealt, requires_grad=trained) if isinstance(weight, nn.Parameter) else dealt

    def _spread_of(self, mesh: DeviceMesh) -> FSDPMeshInfo:
        if self._several:
            return HSDPMeshInfo(mesh["copy", "shard"], shard_mesh_dim=1, replicate_mesh_dim=0)
        return FSDPMeshInfo(mesh["shard"], shard_mesh_dim=0)

    def _placement(self, parameter: nn.Parameter) -> ShardPlacementResult | None:
        """Experts are spread over the replicas that have the same ones, and cut where all get equally much."""
        if not self._is_dealt(parameter):
            return None
        ways = self.experts["shard"].size()
        own = parameter.to_local().shape
        dim = next((dim for dim in range(2) if own[dim] % ways == 0), 0)
        return ShardPlacementResult(Shard(dim), self._experts_spread)

    @property
    def owners(self) -> Any:
        """The group of ranks that have all experts of a layer together; None where each has."""
        return None if self.experts is None else self.experts["expert"].get_group()

    @staticmethod
    def _is_dealt(tensor: torch.Tensor) -> bool:
        """True for a part of the experts' weights."""
        return isinstance(tensor, DTensor) and "expert" in (tensor.device_mesh.mesh_dim_names or ())

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _start_alike(self, module: nn.Module) -> None:
        """Give every replica the first one's parameters and buffers, where they are whole and have values."""
        for each in (*module.parameters(), *module.buffers()):
            local = each.to_local() if isinstance(each, DTensor) else each
            if self._is_spread(each) or local.is_meta:
                continue
            sent = local.detach().to(self.mesh.device_type).contiguous()
            alike = self._replicas
            if self._is_dealt(each):
                alike = self.experts["copy"], self.experts["shard"]
            for replicas in alike:
                if replicas.size() > 1:
                    torch.distributed.broadcast(sent, group_src=0, group=replicas.get_group())
            if sent.data_ptr() != local.data_ptr():
                local.copy_(sent)

    @staticmethod
    def _is_spread(tensor: torch.Tensor) -> bool:
        """True where each replica has a part, or has had the first one's values."""
        return isinstance(tensor, DTensor) and "shard" in (tensor.device_mesh.mesh_dim_names or ())

    def tie(self, weight: Any) -> None:
        """Make ``clip`` add up the gradients of a parameter that the first and the last stage both hold.

        Every rank calls it, the stages in between with None.
        """
        ends = self.mesh.mesh[[0, -1]].flatten(1).T.tolist()
        self._pair, _ = torch.distributed.new_subgroups_by_enumeration(ends)
        self._tied = weight

    def accumulate(self, module: Any, *, last: bool) -> None:
        """Call before each backward: ZeRO 0 and 1 reduce gradients, and 0 to 2 let parameters go, in the last one.

        Copies of what is sharded are added up in the last one too.
        """
        module.set_requires_gradient_sync(last or self.plan.zero >= 2)
        module.set_requires_all_reduce(last)
        module.set_reshard_after_backward(last or self.plan.zero == 3)

    def take(self, module: Any, *, last: bool) -> None:
        """Call after gradients of weights that no whole backward has made: adds them up, and reduces them in the last.

        FSDP2 counts on hooks of a backward, which those of weights alone do not run.
        """
        self.accumulate(module, last=last)
        root = fully_shard.state(module)
        for state in root._state_ctx.all_states:
            for group in state._fsdp_param_groups:
                group.post_backward()
        root._root_post_backward_final_callback()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def clip(self, parameters: Iterable[Any], most: float, loss_scale: float = 1.0) -> torch.Tensor:
        """Scale gradients so that their norm over the whole model is at most ``most``; returns the norm.

        Gradients of losses that were multiplied by ``loss_scale`` are divided by it.
        """
        if self._tied is not None:
            torch.distributed.all_reduce(self._tied.grad.to_local(), group=self._pair)
        gradients = [each.grad for each in parameters if each.grad is not None]
        locals_ = [each.to_local() if isinstance(each, DTensor) else each for each in gradients]
        # One launch for many tensors: nothing hides what the host does here.
        norms = torch._foreach_norm(locals_, 2.0, torch.float32)
        own = torch.stack(torch._foreach_div(norms, [self._holders(each) ** 0.5 for each in gradients]))
        total = own.square().sum().to(self.mesh.device_type)
        torch.distributed.all_reduce(total, group=self.group)
        norm = total.sqrt() / loss_scale
        factor = (most / (norm + SMALL)).clamp(max=1.0) / loss_scale
        torch._foreach_mul_(locals_, factor.to(own.device))
        return norm

    def spread(self, model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
        """What checkpoints have for a state of the model or its optimizer."""
        return dict(state)

    def taken(self, model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
        """What this rank has of such a state."""
        return dict(state)

    def _holders(self, gradient: DTensor) -> float:
        """Ranks that hold the same part of a gradient."""
        parts, twice = 1, self._tied is not None and gradient is self._tied.grad
        for size, placement in zip(gradient.device_mesh.shape, gradient.placements, strict=True):
            parts *= 1 if placement.is_replicate() else size
        replicas = math.prod(each.size() for each in self._replicas)
        ranks = replicas * self.plan.tensor_rows * self.plan.tensor_parallel
        return float(ranks * (2 if twice else 1) / parts)


def _parts(module: nn.Module) -> list[nn.Module]:
    """The modules in it that are spread on their own."""
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _inside(module: nn.Module) -> set[Any]:
    """Their parameters."""
    return {each for part in _parts(module) for each in part.parameters()}


class LossScale:
    """What losses are multiplied by, so that small gradients do not vanish in fp16: as large as goes well."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.steps = 0
        """Steps since it changed."""

    def accepts(self, norm: torch.Tensor) -> bool:
        """True when the gradients are finite; else the step has to be left out, and the scale is halved.

        All ranks see the same norm, so all of them decide alike.
        """
        finite = bool(norm.isfinite())
        self.steps += 1
        if not finite or self.steps == GROWS_AFTER:
            self.value *= 2.0 if finite else 0.5
            self.steps = 0
        return finite
