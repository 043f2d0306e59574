"""Texts of the user's on their way through FlagScale: OmegaConf first, then a shell script."""

from __future__ import annotations

import re

from planner.errors import EmitError

EXECUTED = ("$(", "`", '"', "'", "\\")
"""What the runner of commit da4935ec6 lets a node's shell run, or take for the end of a quoted text."""


def literal(text: str) -> str:
    """The text as it is to be written so that OmegaConf reads it back and resolves nothing in it."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)


def check_shell(name: str, value: str) -> None:
    """Raise EmitError for a variable that the runner's scripts would execute a part of."""
    bad = next((word for word in EXECUTED if word in value), None)
    if bad is not None:
        raise EmitError(
            f"flagscale: its scripts would have a shell interpret {bad} in {name}, which is {value!r}",
            hint="correct interface: or hca: in the cluster file",
        )
