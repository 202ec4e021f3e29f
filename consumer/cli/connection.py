"""Where commands connect to, and as whom: the options that every command shares."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from allocator.errors import AllocatorError
from consumer.client import ShardClient
from consumer.errors import ConsumerError
from consumer.journal.client import JournalClient
from consumer.protocol.auth import ClientAuth, KeyedAuth

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

CONSUMER_ADDRESS_DEFAULT = "http://localhost:8080"
BROKER_ADDRESS_DEFAULT = "http://localhost:8081"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Addresses and credentials of one invocation."""

    address: str
    broker: str
    auth_keys: str

    def shards(self) -> ShardClient:
        """Return a client of the members' Shard service."""
        return ShardClient(self.address, auth=self._auth())

    def journals(self) -> JournalClient:
        """Return a client of the brokers' Journal service."""
        return JournalClient(self.broker, auth=self._auth())

    def _auth(self) -> ClientAuth | None:
        return KeyedAuth(self.auth_keys) if self.auth_keys else None


def connection_options(command: CommandT) -> CommandT:
    """Add the options of a connection, and pass it to the command as its first argument."""

    @click.option(
        "--address",
        envvar="CONSUMER_ADDRESS",
        default=CONSUMER_ADDRESS_DEFAULT,
        show_default=True,
        show_envvar=True,
        help="Any member of the consumer group.",
    )
    @click.option(
        "--broker",
        envvar="BROKER_ADDRESS",
        default=BROKER_ADDRESS_DEFAULT,
        show_default=True,
        show_envvar=True,
        help="Any journal broker.",
    )
    @click.option(
        "--auth-keys",
        envvar="AUTH_KEYS",
        default="",
        show_envvar=True,
        help="Base64 keys, the first of which signs our requests.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, address: str, broker: str, auth_keys: str, **kwargs: Any) -> Any:
        connection = Connection(address=address, broker=broker, auth_keys=auth_keys)
        return command(connection, *args, **kwargs)

    return wrapped  # type: ignore[return-value]  # click calls it by keyword


def run_command(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's work; turn our own errors into one line on stderr and exit status 1."""
    try:
        asyncio.run(work)
    except (ConsumerError, AllocatorError) as error:
        raise click.ClickException(str(error)) from error
