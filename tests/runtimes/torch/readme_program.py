"""What each of two ranks runs: the tensor parallelism of a folder's README, on a Llama of Hugging Face.

``main`` gets files with the code as the README shows it; each has to give the loss and gradients of one process, with
products in fp8 about.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from transformers import LlamaConfig, LlamaForCausalLM

from planner.runtimes.torch import example_tensor
from planner.training import example_fp8
from planner.training.example_fp8 import Fp8Linear

LENGTH = 8
ATOL = 1e-5
COARSE = 2e-2
"""Of a loss with products in fp8."""


def plain(tensor: Any) -> torch.Tensor:
    """A tensor in one piece."""
    whole: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole


def losses(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Mean loss of sequences, with gradients in the model's parameters."""
    logits = model(tokens, position_ids=torch.arange(tokens.shape[1])[None]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    return plain(loss.detach())


def main() -> None:
    """Ends with an error where anything differs."""
    torch.distributed.init_process_group("gloo")
    # As in a folder, where they stand beside the script.
    sys.modules |= {"example_tensor": example_tensor, "example_fp8": example_fp8}
    config = LlamaConfig(
        **{"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64},
        **{"num_hidden_layers": 2, "vocab_size": 64},
    )
    for path in sys.argv[1:]:
        torch.manual_seed(0)
        alone = LlamaForCausalLM(config)
        model, tokens = copy.deepcopy(alone), torch.randint(0, 64, (2, LENGTH))
        layout = SimpleNamespace(mesh={"tensor": init_device_mesh("cpu", (2,))})
        text, known = Path(path).read_text(), {"model": model, "layout": layout}
        exec(compile(text, path, "exec"), known)
        in_fp8 = "use_fp8" in text
        assert any(isinstance(part, Fp8Linear) for part in model.modules()) == in_fp8
        with loss_parallel():
            found = losses(model, tokens)
        torch.testing.assert_close(found, losses(alone, tokens), atol=0, rtol=COARSE if in_fp8 else ATOL)
        if in_fp8:
            assert all(plain(each.grad).isfinite().all() for each in model.parameters())
            continue
        wanted = dict(alone.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(plain(parameter.grad), wanted[name].grad, atol=ATOL, rtol=0)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
