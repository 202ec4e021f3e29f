"""A client of either release: it publishes, and asks for shards, until SIGTERM; then it reports.

`rolled_client.py NAME BROKER MEMBERS SHARDS`: members as addresses with commas, shards as JSON with their journals. It
prints `running`, `loaded` once it has published `LOAD` messages, and in the end a JSON object: the keys that the broker
acknowledged by shard, the queries asked, repeated and failed, and the slowest of them, seconds.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from broadsheet.consumer.client import ShardClient

# By name, because only the release that runs it has the folder on its path.
found: Any = import_module("doors").found
_JOURNALS, _BEFORE = "broadsheet.journals", "broadsheet.consumer"
JournalClient = found("JournalClient", _JOURNALS, _BEFORE)
JsonType = found("JsonType", _JOURNALS, _BEFORE)
MappedJournal = found("MappedJournal", _JOURNALS, _BEFORE)
Publisher = found("Publisher", _JOURNALS, f"{_BEFORE}.message.publisher")
MessageClock = found("MessageClock", _JOURNALS, f"{_BEFORE}.message.uuid")
new_producer_id = found("new_producer_id", _JOURNALS, f"{_BEFORE}.message.uuid")
PUBLISH_SECONDS = 0.02
QUERY_SECONDS = 0.05
LOAD = 200
FAILED_AFTER_SECONDS = 60.0

# `Any` in this module: the types that both releases have under other names.


@dataclass
class Report:
    """What the client saw."""

    sources: dict[str, str]
    """Journal by shard."""
    published: dict[str, list[str]] = field(default_factory=dict)
    queries: int = 0
    repeated: int = 0
    """Queries whose first answer was that the shard has no primary, or that a member is gone."""
    failed: list[str] = field(default_factory=list)
    slowest: float = 0.0


async def publish(journals: Any, name: str, report: Report, ending: asyncio.Event) -> None:
    """Publish a message at a time, and each one again, byte for byte, until it is acknowledged."""
    clock = MessageClock()
    clock.update(time.time())
    publisher = Publisher(clock, new_producer_id())
    number = 0
    while not ending.is_set():
        for shard, journal in report.sources.items():
            number += 1
            key = f"{name}/{number}"
            mapped = MappedJournal(journal, "application/x-ndjson")
            publisher.publish_committed(mapped, {"key": key}, JsonType())
            (pending,) = publisher.take_appends()
            await _append(journals, pending)
            report.published.setdefault(shard, []).append(key)
            if number == LOAD:
                print("loaded", flush=True)
        await asyncio.sleep(PUBLISH_SECONDS)


async def _append(journals: Any, pending: Any) -> None:
    while True:
        try:
            await journals.append(pending.journal, pending.content)
        except Exception as error:
            print(f"append: {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(0.05)
        else:
            return


async def query(shards: Any, report: Report, ending: asyncio.Event) -> None:
    """Ask every shard for its progress, as a client is told to: with `wait_read_through` where `stat` fails."""
    while not ending.is_set():
        for shard in report.sources:
            begun = time.monotonic()
            report.queries += 1
            try:
                await shards.stat(shard, timeout_seconds=FAILED_AFTER_SECONDS)
            except Exception:
                report.repeated += 1
                await _ask_again(shards, shard, report)
            report.slowest = max(report.slowest, time.monotonic() - begun)
        await asyncio.sleep(QUERY_SECONDS)


async def _ask_again(shards: Any, shard: str, report: Report) -> None:
    try:
        await shards.wait_read_through(shard, {}, timeout_seconds=FAILED_AFTER_SECONDS)
    except Exception as error:
        report.failed.append(f"{shard}: {error!r}")


async def main(name: str, broker: str, members: str, shards: str) -> None:
    """Run until SIGTERM."""
    report, ending = Report(json.loads(shards)), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with AsyncExitStack() as stack:
        journals = await stack.enter_async_context(JournalClient(broker))
        asked = await stack.enter_async_context(ShardClient(members))
        print("running", flush=True)
        await asyncio.gather(publish(journals, name, report, ending), query(asked, report, ending))
    print(json.dumps(vars(report)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
