"""Commands made of typed options: a frozen dataclass, each field of which is a parameter.

    @command_options
    class DeadLettersOptions:
        shard: ShardId
        last: int = option("Only so many of the newest; 0: all.", "-n", default=100)
        output: Output

    @cluster_command("dead-letters", DeadLettersOptions)
    async def list_dead_letters(connection: Connection, options: DeadLettersOptions) -> None:
        '''List the messages that a shard left out, and why.'''

The docstring is the help.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias

import click

from broadsheet.cli.connection import Connection, take_connection
from broadsheet.cli.errors import errors_in_one_line, option_values
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.options import OptionsT, options_from, parameters_of
from broadsheet.runtime.interpreter import few_collections
from broadsheet.runtime.logs import log_to_stderr

Work: TypeAlias = Coroutine[Any, Any, ExitStatus | None]
"""What a command does; its exit status, if that is not 0."""


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

    def invoke(**values: Any) -> None:  # values: as click has them
        with errors_in_one_line():
            with option_values({}):
                connection = (take_connection(values),) if is_connected else ()
                made = options_from(options, values, kind)
            run(*connection, made)

    callback: Callable[..., None] = invoke
    parameters = [*parameters_of(options, kind)]
    for add in reversed([*parameters, *(parameters_of(Connection) if is_connected else ())]):
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
