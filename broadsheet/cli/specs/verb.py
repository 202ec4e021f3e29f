"""One command for shards and one for journals, of each verb that both have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeAlias

import click

from broadsheet.cli.command import Work, make_command, run_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.options import (
    OptionsT,
    Parameter,
    PerKind,
    SelectorInPlace,
    command_options,
    require_selection,
)
from broadsheet.cli.specs.kind import Specs, SpecT, Stored

AnyKind: TypeAlias = type[Specs[Any]]
"""Shards or journals: a verb does not know which."""
Names: TypeAlias = Annotated[
    tuple[str, ...],
    PerKind(
        lambda kind: click.argument(
            "names", nargs=-1, metavar=f"[{kind.noun.upper()}]...", shell_complete=kind.complete
        )
    ),
]


def _force(kind: AnyKind) -> Parameter | None:
    # Nothing refers to a shard that outlives it.
    if kind.is_shards:
        return None
    text = "Delete journals also if shards use them, or if that cannot be told."
    return click.option("--force", is_flag=True, help=text)


Force: TypeAlias = Annotated[bool, PerKind(_force)]


@command_options
class Selection:
    """The specs that a command is about."""

    names: Names
    selector: SelectorInPlace

    async def of(self, specs: Specs[SpecT]) -> list[Stored[SpecT]]:
        """Return what is named or selected; something is.

        Raises:
            NothingSelectedError: nothing is.
        """
        require_selection(specs.noun, self.names, self.selector, changes=True)
        listed = await specs.listed(self.names, self.selector)
        if not listed:
            problem = f"no {specs.noun} matches {self.selector!r}"
            raise NothingSelectedError("--selector", problem)
        return listed


@dataclass(frozen=True, slots=True)
class SpecVerb(Generic[OptionsT]):
    """A verb of shards and journals."""

    name: str
    options: type[OptionsT]
    perform: Callable[[AnyKind, Connection, OptionsT], Work]
    is_endless: Callable[[OptionsT], bool] = lambda _: False
    """Tells whether Ctrl-C is how the command ends, and no error."""

    def command(self, kind: AnyKind, help_text: str) -> click.Command:
        """Return the command of one kind.

        Args:
            kind: Shards or journals.
            help_text: Its first sentence is the summary that `broadsheet.cli.main` shows.
        """

        def run(connection: Connection, options: OptionsT) -> None:
            work = self.perform(kind, connection, options)
            run_command(work, endless=self.is_endless(options))

        text = inspect.cleandoc(help_text)
        return make_command(self.name, self.options, run, kind=kind, is_connected=True, help=text)
