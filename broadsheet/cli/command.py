"""Commands made of typed options: a frozen dataclass, each field of which is a parameter.

    @command_options
    class DeadLettersOptions:
        shard: ShardId
        last: int = option("Only so many of the newest; 0: all.", "-n", default=100)
        output: Output

    @cluster_command("dead-letters", DeadLettersOptions)
    async def list_dead_letters(connection: Connection, options: DeadLettersOptions) -> None:
        '''List the messages that a shard left out, and why.'''

A field is an `argument`, an `option` or a `flag` of its name. Parameters that several commands have are types, such as
`Output`. A field may also be a `Group` of parameters, or another such dataclass. Parameters come in the order of the
fields, and the docstring is the help.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_type_hints,
)

import click

from broadsheet.cli.connection import Connection, connection_options
from broadsheet.cli.errors import errors_in_one_line
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.runtime.interpreter import few_collections
from broadsheet.runtime.logs import log_to_stderr

OptionsT = TypeVar("OptionsT")
ValueT = TypeVar("ValueT")
_CARRIER: Final = "carrier"
"""Of a field's metadata: returns its parameter, given its name."""
Parameter: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""A decorator that adds an option or argument to a command."""
Work: TypeAlias = Coroutine[Any, Any, ExitStatus | None]
"""What a command does; its exit status, if that is not 0."""


def option(
    help_text: str, *names: str, env: str = "", is_secret: bool = False, **settings: Any
) -> Any:
    """Return a field that is an option; `Any`, because the dataclass turns it into a value.

    Args:
        help_text: What the help says of it.
        *names: Those that do not follow from the field's name: a short one such as `-n`, or another long one.
        env: The environment variable that gives its value where the command line does not.
        is_secret: The value is not shown where the options are.
        **settings: As of `click.option`.
    """
    if env:
        settings |= {"envvar": env, "show_envvar": True}

    def carrier(field_name: str) -> Parameter:
        is_named = any(name.startswith("--") for name in names)
        long_names = () if is_named else (f"--{field_name.replace('_', '-')}",)
        return click.option(*names, *long_names, field_name, help=help_text, **settings)

    return field(repr=not is_secret, metadata={_CARRIER: carrier})


def flag(help_text: str, *names: str, **settings: Any) -> Any:
    """Return a field that is an option without a value; parameters as of `option`."""
    return option(help_text, *names, is_flag=True, **settings)


def argument(**settings: Any) -> Any:
    """Return a field that is an argument; settings as of `click.argument`."""
    return field(metadata={_CARRIER: lambda field_name: click.argument(field_name, **settings)})


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(option, flag, argument)
)
def command_options(cls: type[ValueT]) -> type[ValueT]:
    """Make a class a frozen dataclass of options, all of which are given when it is made."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


