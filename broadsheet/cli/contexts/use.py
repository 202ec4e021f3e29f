"""`shardctl contexts use`: the context that is used where none is named."""

from __future__ import annotations

from broadsheet.cli.command import plain_command
from broadsheet.cli.context_file import (
    complete_contexts,
    context_values,
    contexts_path,
    read_contexts,
    with_current,
)
from broadsheet.cli.options import argument, command_options
from broadsheet.cli.output.messages import say
from broadsheet.cli.text_files import read_text
from broadsheet.runtime.errors import ValidationError


@command_options
class _UseOptions:
    name: str = argument(shell_complete=complete_contexts)


@plain_command("use", _UseOptions)
def use_context(options: _UseOptions) -> None:
    """Make NAME the current context.

    \b
    Examples:
      shardctl contexts use test
    """
    path = contexts_path()
    context_values(read_contexts(), options.name)
    text, _ = read_text(path, option="BROADSHEET_CONFIG")
    try:
        path.write_text(with_current(text, options.name), encoding="utf-8")
    except OSError as error:
        raise ValidationError(str(path), f"cannot be written: {error.strerror}") from error
    say(f"the current context is {options.name}")
