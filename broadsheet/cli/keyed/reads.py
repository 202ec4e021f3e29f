"""Options and output that the verbs of `shardctl keyed` share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import click
from google.protobuf.message import Message

from broadsheet.cli.numbers import Seconds
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import OutputFormat, fields_of, print_fields
from broadsheet.cli.output.tables import print_table
from broadsheet.consumer.client import KeyedReadOptions
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.keyed_pb2 import DescribeKeyedResponse, KeyedTable
from broadsheet.wire.state_pb2 import ScannedState

KeyFields: TypeAlias = Annotated[
    tuple[str, ...], click.argument("fields", nargs=-1, metavar="[FIELD]...")
]


@command_options
class KeyedReadTerms:
    """Terms of a read."""

    table: str = option("Table of the shard's state; its only one if absent.", default="")
    columns: str = option(
        "Columns to show, separated by commas; all if absent.", default="", metavar="NAME,..."
    )
    read_through: tuple[str, ...] = option(
        "Wait until the shard has read this far; may be repeated.",
        multiple=True,
        metavar="JOURNAL=OFFSET",
    )
    max_staleness: float = option(
        "A standby may answer with what was committed so many seconds before; 0: only the primary.",
        type=Seconds(min=0),
        default=0.0,
    )

    def terms(self) -> KeyedReadOptions:
        """Return them for the client."""
        return KeyedReadOptions(
            table=self.table,
            columns=[each for each in self.columns.split(",") if each],
            read_through=offsets_of(self.read_through),
            max_staleness_seconds=self.max_staleness,
        )


def offsets_of(texts: Sequence[str]) -> dict[str, int]:
    """Return offsets by journal.

    Raises:
        ValidationError: a text is no JOURNAL=OFFSET.
    """
    offsets = {}
    for text in texts:
        journal, separator, offset = text.rpartition("=")
        if not separator or not offset.isdecimal():
            raise ValidationError("--read-through", f"expected JOURNAL=OFFSET, got {text!r}")
        offsets[journal] = int(offset)
    return offsets


def table_in(described: DescribeKeyedResponse, name: str) -> KeyedTable | None:
    """Return the table that is asked; None if there is none of that name, which the server then says."""
    if not name and len(described.tables) == 1:
        return described.tables[0]
    return next((each for each in described.tables if each.name == name), None)


def columns_of(table: KeyedTable | None, chosen: Sequence[str]) -> list[str]:
    """Return the columns to show, in order."""
    if chosen or table is None:
        return list(chosen)
    return [*(each.name for each in table.key), *(each.name for each in table.variables)]


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Message],
    state: ScannedState,
    output: OutputFormat,
    **further: Any,
) -> None:
    """Print rows: as a table, or with the commit that they are of as a document.

    Args:
        columns: In order.
        rows: `google.protobuf.Struct` each.
        state: The commit.
        output: The form.
        further: Of the document.
    """
    found = [fields_of(each) for each in rows]
    if output is OutputFormat.TABLE:
        cells = [[_cell(row.get(column)) for column in columns] for row in found]
        print_table([column.upper() for column in columns], cells)
        return
    ordered = [{name: row[name] for name in columns if name in row} for row in found]
    print_fields({"rows": ordered, "state": fields_of(state), **further}, output)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str):
        return value
    return json.dumps(_integers(value), ensure_ascii=False)


def _integers(value: Any) -> Any:
    """Return a value whose whole numbers are written without a fraction: JSON has doubles alone."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_integers(each) for each in value]
    if isinstance(value, dict):
        return {name: _integers(each) for name, each in value.items()}
    return value
