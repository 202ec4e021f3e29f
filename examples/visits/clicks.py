"""Clicks: their journals, and programs that publish them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from broadsheet.journals import (
    JournalClient,
    JsonType,
    KeyColumn,
    MappedJournal,
    MessageClock,
    Publisher,
    new_producer_id,
)

CLICKS: Final = "visits/clicks/"
_JSON: Final = JsonType()
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PAGES: Final = ("basket", "home", "search")
_LOOP: Final = asyncio.Runner()
"""For all calls: gRPC logs an error for each event that comes for a loop which was closed, while another one runs."""


def partitions() -> list[MappedJournal]:
    """Return the journals of clicks."""
    return [MappedJournal(f"{CLICKS}part-{each:03d}", _JSON.content_type) for each in range(2)]


BY_USER: Final = KeyColumn("user", partitions)
"""The journal of a click: all of a user are in one."""


def publish_clicks(broker: str, users: int, each: int) -> dict[str, int]:
    """Publish clicks of some users within ten minutes; return where they end in their journals, bytes."""
    total = users * each
    return _published(
        broker,
        [
            {
                "user": f"user-{number % users}",
                "page": _PAGES[number % 3],
                "at": _BEGIN + timedelta(minutes=10) * number / total,
            }
            for number in range(total)
        ],
    )


def click(broker: str, user: str, *, minute: int = 10) -> dict[str, int]:
    """Publish one click of a user; return where it ends in its journal, bytes."""
    at = _BEGIN + timedelta(minutes=minute)
    return _published(broker, [{"user": user, "page": "home", "at": at}])


def _published(broker: str, rows: list[dict[str, Any]]) -> dict[str, int]:
    types = pa.schema(
        [("user", pa.string()), ("page", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    )
    return _LOOP.run(_append(broker, pa.Table.from_pylist(rows, types)))


async def _append(broker: str, some: pa.Table) -> dict[str, int]:
    clock = MessageClock()
    clock.update(time.time())
    publisher = Publisher(clock, new_producer_id())
    publisher.publish_batch(BY_USER, some, _JSON)
    ends = {}
    async with JournalClient(broker) as journals:
        for each in publisher.take_appends():
            await journals.append(each.journal, each.content)
        # Only now, because acknowledged messages must be present.
        for intent in publisher.build_ack_intents():
            done = await journals.append(intent.journal, intent.content)
            ends[intent.journal] = done.commit.end
    return ends
