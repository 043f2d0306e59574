"""A smoke run with faults planted by ``PLANTED``, as torchrun starts it: ``torchrun planted.py`` in the folder.

Words ``order``, ``memory``, ``weights`` and ``names``, each with the rank that has it, as in ``memory=1``.
"""

from __future__ import annotations

import os
import resource
import sys
from importlib import import_module
from typing import Any

sys.path.insert(0, os.getcwd())
hetplan_smoke: Any = import_module("hetplan_smoke")
smoke_run: Any = import_module("smoke_run")
smoke_device: Any = import_module("smoke_device")
smoke_measure: Any = import_module("smoke_measure")

RANK = int(os.environ["RANK"])
PLANTED = dict(word.split("=") for word in os.environ.get("PLANTED", "").split())
BUSES = ("0:1a:00", "0:1b:00", "0:3c:00", "0:3d:00")
SPARE = 100 * 2**20


def here(fault: str) -> bool:
    """True on the rank that has the fault."""
    return PLANTED.get(fault) == str(RANK)


def device_facts(index: int) -> dict[str, object]:
    """A T4 in each slot; in the wrong order this rank has the device of the one before."""
    at = index - here("order")
    name = "Tesla V100-SXM2-16GB" if here("names") else "Tesla T4"
    return {
        "name": name,
        "bus": BUSES[at],
        "slot_bus": BUSES[index],
        "architecture": "sm_75",
        "wheel": ("sm_75", "sm_80"),
    }


def allocated(wanted: int, device: str) -> int:
    """The real one in a process that may grow by so much and no more."""
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + SPARE, limits[1]))
    try:
        given: int = smoke_measure.allocated(wanted, device)
        return given
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


if "devices" in PLANTED:
    smoke_device.device_facts = device_facts
if here("memory"):
    smoke_run.allocated = allocated
if here("weights"):
    drawn = smoke_measure.initial_weights
    smoke_measure.initial_weights = lambda hidden, seed: drawn(hidden, seed + 1)
hetplan_smoke.main()
