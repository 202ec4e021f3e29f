"""`shardctl keyed get`: the state of one key, or of several."""

from __future__ import annotations

import json
from typing import Any

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.keyed.reads import KeyedReadTerms, KeyFields, columns_of, print_rows, table_in
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import Output
from broadsheet.runtime.errors import ValidationError


@command_options
class _GetOptions:
    shard: ShardId
    fields: KeyFields
    key: tuple[str, ...] = option(
        "A key as a JSON list, such as '[\"alice\", null]'; may be repeated.",
        multiple=True,
        metavar="JSON",
    )
    read: KeyedReadTerms
    output: Output


@cluster_command("get", _GetOptions)
async def get_keys(connection: Connection, options: _GetOptions) -> ExitStatus | None:
    """Look a key up in a shard's state.

    FIELDs are the fields of the key, in order. The answer is of the shard's last commit; a stream's table has a row for
    each window or session that the key has open. The exit status is 3 if there is none.

    \b
    Examples:
      shardctl keyed get visits-000 alice
      shardctl keyed get visits-000 alice --columns clicks -o json
      shardctl keyed get sessions-000 --table operator_1 --key '[1007]'
    """
    keys: list[list[Any]] = [_parsed(text) for text in options.key]
    if options.fields:
        keys.insert(0, list(options.fields))
    if not keys:
        raise ValidationError("FIELD", "expected the fields of a key, or --key")
    terms = options.read.terms()
    async with connection.keyed() as client:
        described = await client.describe(options.shard)
        answer = await client.get(options.shard, keys, terms)
    columns = columns_of(table_in(described, terms.table), terms.columns)
    print_rows(columns, answer.rows, answer.state, options.output)
    return None if answer.rows else ExitStatus.NOT_FOUND


def _parsed(text: str) -> list[Any]:
    try:
        key = json.loads(text)
    except ValueError as error:
        raise ValidationError("--key", f"expected a JSON list, got {text!r}: {error}") from error
    if not isinstance(key, list):
        raise ValidationError("--key", f"expected a JSON list, got {text!r}")
    return key
