"""Output of commands: a table for people, YAML or JSON for programs.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

import click
import structlog
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.cells import cell_len, set_cell_size

from broadsheet.consumer.cli.specs_file import encode_yaml

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class OutputFormat(Enum):
    """Format of a printed result."""

    TABLE = "table"
    YAML = "yaml"
    JSON = "json"


selector_option = click.option(
    "-l",
    "--selector",
    default="",
    show_default=False,
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

    A cell is never wrapped or truncated, whatever the terminal's width, because names are copied, and read by tools.

    A cell is never folded or cut, whatever the terminal's width: names are there to be copied, and read by tools.
    """
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    for number, row in enumerate([columns, *rows]):
        cells = [set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)]
        # Bold only on a terminal: click drops the styles elsewhere.
        click.secho("  ".join(cells).rstrip(), bold=number == 0)


def print_message(message: Message, output_format: OutputFormat = OutputFormat.JSON) -> None:
    """Print a protobuf message as JSON or YAML: field names as in the .proto, zero values included."""
    print_fields(_fields_of(message), output_format)


def print_messages(name: str, messages: Sequence[Message], output_format: OutputFormat) -> None:
    """Print protobuf messages as one JSON or YAML document, in a list called `name`."""
    print_fields({name: [_fields_of(message) for message in messages]}, output_format)


def _fields_of(message: Message) -> dict[str, Any]:
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def print_fields(fields: dict[str, Any], output_format: OutputFormat) -> None:
    """Print one document of JSON or YAML."""
    if output_format is OutputFormat.YAML:
        click.echo(encode_yaml(fields), nl=False)
    else:
        click.echo(json.dumps(fields, indent=2, ensure_ascii=False))


def counted(count: int, noun: str) -> str:
    """Return `1 change`, `2 changes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def say(text: str) -> None:
    """Print a message to the user that is not the result."""
    click.echo(text, err=True)


# Logs on standard error: lines for people on a terminal, JSON for programs.

LOG_LEVELS = ("debug", "info", "warning", "error")


def log_to_stderr(level: str) -> None:
    """Send every event of `level` and above to standard error.

    Args:
        level: One of `LOG_LEVELS`.
    """
    on_terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if on_terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
