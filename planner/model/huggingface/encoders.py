"""Shapes of text encoders that differ from BERT, from their Hugging Face configurations, by ``model_type``."""

from __future__ import annotations

from collections.abc import Iterator

from planner.files.messages import shown
from planner.model.huggingface.families import (
    COMMON,
    Config,
    Kind,
    ModelType,
    Shape,
    bert,
    in_blocks,
    other_width,
)
from planner.model.huggingface.heads import (
    CHOICES,
    EACH,
    PLAIN,
    SEQUENCES,
    Head,
    far_outputs,
    labels_of,
    wide_outputs,
)
from planner.model.huggingface.products import added, attention, feeds, layers, linear, scores
from planner.model.huggingface.vision import patch_of, patches_of


def _untied(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("tie_word_embeddings") is False:
        yield "tie_word_embeddings", "encoders with an output layer of their own"


def _albert(config: Config) -> Shape:
    """One layer that is run again and again; tables and norms of the embedding's own width."""
    shape, width = bert(config, 2), config["hidden_size"]
    narrow = int(config.get("embedding_size") or 128)
    tables = (shape["learned_positions"] + shape["token_types"]) * narrow
    # Biases of both projections and a norm on either side; where nothing is narrower, both are there all the same.
    rest = width + narrow + 2 * 2 * narrow + (2 * width * narrow if narrow == width else 0)
    gone = {"learned_positions": 0, "token_types": 0, "embedding_norm": False, "head_transform": False}
    layers = {"layers": 1, "block": ({"layers": config["num_hidden_layers"], "shared": True},)}
    return {**shape, **gone, **layers, "embedding_width": narrow, "other_parameters": tables + rest}


def _albert_unlike(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("num_hidden_groups", "inner_group_num"):
        if config.get(key, 1) != 1:
            yield key, "several groups of layers that share their weights"
    yield from _untied(config)
    if (config.get("embedding_size") or 128) == config.get("hidden_size"):
        yield "embedding_size", "embeddings as wide as the layers of this type"


def _deberta(config: Config) -> Shape:
    """Attention to words and to distances, with a table of these, or projections of it in each layer."""
    first, width = config["model_type"] == "deberta", config["hidden_size"]
    shape = bert(config, 0)
    if not config.get("position_biased_input", True):
        shape["learned_positions"] = 0
    named = config.get("pos_att_type") or ()
    kinds = named.split("|") if isinstance(named, str) else list(named)
    own, others = 0, 0
    if config.get("relative_attention"):
        rows = config.get("max_relative_positions", -1)
        rows = rows if rows >= 1 else config["max_position_embeddings"]
        buckets = 0 if first else config.get("position_buckets", -1)
        others += 2 * (buckets if buckets > 0 else rows) * width
        if first or not config.get("share_att_key"):
            own += width * (width + (not first)) * ("c2p" in kinds) + width * (width + 1) * ("p2c" in kinds)
        if not first and "layer_norm" in str(config.get("norm_rel_ebd", "none")):
            others += 2 * width
    size = 0 if first else config.get("conv_kernel_size") or 0
    if size:
        others += width * (width // config.get("conv_groups", 1)) * size + width + 2 * width
    if first and config.get("talking_head"):
        own += 2 * config["num_attention_heads"] ** 2
    return {**shape, "key_bias": not first, "attention_other": own, "other_parameters": others}


def _deberta_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from other_width(config)
    yield from _untied(config)
    if config.get("pooler_hidden_size") not in (None, config.get("hidden_size")):
        yield "pooler_hidden_size", "poolers of another width"
    if config.get("legacy") is False:
        yield "legacy", "the newer head of this type"


def _dpr(config: Config) -> Shape:
    """BERT, of whose first token a projection is compared where there is one."""
    out = config.get("projection_dim") or 0
    gone = {"head_transform": False, "tied_embeddings": False, "labels": out, "pooled": out > 0}
    return {**bert(config, 2), **gone, "head_bias": out > 0}


def _xlnet(config: Config) -> Shape:
    """Queries of words and of distances; the order of the words is drawn, so that every token may see all."""
    width, heads = config["d_model"], config["n_head"]
    head = config.get("d_head") or width // heads
    return {
        **{"kind": "encoder", "layers": config["n_layer"], "hidden": width, "heads": heads, "head_dim": head},
        **{"ffn": config["d_inner"], "vocab": config["vocab_size"], "final_norm": False},
        **{"qkv_bias": False, "output_bias": False, "head_bias": True},
        "attention_other": width * heads * head + 5 * heads * head,
        **{"other_parameters": width, "sequence_length": 512},
    }


def _xlnet_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    if config.get("ff_activation") == "none" or config.get("untie_r") is False:
        yield "untie_r", "biases of queries that all layers share"
    if config.get("summary_use_proj") is False:
        yield "summary_use_proj", "summaries without a projection"


def _esm(config: Config) -> Shape:
    """Norms ahead of attention and feed-forward; a regression over all attention maps predicts contacts."""
    shape = bert(config, 0)
    rows = shape["learned_positions"] * (config.get("position_embedding_type", "absolute") == "absolute")
    maps = config["num_hidden_layers"] * config["num_attention_heads"] + 1
    return {
        **shape,
        **{"learned_positions": rows, "token_types": 0, "final_norm": True, "other_parameters": maps},
        **{"embedding_norm": bool(config.get("emb_layer_norm_before")), "sequence_length": 1024},
    }


def _esm_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    if config.get("is_folding_model"):
        yield "is_folding_model", "models that fold proteins"


def _layoutlmv3(config: Config) -> Shape:
    """Words, their places on a page, and patches of its image."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    places = 2 * config.get("max_2d_position_embeddings", 1024)
    tables = places * (config.get("coordinate_size", 128) + config.get("shape_size", 128))
    biases = config.get("rel_pos_bins", 32) * bool(config.get("has_relative_attention_bias", True))
    biases += 2 * config.get("rel_2d_pos_bins", 64) * bool(config.get("has_spatial_attention_bias", True))
    tables += biases * heads
    if config.get("visual_embed", True):
        side = config.get("patch_size", 16)
        patches = (config.get("input_size", 224) // side) ** 2
        inputs = config.get("num_channels", 3) * side * side
        tables += width * (inputs + 1) + width + (patches + 1) * width + 2 * 2 * width
    gone = {"head_transform": False, "head_bias": False, "tied_embeddings": False, "labels": 0}
    return {**bert(config, 2), **gone, "other_parameters": tables}


def _xlm(config: Config) -> Shape:
    """Names of its own; languages may have a table."""
    width, tongues = config["emb_dim"], config.get("n_langs", 1)
    spoken = tongues > 1 and config.get("use_lang_emb", True)
    return {
        **{"kind": "encoder", "layers": config["n_layers"], "hidden": width, "heads": config["n_heads"]},
        **{"vocab": config["n_words"] if "n_words" in config else config["vocab_size"], "ffn": 4 * width},
        **{"learned_positions": config.get("max_position_embeddings", 512), "embedding_norm": True},
        **{"final_norm": False, "head_bias": True, "other_parameters": tongues * width if spoken else 0},
    }


def _xlm_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    if config.get("asm"):
        yield "asm", "adaptive output layers"
    for key in ("summary_use_proj", "summary_proj_to_labels"):
        if config.get(key) is False:
            yield key, "summaries without a projection to labels"


def _fnet(config: Config) -> Shape:
    """Fourier transforms in place of attention, which have no parameters."""
    width = config["hidden_size"]
    # A matrix behind the embedding, and a pooler.
    mixing = {"mixer": "none", "layer_norms": 2, "other_parameters": 2 * width * (width + 1)}
    return {**bert({"num_attention_heads": 1, **config}, 4), **mixing}


def _nystromformer(config: Config) -> Shape:
    """Attention by way of a few landmarks (arXiv:2102.03902), and a convolution over the values of each head."""
    kernel = config["num_attention_heads"] * int(config.get("conv_kernel_size") or 0)
    shape = bert(config, 2)
    rows = shape["learned_positions"] + 2
    return {
        **shape,
        "learned_positions": rows,
        "window": 2 * config["num_landmarks"],
        "attention_other": kernel,
    }


def _visual(config: Config) -> Shape:
    """Regions of an image among the words: a matrix, types and places of their own; a pooler."""
    shape, width = bert(config, 2), config["hidden_size"]
    seen = (config.get("visual_embedding_dim", 512) + 1) * width
    tables = (shape["learned_positions"] + shape["token_types"]) * width
    return {**shape, "other_parameters": seen + tables + width * (width + 1)}


def _luke(config: Config) -> Shape:
    """Entities beside words: queries of their own, a table, and positions (arXiv:2010.01057); outputs are not tied."""
    width, narrow = config["hidden_size"], config.get("entity_emb_size") or config["hidden_size"]
    shape = bert(config, 2)
    rows = config["entity_vocab_size"]
    tables = rows * narrow + (shape["learned_positions"] + shape["token_types"] + 2) * width
    tables += narrow * width * (narrow != width)
    # A pooler, and what predicts entities.
    ends = width * (width + 1) + rows + narrow * (width + 3)
    own = 3 * width * (width + 1) if config.get("use_entity_aware_attention", True) else 0
    return {**shape, "tied_embeddings": False, "attention_other": own, "other_parameters": tables + ends}


def _rembert(config: Config) -> Shape:
    """A narrow embedding at one end, a wide one at the other (arXiv:2010.12821)."""
    shape, width = bert(config, 2), config["hidden_size"]
    narrow = config["input_embedding_size"]
    tables = (shape["learned_positions"] + shape["token_types"]) * narrow + 2 * narrow + width
    gone = {"learned_positions": 0, "token_types": 0, "embedding_norm": False, "head_transform": False}
    more = {
        "embedding_width": narrow,
        "tied_embeddings": False,
        "other_parameters": tables + wide_outputs(config),
    }
    return {**shape, **gone, **more}


def _rembert_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("tie_word_embeddings"):
        yield "tie_word_embeddings", "tied embeddings of two widths"
    if config.get("input_embedding_size") == config.get("hidden_size"):
        yield "input_embedding_size", "embeddings as wide as the layers of this type"
    if (config.get("output_embedding_size") or 0) < (config.get("hidden_size") or 0):
        yield "output_embedding_size", "outputs narrower than the layers"
    if config.get("is_decoder"):
        yield "is_decoder", "encoders as decoders"


def _lilt(config: Config) -> Shape:
    """BERT beside a narrower one of the places of words on a page (arXiv:2202.13669)."""
    shape, width, times = bert(config, 2), config["hidden_size"], config["num_hidden_layers"]
    shrink = config.get("channel_shrink_ratio", 4)
    narrow, tokens = width // shrink, min(512, shape["learned_positions"])
    beside = layers(tokens, times, narrow, config["intermediate_size"] // shrink)
    others = times * 4 * narrow + 4 * config.get("max_2d_position_embeddings", 1024) * (width // 6)
    others += shape["learned_positions"] * narrow + (width + 1) * narrow + 2 * narrow
    return added(_headless(config), beside, others)


def _jina(config: Config) -> Shape:
    """BERT with rotary positions."""
    return {**bert(config, 1), "learned_positions": 0}


def _mra(config: Config) -> Shape:
    """Attention to a few blocks of 32 tokens (arXiv:2207.10284)."""
    rows = config["max_position_embeddings"] + 2
    window = 32 * int(config.get("block_per_row", 4))
    return {**bert(config, 1), "learned_positions": rows, "window": window}


def _yoso(config: Config) -> Shape:
    """Attention by hashes (arXiv:2111.09714), taken for full; a convolution over the values of each head."""
    kernel = config["num_attention_heads"] * int(config.get("conv_window") or 0)
    rows = config["max_position_embeddings"] + 2
    return {**bert(config, 1), "learned_positions": rows, "attention_other": kernel}


def _roc(config: Config) -> Shape:
    """How words sound and look beside them (arXiv:2203.09143); a matrix joins the three."""
    shape, width = bert(config, 2), config["hidden_size"]
    sound, look = config["pronunciation_embed_dim"], config["shape_embed_dim"]
    others = config["pronunciation_vocab_size"] * sound + config["shape_vocab_size"] * look
    inputs = width + sound * bool(config.get("enable_pronunciation", True))
    inputs += look * bool(config.get("enable_shape", True))
    joined = linear(shape["learned_positions"], inputs, width) if config.get("concat_input", True) else []
    return added(shape, joined, others)


def _roc_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    if config.get("is_decoder"):
        yield "is_decoder", "encoders as decoders"


def _xmod(config: Config) -> Shape:
    """Narrow feed-forwards behind those of the layers, for each language (arXiv:2205.06266); a text has one."""
    shape, width, times = bert(config, 2), config["hidden_size"], config["num_hidden_layers"]
    narrow, tongues = width // config.get("adapter_reduction_factor", 2), len(config["languages"])
    products = feeds(min(512, shape["learned_positions"]), width, narrow, times=times)
    others = (tongues - 1) * times * (2 * width * narrow + width + narrow)
    others += 2 * times * width * bool(config.get("adapter_layer_norm"))
    return added(shape, products, others)


def _xmod_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    tongues = config.get("languages")
    if not isinstance(tongues, list) or not tongues or len({*map(str, tongues)}) != len(tongues):
        yield "languages", "models of no language, or of one twice"
    for key in ("is_decoder", "pre_norm"):
        if config.get(key):
            yield key, "decoders, or norms ahead of the layers, of this type"


def _markup(config: Config) -> Shape:
    """Where words stand in a document that is marked up (arXiv:2110.08518): a table for each level, two matrices."""
    shape, width = _headless(config), config["hidden_size"]
    deep, unit = config.get("max_depth", 50), config.get("xpath_unit_hidden_size", 32)
    rows = config.get("max_xpath_tag_unit_embeddings", 256)
    rows += config.get("max_xpath_subs_unit_embeddings", 1024)
    # One more matrix of the same size takes part in nothing.
    others = deep * rows * unit + width * (deep * unit + 1)
    return added(shape, linear(shape["learned_positions"], deep * unit, 4 * width, width), others)


def _canine(config: Config) -> Shape:
    """Characters by hashes; a layer on either side sees them, the others see a few as one (arXiv:2103.06874)."""
    width, ffn, rows = config["hidden_size"], config["intermediate_size"], config["num_hash_buckets"]
    read, rate = config["max_position_embeddings"], config["downsampling_rate"]
    tokens, near = max(1, read // rate), min(read, config.get("local_transformer_stride", 128))
    if width % config["num_hash_functions"]:
        raise ValueError("num_hash_functions")
    products = [
        *attention(read, width, seen=near, times=2),
        *feeds(read, width, ffn, times=2),
        *linear(tokens, rate * width, width),
        *linear(read, 2 * config["upsampling_kernel_size"] * width, width),
    ]
    # Positions and types of characters, norms of the embedding, of both layers and of both convolutions.
    others = (rows + config.get("type_vocab_size", 16)) * width + (2 + 2 * 4 + 2 * 2) * width
    shape = {**_headless({**config, "vocab_size": rows}), "learned_positions": 0, "token_types": 0}
    return added({**shape, "embedding_norm": False, "sequence_length": tokens}, products, others)


def _headless(config: Config) -> Shape:
    """BERT as it is ahead of other heads than one for tokens."""
    gone = {"head_transform": False, "head_bias": False, "tied_embeddings": False, "labels": 0}
    return {**bert(config, 2), **gone}


def _squeezebert(config: Config) -> Shape:
    """Matrices in groups, each of which sees a part of a token (arXiv:2006.11316); the pooler is always there."""
    width, ffn = config["hidden_size"], config["intermediate_size"]
    names = ("q_groups", "k_groups", "v_groups", "post_attention_groups")
    ways = [config.get(key, usual) for key, usual in zip(names, (4, 4, 4, 1), strict=True)]
    groups = config.get("intermediate_groups", 4)
    narrow = ffn // groups
    shape = bert({**config, "intermediate_size": narrow}, 2)
    projections = tuple((width // each, width, "columns") for each in ways)
    return {
        **shape,
        "projections": (*projections[:-1], (*projections[-1][:2], "rows")),
        **{"attention_other": ffn - narrow, "other_parameters": width * (width + 1)},
    }


def _squeezebert_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    yield from other_width(config)
    if config.get("intermediate_groups", 4) != config.get("output_groups", 4):
        yield "output_groups", "feed-forwards of several numbers of groups"


def _convbert(config: Config) -> Shape:
    """Half of the heads give way to convolutions whose kernels follow from the tokens (arXiv:2008.02496)."""
    width, size = config["hidden_size"], config.get("conv_kernel_size", 9)
    heads = max(1, config["num_attention_heads"] // config.get("head_ratio", 2))
    head = width // heads // 2
    inner = heads * head
    shape = {**bert(config, 2), "heads": heads, "head_dim": head}
    projections = (
        *5 * ((width, inner, "columns"),),
        (inner, heads * size, "nothing"),
        (width, width, "rows"),
    )
    own = 5 * inner + heads * size + width * size
    return {**shape, "qkv_bias": False, "projections": projections, "attention_other": own}


def _convbert_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    yield from other_width(config)
    if config.get("num_groups", 1) != 1:
        yield "num_groups", "feed-forwards in groups"


def _mobilebert(config: Config) -> Shape:
    """Layers that are narrow inside, with several feed-forwards (arXiv:2004.02984)."""
    width, inner, ffn = config["hidden_size"], config["intra_bottleneck_size"], config["intermediate_size"]
    narrow, times = config["embedding_size"], config["num_feedforward_networks"]
    shape = bert(config, 2)
    asked = ((width, inner, "nothing"),) * (1 + bool(config["key_query_shared_bottleneck"]))
    values = inner if config["use_bottleneck_attention"] else width
    projections = (
        *asked,
        *((inner, inner, "columns"), (inner, inner, "columns"), (values, inner, "columns")),
        *times * ((inner, ffn, "nothing"), (ffn, inner, "nothing")),
        (inner, inner, "nothing"),
        (inner, width, "rows"),
    )
    biases = sum(outputs for _, outputs, _ in projections)
    # Norms of each step but the last, which is as wide as the model.
    norms = 2 * inner * (len(asked) + 1 + times)
    tables = ((3 if config.get("trigram_input", True) else 1) * narrow + 1) * width - narrow * width
    return {
        **shape,
        **{"head_dim": inner // config["num_attention_heads"], "feed_forward": "none", "layer_norms": 1},
        **{"qkv_bias": False, "output_bias": False, "projections": projections, "embedding_width": narrow},
        **{"attention_other": biases + norms, "other_parameters": tables + far_outputs(config)},
    }


def _mobilebert_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    if not config.get("use_bottleneck", True):
        yield "use_bottleneck", "layers without a narrow inside"
    if config.get("embedding_size") == config.get("hidden_size"):
        yield "embedding_size", "embeddings as wide as the layers of this type"
    if config.get("true_hidden_size") not in (None, config.get("intra_bottleneck_size")):
        yield "true_hidden_size", "another width than that inside"


def _summed_up(config: Config) -> int:
    """The pooler of MobileBERT, which may have no matrix."""
    width = int(config["hidden_size"])
    return width * (width + 1) if config.get("classifier_activation", True) else 0


def _vilt_unlike(config: Config) -> Iterator[tuple[str, str]]:
    names = config.get("architectures")
    if isinstance(names, list) and any(str(name).endswith("ForMaskedLM") for name in names):
        yield "architectures", "masked words of this type"


def _vilt(config: Config) -> Shape:
    """Words and patches in the same layers (arXiv:2102.03334)."""
    shape, width = bert(config, 2), config["hidden_size"]
    patches = patches_of(config)
    inputs = patch_of(config)
    rows = shape["learned_positions"]
    # Without a row of the table for each patch: it has one of its own.
    tables = (rows + config.get("modality_type_vocab_size", 2) + 1 + patches + 1) * width
    shape |= {"learned_positions": 0, "final_norm": True, "other_parameters": tables, "norm": "layer"}
    shape |= {"qkv_bias": bool(config.get("qkv_bias", True)), "sequence_length": rows + patches + 1}
    return added(shape, linear(patches, inputs, width))


def _reformer(config: Config) -> Shape:
    """Attention to chunks, of neighbours or of what hashes put side by side, whose queries are keys too
    (arXiv:2001.04451); outputs take both of two streams."""
    width, head, placed = (
        config["hidden_size"],
        config["attention_head_size"],
        config["max_position_embeddings"],
    )
    inner, rows = config["num_attention_heads"] * head, config["vocab_size"]
    axes = zip(config["axial_pos_shape"], config["axial_pos_embds_dim"], strict=True)
    axial = config.get("axial_pos_embds", True)
    back = (inner, width, "rows")
    of_kind: dict[str, Kind] = {}
    for name, matrices, rounds, sides, length in (
        ("local", 3, 1, ("local_num_chunks_before", "local_num_chunks_after"), "local_attn_chunk_length"),
        (
            *("lsh", 2, int(config.get("num_hashes", 1))),
            *(("lsh_num_chunks_before", "lsh_num_chunks_after"), "lsh_attn_chunk_length"),
        ),
    ):
        chunks = 1 + sum(config.get(side) or 0 for side in sides)
        seen = rounds * chunks * int(config.get(length) or 64)
        projections = (*matrices * ((width, inner, "columns"),), back)
        of_kind[name] = ("attention", "dense", (("projections", projections), ("window", min(seen, placed))))
    shape: Shape = {
        **{"kind": "decoder" if config.get("is_decoder") else "encoder", "hidden": width, "head_dim": head},
        **{"heads": config["num_attention_heads"], "ffn": config["feed_forward_size"], "vocab": rows},
        **{"qkv_bias": False, "output_bias": False, "head_bias": True, "tied_embeddings": False},
        "learned_positions": 0 if axial else placed,
        # Norm and outputs of the second stream, and a bias that transformers makes beside that of the outputs.
        "other_parameters": axial * sum(size * part for size, part in axes) + (2 + rows) * width + rows,
    }
    return in_blocks(shape, [of_kind[str(each)] for each in config["attn_layers"]])


def _reformer_unlike(config: Config) -> Iterator[tuple[str, str]]:
    if config.get("tie_word_embeddings"):
        yield "tie_word_embeddings", "tied embeddings of this type"
    kinds = config.get("attn_layers")
    strange = {str(each) for each in kinds} - {"local", "lsh"} if isinstance(kinds, list) else {"none"}
    if strange or not kinds:
        yield "attn_layers", "layers of other kinds than local and lsh"


def _reformer_contrary(config: Config) -> Iterator[tuple[str, str]]:
    names = [str(name) for name in config.get("architectures") or ()]
    decodes = bool(config.get("is_decoder"))
    for ending, wanted in (("ModelWithLMHead", True), ("ForMaskedLM", False)):
        if decodes != wanted and any(name.endswith(ending) for name in names):
            yield (
                "is_decoder",
                f"expected {str(wanted).lower()} of a Reformer{ending}, got {str(decodes).lower()}",
            )
    kinds, layers = config.get("attn_layers"), config.get("num_hidden_layers")
    if isinstance(kinds, list) and layers not in (None, len(kinds)):
        yield "num_hidden_layers", f"expected {len(kinds)}, as many as attn_layers, got {shown(layers)}"
    parts, width = config["axial_pos_embds_dim"], config["hidden_size"]
    if config.get("axial_pos_embds", True) and sum(parts) != width:
        yield "axial_pos_embds_dim", f"expected widths that add up to hidden_size {width}, got {shown(parts)}"


FUNNEL_LENGTH = 512
"""Tokens of a sequence, which later blocks of layers halve each."""


def _funnel(config: Config) -> Shape:
    """Blocks of layers, each for half the tokens of the one ahead of it, and a few layers for all of them again
    (arXiv:2006.03236); the layers of the first block are those of the model, with the last ones."""
    width, heads, head, ffn = (config[key] for key in ("d_model", "n_head", "d_head", "d_inner"))
    inner, (first, *further) = heads * head, config["block_sizes"]
    names = [str(name) for name in config.get("architectures") or ()]
    behind = 0 if any(name.endswith(_WITHOUT_DECODER) for name in names) else config["num_decoder_layers"]
    repeats = config.get("block_repeats") or [1] * (1 + len(further))
    # Biases of queries for words, distances and segments, a matrix of distances, vectors of segments.
    own, tokens = 5 * inner + width * inner, FUNNEL_LENGTH
    products: list[Shape] = []
    for depth, again in zip(further, repeats[1:], strict=True):
        tokens = max(1, tokens // 2)
        layer = [
            *linear(tokens, width, inner, bias=False, times=depth),
            *linear(tokens, width, 2 * inner, times=depth),
            *scores(tokens, inner, tokens, times=2 * depth),
            *linear(tokens, inner, width, times=depth),
            *feeds(tokens, width, ffn, times=depth),
        ]
        products += layer
        # The same weights once more.
        products += [
            {**each, "bias": False, "weights": False, "times": (again - 1) * depth} for each in layer
        ]
    shape: Shape = {
        **{"kind": "encoder", "layers": first + behind, "hidden": width, "heads": heads, "head_dim": head},
        **{"ffn": ffn, "vocab": config["vocab_size"], "key_bias": False, "embedding_norm": True},
        **{"final_norm": False, "head_bias": True, "attention_other": own},
        "sequence_length": FUNNEL_LENGTH,
    }
    return added(shape, products, sum(further) * (own + 4 * width))


_WITHOUT_DECODER = ("FunnelBaseModel", "ForSequenceClassification", "ForMultipleChoice")
"""Classes that have no layers behind the last block."""


def _funnel_unlike(config: Config) -> Iterator[tuple[str, str]]:
    yield from _untied(config)
    sizes, repeats = config.get("block_sizes"), config.get("block_repeats")
    for key, given in (("block_sizes", sizes), ("block_repeats", repeats or [1])):
        if not (isinstance(given, list) and given and all(type(each) is int and each > 0 for each in given)):
            yield key, "blocks without whole numbers"
            return
    if repeats and (len(repeats) != len(sizes or ()) or repeats[0] != 1):
        yield "block_repeats", "first blocks that are repeated"


def _funnel_contrary(config: Config) -> Iterator[tuple[str, str]]:
    sizes, layers = config.get("block_sizes"), config.get("num_hidden_layers")
    if isinstance(sizes, list) and layers not in (None, sum(sizes)):
        yield "num_hidden_layers", f"expected {sum(sizes)}, the sum of block_sizes, got {shown(layers)}"


def _perceiver(config: Config) -> Shape:
    """Latent tokens that attend to bytes once, then to each other, and a query for each byte that attends to them
    (arXiv:2107.14795). Its layers are those of the latent tokens."""
    width, read, placed = config["d_latents"], config["d_model"], config["max_position_embeddings"]
    latents, heads = config["num_latents"], config["num_self_attention_heads"]
    shaped = width if config.get("cross_attention_shape_for_attention", "kv") == "q" else read
    keys = config.get("qk_channels") or width
    values = config.get("v_channels") or keys
    if values != width or keys % heads or values % heads:
        raise ValueError("v_channels")
    crossed = config.get("qk_channels") or shaped
    made = config.get("v_channels") or crossed
    wider = config.get("cross_attention_widening_factor", 1) * width
    products = [
        *linear(latents, width, crossed),
        *linear(placed, read, made),
        *linear(latents, made, width),
        *scores(latents, (crossed + made) // 2, placed),
        *feeds(latents, width, wider),
        *linear(placed, read, BYTE_QUERY),
        *linear(latents, width, BYTE_QUERY),
        *linear(latents, width, read),
        *scores(placed, (BYTE_QUERY + read) // 2, latents),
        *linear(placed, read, read),
        *feeds(placed, read, read),
        {"inputs": read, "outputs": config["vocab_size"], "tokens": placed, "times": 1, "weights": False},
    ]
    tables = (config["vocab_size"] + 2 * placed) * read + latents * width + config["vocab_size"]
    norms = 2 * 2 * width + 2 * read + 2 * 2 * read + 2 * width
    block, ffn = config["num_blocks"], int(config.get("self_attention_widening_factor", 1) * width)
    layers = config["num_self_attends_per_block"]
    shape: Shape = {
        **{"kind": "encoder", "layers": layers, "hidden": width, "heads": heads, "head_dim": keys // heads},
        **{"value_dim": values // heads, "ffn": ffn, "vocab": 1, "labels": 0, "tied_embeddings": False},
        # Keys of the bytes.
        "front": ({"inputs": read, "outputs": crossed, "tokens": placed},),
        **{"final_norm": False, "sequence_length": latents},
    }
    if block > 1:
        shape["block"] = ({"layers": block, "shared": True},)
    return added(shape, products, tables + norms)


BYTE_QUERY = 8 * 32
"""Width of the queries of bytes, which no configuration says."""


ENCODERS: dict[str, ModelType] = {
    "funnel": ModelType(
        _funnel,
        ("d_model", "n_head", "d_head", "d_inner", "num_decoder_layers", "vocab_size"),
        _funnel_unlike,
        contrary=_funnel_contrary,
    ),
    "perceiver": ModelType(
        _perceiver,
        ("d_latents", "d_model", "num_latents", "num_self_attends_per_block", "max_position_embeddings"),
    ),
    "reformer": ModelType(
        _reformer,
        (
            *("hidden_size", "num_attention_heads", "attention_head_size", "feed_forward_size"),
            *("max_position_embeddings", "vocab_size"),
        ),
        _reformer_unlike,
        contrary=_reformer_contrary,
    ),
    "convbert": ModelType(_convbert, (*COMMON, "max_position_embeddings"), _convbert_unlike),
    "canine": ModelType(_canine, (*COMMON[:-1], "max_position_embeddings")),
    "jina_embeddings_v3": ModelType(_jina, (*COMMON, "max_position_embeddings"), _untied),
    "markuplm": ModelType(_markup, (*COMMON, "max_position_embeddings")),
    "mra": ModelType(_mra, (*COMMON, "max_position_embeddings"), _untied),
    "roc_bert": ModelType(_roc, (*COMMON, "max_position_embeddings"), _roc_unlike),
    "xmod": ModelType(_xmod, (*COMMON, "max_position_embeddings"), _xmod_unlike),
    "yoso": ModelType(_yoso, (*COMMON, "max_position_embeddings"), _untied),
    "lilt": ModelType(_lilt, (*COMMON, "max_position_embeddings"), _untied),
    "mobilebert": ModelType(_mobilebert, (*COMMON, "max_position_embeddings"), _mobilebert_unlike),
    "rembert": ModelType(_rembert, (*COMMON, "max_position_embeddings"), _rembert_unlike),
    "splinter": ModelType(_headless, (*COMMON, "max_position_embeddings"), _untied),
    "squeezebert": ModelType(_squeezebert, (*COMMON, "max_position_embeddings"), _squeezebert_unlike),
    "vilt": ModelType(_vilt, (*COMMON, "max_position_embeddings"), _vilt_unlike),
    "fnet": ModelType(_fnet, (*COMMON[:2], *COMMON[3:], "max_position_embeddings"), _untied),
    "visual_bert": ModelType(_visual, (*COMMON, "max_position_embeddings"), _untied),
    "luke": ModelType(_luke, (*COMMON, "max_position_embeddings", "entity_vocab_size"), _untied),
    "nystromformer": ModelType(_nystromformer, (*COMMON, "max_position_embeddings"), _untied),
    "albert": ModelType(_albert, (*COMMON, "max_position_embeddings"), _albert_unlike),
    "deberta": ModelType(_deberta, (*COMMON, "max_position_embeddings"), _deberta_unlike),
    "deberta-v2": ModelType(_deberta, (*COMMON, "max_position_embeddings"), _deberta_unlike),
    "dpr": ModelType(_dpr, (*COMMON, "max_position_embeddings")),
    "esm": ModelType(_esm, (*COMMON, "max_position_embeddings"), _esm_unlike),
    "flaubert": ModelType(_xlm, ("n_layers", "n_heads"), _xlm_unlike),
    "layoutlmv3": ModelType(_layoutlmv3, (*COMMON, "max_position_embeddings")),
    "xlm": ModelType(_xlm, ("n_layers", "n_heads"), _xlm_unlike),
    "xlnet": ModelType(_xlnet, ("d_model", "n_layer", "n_head", "vocab_size"), _xlnet_unlike),
}
"""Text encoders, by ``model_type``."""


def _if_many(config: Config) -> int:
    """A square layer ahead of ten labels and more."""
    width = int(config["hidden_size"])
    return width * (width + 1) if labels_of(config) >= 10 else 0


def _order(config: Config) -> int:
    """What says whether two texts stand in their order."""
    return labels_of(config) * (int(config["hidden_size"]) + 1)


_SUMMED = {
    "Model": Head(0),
    "ForSequenceClassification": Head("labels", pooled=True),
    "ForTokenClassification": Head("labels"),
    "ForQuestionAnsweringSimple": Head("labels"),
}
_AND_POOLER = {**PLAIN, "Model": Head(0, dense=1)}
ENCODER_HEADS: dict[str, dict[str, Head]] = {
    "canine": {
        "Model": Head(0, dense=1),
        **SEQUENCES,
        **CHOICES,
        # The pooler is there all the same.
        **{name: Head("labels", dense=1) for name in EACH},
    },
    **dict.fromkeys(("jina_embeddings_v3", "markuplm", "roc_bert", "xmod"), _AND_POOLER),
    **dict.fromkeys(("mra", "yoso"), PLAIN),
    "funnel": {
        "Model": Head(0),
        "ForPreTraining": Head(1, dense=1),
        **SEQUENCES,
        **CHOICES,
        **EACH,
    },
    "perceiver": {"ForMaskedLM": Head("shape")},
    "reformer": {
        "Model": Head(0),
        "ModelWithLMHead": Head("tokens"),
        # A matrix takes both streams.
        "ForSequenceClassification": Head(
            "labels", pooled=True, more=lambda config: (2 * config["hidden_size"] + 1) * config["hidden_size"]
        ),
    },
    "convbert": {"Model": Head(0), **SEQUENCES, **EACH},
    "lilt": {"Model": Head(0, dense=1), **SEQUENCES, **EACH},
    "mobilebert": {
        "Model": Head(0, more=_summed_up),
        "ForPreTraining": Head("tokens", pair=True, more=_summed_up),
        "ForSequenceClassification": Head("labels", pooled=True, more=_summed_up),
        "ForNextSentencePrediction": Head(2, pooled=True, more=_summed_up),
        **EACH,
    },
    "rembert": {"Model": Head(0, dense=1), **SEQUENCES, **EACH, **CHOICES},
    "splinter": {
        "Model": Head(0),
        **{
            name: Head(
                0, dense=4, more=lambda config: 2 * config["hidden_size"] * (config["hidden_size"] + 4)
            )
            for name in ("ForPreTraining", "ForQuestionAnswering")
        },
    },
    "squeezebert": {
        "Model": Head(0),
        **EACH,
        "ForSequenceClassification": Head("labels", pooled=True),
        "ForMultipleChoice": Head(1, pooled=True),
    },
    "vilt": {
        "Model": Head(0, dense=1),
        "ForImageAndTextRetrieval": Head(1, pooled=True, dense=1),
        "ForQuestionAnswering": Head(
            "labels",
            pooled=True,
            dense=3,
            more=lambda config: config["hidden_size"] * (4 + labels_of(config)),
        ),
    },
    "albert": {**PLAIN, "Model": Head(0, dense=1), "ForPreTraining": Head("tokens", dense=1, more=_order)},
    "deberta": PLAIN,
    "deberta-v2": PLAIN,
    "dpr": {"ContextEncoder": Head("shape"), "QuestionEncoder": Head("shape")},
    "esm": {"Model": Head(0, dense=1), **SEQUENCES, "ForTokenClassification": Head("labels")},
    "flaubert": _SUMMED,
    "layoutlmv3": {
        "Model": Head(0),
        **SEQUENCES,
        "ForTokenClassification": Head("labels", more=_if_many),
        "ForQuestionAnswering": Head("labels", dense=1),
    },
    "xlm": _SUMMED,
    "xlnet": {
        **_SUMMED,
        "ForSequenceClassification": Head("labels", pooled=True, dense=1),
        **CHOICES,
    },
}
"""Heads of these, by the end of an architecture's name."""
