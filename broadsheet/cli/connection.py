"""The connection that every command shares: addresses and credentials, from flags, the environment or a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import click
from click.core import ParameterSource

from broadsheet.cli.context_file import complete_contexts, context_values, read_contexts
from broadsheet.cli.errors import errors_in_one_line, option_values
from broadsheet.cli.options import Group, command_options, option, options_from
from broadsheet.cli.output.messages import say
from broadsheet.consumer.client import (
    AllocationClient,
    ElasticClient,
    KeyedClient,
    RecoveryClient,
    ShardClient,
)
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


ClientT = TypeVar(
    "ClientT", ShardClient, AllocationClient, ElasticClient, KeyedClient, RecoveryClient
)

_FILE: Final = click.Path(path_type=Path)


def _use_context(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Make a context's values the defaults of the command, before its other options are read."""
    del param
    with errors_in_one_line():
        values = context_values(read_contexts(), value or "")
    ctx.default_map = {**(ctx.default_map or {}), **values}
    return value


@command_options
class Connection:
    """Addresses and credentials of one invocation."""

    context: str | None = option(
        "Addresses and credentials of this name in the configuration file; its current one if absent.",
        env="BROADSHEET_CONTEXT",
        is_eager=True,
        callback=_use_context,
        shell_complete=complete_contexts,
    )
    address: str = option(
        "Any member of the consumer group; several, separated by commas, in case one is gone.",
        env="CONSUMER_ADDRESS",
        default=CONSUMER_ADDRESS_DEFAULT,
    )
    broker: str = option(
        "Any journal broker; several, separated by commas, in case one is gone.",
        env="BROKER_ADDRESS",
        default=BROKER_ADDRESS_DEFAULT,
    )
    auth_keys: str = option(
        "Base64 keys, the first of which signs our requests.",
        env="AUTH_KEYS",
        is_secret=True,
        default="",
        show_default=False,
    )
    auth_keys_file: Path | None = option(
        "File with such keys, in place of --auth-keys.", env="AUTH_KEYS_FILE", type=_FILE
    )
    broker_auth_keys: str = option(
        "The same for the broker, if its keys are others.",
        env="BROKER_AUTH_KEYS",
        is_secret=True,
        default="",
        show_default=False,
    )
    broker_auth_keys_file: Path | None = option(
        "File with such keys, in place of --broker-auth-keys.",
        env="BROKER_AUTH_KEYS_FILE",
        type=_FILE,
    )
    token_file: Path | None = option(
        "File with a token that our requests show, in place of one signed with keys.",
        env="AUTH_TOKEN_FILE",
        type=_FILE,
    )
    tls: Annotated[TlsConfig | None, Group((client_tls_options,), take_tls)]
    """For addresses with `https://`."""
    quiet: bool = False
    """Say nothing of members that cannot be reached."""

    def shards(self) -> ShardClient:
        """Return a client of the members' Shard service."""
        return self._to_members(ShardClient)

    def allocation(self) -> AllocationClient:
        """Return a client of the members' Allocation service."""
        return self._to_members(AllocationClient)

    def elastic(self) -> ElasticClient:
        """Return a client of the members' Elastic service."""
        return self._to_members(ElasticClient)

    def recovery(self) -> RecoveryClient:
        """Return a client of the members' Recovery service."""
        return self._to_members(RecoveryClient)

    def keyed(self) -> KeyedClient:
        """Return a client of the members' Keyed service."""
        return self._to_members(KeyedClient)

    def journals(self, fragments: DirectFragments = BY_URL) -> JournalClient:
        """Return a client of the brokers' Journal service.

        Args:
            fragments: Rules for reading stored fragments without their broker.
        """
        policy = TransportPolicy(tls=self.tls, fragments=fragments)
        auth = self.broker_auth()
        with option_values({"address": "--broker"}):
            return JournalClient(self.broker, auth=auth, policy=policy)

    def _to_members(self, client: type[ClientT]) -> ClientT:
        auth = self.member_auth()
        with option_values({"address": "--address"}):
            return client(
                self.address, auth=auth, on_passed_over=self._on_passed_over, tls=self.tls
            )

    def _on_passed_over(self, error: EndpointError) -> None:
        # The answer comes from another address, so this is no error.
        if not self.quiet:
            say(f"{error.address} cannot be reached ({error.detail}); asking another member")

    def member_auth(self) -> ClientAuth | None:
        """Return what authorizes requests to members; None without credentials.

        Raises:
            WrongValueError: a file cannot be read, or holds no keys.
        """
        if self.token_file is not None:
            with option_values({"token_file": "--token-file"}):
                return BearerAuth(read_token(self.token_file))
        return _keyed("--auth-keys", self.auth_keys, self.auth_keys_file)

    def broker_auth(self) -> ClientAuth | None:
        """Return the same for brokers: their own keys, if they have others."""
        own = _keyed("--broker-auth-keys", self.broker_auth_keys, self.broker_auth_keys_file)
        return own or self.member_auth()


def _keyed(option_name: str, text: str, file: Path | None) -> ClientAuth | None:
    keys = keys_from(text, file)
    with option_values({"auth_keys": option_name if file is None else f"{option_name}-file"}):
        return KeyedAuth(keys) if keys else None


_CREDENTIALS = (
    ("auth_keys", "auth_keys_file", "token_file"),
    ("broker_auth_keys", "broker_auth_keys_file"),
)
"""Options of which one given by a flag or the environment replaces all that the file says."""


def _drop_overridden(ctx: click.Context, options: dict[str, Any]) -> None:
    """Forget credentials of the file where a flag or the environment gives others."""
    of_file = {ParameterSource.DEFAULT_MAP, ParameterSource.DEFAULT}
    for group in _CREDENTIALS:
        sources = {name: ctx.get_parameter_source(name) for name in group}
        if any(source not in of_file for source in sources.values()):
            for name, source in sources.items():
                if source is ParameterSource.DEFAULT_MAP:
                    options[name] = None


def take_connection(values: dict[str, Any]) -> Connection:
    """Return the connection of a command line; its values are removed from `values`, which are by name.

    Raises:
        ValidationError: options of TLS lack each other.
    """
    _drop_overridden(click.get_current_context(), values)
    return options_from(Connection, values)


def quiet_connection(ctx: click.Context) -> Connection:
    """Return the connection of a command line that is being completed: it says nothing."""
    values = {str(param.name): ctx.params.get(str(param.name)) for param in ctx.command.params}
    return replace(options_from(Connection, values), quiet=True)
