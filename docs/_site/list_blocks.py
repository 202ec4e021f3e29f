"""Refuse Markdown that a forge reads as part of a list item and the site does not.

Python-Markdown wants blocks inside an item (tables, code, paragraphs, lists) indented by four columns, which forges
accept too; and a blank line between a paragraph and a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_FENCE = re.compile(r"^\s*(```+|~~~+)")
_ITEM = re.compile(r"(?:[*+-]|\d+\.) ")
_NO_PARAGRAPH = ("#", "<", "|")
"""What a line begins with that a list may follow at once: a heading, HTML, the row of a table."""
_log = get_plugin_logger("list_blocks")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Warn of each line that the two read differently."""
    for number, problem in misread(markdown):
        _log.warning(f"{page.file.src_uri}:{number}: {problem}")


def misread(markdown: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that is read differently, and what to do about it."""
    fence = before = first = ""
    for number, line in enumerate(markdown.splitlines(), 1):
        text = line.lstrip()
        mark = _FENCE.match(line)
        if text and not fence:
            indent = len(line) - len(text)
            if not before.strip() or before.startswith("#"):
                first = line
            is_block = first is line or mark or _ITEM.match(text)
            if is_block and 0 < indent < 4:
                yield number, f"indent what belongs to the item by 4 columns, not by {indent}"
            follows_item = _ITEM.match(first) or first.startswith(_NO_PARAGRAPH)
            if _ITEM.match(line) and not follows_item:
                yield number, "put a blank line before the list or its next item"
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = first = ""
        before = line
