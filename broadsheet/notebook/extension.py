"""Teaches IPython to show answers as tables: `%load_ext broadsheet.notebook`, or the first `ShardCluster`."""

from __future__ import annotations

import sys
from typing import Any

# `Any` in this module: IPython ships no types that a program without it could name.


def running_ipython() -> Any | None:
    """Return the IPython that runs this program; None outside of notebooks and its shells."""
    # Only imported if it is there already: a program that is none of its own must not pay for it.
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def is_kernel(ipython: Any | None) -> bool:
    """Report whether an IPython is a notebook's kernel, which has cells, and not a shell in a terminal."""
    return getattr(ipython, "kernel", None) is not None


def load_ipython_extension(ipython: Any) -> None:
    """Have IPython show listings of shards and members, plans and Stat as HTML. Idempotent.

    IPython calls it for `%load_ext broadsheet.notebook`. Formatters that the user has set stay.
    """
    from broadsheet.notebook.answers import FORMATTERS

    html = ipython.display_formatter.formatters["text/html"]
    for type_, formatter in FORMATTERS.items():
        if type_ not in html:
            html.for_type(type_, formatter)


def load_if_running() -> None:
    """Load the extension if this program runs in IPython."""
    if (ipython := running_ipython()) is not None:
        load_ipython_extension(ipython)
