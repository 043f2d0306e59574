"""Why a plan is what it is: where time goes, which memory and links bind, what each decision and family is worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group

from planner.cost.binding import Binding, BusyLink, TightDevice
from planner.cost.values import CAUSES, COMPONENTS, Breakdown, Estimate, GroupEstimate, Memory, StageEstimate
from planner.field_metadata import meanings, sentence
from planner.plan.file import CHOSEN, Considered
from planner.report.layout import (
    Column,
    FittedTable,
    Paragraph,
    bullets,
    list_section,
    number,
    section,
    table,
    words,
)
from planner.report.numbers import TimeUnit, count_unit, duration, gib, percent, time_unit
from planner.report.plan_table import group_text, groups_of, misfits, round_seconds, stage_runs
from planner.search.explain.neighbours import Neighbour
from planner.search.values import Advice, Alternative, Ratio, Scored


def binding_section(binding: Binding) -> Group:
    """The device first, then the links, the most expensive first."""
    links = [_link_line(link) for link in binding.links] or ["links: no communication is exposed"]
    return section("Bottlenecks", bullets([_memory_line(binding.device), *links]))


def _memory_line(device: TightDevice) -> str:
    """Free space of the fullest device, its largest component, and what more work would need."""
    name, size = largest_component(device.memory)
    room = device.memory.headroom_bytes
    left = f"{gib(room)} GiB free" if room >= 0 else f"lacks {gib(-room)} GiB"
    parts = [
        f"memory: stage {device.stage} on {device.gpu} ({device.pool}), {left} of "
        f"{gib(device.memory.capacity_bytes)}",
        f"largest component: {name}, {gib(size)} GiB",
        *_more(device),
    ]
    return "; ".join(parts)


def _more(device: TightDevice) -> Iterator[str]:
    if device.next_micro_batch_bytes is not None:
        what = f"a micro-batch of {device.next_micro_batch} needs"
        yield f"{what} {_against(device.next_micro_batch_bytes, device.memory.headroom_bytes)}"
    if device.layer_bytes is not None:
        yield f"one more layer needs {_against(device.layer_bytes, device.memory.headroom_bytes)}"


def _against(size: float, room: float) -> str:
    """``+4.1 GiB, which do not fit``."""
    return f"{size / 2**30:+.1f} GiB, {'which fits' if size <= room else 'which does not fit'}"


def _link_line(link: BusyLink) -> str:
    path = {"node": " over the links inside a node", "host": ""}.get(link.path, f" over {link.path}")
    where = f"from stage {link.stage}" if link.traffic == "sends" else f"in stage {link.stage}"
    return f"{link.traffic}{path}: {duration(link.seconds)} of the step ({percent(link.share)}), most {where}"


def memory_section(estimate: Estimate) -> Group:
    """A row per group of replicas; components, the fixed part and free space add up to the capacity."""
    offloads = any(group.memory.host_bytes for group in groups_of(estimate))
    columns = (
        number("stage"),
        words("device", least=14),
        *(number(label.heading) for label in COMPONENTS.values()),
        number("fixed"),
        number("free"),
        number("of"),
        *([number("host")] if offloads else []),
    )
    rows = [
        [str(index), f"{group.gpu} ({group.pool})", *_cells(group.memory, offloads)]
        for index, stage in enumerate(estimate.stages)
        for group in stage.groups
    ]
    note = "fixed: context and libraries, what the allocator holds beyond tensors, the reserve"
    note += "; host: host memory per device" if offloads else ""
    return section("Memory per device (GiB)", table(columns, rows, gap=1), Paragraph(note))


def _cells(memory: Memory, offloads: bool) -> list[str]:
    parts = [gib(getattr(memory, name)) for name in COMPONENTS]
    fixed = memory.runtime_bytes + memory.reserve_bytes
    host = [gib(memory.host_bytes)] if offloads else []
    return [*parts, gib(fixed), gib(memory.headroom_bytes), gib(memory.capacity_bytes), *host]


def largest_component(memory: Memory) -> tuple[str, float]:
    """Label and bytes of the component that takes most."""
    name = max(COMPONENTS, key=lambda name: float(getattr(memory, name)))
    return COMPONENTS[name].text, float(getattr(memory, name))


SMALLEST = 0.0005
"""Share of a step below which a cause is left out."""


def time_section(estimate: Estimate) -> Group:
    """Seconds and share of the step by cause, on the stage that decides; then what is hidden."""
    unit = time_unit([estimate.step_seconds])
    columns = (words("cause", least=16), number(unit.name), number("share"), words("what", least=20))
    causes = [(name, float(getattr(estimate.breakdown, name))) for name in CAUSES]
    rows = [
        [
            CAUSES[name].text,
            unit.part(seconds, estimate.step_seconds),
            percent(seconds / estimate.step_seconds),
            sentence(meanings(Breakdown)[name]),
        ]
        for name, seconds in causes
        if seconds >= SMALLEST * estimate.step_seconds
    ]
    hidden = f"{duration(estimate.breakdown.hidden_seconds)} of communication is hidden under computation"
    return section("Step time by cause", table(columns, rows), Paragraph(hidden))


def balance_section(estimate: Estimate, title: str = "layers") -> Group:
    """Every group against the slowest: who decides the pace and who waits."""
    groups = groups_of(estimate)
    unit, slowest = time_unit(map(round_seconds, groups)), max(group.work_seconds for group in groups)
    columns = (
        number("stage"),
        words(title, least=6),
        words("devices", least=16),
        number(unit.heading("fwd+bwd")),
        number("accum.\nsteps"),
        number("load"),
        words("communication", least=14),
    )
    rows = [
        [run.indices, run.layers, *_balance(members, len(run.stages), unit, slowest), _links(run.stages[0])]
        for run in stage_runs(estimate.stages)
        for members in run.groups
    ]
    note = Paragraph("load: work per step relative to the busiest group, for which the others wait")
    return section("Balance", table(columns, rows), note)


def _balance(groups: Sequence[GroupEstimate], stages: int, unit: TimeUnit, slowest: float) -> list[str]:
    """Devices, time and load of the slowest of some groups that share a row."""
    group = max(groups, key=lambda each: each.work_seconds)
    return [
        group_text(group, stages),
        unit.show(round_seconds(group)),
        str(group.steps),
        percent(group.work_seconds / slowest),
    ]


def _links(stage: StageEstimate) -> str:
    """Where a stage's gradients travel and by which path it sends to the next."""
    replicas = sum(group.count for group in stage.groups)
    parts = [f"gradients: {stage.crosses}"] if replicas > 1 else []
    parts += [f"replicate: {stage.copies_cross}"] if stage.copies_cross else []
    parts += [f"next: {stage.link}"] if stage.link else []
    return ", ".join(parts) or "none"


