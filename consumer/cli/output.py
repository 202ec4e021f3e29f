"""What commands print: a table for people, YAML or JSON for programs. Results go to stdout, all else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

import click
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class OutputFormat(Enum):
    """How a result is printed."""

    TABLE = "table"
    YAML = "yaml"
    JSON = "json"


selector_option = click.option(
    "-l",
    "--selector",
    default="",
    help="Label selector, e.g. 'app=flights, id:prefix=flights/'; empty selects all.",
)


def format_option(*formats: OutputFormat) -> Callable[[CommandT], CommandT]:
    """Return the option that chooses how results are printed; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([chosen.value for chosen in formats]),
        default=formats[0].value,
        show_default=True,
        help="How to print the result.",
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their columns; every row has shape (len(columns),).

    On a terminal the table fits it; elsewhere no line is folded or cut, so that tools can read it.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not sys.stdout.isatty())
    for row in rows:
        table.add_row(*row)
    if sys.stdout.isatty():
        Console().print(table)
    else:
        widths = [len(column) + 2 for column in columns]
        longest = max((len(cell) for row in rows for cell in row), default=0)
        width = sum(widths) + (longest + 2) * len(columns)
        Console(width=width).print(table)


def print_message(message: Message) -> None:
    """Print a protobuf message as JSON: field names as in the .proto, zero values included."""
    click.echo(
        MessageToJson(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    )


def say(text: str) -> None:
    """Tell the person at the terminal something that is not the result."""
    click.echo(text, err=True)
