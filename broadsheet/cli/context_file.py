"""The file of contexts: addresses and credentials of clusters by name.

Flags come before environment variables, and those before the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import msgspec

from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.text_files import read_text
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.yaml_documents import decode_yaml


class Context(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Addresses and files of credentials of one cluster; keys themselves are in files of their own."""

    address: str = ""
    broker: str = ""
    etcd: str = ""
    auth_keys_file: str = ""
    broker_auth_keys_file: str = ""
    token_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    etcd_ca_file: str = ""
    etcd_cert_file: str = ""
    etcd_key_file: str = ""
    etcd_user: str = ""


class ContextsFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The configuration file."""

    current: str = ""
    """The context that is used where none is named."""
    contexts: dict[str, Context] = {}


_PARAMETERS = {"etcd": "endpoints"}
"""Parameters of commands that have other names than the fields."""
_FILES = frozenset(name for name in Context.__struct_fields__ if name.startswith("tls_")) | {
    name for name in Context.__struct_fields__ if name.endswith("_file")
}


def contexts_path() -> Path:
    """Return where the configuration file is, or would be.

    Raises:
        ValidationError: the user has no home directory.
    """
    if named := os.environ.get("BROADSHEET_CONFIG"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return _expanded("HOME", home) / "broadsheet" / "config.yaml"


def default_path() -> Path | None:
    """Return `contexts_path`; None for a user without a home directory, as in containers with an arbitrary user id."""
    try:
        return contexts_path()
    except ValidationError:
        return None


def read_contexts() -> ContextsFile:
    """Return the contexts; none if there is no file.

    Raises:
        ValidationError: the file cannot be read, or has an unknown field; the message names both.
    """
    path = default_path()
    if path is None or (not path.exists() and "BROADSHEET_CONFIG" not in os.environ):
        return ContextsFile()
    text, name = read_text(path, option="BROADSHEET_CONFIG")
    return decode_yaml(text, ContextsFile, name) if text.strip() else ContextsFile()


def context_values(found: ContextsFile, name: str) -> dict[str, str]:
    """Return what a context says, by the parameters of commands; paths are relative to the file.

    Args:
        found: The file.
        name: Of the context; empty for the current one, which may be none.

    Raises:
        NothingSelectedError: there is no such context.
    """
    chosen = name or found.current
    if not chosen:
        return {}
    if chosen not in found.contexts:
        known = ", ".join(sorted(found.contexts)) or "none"
        option = "--context" if name else f"{default_path()}: current"
        raise NothingSelectedError(option, f"there is no context {chosen!r}, but {known}")
    said = msgspec.to_builtins(found.contexts[chosen])
    directory = contexts_path().parent
    return {
        _PARAMETERS.get(field, field): str(directory / _expanded(field, value))
        if field in _FILES
        else value
        for field, value in said.items()
    }


def _expanded(field: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValidationError(
            field, f"{value}: this user has no home directory; set HOME, or name whole paths"
        ) from error


def with_current(text: str, name: str) -> str:
    """Return a configuration file with another current context, and all else, comments too, as it was."""
    line = f"current: {msgspec.json.encode(name).decode()}\n"
    replaced, count = re.subn(
        r"^current:.*(\n|$)", lambda _: line, text, count=1, flags=re.MULTILINE
    )
    return replaced if count else line + text


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts that begin so."""
    del ctx, param
    try:
        return [name for name in read_contexts().contexts if name.startswith(incomplete)]
    except ValidationError:
        return []
