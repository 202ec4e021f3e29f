"""Messages to the user, which are not the result: they go to standard error."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click


def say(text: str) -> None:
    """Print a message to the user that is not the result."""
    click.echo(text, err=True)


def counted(count: int, noun: str) -> str:
    """Return `1 change`, `2 changes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless told not to; a script cannot answer, so it must say beforehand.

    Raises:
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask on: expected --yes")
    ask(question)


def ask(question: str, *, default: bool = False) -> None:
    """Ask at the terminal, until the answer is yes or no; Ctrl-C is a no.

    Raises:
        click.Abort: the answer is no.
    """
    with _ended_by_interrupt():
        click.confirm(question, abort=True, default=default, err=True)


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the block, which waits for an answer and runs nothing else.

    In `asyncio.run`, Ctrl-C cancels the command's task, which would notice only after an answer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C never comes here.
        return
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
