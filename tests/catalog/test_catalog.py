"""The catalogue of devices and links."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from planner import catalog

REQUIRED = [
    "GB200",
    "B200",
    "H200",
    "H100-SXM-80GB",
    "H100-PCIe-80GB",
    "GH200-96GB",
    "A100-SXM-40GB",
    "A100-SXM-80GB",
    "A100-PCIe-40GB",
    "A100-PCIe-80GB",
    "A800-SXM-80GB",
    "V100-SXM-16GB",
    "V100-SXM-32GB",
    "V100S-PCIe-32GB",
    "P100-SXM-16GB",
    "T4",
    "A10",
    "A10G",
    "L4",
    "L40S",
    "RTX-A6000",
    "RTX-2080-Ti",
    "RTX-3090",
    "RTX-4090",
    "Titan-RTX",
    "MI250X",
    "MI300X",
    *("RTX-5090", "RTX-4080", "RTX-4090-D", "RTX-3090-Ti", "RTX-3080", "RTX-2080", "GTX-1080-Ti"),
    *("RTX-6000-Ada", "RTX-PRO-6000", "Quadro-RTX-6000", "Quadro-RTX-8000", "RTX-A5000"),
    *("A30", "A2", "L40", "MI210", "MI250", "MI300A", "MI355X"),
    *("RTX-5080", "RTX-5070-Ti", "RTX-4070-Ti", "RTX-3080-Ti", "RTX-3070", "RTX-3060"),
    *("RTX-4070-Ti-SUPER", "MI350X"),
    *("RTX-A4000", "Quadro-RTX-5000", "Titan-V", "V100-PCIe-32GB", "P100-PCIe-16GB", "P40"),
    *(
        "H200-NVL-141GB",
        "GH200-144GB",
        "H20-96GB",
        "H20-141GB",
        "L20",
        "RTX-5000-Ada",
        "RTX-A4500",
        "RTX-A5500",
    ),
    *("RTX-4080-SUPER", "RTX-4070-SUPER", "RTX-4070", "RTX-4060-Ti-16GB", "RTX-3070-Ti", "RTX-3060-Ti"),
    *("RTX-5070", "RTX-5060-Ti-16GB", "A800-PCIe-80GB", "H800-PCIe-80GB"),
]
NO_BF16 = (
    "V100-SXM-16GB",
    "V100-SXM-32GB",
    "V100-PCIe-16GB",
    "V100S-PCIe-32GB",
    "P100-SXM-16GB",
    "T4",
    "RTX-2080-Ti",
    "Titan-RTX",
    "RTX-2080",
    "Quadro-RTX-6000",
    "Quadro-RTX-8000",
    "Quadro-RTX-5000",
    "GTX-1080-Ti",
    "Titan-V",
    "V100-PCIe-32GB",
    "P100-PCIe-16GB",
    "P40",
)


@pytest.mark.parametrize("name", REQUIRED)
def test_required_devices_are_known(name: str) -> None:
    """Under these names."""
    assert catalog.gpu(name).memory_gib > 0


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_every_number_has_a_source(name: str) -> None:
    """And what is assumed is a number that the entry has."""
    facts = catalog.gpu(name)
    numbers = {"memory_gib", "memory_bandwidth_gBps", "tflops", "host_link_gBps"} | (
        {"tdp_watts"} if facts.tdp_watts else set()
    )
    assert set(facts.sources) == numbers
    assert all(facts.sources.values())
    assert set(facts.assumed) <= numbers | {f"tflops.{dtype}" for dtype in facts.tflops}


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_what_is_only_remembered_is_assumed(name: str) -> None:
    """A number without a document never passes as a datasheet's."""
    facts = catalog.gpu(name)
    for key, source in facts.sources.items():
        if "smi-memory" in source or "remembered" in source:
            assert key in facts.assumed


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_numbers_are_plausible(name: str) -> None:
    """Within what exists; dense matrix units are faster than vector units."""
    facts = catalog.gpu(name)
    assert 8 <= facts.memory_gib <= 300
    assert 200 <= facts.memory_bandwidth_gBps <= 10_000
    assert 15 <= (facts.host_link_gBps or 0) <= 450
    assert set(facts.tflops) <= {"bf16", "fp16", "fp32", "tf32", "fp8"}
    half = facts.tflops.get("fp16")
    if half is None:
        assert name in ("GTX-1080-Ti", "P40")
        return
    assert half > facts.tflops["fp32"]
    assert facts.tflops.get("bf16", half) == half
    assert facts.tflops.get("fp8", 2 * half) == pytest.approx(2 * half, rel=0.02)


