"""Hooks of mkdocs for ``make site``: README.md is the first page, and pages outside docs/ are part of the site too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages from the root of the repository, and where they stand."""
PLAIN = re.compile(
    r"\[([^\]]+)\]\((?:LICENSE|cluster_specs|model_specs|job_specs|(?:docs/)?example\.ipynb)\)"
)
"""Links to what is no page: their text stays."""


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading as in the repository's own view, for which links are written."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors like those of the repository."""
    config.mdx_configs["toc"] = {"slugify": slug}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the root."""
    for name, place in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(
            File.generated(config, place, content=re.sub(r"\]\(docs/", "](", PLAIN.sub(r"\1", text)))
        )
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of docs/, to where their pages stand."""
    return PLAIN.sub(r"\1", markdown.replace("](../README.md", "](index.md"))
