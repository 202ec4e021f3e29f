"""Contexts: addresses and credentials of clusters by name, in a file; `shardctl contexts` and `shardctl completion`.

Flags come before environment variables, and those before the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import msgspec
from click.shell_completion import get_completion_class

from broadsheet.cli.errors import NothingSelectedError, errors_in_one_line
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.specs.files import read_text
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.yaml_documents import decode_yaml

CURRENT_MARK = "*"


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


def _default_path() -> Path | None:
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
    path = _default_path()
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
        option = "--context" if name else f"{_default_path()}: current"
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


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts that begin so."""
    del ctx, param
    try:
        return [name for name in read_contexts().contexts if name.startswith(incomplete)]
    except ValidationError:
        return []


@click.command("list")
def list_contexts() -> None:
    """List contexts; the current one is marked.

    \b
    Examples:
      shardctl contexts list
    """
    with errors_in_one_line():
        found = read_contexts()
    used = os.environ.get("BROADSHEET_CONTEXT") or found.current
    print_table(
        ["CURRENT", "NAME", "ADDRESS", "BROKER"],
        [
            [CURRENT_MARK if name == used else "", name, each.address, each.broker]
            for name, each in sorted(found.contexts.items())
        ],
    )
    if not found.contexts:
        say(f"there are no contexts in {_default_path() or 'any file: this user has no home'}")


@click.command("use")
@click.argument("name", shell_complete=complete_contexts)
def use_context(name: str) -> None:
    """Make NAME the current context.

    \b
    Examples:
      shardctl contexts use test
    """
    path = contexts_path()
    with errors_in_one_line():
        context_values(read_contexts(), name)
        text, _ = read_text(path, option="BROADSHEET_CONFIG")
        try:
            path.write_text(with_current(text, name), encoding="utf-8")
        except OSError as error:
            raise ValidationError(str(path), f"cannot be written: {error.strerror}") from error
    say(f"the current context is {name}")


def with_current(text: str, name: str) -> str:
    """Return a configuration file with another current context, and all else, comments too, as it was."""
    line = f"current: {msgspec.json.encode(name).decode()}\n"
    replaced, count = re.subn(
        r"^current:.*(\n|$)", lambda _: line, text, count=1, flags=re.MULTILINE
    )
    return replaced if count else line + text


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, and the ids of shards, journals and members as the cluster has them.

    \b
    Examples:
      eval "$(shardctl completion bash)"    # in ~/.bashrc
      eval "$(shardctl completion zsh)"     # in ~/.zshrc
      shardctl completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has all of these"
    click.echo(kind(ctx.find_root().command, {}, "shardctl", "_SHARDCTL_COMPLETE").source())
