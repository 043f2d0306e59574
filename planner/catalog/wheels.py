"""Which official builds of PyTorch have kernels for which devices, by NVIDIA's compute capability."""

from __future__ import annotations

from collections.abc import Mapping

TORCH = "2.13"
"""Version that the builds are of."""

BUILDS: dict[str, tuple[float, ...]] = {
    "CUDA 12.6": (5.0, 6.0, 7.0, 7.5, 8.0, 8.6, 9.0),
    "CUDA 12.8 and later": (7.5, 8.0, 8.6, 9.0, 10.0, 12.0),
}
"""Architectures of each build: https://github.com/pytorch/test-infra/pull/7046; Volta left those for CUDA 12.8 and 12.9
with PyTorch 2.11."""


def runs(capability: float, build: str) -> bool:
    """True when code of the build runs on such a device: of the same major version and no later minor one."""
    return any(int(each) == int(capability) and each <= capability for each in BUILDS[build])


def builds_for(capabilities: Mapping[str, float]) -> tuple[str, ...]:
    """Builds that run on all these device types."""
    return tuple(build for build in BUILDS if all(runs(each, build) for each in capabilities.values()))


def wheel_warning(capabilities: Mapping[str, float]) -> str:
    """Why one job cannot run on these device types with one build; empty where it can."""
    if builds_for(capabilities):
        return ""
    alone = {build: [gpu for gpu, each in capabilities.items() if not runs(each, build)] for build in BUILDS}
    lacks = "; ".join(f"that for {build} lacks {', '.join(sorted(gpus))}" for build, gpus in alone.items())
    wanted = ";".join(f"{each:.1f}" for each in sorted(set(capabilities.values())))
    what = f"no build of PyTorch {TORCH} has kernels for all devices: {lacks}"
    return f'{what}. Build it with TORCH_CUDA_ARCH_LIST="{wanted}"'


def wheel_note(capabilities: Mapping[str, float]) -> str:
    """The builds to install where not all of them do; empty where all do or none."""
    fitting = builds_for(capabilities)
    if not fitting or len(fitting) == len(BUILDS):
        return ""
    old = [gpu for gpu, each in capabilities.items() if not all(runs(each, build) for build in BUILDS)]
    return f"PyTorch {TORCH} has kernels for {', '.join(sorted(old))} in its builds for {' or '.join(fitting)} only"
