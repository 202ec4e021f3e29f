"""Documents for programs, JSON or YAML, and the option that chooses between them and a table for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, TypeAlias, TypeVar

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from broadsheet.cli.output.tables import print_table
from broadsheet.runtime.yaml_documents import encode_yaml

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class OutputFormat(Enum):
    """Format of a printed result."""

    TABLE = "table"
    YAML = "yaml"
    JSON = "json"


def format_option(*formats: OutputFormat) -> Callable[[CommandT], CommandT]:
    """Return the option that chooses how results are printed; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([chosen.value for chosen in formats]),
        default=formats[0].value,
        show_default=True,
        callback=lambda ctx, param, value: OutputFormat(value),
        help="How to print the result.",
    )


Output: TypeAlias = Annotated[
    OutputFormat, format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
]


def print_message(message: Message, output_format: OutputFormat = OutputFormat.JSON) -> None:
    """Print a protobuf message as JSON or YAML: field names as in the .proto, zero values included."""
    print_fields(fields_of(message), output_format)


def print_messages(name: str, messages: Sequence[Message], output_format: OutputFormat) -> None:
    """Print protobuf messages as one JSON or YAML document, in a list called `name`."""
    print_fields({name: [fields_of(message) for message in messages]}, output_format)


def print_list(
    output: OutputFormat,
    name: str,
    items: Iterable[Message | Mapping[str, Any]],
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
) -> bool:
    """Print a list, and return whether as a table, which people may want a word about.

    Args:
        output: The form.
        name: Of the list in a document.
        items: What a document has.
        columns: Of the table.
        rows: What the table has; of shape (len(columns),) each.
    """
    if output is OutputFormat.TABLE:
        print_table(columns, [*rows])
        return True
    found = [fields_of(each) if isinstance(each, Message) else dict(each) for each in items]
    print_fields({name: found}, output)
    return False


def fields_of(message: Message) -> dict[str, Any]:
    """Return a protobuf message as JSON has it: field names as in the .proto, zero values included."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def print_fields(fields: dict[str, Any], output_format: OutputFormat) -> None:
    """Print one document of JSON or YAML."""
    if output_format is OutputFormat.YAML:
        click.echo(encode_yaml(fields), nl=False)
    else:
        click.echo(json.dumps(fields, indent=2, ensure_ascii=False))
