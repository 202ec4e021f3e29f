"""`shardctl contexts list`: the contexts of the configuration file."""

from __future__ import annotations

import os

import click

from broadsheet.cli.context_file import default_path, read_contexts
from broadsheet.cli.errors import errors_in_one_line
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table

CURRENT_MARK = "*"


@click.command("list")
def list_contexts() -> None:
    """List contexts; the current one is marked.

    \b
    Examples:
      shardctl contexts list
    """
    with errors_in_one_line():
        found = read_contexts()
    used = os.environ.get("BROADSHEET_CONTEXT") or found.current
    print_table(
        ["CURRENT", "NAME", "ADDRESS", "BROKER"],
        [
            [CURRENT_MARK if name == used else "", name, each.address, each.broker]
            for name, each in sorted(found.contexts.items())
        ],
    )
    if not found.contexts:
        say(f"there are no contexts in {default_path() or 'any file: this user has no home'}")
