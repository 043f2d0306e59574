"""The inputs as understood: defaults filled in, devices of the cluster, links between its pools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from rich.console import Group, RenderableType

from planner import catalog
from planner.calibration.merge import name_key
from planner.calibration.values import ASSUMED, Calibration
from planner.catalog import CatalogueLink
from planner.catalog.node_links import RACKS, XGMI, nvlink_of
from planner.cluster.spec import ClusterSpec, NicSpec, PoolSpec
from planner.cluster.topology import DeviceType, HostTopology, Path, Topology
from planner.cost.memory import kept_free
from planner.dims.sync import sync_text
from planner.files.messages import nearest
from planner.model.spec import ModelSpec, NumericsSpec, StateSpec, TowerSpec, TrainingSpec
from planner.report.layout import Paragraph, number, pairs, section, table, words
from planner.report.numbers import MISSING, count, duration, gib, percent, significant
from planner.search.values import Limits
from planner.units import format_count, gib_from_bytes

FORMATS = ("bf16", "fp16", "fp32")
"""Number formats that a model can be trained in, in the order they are shown."""


def inventory_section(device_types: Sequence[DeviceType], spread: float = ASSUMED.memory_spread) -> Group:
    """A row per device type and one for all together; ``spread`` is that of memory."""
    formats = [
        name for name in FORMATS if any(name in device_type.peak_flops for device_type in device_types)
    ]
    columns = (
        words("pool", least=14),
        words("device", least=14),
        number("devices"),
        number("usable\n(GiB)"),
        *(number(f"{name}\n(TFLOP/s)") for name in formats),
    )
    rows = [_row(device_type, formats, spread) for device_type in device_types]
    return section(
        "Devices (memory and dense peak per device)",
        table(columns, rows),
        Paragraph(_total(device_types, formats, spread)),
    )


def _row(device_type: DeviceType, formats: Iterable[str], spread: float) -> list[str]:
    peaks = [
        significant(device_type.peak_flops[name] / 1e12) if name in device_type.peak_flops else MISSING
        for name in formats
    ]
    many = f"{device_type.nodes} x {device_type.per_node}"
    return [
        device_type.pool,
        device_type.gpu,
        many,
        gib(_usable(device_type, spread)),
        *peaks,
    ]


def _total(device_types: Sequence[DeviceType], formats: Iterable[str], spread: float) -> str:
    """Devices, memory and peak of all together."""
    memory = sum(device_type.devices * _usable(device_type, spread) for device_type in device_types)
    peaks = [
        (
            name,
            sum(device_type.devices * device_type.peak_flops.get(name, 0.0) for device_type in device_types),
        )
        for name in formats
    ]
    peak = ", ".join(f"{name} {significant(flops / 1e15)} PFLOP/s" for name, flops in peaks)
    devices = sum(device_type.devices for device_type in device_types)
    return f"total: {count(devices, 'device')}, {size_text(gib_from_bytes(memory))} usable, {peak}"


def _usable(device_type: DeviceType, spread: float) -> float:
    return max(0.0, device_type.memory_bytes - kept_free(device_type, spread))


def memory_warnings(device_types: Sequence[DeviceType]) -> list[str]:
    """Devices of whose memory nothing is left for a plan."""
    return [
        f"{device_type.gpu} ({device_type.pool}) stays idle: {gib(device_type.reserve_bytes)} GiB are kept free, "
        f"it has {gib(device_type.memory_bytes)}"
        for device_type in device_types
        if device_type.reserve_bytes >= device_type.memory_bytes
    ]


FASTEST_CARD, LARGEST_DEVICE, FASTEST_DEVICE = 3200, 1024, 50_000
"""Above those of any hardware there is: Gbit/s of a network card, GiB and TFLOP/s of a device."""


SLOWEST_MEMORY = 20
"""GB/s below those of any device."""


def unit_warnings(cluster: ClusterSpec) -> Iterator[str]:
    """Numbers that no hardware has, as if given in another unit."""
    for pool in cluster.pools:
        for nic in pool.nics:
            if nic.bandwidth_gbps > FASTEST_CARD and cluster.fabrics[nic.fabric].kind != "nvlink":
                given = f"a card of {pool.name} has {nic.bandwidth_gbps:g} Gbit/s on {nic.fabric}"
                yield f"{given}: is that in megabit/s, or of all cards together?"
    for name, gpu in cluster.gpus.items():
        if gpu.memory_gib > LARGEST_DEVICE:
            yield f"{name} has {gpu.memory_gib:g} GiB: is that in MiB?"
        if gpu.memory_bandwidth_gBps < SLOWEST_MEMORY:
            yield f"{name} has {gpu.memory_bandwidth_gBps:g} GB/s of memory bandwidth: is that in TB/s?"
        for form, peak in gpu.tflops.items():
            if peak > FASTEST_DEVICE:
                yield f"{name} has {peak:g} TFLOP/s in {form}: is that in GFLOP/s?"


def family_warnings(cluster: ClusterSpec, families: Iterable[str]) -> Iterator[str]:
    """Device types of a family that neither the calibration nor the catalogue has, as a misspelled one is."""
    known = [*dict.fromkeys([*families, *(catalog.gpu(name).family for name in catalog.gpu_names())])]
    for name, gpu in cluster.gpus.items():
        if gpu.family and gpu.family not in known:
            near = nearest(gpu.family, known)
            asked = f": {near}" if near else ""
            yield f"{name} is of the family {gpu.family}, whose constants are assumed as none are known{asked}"


FASTER = 1.05
"""Above the catalogue's link by this, a node's network is not rounded but wrong."""


def node_warnings(cluster: ClusterSpec) -> Iterator[str]:
    """Networks inside nodes that are faster than the links of their devices, as the sum of both directions is."""
    for pool in cluster.pools:
        links = [_own_link(gpu) for gpu in dict.fromkeys(pool.devices)]
        known = [link for link in links if link is not None]
        fastest = max(known, key=lambda link: link.bandwidth_gBps, default=None)
        if len(pool.devices) < 2 or fastest is None or len(known) < len(links):
            continue
        if pool.intra_node.bandwidth_gBps > FASTER * fastest.bandwidth_gBps:
            given = f"a device of {pool.name} has {pool.intra_node.bandwidth_gBps:g} GB/s inside"
            yield (
                f"{given}, {fastest.name} {fastest.bandwidth_gBps:g}: is that both directions, or of another device?"
            )


def _own_link(gpu: str) -> CatalogueLink | None:
    """NVLink or xGMI of a device of the catalogue; None for others."""
    name = (nvlink_of(gpu) or (XGMI.get(gpu),))[0]
    return None if name is None else catalog.link(name)


def rack_warnings(cluster: ClusterSpec) -> Iterator[str]:
    """Pools of several nodes that usually share NVLink, and say nothing of it."""
    for pool in cluster.pools:
        joined = any(cluster.fabrics[nic.fabric].kind == "nvlink" for nic in pool.nics)
        types = [gpu for gpu in dict.fromkeys(pool.devices) if gpu in RACKS]
        if types and len(pool.hosts) > 1 and not joined:
            what = f"nodes of {types[0]} in one rack share NVLink, and {pool.name} has none between its nodes"
            yield f"{what}: give them a fabric of kind nvlink if they do (docs/formats.md)"


def precision_warnings(device_types: Sequence[DeviceType], model: ModelSpec) -> list[str]:
    """Devices that cannot train in the asked number format, with what they can."""
    asked = model.training.precision
    return [
        f"{device_type.gpu} ({device_type.pool}) does not support {asked} and stays idle; "
        f"it supports {', '.join(sorted(device_type.peak_flops))}"
        for device_type in device_types
        if asked not in device_type.peak_flops
    ]


PER_BLOCK = 5
"""Columns of the matrix that fit 80 cells."""
SHOWN = 40
"""Pools of the matrix, and pairs of pools without a path that are named."""

Paths = Sequence[Sequence[Path]]


def links_section(topology: Topology) -> Group:
    """The matrix in GB/s, each cell with the letter of its path, and what the letters mean."""
    pools = [pool.name for pool in topology.cluster.pools]
    names = pools[:SHOWN]
    paths = [[topology.path(first, last) for last in names] for first in names]
    letters = _letters(paths)
    blocks: list[RenderableType] = []
    for first in range(0, len(names), PER_BLOCK):
        columns = range(first, min(first + PER_BLOCK, len(names)))
        blocks.append(_block(names, paths, letters, columns))
    if len(pools) > len(names):
        text = f"and {len(pools) - len(names):,} more pools; --json has the links between all"
        blocks.append(Paragraph(text))
    latencies = _latencies(paths)
    legend = [
        (letter, _meaning(route, latencies[route], topology.cluster)) for route, letter in letters.items()
    ]
    return section("Links: one node to another (GB/s, path)", *blocks, pairs(legend))


def _block(names: Sequence[str], paths: Paths, letters: dict[str, str], columns: range) -> RenderableType:
    headings = (words("pool", least=10), *(number(names[column]) for column in columns))
    rows = [
        [names[row], *(_cell(paths[row][column], letters) for column in columns)] for row in range(len(names))
    ]
    return table(headings, rows)


def _cell(path: Path, letters: dict[str, str]) -> str:
    if not path.connected:
        return "no path"
    return f"{significant(path.bytes_per_second / 1e9)} {letters[_route(path)]}"


def _letters(paths: Paths) -> dict[str, str]:
    fabrics = sorted({_route(path) for row in paths for path in row if path.connected})
    return {fabric: _letter(index) for index, fabric in enumerate(fabrics)}


def _route(path: Path) -> str:
    """The fabrics of a path, the same in both directions."""
    parts = path.fabric.split("+")
    return "+".join(min(parts, parts[::-1]))


def _letter(index: int) -> str:
    """a .. z, then a1, b1, ..."""
    turn, letter = divmod(index, 26)
    return chr(ord("a") + letter) + (str(turn) if turn else "")


def _latencies(paths: Paths) -> dict[str, list[float]]:
    """Of every path by its route, seconds."""
    latencies: dict[str, list[float]] = {}
    for path in chain.from_iterable(paths):
        latencies.setdefault(_route(path), []).append(path.latency_seconds)
    return latencies


def _meaning(route: str, latencies: Sequence[float], cluster: ClusterSpec) -> str:
    """Kind and latency behind a letter."""
    if route == "node":
        return "inside the one node of the pool"
    kinds = [cluster.fabrics[name].kind for name in route.split("+") if name in cluster.fabrics]
    low, high = duration(min(latencies)), duration(max(latencies))
    latency = low if low == high else f"{low} to {high}"
    return f"{route} ({' + '.join(dict.fromkeys(kinds))}, {latency})"


def unreachable(topology: Topology) -> list[str]:
    """Pairs of pools that cannot talk, one sentence each; how many more there are."""
    apart, hosts = topology.apart(), HostTopology(topology.cluster)
    told = []
    for first, last in islice(apart, SHOWN):
        strange = topology.strangers(first, last)
        why = strange or f"{first} and {last} share no fabric and no link"
        told.append(f"{why}: {_together(hosts.path(first, last).connected, strange=bool(strange))}")
    more = sum(1 for _ in apart)
    return [*told, f"the same holds for {more:,} more pairs of pools"] if more else told


def _together(hosts_talk: bool, *, strange: bool) -> str:
    """What pools whose devices cannot talk can still do together."""
    islands = "only plans with islands use both in one job (--allow-local-sgd, --allow-compression)"
    if hosts_talk:
        return islands
    return (
        f"{islands}, which need an Ethernet between their hosts"
        if strange
        else "no plan can use both in one job"
    )


ASSUMED_CONSTANTS = "default constants, not measured"


def understood(
    cluster: ClusterSpec,
    model: ModelSpec | None,
    calibration: Calibration | None = None,
    limits: Limits | None = None,
    goal: str = "",
) -> Group:
    """The inputs as key-value lines: cluster, model, training, goal, limits, and where the constants come from."""
    rows = list(_cluster(cluster))
    if model is not None:
        rows += _model(model)
    rows += [("goal", goal)] if goal else []
    if limits is not None:
        rows += [("limits", text)] if (text := limits_text(limits)) else []
    if calibration is not None:
        rows.append(("accuracy", provenance_text(calibration, cluster, model)))
    return section("Inputs", pairs(rows))


def _cluster(cluster: ClusterSpec) -> Iterator[tuple[str, str]]:
    nodes = sum(len(pool.hosts) for pool in cluster.pools)
    memory = sum(
        len(pool.hosts) * sum(cluster.gpus[gpu].memory_gib for gpu in pool.devices) for pool in cluster.pools
    )
    totals = f"{count(nodes, 'node')}, {count(cluster.devices, 'device')}, {size_text(memory)}"
    safe = "" if cluster.safe is None else f", out of memory with a chance of at most {percent(cluster.safe)}"
    yield "cluster", f"{cluster.name}: {totals}, {cluster.reserve_gib:g} GiB kept free per device{safe}"
    for pool in cluster.pools:
        yield "", pool_text(cluster, pool)


def size_text(gib: float) -> str:
    """A large size: ``480 GiB``, ``1052 TiB``."""
    return f"{gib:.0f} GiB" if gib < 10_000 else f"{gib / 1024:.0f} TiB"


def pool_text(cluster: ClusterSpec, pool: PoolSpec) -> str:
    """One pool in a line: ``a100: 2 x 8 A100-SXM-80GB (80 GiB), 300 GB/s inside, 8 x 200 Gbit/s ib``.

    Nodes of one device have nothing inside.
    """
    nics = " + ".join(_nic(nic) for nic in pool.nics) or "no network"
    shared = " shared" if pool.intra_node.shared else ""
    inside = f"{pool.intra_node.bandwidth_gBps:g} GB/s{shared} inside, " if len(pool.devices) > 1 else ""
    price = "" if pool.price_per_gpu_hour is None else f", {pool.price_per_gpu_hour:g} per device-hour"
    return f"{pool.name}: {len(pool.hosts)} x {_devices(cluster, pool)}, {inside}{nics}{_host(pool)}{price}"


def _host(pool: PoolSpec) -> str:
    """What the file says of the hosts: ``, hosts 48 GB/s, 1500 GiB, NVMe 25.6 GB/s``; empty when nothing."""
    host = pool.host
    if host is None:
        return ""
    numbers = (
        (host.link_gBps, "{:g} GB/s per device"),
        (host.all_links_gBps, "{:g} GB/s"),
        (host.memory_gib, "{:g} GiB"),
        (host.nvme_gBps, "NVMe {:g} GB/s"),
        (host.adam_billion_per_s, "{:g} billion updates/s"),
    )
    said = [text.format(number) for number, text in numbers if number is not None]
    return f", hosts {', '.join(said)}" if said else ""


def _devices(cluster: ClusterSpec, pool: PoolSpec) -> str:
    device_types = dict.fromkeys(pool.devices)
    parts = [
        f"{pool.devices.count(gpu)} {gpu} ({cluster.gpus[gpu].memory_gib:g} GiB)" for gpu in device_types
    ]
    return parts[0] if len(parts) == 1 else f"[{' + '.join(parts)}]"


def _nic(nic: NicSpec) -> str:
    many = f"{nic.count} x " if nic.count > 1 else ""
    return f"{many}{nic.bandwidth_gbps:g} Gbit/s {nic.fabric}"


def _model(model: ModelSpec) -> Iterator[tuple[str, str]]:
    heads = f"{model.heads} heads" + (f" ({model.kv_heads} kv)" if model.kv_heads != model.heads else "")
    attends = any(kind.attends for kind in model.kinds)
    parts = [
        _layers(model),
        f"hidden {model.hidden}",
        *([f"{heads}{_attention(model)}"] if attends else []),
        *([_state(model.state)] if model.state is not None else []),
        *([_feed_forward(model)] if any(kind.common_ffn or kind.experts for kind in model.kinds) else []),
        *([_tower(model.tower)] if model.tower is not None else []),
        *([_encoder(model)] if model.encoder is not None else []),
    ]
    shape = ", ".join(parts)
    size = f"{format_count(model.parameters)} parameters"
    if model.experts is not None:
        size += f", {format_count(model.active_parameters)} of them for a token"
    ends = [] if model.front else [f"vocabulary {model.vocab}"]
    ends += [f"{model.labels} labels"] if model.labels else []
    yield "model", f"{model.name}: {model.kind}, {', '.join([shape, *ends])}, {size}"
    if model.numerics is not None and (numerics := _numerics(model.numerics)):
        yield "numerics", f"{numerics}; for launch files alone"
    training = model.training
    tokens = format_count(training.global_batch * training.sequence_length)
    yield (
        "training",
        f"{training.global_batch} sequences x {training.sequence_length} tokens = {tokens} per step, "
        f"{training.precision}, {training.optimizer}{_moments(training)}, {training.attention} attention"
        f"{_kernels(training)}{_trained(model)}{_dealt(training)}",
    )


def _numerics(numerics: NumericsSpec) -> str:
    """``silu, norms add 1e-06, rotary base 10000, yarn x 40, sigmoid router``."""
    scaling, router = numerics.rope_scaling, numerics.router
    parts = [
        numerics.activation,
        None if numerics.norm_epsilon is None else f"norms add {numerics.norm_epsilon:g}",
        None if numerics.rope_base is None else f"rotary base {numerics.rope_base:.0f}",
        None if numerics.rope_share is None else _rotated(numerics.rope_share),
        None if scaling is None else f"{scaling.kind} x {scaling.factor:g}",
        None if router is None else f"{router.score} router",
        *(numerics.others or ()),
    ]
    return ", ".join(part for part in parts if part)


def _rotated(share: float) -> str:
    return f"{percent(share)} of heads rotated" if share else "no rotary positions"


def _moments(training: TrainingSpec) -> str:
    """`` with moments in int8``, `` with paged moments in int8, of split weights``; empty for fp32 alone."""
    paged, states = "paged " if training.paged else "", training.optimizer_states.removeprefix("paged-")
    kept = [] if training.optimizer_states == "fp32" else [f"{paged}moments in {states}"]
    masters = {"split": "split weights", "bf16": "weights in bf16"}
    kept += [masters[training.master_weights]] if training.master_weights in masters else []
    return f" with {' and '.join(kept)}" if kept else ""


def _kernels(training: TrainingSpec) -> str:
    """``, unfused norms, tokens to experts by deepep beside computation``; empty for the usual ones."""
    text = "" if training.norms == "fused" else f", {training.norms} norms"
    dispatcher = training.token_dispatcher
    ways = "" if dispatcher == "alltoall" else f" by {dispatcher}"
    ways += " beside computation" if training.expert_overlap else ""
    return text + (f", tokens to experts{ways}" if ways else "")


def _dealt(training: TrainingSpec) -> str:
    """``, packed documents of 620 tokens``, ``, documents of 620 tokens with 85 % padding``; empty for whole texts."""
    if training.preference is not None:
        return ", pairs of answers" + (
            " beside a frozen copy of the model" if training.keeps_reference else ""
        )
    if training.documents is None:
        return ""
    length = f"documents of {count(training.documents.mean_length, 'token')}"
    padding = 1 - training.tokens / (training.global_batch * training.sequence_length)
    return f", packed {length}" if training.packed else f", {length} with {percent(padding)} padding"


def _layers(model: ModelSpec) -> str:
    """``32 layers``, or ``48 layers (12 blocks of 3 state, 1 attention and dense)``, with what stands at the ends."""
    if not (model.block or model.ahead or model.behind):
        return f"{model.layers} layers"
    parts = ((run.layers, (run.kind.mixer, run.kind.feed_forward_kind)) for run in model.runs)
    block = ", ".join(
        f"{layers} {' and '.join(part for part in both if part != 'none')}" for layers, both in parts
    )
    blocks = [f"{count(model.layers, 'block')} of {block}" if block else f"{model.layers} alike"]
    ahead = (run.layers for run in model.first_runs if run.kind.kind == model.kind)
    blocks += [f"{sum(ahead)} ahead"] if model.ahead else []
    blocks += [f"{sum(run.layers for run in model.last_runs)} behind"] if model.behind else []
    return f"{model.all_layers} layers ({'; '.join(blocks)})"


def _state(state: StateSpec) -> str:
    """``mamba2 state of 128 x 8192``."""
    return f"{state.kind} state of {state.size} x {state.inner}"


def _encoder(model: ModelSpec) -> str:
    """``an encoder of 24 layers for inputs of 512 tokens``."""
    assert model.encoder is not None
    layers = sum(run.layers for run in model.first_runs if run.kind.kind == "encoder")
    width = "" if model.encoder_width == model.hidden else f", hidden {model.encoder_width},"
    return f"an encoder of {layers} layers{width} for inputs of {model.encoder.sequence_length} tokens"


def _tower(tower: TowerSpec) -> str:
    """``a frozen tower of 24 layers, hidden 1024, 1 image a sequence of 576 tokens``."""
    images = f"{tower.images} image{'s' * (tower.images > 1)} a sequence of {tower.outputs} tokens"
    frozen = "a frozen" if tower.frozen else "a"
    return f"{frozen} tower of {tower.layers} layers, hidden {tower.hidden}, {images}"


def _trained(model: ModelSpec) -> str:
    """``, adapters of rank 16 on a frozen base (41.9 M parameters trained)``; empty where all are."""
    lora, size = model.training.lora, f"({format_count(model.trained_parameters)} parameters trained)"
    if lora is not None:
        base = f"a base in {lora.base}" if model.quantised else "a frozen base"
        base += " that keeps its inputs" if lora.keeps_inputs else ""
        drop = " that drop" if lora.dropout else ""
        return f", adapters of rank {lora.rank}{drop} on {base} {size}"
    return f", frozen {' and '.join(sorted(model.frozen))} {size}" if model.frozen else ""


def _attention(model: ModelSpec) -> str:
    """``, latent attention``, ``, window 128 in 18 layers``; empty where every token sees all before it."""
    text = ", latent attention" if model.latent else ""
    if model.window is not None:
        text += f", window {model.window} in {model.window_layers or model.layers} layers"
    return text


def _feed_forward(model: ModelSpec) -> str:
    """``gated MLP 14336``, or ``8 experts of gated MLP 14336, 2 a token``."""
    mlp = "gated MLP" if model.gated_mlp else "MLP"
    experts = model.experts
    if experts is None:
        return f"{mlp} {model.ffn}"
    shared = f", shared {experts.shared_ffn}" if experts.shared_ffn else ""
    ahead = f", behind {model.dense_layers} layers of {mlp} {model.ffn}" if model.dense_layers else ""
    return f"{experts.number} experts of {mlp} {experts.ffn}, {experts.top_k} a token{shared}{ahead}"


def limits_text(limits: Limits) -> str:
    """The user's limits on the search in a line; empty when there are none."""
    allowed = {
        "target": (limits.target,) if limits.target else None,
        "zero": limits.zero,
        "tp": limits.tp,
        "pp": limits.pp,
        "cp": limits.cp,
        "ep": limits.ep,
        "etp": limits.etp,
        "micro-batch": limits.micro_batch,
        "recompute": limits.recompute,
        "offload": limits.offload,
        "islands": [sync_text(sync) for sync in limits.syncs] or None,
        "backup": (limits.backup,) if limits.backup else None,
        "shards": ("unequal",) if limits.unequal_shards else None,
        "ZeRO 3": ("quantised",) if limits.quantised else None,
        "grids": ("allowed",) if limits.grids else None,
    }
    parts = [
        f"{key} {', '.join(str(value) for value in values)}" for key, values in allowed.items() if values
    ]
    if limits.time_limit_seconds is not None:
        parts.append(f"time limit {limits.time_limit_seconds:g} s")
    return "; ".join(parts)


