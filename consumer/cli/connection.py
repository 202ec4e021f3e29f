"""Connection options that every command shares: addresses and credentials."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from broadsheet.allocator.errors import AllocatorError, ValidationError
from broadsheet.allocator.runtime.tls import TlsConfig
from broadsheet.consumer.cli.lazy_group import ExitStatus
from broadsheet.consumer.cli.output import log_to_stderr, say
from broadsheet.consumer.client import AllocationClient, RecoveryClient, ShardClient
from broadsheet.consumer.errors import (
    ApplyConflictError,
    ConsumerError,
    EndpointError,
    JournalNotFoundError,
    RpcFailedError,
    ShardNotFoundError,
)
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.journal.transport import TransportPolicy
from broadsheet.consumer.protocol.auth import (
    BearerAuth,
    ClientAuth,
    KeyedAuth,
    keys_from,
    read_token,
)
from broadsheet.consumer.tls_options import client_tls_options, take_tls

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

CONSUMER_ADDRESS_DEFAULT = "http://localhost:8080,http://localhost:8082"
"""Where `shardctl dev` has its first two members."""
BROKER_ADDRESS_DEFAULT = "http://localhost:8081"
"""Where `shardctl dev` has its broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Addresses and credentials of one invocation."""

    address: str
    broker: str
    auth_keys: str = field(repr=False)
    auth_keys_file: Path | None
    broker_auth_keys: str = field(repr=False)
    broker_auth_keys_file: Path | None
    token_file: Path | None
    tls: TlsConfig | None = None
    """For addresses with `https://`."""

    def shards(self) -> ShardClient:
        """Return a client of the members' Shard service."""
        return ShardClient(
            self.address,
            auth=self.member_auth(),
            on_passed_over=_tell_passed_over,
            tls=self.tls,
        )

    def allocation(self) -> AllocationClient:
        """Return a client of the members' Allocation service."""
        return AllocationClient(
            self.address,
            auth=self.member_auth(),
            on_passed_over=_tell_passed_over,
            tls=self.tls,
        )

    def recovery(self) -> RecoveryClient:
        """Return a client of the members' Recovery service."""
        return RecoveryClient(
            self.address,
            auth=self.member_auth(),
            on_passed_over=_tell_passed_over,
            tls=self.tls,
        )

    def journals(self) -> JournalClient:
        """Return a client of the brokers' Journal service."""
        return JournalClient(
            self.broker, auth=self.broker_auth(), policy=TransportPolicy(tls=self.tls)
        )

    def member_auth(self) -> ClientAuth | None:
        """Return what authorizes requests to members; None without credentials.

        Raises:
            ValidationError: a file cannot be read, or holds no keys.
        """
        keys = keys_from(self.auth_keys, self.auth_keys_file)
        if self.token_file is not None:
            return BearerAuth(read_token(self.token_file))
        return KeyedAuth(keys) if keys else None

    def broker_auth(self) -> ClientAuth | None:
        """Return the same for brokers: their own keys, if they have others."""
        keys = keys_from(self.broker_auth_keys, self.broker_auth_keys_file)
        return KeyedAuth(keys) if keys else self.member_auth()


def connection_options(command: CommandT) -> CommandT:
    """Add the connection options, and pass the connection to the command as its first argument."""

    @click.option(
        "--address",
        envvar="CONSUMER_ADDRESS",
        default=CONSUMER_ADDRESS_DEFAULT,
        show_default=True,
        show_envvar=True,
        help="Any member of the consumer group; several, separated by commas, in case one is gone.",
    )
    @click.option(
        "--broker",
        envvar="BROKER_ADDRESS",
        default=BROKER_ADDRESS_DEFAULT,
        show_default=True,
        show_envvar=True,
        help="Any journal broker; several, separated by commas, in case one is gone.",
    )
    @click.option(
        "--auth-keys",
        envvar="AUTH_KEYS",
        default="",
        show_default=False,
        show_envvar=True,
        help="Base64 keys, the first of which signs our requests.",
    )
    @click.option(
        "--auth-keys-file",
        envvar="AUTH_KEYS_FILE",
        type=click.Path(path_type=Path),
        show_envvar=True,
        help="File with such keys, in place of --auth-keys.",
    )
    @click.option(
        "--broker-auth-keys",
        envvar="BROKER_AUTH_KEYS",
        default="",
        show_default=False,
        show_envvar=True,
        help="The same for the broker, if its keys are others.",
    )
    @click.option(
        "--broker-auth-keys-file",
        envvar="BROKER_AUTH_KEYS_FILE",
        type=click.Path(path_type=Path),
        show_envvar=True,
        help="File with such keys, in place of --broker-auth-keys.",
    )
    @click.option(
        "--token-file",
        envvar="AUTH_TOKEN_FILE",
        type=click.Path(path_type=Path),
        show_envvar=True,
        help="File with a token that our requests show, in place of one signed with keys.",
    )
    @client_tls_options
    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with errors_in_one_line():
            kwargs["tls"] = take_tls(kwargs)
        own = {name: kwargs.pop(name) for name in Connection.__dataclass_fields__}
        return command(Connection(**own), *args, **kwargs)

    return wrapped  # type: ignore[return-value]  # click calls it by keyword


def run_command(work: Coroutine[Any, Any, None], *, log_level: str = "error") -> None:
    """Run a command; print our own errors as one line on stderr and exit with status 1.

    Args:
        work: What the command does.
        log_level: The least level of the events that are shown. Commands report their errors themselves, so retries
            inside libraries are noise.
    """
    log_to_stderr(log_level)
    with errors_in_one_line():
        asyncio.run(work)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Convert our own errors into click errors: one line on stderr, with exit status 1."""
    try:
        yield
    except (ConsumerError, AllocatorError, TimeoutError) as error:
        # Notes report what was done before the error: "the first 200 of 300 changes were applied".
        notes = getattr(error, "__notes__", [])
        raise CommandError("; ".join([_line_of(error), *notes]), exit_status_of(error)) from error


class CommandError(click.ClickException):
    """An error of ours as click shows it, with its own exit status."""

    def __init__(self, message: str, status: ExitStatus) -> None:
        super().__init__(message)
        self.status = status

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click has an attribute of the class
        """What the process ends with."""
        return self.status.value


class NothingSelectedError(ValidationError):
    """Nothing of that name, or that matches the selector."""


class StaleRevisionError(ValidationError):
    """Somebody changed what a command, or its file, was about to change."""


_STATUSES: tuple[tuple[ExitStatus, tuple[type[Exception], ...]], ...] = (
    (ExitStatus.NOT_FOUND, (NothingSelectedError, ShardNotFoundError, JournalNotFoundError)),
    (ExitStatus.TIMEOUT, (TimeoutError,)),
    (ExitStatus.CONFLICT, (ApplyConflictError, StaleRevisionError)),
)


def exit_status_of(error: Exception) -> ExitStatus:
    """Return the exit status of a command that ends with an error of ours."""
    return next(
        (status for status, kinds in _STATUSES if isinstance(error, kinds)), ExitStatus.FAILED
    )


def _line_of(error: Exception) -> str:
    line = " ".join(str(error).split())
    if isinstance(error, RpcFailedError) and error.code == "UNIMPLEMENTED":
        return f"{line}: is it a server of this kind? --address is a member's, --broker a broker's"
    return line


def _tell_passed_over(error: EndpointError) -> None:
    """Report on stderr that an address cannot be used, because the answer comes from another one."""
    say(f"{error.address} cannot be reached ({error.detail}); asking another member")
