"""The example clusters and models that come with hetplan."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster.file import load_cluster
from planner.model.file import load_model
from tests.files.writing import CLUSTERS, MODELS

DEVICES = {
    "poplar_a100": {"A100-SXM-80GB": 4, "A100-SXM-40GB": 4},
    "poplar_v100_t4": {"V100-SXM-16GB": 4, "T4": 4},
    "poplar_a800_v100s": {"A800-SXM-80GB": 4, "V100S-PCIe-32GB": 4},
    "holmes_hybrid": {"A100-SXM-80GB": 64},
    "v100_t4_10g": {"V100-SXM-16GB": 16, "T4": 4},
    "a100_v100_128": {"A100-SXM-40GB": 32, "V100-SXM-16GB": 96},
    "a100_v100_gh200_96": {"A100-SXM-40GB": 32, "V100-SXM-16GB": 32, "GH200-96GB": 32},
    "lab": {"RTX-3090": 2, "RTX-2080-Ti": 2, "Titan-RTX": 2},
    "dgx_a100": {"A100-SXM-80GB": 8},
    "h100_a100": {"H100-SXM-80GB": 8, "A100-SXM-80GB": 8},
    "rtx_3090_4090": {"RTX-3090": 2, "RTX-4090": 1},
    "three_sites": {
        "H100-SXM-80GB": 4096,
        "H200": 1024,
        "A100-SXM-80GB": 4096,
        "A100-SXM-40GB": 3072,
        "L40S": 2048,
        "V100-SXM-32GB": 2048,
    },
}
PARAMETERS = {
    "gpt_3.6b": 3.6e9,
    "gpt_7.5b": 7.5e9,
    "gpt_39.1b": 39.1e9,
    "gpt2_345m": 354_823_168,
    "opt_350m": 331_196_416,
    "gpt_neo_2.7b": 2_651_307_520,
    "llama_0.5b": 0.5e9,
    "llama_1.1b": 1_100_048_384,
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_70b": 68_976_648_192,
    "llama_3_8b": 8_030_261_248,
    "llama_3_8b_128k": 8_030_261_248,
    "llama_3_70b": 70_553_706_496,
    "llama_3_405b": 405_853_388_800,
    "mistral_7b": 7_241_732_096,
    "mistral_7b_lora": 7_241_732_096,
    "bert_large": 335_174_458,
    "mixtral_8x7b": 46_702_792_704,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "deepseek_v3": 671_026_404_352,
    "qwen2.5_7b": 7_615_616_512,
    "qwen2.5_72b": 72_706_203_648,
    "qwen3_8b": 8_190_735_360,
    "qwen3_32b": 32_762_123_264,
    "phi_4": 14_659_507_200,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "llama_4_scout": 107_769_861_120,
    "llava_1.5_7b": 7_063_427_072,
    "nemotron_h_8b": 8_100_852_736,
    "nemotron_3_nano": 31_577_937_344,
    "gemma_3_27b": 27_009_346_304,
    "switch_base": 7_439_891_712,
    "switch_xxl": 394_675_073_024,
    "t5_11b": 11_307_321_344,
    "whisper_large_v3": 1_543_490_560,
}


@pytest.mark.parametrize("name", DEVICES)
def test_clusters_have_their_devices(name: str) -> None:
    """As the issue and the papers count them."""
    cluster = load_cluster(CLUSTERS / f"{name}.yaml")
    found: dict[str, int] = {}
    for pool in cluster.pools:
        for device in pool.devices:
            found[device] = found.get(device, 0) + len(pool.hosts)
    assert found == DEVICES[name]


def test_the_largest_cluster() -> None:
    """16,384 GPUs in 6 pools."""
    cluster = load_cluster(CLUSTERS / "three_sites.yaml")
    assert len(cluster.pools) == 6
    assert sum(len(pool.hosts) * len(pool.devices) for pool in cluster.pools) == 16_384


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_their_size(name: str) -> None:
    """Whole counts exactly, sizes of a name within 5 %."""
    model = load_model(MODELS / f"{name}.yaml")
    expected = PARAMETERS[name]
    assert model.parameters == (expected if isinstance(expected, int) else pytest.approx(expected, rel=0.05))
    assert model.name == name


def test_parameters_at_work() -> None:
    """The ones that the names of models with experts say."""
    active = {"mixtral_8x7b": 12.9e9, "qwen3_30b_a3b": 3.3e9, "qwen3_235b_a22b": 22e9, "gpt_oss_120b": 5.7e9}
    for name, expected in active.items():
        assert load_model(MODELS / f"{name}.yaml").active_parameters == pytest.approx(expected, rel=0.02)


def test_nothing_else_is_shipped() -> None:
    """A new example comes with its test."""
    assert {path.stem for path in CLUSTERS.glob("*.yaml")} == set(DEVICES)
    assert {path.stem for path in MODELS.glob("*.yaml")} == set(PARAMETERS)


@pytest.mark.parametrize(
    "path", sorted([*CLUSTERS.glob("*.yaml"), *MODELS.glob("*.yaml")]), ids=lambda path: path.stem
)
def test_examples_say_where_they_are_from(path: Path) -> None:
    """In the comment at the top."""
    assert path.read_text().startswith("# ")
