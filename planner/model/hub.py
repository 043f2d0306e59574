"""Models of the Hugging Face hub that are in its cache on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from planner.errors import SpecError

HUB = "hf://"
"""What the name of a model on the Hugging Face hub begins with: ``hf://org/name``."""


def of_hub(path: Path) -> bool:
    """True where a path is the name of a model on the hub."""
    return path.parts[:1] == (HUB.rstrip("/"),)


def as_named(path: Path) -> str | Path:
    """As the user wrote it: a path has lost one of the two slashes of ``hf://org/name``."""
    return HUB + "/".join(path.parts[1:]) if of_hub(path) else path


def repository_name(path: Path) -> str | None:
    """The name, without its organisation, of a model that is named as ``hf://org/name``, at whatever revision, or whose
    file is in the cache; None of another path."""
    parts = path.parts
    if of_hub(path):
        repository = "/".join(parts[1:]).partition("@")[0]
        return repository.rpartition("/")[2] or None
    kept = parts[-4] if len(parts) > 3 and parts[-3] == "snapshots" else ""
    return kept.rpartition("--")[2] if kept.startswith("models--") else None


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
