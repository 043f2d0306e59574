"""Heads of models, by the name of the architecture in a Hugging Face configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from planner.model.huggingface.families import Config, Shape
from planner.ranges import ROWS

DEFAULT_LABELS = 2
"""Labels of a classifier whose configuration names none, as in transformers for most types; ``defaults.json`` has
the others."""


@dataclass(frozen=True, slots=True)
class Head:
    """Outputs in place of an output layer that predicts tokens."""

    outputs: Literal["labels", "tokens", "shape", "vocab_size", "projection_dim"] | int
    """How many, or the key that says it; ``labels`` for as many as the configuration names, ``tokens`` for the output
    layer itself, ``shape`` for what the shape already has, 0 for none."""
    pooled: bool = False
    """True for outputs of a sequence."""
    dense: int = 0
    """Square layers with a bias ahead of them: poolers and the like."""
    bias: bool = True
    """Bias of the outputs."""
    pair: bool = False
    """True when labels say besides whether two texts belong together."""
    more: Callable[[Config], int] | None = None
    """Parameters besides."""
    width: str | None = None
    """Key of the width that the outputs take, where it is not that of the model."""
    encoder: bool = False
    """True where the encoder of two stacks stands alone."""
    decoder: bool = False
    """True where the decoder of two stacks stands alone."""
    unnormed: str | None = None
    """Key by which the norm behind the layers is not there, unless it is false."""


NONE = {"Model": Head(0)}
CHOICES = {"ForMultipleChoice": Head(1, pooled=True, dense=1)}
EACH = {"ForTokenClassification": Head("labels"), "ForQuestionAnswering": Head("labels")}
SEQUENCES = {"ForSequenceClassification": Head("labels", pooled=True, dense=1)}
PLAIN = {**NONE, **SEQUENCES, **EACH, **CHOICES}
"""Of encoders that have no pooler in the model without a head, and a square layer ahead of labels of a sequence."""
_POOLED = {
    **PLAIN,
    "Model": Head(0, dense=1),
    "ForNextSentencePrediction": Head(2, pooled=True, dense=1),
}
"""Of encoders that have."""
_TOGETHER = {**_POOLED, "ForPreTraining": Head("tokens", dense=1, pair=True)}
"""Of encoders whose pretraining predicts tokens, and whether two texts belong together."""
_DECODER = {
    **NONE,
    "ForSequenceClassification": Head("labels", pooled=True, bias=False),
    "ForTokenClassification": Head("labels"),
    "ForQuestionAnswering": Head(2),
}
_STACKS = {**NONE, **SEQUENCES, "ForQuestionAnswering": Head(2)}
"""Of encoder-decoders."""
_DECODER_ALONE = {**_STACKS, "ForCausalLM": Head("tokens", decoder=True)}
_T5 = {
    **_STACKS,
    "ForQuestionAnswering": Head("labels"),
    "EncoderModel": Head(0, encoder=True),
    "ForTokenClassification": Head("labels", encoder=True),
}
HEADS: dict[str, dict[str, Head]] = {
    **dict.fromkeys(("bert", "ernie", "megatron-bert", "nezha"), _TOGETHER),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta-xl"),
        _POOLED,
    ),
    **dict.fromkeys(("ibert", "longformer", "mpnet", "tapas"), _POOLED),
    **dict.fromkeys(("distilbert", "esmc", "eurobert", "gte", "nomic_bert", "nystromformer"), PLAIN),
    "big_bird": {
        **PLAIN,
        "ForMultipleChoice": Head(1, pooled=True),
        "ForPreTraining": Head("tokens", pair=True),
    },
    "fnet": {
        **NONE,
        "ForPreTraining": Head("tokens", pair=True),
        "ForSequenceClassification": Head("labels", pooled=True),
    },
    "imagegpt": {
        **NONE,
        "ForCausalImageModeling": Head("shape"),
        "ForImageClassification": Head("labels", pooled=True, bias=False),
    },
    "ultrabert": {
        **NONE,
        "ForSequenceClassification": Head("labels", pooled=True),
        "ForTokenClassification": Head("labels"),
        "ForQuestionAnswering": Head(2),
    },
    "luke": {**NONE, "ForSequenceClassification": Head("labels", pooled=True)},
    "visual_bert": {**NONE, "ForPreTraining": Head("tokens", pair=True)},
    "electra": {**PLAIN, "ForPreTraining": Head(1, dense=1)},
    "layoutlm": {**PLAIN, "ForSequenceClassification": Head("labels", pooled=True)},
    "modernbert-decoder": {
        **_DECODER,
        "ForSequenceClassification": Head("labels", pooled=True, dense=1, bias=False),
    },
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    "longt5": {**NONE, "EncoderModel": Head(0, encoder=True)},
    "t5gemma": {**NONE, "ForSequenceClassification": Head("labels", pooled=True)},
    **dict.fromkeys(
        (
            *("bart", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart"),
            "prophetnet",
        ),
        _DECODER_ALONE,
    ),
    "whisper": {**NONE, "ForCausalLM": Head("tokens", decoder=True)},
    "modernbert": {**PLAIN, **{name: Head("labels", dense=1) for name in EACH}},
    "roformer": {**PLAIN, "ForMultipleChoice": Head(1, pooled=True)},
}
"""Heads of a type by the end of an architecture's name, where they are not the usual ones of its kind."""
_WITHOUT = {
    ("big_bird", "ForQuestionAnswering"),
    ("tapas", "ForQuestionAnswering"),
    ("fsmt", "Model"),
}
"""Heads of them that are not read."""
TOKENS = re.compile(
    r"(ForCausalLM|LMHeadModel|LMHeadCustomModel|ForMaskedLM|LanguageModeling|WithLMHeadModel|BertGenerationDecoder)$"
)
"""How architectures end whose output layer predicts tokens, and nothing else."""
_OTHERS = re.compile(r"(DoubleHeadsModel|PreTrainedModel|LMHeadModel|Pretrained\w+)$")
"""How those end that are more than a model without a head, or less."""


