"""Errors of commands: one line on standard error, and an exit status."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import click

from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.consumer.errors import PlanNotAppliedError, ShardNotFoundError
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.leases.errors import StoreNotFoundError
from broadsheet.runtime.errors import (
    BroadsheetError,
    RpcFailedError,
    ValidationError,
    os_error_text,
)
from broadsheet.wire.errors import ApplyConflictError


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Convert our own errors into click errors: one line on stderr, with exit status 1."""
    try:
        yield
    except (BroadsheetError, TimeoutError) as error:
        # Notes report what was done before the error: "the first 200 of 300 changes were applied".
        notes = getattr(error, "__notes__", [])
        raise CommandError("; ".join([_line_of(error), *notes]), exit_status_of(error)) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise  # click ends quietly: the reader has ended
        raise CommandError(os_error_text(error), ExitStatus.FAILED) from error


class CommandError(click.ClickException):
    """An error of ours as click shows it, with its own exit status."""

    def __init__(self, message: str, status: ExitStatus) -> None:
        super().__init__(message)
        self.status = status

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click has an attribute of the class
        """The status with which the process ends."""
        return self.status.value


class NothingSelectedError(ValidationError):
    """Nothing of that name, or that matches the selector."""


class InUseError(ValidationError):
    """A journal that is to be deleted is used by shards, or may be."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            "JOURNAL", f"{problem}. Delete or change the shards first; --force deletes"
        )


class BackupDiffersError(ValidationError):
    """A cluster has specs that a backup has otherwise; nothing of the backup was restored."""

    def __init__(self, problem: str) -> None:
        super().__init__("FILE", problem)


class StaleRevisionError(ValidationError):
    """Somebody changed what a command, or its file, was about to change."""


class ApplicationFailedError(ValidationError):
    """The module of an application, or what makes it, raised: APP is right, and its code is not."""


class WrongValueError(ValidationError):
    """The value of an option or argument is refused; the path begins with its name."""


@contextmanager
def option_values(names: Mapping[str, str]) -> Iterator[None]:
    """Say that what a block refuses are values of the command line, and name the options that gave them.

    Args:
        names: Options and arguments, such as `--limit` and `STORE`, by the path of the field that they set.

    Raises:
        WrongValueError: the block raised a `ValidationError`.
    """
    try:
        yield
    except (NothingSelectedError, ApplicationFailedError, WrongValueError):
        raise
    except ValidationError as error:
        raise WrongValueError(_named(error.field_path, names), error.problem) from error


def _named(path: str, names: Mapping[str, str]) -> str:
    """Return a path of a field with the name of its option in place of the part that the option sets."""
    for field in sorted(names, key=len, reverse=True):
        if path == field or path.startswith((f"{field}.", f"{field}[")):
            return names[field] + path[len(field) :]
    return path


_OF_COMMAND_LINE: Final = re.compile(r"--|selector|[A-Z]+(?![\w.])")
"""Paths that are an option, or an argument such as `NAME`. Selectors come from -l alone; their parser, which servers
have too, knows no options."""

_MISSING: Final = (
    NothingSelectedError,
    ShardNotFoundError,
    JournalNotFoundError,
    StoreNotFoundError,
)
_STATUSES: tuple[tuple[ExitStatus, tuple[type[Exception], ...]], ...] = (
    (ExitStatus.FAILED, (InUseError, ApplicationFailedError)),
    (ExitStatus.USAGE, (WrongValueError,)),
    (ExitStatus.NOT_FOUND, _MISSING),
    (ExitStatus.TIMEOUT, (TimeoutError,)),
    (
        ExitStatus.CONFLICT,
        (ApplyConflictError, BackupDiffersError, StaleRevisionError, PlanNotAppliedError),
    ),
)


def exit_status_of(error: Exception) -> ExitStatus:
    """Return the exit status of a command that ends with an error of ours."""
    for status, kinds in _STATUSES:
        if isinstance(error, kinds):
            return status
    # As click ends where it finds a mistake of an option by itself; here the value had to be read first.
    path = error.field_path if isinstance(error, ValidationError) else ""
    return ExitStatus.USAGE if _OF_COMMAND_LINE.match(path) else ExitStatus.FAILED


def _line_of(error: Exception) -> str:
    line = " ".join(str(error).split())
    if isinstance(error, RpcFailedError) and error.code == "UNIMPLEMENTED":
        return f"{line}: is it a server of this kind? --address is a member's, --broker a broker's"
    return line
