"""From paths to specs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.inputs import Overrides, concerning, read_model
from planner.errors import EmitError, HetplanError, PlanError, UsageError
from tests.cli.running import CLUSTER, ROOT, Command, write_plan


@pytest.mark.parametrize("kind", [EmitError, PlanError, UsageError])
def test_errors_begin_with_the_file(kind: type[HetplanError]) -> None:
    """Each line does, once; kind and hint stay."""
    with pytest.raises(kind) as raised, concerning(Path("p.yaml")):
        raise kind("no room\np.yaml:3: dp: too large", hint="fewer")
    assert raised.value.message == "p.yaml: no room\np.yaml:3: dp: too large"
    assert raised.value.hint == "fewer"


def test_a_plan_that_cannot_be_emitted_is_named(hetplan: Command, files: Path) -> None:
    """The rule that it breaks belongs to the plan, an unknown launcher to the command line."""
    write_plan(files / "plan.yaml")
    done = hetplan("emit", "plan.yaml", "-o", "run", "--launcher", "deepspeed")
    assert done.code == 2
    assert done.err.startswith("error: plan.yaml: ")
    assert hetplan("emit", "plan.yaml", "-o", "run", "--launcher", "x").err.startswith("error: launcher x: ")


@pytest.mark.parametrize(
    "words", [("search", "--sequence-length", "64"), ("what-if", "--change", "training.sequence_length=64")]
)
def test_images_need_room_in_a_sequence(hetplan: Command, words: tuple[str, ...]) -> None:
    """Also where the length is not that of the file: no plan file that nobody can read."""
    command, *rest = words
    cluster, llava = ROOT / "cluster_specs" / "dgx_a100.yaml", ROOT / "model_specs" / "llava_1.5_7b.yaml"
    done = hetplan(command, cluster, llava, *rest)
    assert done.code == 2
    assert "sequence_length: expected at least 576, the tokens of the images of" in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("config", "training", "length", "what"),
    [
        ("bert", "{}", "129", "expected at most 128, the learned positions of"),
        ("vit", "{}", "6", "expected 5, the tokens that"),
        (
            "gpt",
            "{documents: {mean_length: 60}}",
            "32",
            "expected at least 60, the mean_length of the documents",
        ),
        ("gpt", "{preference: {beta: 0.1}}", "63", "expected an even number with preference"),
    ],
)
@pytest.mark.parametrize("words", [("search", "--sequence-length"), ("what-if", "--change")])
def test_lengths_that_a_model_has_not(
    hetplan: Command, files: Path, words: tuple[str, str], config: str, training: str, length: str, what: str
) -> None:
    """They are refused on the command line as in a file."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    kind = {"gpt": "llama"}.get(config, config)
    more = {"vocab_size": 100, "max_position_embeddings": 128, "image_size": 32, "patch_size": 16}
    (files / "config.json").write_text(json.dumps({"model_type": kind, **sizes, **more}))
    (files / "own.yaml").write_text(f"huggingface: config.json\ntraining: {training}\n")
    command, option = words
    value = length if command == "search" else f"training.sequence_length={length}"
    done = hetplan(command, ROOT / "cluster_specs" / "dgx_a100.yaml", "own.yaml", option, value)
    assert done.code == 2
    assert f"sequence_length: {what}" in " ".join(done.err.split())


def test_a_length_of_its_own_has_the_usual_tokens_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the file leaves the batch open; what is said on the command line is not said to be open."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"model_type": "llama", **sizes, "vocab_size": 100, "max_position_embeddings": 131_072})
    )
    read = read_model(config, Overrides(sequence_length=65_536)).training
    assert (read.sequence_length, read.global_batch) == (65_536, 32)
    assert "so on 32 sequences a step" in " ".join(capsys.readouterr().err.split())
    read = read_model(config, Overrides(sequence_length=65_536, global_batch=8)).training
    assert (read.sequence_length, read.global_batch) == (65_536, 8)
    assert capsys.readouterr().err == ""
    own = tmp_path / "own.yaml"
    own.write_text("huggingface: config.json\ntraining: {global_batch: 512}\n")
    assert read_model(own, Overrides(sequence_length=65_536)).training.global_batch == 512


def test_limits_on_power_that_change_nothing(files: Path, hetplan: Command) -> None:
    """Are told, where the limit is above the board power of all devices of a pool."""
    limited = CLUSTER.replace("  - name: slow\n", "  - name: slow\n    power_limit_watts: {watts}\n")
    above = "pool slow: power_limit_watts 301 is above the board power, 300, and changes nothing"
    for watts, said in ((300, ""), (301, f"warning: cluster.yaml: {above}\n")):
        (files / "cluster.yaml").write_text(limited.replace("{watts}", str(watts)))
        done = hetplan("check", "cluster.yaml", "model.yaml")
        assert (done.code, done.err) == (0, said)
