"""The model file: what a user writes, and how it becomes a ModelSpec."""

from __future__ import annotations

from pathlib import Path

from planner.errors import Problem, SpecError
from planner.files.document import Document, fail_on, is_config, read_as, read_document
from planner.files.fields import (
    Batch,
    BatchTokens,
    Frozen,
    Name,
    SequenceLength,
)
from planner.files.messages import shown
from planner.model.huggingface import DEFAULT_BATCH, shape_of
from planner.model.spec import ModelSpec, TrainingSpec
from planner.ranges import BATCH


class TrainingFile(TrainingSpec):
    """What a file says of it."""

    global_batch: Batch | None = None  # type: ignore[assignment]
    """Sequences of one optimizer step; or give ``global_batch_tokens``."""
    global_batch_tokens: BatchTokens | None = None
    """Tokens of one optimizer step, a multiple of ``sequence_length``; or give ``global_batch``."""


class ImportedTrainingFile(TrainingFile):
    """The same with defaults from the Hugging Face configuration."""

    sequence_length: SequenceLength | None = None  # type: ignore[assignment]
    """Tokens of a sequence; the configuration's longest when absent."""


class ModelFile(ModelSpec):
    """A dense transformer by its shape, and how it is trained."""

    notes: str | None = None
    """Free text."""
    source: str | None = None
    """Where the numbers are from; free text."""
    training: TrainingFile
    """How it is trained."""


class ImportedModelFile(Frozen):
    """A model by its Hugging Face ``config.json``, and how it is trained."""

    huggingface: str
    """Path of the ``config.json``, relative to this file."""
    name: Name | None = None
    """Name of the model; taken from the configuration when absent."""
    notes: str | None = None
    """Free text."""
    source: str | None = None
    """Where the numbers are from; free text."""
    training: ImportedTrainingFile = ImportedTrainingFile.model_construct()
    """How it is trained."""


def load_model(path: Path, training: TrainingSpec | None = None) -> ModelSpec:
    """The model of a model file or of a Hugging Face ``config.json``.

    ``training`` replaces what the file says. A ``config.json`` alone is trained on its longest sequences, 512
    of them a step. Raises SpecError with every problem of the file.
    """
    document = read_as(path, "model")
    if is_config(document.data):
        model = _imported(document, ImportedModelFile(huggingface=str(path)), document)
    elif "huggingface" in document.data:
        model = _from_import(path, document)
    else:
        model = _from_shape(document)
    return model if training is None else model.model_copy(update={"training": training})


def _from_shape(document: Document) -> ModelSpec:
    fail_on([*document.problems(ModelFile), *_training_problems(document), *shape_problems(document)])
    file = document.to(ModelFile)
    shape = file.model_dump(exclude={"notes", "source", "training"})
    return ModelSpec(**shape, training=_training(file.training, file.training.sequence_length))


def _from_import(path: Path, document: Document) -> ModelSpec:
    fail_on([*document.problems(ImportedModelFile), *_training_problems(document)])
    file = document.to(ImportedModelFile)
    return _imported(_config(path.parent / file.huggingface, document), file, document)


def _config(path: Path, document: Document) -> Document:
    """The configuration; one that cannot be read is a problem of the file that names it."""
    try:
        return read_document(path)
    except SpecError as error:
        here = [
            document.problem(("huggingface",), str(problem)) if problem.line is None else problem
            for problem in error.problems
        ]
        raise SpecError(tuple(here)) from None


def _imported(config: Document, file: ImportedModelFile, document: Document) -> ModelSpec:
    shape, longest, precision = shape_of(config)
    sequence_length = file.training.sequence_length or longest
    fail_on(_batch_problems(document, sequence_length))
    training = _training(file.training, sequence_length)
    if "precision" not in file.training.model_fields_set:
        training = training.model_copy(update={"precision": precision})
    return ModelSpec.model_validate({**shape, "name": file.name or shape["name"], "training": training})


def _training(file: TrainingFile, sequence_length: int) -> TrainingSpec:
    batch = file.global_batch
    if batch is None:
        batch = file.global_batch_tokens // sequence_length if file.global_batch_tokens else DEFAULT_BATCH
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
    """What must hold between the widths and heads of a model; what has the wrong type is skipped."""
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
    return problems
