"""Time zones of timestamps that are texts: by name, as Spark takes them, and the session's, as its tasks know it."""

from __future__ import annotations

import os
import re
from datetime import timedelta, timezone, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

SESSION_PROPERTY: Final = "spark.sql.session.timeZone"
"""Setting that Spark passes to tasks as a local property, if it is set."""
_OFFSET: Final = re.compile(r"([+-])(\d\d?)(?::?(\d\d)(?::(\d\d))?)?", re.ASCII)
_UTC_NAMES: Final = frozenset(("Z", "UTC", "GMT", "UT"))
_ZONES_MAX: Final = 1024
_LOCALTIME: Final = Path("/etc/localtime")


@lru_cache(maxsize=_ZONES_MAX)
def zone_of(name: str) -> tzinfo:
    """Return the zone of a name as Spark takes it: a region, `Z`, `UTC` or an offset such as `+05:30`.

    Raises:
        ValueError: there is none.
    """
    if name in _UTC_NAMES:
        # As a region, so that columns can be read at once.
        return ZoneInfo("UTC")
    bare = name.removeprefix("UTC").removeprefix("GMT") if name[3:4] in ("+", "-") else name
    if found := _OFFSET.fullmatch(bare):
        sign, hours, minutes, seconds = found.groups()
        size = timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
        if size > timedelta(hours=18):
            raise ValueError(f"expected an offset of at most 18 hours, got {name:.60}")
        return timezone(-size if sign == "-" else size)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"expected a time zone, got {name:.60}") from error


def session_zone(given: str | None) -> tzinfo:
    """Return the zone of a read in a task: the option's, else the session's, else this machine's.

    Args:
        given: The option; None if it is not set.

    Raises:
        ValueError: the session's is none that Python knows.
    """
    if given is not None:
        return zone_of(given)
    from pyspark import TaskContext

    context = TaskContext.get()
    # Spark passes only settings that were made; the default is the zone of the driver's machine.
    name = context.getLocalProperty(SESSION_PROPERTY) if context is not None else None
    return zone_of(name) if name else _machine_zone()


def _machine_zone() -> tzinfo:
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name and _LOCALTIME.is_symlink():
        _, _, name = str(_LOCALTIME.readlink()).partition("zoneinfo/")
    try:
        return zone_of(name or "UTC")
    except ValueError:
        return ZoneInfo("UTC")
