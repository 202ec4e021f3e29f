"""The options of a read of shards' state. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_bridge.format_options import FormatOptions, OptionError
from spark_bridge.shard_tables.access import ClusterAccess, access_of, options_of, selector_of

PATIENCE_SECONDS: Final = 60.0
"""How long a shard may have nobody who answers for it, by default: a fail-over takes a second, a recovery some more."""
_KNOWN: Final = ("selector", "table", "maxStalenessSeconds", "includeMetadata", "timeoutSeconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """What to read of which shards."""

    access: ClusterAccess
    selector: str
    table: str
    """Empty: the only one that stores show."""
    max_staleness_seconds: float
    """0: only primaries answer."""
    include_metadata: bool
    patience_seconds: float


def state_options(options: Mapping[str, str]) -> StateOptions:
    """Return the options of a read.

    Raises:
        OptionError: one is unknown, missing or wrong.
    """
    given = options_of(options, known=_KNOWN)
    return StateOptions(
        access=access_of(given),
        selector=selector_of(given),
        table=given.text_or_none("table") or "",
        max_staleness_seconds=_seconds(given, "maxStalenessSeconds", default=0.0),
        include_metadata=given.flag("includeMetadata"),
        patience_seconds=_seconds(given, "timeoutSeconds", default=PATIENCE_SECONDS),
    )


def _seconds(given: FormatOptions, name: str, *, default: float) -> float:
    text = given.text_or_none(name)
    if text is None:
        return default
    expected = "a number of seconds, at least 0, e.g. 2.5"
    try:
        seconds = float(text)
    except ValueError:
        raise OptionError(name, expected, got=text) from None
    if not math.isfinite(seconds) or seconds < 0:
        raise OptionError(name, expected, got=text)
    return seconds
