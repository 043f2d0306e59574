"""What drivers call the devices of a plan."""

from __future__ import annotations

from planner import catalog


def driver_names(gpu: str) -> tuple[str, ...]:
    """Names that nvidia-smi may print for a kind of the cluster file; none for a kind that is not in the catalogue."""
    try:
        known = catalog.gpu(gpu)
    except KeyError:
        return ()
    return tuple(dict.fromkeys((*known.aliases, known.name)))


def product_labels(gpu: str) -> tuple[str, ...]:
    """Values of the node label ``nvidia.com/gpu.product``: the driver's name with dashes for blanks."""
    vendor = ("NVIDIA ", "Tesla ")
    return tuple(name.replace(" ", "-") for name in driver_names(gpu) if name.startswith(vendor))
