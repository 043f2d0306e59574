"""Model files, right and wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.model.file import load_model, unsaid
from planner.model.spec import ModelSpec, TrainingSpec
from tests.files.writing import MODEL, problems, the_problem

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "pad_token_id": None,
}


def changed(folder: Path, *changes: tuple[str, str]) -> Path:
    """The good file with these changes."""
    text = MODEL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "model.yaml"
    path.write_text(text)
    return path


def config_file(folder: Path, **changes: object) -> Path:
    """A Hugging Face configuration."""
    path = folder / "Llama-3-8B" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**CONFIG, **changes}, indent=2))
    return path


def test_defaults(tmp_path: Path) -> None:
    """Every key that may be left out."""
    model = load_model(changed(tmp_path))
    assert (model.kv_heads, model.head_dim, model.ffn, model.embedding_width) == (8, 64, 2048, 512)
    assert (model.kind, model.gated_mlp, model.tied_embeddings, model.norm) == (
        "decoder",
        False,
        True,
        "layer",
    )
    assert model.training == TrainingSpec(sequence_length=128, global_batch=64)
    assert (model.training.precision, model.training.optimizer, model.training.attention) == (
        "bf16",
        "adamw",
        "flash",
    )


def test_a_batch_in_tokens(tmp_path: Path) -> None:
    """As papers give it."""
    path = changed(tmp_path, ("global_batch: 64", "global_batch_tokens: 1280"))
    assert load_model(path).training.global_batch == 10


def test_a_batch_in_tokens_that_does_not_divide(tmp_path: Path) -> None:
    """The hint is the nearest one below."""
    problem = the_problem(load_model, changed(tmp_path, ("global_batch: 64", "global_batch_tokens: 1300")))
    assert (problem.line, problem.key) == (8, "training.global_batch_tokens")
    assert problem.what == "expected a multiple of sequence_length 128, got 1300"
    assert problem.hint == "write 1280 (10 sequences)"


@pytest.mark.parametrize(
    ("change", "line", "key", "what"),
    [
        (("heads: 8", "heads: 7"), 4, "heads", "expected a divisor of hidden 512, got 7"),
        (("heads: 8", "heads: 8\nkv_heads: 3"), 5, "kv_heads", "expected a divisor of heads 8, got 3"),
        (("layers: 8", "layers: 0"), 2, "layers", "expected a whole number from 1 to 10000, got 0"),
        (("layers: 8", "layers: 8.5"), 2, "layers", "expected a whole number from 1 to 10000, got 8.5"),
        (("layers: 8", "layers: -1"), 2, "layers", "expected a whole number from 1 to 10000, got -1"),
        (("layers: 8\n", ""), 1, "layers", "missing"),
        (("vocab: 1000", "vocab: 1k"), 5, "vocab", 'expected a whole number from 1 to 1000000000, got "1k"'),
        (
            ("name: small", "name: a/b"),
            1,
            "name",
            "expected a name of letters, digits, dots, dashes and underscores",
        ),
        (
            ("global_batch: 64\n", "global_batch: 64\n  token_dispatcher: deepep\n"),
            9,
            "training.token_dispatcher",
            "no layer has experts, expected alltoall, got deepep",
        ),
        (
            ("global_batch: 64\n", "global_batch: 64\n  expert_overlap: true\n"),
            9,
            "training.expert_overlap",
            "no layer has experts, expected false, got true",
        ),
        (
            ("global_batch: 64\n", ""),
            6,
            "training.global_batch",
            "missing, expected global_batch or global_batch_tokens",
        ),
        (
            ("global_batch: 64", "global_batch: 64\n  data: {bytes_per_token: 2, bytes_per_sequence: 9}"),
            9,
            "training.data.bytes_per_token",
            "bytes_per_sequence is given too, expected one of the two",
        ),
        (
            ("global_batch: 64", "global_batch: 64\n  global_batch_tokens: 1280"),
            9,
            "training.global_batch_tokens",
            "global_batch is given too",
        ),
        (
            ("global_batch: 64", "global_batch: 64\n  precision: bf61"),
            9,
            "training.precision",
            "expected one of: bf16, fp16, fp32",
        ),
        (("heads: 8", "heads: 8\nexperts: 4"), 5, "experts", "expected a mapping, got 4"),
        (("heads: 8", "heads: 8\nspecialists: 4"), 5, "specialists", "unknown key"),
        (("heads: 8", "heads: 8\nheads: 4"), 5, "", 'the key "heads" is already on line 4'),
        (("training:", "training: 3\nx:"), 6, "training", "expected a mapping, got 3"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: tuple[str, str], line: int, key: str, what: str) -> None:
    """Each with its line and key."""
    found = problems(load_model, changed(tmp_path, change))
    assert (found[0].line, found[0].key) == (line, key)
    assert found[0].what.startswith(what)


def test_heads_need_not_divide_when_the_head_is_given(tmp_path: Path) -> None:
    """Gemma 7B: 16 heads of 256 on a width of 3072."""
    path = changed(tmp_path, ("heads: 8", "heads: 7\nhead_dim: 64"))
    assert load_model(path).head_dim == 64


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    """Types and contradictions together."""
    path = changed(
        tmp_path, ("layers: 8", "layers: x"), ("heads: 8", "heads: 7"), ("global_batch: 64", "x: 1")
    )
    keys = [problem.key for problem in problems(load_model, path)]
    assert keys == ["layers", "heads", "training.global_batch", "training.x"]


def test_a_config_json_is_a_model(tmp_path: Path) -> None:
    """On 4,096 tokens a sequence and two million a step, named after its folder."""
    model = load_model(config_file(tmp_path))
    assert (model.name, model.parameters) == ("Llama-3-8B", 8_030_261_248)
    assert model.training == TrainingSpec(sequence_length=4096, global_batch=512)


def test_a_config_json_with_other_training(tmp_path: Path) -> None:
    """The caller's wish wins."""
    training = TrainingSpec(sequence_length=2048, global_batch=16, precision="fp16")
    assert load_model(config_file(tmp_path), training).training == training


