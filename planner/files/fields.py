"""What every part of a user's file has in common: its kinds of numbers and names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, with_config
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from planner import ranges
from planner.field_metadata import meanings
from planner.frozen import record
from planner.ranges import Range


@record(frozen=True, slots=True)
class Within:
    """The constraint of a finite number within a range, and how its violation is told."""

    least: float
    most: float
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        plain: Any = {**handler(source), "ge": self.least, "le": self.most}
        if plain["type"] == "float":
            plain["allow_inf_nan"] = False
        words = f"expected {self.words} from {figure(self.least)} to {figure(self.most)}"
        return core_schema.custom_error_schema(plain, "out_of_range", custom_error_message=words)


def figure(number: float) -> str:
    """A number as one writes it: ``0.000001``, ``1000000``, ``1e+60``."""
    if 1e-6 <= abs(number) < 1:
        return f"{number:.12f}".rstrip("0")
    return f"{number:.15g}" if 1 <= abs(number) < 1e15 else f"{number:g}"


def number(allowed: Range) -> Within:
    """The constraint of a finite number within a range."""
    return Within(allowed.least, allowed.most, "a number")


def whole(allowed: Range, least: int | None = None) -> Within:
    """The constraint of a whole number within a range; ``least`` replaces its lower end."""
    return Within(int(allowed.least) if least is None else least, int(allowed.most), "a whole number")


Dtype = Literal["bf16", "fp16", "fp32", "tf32", "fp8"]
"""Number formats a device may have matrix units for."""

Rate = Annotated[float, number(ranges.RATE)]
Latency = Annotated[float, number(ranges.LATENCY_US)]
Gib = Annotated[float, number(ranges.MEMORY_GIB)]
ReserveGib = Annotated[float, number(ranges.RESERVE_GIB)]
Chance = Annotated[float, number(ranges.CHANCE)]
Watts = Annotated[float, number(ranges.WATTS)]
Price = Annotated[float, number(ranges.PRICE)]
MachinePrice = Annotated[float, number(ranges.MACHINE_PRICE)]
Stops = Annotated[float, number(ranges.FAILURES)]
Oversubscription = Annotated[float, number(ranges.OVERSUBSCRIPTION)]
NodeDevices = Annotated[int, whole(ranges.NODE_DEVICES)]
Nodes = Annotated[int, whole(ranges.NODES)]
Devices = Annotated[int, whole(ranges.DEVICES)]
GridSide = Annotated[int, whole(ranges.GRID_SIDE)]
Cards = Annotated[int, whole(ranges.CARDS)]

Layers = Annotated[int, whole(ranges.LAYERS)]
Stages = Annotated[int, whole(ranges.STAGES)]
Width = Annotated[int, whole(ranges.WIDTH)]
OptionalWidth = Annotated[int, whole(ranges.WIDTH, least=0)]
Heads = Annotated[int, whole(ranges.HEADS)]
FeedForward = Annotated[int, whole(ranges.FFN)]
OptionalFeedForward = Annotated[int, whole(ranges.FFN, least=0)]
Experts = Annotated[int, whole(ranges.EXPERTS)]
CapacityFactor = Annotated[float, number(ranges.CAPACITY)]
Imbalance = Annotated[float, number(ranges.IMBALANCE)]
RouterScale = Annotated[float, number(ranges.ROUTER_SCALE)]
RopeBase = Annotated[float, number(ranges.ROPE_BASE)]
RopeFactor = Annotated[float, number(ranges.ROPE_FACTOR)]
Mscale = Annotated[float, number(ranges.MSCALE)]
Epsilon = Annotated[float, number(ranges.EPSILON)]
Rows = Annotated[int, whole(ranges.ROWS)]
MtpLayers = Annotated[int, whole(ranges.MTP_LAYERS)]
OptionalRows = Annotated[int, whole(ranges.ROWS, least=0)]
Others = Annotated[int, whole(ranges.OTHERS)]
Norms = Annotated[int, whole(ranges.NORMS)]
SequenceLength = Annotated[int, whole(ranges.SEQUENCE)]
Batch = Annotated[int, whole(ranges.BATCH)]
BatchTokens = Annotated[int, whole(ranges.BATCH_TOKENS)]
TokenBytes = Annotated[float, number(ranges.TOKEN_BYTES)]
DataGib = Annotated[float, number(ranges.DATA_GIB)]
Cores = Annotated[int, whole(ranges.CORES)]
CoreRate = Annotated[float, number(ranges.CORE_RATE)]
CriticalTokens = Annotated[float, number(ranges.BATCH_TOKENS)]
Loss = Annotated[float, number(ranges.LOSS)]
OptionalLoss = Annotated[float, number(Range(0, ranges.LOSS.most))]
LossScale = Annotated[float, number(ranges.LOSS_SCALE)]
Exponent = Annotated[float, number(ranges.EXPONENT)]
ExchangeSteps = Annotated[int, whole(ranges.EXCHANGE_STEPS)]
KeptShare = Annotated[float, number(ranges.KEPT_SHARE)]
HostShare = Annotated[float, number(ranges.HOST_SHARE)]
ZeroStage = Annotated[int, whole(ranges.ZERO)]
ShardParts = Annotated[int, whole(ranges.SHARD_PARTS)]

Tokens = Annotated[float, number(ranges.TOKENS)]
Steps = Annotated[int, whole(ranges.STEPS)]
Hours = Annotated[float, number(ranges.RUN_HOURS)]
Weight = Annotated[float, number(ranges.WEIGHT)]

Share = Annotated[float, number(ranges.SHARE)]
Rotated = Annotated[float, number(ranges.ROTATED)]
Fraction = Annotated[float, number(ranges.FRACTION)]
Spread = Annotated[float, number(ranges.SPREAD)]
Beta = Annotated[float, number(ranges.BETA)]
DefaultSpread = Annotated[float, number(ranges.DEFAULT_SPREAD)]
Factor = Annotated[float, number(ranges.FACTOR)]
OverheadSeconds = Annotated[float, number(ranges.OVERHEAD_SECONDS)]
Seconds = Annotated[float, number(ranges.SECONDS)]
Bytes = Annotated[float, number(ranges.BYTES)]
OptionalBytes = Annotated[float, number(Range(0, ranges.BYTES.most))]
Flops = Annotated[float, number(ranges.FLOPS)]
Count = Annotated[int, whole(ranges.COUNT)]
OptionalCount = Annotated[int, whole(ranges.COUNT, least=0)]
Predicted = Annotated[float, number(ranges.PREDICTED)]
OptionalPredicted = Annotated[float, number(Range(0, ranges.PREDICTED.most))]

Name = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]

OptionalName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=100)]

DeviceNames = Annotated[str, Field(min_length=1, pattern=r"^[ -~]+$", max_length=1000)]
"""Names that the operating system gives: launch files hold them, so they have no character that is not seen."""

Source = Annotated[str | None, Field(exclude=True, description="Where the numbers are from; free text.")]

T = TypeVar("T")


def describe(schema: dict[str, Any], cls: Any) -> None:
    """A field's docstring says what it is; read only for a schema, since reading sources takes long."""
    hints = get_type_hints(cls, include_extras=True)
    for name, text in meanings(cls).items():
        marks = getattr(hints.get(name), "__metadata__", ())
        alias = next((mark.alias for mark in marks if isinstance(mark, FieldInfo) and mark.alias), name)
        if alias in schema.get("properties", {}):
            schema["properties"][alias].setdefault("description", text)


