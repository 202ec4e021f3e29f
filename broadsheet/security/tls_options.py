"""Options of commands for TLS: `--tls-ca`, `--tls-cert`, `--tls-key`, `--tls-server-name`, `--tls-client-ca`.

Each is an environment variable too. They begin with BROADSHEET, because other programs in a container may mean
something else by TLS_CERT.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.tls import TlsConfig

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_FIELDS: Final = {
    "tls_ca": "ca_file",
    "tls_cert": "cert_file",
    "tls_key": "key_file",
    "tls_client_ca": "client_ca_file",
    "tls_server_name": "server_name",
}
"""Parameters of commands, and the fields that they set."""
_CLIENT_HELP: Final = {
    "tls_ca": "Authorities that sign the certificates of https:// servers; public ones if absent.",
    "tls_cert": "Our certificate, for servers that ask for one.",
    "tls_key": "Its private key.",
    "tls_server_name": "Name to expect in certificates of https:// servers; the address's host if absent.",
}
_SERVER_HELP: Final = {
    "tls_ca": "Authorities that sign the certificates of https:// members and brokers; public ones if absent.",
    "tls_cert": "Certificate to serve https:// with, and to show to servers that ask for one.",
    "tls_key": "Its private key.",
    "tls_client_ca": "Authorities that sign clients' certificates; clients without one are refused.",
    "tls_server_name": "Name to expect in certificates of https:// servers; the address's host if absent.",
}
TLS_VARIABLES: Final = tuple(f"BROADSHEET_{name.upper()}" for name in _FIELDS)
"""Environment variables of the options."""


_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


def client_tls_options(command: CommandT) -> CommandT:
    """Add the options of a client to a command."""
    return _with_options(command, _CLIENT_HELP)


def server_tls_options(command: CommandT) -> CommandT:
    """Add the options of a server to a command; what it calls itself uses them, too."""
    return _with_options(command, _SERVER_HELP)


def _with_options(command: CommandT, helps: dict[str, str]) -> CommandT:
    for name, text in reversed(helps.items()):
        command = click.option(
            _option_of(name),
            envvar=f"BROADSHEET_{name.upper()}",
            show_envvar=True,
            type=str if name == "tls_server_name" else _FILE,
            help=text,
        )(command)
    return command


def take_tls(options: dict[str, Any]) -> TlsConfig | None:
    """Remove the options for TLS from those of a command, and return the files; None if none is given.

    Args:
        options: By parameter name, as click gives them.

    Raises:
        ValidationError: one is given without another that it needs; the error names the missing option.
    """
    given = {field: options.pop(name, None) for name, field in _FIELDS.items()}
    if not any(given.values()):
        return None
    try:
        return TlsConfig(**given)
    except ValidationError as error:
        names = {field: name for name, field in _FIELDS.items()}
        raise ValidationError(_option_of(names[error.field_path]), error.problem) from None


def tls_arguments(tls: TlsConfig | None) -> list[str]:
    """Return the arguments of a command for these files."""
    if tls is None:
        return []
    given = ((name, getattr(tls, field)) for name, field in _FIELDS.items())
    return [part for name, path in given if path for part in (_option_of(name), str(path))]


def _option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"