def test_a_model_file_may_name_a_config_json(tmp_path: Path) -> None:
    """The path is relative to the model file."""
    config_file(tmp_path)
    path = tmp_path / "model.yaml"
    path.write_text(
        "name: mine\nhuggingface: Llama-3-8B/config.json\n"
        "training: {sequence_length: 4096, global_batch_tokens: 8192}\n"
    )
    model = load_model(path)
    assert (model.name, model.layers) == ("mine", 32)
    assert (model.training.sequence_length, model.training.global_batch) == (4096, 2)


def test_a_named_config_json_needs_nothing_else(tmp_path: Path) -> None:
    """Training has the defaults of the configuration."""
    config_file(tmp_path, torch_dtype="float16")
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: Llama-3-8B/config.json\n")
    assert load_model(path).training == TrainingSpec(sequence_length=4096, global_batch=512, precision="fp16")


def test_a_named_config_json_that_is_missing(tmp_path: Path) -> None:
    """The path that was tried is shown, at the line that names it."""
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: none.json\n")
    problem = the_problem(load_model, path)
    assert (problem.file, problem.line, problem.key) == (str(path), 1, "huggingface")
    assert problem.what == f"{tmp_path / 'none.json'}: no such file"


def cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration in the hub's cache, as its downloads lay it out."""
    constants = pytest.importorskip("huggingface_hub.constants")
    here = folder / "models--org--Some-8B"
    (here / "refs").mkdir(parents=True)
    (here / "refs" / "main").write_text("abc123")
    (here / "refs" / "refs" / "pr").mkdir(parents=True)
    (here / "refs" / "refs" / "pr" / "1").write_text("abc123")
    (here / "snapshots").mkdir()
    config_file(folder).parent.rename(here / "snapshots" / "abc123")
    kept, shown = here / "blobs" / "123abc", here / "snapshots" / "abc123" / "config.json"
    kept.parent.mkdir()
    shown.rename(kept)
    shown.symlink_to("../../blobs/123abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))


def test_a_model_of_the_hub_comes_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name that users know it by, in the command and in a model file."""
    cached(tmp_path, monkeypatch)
    model = load_model(Path("hf://org/Some-8B"))
    assert (model.name, model.parameters) == ("Some-8B", 8_030_261_248)
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: hf://org/Some-8B\nname: mine\n")
    assert (load_model(path).name, load_model(path).parameters) == ("mine", model.parameters)
    path.write_text("huggingface: hf://org/Some-8B@abc123\n")
    inside = tmp_path / "models--org--Some-8B" / "snapshots" / "abc123" / "config.json"
    for each in (path, inside, Path("hf://org/Some-8B@refs/pr/1")):
        assert load_model(each).name == "Some-8B"


def test_a_model_file_says_how_to_get_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command does."""
    cached(tmp_path, monkeypatch)
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: hf://org/none\n")
    problem = the_problem(load_model, path)
    assert problem.key == "huggingface"
    assert "hf download org/none config.json" in str(problem.hint)


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("hf://org/none", "is not in the local cache", "hf download org/none config.json"),
        ("hf://org/none@v2", "is not in the local cache", "hf download org/none config.json --revision v2"),
        ("hf://org/a/b", "expected hf://ORGANIZATION/NAME", None),
        ("hf://or g/a", "expected hf://ORGANIZATION/NAME", None),
        ("hf://..", "expected hf://ORGANIZATION/NAME", None),
    ],
)
def test_a_model_that_is_not_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str, hint: str | None
) -> None:
    """Says how to get it; nothing is asked of the network."""
    cached(tmp_path, monkeypatch)
    problem = the_problem(load_model, Path(name))
    assert (problem.file, problem.line) == (name, None)
    assert problem.what.startswith(what)
    assert hint is None or hint in str(problem.hint)


