"""`shardctl init`: a small tested project in a new folder, from a template."""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import Final

import click

from broadsheet.cli.command import make_command
from broadsheet.cli.new_project import (
    files_of,
    require_empty,
    require_name,
    summaries,
    template_names,
)
from broadsheet.cli.options import argument, command_options, option
from broadsheet.cli.output.messages import say

_HELP: Final = """Make a small tested project in a new folder.

    The folder NAME gets an application, specs of its journals and shards, a test that passes, and a README with the
    commands to go on with. Nothing outside of it is changed.

    \b
    Templates:
    TEMPLATES

    \b
    Examples:
      shardctl init hello
      shardctl init visits --template sqlite
    """


@command_options
class _InitOptions:
    name: str = argument()
    template: str = option(
        "Where to begin.", "-t", type=click.Choice(template_names()), default="counter"
    )
    directory: Path | None = option(
        "Folder of the project, in place of NAME; it may exist if it is empty.",
        type=click.Path(path_type=Path),
    )


def _make_project(options: _InitOptions) -> None:
    target = Path(options.name) if options.directory is None else options.directory
    require_name(options.name)
    require_empty(target)
    for path, text in files_of(options.template, options.name).items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text, encoding="utf-8")
        click.echo(str(target / path))
    say(f"\nnext:\n  cd {target}\n  shardctl dev")


init_project = make_command(
    "init", _InitOptions, _make_project, help=cleandoc(_HELP).replace("TEMPLATES", summaries())
)
