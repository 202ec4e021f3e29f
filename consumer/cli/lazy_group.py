"""A group whose commands are imported when they are named: a call pays for the modules of its own command only."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Has commands that it imports, beside those that it was given. Help, which shows all, imports all."""

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
        """Return a command, imported if need be; None if there is none of that name."""
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{place} is no command"
        return command
