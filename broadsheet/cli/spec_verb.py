"""One command for shards and one for journals, of each verb that both have."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import click

from broadsheet.cli.connection import Connection, connection_options, run_command
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.output import NothingSelectedError
from broadsheet.cli.spec_kind import Specs, SpecT, Stored

OptionsT = TypeVar("OptionsT")
Parameter: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""A decorator that adds an option or argument to a command."""
AnyKind: TypeAlias = type[Specs[Any]]
"""Shards or journals: a verb does not know which."""

selector_in_place = click.option(
    "-l", "--selector", default="", show_default=False, help="Label selector, in place of names."
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be done; change nothing."
)


def selection_parameters(kind: AnyKind) -> tuple[Parameter, ...]:
    """Return the parameters of a `Selection`."""
    metavar = f"[{kind.noun.upper()}]..."
    names = click.argument("names", nargs=-1, metavar=metavar, shell_complete=kind.complete)
    return names, selector_in_place


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The specs that a command is about."""

    names: tuple[str, ...]
    selector: str

    async def of(self, specs: Specs[SpecT]) -> list[Stored[SpecT]]:
        """Return what is named or selected; something is.

        Raises:
            NothingSelectedError: nothing is.
        """
        if not self.names and not self.selector:
            raise click.UsageError(f"expected names of {specs.noun}s, or --selector")
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
    """Made from the values of the parameters, by their names."""
    parameters: Callable[[AnyKind], Sequence[Parameter]]
    """Options and arguments, in the order of the help; those of the connection follow."""
    perform: Callable[[AnyKind, Connection, OptionsT], Coroutine[Any, Any, ExitStatus | None]]

    def command(self, kind: AnyKind, help_text: str) -> click.Command:
        """Return the command of one kind.

        Args:
            kind: Shards or journals.
            help_text: Its first sentence is the summary that `broadsheet.cli.main` shows.
        """

        def invoke(connection: Connection, **values: Any) -> None:  # values: as click has them
            run_command(self.perform(kind, connection, self.options(**values)))

        command: Callable[..., None] = connection_options(invoke)
        for add in reversed(self.parameters(kind)):
            command = add(command)
        return click.command(self.name, help=help_text)(command)