def test_what_nobody_said_of_the_training_is_told(tmp_path: Path) -> None:
    """Of configurations, never of model files that say it all."""
    config = config_file(tmp_path)
    said = "nothing says how it is trained, so on sequences of 4,096 tokens and 512 sequences a step"
    assert unsaid(config) == f"{config}: {said}"
    said = "nothing says how it is trained, so on 64 sequences a step"
    assert unsaid(config, {"sequence_length": 32_768}) == f"{config}: {said}"
    said = "nothing says how it is trained, so on sequences of 4,096 tokens"
    assert unsaid(config, {"global_batch": 128}) == f"{config}: {said}"
    assert unsaid(config, {"sequence_length": 32_768, "global_batch": 128}) is None
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: Llama-3-8B/config.json\ntraining: {sequence_length: 2048}\n")
    assert unsaid(path) == f"{path}: nothing says how it is trained, so on 1,024 sequences a step"
    path.write_text(
        "huggingface: Llama-3-8B/config.json\ntraining: {sequence_length: 2048, global_batch: 8}\n"
    )
    assert unsaid(path) is None


def test_shape_keys_beside_a_config_json(tmp_path: Path) -> None:
    """The shape has one source."""
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: c.json\nlayers: 3\n")
    problem = the_problem(load_model, path)
    assert (problem.line, problem.key, problem.what) == (2, "layers", "unknown key")


def test_a_batch_in_tokens_against_the_usual_sequence(tmp_path: Path) -> None:
    """Found after the configuration is read."""
    config_file(tmp_path)
    path = tmp_path / "model.yaml"
    path.write_text("huggingface: Llama-3-8B/config.json\ntraining: {global_batch_tokens: 10000}\n")
    problem = the_problem(load_model, path)
    assert (problem.line, problem.what) == (2, "expected a multiple of sequence_length 4096, got 10000")


@pytest.mark.parametrize(
    "text", ["training: [1]\nheads: x", "heads: true\nhidden: []", "huggingface: 3", "model_type: 3"]
)
def test_nonsense_is_an_error_and_not_a_crash(tmp_path: Path, text: str) -> None:
    """Checks skip what has the wrong shape."""
    path = tmp_path / "m.yaml"
    path.write_text(text)
    assert problems(load_model, path)


def test_hints_are_whole_sentences(tmp_path: Path) -> None:
    """However many lines the docstring of the field has."""
    problem = the_problem(load_model, changed(tmp_path, ("training:", "training:\n  kernels: [torch]")))
    assert problem.hint is not None
    assert problem.hint.startswith("Kernel set that the software runs: megatron (Megatron-Core")
    assert problem.hint.endswith("absent, the usual one of the runtime and attention")


def test_the_result_is_a_model_spec(tmp_path: Path) -> None:
    """Whatever the form of the file."""
    assert isinstance(load_model(changed(tmp_path)), ModelSpec)


