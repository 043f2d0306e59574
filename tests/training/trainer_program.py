"""What each rank runs for many emitted folders in one start: Hugging Face's Trainer as a user's own script has it.

``ranks.run`` has FILE as its argument, which lists the runs. Each leaves its final weights and what Trainer logged.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import deepspeed
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_model
from transformers import (
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

SEED = 0
TOKENS = 16
VOCABULARY = 64
ALONE = 4
"""A sequence that is a micro-batch."""


def main() -> None:
    """Train every run in turn."""
    # DeepSpeed would compile an optional collective for minutes before the first step.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    for run in json.loads(Path(sys.argv[1]).read_text()):
        train(Path(run["folder"]), Path(run["output"]), run)
    torch.distributed.barrier()
    # DeepSpeed's exit handlers would wait for ranks that have gone.
    os._exit(0)


def train(folder: Path, output: Path, run: dict[str, Any]) -> None:
    """Train as ``run`` says and leave this rank's weights, and the first rank's log, in ``output``."""
    sys.path.insert(0, str(folder))  # as of a script in it
    plan = runtime_of(folder).load()
    data = sequences(run["length"], run["masked"])
    if run["packed"]:
        data = sys.modules["hetplan_runtime"].packed(documents(), TOKENS)[: run["length"]]
    arguments = TrainingArguments(
        **plan.trainer_arguments(),
        output_dir=str(output),
        use_cpu=True,
        ddp_backend="gloo",
        seed=SEED,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        per_device_eval_batch_size=2,
        **run["arguments"],
    )
    trainer = plan.trainer_class(Trainer, run["shuffle"])(
        model=adapted(**run["adapters"]) if run["adapters"] else network(run["dropout"]),
        args=arguments,
        train_dataset=data,
        eval_dataset=data[: run["evaluated"]],
        compute_loss_func=own_loss if run["own_loss"] else None,
    )
    trainer.train(resume_from_checkpoint=run["resume"])
    output.mkdir(exist_ok=True)
    torch.save(weights(trainer.model_wrapped.module), output / f"weights-{plan.rank}.pt")
    (output / f"log-{plan.rank}.json").write_text(json.dumps(trainer.state.log_history))
    trainer.model_wrapped.destroy()
    del trainer
    gc.collect()


def runtime_of(folder: Path) -> Any:
    """The folder's own ``hetplan_runtime.py``."""
    spec = importlib.util.spec_from_file_location("hetplan_runtime", folder / "hetplan_runtime.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["hetplan_runtime"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def network(dropout: float) -> Any:
    """A tiny GPT-2, the same wherever it is made; gradients of its wide weights are above the limit."""
    set_seed(SEED)
    shape = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(shape)


def adapted(adapters: dict[str, Any], bits: dict[str, Any] | None) -> Any:
    """A tiny Llama with peft's adapters, the same wherever it is made; they change its answers from the first step.

    ``bits``: of bitsandbytes, whose linear layers the base then has, of blocks of 64 elements.
    """
    set_seed(SEED)
    width = 32 if bits is None else 64
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=TOKENS,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    base = LlamaForCausalLM(shape)
    if bits is not None:
        with tempfile.TemporaryDirectory() as folder:
            base.config.save_pretrained(folder)
            save_model(base, f"{folder}/model.safetensors", metadata={"format": "pt"})
            coded = BitsAndBytesConfig(**{**bits, "bnb_4bit_compute_dtype": torch.float32})
            base = LlamaForCausalLM.from_pretrained(folder, quantization_config=coded)
    return get_peft_model(base, LoraConfig(**adapters, init_lora_weights=False)).train()


def own_loss(outputs: Any, labels: Any, num_items_in_batch: int | None = None) -> Any:
    """What the model's own loss is, as a function of a user's."""
    assert num_items_in_batch is None
    return torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def sequences(count: int, masked: bool = False) -> list[dict[str, Any]]:
    """Random tokens, the same for every count, with a column that Trainer has to leave out.

    ``masked``: as in fine-tuning, labels begin late, and one micro-batch of the first step has none.
    """
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(VOCABULARY, (count, TOKENS), generator=generator)
    labels = tokens.clone()
    for index in range(count if masked else 0):
        labels[index, : TOKENS if index == ALONE else index * 5 % TOKENS] = -100
    rows = zip(tokens, labels, strict=True)
    return [{"input_ids": row, "labels": mine, "not_for_the_model": 0} for row, mine in rows]


def documents() -> list[dict[str, list[int]]]:
    """Enough for all runs, of two tokens to a row and a half."""
    generator = torch.Generator().manual_seed(SEED)
    lengths = torch.randint(2, TOKENS * 3 // 2, (60,), generator=generator).tolist()
    return [
        {"input_ids": torch.randint(VOCABULARY, (each,), generator=generator).tolist()} for each in lengths
    ]


def weights(module: Any) -> dict[str, Any]:
    """This rank's parameters, whole also where ZeRO 3 keeps a part of each."""
    with deepspeed.zero.GatheredParameters(list(module.parameters())):
        return {name: value.detach().float().clone() for name, value in module.named_parameters()}


if __name__ == "__main__":
    main()
