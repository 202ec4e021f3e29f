"""A stream of messages through the shard, and who echoed each, and when."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from bench.failover.app import OUTPUT, SOURCE
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import Flags, MessageClock, new_producer_id
from broadsheet.runtime.task_group import TaskGroup

INTERVAL_SECONDS = 0.005
"""Between two messages."""
DEADLINE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Echoed:
    """A message that was processed, as a read-committed reader learnt it."""

    n: int
    pid: int
    at_monotonic_seconds: float


class Traffic:
    """Publishes without end on a thread of its own. A context manager."""

    def __init__(self, broker: str) -> None:
        """Take the broker's address."""
        self._broker = broker
        self._echoes: list[Echoed] = []
        self._arrived = threading.Condition()
        self._stop: asyncio.Event
        self._event_loop: asyncio.AbstractEventLoop
        self._fillers = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._failure is None:
            self._event_loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def fill(self, mebibytes: int) -> None:
        """Have the shard keep so much more, in messages of 1 MiB."""
        self._fillers += mebibytes

    @property
    def filled(self) -> bool:
        """True once all filler is published."""
        return self._fillers == 0

    def wait_for(self, *, after: float, not_by: int = 0) -> Echoed:
        """Return the first echo that came after a time, by another process than `not_by`."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        seen = 0
        with self._arrived:
            while True:
                for echo in self._echoes[seen:]:
                    if echo.at_monotonic_seconds > after and echo.pid != not_by:
                        return echo
                seen = len(self._echoes)
                if self._failure is not None:
                    raise self._failure
                if not self._arrived.wait(timeout=deadline - time.monotonic()):
                    raise TimeoutError(f"no echo by another process than {not_by}")

    def longest_gap(self, *, since: float, until: float) -> float:
        """Return the longest time between two echoes, seconds."""
        with self._arrived:
            times = [
                echo.at_monotonic_seconds
                for echo in self._echoes
                if since <= echo.at_monotonic_seconds <= until
            ]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def check(self) -> None:
        """Check that each message was processed once."""
        with self._arrived:
            counts = Counter(echo.n for echo in self._echoes)
        doubled = sorted(n for n, count in counts.items() if count > 1)
        lost = sorted(set(range(1, max(counts) + 1)) - counts.keys())
        assert not doubled, f"doubled: {doubled}"
        assert not lost, f"lost: {lost}"

    def _live(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            with self._arrived:
                self._failure = error
                self._arrived.notify_all()

    async def _run(self) -> None:
        self._event_loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with JournalClient(self._broker) as journals, TaskGroup() as group:
            group.start_soon(self._read(journals), name="echoes")
            await self._publish(journals)
            group.stop()

    async def _publish(self, journals: JournalClient) -> None:
        clock = MessageClock()
        clock.update(time.time())
        publisher = Publisher(clock, new_producer_id())
        number = 0
        while not self._stop.is_set():
            number += 1
            keep_bytes = 1 << 20 if self._fillers else 0
            message = {"n": number, "keep_bytes": keep_bytes}
            publisher.publish_committed(MappedJournal(SOURCE, NDJSON), message, JsonType())
            for append in publisher.take_appends():
                await journals.append(append.journal, append.content)
            self._fillers -= 1 if keep_bytes else 0
            await asyncio.sleep(INTERVAL_SECONDS)

    async def _read(self, journals: JournalClient) -> None:
        async for batch in read_committed(journals, OUTPUT, JsonType(), block=True):
            now = time.monotonic()
            found = [
                Echoed(message["n"], message["pid"], now)
                for message, flags in zip(batch.messages(), batch.flags, strict=True)
                if flags != Flags.ACK_TXN
            ]
            with self._arrived:
                self._echoes += found
                self._arrived.notify_all()