@pytest.mark.parametrize(
    ("training", "changes", "what"),
    [
        ("lora: {rank: 0}", "", "training.lora.rank: expected a whole number from 1"),
        ("lora: {rank: 8, targets: [q_prj]}", "", "did you mean q_proj?"),
        ("lora: {rank: 8, targets: []}", "", "training.lora.targets"),
        (
            "lora: {rank: 8, targets: [gate_proj]}",
            "",
            "the layers have no gate_proj, expected q_proj, k_proj, v_proj, o_proj, up_proj, down_proj",
        ),
        (
            "lora: {rank: 8, targets: [up_proj]}",
            "experts: {number: 4, top_k: 2, ffn: 64}",
            "the layers have no up_proj, expected q_proj, k_proj, v_proj, o_proj, experts.up_proj, experts.down_proj"
            "write experts.up_proj",
        ),
        (
            "lora: {rank: 8, targets: [experts.down_proj]}",
            "",
            "the layers have no experts.down_proj, expected q_proj, k_proj, v_proj, o_proj, up_proj, down_proj"
            "write down_proj",
        ),
        (
            "lora: {rank: 12, targets: [experts.up_proj]}",
            "experts: {number: 4, top_k: 2, ffn: 64}",
            "training.lora.rank: grouped products of experts' adapters need a multiple of 8, got 12write 16",
        ),
        (
            "lora: {rank: 8, base: fp16}",
            "",
            "training.lora.base: expected bf16, nf4, nf4-double with precision bf16, got fp16remove it",
        ),
        (
            "lora: {rank: 8, base: fp8}",
            "",
            "training.lora.base: expected bf16, nf4, nf4-double with precision bf16, got fp8remove it",
        ),
        (
            "lora: {rank: 8, base: fp16}\n  precision: fp8",
            "",
            "training.lora.base: expected bf16, fp8, nf4, nf4-double with precision fp8, got fp16remove it",
        ),
        ("lora: {rank: 8}\n  freeze: [head]", "", "training.freeze: expected none with lora"),
        (
            "lora: {rank: 8}\n  optimizer: muon",
            "",
            "expected adamw, sgd, lion or adafactor with lora, got muon",
        ),
        ("freeze: [attention, mlp, norms]", "", "freezes all of the layers"),
        ("freeze: [attention, mlp]", "norm: plain", "freezes all of the layers"),
        (
            "optimizer: sgd\n  optimizer_states: int8",
            "",
            'training.optimizer_states: int8 moments exist only with adamw, expected fp32 with "sgd"',
        ),
        (
            "optimizer: lion\n  master_weights: bf16",
            "",
            'training.master_weights: bf16 weights are updated only with adamw, expected fp32 with "lion"',
        ),
        (
            "precision: fp8\n  master_weights: split",
            "",
            'training.master_weights: split weights are updated only with bf16, expected fp32 with "fp8"',
        ),
        (
            "precision: fp16\n  master_weights: bf16",
            "",
            'bf16 weights are updated only with bf16 or fp8, expected fp32 with "fp16"',
        ),
        (
            "master_weights: bf16\n  optimizer_states: paged-int8",
            "",
            'only with moments that stay on the device, expected fp32 with "paged-int8"',
        ),
    ],
)
def test_adapters_that_cannot_be(tmp_path: Path, training: str, changes: str, what: str) -> None:
    """Named with file, line and key."""
    path = tmp_path / "model.yaml"
    path.write_text(
        "name: a\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 100\n"
        f"{changes}\ntraining:\n  sequence_length: 64\n  global_batch: 4\n  {training}\n"
    )
    with pytest.raises(SpecError) as error:
        load_model(path)
    text = str(error.value) + "".join(str(problem.hint) for problem in error.value.problems)
    assert what in text
    assert "model.yaml:" in text


def test_weights_that_mlx_quantised(tmp_path: Path) -> None:
    """Which says so under a key of its own."""
    config = config_file(tmp_path, quantization={"group_size": 64, "bits": 4})
    assert "in place of quantised ones (quantization)" in str(unsaid(config))


def test_that_weights_are_not_trained_as_they_are_quantised_is_told(tmp_path: Path) -> None:
    """Of a configuration whose file has them in few bits, unless the training says in which format."""
    config, path = (
        config_file(tmp_path, quantization_config={"quant_method": "gptq"}),
        tmp_path / "model.yaml",
    )
    said = "with whole weights in bf16 in place of quantised ones (gptq)"
    assert said in str(unsaid(config))
    settings = "sequence_length: 2048, global_batch: 8"
    path.write_text(f"huggingface: Llama-3-8B/config.json\ntraining: {{{settings}}}\n")
    assert said in str(unsaid(path))
    assert unsaid(path, {"precision": "bf16"}) is None
    path.write_text(
        f"huggingface: Llama-3-8B/config.json\ntraining: {{{settings}, lora: {{rank: 8, base: nf4}}}}\n"
    )
    assert unsaid(path) is None


@pytest.mark.parametrize(
    ("torch_dtype", "dtype", "precision"),
    [
        ("bfloat16", "float16", "fp16"),
        ("float16", "bfloat16", "bf16"),
        (None, "float16", "fp16"),
        ("float16", None, "fp16"),
    ],
)
def test_the_newer_name_of_the_number_format_wins(
    tmp_path: Path, torch_dtype: str | None, dtype: str | None, precision: str
) -> None:
    """As in transformers; a null says nothing."""
    config = config_file(tmp_path, torch_dtype=torch_dtype, dtype=dtype)
    assert load_model(config).training.precision == precision


def test_the_number_format_of_a_whole_is_that_of_its_text(tmp_path: Path) -> None:
    """Which often does not repeat it."""
    text = {**CONFIG, "model_type": "mistral", "torch_dtype": None}
    whole = {"model_type": "mistral3", "dtype": "float16", "text_config": text}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**whole, "vision_config": {"model_type": "pixtral"}}))
    assert load_model(path).training.precision == "fp16"


@pytest.mark.parametrize(("first", "labels"), [("CausalLM", None), ("SequenceClassification", 2)])
def test_the_first_of_several_architectures_is_the_model(
    tmp_path: Path, first: str, labels: int | None
) -> None:
    """Those behind it are others."""
    names = sorted(("LlamaForCausalLM", "LlamaForSequenceClassification"), key=f"LlamaFor{first}".__ne__)
    assert load_model(config_file(tmp_path, architectures=names)).labels == labels