def heads_of(kind: str, *, stacks: bool) -> dict[str, Head]:
    """Heads of a type, of one that is an encoder and a decoder where ``stacks``."""
    given = HEADS.get(kind, _STACKS if stacks else _DECODER)
    return {name: head for name, head in given.items() if (kind, name) not in _WITHOUT}


def head_of(name: str, heads: dict[str, Head]) -> Head | None:
    """The head of an architecture; None where it is not known."""
    known = any(name.endswith(ending) for ending in heads if ending != "Model")
    if name.endswith("Model") and re.search("LMHead|For[A-Z]", name) and not known:
        return None
    if _OTHERS.search(name) or (name.endswith("EncoderModel") and "EncoderModel" not in heads):
        return None
    # "EncoderModel" ends in "Model" too.
    endings = sorted((ending for ending in heads if name.endswith(ending)), key=len)
    return heads[endings[-1]] if endings else None


def labels_of(config: Config) -> int:
    """Labels that a configuration names; raises ValueError where it names them by something else."""
    named = config.get("id2label")
    count = len(named) if isinstance(named, dict) else config.get("num_labels", DEFAULT_LABELS)
    if not isinstance(count, int) or isinstance(count, bool) or not ROWS.holds(count):
        raise ValueError("num_labels")
    return count


def with_head(shape: Shape, head: Head, config: Config) -> Shape:
    """The shape of a model that predicts tokens with this in place of its output layer."""
    if head.encoder:
        shape = _encoder_alone(shape)
    if head.decoder:
        shape = decoder_alone(shape)
    if head.unnormed is not None and config.get(head.unnormed, True):
        shape = {**shape, "final_norm": False}
    width = shape["hidden"]
    more = head.dense * width * (width + 1) + (2 * (width + 1) if head.pair else 0)
    more += head.more(config) if head.more else 0
    kept = shape.get("other_parameters", 0) + more
    if head.outputs in ("tokens", "shape"):
        return {**shape, "other_parameters": kept}
    gone = _GONE.get(str(config["model_type"]))
    kept -= gone(config) if gone else 0
    labels = labels_of(config) if head.outputs == "labels" else head.outputs
    outputs = labels if isinstance(labels, int) else int(config[labels])
    if head.width and outputs:
        # Of another width than the model's: without the model's own outputs, for those of few operations.
        kept += outputs * (int(config.get(head.width) or CLASSIFIER) + head.bias)
        outputs = 0
    return {
        **shape,
        "labels": outputs,
        "pooled": head.pooled and outputs > 0,
        "tied_embeddings": False,
        "head_transform": False,
        "head_bias": head.bias and outputs != 0,
        "other_parameters": kept,
    }


