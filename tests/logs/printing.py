"""Logs as the runtimes print them, with times of the test's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.logs.comparison import PredictedRun
from planner.plan.placement import Rank
from planner.runtimes.log import Part

SAMPLES = Path(__file__).parent / "samples"
"""What emitted folders printed on a CPU with DeepSpeed 0.19.8."""
MIB = 2**20


def example_text(seconds: Sequence[float], peaks: Mapping[tuple[int, int], int] | None = None) -> str:
    """What the emitted example prints; ``peaks`` by (rank, stage)."""
    lines = [f"step {index} loss 4.123456789 seconds {each:.6f}\n" for index, each in enumerate(seconds)]
    lines += [
        f"rank {rank} stage {stage} peak_bytes {size}\n" for (rank, stage), size in (peaks or {}).items()
    ]
    return "".join(lines)


def prefixed(text: str, prefix: str) -> str:
    """Every line behind what a launcher puts before it."""
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def deepspeed_timers(parts: Mapping[Part, float]) -> str:
    """The lines of one step with ``wall_clock_breakdown`` and ZeRO 1, seconds by part."""
    forward, backward, sync, optimizer = (
        1000 * parts[name] for name in ("forward", "backward", "gradient sync", "optimizer")
    )
    return (
        f"[Rank 0] time (ms) | optimizer_allgather: {sync / 4:.2f} | optimizer_gradients: 0.00 "
        f"| optimizer_step: {optimizer:.2f}\n"
        f"[Rank 0] time (ms) | fwd_microstep: 1.00 | bwd_microstep: 2.00 | bwd_inner_microstep: 1.00 "
        f"| bwd_allreduce_microstep: 1.00 | step_microstep: 3.00\n"
        f"[Rank 0] time (ms) | fwd: {forward:.2f} | bwd: {backward + sync * 3 / 4:.2f} "
        f"| bwd_inner: {backward:.2f} | bwd_allreduce: {sync * 3 / 4:.2f} | step: {optimizer + sync / 4:.2f}\n"
    )


def deepspeed_text(parts: Mapping[Part, float]) -> str:
    """The emitted example with ``wall_clock_breakdown``; a step is the sum of its parts."""
    timers, seconds = deepspeed_timers(parts), sum(parts.values())
    return "".join(f"{timers}step {index} loss 4.123456789 seconds {seconds:.6f}\n" for index in range(10))


def iteration(number: int, seconds: float, batch: int) -> str:
    """Megatron's line of an iteration."""
    return (
        f" [2026-01-02 03:04:05.678901] iteration {number:8d}/     100 | consumed samples: {number * batch:12d} | "
        f"elapsed time per iteration (ms): {1000 * seconds:.1f} | throughput per GPU (TFLOP/s/GPU): 101.2 | "
        f"learning rate: 3.000000E-04 | global batch size: {batch:5d} | lm loss: 4.123456E+00 | "
        f"loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def timers(by_name: Mapping[str, tuple[float, float]]) -> str:
    """Megatron's timers over all ranks: (least, most) seconds by name."""
    lines = ["(min, max) time across ranks (ms):\n"]
    for name, (least, most) in by_name.items():
        lines.append(f"    {(name + ' ').ljust(48, '.')}: ({1000 * least:.2f}, {1000 * most:.2f})\n")
    return "".join(lines)


def timers_by_rank(by_name: Mapping[str, Sequence[float]]) -> str:
    """Megatron's timers with ``--timing-log-option all``: seconds by name, [rank]."""
    lines = ["times across ranks (ms):\n"]
    for name, found in by_name.items():
        lines.append(f"  {name}:\n")
        lines += [f"     rank {rank:2d}: {1000 * seconds:.2f}\n" for rank, seconds in enumerate(found)]
    return "".join(lines)


def memory_report(rank: int, held: float, peak: float, device: float | None = None) -> str:
    """Megatron's memory line after two iterations, sizes in bytes."""
    more = "" if device is None else f" | total device memory used: {device / MIB:.2f}"
    return (
        f"[Rank {rank}] (after 2 iterations) memory (MB) | allocated: {held / MIB:.2f} "
        f"| max allocated: {peak / MIB:.2f} | reserved: {peak / MIB:.2f} | max reserved: {peak / MIB:.2f}{more}\n"
    )


NAMES: dict[Part, str] = {
    "forward": "forward-compute",
    "backward": "backward-compute",
    "gradient sync": "all-grads-sync",
    "optimizer": "optimizer",
}
"""Megatron's timers of the parts."""


def megatron_text(parts: Sequence[Mapping[Part, float]], seconds: float, batch: int) -> str:
    """Iterations with timers by rank."""
    by_name = {name: [rank[part] for rank in parts] for part, name in NAMES.items()}
    found = timers_by_rank(by_name)
    return "".join(iteration(index, seconds, batch) + found for index in range(1, 11))


def predicted_parts(found: PredictedRun, rank: Rank, **factors: float) -> dict[Part, float]:
    """The prediction of a rank with some parts multiplied; spaces of their names are underscores."""
    by_part = {name.replace("_", " "): factor for name, factor in factors.items()}
    return {part: seconds * by_part.get(part, 1.0) for part, seconds in found.parts(rank).items()}


def write(path: Path, *texts: str) -> Path:
    """A log file."""
    path.write_text("".join(texts), encoding="utf-8")
    return path