def test_old_devices_have_no_bf16() -> None:
    """Pascal, Volta and Turing."""
    assert {name for name in catalog.gpu_names() if "bf16" not in catalog.gpu(name).tflops} == set(NO_BF16)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM-16GB"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("rtx3090", "RTX-3090"),
        ("a6000", "RTX-A6000"),
        ("TITAN RTX", "Titan-RTX"),
        ("H100_SXM", "H100-SXM-80GB"),
        ("mi250x", "MI250X-GCD"),
        ("h100-pcie-80", "H100-PCIe-80GB"),
        ("3090", "RTX-3090"),
        ("2080Ti", "RTX-2080-Ti"),
        ("rtx2080ti", "RTX-2080-Ti"),
        ("RTX 4090D", "RTX-4090-D"),
        ("v100-32g", "V100-SXM-32GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("Quadro RTX 6000", "Quadro-RTX-6000"),
        ("6000 Ada", "RTX-6000-Ada"),
        ("1080ti", "GTX-1080-Ti"),
        ("RTXA6000", "RTX-A6000"),
        ("RTXPRO6000", "RTX-PRO-6000"),
        ("QuadroRTX6000", "Quadro-RTX-6000"),
        ("TitanRTX", "Titan-RTX"),
        ("H100-SXM5-80GB", "H100-SXM-80GB"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI210", "MI210"),
        ("Tesla P40", "P40"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("Tesla V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("NVIDIA H200 NVL", "H200-NVL-141GB"),
        ("H200", "H200"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("GH200 144GB", "GH200-144GB"),
        ("GH200", "GH200-96GB"),
        ("5080", "RTX-5080"),
        ("RTX5070Ti", "RTX-5070-Ti"),
        ("4070 Ti", "RTX-4070-Ti"),
        ("4070", "RTX-4070"),
        ("NVIDIA GeForce RTX 4070 SUPER", "RTX-4070-SUPER"),
        ("4060 Ti", "RTX-4060-Ti-16GB"),
        ("rtx 3060 ti", "RTX-3060-Ti"),
        ("NVIDIA RTX 5000 Ada Generation", "RTX-5000-Ada"),
        ("H20", "H20-96GB"),
        ("H20-3e", "H20-141GB"),
        ("GeForce RTX 4070 Ti SUPER", "RTX-4070-Ti-SUPER"),
        ("3080ti", "RTX-3080-Ti"),
        ("3080", "RTX-3080"),
        ("RTX 3070", "RTX-3070"),
        ("RTX 3060 12GB", "RTX-3060"),
        ("A4000", "RTX-A4000"),
        ("TitanV", "Titan-V"),
        ("Quadro RTX 5000", "Quadro-RTX-5000"),
        ("nvidia-h100-mega-80gb", "H100-SXM-80GB"),
        ("B200 180GB", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA B300 SXM6 PC", "B300"),
        ("NVIDIA GH200 120GB", "GH200-96GB"),
        ("GB200 NVL72", "GB200"),
        ("gb300-nvl72", "GB300"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI300X HF", "MI300X"),
        ("AMD Instinct MI325X VF", "MI325X"),
        ("AMD Instinct MI350X VF", "MI350X"),
        ("AMD Instinct MI355X VF", "MI355X"),
        ("AMD Instinct MI250X / MI250", "MI250-GCD"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "MI250-GCD"),
        ("AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2", "MI250X-GCD"),
        ("RTX PRO 6000 Blackwell", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000-Max-Q"),
    ],
)
def test_names_are_forgiving(written: str, name: str) -> None:
    """Case, blanks, dashes, vendor words and a final GB do not count."""
    assert catalog.gpu(written).name == name


@pytest.mark.parametrize(
    ("name", "mib"),
    [("GB300", 284_208), ("B300", 275_040), ("GB200", 189_471), ("B200", 183_359), ("GH200-144GB", 146_831)],
)
def test_memory_is_what_the_driver_reports(name: str, mib: int) -> None:
    """Not what the box says: 288 GB are fewer on a B300 than on a GB300."""
    assert catalog.gpu(name).memory_gib == pytest.approx(mib / 1024, abs=0.05)


def test_multiprocessors_are_those_that_the_driver_counts() -> None:
    """The chip of the B300 has 160, and none is sold with all of them."""
    names = ("B200", "GB200", "B300", "GB300")
    assert [catalog.gpu(name).multiprocessors for name in names] == [148, 152, 148, 152]


def test_boards_of_blackwell_have_the_power_that_the_driver_allows() -> None:
    """Watts."""
    names = ("B200", "GB200", "B300", "GB300")
    assert [catalog.gpu(name).tdp_watts for name in names] == [1000, 1200, 1100, 1400]


def test_editions_of_a_card_differ() -> None:
    """The Server Edition's memory is slower, and Max-Q has half of the power."""
    editions = [catalog.gpu(f"RTX-PRO-6000{edition}") for edition in ("", "-Server", "-Max-Q")]
    assert [each.memory_bandwidth_gBps for each in editions] == [1792, 1597, 1792]
    assert [each.tdp_watts for each in editions] == [600, 600, 300]
    for each in editions:
        assert each.tflops["bf16"] == pytest.approx(4 * each.tflops["fp32"], rel=0.001)


def test_names_and_aliases_are_unambiguous() -> None:
    """No two devices answer to one name."""
    keys = [
        (catalog._key(alias), name)
        for name in catalog.gpu_names()
        for alias in (name, *catalog.gpu(name).aliases)
    ]
    assert len({key for key, _ in set(keys)}) == len(set(keys))


@pytest.mark.parametrize("name", ["A100", "", "H100", "nvidia", "gpu"])
def test_unknown_names_are_refused(name: str) -> None:
    """A family is not a device."""
    with pytest.raises(KeyError):
        catalog.gpu(name)


def test_families() -> None:
    """For the hint of an ambiguous name."""
    assert catalog.gpus_like("v100") == (
        "V100-SXM-16GB",
        "V100-SXM-32GB",
        "V100-PCIe-16GB",
        "V100-PCIe-32GB",
        "V100S-PCIe-32GB",
    )
    assert catalog.gpus_like("") == ()
    assert catalog.gpus_like("mi300") == ("MI300X", "MI300A")
    # What the PCIe board lacks, multiprocessors and power, the NVL of the H200 has.
    families = {name: catalog.gpu(name).family for name in ("H200-NVL-141GB", "H100-NVL-94GB", "MI350X")}
    assert families == {"H200-NVL-141GB": "H100", "H100-NVL-94GB": "H100-PCIe", "MI350X": "MI355X"}


@pytest.mark.parametrize("name", ["4060", "RTX 5060", "gtx1080", "P4", "A1", "2080 Super", "3050 Ti"])
def test_a_card_with_a_longer_name_is_another_card(name: str) -> None:
    """A Ti is not what is sold without it, nor P40 a P4."""
    assert catalog.gpus_like(name) == ()
    with pytest.raises(KeyError):
        catalog.gpu(name)


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        *(
            (name, "Intel Gaudi")
            for name in ("Gaudi 2", "gaudi3", "Intel Gaudi-3", "HL-225", "Habana Gaudi2")
        ),
        *((name, "Huawei Ascend") for name in ("910B", "Ascend 910B3", "Huawei Ascend 910C", "ascend910b")),
        *(
            (name, "Google TPU")
            for name in ("TPU v4", "tpu-v5e", "Google TPU v5p", "v5p", "Cloud TPU v6e", "Trillium")
        ),
        *((name, "AWS Trainium") for name in ("Trainium", "AWS Trainium2", "trn2", "Inferentia2")),
        *((name, "Apple silicon") for name in ("Apple M2", "M2 Ultra", "m4-max", "Mac Studio")),
    ],
)
def test_devices_that_no_target_runs_on(written: str, kind: str) -> None:
    """They are not in the catalogue, and why is told."""
    with pytest.raises(KeyError):
        catalog.gpu(written)
    assert catalog.without_target(written) == kind


def test_targets_run_on_the_whole_catalogue() -> None:
    """And on what it lacks nothing is said."""
    assert not any(
        map(
            catalog.without_target,
            (*catalog.gpu_names(), "", "V200", "RTX-9100", "M40", "M60", "M4000", "V5000"),
        )
    )


def test_links() -> None:
    """Per direction and device; PCIe shares its host bridge unless it is behind a switch."""
    assert [catalog.link(f"nvlink{n}").bandwidth_gBps for n in (2, 3, 4, 5)] == [150, 300, 450, 900]
    assert catalog.link("PCIe4").shared
    assert not catalog.link("pcie4-switch").shared
    assert catalog.link("nvlink3-a800").bandwidth_gBps == 200
    with pytest.raises(KeyError):
        catalog.link("nvlink9")


@pytest.mark.parametrize("name", catalog.link_names())
def test_every_link_has_a_source(name: str) -> None:
    """And a latency."""
    facts = catalog.link(name)
    assert facts.source
    assert facts.latency_us > 0


def test_facts_cannot_be_changed() -> None:
    """They are read once, and who changes what he got changes it for himself alone."""
    with pytest.raises(ValidationError):
        catalog.gpu("T4").memory_gib = 1.0
    catalog.gpu("T4").tflops["bf16"] = 1.0
    assert "bf16" not in catalog.gpu("T4").tflops


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("A100-80GB", {"A100-SXM-80GB", "A100-PCIe-80GB"}),
        ("a100-80g", {"A100-SXM-80GB", "A100-PCIe-80GB"}),
        (
            "RTX 6000",
            {
                "RTX-6000-Ada",
                "RTX-PRO-6000",
                "RTX-PRO-6000-Max-Q",
                "RTX-PRO-6000-Server",
                "Quadro-RTX-6000",
            },
        ),
        ("H100", {"H100-SXM-80GB", "H100-PCIe-80GB", "H100-NVL-94GB"}),
        ("V100-SXM2", {"V100-SXM-16GB", "V100-SXM-32GB"}),
        ("P100", {"P100-SXM-16GB", "P100-PCIe-16GB"}),
        ("P100-16GB", {"P100-SXM-16GB", "P100-PCIe-16GB"}),
        ("A800", {"A800-SXM-80GB", "A800-PCIe-80GB"}),
        ("A800-80GB", {"A800-SXM-80GB", "A800-PCIe-80GB"}),
        ("GeForce GTX TITAN", {"Titan-RTX", "Titan-V"}),
        ("-", set()),
    ],
)
def test_names_that_several_devices_share(written: str, names: set[str]) -> None:
    """They are nobody's, and all who may be meant are told."""
    with pytest.raises(KeyError):
        catalog.gpu(written)
    assert set(catalog.gpus_like(written)) == names