CLASSIFIER = 256
"""Width ahead of the labels of a sound, where a configuration names none."""


def _encoder_alone(shape: Shape) -> Shape:
    """The encoder of two stacks as a model of its own."""
    encoder = dict(shape["encoder"])
    length = encoder.pop("sequence_length")
    decoder = ("layers", "block", "ahead", "behind", "encoder", "relative_positions", "experts")
    kept = {key: value for key, value in shape.items() if key not in decoder}
    if "block" in encoder:
        kept |= {"experts": shape["experts"]}
    # What an encoder has of its own where nothing is tied stands beside the decoder's.
    own = {key: value for key, value in encoder.items() if key not in ("vocab", "other_parameters")}
    return {**kept, **own, "kind": "encoder", "sequence_length": length}


def decoder_alone(shape: Shape) -> Shape:
    """The decoder of two stacks as a model of its own, whose matrices to an encoder that is not there lie idle."""
    width, encoder = shape["hidden"], shape["encoder"]
    idle = 2 * width * width + 2 * width * (encoder.get("hidden") or width) + 2 * width
    idle += (3 if shape.get("key_bias", True) else 2) * width * bool(shape.get("qkv_bias", True))
    idle += width * bool(shape.get("output_bias", True))
    kept = {key: value for key, value in shape.items() if key not in ("block", "encoder")}
    return {**kept, "attention_other": shape.get("attention_other", 0) + idle}


def _square(config: Config) -> int:
    width = int(config["hidden_size"])
    return width * (width + 1)


def _generator(config: Config) -> int:
    """What narrows hidden states again, without its matrix: a bias and a norm."""
    narrow = int(config.get("embedding_size") or config["hidden_size"])
    return 3 * narrow if narrow != config["hidden_size"] else 0


def wide_outputs(config: Config) -> int:
    """Parameters ahead of outputs that are wider than the layers, and what these take more (RemBERT)."""
    width, wide, narrow = (
        int(config[key]) for key in ("hidden_size", "output_embedding_size", "input_embedding_size")
    )
    # Nothing leads back to the width of the embedding.
    return (width + 3) * wide + int(config["vocab_size"]) * (wide - width) - narrow * width


def far_outputs(config: Config) -> int:
    """What outputs take of the model's width beyond that of the embedding (MobileBERT); nothing leads back to that."""
    width, narrow = int(config["hidden_size"]), int(config["embedding_size"])
    return int(config["vocab_size"]) * (width - narrow) - narrow * width


def _narrowed(config: Config) -> int:
    """Two matrices ahead of the tokens (UltraBERT)."""
    return 2 * int(config["hidden_size"]) * int(config.get("prediction_head_size", 768))


def _entities(config: Config) -> int:
    """What predicts entities (LUKE)."""
    width, narrow = int(config["hidden_size"]), int(config.get("entity_emb_size") or config["hidden_size"])
    return int(config["entity_vocab_size"]) + narrow * (width + 3)


_GONE: dict[str, Callable[[Config], int]] = {
    "mobilebert": far_outputs,
    "luke": _entities,
    # Outputs of the second stream, and a bias.
    "reformer": lambda config: int(config["vocab_size"] * (config["hidden_size"] + 1)),
    "rembert": wide_outputs,
    "albert": lambda config: _generator({"embedding_size": 128, **config}),
    "electra": _generator,
    "modernbert": _square,
    "ultrabert": _narrowed,
    "ultravbert": lambda config: _narrowed(config["text_config"]),
    "modernbert-decoder": _square,
}
"""Other parameters of the head that predicts tokens."""
