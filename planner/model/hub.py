"""Models of the Hugging Face hub that are in its cache on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from planner.errors import SpecError

HUB = "hf://"
"""What the name of a model on the Hugging Face hub begins with: ``hf://org/name``."""


def in_cache(name: str) -> Path:
    """The ``config.json`` of ``hf://org/name`` in the local cache; nothing is asked of the network."""
    repository, _, revision = name.removeprefix(HUB).strip("/").partition("@")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", repository):
        raise SpecError.of(name, "expected hf://ORGANIZATION/NAME")
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        raise SpecError.of(name, "needs the package huggingface_hub", "pip install 'hetplan[hub]'") from None
    try:
        path = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    except HFValidationError:
        raise SpecError.of(name, "expected hf://ORGANIZATION/NAME") from None
    if isinstance(path, str):
        return Path(path)
    hint = f"with network: hf download {repository} config.json" + (
        f" --revision {revision}" if revision else ""
    )
    raise SpecError.of(
        name, "is not in the local cache of Hugging Face, where its config.json is looked for", hint
    )
