"""Applies overrides to a recipe by Megatron Bridge's own code, without a GPU.

Usage: ``bridge_parser.py MEGATRON BRIDGE < cases.json > answers.json``; a case is a list of overrides. Packages that
need a GPU to install (Transformer Engine) and those of other models are stand-ins.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import sys
import types
from collections.abc import Sequence
from typing import Any

STAND_INS = (
    *(
        "transformer_engine",
        "modelopt",
        "wandb",
        "mlflow",
        "comet_ml",
        "flash_attn",
        "mamba_ssm",
        "causal_conv1d",
    ),
    *(
        "timm",
        "open_clip",
        "qwen_vl_utils",
        "diffusers",
        "peft",
        "nemo_run",
        "mistral_common",
        "fla",
        "flashinfer",
    ),
    "megatron.energon",
)
PRESENT = (
    "megatron.training.arguments",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.models.mamba",
)
"""Of Megatron, to be imported while there is no stand-in for Transformer Engine."""
ENGINE = ("megatron.core.extensions.transformer_engine", "megatron.core.tensor_parallel.inference_layers")


class _Names(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Name(metaclass=_Names):
    """Stands in for a type, a function or a decorator."""

    def __new__(cls, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def __call__(self, function: Any = None, *_: Any, **__: Any) -> Any:
        return function

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


class _StandIn(types.ModuleType):
    __version__ = "0.0.0"
    __path__ = ()  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """A stand-in for each package that is named."""
        if any(f"{name}.".startswith(f"{each}.") for each in STAND_INS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        """A module with every name."""
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def load(megatron: str, bridge: str) -> tuple[Any, Any]:
    """The recipe's function, and what applies overrides to it."""
    importlib.import_module("parser").prepare(megatron)
    for name in PRESENT:
        importlib.import_module(name)
    for name in ENGINE:
        sys.modules[name] = _StandIn(name)
    sys.meta_path.append(_Finder())
    folder = f"{bridge}/src/megatron"
    importlib.import_module("megatron").__path__.append(folder)
    for name in ("bridge", "bridge.recipes", "bridge.recipes.gpt", "bridge.recipes.gpt.h100"):
        # Their own __init__ would import every model.
        package = types.ModuleType(f"megatron.{name}")
        package.__path__ = [f"{folder}/{name.replace('.', '/')}"]
        sys.modules[f"megatron.{name}"] = package
    recipes = importlib.import_module("megatron.bridge.recipes.gpt.h100.vanilla_gpt")
    overriding = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    return recipes.vanilla_gpt_pretrain_1gpu_h100_bf16_config, overriding.process_config_with_overrides


def main() -> None:
    """Answer each case with the fields that it names."""
    logging.disable(logging.CRITICAL)
    recipe, process = load(*sys.argv[1:])
    answers: list[dict[str, Any]] = []
    for words in json.load(sys.stdin):
        try:
            made = process(recipe(), cli_overrides=words)
        except Exception as error:  # the caller shows it
            answers.append({"error": f"{type(error).__name__}: {error}"})
            continue
        found = {}
        for name in (word.split("=")[0] for word in words):
            value = made
            for part in name.split("."):
                value = getattr(value, part)
            found[name] = getattr(value, "__name__", value)
        answers.append({"ok": found})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
