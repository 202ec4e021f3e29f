"""Timers and expiries of keyed shards over a split and a merge, over real members, etcd and broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from broadsheet.consumer.client import ElasticClient
from broadsheet.consumer.keyed import (
    EventTime,
    JournalOutput,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    TxnTime,
)
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from tests.support.eventually import eventually
from tests.support.family_rounds import merged
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    create_journals,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs
from tests.support.splitting import (
    CHILD,
    KEYS,
    OUTPUT,
    PARENT,
    SOURCE,
    MemberApplication,
    spec,
    traffic,
)

pytestmark = pytest.mark.etcd

SIDE = "test/side"
TTL_MS = 400
WAITS_MS = (100, 500, 1_500)
"""Of timers: by the clock, or as many messages of event time."""
SCHEMA = "key string, what string, at long, count long, seen long, recent array<long>, batch_ms long, watermark_ms long"
Mode = Literal["processing", "event"]


class Reminders(KeyedProcessor):
    """Counts rows of a key, sets a timer for each, and remembers the first and the last ones for a while."""

    def __init__(self, mode: Mode) -> None:
        self._is_event = mode == "event"

    def init(self, state: StateHandle) -> None:
        """Declare a count, and what expires."""
        self.count = state.value("count", int)
        self.seen = state.value("seen", int, ttl_ms=TTL_MS)
        self.recent = state.list("recent", int, ttl_ms=TTL_MS)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Count, be reminded, and tell what was there before."""
        for row in rows:
            self.count.update((self.count.get() or 0) + 1)
            yield self._told(key, "row", row.n, time)
            if self.seen.get() is None:
                self.seen.update(time.batch_ms)
            self.recent.append(time.batch_ms)
            now_ms = row.n if self._is_event else time.batch_ms
            self.timers.register(now_ms + WAITS_MS[row.n % len(WAITS_MS)])

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Tell."""
        yield self._told(key, "timer", expiry_ms, time)

    def _told(self, key: tuple[Any, ...], what: str, at: int, time: TxnTime) -> tuple[Any, ...]:
        seen, recent = self.seen.get(), list(self.recent.get())
        count = self.count.get()
        return (*key, what, at, count, seen, recent, time.batch_ms, time.watermark_ms)


def application(mode: Mode) -> Any:
    """Return the application; `Any`: the members of tests are typed for another one."""
    return MemberApplication(
        lambda: Reminders(mode),
        key="key string",
        rows="key string, n long",
        output=JournalOutput(MappedJournal(OUTPUT, NDJSON), JsonType(), SCHEMA),
        time=mode,
        event_time=EventTime(column="n") if mode == "event" else None,
        side=JournalOutput(MappedJournal(SIDE, NDJSON), JsonType()),
    )


@pytest.mark.parametrize("mode", ["processing", "event"])
async def test_timers_and_expiries_go_on_over_a_split_and_a_merge(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, mode: Mode
) -> None:
    """Set before, due at any moment of both: each timer fires once, and each value ends in time, as in one shard."""
    await create_logs(journals, PARENT)
    await create_journals(journals, SIDE)
    producer = Producer(journals)
    async with (
        cluster.member("one", application=application(mode), state_dir=str(tmp_path)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        async with traffic(producer) as sent:
            await eventually(lambda: sent.total() > 400)
            await elastic.split(PARENT, journals, at_group=2048)
            await wait_for_primaries(client, CHILD)
            at_split = sent.total()
            await eventually(lambda: sent.total() > at_split + 400)

            async def over() -> bool:
                return not await elastic.splits()

            await eventually(over)
            await elastic.merge(PARENT, CHILD)
            await merged(elastic)
            at_merge = sent.total()
            await eventually(lambda: sent.total() > at_merge + 400)
        if mode == "event":
            # One key's event time passes all timers but its own last ones.
            await producer.publish(SOURCE, [KEYS[0]] * (max(WAITS_MS) + 1))
            sent.update({KEYS[0]: max(WAITS_MS) + 1})

        async def all_fired() -> list[dict[str, Any]]:
            found = await committed(journals, OUTPUT)
            assert sum(each["what"] == "row" for each in found) == sent.total()
            due = timers_of(found, mode)
            fired = sum(each["what"] == "timer" for each in found)
            assert fired >= len(due), (fired, len(due))
            return found

        found = await eventually(all_fired)
    check_timers(found, mode)
    check_expiries(found)
    assert not await committed(journals, SIDE), "no row is late"


def timers_of(found: list[dict[str, Any]], mode: Mode) -> set[tuple[str, int]]:
    """Return (key, expiry) of the timers that are due in the end, as the rows have set them."""
    rows = [each for each in found if each["what"] == "row"]
    timers = {
        (
            each["key"],
            (each["at"] if mode == "event" else each["batch_ms"])
            + WAITS_MS[each["at"] % len(WAITS_MS)],
        )
        for each in rows
    }
    latest = max(each["at"] for each in rows)
    return {each for each in timers if mode == "processing" or each[1] <= latest}


def check_timers(found: list[dict[str, Any]], mode: Mode) -> None:
    """Each timer fires once, not before it is due; counts go on without a gap."""
    fired = Counter((each["key"], each["at"]) for each in found if each["what"] == "timer")
    assert fired == Counter(timers_of(found, mode))
    for each in found:
        if each["what"] == "timer":
            assert each["at"] <= each["batch_ms" if mode == "processing" else "watermark_ms"]
    for key in KEYS:
        counts = [e["count"] for e in found if e["key"] == key and e["what"] == "row"]
        assert counts == list(range(1, len(counts) + 1))


def check_expiries(found: list[dict[str, Any]]) -> None:
    """A value, and elements of a list, are there until their time is over, and no longer."""
    for key in KEYS:
        seen: int | None = None
        added: list[int] = []
        for each in (each for each in found if each["key"] == key):
            now_ms = each["batch_ms"]
            seen = None if seen is None or now_ms >= seen + TTL_MS else seen
            recent = [at for at in added if now_ms < at + TTL_MS]
            assert (each["seen"], each["recent"]) == (seen, recent)
            if each["what"] == "row":
                seen = now_ms if seen is None else seen
                added = [*recent, now_ms]
