"""The range of every number that hetplan reads, from files and from options alike.

They are wide enough for any cluster and model that could be built, and narrow enough that whatever is derived
from numbers within them (parameters, bytes, FLOPs, seconds, prices) is finite and that loops over them end.
"""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """The least and the most that a number may be, both included."""

    least: float
    most: float

    def holds(self, number: float) -> bool:
        """True for a number of the range; never for one that is none."""
        return self.least <= number <= self.most

    def number(self, text: str) -> float | None:
        """The number that a text is; None for what is none of the range."""
        try:
            number = float(text)
        except ValueError:
            return None
        return number if self.holds(number) else None


RATE = Range(1e-6, 1e6)
"""Bandwidths in gigabyte/s or gigabit/s, TFLOP/s, and billions of parameters updated in a second."""
LATENCY_US = Range(0, 1e8)
"""Latency of one message, microseconds."""
MEMORY_GIB = Range(1e-3, 1e6)
"""Memory of a device or of a host, GiB."""
RESERVE_GIB = Range(0, 1e6)
"""Memory kept free on a device, GiB."""
CHANCE = Range(1e-6, 0.5)
"""Chance that a plan may run out of memory with."""
WATTS = Range(1e-3, 1e6)
"""Power of one device, watt."""
PRICE = Range(0, 1e6)
"""Price of one device for one hour, in the user's currency."""
MACHINE_PRICE = Range(1e-6, 1e6)
"""Price of one rented machine for one hour, in the user's currency."""
OVERSUBSCRIPTION = Range(1, 1e4)
"""Sum of the NIC bandwidths of a fabric over what its switches carry."""
MULTIPROCESSORS = Range(1, 100_000)
"""Streaming multiprocessors or compute units of a device."""
COMPUTE_CAPABILITY = Range(1, 30)
"""NVIDIA's number of what a device can do."""
NODE_DEVICES = Range(1, 1000)
"""Devices of one node, and of one tensor-parallel group."""
GRID_SIDE = Range(2, 31)
"""Rows, and columns, of a grid of devices that divides matrices."""
NODES = Range(1, 100_000)
"""Nodes of a pool, and of a whole cluster."""
DEVICES = Range(1, 1_000_000)
"""Devices of a whole cluster, replicas of a stage, members of a process group."""
CARDS = Range(1, 1000)
"""Network cards of one node on one fabric."""

