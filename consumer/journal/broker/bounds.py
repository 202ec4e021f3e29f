"""What clients together may take of a broker: each bound is an option of the process and a metric.

Bounds refuse, or slow the one that exceeds them; none makes a client wait for another that has stalled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import click

from allocator.errors import ValidationError
from consumer.places import option_of

MEBIBYTE = 1 << 20


def _bound(default: int, explanation: str) -> Any:
    """Return a field; `Any`, because a dataclass turns it into a number."""
    return field(default=default, metadata={"help": explanation})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBounds:
    """Bounds of one broker process; a field's `help` says what it counts."""

    message_bytes_max: int = _bound(8 * MEBIBYTE, "Largest message taken in, bytes.")
    request_bytes_max: int = _bound(
        256 * 1024, "Largest request without its content, bytes; Apply has --message-bytes-max."
    )
    calls_max: int = _bound(16_384, "Calls under way.")
    calls_per_connection_max: int = _bound(4_096, "Calls under way on one connection.")
    append_streams_max: int = _bound(1_024, "Streams of appends that are open.")
    append_streams_per_connection_max: int = _bound(16, "The same on one connection.")
    append_streams_bytes_max: int = _bound(
        96 * MEBIBYTE,
        "Content of appends that came in streams and are not done, bytes; with more, none is read, "
        "and those that wait for others are refused.",
    )
    append_after_max: int = _bound(64, "Appends that one append may come after.")
    append_name_bytes_max: int = _bound(64, "Longest name of an append for those after it, bytes.")
    appends_per_journal_max: int = _bound(
        256,
        "Appends of a journal whose content is being received; a further one takes the place of "
        "the one that has been silent longest.",
    )
    readers_max: int = _bound(8_192, "Reads under way.")
    readers_per_journal_max: int = _bound(1_024, "Reads under way of one journal.")
    readers_bytes_max: int = _bound(
        64 * MEBIBYTE,
        "Content on its way to readers, bytes; with more, it goes in small pieces, and readers "
        "that take nothing are cut off.",
    )

    def __post_init__(self) -> None:
        """Raise ValidationError if a bound is no number above 0."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value < 1:
                raise ValidationError(each.name, f"expected at least 1, got {value}")


def bound_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each bound: `--calls-max` for `calls_max`."""
    for each in reversed(fields(BrokerBounds)):
        command = click.option(
            option_of(each.name),
            type=click.IntRange(min=1),
            default=each.default,
            show_default=True,
            help=each.metadata["help"],
        )(command)
    return command


def bounds_of(options: dict[str, Any]) -> BrokerBounds:
    """Return the bounds that a command line asks for; `Any`, because it has other options too."""
    return BrokerBounds(**{each.name: options[each.name] for each in fields(BrokerBounds)})
