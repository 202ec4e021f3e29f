"""A command group with lazy imports: an invocation imports only the modules of its command."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A command group that imports some of its commands when they are named. Help shows all, so it imports all."""

    def __init__(self, *args: Any, places: Mapping[str, str], **kwargs: Any) -> None:
        """Make a group.

        Args:
            *args: As of `click.Group`.
            places: By name of the command, `module:attribute`.
            **kwargs: As of `click.Group`.
        """
        super().__init__(*args, **kwargs)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *self._places})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported if needed; None if there is none of that name."""
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{place} is no command"
        return command
