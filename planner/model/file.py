"""The model file: what a user writes, and how it becomes a ModelSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pydantic import ValidationError

from planner.errors import KeyPath, Problem, SpecError, UsageError
from planner.files.document import (
    Document,
    fail_on,
    file_beside,
    is_config,
    mappings,
    read_as,
    read_document,
)
from planner.files.fields import (
    Batch,
    BatchTokens,
    Frozen,
    Name,
    SequenceLength,
)
from planner.files.messages import shown
from planner.files.nodes import parse
from planner.lazy import lazy_module
from planner.model.hub import as_named, in_cache, of_hub, repository_name
from planner.model.spec import (
    GROUPED_RANK,
    HALVES,
    MOMENT_BYTES,
    AdapterTarget,
    BaseFormat,
    ModelSpec,
    Precision,
    TrainingSpec,
    base_formats,
)
from planner.ranges import BATCH

if TYPE_CHECKING:
    from planner.model.huggingface import config as huggingface
    from planner.model.huggingface import strangers
else:
    huggingface = lazy_module("planner.model.huggingface.config")
    strangers = lazy_module("planner.model.huggingface.strangers")


class TrainingFile(TrainingSpec):
    """What a file says of it."""

    global_batch: Batch | None = None  # type: ignore[assignment]
    """Sequences of one optimizer step; or give ``global_batch_tokens``."""
    global_batch_tokens: BatchTokens | None = None
    """Tokens of one optimizer step, a multiple of ``sequence_length``; or give ``global_batch``."""


class ImportedTrainingFile(TrainingFile):
    """The same with defaults from the Hugging Face configuration."""

    sequence_length: SequenceLength | None = None  # type: ignore[assignment]
    """Tokens of a sequence; 4,096, or the configuration's longest where that is shorter, when absent."""


class ModelFile(ModelSpec):
    """A transformer by its shape, and how it is trained."""

    notes: str | None = None
    """Free text."""
    source: str | None = None
    """Where the numbers are from; free text."""
    training: TrainingFile
    """How it is trained."""


class ImportedModelFile(Frozen):
    """A model by its Hugging Face ``config.json``, and how it is trained."""

    huggingface: str
    """Path of the ``config.json``, relative to this file; or ``hf://org/name``, from the local cache."""
    name: Name | None = None
    """Name of the model; taken from the configuration when absent."""
    notes: str | None = None
    """Free text."""
    source: str | None = None
    """Where the numbers are from; free text."""
    training: ImportedTrainingFile = ImportedTrainingFile.model_construct()
    """How it is trained."""


def load_model(path: Path, training: TrainingSpec | None = None) -> ModelSpec:
    """The model of a model file or of a Hugging Face ``config.json``, by its path or as ``hf://org/name``.

    ``training`` replaces what the file says. A ``config.json`` alone is trained on sequences of at most 4,096 tokens,
    about two million tokens a step. Raises SpecError with every problem of the file.
    """
    path = _on_disk(path)
    document = read_as(path, "model")
    if _is_config(path, document):
        model = _imported(document, ImportedModelFile(huggingface=str(path)), document)
    else:
        model = model_of(path, document)
    return model if training is None else model.model_copy(update={"training": training})


def model_of(path: Path, document: Document) -> ModelSpec:
    """The model of a document that is, or may become, the model file at this path; raises SpecError."""
    return _from_import(path, document) if "huggingface" in document.data else _from_shape(document)


def with_training(model: ModelSpec, training: TrainingSpec) -> ModelSpec:
    """The model with another training; raises UsageError where the model has no sequences of that length, and for
    settings that do not go together."""
    wanted, length = _lengths(model, training), training.sequence_length
    if wanted is not None:
        raise UsageError(f"sequence_length: expected {wanted}, got {length}")
    changed = model.model_copy(update={"training": training})
    known = {(problem.key, problem.what) for problem in _disagreeing(model)}
    for problem in _disagreeing(changed):
        if (problem.key, problem.what) not in known:
            raise UsageError(f"{problem.key}: {problem.what}", hint=problem.hint)
    return changed


def _disagreeing(model: ModelSpec) -> list[Problem]:
    """Settings of a model's training that a model file could not have."""
    said = model.training.model_dump(mode="json", exclude_defaults=True)
    document = Document(model.name, parse(json.dumps({"kind": model.kind, "training": said})))
    return [
        *_frozen_problems(document),
        *_moment_problems(document),
        *_master_problems(document),
        *_trained_problems(document, model),
        *_dispatcher_problems(document, model),
    ]


