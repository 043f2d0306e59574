"""A plan: every decision of one training run, immutable and validated; and where in it a broken rule shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AliasPath, Field, model_serializer, model_validator

from planner.capabilities import (
    ContextKind,
    OffloadTo,
    Recompute,
    Schedule,
    SyncFormat,
    SyncKind,
    SyncMethod,
)
from planner.errors import KeyPath, PartError, PlanError
from planner.field_metadata import json_fields
from planner.files.fields import (
    Batch,
    Devices,
    ExchangeSteps,
    GridSide,
    HostShare,
    KeptShare,
    Layers,
    Name,
    NodeDevices,
    ShardParts,
    Width,
    ZeroStage,
    strict,
    whole,
)
from planner.files.messages import shown
from planner.frozen import record
from planner.ranges import DEVICES, HOST_SHARE, LAYERS, STAGES


def _with_micro_batch(schema: dict[str, Any]) -> None:
    """The file repeats what follows from share and steps, for its readers."""
    schema["properties"]["micro_batch"] = {**schema["properties"]["share"], "description": "share / steps"}


@strict(_with_micro_batch)
@record(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Identical replicas of one stage; a replica is one tensor-parallel group of devices."""

    pool: str
    """Name of the pool."""
    gpu: str
    """Device type in the pool."""
    tp: NodeDevices
    """Devices of one replica."""
    count: Devices
    """Replicas of the group."""
    local_batch: Annotated[Batch, Field(alias="share")]
    """Sequences of one replica in one optimizer step."""
    accumulation_steps: Annotated[Batch, Field(alias="steps")]
    """Micro-batches of one replica in one optimizer step."""
    shard: ShardParts = 1
    """Parts of what ZeRO shards that one replica holds, of as many as all replicas of the stage add up to."""

    def __post_init__(self) -> None:
        if (
            min(self.tp, self.count, self.accumulation_steps) < 1
            or self.local_batch < self.accumulation_steps
        ):
            raise PlanError(
                f"replicas on {self.pool}: tp, count and steps must be at least 1 and share at least steps, got "
                f"tp {self.tp}, count {self.count}, share {self.local_batch}, steps {self.accumulation_steps}"
            )

    @model_validator(mode="wrap")
    @classmethod
    def _from_file(cls, data: Any, read: Callable[[Any], Self]) -> Self:
        """The group without the micro-batch that the file repeats, which must be the one that follows."""
        if not isinstance(data, dict):
            return read(data)
        group = read({key: value for key, value in data.items() if key != "micro_batch"})
        if "micro_batch" not in data:
            raise PlanError(f"missing, expected {group.micro_batch}", path=("micro_batch",))
        if data["micro_batch"] != group.micro_batch:
            follows = f"{group.micro_batch} (share {group.local_batch} in {group.accumulation_steps} steps)"
            raise PlanError(f"expected {follows}, got {data['micro_batch']}", path=("micro_batch",))
        return group

    @model_serializer(mode="wrap")
    def _to_file(self, written: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        data = written(self)
        kept = {key: data[key] for key in ("pool", "gpu", "tp", "count")}
        numbers = {"share": self.local_batch, "steps": self.accumulation_steps}
        shard = {} if self.shard == 1 else {"shard": self.shard}
        return {**kept, "micro_batch": self.micro_batch, **numbers, **shard}

    @property
    def devices(self) -> int:
        """Devices of all replicas of the group."""
        return self.tp * self.count

    @property
    def micro_batch(self) -> int:
        """Sequences of the largest micro-batch of a replica."""
        return -(-self.local_batch // self.accumulation_steps)

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Sequences of each micro-batch in order, [steps]: as even as possible, larger ones first."""
        small, larger = divmod(self.local_batch, self.accumulation_steps)
        return (small + 1,) * larger + (small,) * (self.accumulation_steps - larger)


def _with_layers(schema: dict[str, Any]) -> None:
    """The file has first and end in one list."""
    first, end = (schema["properties"].pop(name) for name in ("first_layer", "end_layer"))
    schema["properties"]["layers"] = {"type": "array", "prefixItems": [first, end]}


@strict(_with_layers)
@record(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive layers and the replicas that hold them."""

    first_layer: Annotated[int, whole(LAYERS, least=0), Field(validation_alias=AliasPath("layers", 0))]
    """First layer, counted from 0."""
    end_layer: Annotated[Layers, Field(validation_alias=AliasPath("layers", 1))]
    """One past the last layer."""
    recompute: Recompute = "none"
    """none, selective or full."""
    replicas: Annotated[tuple[ReplicaGroup, ...], Field(min_length=1, strict=False)]

    def __post_init__(self) -> None:
        if not 0 <= self.first_layer < self.end_layer:
            what = f"a stage needs at least one layer, got [{self.first_layer}, {self.end_layer})"
            raise PlanError(what, path=("layers",))
        if not self.replicas:
            raise PlanError(f"the stage of layers [{self.first_layer}, {self.end_layer}) has no replicas")

    @model_validator(mode="before")
    @classmethod
    def _pair(cls, data: Any) -> Any:
        layers = data.get("layers") if isinstance(data, dict) else [0, 0]
        if not isinstance(layers, list) or len(layers) != 2:
            what = "the first layer of the stage, and one past its last"
            raise PartError(f"expected a list of 2, got {shown(layers)}: {what}", ("layers",))
        return data

    @model_serializer(mode="wrap")
    def _to_file(self, written: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        data = written(self)
        return {"layers": [data.pop("first_layer"), data.pop("end_layer")], **data}

    @property
    def layers(self) -> int:
        """Transformer layers of the stage."""
        return self.end_layer - self.first_layer

    @property
    def dp(self) -> int:
        """Replicas of the stage."""
        return sum(group.count for group in self.replicas)

    @property
    def devices(self) -> int:
        """Devices of the stage."""
        return sum(group.devices for group in self.replicas)

    @property
    def shards(self) -> tuple[int, ...]:
        """Parts of what ZeRO shards that each replica holds, [replica]; none where all hold equally much."""
        if len({group.shard for group in self.replicas}) == 1:
            return ()
        return tuple(group.shard for group in self.replicas for _ in range(group.count))

    @property
    def sequences(self) -> int:
        """Sequences of all its replicas in one optimizer step; those that replicas share count for each of them."""
        return sum(group.count * group.local_batch for group in self.replicas)


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Offload:
    """What is kept off the devices between its uses (arXiv:2101.06840, arXiv:2104.07857)."""

    optimizer: OffloadTo = "none"
    """Optimizer states and gradients; the host's processors then update the parameters."""
    parameters: OffloadTo = "none"
    """Parameters in the working format, read for every gather."""
    activations: OffloadTo = "none"
    """Checkpoints of full recomputation."""
    ratio: HostShare = 1.0
    """Share of the parameters that the host updates; devices update the rest and keep their states (Twin-Flow)."""
    super_offload: bool = False
    """True when the host updates while the last backward of a step still runs (SuperOffload, arXiv:2509.21271)."""

    def __post_init__(self) -> None:
        if self.activations == "nvme":
            raise PlanError("activations can be offloaded to cpu only, got nvme")
        if self.parameters != "none" and self.optimizer == "none":
            raise PlanError("parameters off the device need the optimizer states off it too")
        if not HOST_SHARE.holds(self.ratio):
            least, most = HOST_SHARE
            raise PlanError(
                f"expected a share from {least:g} to {most:g}, got {self.ratio:g}", path=("ratio",)
            )
        for key, on in (("ratio", self.ratio < 1), ("super_offload", self.super_offload)):
            if on and self.optimizer != "cpu":
                what = "it is for states in host memory, expected optimizer: cpu beside it"
                raise PlanError(f"{what}, got {self.optimizer}", path=(key,))

    @model_serializer(mode="wrap")
    def _to_file(self, written: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        usual = {"ratio": 1.0, "super_offload": False}
        return {key: value for key, value in written(self).items() if value != usual.get(key, "none")}

    @property
    def anything(self) -> bool:
        """False when everything stays on the devices."""
        # Parameters rest elsewhere only with the optimizer's states.
        return self.optimizer != "none" or self.activations != "none"

    @property
    def uses_nvme(self) -> bool:
        """True when something is kept on NVMe."""
        return "nvme" in (self.optimizer, self.parameters)


ON_DEVICE = Offload()
"""Nothing is offloaded."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class ZeroPlus:
    """What ZeRO 3 sends less of between nodes, or in fewer bytes (ZeRO++, arXiv:2306.10209)."""

    secondary: Devices | None = None
    """Consecutive replicas that hold a second copy of the parameters (hpZ), which serves all gathers but one in a step;
    None without one."""
    int8_weights: bool = False
    """True when parameters are sent in eight bits (qwZ)."""
    int4_gradients: bool = False
    """True when gradients are sent in four bits, first within the groups of a second copy and then between them
    (qgZ)."""

    def __post_init__(self) -> None:
        if self.secondary is not None and self.secondary < 2:
            raise PlanError(f"expected at least 2 replicas, got {self.secondary}", path=("secondary",))
        if self.int4_gradients and self.secondary is None:
            what = "gradients in four bits are added up among the replicas of a second copy first"
            raise PlanError(f"{what}, expected secondary", path=("int4_gradients",))

    @model_serializer(mode="wrap")
    def _to_file(self, written: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in written(self).items() if value not in (None, False)}

    @property
    def anything(self) -> bool:
        """False for plain ZeRO."""
        return self != PLAIN_ZERO

    @property
    def lossy(self) -> bool:
        """True when what travels is rounded."""
        return self.int8_weights or self.int4_gradients


PLAIN_ZERO = ZeroPlus()
"""All is gathered over all replicas, in the working format."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Sync:
    """What islands of replicas exchange, and how often; in an island replicas are exact in every step.

    Once in ``every`` steps islands exchange weights: local SGD (arXiv:1805.09767) and DiLoCo (arXiv:2311.08105). In
    every step they may exchange gradients in fewer bytes: PowerSGD (arXiv:1905.13727), the largest elements
    (arXiv:1809.07599), narrow formats.
    """

    every: ExchangeSteps = 1
    """Optimizer steps between two exchanges; 1: gradients are exchanged in every step."""
    method: SyncMethod = "diloco"
    """diloco: an outer optimizer applies the change of the weights; average: weights are averaged."""
    format: SyncFormat = "fp32"
    """Number format in which weights or gradients are sent between islands."""
    rank: Width | None = None
    """Rank of the two factors that are sent instead of each gradient matrix (PowerSGD)."""
    ratio: KeptShare | None = None
    """Share of a gradient's elements that are sent, the largest ones."""
    islands: Annotated[
        tuple[Annotated[tuple[Name, ...], Field(min_length=1, strict=False)], ...], Field(strict=False)
    ] = ()
    """Pools of each island; empty: every node is an island."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise PlanError(
                f"expected at least 1 step from exchange to exchange, got {self.every}", path=("every",)
            )
        gradients = [key for key in ("rank", "ratio") if getattr(self, key) is not None]
        if self.every > 1 and gradients:
            what = f"gradients are exchanged in every step, weights once in {self.every}: expected none"
            raise PlanError(what, path=(gradients[0],))
        if self.every == 1 and self.method != "diloco":
            what = "weights are exchanged once in several steps, expected every: 2 or more"
            raise PlanError(f"{what} with method {self.method}", path=("every",))
        if len(gradients) > 1:
            raise PlanError(
                "either factors or the largest elements travel, expected rank or ratio", path=("ratio",)
            )
        if gradients and self.format != "fp32":
            what = f"what {gradients[0]} leaves of a gradient travels in fp32, got {self.format}"
            raise PlanError(what, path=("format",))
        if self.exact and self.islands:
            what = "nothing is exchanged rarely or in fewer bytes"
            raise PlanError(f"{what}, expected every, format, rank or ratio", path=("islands",))

    @model_serializer(mode="wrap")
    def _to_file(self, written: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        usual = {"method": "diloco", "format": "fp32", "rank": None, "ratio": None, "islands": ()}
        entries = {} if self.exact else written(self)
        return {key: value for key, value in entries.items() if key not in usual or value != usual[key]}

    @property
    def exact(self) -> bool:
        """True when replicas add up whole gradients in every step, as if they were one."""
        return not self.kinds

    @property
    def local(self) -> bool:
        """True when islands train on their own for several steps."""
        return self.every > 1

    @property
    def kinds(self) -> tuple[SyncKind, ...]:
        """What a runtime must have for it."""
        kinds: list[SyncKind] = [self.method] if self.local else []
        kinds += [self.format] if self.format != "fp32" else []
        kinds += ["powersgd"] if self.rank is not None else ["topk"] if self.ratio is not None else []
        return tuple(kinds)

    def island_of(self, pool: str, node: int) -> tuple[str, int]:
        """What all nodes of one island have in common."""
        number = next((index for index, pools in enumerate(self.islands) if pool in pools), -1)
        return ("", number) if number >= 0 else (pool, node)


EXACT = Sync()
"""Replicas exchange whole gradients in every step."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Grid:
    """How the devices of a replica divide every matrix, by rows and columns: SUMMA, as Optimus (arXiv:2104.05343) and
    Tesseract (arXiv:2105.14500) do.

    A device has a block of each weight, and of activations the sequences of its row and the channels of its column.
    Layers of the depth have the same blocks and other sequences.
    """

    rows: GridSide
    """Devices over which the inputs of a matrix, and the sequences of a micro-batch, are divided."""
    columns: GridSide
    """Devices over which its outputs are; as many as rows."""
    depth: Devices = 1
    """Copies of the weights inside a replica, each with a part of its sequences."""

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.rows * self.columns * self.depth

    @property
    def layer(self) -> int:
        """Devices over which a weight is divided."""
        return self.rows * self.columns

    @property
    def lines(self) -> int:
        """Rows of all layers of the depth: each has sequences of its own."""
        return self.rows * self.depth

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}" + (f" x {self.depth}" if self.depth > 1 else "")


class Context(NamedTuple):
    """How the tokens of a sequence are divided over replicas; a tuple, as it is part of keys that are hashed often."""

    ways: int = 1
    """Consecutive replicas that have a part each; 1: none is divided."""
    kind: ContextKind = "ring"
    """ring: keys and values go around; ulysses: parts of the sequence are exchanged for parts of the heads."""


WHOLE = Context()
"""Sequences are whole on a replica."""


class Folding(NamedTuple):
    """How the experts of a layer are divided over devices of a stage (parallel folding, arXiv:2504.14960).

    ``ep`` members have some of them each, and a member is ``etp`` devices next to each other. A tuple, as it is part of
    keys that are hashed often.
    """

    ep: int = 1
    """Members that have other experts each; 1: each has all of them."""
    etp: int = 1
    """Devices that share the matrices of each expert; 1: experts are whole on a device."""

    @property
    def ways(self) -> int:
        """Devices that hold all experts of a layer together."""
        return self.ep * self.etp


WHOLE_EXPERTS = Folding()
"""Each device has all experts."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What all stages of a plan have in common, whether it is written whole or in short."""

    target: str | None = None
    """Runtime that the plan is for."""
    zero: ZeroStage = 0
    """ZeRO stage of the data-parallel groups; 1 is Megatron's distributed optimizer."""
    shard_size: Devices | None = None
    """Replicas of a stage that share one copy of what ZeRO shards (HSDP); None: all of them.

    Consecutive replicas form such a group.
    """
    zero_plus: ZeroPlus = PLAIN_ZERO
    """What ZeRO 3 sends less of (ZeRO++)."""
    interleave: Layers = 1
    """Chunks of layers per device (virtual pipeline stages); 1 without interleaving, 2 in V-shaped schedules."""
    schedule: Schedule = "1f1b"
    """1f1b; zero-bubble: weight gradients are computed separately, while stages of 1F1B would wait; zb-v, dualpipe-v:
    the same with layers placed in a V, so that the first stage holds the first and the last chunk."""
    sequence_parallel: bool = False
    """True when activations outside tensor-parallel matrices are split by tokens."""
    ep: Devices = 1
    """Devices of consecutive replicas over which the experts of a layer are divided; 1 without expert parallelism."""
    etp: NodeDevices = 1
    """Adjacent devices over which the matrices of each expert are divided (expert tensor parallelism); 1: each expert
    is whole on a device."""
    cp: Devices = 1
    """Consecutive replicas over which the tokens of a sequence are divided (context parallelism); 1 without."""
    cp_kind: ContextKind = "ring"
    """ring: keys and values are passed around; ulysses: parts of the sequence are exchanged for parts of the heads."""
    offload: Offload = ON_DEVICE
    """What is kept off the devices between its uses."""
    sync: Sync = EXACT
    """What islands of replicas exchange, and how often."""
    backup: Annotated[int, whole(DEVICES, least=0)] = 0
    """Slowest replicas of a step whose gradients are dropped (arXiv:1604.00981)."""
    fewer_steps: Annotated[int, whole(DEVICES, least=0)] = 0
    """How many replicas of each stage, the last ones, run one micro-batch fewer than steps."""
    stage_nodes: Devices = 1
    """Nodes of a pool, or all of it where that has fewer, over which the replicas of each stage are dealt evenly, so
    that neighbours in the pipeline are on the same nodes; 1: stages take one node after the other."""


@json_fields(
    "grid_text",
    "pp",
    "global_batch",
    "micro_batches",
    without=("stages", "grid"),
    names={"grid_text": "grid"},
)
@strict()
@record(frozen=True, slots=True, kw_only=True)
class Plan(Decisions):
    """A complete decision: what every device does in one optimizer step."""

    target: str
    """Runtime that the plan is for."""
    zero: ZeroStage
    """ZeRO stage of the data-parallel groups; 1 is Megatron's distributed optimizer."""
    grid: Grid | None = None
    """How the ``tp`` devices of a replica divide matrices in two dimensions; None: in one."""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=int(STAGES.most))]

    def __post_init__(self) -> None:
        if not self.stages:
            raise PlanError("a plan needs at least one stage")
        if self.zero not in (0, 1, 2, 3):
            raise PlanError(f"expected 0, 1, 2 or 3, got {self.zero}", path=("zero",))
        if self.ep < 1:
            raise PlanError(f"expected at least 1, got {self.ep}", path=("ep",))
        if self.etp < 1:
            raise PlanError(f"expected at least 1, got {self.etp}", path=("etp",))
        if self.cp < 1:
            raise PlanError(f"expected at least 1, got {self.cp}", path=("cp",))
        if self.stage_nodes < 1:
            raise PlanError(f"expected at least 1, got {self.stage_nodes}", path=("stage_nodes",))
        self._check_shard_size()
        self._check_zero_plus()
        self._check_shards()
        self._check_backup()
        self._check_fewer_steps()
        self._check_grid()
        end = 0
        for index, stage in enumerate(self.stages):
            if stage.first_layer != end:
                what = f"starts at layer {stage.first_layer}, expected {end}"
                raise PlanError(what, path=("stages", index, "layers"))
            end = stage.end_layer
        if len({stage.sequences for stage in self.stages}) > 1:
            raise PlanError(
                "every stage must process the same number of sequences in a step", path=("stages",)
            )
        if self.interleave < 1 or min(stage.layers for stage in self.stages) < self.interleave:
            what = f"interleave {self.interleave} needs at least as many layers in every stage"
            raise PlanError(what, path=("interleave",))

    def _check_shard_size(self) -> None:
        if self.shard_size is None:
            return
        if self.zero == 0:
            raise PlanError(
                f"ZeRO 0 shards nothing, expected none, got {self.shard_size}", path=("shard_size",)
            )
        for stage in self.stages:
            if not 2 <= self.shard_size < stage.dp or stage.dp % self.shard_size:
                what = (
                    f"expected a divisor of the {stage.dp} replicas of a stage, from 2 on and less than all"
                )
                raise PlanError(f"{what}, got {self.shard_size}", path=("shard_size",))

    def _check_zero_plus(self) -> None:
        plus = self.zero_plus
        if not plus.anything:
            return
        if self.zero != 3:
            raise PlanError(
                f"it is a part of ZeRO 3, expected none with ZeRO {self.zero}", path=("zero_plus",)
            )
        for stage in self.stages:
            if plus.secondary and (plus.secondary >= stage.dp or stage.dp % plus.secondary):
                what = (
                    f"expected a divisor of the {stage.dp} replicas of a stage, from 2 on and less than all"
                )
                raise PlanError(f"{what}, got {plus.secondary}", path=("zero_plus", "secondary"))

    def _check_shards(self) -> None:
        for index, stage in enumerate(self.stages):
            if not stage.shards or (self.zero and self.shard_size is None):
                continue
            number = next(
                number
                for number, group in enumerate(stage.replicas)
                if group.shard != stage.replicas[0].shard
            )
            what = "ZeRO 0 shards nothing" if not self.zero else "groups of replicas shard alike"
            first, other = stage.replicas[0].shard, stage.replicas[number].shard
            path = ("stages", index, "replicas", number, "shard")
            raise PlanError(f"{what}, expected {first} as of the first replicas, got {other}", path=path)

    def _check_backup(self) -> None:
        fewest = min(stage.dp for stage in self.stages)
        if not 0 <= self.backup < fewest:
            what = f"expected fewer backup replicas than the {fewest} replicas, got {self.backup}"
            raise PlanError(what, path=("backup",))

    def _check_fewer_steps(self) -> None:
        path, fewest = ("fewer_steps",), min(stage.dp for stage in self.stages)
        if not 0 <= self.fewer_steps < fewest:
            what = f"expected fewer than the {fewest} replicas of a stage, got {self.fewer_steps}"
            raise PlanError(what, path=path)
        if not self.fewer_steps:
            return
        sizes = {(group.micro_batch_sizes[-1], group.micro_batch) for _, group in groups_of(self)}
        steps = {group.accumulation_steps for _, group in groups_of(self)}
        if len({size for pair in sizes for size in pair}) > 1 or len(steps) > 1 or min(steps) < 2:
            what = "expected equal micro-batches, the same number of 2 or more in all replicas"
            raise PlanError(f"{what}, or 0, got {self.fewer_steps}", path=path)

    @property
    def unequal_shards(self) -> bool:
        """True when some replicas hold more of what ZeRO shards than others."""
        return any(stage.shards for stage in self.stages)

    def _check_grid(self) -> None:
        if self.grid is None:
            return
        for path, group in groups_of(self):
            if group.tp != self.grid.devices:
                what = f"a grid of {self.grid} has {self.grid.devices} devices, got tp {group.tp}"
                raise PlanError(what, path=(*path, "tp"))

    @property
    def copies(self) -> Plan:
        """The same plan with each layer of its grid's depth as a replica of its own, which is what it is: it has whole
        weights, sequences of its own, and adds up gradients with all others."""
        grid = self.grid
        if grid is None or grid.depth == 1:
            return self
        stages = tuple(
            replace(stage, replicas=tuple(map(self.copies_of, stage.replicas))) for stage in self.stages
        )
        size = None if self.shard_size is None else self.shard_size * grid.depth
        return replace(self, grid=replace(grid, depth=1), shard_size=size, stages=stages)

    def copies_of(self, group: ReplicaGroup) -> ReplicaGroup:
        """The same of one group; PlanError where its sequences do not divide."""
        ways = self.grid.depth if self.grid else 1
        share, rest = divmod(group.local_batch, ways)
        if rest or share < group.accumulation_steps:
            raise PlanError(f"depth {ways} does not divide the {group.local_batch} sequences of a replica")
        return replace(group, tp=group.tp // ways, count=group.count * ways, local_batch=share)

    @property
    def grid_text(self) -> str | None:
        """Rows x columns (x depth) of the tensor grid; None for tensor parallelism in one dimension."""
        return None if self.grid is None else str(self.grid)

    @property
    def pp(self) -> int:
        """Pipeline depth."""
        return len(self.stages)

    @property
    def zero_text(self) -> str:
        """``ZeRO 3``, or ``ZeRO 3 in groups of 8`` with HSDP."""
        plus = self.zero_plus
        copies = f" with a second copy in groups of {plus.secondary}" if plus.secondary else ""
        return f"ZeRO {self.zero}" + (f" in groups of {self.shard_size}" if self.shard_size else "") + copies

    @property
    def context(self) -> Context:
        """How sequences are divided over replicas."""
        return Context(ways=self.cp, kind=self.cp_kind)

    @property
    def folding(self) -> Folding:
        """How the experts of a layer are divided over devices."""
        return Folding(ep=self.ep, etp=self.etp)

    @property
    def layers(self) -> int:
        """Transformer layers of the plan."""
        return self.stages[-1].end_layer

    @property
    def devices(self) -> int:
        """Devices that the plan uses."""
        return sum(stage.devices for stage in self.stages)

    @property
    def global_batch(self) -> int:
        """Sequences of one optimizer step, without those of dropped replicas."""
        stage = self.stages[0]
        counted = stage.sequences * (stage.dp - self.backup) // (stage.dp * self.cp)
        return counted - self.fewer_steps * stage.replicas[0].micro_batch

    def group_of(self, stage: int, group: int, replica: int) -> ReplicaGroup:
        """The group of a replica, with what this replica does in a step."""
        whole = self.stages[stage].replicas[group]
        if replica < self.stages[stage].dp - self.fewer_steps:
            return whole
        less = whole.local_batch - whole.micro_batch
        return replace(whole, local_batch=less, accumulation_steps=whole.accumulation_steps - 1)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the replica with the most."""
        return max(group.accumulation_steps for stage in self.stages for group in stage.replicas)


@record(frozen=True, slots=True)
class Fault:
    """One broken rule and where in the plan it shows."""

    path: KeyPath
    """Keys of the plan file, e.g. ``("stages", 1, "replicas", 0, "tp")``."""
    what: str
    """What is wrong and what was expected."""


def groups_of(plan: Plan) -> Iterator[tuple[KeyPath, ReplicaGroup]]:
    """Every group of replicas with its place in the plan file."""
    for number, stage in enumerate(plan.stages):
        for index, group in enumerate(stage.replicas):
            yield ("stages", number, "replicas", index), group


def with_commas(values: Iterable[object]) -> str:
    """Values with commas between them."""
    return ", ".join(str(value) for value in values)
