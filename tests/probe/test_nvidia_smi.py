"""Devices of a node."""

from __future__ import annotations

import pytest

from planner.errors import SpecError
from planner.probe.devices import SeenGpu, parse_gpus, parse_mig
from tests.probe.seen import HEAD, sample, text

ROW = "0, Tesla T4, 15360 MiB, 3, 16, Enabled\n"


def test_a_dgx_has_eight_devices() -> None:
    """Every column is read."""
    gpus = parse_gpus(sample("dgx-01/nvidia-smi.csv"))
    assert gpus is not None
    assert [gpu.index for gpu in gpus] == list(range(8))
    first = gpus[0]
    assert (first.name, first.memory_mib) == ("NVIDIA A100-SXM4-80GB", 81920)
    assert (first.pcie_generation, first.pcie_width, first.ecc, first.mig) == (4, 16, True, False)


def test_what_the_driver_does_not_say_stays_unknown() -> None:
    """A GeForce has neither ECC nor MIG."""
    gpus = parse_gpus(text("name, memory.total [MiB], ecc.mode.current\nNVIDIA X, [N/A], [N/A]\n"))
    assert gpus is not None
    assert (gpus[0].index, gpus[0].memory_mib, gpus[0].ecc, gpus[0].pcie_width) == (0, None, None, None)


def test_devices_are_put_in_the_order_of_their_indices() -> None:
    """Whatever the order of lines and columns."""
    gpus = parse_gpus(text("name, index\nB, 1\nA, 0\n"))
    assert gpus is not None
    assert [(gpu.index, gpu.name) for gpu in gpus] == [(0, "A"), (1, "B")]


def test_no_devices_are_not_the_same_as_no_output() -> None:
    """A node without devices, and a node that nobody asked."""
    assert parse_gpus(sample("login-01/nvidia-smi.csv")) == ()
    assert parse_gpus(text("index, name\n")) == ()
    assert parse_gpus(text("\n")) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("NVIDIA-SMI has failed\n", "seen.txt:1: expected a header with the column name"),
        (HEAD + "0, Tesla T4\n", "seen.txt:2: expected 6 values as in the header, got 2"),
        (HEAD + ROW + ROW.replace("15360 MiB", "much"), "seen.txt:3: memory.total: expected MiB"),
        (HEAD + ROW.replace("15360", "0"), "seen.txt:2: memory.total: expected MiB"),
        (HEAD + ROW.replace("3, 16", "x, 16"), "seen.txt:2: pcie.link.gen.max: expected a whole number"),
        ("name, power.limit [W]\nTesla T4, lots", "seen.txt:2: power.limit: expected W such as 400.00 W"),
        (HEAD + ROW.replace("Enabled", "On"), "seen.txt:2: ecc.mode.current: expected Enabled or Disabled"),
        (HEAD + ROW.replace("Tesla T4", ""), "seen.txt:2: the device has no name"),
        (HEAD + ROW + ROW, "seen.txt:3: index: the device 0 is listed twice"),
    ],
)
def test_broken_tables(content: str, message: str) -> None:
    """File, line, what was expected, and how to save the right one."""
    with pytest.raises(SpecError) as caught:
        parse_gpus(text(content))
    assert str(caught.value).startswith(message)
    assert "--query-gpu" in (caught.value.problems[0].hint or "")


LIST = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11111111-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  0: (UUID: MIG-22222222-0000-0000-0000-000000000000)
  MIG 2g.10gb     Device  1: (UUID: MIG-33333333-0000-0000-0000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-44444444-0000-0000-0000-000000000000)
"""


def test_mig_devices_belong_to_the_device_above_them() -> None:
    """The second device is whole."""
    gpus = parse_gpus(text("index, name\n0, NVIDIA A100-SXM4-40GB\n1, NVIDIA A100-SXM4-40GB\n"))
    assert gpus is not None
    cut = parse_mig(text(LIST), gpus)
    assert [(gpu.mig, gpu.profiles) for gpu in cut] == [(True, ("3g.20gb", "2g.10gb")), (False, ())]


def test_a_device_in_mig_mode_without_mig_devices_is_left_out() -> None:
    """Nothing runs on it; one that -L does not list stays."""
    listed = text("GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n")
    gpus = tuple(SeenGpu(index=index, name="NVIDIA A100-SXM4-40GB", mig=True) for index in range(2))
    assert [gpu.index for gpu in parse_mig(listed, gpus)] == [1]


def test_a_broken_list() -> None:
    """The line is named."""
    with pytest.raises(SpecError, match=r"seen\.txt:2: expected a line GPU 0"):
        parse_mig(text(LIST.splitlines()[0] + "\nnonsense\n"), ())


def test_a_power_limit_is_in_watts() -> None:
    """As nvidia-smi prints it, with a unit or without; laptops have none."""
    content = "name, power.limit [W]\nTesla T4, 60.00 W\nTesla T4, 55.5\nTesla T4, [N/A]\n"
    gpus = parse_gpus(text(content))
    assert gpus is not None
    assert [gpu.power_limit_watts for gpu in gpus] == [60.0, 55.5, None]