def _lengths(model: ModelSpec, training: TrainingSpec) -> str | None:
    """The lengths of sequences that a model may have where another was asked for; None where it may have that."""
    tower, length, documents = model.tower, training.sequence_length, training.documents
    if tower is not None and tower.images * tower.outputs > length:
        return f"at least {tower.images * tower.outputs}, the tokens of the images of {model.name}"
    if model.front and length != model.training.sequence_length:
        return f"{model.training.sequence_length}, the tokens that {model.name} makes of an input"
    if not model.front and 0 < model.learned_positions < length:
        return f"at most {model.learned_positions}, the learned positions of {model.name}"
    if documents is not None and documents.mean_length > length:
        return f"at least {documents.mean_length}, the mean_length of the documents"
    if training.preference is not None and length % 2:
        return "an even number with preference, half for each answer"
    return None


def unsaid(path: Path, said: Mapping[str, object] | None = None) -> str | None:
    """What of the training of a Hugging Face configuration nobody said, and what stands in its place; None for nothing.

    Of a file that ``load_model`` reads; ``said`` is what is said elsewhere, by key of the training section.
    """
    document = read_as(_on_disk(path), "model")
    training = document.data.get("training")
    given = {**(training if isinstance(training, dict) else {}), **(said or {})}
    if not (_is_config(path, document) or "huggingface" in document.data):
        return None
    length = given.get("sequence_length") is None
    batch = _no_batch(given)
    named = document.data.get("huggingface")
    config = _config(path, str(named), document) if named else document
    further = huggingface.further_tokens(config) if given.get("mtp_layers") is None else 0
    whole = given.get("precision") is None and given.get("lora") is None
    quantised = huggingface.quantised_by(config) if whole else None
    if not (length or batch or further or quantised):
        return None
    settings = load_model(path).training
    parts = [f"sequences of {settings.sequence_length:,} tokens"] if length else []
    tokens = given.get("sequence_length")
    sequences = huggingface.usual_batch(tokens) if isinstance(tokens, int) else settings.global_batch
    parts += [f"{sequences:,} sequences a step"] if batch else []
    so = [f"on {' and '.join(parts)}"] if parts else []
    so += [f"without the modules that predict further tokens (mtp_layers: {further})"] if further else []
    so += (
        [f"with whole weights in {settings.precision} in place of quantised ones ({quantised})"]
        if quantised
        else []
    )
    return f"{as_named(path)}: nothing says how it is trained, so {', '.join(so)}"


def batch_at(path: Path, length: int) -> int | None:
    """Sequences of an optimizer step on sequences of ``length`` tokens; None where the file says itself how many."""
    document = read_as(_on_disk(path), "model")
    training = document.data.get("training")
    imported = _is_config(path, document) or "huggingface" in document.data
    silent = imported and _no_batch(training if isinstance(training, dict) else {})
    return huggingface.usual_batch(length) if silent else None


def _no_batch(training: Mapping[str, object]) -> bool:
    return training.get("global_batch") is None and training.get("global_batch_tokens") is None


def _is_config(path: Path, document: Document) -> bool:
    """True for a configuration of Hugging Face, by what it says or by its name."""
    ours = {"hidden", "huggingface"} & {*document.data}
    return is_config(document.data) or (path.name == "config.json" and not ours)


def _on_disk(path: Path) -> Path:
    """The file itself; a model of the hub is looked for in its cache."""
    return in_cache(str(as_named(path))) if of_hub(path) else path


_SHAPE = frozenset(("hidden", "layers", "heads", "training"))
"""Keys that every model file has, of which a file that is taken for one has none."""


def _from_shape(document: Document) -> ModelSpec:
    if not _SHAPE & {*document.data} and (other := strangers.stranger(document)) is not None:
        raise SpecError((other,))
    idle = (*_data_problems(document), *_idle_experts(document))
    own = (*_training_problems(document), *shape_problems(document))
    fail_on([*document.problems(ModelFile), *own, *idle])
    file = document.to(ModelFile)
    shape = file.model_dump(exclude={"notes", "source", "training"})
    model = ModelSpec(**shape, training=_training(file.training, file.training.sequence_length))
    fail_on([*_trained_problems(document, model), *_dispatcher_problems(document, model)])
    return model


def _from_import(path: Path, document: Document) -> ModelSpec:
    problems = [
        *document.problems(ImportedModelFile),
        *_training_problems(document),
        *_data_problems(document),
        *_frozen_problems(document),
    ]
    fail_on(problems)
    file = document.to(ImportedModelFile)
    return _imported(_config(path, file.huggingface, document), file, document)


def _config(path: Path, named: str, document: Document) -> Document:
    """The configuration that a model file names; one that cannot be read is a problem of that file."""
    config = Path(named)
    try:
        return read_document(_on_disk(config) if of_hub(config) else file_beside(path, named))
    except SpecError as error:
        here = [
            document.problem(("huggingface",), str(problem), problem.hint)
            if problem.line is None
            else problem
            for problem in error.problems
        ]
        raise SpecError(tuple(here)) from None


