"""From where on, or up to where, journals are read: as an option says it.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from spark_bridge.format_options import OptionError

_EXPECTED: Final = (
    "earliest, latest, a time such as 2026-03-01T00:00:00Z, "
    'or offsets by journal such as {"flights/part-000": 4096}'
)
_NAMED: Final = {"earliest": 0, "latest": -1}


@dataclass(frozen=True, slots=True)
class Place:
    """A place in each of several journals."""

    kind: Literal["earliest", "latest", "time", "offsets"]
    time: datetime | None = None
    """With its zone; of kind `time`."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """By journal, bytes; -1 is the write head. Of kind `offsets`."""


EARLIEST: Final = Place("earliest")
LATEST: Final = Place("latest")


def parse_place(option: str, text: str) -> Place:
    """Return the place that an option's text says.

    Raises:
        OptionError: it says none.
    """
    stripped = text.strip()
    match stripped.lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
    if stripped.startswith("{"):
        return Place("offsets", offsets=_offsets(option, stripped))
    try:
        time = datetime.fromisoformat(stripped)
    except ValueError as error:
        raise OptionError(option, _EXPECTED, got=text) from error
    if time.tzinfo is None:
        raise OptionError(option, f"{_EXPECTED}; the time needs a zone, such as Z", got=text)
    return Place("time", time=time)


def _offsets(option: str, text: str) -> dict[str, int]:
    try:
        values: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise OptionError(option, f"{_EXPECTED}, as JSON ({error})", got=text) from error
    offsets: dict[str, int] = {}
    for journal, value in values.items():
        offset = _NAMED.get(value, None) if isinstance(value, str) else value
        if type(offset) is not int or offset < -1:
            expected = f"of {journal} an offset in bytes, at least 0, or earliest or latest"
            raise OptionError(option, expected, got=json.dumps(value))
        offsets[journal] = offset
    return offsets
