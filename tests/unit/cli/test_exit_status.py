"""The exit status of a command that ends with an error."""

from __future__ import annotations

import click
import pytest

from broadsheet.allocator.errors import AllocatorError
from broadsheet.cli.errors import (
    NothingSelectedError,
    StaleRevisionError,
    errors_in_one_line,
    exit_status_of,
)
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.consumer.errors import PlanNotAppliedError, ShardNotFoundError
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.wire.errors import ApplyConflictError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ShardNotFoundError("s"), ExitStatus.NOT_FOUND),
        (JournalNotFoundError("j"), ExitStatus.NOT_FOUND),
        (NothingSelectedError("SHARD", "none"), ExitStatus.NOT_FOUND),
        (TimeoutError("too long"), ExitStatus.TIMEOUT),
        (ApplyConflictError(None), ExitStatus.CONFLICT),
        (StaleRevisionError("revision", "older"), ExitStatus.CONFLICT),
        (PlanNotAppliedError("p", "the cluster changed"), ExitStatus.CONFLICT),
        (ValidationError("--to-offset", "expected 0"), ExitStatus.USAGE),
        (ValidationError("selector", "expected terms"), ExitStatus.USAGE),
        (ValidationError("id", "expected one"), ExitStatus.FAILED),
        (EndpointError("http://m", "gone"), ExitStatus.FAILED),
        (AllocatorError("no"), ExitStatus.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_status_tells_kinds_of_errors_apart(error: Exception, status: ExitStatus) -> None:
    """A script creates what is not there, waits on after a timeout, and reads again after a conflict."""
    with pytest.raises(click.ClickException) as raised, errors_in_one_line():
        raise error

    assert (raised.value.exit_code, exit_status_of(error)) == (status.value, status)
