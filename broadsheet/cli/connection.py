"""The connection that every command shares: addresses and credentials, from flags, the environment or a file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from broadsheet.cli.context_file import complete_contexts, context_values, read_contexts
from broadsheet.cli.errors import errors_in_one_line
from broadsheet.cli.output.messages import say
from broadsheet.consumer.client import AllocationClient, RecoveryClient, ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.errors import EndpointError
from broadsheet.security.auth import BearerAuth, ClientAuth, KeyedAuth, keys_from, read_token
from broadsheet.security.endpoints import BROKER_ADDRESS_DEFAULT, CONSUMER_ADDRESS_DEFAULT
from broadsheet.security.tls import TlsConfig
from broadsheet.security.tls_options import client_tls_options, take_tls

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

BY_URL: Final = DirectFragments()
"""Stored fragments are read by URLs of https, and no files."""


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
    quiet: bool = False
    """Say nothing of members that cannot be reached."""

    def shards(self) -> ShardClient:
        """Return a client of the members' Shard service."""
        return ShardClient(
            self.address, auth=self.member_auth(), on_passed_over=self._on_passed_over, tls=self.tls
        )

    def allocation(self) -> AllocationClient:
        """Return a client of the members' Allocation service."""
        return AllocationClient(
            self.address, auth=self.member_auth(), on_passed_over=self._on_passed_over, tls=self.tls
        )

    def recovery(self) -> RecoveryClient:
        """Return a client of the members' Recovery service."""
        return RecoveryClient(
            self.address, auth=self.member_auth(), on_passed_over=self._on_passed_over, tls=self.tls
        )

    def journals(self, fragments: DirectFragments = BY_URL) -> JournalClient:
        """Return a client of the brokers' Journal service.

        Args:
            fragments: Rules for reading stored fragments without their broker.
        """
        policy = TransportPolicy(tls=self.tls, fragments=fragments)
        return JournalClient(self.broker, auth=self.broker_auth(), policy=policy)

    def _on_passed_over(self, error: EndpointError) -> None:
        if not self.quiet:
            _tell_passed_over(error)

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


_CONNECTION_PARAMETERS = (
    *(name for name in Connection.__dataclass_fields__ if name not in {"tls", "quiet"}),
    *("tls_ca", "tls_cert", "tls_key"),
)


_CREDENTIALS = (
    ("auth_keys", "auth_keys_file", "token_file"),
    ("broker_auth_keys", "broker_auth_keys_file"),
)
"""Options of which one given by a flag or the environment replaces all that the file says."""


def _use_context(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make a context's values the defaults of the command, before its other options are read."""
    del param
    with errors_in_one_line():
        values = context_values(read_contexts(), value or "")
    ctx.default_map = {**(ctx.default_map or {}), **values}


def _drop_overridden(ctx: click.Context, options: dict[str, Any]) -> None:
    """Forget credentials of the file where a flag or the environment gives others."""
    of_file = {ParameterSource.DEFAULT_MAP, ParameterSource.DEFAULT}
    for group in _CREDENTIALS:
        sources = {name: ctx.get_parameter_source(name) for name in group}
        if any(source not in of_file for source in sources.values()):
            for name, source in sources.items():
                if source is ParameterSource.DEFAULT_MAP:
                    options[name] = None


def _connection_of(options: dict[str, Any], *, quiet: bool = False) -> Connection:
    """Return the connection of options, which are removed from those of the command."""
    options["tls"] = take_tls(options)
    own = {name: options.pop(name) for name in Connection.__dataclass_fields__ if name != "quiet"}
    return Connection(**own, quiet=quiet)


def quiet_connection(ctx: click.Context) -> Connection:
    """Return the connection of a command line that is being completed: it says nothing."""
    options = {name: ctx.params.get(name) for name in _CONNECTION_PARAMETERS}
    return _connection_of(options, quiet=True)


def connection_options(command: CommandT) -> CommandT:
    """Add the connection options, and pass the connection to the command as its first argument."""

    @click.option(
        "--context",
        envvar="BROADSHEET_CONTEXT",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_use_context,
        shell_complete=complete_contexts,
        help="Addresses and credentials of this name in the configuration file; its current one if absent.",
    )
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
        _drop_overridden(click.get_current_context(), kwargs)
        with errors_in_one_line():
            connection = _connection_of(kwargs)
        return command(connection, *args, **kwargs)

    return wrapped  # type: ignore[return-value]  # click calls it by keyword


def _tell_passed_over(error: EndpointError) -> None:
    """Report on stderr that an address cannot be used, because the answer comes from another one."""
    say(f"{error.address} cannot be reached ({error.detail}); asking another member")
