"""What every part of a user's file has in common: its kinds of numbers and names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, with_config

from planner import ranges
from planner.ranges import Range


def number(allowed: Range) -> Any:
    """The constraint of a finite number within a range."""
    return Field(ge=allowed.least, le=allowed.most, allow_inf_nan=False)


def whole(allowed: Range, least: int | None = None) -> Any:
    """The constraint of a whole number within a range; ``least`` replaces its lower end."""
    return Field(ge=int(allowed.least) if least is None else least, le=int(allowed.most))


Dtype = Literal["bf16", "fp16", "fp32", "tf32", "fp8"]
"""Number formats a device may have matrix units for."""

Rate = Annotated[float, number(ranges.RATE)]
Latency = Annotated[float, number(ranges.LATENCY_US)]
Gib = Annotated[float, number(ranges.MEMORY_GIB)]
ReserveGib = Annotated[float, number(ranges.RESERVE_GIB)]
Watts = Annotated[float, number(ranges.WATTS)]
Price = Annotated[float, number(ranges.PRICE)]
Oversubscription = Annotated[float, number(ranges.OVERSUBSCRIPTION)]
NodeDevices = Annotated[int, whole(ranges.NODE_DEVICES)]
Nodes = Annotated[int, whole(ranges.NODES)]
Devices = Annotated[int, whole(ranges.DEVICES)]
Cards = Annotated[int, whole(ranges.CARDS)]

Layers = Annotated[int, whole(ranges.LAYERS)]
Stages = Annotated[int, whole(ranges.STAGES)]
Width = Annotated[int, whole(ranges.WIDTH)]
Heads = Annotated[int, whole(ranges.HEADS)]
FeedForward = Annotated[int, whole(ranges.FFN)]
OptionalFeedForward = Annotated[int, whole(ranges.FFN, least=0)]
Experts = Annotated[int, whole(ranges.EXPERTS)]
CapacityFactor = Annotated[float, number(ranges.CAPACITY)]
Imbalance = Annotated[float, number(ranges.IMBALANCE)]
Rows = Annotated[int, whole(ranges.ROWS)]
OptionalRows = Annotated[int, whole(ranges.ROWS, least=0)]
Norms = Annotated[int, whole(ranges.NORMS)]
SequenceLength = Annotated[int, whole(ranges.SEQUENCE)]
Batch = Annotated[int, whole(ranges.BATCH)]
BatchTokens = Annotated[int, whole(ranges.BATCH_TOKENS)]
ZeroStage = Annotated[int, whole(ranges.ZERO)]

Share = Annotated[float, number(ranges.SHARE)]
Fraction = Annotated[float, number(ranges.FRACTION)]
Spread = Annotated[float, number(ranges.SPREAD)]
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

STRICT = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)
"""Unknown keys and silent conversions are refused; a field's docstring says what it is."""

T = TypeVar("T")


class Frozen(BaseModel):
    """An immutable record that refuses unknown keys and silent conversions."""

    model_config = ConfigDict(frozen=True, **STRICT)

    def __copy__(self) -> Self:
        """A copy without what cached properties keep: ``model_copy`` changes fields that they are made of."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


def strict(**more: Any) -> Callable[[type[T]], type[T]]:
    """Marks a dataclass that stands in files: read as ``STRICT`` says, built without any check but its own."""
    config: ConfigDict = {**STRICT, **more}  # type: ignore[typeddict-item]
    return with_config(config)


def form(cls: type[T]) -> TypeAdapter[T]:
    """How values of a class stand in files."""
    adapter: TypeAdapter[T] = _adapter(cls)
    return adapter


_adapter: Callable[[Any], Any] = cache(TypeAdapter)


def written(value: object) -> Any:
    """A value as plain data for a file, without what is None."""
    return form(type(value)).dump_python(value, mode="json", exclude_none=True)