def neighbours_section(entries: Sequence[Neighbour], first: Scored) -> Group:
    """What a step takes with one decision changed; nothing without neighbours."""
    if not entries:
        return Group()
    unit = time_unit([first.estimate.step_seconds])
    columns = (
        words("change", least=24),
        number(unit.heading("step")),
        number("slower by"),
        words("memory", least=20),
    )
    rows = [
        [
            entry.change,
            unit.show(entry.scored.estimate.step_seconds),
            percent(entry.scored.estimate.step_seconds / first.estimate.step_seconds - 1),
            _memory_verdict(entry.scored.estimate),
        ]
        for entry in entries
    ]
    return section("One decision changed", table(columns, rows))


def _memory_verdict(estimate: Estimate) -> str:
    missing = misfits(estimate)
    return f"does not fit: {missing[0]}" if missing else "fits"


def considered(alternatives: Iterable[Alternative]) -> tuple[Considered, ...]:
    """The families of a search, the chosen one first, then the fastest, impossible ones last."""
    entries = (
        Considered(
            family=entry.family,
            step_seconds=entry.scored.estimate.step_seconds if entry.scored else None,
            tokens_per_second=entry.scored.estimate.tokens_per_second if entry.scored else None,
            reason=CHOSEN if entry.chosen else entry.reason,
        )
        for entry in alternatives
    )
    return tuple(sorted(entries, key=_rank))


def _rank(entry: Considered) -> tuple[bool, float, str]:
    return (not entry.chosen, entry.step_seconds or float("inf"), entry.family)


def families_table(shown: Sequence[Considered], family: Column, *, brief: bool = False) -> FittedTable:
    """A row for each family with the reason it lost; ``brief`` without a rule."""
    unit = time_unit(entry.step_seconds for entry in shown)
    speed = count_unit(entry.tokens_per_second for entry in shown)
    numbers = (number(unit.heading("step")), number(speed.heading("tokens/s")))
    rows = [
        [entry.family, unit.show(entry.step_seconds), speed.show(entry.tokens_per_second), entry.reason]
        for entry in shown
    ]
    strong = [index for index, entry in enumerate(shown) if entry.chosen]
    return table((family, *numbers, words("why not", least=24)), rows, strong, ruled=not brief)


def alternatives_section(entries: Sequence[Considered], top: int | None = None) -> Group:
    """One row per family with the reason it lost; nothing without families."""
    if not entries:
        return Group()
    shown = entries if top is None else entries[:top]
    left = [Paragraph(f"{len(shown)} of {len(entries)} families shown")] if len(shown) < len(entries) else []
    note = Paragraph("a good plan of each family, not proven optimal; percentages refer to the chosen plan")
    return section("Plan families", families_table(shown, words("family", least=18)), *left, note)


def advice_section(lines: Sequence[str]) -> Group:
    """Faster plans that need another runtime."""
    return list_section("Faster with another runtime", lines)


def advice_text(entry: Advice) -> str:
    """``4.1 % faster with tp 4 on the a100 stage only: needs flagscale``."""
    return f"{percent(entry.faster)} faster with {entry.change}: needs {entry.target}"


def ratios_section(lines: Sequence[str]) -> Group:
    """Splits of work between device types that depend on uncertain speeds."""
    return list_section("What the choice of devices depends on", lines)


def ratio_text(entry: Ratio) -> str:
    """How well a ratio of speeds is known, from where on another plan is better, and the command that settles it."""
    gpus, against = " and ".join(entry.gpus), " and ".join(entry.against)
    ways = [
        f"{word} {factor:.2f}"
        for word, factor in (("below", entry.slower_than), ("above", entry.faster_than))
        if factor is not None
    ]
    return (
        f"the split between {against} and {gpus} depends on speeds known to ±{percent(entry.bar)}: if {gpus} runs "
        f"{' or '.join(ways)} times its assumed speed, another plan is better, by up to {percent(entry.regret)}; "
        f"`hetplan calibrate device` on one {' and one '.join(entry.measure)} would settle it"
    )