DryRun: TypeAlias = Annotated[
    bool, click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
]
YesOrDryRun: TypeAlias = Annotated[
    bool, click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
]
Selector: TypeAlias = Annotated[
    str,
    click.option(
        "-l",
        "--selector",
        default="",
        show_default=False,
        help="Label selector, e.g. 'app=flights, id:prefix=flights/'; empty selects all.",
    ),
]
Yes: TypeAlias = Annotated[bool, click.option("-y", "--yes", is_flag=True, help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Group(Generic[ValueT]):
    """Parameters that make one value together."""

    parameters: Sequence[Parameter]
    take: Callable[[dict[str, Any]], ValueT]
    """Removes their values from those of the command, which are by name as click has them, and returns the one."""


@dataclass(frozen=True, slots=True)
class PerKind:
    """A parameter that shards and journals do not have alike."""

    of: Callable[[Any], Parameter | None]
    """Returns the parameter of one kind; None: the kind has none, and the field keeps its default."""


def make_command(
    name: str,
    options: type[OptionsT],
    run: Callable[..., None],
    *,
    kind: Any = None,
    is_connected: bool = False,
    **texts: Any,
) -> click.Command:
    """Return a command.

    Args:
        name: Of the verb.
        options: Their dataclass.
        run: Called with the options, after the connection if the command has one.
        kind: Shards or journals, for parameters that differ.
        is_connected: The command has the options of a connection, after its own.
        **texts: `help`, whose first sentence is the summary that `broadsheet.cli.main` shows; else `short_help` is.
    """

    def invoke(*connection: Connection, **values: Any) -> None:  # values: as click has them
        with errors_in_one_line():
            run(*connection, options_from(options, values, kind))

    callback: Callable[..., None] = connection_options(invoke) if is_connected else invoke
    for add in reversed([*_parameters(options, kind)]):
        callback = add(callback)
    return click.command(name, cls=click.Command, **texts)(callback)


def cluster_command(
    name: str, options: type[OptionsT], *, is_endless: Callable[[OptionsT], bool] | None = None
) -> Callable[[Callable[[Connection, OptionsT], Work]], click.Command]:
    """Return a decorator that makes a command of a coroutine function which asks a cluster.

    Args:
        name: Of the verb.
        options: Their dataclass.
        is_endless: Tells whether Ctrl-C is how the command ends, and no error; None: never.
    """

    def decorate(perform: Callable[[Connection, OptionsT], Work]) -> click.Command:
        def run(connection: Connection, made: OptionsT) -> None:
            endless = is_endless is not None and is_endless(made)
            run_command(perform(connection, made), endless=endless)

        return make_command(name, options, run, is_connected=True, help=inspect.getdoc(perform))

    return decorate


def async_command(
    name: str, options: type[OptionsT], *, log_level: str = "error", short_help: str | None = None
) -> Callable[[Callable[[OptionsT], Work]], click.Command]:
    """Return a decorator that makes a command of a coroutine function which needs no connection.

    Args:
        name: Of the verb.
        options: Their dataclass.
        log_level: As of `run_command`.
        short_help: The summary, where it is not the first sentence of the docstring.
    """

    def decorate(perform: Callable[[OptionsT], Work]) -> click.Command:
        def run(made: OptionsT) -> None:
            run_command(perform(made), log_level=log_level)

        return make_command(name, options, run, help=inspect.getdoc(perform), short_help=short_help)

    return decorate


def plain_command(
    name: str, options: type[OptionsT], *, short_help: str | None = None
) -> Callable[[Callable[[OptionsT], None]], click.Command]:
    """Return a decorator that makes a command of a function; parameters as of `async_command`."""

    def decorate(perform: Callable[[OptionsT], None]) -> click.Command:
        text = inspect.getdoc(perform)
        return make_command(name, options, perform, help=text, short_help=short_help)

    return decorate


def run_command(work: Work, *, log_level: str = "error", endless: bool = False) -> None:
    """Run a command; print our own errors as one line on stderr and exit with status 1.

    Args:
        work: What the command does; its exit status, if that is not 0.
        log_level: The least level of the events that are shown. Commands report their errors themselves, so retries
            inside libraries are noise.
        endless: Ctrl-C is how the command ends, and no error.
    """
    log_to_stderr(log_level)
    status = None
    # Files and lists of thousands of specs are many objects without cycles, among which Python's own frequency of
    # collections would look for some again and again: half of the time of a command.
    with (
        errors_in_one_line(),
        suppress(*((KeyboardInterrupt,) if endless else ())),
        few_collections(),
    ):
        status = asyncio.run(work)
    if status:
        sys.exit(status)


def _carriers(options: type[Any], kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield each field's name, and what has its parameters: a decorator, a `Group`, or a dataclass of options."""
    hints = get_type_hints(options, include_extras=True)
    for each in fields(options):
        hint = hints[each.name]
        (carrier,) = getattr(hint, "__metadata__", (hint,))
        if _CARRIER in each.metadata:
            carrier = each.metadata[_CARRIER](each.name)
        elif isinstance(carrier, PerKind):
            carrier = carrier.of(kind)
        if carrier is not None:
            yield each.name, carrier


def _parameters(options: type[Any], kind: Any) -> Iterator[Parameter]:
    for _, carrier in _carriers(options, kind):
        if isinstance(carrier, type):
            yield from _parameters(carrier, kind)
        elif isinstance(carrier, Group):
            yield from carrier.parameters
        else:
            yield carrier


def options_from(options: type[OptionsT], values: dict[str, Any], kind: Any = None) -> OptionsT:
    """Return the options of a command line.

    Args:
        options: Their dataclass.
        values: Of the parameters, by name as click has them; those of the options are removed.
        kind: As of `make_command`.

    Raises:
        ValidationError: a `Group` refuses its values.
    """
    made: dict[str, Any] = {}
    for name, carrier in _carriers(options, kind):
        if isinstance(carrier, type):
            made[name] = options_from(carrier, values, kind)
        elif isinstance(carrier, Group):
            made[name] = carrier.take(values)
        else:
            made[name] = values.pop(name)
    return options(**made)