STRICT = ConfigDict(extra="forbid", strict=True, json_schema_extra=describe, defer_build=True)
"""Unknown keys and silent conversions are refused; what a file is checked with is made when one is read."""


class Frozen(BaseModel):
    """An immutable record that refuses unknown keys and silent conversions."""

    model_config = ConfigDict(frozen=True, **STRICT)

    def __copy__(self) -> Self:
        """A copy without what cached properties keep: ``model_copy`` changes fields that they are made of."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


def strict(change: Callable[[dict[str, Any]], None] | None = None) -> Callable[[type[T]], type[T]]:
    """Marks a dataclass that stands in files: read as ``STRICT`` says, built without any check but its own.

    ``change`` is made to its schema, for what stands otherwise in the file.
    """
    if change is None:
        return with_config(STRICT)

    def described(schema: dict[str, Any], cls: Any) -> None:
        describe(schema, cls)
        change(schema)

    return with_config(ConfigDict(**{**STRICT, "json_schema_extra": described}))


def form(cls: type[T]) -> TypeAdapter[T]:
    """How values of a class stand in files."""
    adapter: TypeAdapter[T] = _adapter(cls)
    return adapter


_adapter: Callable[[Any], Any] = cache(TypeAdapter)


def written(value: object) -> Any:
    """A value as plain data for a file, without what is None."""
    return form(type(value)).dump_python(value, mode="json", exclude_none=True)
