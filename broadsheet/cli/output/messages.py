"""Messages to the user, which are not the result: they go to standard error."""

from __future__ import annotations

import sys

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
    click.confirm(question, abort=True, err=True)
