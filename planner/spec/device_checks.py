"""What must hold for the devices of a cluster file and the links between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner import catalog
from planner.errors import Problem
from planner.spec.complaints import nearest, shown
from planner.spec.loose import devices_per_node, keys_of, pools_of
from planner.spec.runs import split_times
from planner.spec.yaml_file import Document
from planner.spec.yaml_nodes import Path as KeyPath

_INLINE = "or write its numbers: {memory_gib: 24, memory_bandwidth_gBps: 600, tflops: {fp16: 100}}"


def unknown_gpus(document: Document) -> Iterator[Problem]:
    """Every name of a device must be known."""
    own = keys_of(document.data.get("gpus"))
    for index, pool in pools_of(document):
        if isinstance(pool.get("gpu"), str):
            yield from _gpu(document, ("pools", index, "gpu"), pool["gpu"], own)
        devices = pool.get("devices")
        for position, device in enumerate(devices if isinstance(devices, list) else []):
            if isinstance(device, str):
                yield from _gpu(document, ("pools", index, "devices", position), split_times(device)[1], own)


def _gpu(document: Document, path: KeyPath, name: str, own: list[str]) -> Iterator[Problem]:
    try:
        known = name in own or bool(catalog.gpu(name))
    except KeyError:
        known = False
    if not known:
        family = catalog.gpus_like(name)
        what = (
            f'"{name}" may be any of: {", ".join(family)}'
            if len(family) > 1
            else f'no GPU is known as "{name}"'
        )
        near = "write one of them" if len(family) > 1 else _near_gpus(name, own)
        yield document.problem(path, what, f"{near}, {_INLINE}" if near else _INLINE.removeprefix("or "))


def whole_gpus(document: Document) -> Iterator[Problem]:
    """Every device of a pool must be one of ``gpus``, and each of those under its own name."""
    own = document.data.get("gpus")
    kinds = own if isinstance(own, dict) else {}
    for name, gpu in kinds.items():
        if isinstance(gpu, dict) and isinstance(gpu.get("name"), str) and gpu["name"] != name:
            yield document.problem(("gpus", name, "name"), f"expected {name}, got {shown(gpu['name'])}")
    for index, pool in pools_of(document):
        devices = pool.get("devices")
        for position, device in enumerate(devices if isinstance(devices, list) else []):
            if isinstance(device, str) and split_times(device)[1] not in kinds:
                path = ("pools", index, "devices", position)
                yield document.problem(path, f"expected a device of gpus, got {shown(device)}")


def ambiguous_gpus(document: Document) -> Iterator[Problem]:
    """One name must not stand for two sets of numbers."""
    seen: dict[str, tuple[KeyPath, object]] = {}
    own = document.data.get("gpus")
    for path, gpu, default_name in _written_gpus(document):
        name, numbers = _identity(gpu, default_name, own if isinstance(own, dict) else {})
        first, other = seen.setdefault(name, (path, numbers))
        if other != numbers:
            what = f'other numbers for "{name}" are on line {document.line(first)}'
            yield document.problem(path, what, "give it another name")


def _written_gpus(document: Document) -> Iterator[tuple[KeyPath, object, str]]:
    for index, pool in pools_of(document):
        if "gpu" in pool:
            yield ("pools", index, "gpu"), pool["gpu"], f"{pool.get('name')}-gpu"
        devices = pool.get("devices")
        for position, device in enumerate(devices if isinstance(devices, list) else []):
            yield ("pools", index, "devices", position), device, f"{pool.get('name')}-gpu{position}"


def _identity(gpu: object, default_name: str, own: dict[str, Any]) -> tuple[str, object]:
    """The name that a device gets, and what its numbers are, for comparison only."""
    if isinstance(gpu, dict):
        numbers = {key: value for key, value in gpu.items() if key not in ("name", "source")}
        return str(gpu.get("name", default_name)), numbers
    name = split_times(gpu)[1] if isinstance(gpu, str) else str(gpu)
    try:
        return (name, "ours") if name in own else (catalog.gpu(name).name, "catalogue")
    except KeyError:
        return name, None


def _near_gpus(name: str, own: list[str]) -> str | None:
    near = nearest(name, [*own, *catalog.gpu_names()])
    return near.rstrip("?") if near else None


def intra_nodes(document: Document) -> Iterator[Problem]:
    """Nodes of several devices need a network between them."""
    for index, pool in pools_of(document):
        given = pool.get("intra_node")
        path = ("pools", index, "intra_node")
        if isinstance(given, str):
            try:
                catalog.link(given)
            except KeyError:
                known = ", ".join(catalog.link_names())
                hint = f"known: {known}; or write {{bandwidth_gBps: 300, latency_us: 3}}"
                yield document.problem(
                    path, f'no link is known as "{given}"', nearest(given, list(catalog.link_names())) or hint
                )
        elif given is None and devices_per_node(pool) > 1:
            hint = "write for example intra_node: nvlink3, or {bandwidth_gBps: 300, latency_us: 3}"
            yield document.problem(path, f"missing, the nodes have {devices_per_node(pool)} devices", hint)