def _imported(config: Document, file: ImportedModelFile, document: Document) -> ModelSpec:
    shape, longest, precision, drops = huggingface.shape_of(config)
    sequence_length = file.training.sequence_length or huggingface.usual_length(longest)
    fail_on(_batch_problems(document, sequence_length))
    training = _training(file.training, sequence_length)
    if "precision" not in file.training.model_fields_set:
        training = training.model_copy(update={"precision": precision})
    try:
        name = file.name or repository_name(Path(config.file).absolute()) or shape["name"]
        model = ModelSpec.model_validate({**shape, "name": name, "training": training})
    except ValidationError as error:
        (first, *_) = error.errors()
        what = f"gives a model whose {'.'.join(map(str, first['loc']))} is wrong: {first['msg']}"
        raise SpecError((config.problem(("model_type",), what),)) from None
    if "dropout" not in file.training.model_fields_set and model.drops != drops:
        model = model.trained_with(dropout=drops)
    given = file.training.sequence_length
    if given is not None and model.front and given != longest:
        what = f"expected {longest}, the tokens that the configuration makes of an input, got {given}"
        raise SpecError((document.problem(("training", "sequence_length"), what, "remove it"),))
    if given is not None and 0 < model.learned_positions < given and not model.front:
        what = f"expected at most the {model.learned_positions} learned positions of the configuration, got {given}"
        rows = huggingface.padding_rows(config)
        hint = (
            f"of max_position_embeddings {rows} {'are' if rows > 1 else 'is'} kept for padding"
            if rows
            else None
        )
        raise SpecError((document.problem(("training", "sequence_length"), what, hint),))
    if model.tower is not None and model.tower.images * model.tower.outputs > sequence_length:
        what = f"expected at least the {model.tower.outputs} tokens of an image, got {sequence_length}"
        raise SpecError((document.problem(("training", "sequence_length"), what),))
    fail_on(_document_problems(document, shape, sequence_length))
    modules = huggingface.further_tokens(config)
    if model.training.mtp_layers and model.training.mtp_layers != modules:
        what = f"expected 0, or num_nextn_predict_layers {modules} of the configuration"
        what += f", got {model.training.mtp_layers}"
        raise SpecError((document.problem(("training", "mtp_layers"), what),))
    fail_on([*_trained_problems(document, model), *_dispatcher_problems(document, model)])
    return model


def _training(file: TrainingFile, sequence_length: int) -> TrainingSpec:
    batch = file.global_batch
    if batch is None:
        batch = (
            file.global_batch_tokens // sequence_length
            if file.global_batch_tokens
            else huggingface.usual_batch(sequence_length)
        )
    given = file.model_dump(exclude={"sequence_length", "global_batch", "global_batch_tokens"})
    return TrainingSpec(**given, sequence_length=sequence_length, global_batch=batch)


def _training_problems(document: Document) -> list[Problem]:
    training = document.data.get("training")
    if not isinstance(training, dict):
        return []
    given = [key for key in ("global_batch", "global_batch_tokens") if training.get(key) is not None]
    needed = "huggingface" not in document.data
    if len(given) == 2:
        return [
            document.problem(
                ("training", given[1]), "global_batch is given too, expected one of the two", "remove one"
            )
        ]
    if not given and needed:
        what = "missing, expected global_batch or global_batch_tokens"
        return [
            document.problem(
                ("training", "global_batch"), what, "write for example global_batch: 512 (sequences)"
            )
        ]
    return _batch_problems(document, training.get("sequence_length"))


def _data_problems(document: Document) -> list[Problem]:
    """Bytes of a token beside those of the whole sequence, which are in their place."""
    data = document.part("training", "data")
    if data is None or not {"bytes_per_token", "bytes_per_sequence"} <= data.data.keys():
        return []
    what = "bytes_per_sequence is given too, expected one of the two"
    return [document.problem(("training", "data", "bytes_per_token"), what, "remove one")]


def _idle_experts(document: Document) -> list[Problem]:
    """Experts of a model whose block, and all beside it, has layers without."""
    data = document.data
    if data.get("experts") is None or not data.get("block") or _routed(data, _RUNS):
        return []
    what = "no layer has experts, expected feed_forward experts somewhere"
    return [document.problem(("experts",), what, "remove them")]


def _routed(data: Mapping[str, object], keys: tuple[str, ...]) -> bool:
    """True where a run under one of the keys, or a layer of an encoder, has experts."""
    encoder = data.get("encoder")
    runs = [run for key in keys for _, run in mappings(data.get(key))]
    if isinstance(encoder, dict):
        runs += [run for _, run in mappings(encoder.get("block") or [{}])]
    feeds = (run.get("feed_forward") or data.get("feed_forward") or "experts" for run in runs)
    return "experts" in feeds


