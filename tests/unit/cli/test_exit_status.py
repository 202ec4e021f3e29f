"""The exit status of a command that ends with an error."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from broadsheet.allocator.errors import AllocatorError
from broadsheet.cli.errors import (
    ApplicationFailedError,
    InUseError,
    NothingSelectedError,
    StaleRevisionError,
    WrongValueError,
    errors_in_one_line,
    exit_status_of,
)
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.main import main
from broadsheet.consumer.errors import PlanNotAppliedError, ShardNotFoundError
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.leases.errors import StoreNotFoundError
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
        (ValidationError("NAME", "expected another"), ExitStatus.USAGE),
        (ValidationError("ETCD.yaml: id", "expected one"), ExitStatus.FAILED),
        (WrongValueError("trust.jwks", "expected a file"), ExitStatus.USAGE),
        (ApplicationFailedError("APP", "raised KeyError"), ExitStatus.FAILED),
        (InUseError("a shard reads it"), ExitStatus.FAILED),
        (StoreNotFoundError("store", "there is none"), ExitStatus.NOT_FOUND),
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


WRONG = (
    ("shards wait some-shard --for=primary --timeout nan", "--timeout"),
    ("shards list --watch --interval inf", "--interval"),
    ("shards list --address ftp://member:1", "--address"),
    ("shards list --auth-keys ***", "--auth-keys[0]: expected base64"),
    ("shards list --auth-keys-file /no/such", "--auth-keys-file: cannot read /no/such"),
    ("shards list --token-file /no/such", "--token-file: cannot read /no/such"),
    ("shards describe a#b", "SHARD"),
    ("journals list --broker broker:x", "--broker: expected http"),
    ("journals list --broker-auth-keys ***", "--broker-auth-keys[0]: expected base64"),
    ("journals read jou//rnal", "JOURNAL"),
    ("journals read some/journal --offset 99999999999999999999", "--offset"),
    ("journals label some/journal word", "LABEL: expected NAME=VALUE"),
    ("leases list bogus", "STORE: expected e.g."),
    ("leases import etcd:/a etcd:/a", "TO: expected another store"),
    ("leases import /no/such etcd:/a", "FROM: /no/such is no file"),
    ("backup create - --lease-store bogus", "--lease-store: expected e.g."),
    ("backup restore /no/such", "FILE: cannot read /no/such"),
    ("doctor --etcd nonsense", "--etcd[0]: expected host:port"),
    ("doctor --etcd localhost:1 --etcd-user root", "--etcd-user: expected both"),
    ("dev some.module:app --port 65536", "--port"),
    ("serve no_such_module:app", "APP: No module named"),
    ("init Hello-World", "NAME: 'Hello-World'"),
    ("token --auth-keys *** --capability read", "--auth-keys[0]: expected base64"),
)


@pytest.mark.parametrize(("line", "text"), WRONG, ids=[line for line, _ in WRONG])
def test_value_that_nothing_can_be_done_with_ends_as_wrong_usage(
    line: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts tell a mistake of theirs from a failure of the cluster, which no try reaches here."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text("contexts: {}\n")
    monkeypatch.setenv("BROADSHEET_CONFIG", str(config))

    result = CliRunner().invoke(main, line.split())

    assert result.exit_code == ExitStatus.USAGE, result.output
    assert text in result.output
