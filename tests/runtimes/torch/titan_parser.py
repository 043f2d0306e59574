"""Runs torchtitan's own parser on argument lists, without a GPU.

Usage: ``titan_parser.py < cases.json > answers.json``; a case is a list of words.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from typing import Any


def parsed(words: list[str]) -> dict[str, Any]:
    """What torchtitan understood."""
    found = importlib.import_module("torchtitan.config.manager").ConfigManager().parse_args(words)
    parallel, training, model = found.parallelism, found.training, found.model_spec.model
    layer = model.layers[0]
    policy = found.activation_checkpoint
    return {
        "replicate": parallel.data_parallel_replicate_degree,
        "shard": parallel.data_parallel_shard_degree,
        "reshard": parallel.fsdp_reshard_after_forward,
        "tp": parallel.tensor_parallel_degree,
        "sequence_parallel": parallel.enable_sequence_parallel,
        "pp": parallel.pipeline_parallel_degree,
        "micro_batch": parallel.pipeline_parallel_microbatch_size,
        "modules": parallel.module_fqns_per_model_part,
        "local_batch": training.local_batch_size,
        "global_batch": training.global_batch_size,
        "sequence_length": training.seq_len,
        "steps": training.steps,
        "working": training.mixed_precision_param,
        "offload": training.enable_cpu_offload,
        "compile": found.compile.enable,
        "recompute": "none" if policy is None else type(policy).__qualname__.split("AC.")[0].lower(),
        "layers": len(model.layers),
        "hidden": model.dim,
        "vocab": model.vocab_size,
        "heads": layer.attention.n_heads,
        "kv_heads": layer.attention.n_kv_heads,
        "ffn": layer.feed_forward.w1.out_features,
        "tied": bool(getattr(model, "enable_weight_tying", False)),
    }


def main() -> None:
    """Answer each case."""
    answers: list[dict[str, Any]] = []
    for words in json.load(sys.stdin):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                answers.append({"ok": parsed(words)})
        except (Exception, SystemExit) as error:
            answers.append({"error": f"{error} {said.getvalue()}"})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