LAYERS = Range(1, 10_000)
"""Transformer layers, and chunks of them on one device."""
MTP_LAYERS = Range(0, 16)
"""Modules that predict a further token each."""
STAGES = Range(1, 1000)
"""Pipeline stages."""
WIDTH = Range(1, 1_000_000)
"""Widths of a model: hidden, of the embedding, of a head."""
FFN = Range(1, 4 * WIDTH.most)
"""Width of the feed-forward layer, which is 4 x hidden unless it is given."""
EXPERTS = Range(1, 100_000)
"""Experts of a layer, and those that work on a token."""
CAPACITY = Range(0.01, 1000)
"""Room of an expert over its even share of the tokens."""
ROUTER_SCALE = Range(1e-6, 1e6)
"""Factor of what the experts of a token make."""
ROPE_BASE = Range(1, 1e12)
"""Base of the wavelengths of rotary positions."""
ROPE_FACTOR = Range(1, 1e6)
"""How many times farther positions reach than they were pretrained to, and the factors of that scaling."""
MSCALE = Range(0, 1000)
"""Coefficient of the scores' temperature under YaRN."""
EPSILON = Range(0, 0.1)
"""What a norm adds to a mean square."""
IMBALANCE = Range(1, 1000)
"""Tokens of the busiest device of an expert-parallel group over the mean."""
HEADS = Range(1, 10_000)
"""Attention heads and key/value heads."""
ROWS = Range(1, 1_000_000_000)
"""Rows of a table: vocabulary, learned positions, token types; the latter two may be 0."""
OTHERS = Range(0, 10_000_000_000_000)
"""Parameters that take part in few operations."""
NORMS = Range(1, 100)
"""Norms of one layer."""
SEQUENCE = Range(1, 100_000_000)
"""Tokens of one sequence."""
BATCH = Range(1, 1_000_000)
"""Sequences of one optimizer step or of a part of it: global batch, share, micro-batch, micro-batches."""
BATCH_TOKENS = Range(1, SEQUENCE.most * BATCH.most)
"""Tokens of one optimizer step."""
TOKEN_BYTES = Range(1e-3, 1e9)
"""Bytes that a token, or a sequence, takes in storage."""
DATA_GIB = Range(1e-6, 1e12)
"""A data set in storage, GiB."""
CORES = Range(1, 10_000)
"""Processor cores of a node."""
CORE_RATE = Range(1e-6, 1e12)
"""Tokens, or sequences, that one core makes ready in a second."""
LOSS = Range(1e-6, 1e3)
"""Loss of a token, nats."""
LOSS_SCALE = Range(1e-9, 1e12)
"""What a curve of the loss falls from, above its floor."""
EXPONENT = Range(1e-3, 10)
"""Power with which it falls."""
EXCHANGE_STEPS = Range(1, 1_000_000)
"""Optimizer steps from one exchange of islands to the next."""
KEPT_SHARE = Range(1e-6, 0.5)
"""Share of a gradient's elements that travels with their places; more take as many bytes as all of them."""
HOST_SHARE = Range(0.01, 1)
"""Share of the parameters that the processors of a host update."""
ZERO = Range(0, 3)
"""ZeRO stage."""
SHARD_PARTS = Range(1, 1000)
"""Parts of what ZeRO shards that one replica holds."""

SHARE = Range(1e-6, 1)
ROTATED = Range(0, 1)
"""Share of a rate that is reached."""
FRACTION = Range(0, 1)
"""Share of something, none included."""
SPREAD = Range(0, 1000)
"""Relative standard error or deviation."""
BETA = Range(1e-6, 1000)
"""How strongly preference optimization keeps a model near what it was."""
DEFAULT_SPREAD = Range(1e-6, 1000)
"""Relative standard error of a step time where no residual is known."""
FACTOR = Range(0, 1e6)
"""Factors and counts of kernel launches, fitted or measured."""
OVERHEAD_SECONDS = Range(0, 1e6)
"""Overhead of a kernel or of its launch, seconds."""
SECONDS = Range(1e-12, 1e9)
"""Measured durations, seconds."""
BYTES = Range(1, 1e18)
"""Measured sizes and parameters; the least traffic of a kernel and what a process keeps may be 0."""
FLOPS = Range(0, 1e24)
"""Floating-point operations of one kernel."""
COUNT = Range(1, 1_000_000_000)
"""Measurements, and what else is counted for readers."""
PREDICTED = Range(1e-60, 1e60)
"""Seconds and tokens per second as a plan file keeps them; a bound and a throughput may be 0."""

TOKENS = Range(1, 1e18)
"""Tokens of a whole training run."""
STEPS = Range(1, 1_000_000_000)
"""Optimizer steps of a training run."""
WEIGHT = Range(1e-6, 1e6)
"""How much a job counts next to others."""
FAILURES = Range(0, 1e4)
"""Failures for each device, or stops of a rented machine, in a month."""
RUN_SECONDS = Range(1, 1e10)
"""A whole training run, and what a checkpoint or a restart takes of it, which may be 0 s."""
RUN_HOURS = Range(1e-3, 1e6)
"""Hours in which a job of several must end."""
MONEY = Range(1e-6, 1e15)
"""Price of a whole training run."""

TIME_LIMIT = Range(0, 1e9)
"""Seconds that a search may take, and minutes of a measurement, beside no limit at all."""
PROCESSES = Range(1, 256)
"""Processes of one search."""
TENSOR_MIB = Range(0.01, 1e6)
"""Largest tensor of a measurement, MiB."""
