"""A command group with lazy imports: an invocation imports only the modules of its command, and help none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem


class ExitStatus(IntEnum):
    """Exit status of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    """An option or argument is wrong; click's own."""
    NOT_FOUND = 3
    """What was named, or selected, does not exist."""
    TIMEOUT = 4
    """The time given was over, or a server did not answer within it."""
    CONFLICT = 5
    """Somebody else changed it in between; nothing was changed."""
    DIFFERENT = 6
    """`diff` found differences."""


EXIT_STATUSES = "Exit status: " + ", ".join(
    f"{status.value} {status.name.lower().replace('_', ' ')}" for status in ExitStatus
)
"""Last line of every help."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is imported when it is named."""

    module: str
    """Below `broadsheet.cli`; it has one command of the name that the group gives it."""
    summary: str
    """The first sentence of its help, which the group's help shows. A test compares the two."""

    def load(self, name: str) -> click.Command:
        """Return the command of a name."""
        found = vars(import_module(f"broadsheet.cli.{self.module}")).values()
        (command,) = (
            each for each in found if isinstance(each, click.Command) and each.name == name
        )
        command.epilog = command.epilog or EXIT_STATUSES
        return command


class LazyGroup(click.Group):
    """A command group that imports a command when it is named, and none to print its own help."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        """Make a group.

        Args:
            *args: As of `click.Group`.
            lazy: Commands that are imported when they are needed, by name.
            **kwargs: As of `click.Group`.
        """
        super().__init__(*args, **{"epilog": EXIT_STATUSES, **kwargs})
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported if needed; None if there is none of that name."""
        lazy = self.lazy.get(cmd_name)
        return super().get_command(ctx, cmd_name) if lazy is None else lazy.load(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with its summary."""
        rows = []
        for name in self.list_commands(ctx):
            lazy = self.lazy.get(name)
            command = None if lazy is not None else super().get_command(ctx, name)
            summary = command.get_short_help_str(limit=100) if command is not None else ""
            rows.append((name, lazy.summary if lazy is not None else summary))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, and options; no command is imported for that."""
        found = [
            CompletionItem(name, help=self.lazy[name].summary)
            for name in self.list_commands(ctx)
            if name in self.lazy and name.startswith(incomplete)
        ]
        groups = [
            CompletionItem(name, help=command.get_short_help_str())
            for name, command in self.commands.items()
            if name.startswith(incomplete)
        ]
        # As of a command that is no group: its options.
        return [*found, *groups, *click.Command.shell_complete(self, ctx, incomplete)]
