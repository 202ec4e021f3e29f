"""`shardctl keyed schema`: the tables, keys and variables of a shard's state."""

from __future__ import annotations

from collections.abc import Iterable

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import Output, OutputFormat, print_message
from broadsheet.cli.output.tables import print_table
from broadsheet.wire.keyed_pb2 import KeyedField, KeyedTable, KeyedVariable

COLUMNS = ["TABLE", "COLUMN", "KIND", "TYPE", "TTL"]


@command_options
class _SchemaOptions:
    shard: ShardId
    output: Output


@cluster_command("schema", _SchemaOptions)
async def show_schema(connection: Connection, options: _SchemaOptions) -> None:
    """Show the tables, keys and variables of a shard's state.

    The document has the operators of a stream, the watermark, and when the next timer is due, too.

    \b
    Examples:
      shardctl keyed schema visits-000
      shardctl keyed schema sessions-000 -o json | jq '.tables[].operator'
    """
    async with connection.keyed() as client:
        described = await client.describe(options.shard)
    if options.output is not OutputFormat.TABLE:
        for table in described.tables:
            # It says the same as the fields, for programs that have Arrow.
            table.arrow_schema = b""
        print_message(described, options.output)
        return
    print_table(COLUMNS, [row for table in described.tables for row in _rows(table)])


def _rows(table: KeyedTable) -> Iterable[list[str]]:
    for field in table.key:
        yield [table.name, field.name, "key", field.type, ""]
    for variable in table.variables:
        ttl = f"{variable.ttl_ms / 1000:g} s" if variable.ttl_ms else ""
        yield [table.name, variable.name, variable.kind, _type_of(variable), ttl]


def _type_of(variable: KeyedVariable) -> str:
    value = _fields(variable.fields)
    return f"{_fields(variable.map_key)} → {value}" if variable.map_key else value


def _fields(fields: Iterable[KeyedField]) -> str:
    found = list(fields)
    if len(found) == 1:
        return found[0].type
    return f"({', '.join(f'{each.name} {each.type}' for each in found)})"
