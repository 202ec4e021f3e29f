"""`shardctl token`: tokens signed with the cluster's keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from broadsheet.cli.command import plain_command
from broadsheet.cli.durations import parse_duration
from broadsheet.cli.errors import option_values
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import OutputFormat, print_fields
from broadsheet.cli.output.tables import print_table
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import Claims, KeyedAuth, capability_text, keys_from, parse_capability
from broadsheet.wire.selector_text import format_selector, parse_selector


@command_options
class _TokenOptions:
    capabilities: tuple[str, ...] = option(
        "LIST, READ, APPEND, APPLY, REPLICATE, ALL, or an application's number; repeat it for more.",
        "-c",
        "--capability",
        multiple=True,
        required=True,
        metavar="NAME",
    )
    selector: str = option("What it covers, e.g. team=a; absent: all.", "-l", default="")
    life: str = option("How long it is valid, e.g. 15m or 24h.", default="1h")
    subject: str = option("Whom it is for; the audit log names them.", default="")
    auth_keys: str = option(
        "The keys.", is_secret=True, envvar="AUTH_KEYS", default="", show_default=False
    )
    auth_keys_file: Path | None = option(
        "File with the keys, the first of which signs.",
        env="AUTH_KEYS_FILE",
        type=click.Path(path_type=Path),
    )
    output: str = option(
        "The token alone, or what it says as well.",
        "-o",
        type=click.Choice(["token", "json", "table"]),
        default="token",
    )


@plain_command("token", _TokenOptions)
def token(options: _TokenOptions) -> None:
    """Print a token signed with the cluster's keys.

    Give it to callers that should not have the keys: `--token-file` shows it. A token cannot be withdrawn before it
    ends, except by rotating the keys: keep its life short.

    \b
    Examples:
      shardctl token -c LIST -c READ -l team=a --auth-keys-file keys > token
      shardctl token -c APPLY --life 15m --subject maria -o json
    """
    claims = _claims(options)
    keys = keys_from(options.auth_keys, options.auth_keys_file)
    if not keys:
        raise ValidationError("--auth-keys-file", "expected the file of the keys that sign")
    given = "--auth-keys" if options.auth_keys_file is None else "--auth-keys-file"
    with option_values({"auth_keys": given}):
        signed = KeyedAuth(keys).sign(claims)
    if options.output == "token":
        click.echo(signed)
        return
    assert claims.expires_at is not None, "a token ends"
    fields = {
        "capabilities": capability_text(claims.capability),
        "selector": format_selector(claims.selector),
        "subject": claims.subject,
        "expires_at": claims.expires_at.isoformat(timespec="seconds"),
        "token": signed,
    }
    if options.output == "json":
        print_fields(fields, OutputFormat.JSON)
    else:
        print_table(["FIELD", "VALUE"], [[name, text] for name, text in fields.items()])


def _claims(options: _TokenOptions) -> Claims:
    duration = parse_duration(options.life, "--life").ToTimedelta()
    if duration <= timedelta():
        raise ValidationError("--life", f"expected more than nothing, got {options.life}")
    total = parse_capability(options.capabilities[0], "--capability")
    for each in options.capabilities[1:]:
        total |= parse_capability(each, "--capability")
    return Claims(
        capability=total,
        selector=parse_selector(options.selector),
        expires_at=datetime.now(UTC) + duration,
        subject=options.subject,
    )