def provenance_text(calibration: Calibration, cluster: ClusterSpec, model: ModelSpec | None = None) -> str:
    """Where the constants of the cluster's devices come from, and which measured layers replace formulas."""
    devices: dict[str, list[str]] = {}
    for name, gpu in sorted(cluster.gpus.items()):
        devices.setdefault(gpu.family or gpu.name, []).append(name)
    layers = _measured_layers(calibration, cluster, model) if model is not None else ""
    resting: dict[str, list[str]] = {}
    for family, gpus in devices.items():
        resting.setdefault(_source(calibration, family), []).extend(gpus)
    if set(resting) == {ASSUMED_CONSTANTS}:
        told = "datasheet peaks x assumed efficiencies"
    else:
        told = "; ".join(f"{', '.join(gpus)}: {source}" for source, gpus in resting.items())
    return f"{told}; {layers}" if layers else told


def _source(calibration: Calibration, family: str) -> str:
    """``constants fitted to 41 runs of the A100 family``, ``measured constants``, or the default."""
    runs = sum(item.rows for item in calibration.residuals if item.family == family)
    if runs:
        return f"constants fitted to {count(runs, 'run')} of the {family} family"
    start = f"families.{family}."
    sources = {constant.provenance for constant in calibration.constants if constant.name.startswith(start)}
    known = " and ".join(sorted(sources - {"assumed"}))
    return f"{known} constants" if known else ASSUMED_CONSTANTS


def _measured_layers(calibration: Calibration, cluster: ClusterSpec, model: ModelSpec) -> str:
    """``measured layers of llama-7b on A100``, empty when there are none."""
    points = [point for point in calibration.layers if name_key(point.model) == name_key(model.name)]
    measured = {name_key(point.gpu) for point in points}
    gpus = [gpu for gpu in cluster.gpus if name_key(gpu) in measured]
    return f"measured layers of {model.name} on {', '.join(gpus)}" if gpus else ""