def _batch_problems(document: Document, length: object) -> list[Problem]:
    training = document.data.get("training")
    tokens = training.get("global_batch_tokens") if isinstance(training, dict) else None
    if not isinstance(tokens, int) or not isinstance(length, int) or min(tokens, length) < 1:
        return []
    if tokens % length == 0:
        return _too_many(document, tokens // length)
    below = max(tokens // length, 1) * length
    what = f"expected a multiple of sequence_length {length}, got {tokens}"
    return [
        document.problem(
            ("training", "global_batch_tokens"), what, f"write {below} ({below // length} sequences)"
        )
    ]


def _too_many(document: Document, batch: int) -> list[Problem]:
    if batch <= BATCH.most:
        return []
    what = f"expected at most {BATCH.most} sequences of sequence_length, got {shown(batch)}"
    return [document.problem(("training", "global_batch_tokens"), what)]


def shape_problems(document: Document) -> list[Problem]:
    """What must hold between the numbers of a model; what has the wrong type is skipped."""
    return [
        *_head_problems(document),
        *_window_problems(document),
        *_run_problems(document),
        *_expert_problems(document),
        *_frozen_problems(document),
        *_moment_problems(document),
        *_master_problems(document),
        *_end_problems(document),
        *_document_problems(document, document.data, _length_of(document)),
    ]


def _moment_problems(document: Document) -> list[Problem]:
    """Number formats of the moments that no optimizer but AdamW has."""
    training = document.data.get("training")
    if not isinstance(training, dict) or training.get("optimizer", "adamw") == "adamw":
        return []
    states = training.get("optimizer_states", "fp32")
    if states == "fp32" or states not in MOMENT_BYTES:
        return []
    what = f"{states} moments exist only with adamw, expected fp32 with {shown(training['optimizer'])}"
    return [document.problem(("training", "optimizer_states"), what, "remove it, or the optimizer")]


def _master_problems(document: Document) -> list[Problem]:
    """Weights in less than fp32 that no optimizer updates."""
    training = document.data.get("training")
    if not isinstance(training, dict):
        return []
    masters, precision = training.get("master_weights"), training.get("precision", "bf16")
    if masters not in ("split", "bf16"):
        return []
    states, able = training.get("optimizer_states", "fp32"), ("bf16",) if masters == "split" else HALVES
    wrong = {
        "optimizer": ("adamw", training.get("optimizer", "adamw") != "adamw"),
        "precision": (" or ".join(able), precision not in able),
        "optimizer_states": ("moments that stay on the device", str(states).startswith("paged")),
    }
    return [
        document.problem(
            ("training", "master_weights"),
            f"{masters} weights are updated only with {wanted}, expected fp32 with {shown(training[key])}",
            f"remove it, or {key}",
        )
        for key, (wanted, found) in wrong.items()
        if found
    ]


def _end_problems(document: Document) -> list[Problem]:
    """What does not go together at the ends of a model."""
    data, training = document.data, document.data.get("training")
    length = training.get("sequence_length") if isinstance(training, dict) else None
    rows, front, problems = data.get("learned_positions"), data.get("front"), []
    if isinstance(rows, int) and isinstance(length, int) and 0 < rows < length:
        what = f"expected at most the {rows} rows of learned_positions, got {length}"
        problems.append(document.problem(("training", "sequence_length"), what))
    last = front[-1] if isinstance(front, list) and front else None
    tokens = last.get("tokens") if isinstance(last, dict) else None
    if isinstance(tokens, int) and isinstance(length, int) and tokens > length:
        what = f"expected at least the {tokens} tokens that the front makes, got {length}"
        problems.append(document.problem(("training", "sequence_length"), what))
    if isinstance(last, dict) and (wide := last.get("outputs")) not in (data.get("hidden"), None):
        what = f"expected hidden {shown(data.get('hidden'))} as the last width, got {shown(wide)}"
        problems.append(document.problem(("front",), what))
    labels = data.get("labels")
    for key in ("tied_embeddings",) if labels is not None or front else ():
        if data.get(key, True):
            what = "expected false: a front has no table of tokens, and labels no rows in it"
            problems.append(document.problem((key,), what, "write tied_embeddings: false"))
    if labels is None and data.get("pooled"):
        problems.append(document.problem(("pooled",), "is given without labels, expected false"))
    if labels is not None and isinstance(training, dict) and training.get("mtp_layers"):
        problems.append(document.problem(("training", "mtp_layers"), "expected 0 with labels"))
    return problems


def _length_of(document: Document) -> object:
    training = document.data.get("training")
    return training.get("sequence_length") if isinstance(training, dict) else None


def _document_problems(document: Document, shape: Mapping[str, object], length: object) -> list[Problem]:
    """What documents and pairs do not go with, documents longer than a sequence, and halves of one.

    ``shape`` and ``length`` of a sequence: what the file says of them, or what the configuration does that it names.
    """
    training = document.data.get("training")
    if isinstance(training, dict) and isinstance(training.get("preference"), dict):
        return _preference_problems(document, training, shape, length)
    documents = training.get("documents") if isinstance(training, dict) else None
    if not isinstance(training, dict) or not isinstance(documents, dict):
        return []
    mean, path = documents.get("mean_length"), ("training", "documents")
    if isinstance(length, int) and isinstance(mean, int) and mean > length:
        what = f"expected at most the {length} tokens of sequence_length, got {mean}"
        hint = "longer documents are cut: leave documents out, or train on longer sequences"
        return [document.problem((*path, "mean_length"), what, hint)]
    return _strange_problems(document, path, shape, together=documents.get("packing") is not False)


def _preference_problems(
    document: Document, training: Mapping[str, object], shape: Mapping[str, object], length: object
) -> list[Problem]:
    path = ("training", "preference")
    if training.get("documents") is not None:
        what = "a sequence is a pair of answers, expected none with preference"
        return [document.problem(("training", "documents"), what, "remove it")]
    if isinstance(length, int) and length % 2:
        what = f"expected an even number of tokens with preference, half for each answer, got {length}"
        near = length - 1 if "huggingface" in document.data else length + 1
        return [document.problem(("training", "sequence_length"), what, f"write {near}")]
    return _strange_problems(document, path, shape, together=True)


def _strange_problems(
    document: Document, path: KeyPath, shape: Mapping[str, object], *, together: bool
) -> list[Problem]:
    """Models that are not trained on documents, ``together`` where several stand in a sequence."""
    training = document.data.get("training")
    reasons = {
        "images or sound in place of tokens": bool(shape.get("front")),
        "an encoder": shape.get("kind") == "encoder",
        "an encoder-decoder": shape.get("encoder") is not None,
        "a tower of images": shape.get("tower") is not None,
        "a head of labels": shape.get("labels") is not None,
        "a state that goes from one document to the next": shape.get("state") is not None and together,
        "modules that predict further tokens": isinstance(training, dict)
        and bool(training.get("mtp_layers")),
    }
    has = next((name for name, there in reasons.items() if there), None)
    return [] if has is None else [document.problem(path, f"expected none, the model has {has}", "remove it")]


def _frozen_problems(document: Document) -> list[Problem]:
    """What does not go with adapters or frozen parts, whatever the model."""
    training = document.data.get("training")
    if not isinstance(training, dict):
        return []
    lora, frozen, path = training.get("lora"), training.get("freeze"), ("training", "freeze")
    problems = []
    further = training.get("mtp_layers")
    if further and (lora or frozen):
        what = "modules that predict further tokens are trained whole, expected neither lora nor freeze"
        problems.append(document.problem(("training", "mtp_layers"), what))
    if further and document.data.get("kind") == "encoder":
        what = "an encoder predicts masked tokens, expected 0"
        problems.append(document.problem(("training", "mtp_layers"), what))
    if not isinstance(lora, dict):
        return problems
    if frozen is not None:
        what = "expected none with lora, which freezes all but its adapters"
        problems.append(document.problem(path, what, "remove it"))
    if training.get("optimizer") == "muon":
        what = "expected adamw, sgd, lion or adafactor with lora, got muon"
        problems.append(document.problem(("training", "optimizer"), what))
    base, precision = lora.get("base"), training.get("precision", "bf16")
    known = base in get_args(BaseFormat) and precision in get_args(Precision)
    able = base_formats(str(precision))
    if known and base not in able:
        what = f"expected {', '.join(able)} with precision {precision}, got {base}"
        problems.append(document.problem(("training", "lora", "base"), what, "remove it"))
    return problems


def _trained_problems(document: Document, model: ModelSpec) -> list[Problem]:
    """Adapters on what no layer has, and kinds of layers of which nothing is trained."""
    lora = model.training.lora
    linears = {name for kind in model.trained_kinds for name in (*kind.linears, *kind.expert_linears)}
    names = [name for name in get_args(AdapterTarget) if name in linears]
    asked = () if lora is None else lora.targets or ()
    problems = []
    for number, name in enumerate(asked):
        if name not in linears and names:
            what = f"the layers have no {name}, expected {', '.join(names)}"
            near = (f"experts.{name}", name.removeprefix("experts."), "up_proj")
            hint = next((f"write {each}" for each in near if each in names), "remove it")
            problems.append(document.problem(("training", "lora", "targets", number), what, hint))
    odd = lora is not None and lora.rank % GROUPED_RANK and any(name.startswith("experts.") for name in asked)
    if lora is not None and odd:
        what = f"grouped products of experts' adapters need a multiple of {GROUPED_RANK}, got {lora.rank}"
        hint = f"write {lora.rank + -lora.rank % GROUPED_RANK}"
        problems.append(document.problem(("training", "lora", "rank"), what, hint))
    idle = [kind for kind in model.trained_kinds if not kind.trained_layer_parameters]
    if problems or not idle:
        return problems
    layers = f"the {idle[0].name.removeprefix(f'{model.name}, ')}" if model.unlike else "the layers"
    if lora is None:
        what = f"freezes all of {layers}, expected something in them that is trained"
        return [document.problem(("training", "freeze"), what, "remove a part, or give lora")]
    able = (*idle[0].linears, *idle[0].expert_linears)
    if not able:
        what = f"expected none: hetplan knows no adapters for {layers}"
        return [document.problem(("training", "lora"), what, "remove it")]
    what = f"nothing of {layers} is trained, expected one of {', '.join(able)} too"
    return [document.problem(("training", "lora", "targets"), what)]


def _dispatcher_problems(document: Document, model: ModelSpec) -> list[Problem]:
    """Ways for tokens to travel to experts that no layer has."""
    if any(kind.experts for kind in model.kinds):
        return []
    problems, dispatcher = [], model.training.token_dispatcher
    if dispatcher != "alltoall":
        what = f"no layer has experts, expected alltoall, got {dispatcher}"
        problems.append(document.problem(("training", "token_dispatcher"), what, "remove it"))
    if model.training.expert_overlap:
        what = "no layer has experts, expected false, got true"
        problems.append(document.problem(("training", "expert_overlap"), what, "remove it"))
    return problems


def _head_problems(document: Document) -> list[Problem]:
    hidden, heads, kv_heads = (document.data.get(key) for key in ("hidden", "heads", "kv_heads"))
    problems = []
    if not isinstance(heads, int) or heads < 1:
        return []
    if document.data.get("head_dim") is None and isinstance(hidden, int) and hidden % heads:
        what = f"expected a divisor of hidden {hidden}, got {heads}"
        problems.append(document.problem(("heads",), what, "correct one of them, or give head_dim"))
    if isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads:
        what = f"expected a divisor of heads {heads}, got {kv_heads}"
        problems.append(
            document.problem(("kv_heads",), what, "every key/value head serves the same number of heads")
        )
    return problems + _value_problems(document) + _latent_problems(document, heads, kv_heads)


def _value_problems(document: Document) -> list[Problem]:
    """Heads of runs that do not divide, and values of a width of their own beside what needs that of keys."""
    data = document.data
    problems = []
    beside = [key for key in ("latent", "output_gate") if data.get(key)]
    if data.get("value_dim") is not None and beside:
        what = f"expected none beside {beside[0]}"
        problems.append(document.problem(("value_dim",), what, "remove it"))
    for key in _RUNS:
        runs = data.get(key)
        for number, run in enumerate(runs if isinstance(runs, list) else []):
            given = run if isinstance(run, dict) else {}
            if given.get("value_dim") is not None and beside:
                what = f"expected none beside {beside[0]}"
                problems.append(document.problem((key, number, "value_dim"), what, "remove it"))
            heads = given.get("heads") or data.get("heads")
            pairs = given.get("kv_heads") or data.get("kv_heads") or data.get("heads")
            own = "heads" in given or "kv_heads" in given
            if own and isinstance(heads, int) and isinstance(pairs, int) and pairs > 0 and heads % pairs:
                what = f"expected a divisor of heads {heads}, got {pairs}"
                problems.append(document.problem((key, number, "kv_heads"), what, "give both"))
    return problems


def _latent_problems(document: Document, heads: int, kv_heads: object) -> list[Problem]:
    latent, head_dim = document.data.get("latent"), document.data.get("head_dim")
    if not isinstance(latent, dict):
        return []
    problems = []
    if isinstance(kv_heads, int) and kv_heads != heads:
        what = f"expected heads {heads} with latent attention, got {kv_heads}"
        problems.append(document.problem(("kv_heads",), what, "remove it"))
    if document.data.get("qk_norm"):
        what = "expected false: latent attention has its own norms"
        problems.append(document.problem(("qk_norm",), what))
    rope = latent.get("rope_dim")
    if isinstance(rope, int) and isinstance(head_dim, int) and rope >= head_dim:
        what = f"expected less than head_dim {head_dim}, of which it is a part, got {rope}"
        problems.append(document.problem(("latent", "rope_dim"), what))
    return problems


def _window_problems(document: Document) -> list[Problem]:
    layers, window, narrow = (document.data.get(key) for key in ("layers", "window", "window_layers"))
    if not isinstance(narrow, int):
        return []
    if window is None:
        what = "is given without window"
        return [document.problem(("window_layers",), what, "give the window, or remove the key")]
    if isinstance(layers, int) and narrow > (most := _attending(document, layers)):
        return [document.problem(("window_layers",), f"expected at most layers {most}, got {narrow}")]
    return []


def _attending(document: Document, layers: int) -> int:
    """Layers with attention, where runs are written as they should be."""
    own = document.data.get("mixer", "attention")

    def of(key: str) -> int:
        runs = document.data.get(key)
        given = [run for run in (runs if isinstance(runs, list) else []) if isinstance(run, dict)]
        counts = (run.get("layers", 1) for run in given if (run.get("mixer") or own) in ("attention", "both"))
        return sum(count for count in counts if isinstance(count, int))

    dense = document.data.get("dense_layers", 0)
    each = of("block") if document.data.get("block") else int(own in ("attention", "both"))
    return layers * each + of("ahead") + of("behind") + (dense if isinstance(dense, int) else 0)


_RUNS = ("ahead", "block", "behind")


def _run_problems(document: Document) -> list[Problem]:
    """What does not go with runs of unlike layers, or with layers that carry a state."""
    data = document.data
    problems: list[Problem] = []
    own = data.get("mixer", "attention"), data.get("feed_forward")
    layers: list[tuple[tuple[str | int, ...], object, object]] = [((), *own)]
    listed = [key for key in _RUNS if isinstance(data.get(key), list) and data[key]]
    for key in listed:
        given = data[key]
        assert isinstance(given, list)
        runs = [(number, run) for number, run in enumerate(given) if isinstance(run, dict)]
        layers += [
            ((key, number), run.get("mixer") or own[0], run.get("feed_forward") or own[1])
            for number, run in runs
        ]
    if "block" in listed:
        layers = layers[1:]
    states = any(mixer in ("state", "both") for _, mixer, _ in layers)
    for path, mixer, feeds in layers:
        if mixer in ("state", "both") and data.get("state") is None:
            what = f"{mixer} needs a state, expected attention or none"
            problems.append(document.problem((*path, "mixer"), what, "give the model's state"))
        if mixer == "cross" and data.get("encoder") is None:
            what = "cross needs an encoder, expected attention, state or none"
            problems.append(document.problem((*path, "mixer"), what, "give the model's encoder"))
        if feeds == "experts" and data.get("experts") is None:
            what = "expected dense or none: the model has no experts"
            problems.append(document.problem((*path, "feed_forward"), what))
        if mixer == "none" and feeds == "none":
            problems.append(document.problem((*path, "mixer"), "a layer needs a mixer or a feed-forward"))
    if data.get("state") is not None and not states:
        what = "no layer carries a state, expected mixer state or both somewhere"
        problems.append(document.problem(("state",), what, "remove it"))
    if data.get("experts") is not None and own[1] in ("dense", "none") and "block" not in listed:
        what = f"layers without a block have the experts, expected experts, got {own[1]}"
        other = _routed(data, ("ahead", "behind"))
        hint = f"remove experts{f', or write block: [{{feed_forward: {own[1]}}}]' if other else ''}"
        problems.append(document.problem(("feed_forward",), what, hint))
    problems += _tower_problems(document)
    problems += _encoder_problems(document, any(mixer == "cross" for _, mixer, _ in layers))
    usual = all(mixer == "attention" and feeds != "none" for _, mixer, feeds in layers)
    if data.get("kind") == "encoder" and (listed or not usual):
        what = "encoders have layers of attention and a feed-forward, all alike"
        problems.append(document.problem(((*listed, "mixer")[0],), what))
    return problems + _state_problems(document)


def _tower_problems(document: Document) -> list[Problem]:
    tower, hidden = document.data.get("tower"), document.data.get("hidden")
    if not isinstance(tower, dict):
        return []
    problems = []
    widths, heads, own = tower.get("projector"), tower.get("heads"), tower.get("hidden")
    if isinstance(widths, list) and widths and isinstance(hidden, int) and widths[-1] != hidden:
        what = f"expected hidden {hidden} of the text as the last width, got {shown(widths[-1])}"
        problems.append(document.problem(("tower", "projector"), what))
    if isinstance(heads, int) and isinstance(own, int) and heads > 0 and own % heads:
        what = f"expected a divisor of the tower's hidden {own}, got {heads}"
        problems.append(document.problem(("tower", "heads"), what))
    outputs, images, training = tower.get("outputs"), tower.get("images", 1), document.data.get("training")
    length = training.get("sequence_length") if isinstance(training, dict) else None
    if not (isinstance(outputs, int) and isinstance(images, int) and isinstance(length, int)):
        outputs, images, length = 0, 0, 1
    if outputs * images > length:
        what = f"expected at most the {length} tokens of a sequence, got {images} x {outputs} of images"
        problems.append(document.problem(("tower", "outputs"), what))
    if document.data.get("kind") == "encoder":
        problems.append(document.problem(("tower",), "expected none in an encoder"))
    return problems


def _encoder_problems(document: Document, attended: bool) -> list[Problem]:
    """What does not go with an encoder, ``attended`` where layers attend to its output."""
    encoder, data = document.data.get("encoder"), document.data
    if not isinstance(encoder, dict):
        return []
    problems = []
    training = data.get("training")
    if isinstance(training, dict) and training.get("mtp_layers"):
        what = "layers that attend to an encoder predict no further tokens yet, expected 0"
        problems.append(document.problem(("training", "mtp_layers"), what))
    if not attended:
        what = "no layer attends to its output, expected mixer cross somewhere"
        problems.append(document.problem(("encoder",), what, "add {mixer: cross} to the block"))
    for key in ("tower", "latent"):
        if data.get(key) is not None:
            problems.append(document.problem(("encoder",), f"expected none beside {key}"))
    if data.get("kind") == "encoder":
        problems.append(document.problem(("encoder",), "expected none in an encoder", "write kind: decoder"))
    width, heads = (encoder.get(key) or data.get(key) for key in ("hidden", "heads"))
    given = encoder.get("head_dim") or (not encoder.get("heads") and data.get("head_dim"))
    if isinstance(width, int) and isinstance(heads, int) and heads > 0 and width % heads and not given:
        what = f"expected a divisor of the encoder's hidden {width}, got {heads}"
        problems.append(document.problem(("encoder", "heads"), what))
    block = encoder.get("block")
    for number, run in enumerate(block if isinstance(block, list) else []):
        if not isinstance(run, dict):
            continue
        if run.get("mixer") not in (None, "attention"):
            what = f"expected attention in an encoder, got {shown(run['mixer'])}"
            problems.append(document.problem(("encoder", "block", number, "mixer"), what))
        if run.get("feed_forward") == "experts" and data.get("experts") is None:
            what = "expected dense: the model has no experts"
            problems.append(document.problem(("encoder", "block", number, "feed_forward"), what))
    return problems


def _state_problems(document: Document) -> list[Problem]:
    state = document.data.get("state")
    if not isinstance(state, dict):
        return []
    heads, groups, kind = state.get("heads", 1), state.get("groups", 1), state.get("kind")
    problems = []
    if isinstance(heads, int) and isinstance(groups, int) and heads > 0 and groups > 0 and heads % groups:
        what = f"expected a divisor of the state's heads {heads}, got {groups}"
        problems.append(document.problem(("state", "groups"), what))
    if kind == "mamba" and state.get("rank") is None:
        what = "missing, expected the rank of the time step's projection"
        problems.append(document.problem(("state", "rank"), what))
    if kind == "linear":
        if groups != heads:
            what = f"linear has keys of its own for each head, expected {heads}, got {shown(groups)}"
            problems.append(document.problem(("state", "groups"), what))
        if state.get("size") is None:
            problems.append(document.problem(("state", "size"), "missing, expected the width of a key"))
    if kind in ("mamba", "conv") and heads != 1:
        what = f"{kind} has channels alone, expected 1, got {heads}"
        problems.append(document.problem(("state", "heads"), what, "head_dim is the width of all channels"))
    return problems


def _expert_problems(document: Document) -> list[Problem]:
    experts, ahead = document.data.get("experts"), document.data.get("dense_layers")
    if not isinstance(experts, dict):
        if ahead not in (None, 0):
            what = "expected none: without experts all layers are dense"
            return [document.problem(("dense_layers",), what, "add them to layers")]
        return []
    number, picked = experts.get("number"), experts.get("top_k")
    problems = []
    if ahead not in (None, 0) and any(document.data.get(key) for key in _RUNS):
        what = "expected none beside runs of layers: write them under ahead"
        problems.append(document.problem(("dense_layers",), what))
    if isinstance(number, int) and isinstance(picked, int) and picked > number:
        what = f"expected at most number {number}, got {picked}"
        problems.append(document.problem(("experts", "top_k"), what))
    if experts.get("shared_gate") is True and not experts.get("shared_ffn"):
        what = "expected false: without shared_ffn no expert is shared"
        problems.append(document.problem(("experts", "shared_gate"), what))
    if document.data.get("kind") == "encoder":
        what = "experts in encoders are not supported yet"
        problems.append(document.problem(("experts",), what, "remove them, or make it a decoder"))
    return problems
