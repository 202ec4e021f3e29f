"""A navigation entry that ends in a slash becomes every page of that folder, the index first and the others by name."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Expand the navigation when all pages are known, those of earlier hooks too."""
    pages = sorted(files.documentation_pages(), key=lambda page: (page.name != "index", page.name))
    config.nav = expanded(config.nav, [page.src_uri for page in pages])
    return files


def expanded(entry: Any, pages: list[str]) -> Any:
    """Return a part of the navigation with the pages of its folders, in the order given."""
    if isinstance(entry, list):
        return [expanded(item, pages) for item in entry]
    if isinstance(entry, dict):
        return {title: expanded(item, pages) for title, item in entry.items()}
    if entry.endswith("/"):
        return [page for page in pages if page.startswith(entry)]
    return entry
