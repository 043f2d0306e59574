"""Device types of a draft."""

from __future__ import annotations

import pytest

from planner import catalog
from planner.probe.devices import SeenGpu
from planner.probe.entries import device_types_of, power_limit


def lines(gpu: SeenGpu) -> list[str]:
    """Entries of the device's type."""
    return [entry.line() for device_type in device_types_of((gpu,)) for entry in device_type.entries]


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_product_names_lead_to_the_catalogue(name: str) -> None:
    """Every alias of every device, with the memory that its driver reports."""
    known = catalog.gpu(name)
    for alias in (name, *known.aliases):
        (device_type,) = device_types_of((SeenGpu(index=0, name=alias, memory_mib=known.memory_gib * 1024),))
        assert (device_type.name, device_type.entries) == (name, ())


def test_drivers_may_differ_a_little_in_the_memory() -> None:
    """An A100 of 40 GB reports 40,536 MiB with older drivers."""
    gpu = SeenGpu(index=0, name="NVIDIA A100-SXM4-40GB", memory_mib=40536)
    assert device_types_of((gpu,))[0].entries == ()


def test_ecc_changes_the_memory_of_a_t4() -> None:
    """The same device with more memory, its other numbers marked."""
    gpu = SeenGpu(index=0, name="Tesla T4", memory_mib=16127, ecc=False)
    (device_type,) = device_types_of((gpu,))
    assert device_type.name == "T4-15.75GiB"
    first, *rest = lines(gpu)
    assert first == "memory_gib: 15.75  # seen: 16127 MiB, ECC off; the catalogue's T4 has 15 GiB"
    assert rest
    assert all(line.endswith("# assumed: as the catalogue's T4") for line in rest)
    assert "compute_capability: 7.5  # assumed: as the catalogue's T4" in rest


def test_a_variant_keeps_its_vendor() -> None:
    """An MI300X in partitions: without it, its pool could be in one communicator with NVIDIA's devices."""
    gpu = SeenGpu(index=0, name="AMD Instinct MI300X", memory_mib=24574)
    assert "vendor: amd  # assumed: as the catalogue's MI300X" in lines(gpu)


def test_an_unknown_device_of_amd_says_its_vendor() -> None:
    """It was AMD's tool that listed it."""
    gpu = SeenGpu(index=0, name="AMD Instinct MI100", memory_mib=32752, vendor="amd")
    assert lines(gpu)[:2] == ["memory_gib: 31.98  # seen", "vendor: amd  # seen"]


def test_an_unknown_device_keeps_what_was_seen() -> None:
    """Its memory; the data sheet has the rest."""
    gpu = SeenGpu(index=0, name="NVIDIA X100 (PCIe)", memory_mib=96256)
    assert device_types_of((gpu,))[0].name == "NVIDIA-X100-PCIe"
    assert lines(gpu)[0] == "memory_gib: 94  # seen"
    assert [line[:34] for line in lines(gpu)[1:3]] == [
        "# not seen: memory_bandwidth_gBps:",
        "# not seen: tflops: {bf16: N, fp16",
    ]


def test_mig_devices_are_device_types_of_their_own() -> None:
    """Their memory is that of the profile; nothing is said of their speed."""
    gpu = SeenGpu(index=0, name="NVIDIA A100-SXM4-40GB", mig=True, profiles=("3g.20gb", "2g.10gb"))
    assert [device_type.name for device_type in device_types_of((gpu,))] == [
        "A100-SXM-40GB-3g.20gb",
        "A100-SXM-40GB-2g.10gb",
    ]
    assert lines(gpu)[0].startswith("memory_gib: 18.63  # assumed: by the name of the profile")
    assert lines(gpu)[1] == "compute_capability: 8.0  # that of A100-SXM-40GB"
    unknown = SeenGpu(index=0, name="NVIDIA X100", mig=True, profiles=("1g.10gb",))
    assert lines(unknown)[1] == "vendor: nvidia  # MIG is NVIDIA's"


def test_mig_devices_that_were_not_listed() -> None:
    """What to do is said."""
    gpu = SeenGpu(index=0, name="NVIDIA A100-SXM4-40GB", mig=True)
    assert lines(gpu)[0] == "# not seen: memory_gib: the MIG devices were not listed, add nvidia-smi -L"


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([("NVIDIA A100-SXM4-80GB", 400.0)] * 2, []),
        ([("NVIDIA A100-SXM4-80GB", None)] * 2, []),
        ([("NVIDIA A100-SXM4-80GB", 300.0)] * 2, ["power_limit_watts: 300"]),
        (
            [("NVIDIA GeForce RTX 3090", 280.0), ("NVIDIA GeForce RTX 4090", 280.0)],
            ["power_limit_watts: 280"],
        ),
        ([("NVIDIA X100 (PCIe)", 100.0)], []),
        (
            [("NVIDIA GeForce RTX 3090", 280.0), ("NVIDIA GeForce RTX 4090", 450.0)],
            ["# power limits differ in the node: RTX-3090 280 W; power_limit_watts is one for all devices"],
        ),
    ],
)
def test_limits_below_the_power_of_the_board(
    devices: list[tuple[str, float | None]], expected: list[str]
) -> None:
    """One number stands for the pool; other limits are told."""
    gpus = tuple(SeenGpu(index=0, name=name, power_limit_watts=watts) for name, watts in devices)
    assert [entry.line() for entry in power_limit(gpus, device_types_of(gpus))] == expected


def test_a_device_cut_by_mig_has_no_limit_of_its_own() -> None:
    """Each of its parts has a share of the power."""
    gpus = (
        SeenGpu(
            index=0, name="NVIDIA A100-SXM4-80GB", mig=True, profiles=("3g.40gb",) * 2, power_limit_watts=300
        ),
    )
    assert power_limit(gpus, device_types_of(gpus)) == ()
