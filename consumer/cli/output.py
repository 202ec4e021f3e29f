"""Output of commands: a table for people, YAML or JSON for programs.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import logging
import os
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
    States are coloured on a terminal: click drops the styles elsewhere.
    """
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    _echo("  ".join(_padded(columns, widths)).rstrip(), bold=True)
    coloured = [column in _STATE_COLUMNS for column in columns]
    for row in rows:
        texts = _padded(row, widths)
        texts[-1] = texts[-1].rstrip()
        cells = [
            styled_state(text) if state else text
            for text, state in zip(texts, coloured, strict=True)
        ]
        _echo("  ".join(cells).rstrip())


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True)]


_STATE_COLUMNS = frozenset({"STATUS", "STATE"})
_COLOURS = {
    "PRIMARY": "green",
    "ready": "green",
    "STANDBY": "cyan",
    "BACKFILL": "yellow",
    "IDLE": "yellow",
    "UNASSIGNED": "yellow",
    "cordoned": "yellow",
    "leaving": "yellow",
    "DISABLED": "bright_black",
    "FAILED": "red",
    "QUARANTINED": "red",
    "HELD BACK": "red",
    "STALLED": "red",
    "UNAVAILABLE": "red",
}


def styled_state(text: str) -> str:
    """Return a state in its colour; any other text as it is. Padding is allowed. `NO_COLOR` turns colours off."""
    colour = _COLOURS.get(text.strip())
    return text if colour is None or os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def _echo(text: str, *, bold: bool = False) -> None:
    click.secho(text, bold=(bold and not os.environ.get("NO_COLOR")) or None)


def print_message(message: Message, output_format: OutputFormat = OutputFormat.JSON) -> None:
    """Print a protobuf message as JSON or YAML: field names as in the .proto, zero values included."""
    print_fields(fields_of(message), output_format)


def print_messages(name: str, messages: Sequence[Message], output_format: OutputFormat) -> None:
    """Print protobuf messages as one JSON or YAML document, in a list called `name`."""
    print_fields({name: [fields_of(message) for message in messages]}, output_format)


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
