"""Keyed state on members: state, timers and watermark live in a recovery log, and move with the shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from broadsheet.consumer.client import KeyedClient, KeyedReadOptions, StateClient
from broadsheet.consumer.keyed import (
    EventTime,
    JournalOutput,
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    StateOptions,
    TxnTime,
)
from broadsheet.consumer.keyed.store import IndexKind
from broadsheet.consumer.resolver.resolver import ShardResolver
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.security.auth import Claims
from broadsheet.spark_bridge.keyed import HostingOptions, StatefulProcessorApplication
from broadsheet.wire.keyed_pb2 import KEYED_ENCODING_ARROW
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    create_journals,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs, files_below, recorded
from tests.support.spark_processors import TwoModes

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
OUTPUT = "test/output"
SIDE = "test/side"
SHARD = "shard-a"
KEYS = ["a", "b", "a", "c", "b", "a"]
QUIET_MS = 50
"""After so much event time without a row a key ends."""
FAR_MS = 1 << 42
"""A time of the clock that does not come."""


class Sessions(KeyedProcessor):
    """Counts the rows of each key, echoes them, and tells once no row came for a while."""

    def init(self, state: StateHandle) -> None:
        """Declare the count, and when it ends."""
        self.count = state.value("count", int)
        self.end = state.value("end", int)
        self.numbers = state.list("numbers", int)
        self.by_parity = state.map("by_parity", bool, int)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Count, echo, and put the end off."""
        del time
        self.count.update((self.count.get() or 0) + len(rows))
        latest = max(row.n for row in rows)
        before = self.end.get()
        if before is not None:
            self.timers.delete(before)
        self.end.update(latest + QUIET_MS)
        self.timers.register(latest + QUIET_MS)
        for row in rows:
            self.numbers.append(row.n)
            even = row.n % 2 == 0
            self.by_parity.put(even, (self.by_parity.get(even) or 0) + 1)
            yield (*key, row.n, "row")

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Tell the count."""
        del expiry_ms, time
        assert sum(self.by_parity.values()) == len(list(self.numbers.get())) == self.count.get()
        yield (*key, self.count.get(), "end")
        self.count.clear()
        self.numbers.clear()
        self.by_parity.clear()
        self.end.clear()


class Alarms(KeyedProcessor):
    """Answers each key's rows a moment later, by the clock."""

    def init(self, state: StateHandle) -> None:
        """Take the timers."""
        self.timers = state.timers

    def handle_rows(
        self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime
    ) -> Iterable[Any] | None:
        """Set the alarm."""
        del key, rows
        self.timers.register(time.batch_ms + 100)
        return None

    def handle_timer(
        self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime
    ) -> Iterable[Any] | None:
        """Tell how late it is."""
        return [(*key, time.batch_ms - expiry_ms, "alarm")]


class SparkSessions(TwoModes):
    """The same counts as a processor of Spark's."""

    columns = ("key", "n", "what")

    def init(self, handle: Any) -> None:
        """Declare the count, and the rows by number."""
        super().init(handle)
        self.count = handle.getValueState("count", "n long")
        self.echoed = handle.getMapState("echoed", "n long", "what string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Count, echo, and ask to be called soon."""
        numbers = [int(row.n) for row in self.taken(rows)]
        self.count.update(((self.count.get() or (0,))[0] + len(numbers),))
        for number in numbers:
            self.echoed.updateValue((number,), ("row",))
        self.h.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 100)
        self.h.registerTimer(FAR_MS)
        yield from self.emitted(*((key[0], number, "row") for number in numbers))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Any]:
        """Tell the count."""
        yield from self.emitted((key[0], self.count.get()[0], "end"))


class SparkMemberApplication(StatefulProcessorApplication):
    """With the end that the members of tests give their applications."""

    def close(self) -> None:
        """Nothing is open."""


class MemberApplication(KeyedApplication):
    """With the end that the members of tests give their applications."""

    def close(self) -> None:
        """Nothing is open."""


def application_of(processor: type[KeyedProcessor], **parts: Any) -> Any:
    """Return the application; `Any`: the members of tests are typed for another one."""
    return MemberApplication(
        processor,
        key="key string",
        rows="key string, n long",
        output=JournalOutput(
            MappedJournal(OUTPUT, NDJSON), JsonType(), "key string, n long, what string"
        ),
        **parts,
    )


def sessions(index: IndexKind = "rocksdb") -> Any:
    """Return the application whose event time is the number of the message."""
    return application_of(
        Sessions,
        time="event",
        event_time=EventTime(column="n"),
        side=JournalOutput(MappedJournal(SIDE, NDJSON), JsonType()),
        state=StateOptions(index=index),
    )


def spark_sessions(*, in_pandas: bool = False) -> Any:
    """Return the application that hosts a processor of Spark's."""
    return SparkMemberApplication(
        SparkSessions(in_pandas=in_pandas),
        key="key",
        inputSchema="key string, n long",
        outputStructType="key string, n long, what string",
        timeMode="ProcessingTime",
        inPandas=in_pandas,
        output=JournalOutput(MappedJournal(OUTPUT, NDJSON), JsonType()),
        options=HostingOptions(state=StateOptions(index="memory")),
    )


async def counts_at_standby(address: str) -> dict[str, int]:
    """Return the count of each key as a standby shows it, which keeps an index for that."""
    async with (
        StateClient(address) as client,
        aclosing(client.scan(SHARD, max_staleness_seconds=10.0)) as parts,
    ):
        received = [part async for part in parts]
    assert received[0].state.slot == 1
    rows = pa.ipc.open_stream(b"".join(part.arrow for part in received)).read_all().to_pylist()
    return {row["key"]: row["count"] for row in rows}


async def count_of(
    resolver: ShardResolver, key: str, *, read_through: dict[str, int]
) -> int | None:
    """Return the committed count of a key, once the primary here has read so far."""
    async with await resolver.resolve(
        SHARD, claims=Claims.process(), may_proxy=False, read_through=read_through
    ) as resolution:
        assert resolution.shard is not None, resolution.status
        count: int | None = await resolution.call(lambda store: store.state("count", key))
        return count


@pytest.mark.parametrize("second", ["memory", "rocksdb"])
async def test_keyed_state_and_timers_survive_a_killed_primary_exactly_once(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, second: IndexKind
) -> None:
    """A primary with state, registered timers and a watermark is gone at a stroke. The standby goes on with all three,
    and with the index that it kept: each row is counted and echoed once, and each timer fires once, on the member that
    has the shard then.
    """
    await create_logs(journals, SHARD)
    await create_journals(journals, SIDE)
    producer = Producer(journals)
    async with (
        cluster.member(
            "one", application=sessions(), zone="zone-a", state_dir=str(tmp_path / "one")
        ) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)))
        end = await producer.publish(SOURCE, KEYS)
        await wait_for_primaries(client, SHARD)
        async with cluster.member(
            "two", application=sessions(second), zone="zone-b", state_dir=str(tmp_path / "two")
        ) as two:

            async def standing() -> bool:
                return (await statuses(client))[SHARD] == [
                    ("member-one", "PRIMARY"),
                    ("member-two", "STANDBY"),
                ]

            await eventually(standing)
            assert await count_of(one.resolver, "a", read_through={SOURCE: end}) == 3
            assert await counts_at_standby(two.address) == {"a": 3, "b": 2, "c": 1}
            with capture_logs() as logs:
                one.force_stop()
                async with client_of(two) as its_client:

                    async def taken_over() -> bool:
                        return (await statuses(its_client))[SHARD][0] == ("member-two", "PRIMARY")

                    await eventually(taken_over)
            (opened,) = [each for each in logs if each["event"] == "keyed.index_opened"]
            assert opened["from_standby"]
            end = await producer.publish(SOURCE, KEYS)
            assert await count_of(two.resolver, "a", read_through={SOURCE: end}) == 6
            # The event time of these passes the ends of all keys but theirs.
            await producer.publish(SOURCE, ["z"] * (QUIET_MS + 1))

            async def ended() -> list[dict[str, Any]]:
                found = await committed(journals, OUTPUT)
                assert sum(each["what"] == "end" for each in found) == 3
                return found

            found = await eventually(ended)
    echoed = sorted(each["n"] for each in found if each["what"] == "row")
    assert echoed == list(range(1, 2 * len(KEYS) + QUIET_MS + 2))
    ends = {each["key"]: each["n"] for each in found if each["what"] == "end"}
    assert ends == {key: 2 * count for key, count in Counter(KEYS).items()}
    assert files_below(tmp_path / "one") == []


async def test_keyed_timer_of_processing_time_fires_though_nothing_is_read(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """After the only message no input comes; the clock alone must begin the transaction in which the timer fires."""
    await create_logs(journals, SHARD)
    application = application_of(Alarms, time="processing", state=StateOptions(index="memory"))
    async with (
        cluster.member("one", application=application, state_dir=str(tmp_path / "one")) as member,
        client_of(member) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        await wait_for_primaries(client, SHARD)
        await Producer(journals).publish(SOURCE, ["a", "b", "a"])

        async def alarmed() -> list[dict[str, Any]]:
            found = await committed(journals, OUTPUT)
            assert {each["key"] for each in found} == {"a", "b"}
            return found

        found = await eventually(alarmed)
    assert all(each["what"] == "alarm" and each["n"] >= 0 for each in found)


async def test_keyed_rows_that_are_late_go_to_the_side_journal(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A row behind the watermark is not handled, and not lost: its columns and the reason are in the side journal."""
    await create_logs(journals, SHARD)
    await create_journals(journals, SIDE)
    producer, belated = Producer(journals), Producer(journals)
    async with (
        cluster.member("one", application=sessions(), state_dir=str(tmp_path / "one")) as member,
        client_of(member) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        await wait_for_primaries(client, SHARD)
        for _ in range(3):
            # A transaction each, so that the watermark of the first judges the rows of the last.
            end = await producer.publish(SOURCE, KEYS)
            await count_of(member.resolver, "a", read_through={SOURCE: end})
        end = await belated.publish(SOURCE, ["a"])
        assert await count_of(member.resolver, "a", read_through={SOURCE: end}) == 9
    (late,) = await committed(journals, SIDE)
    assert (late["key"], late["n"], late["late_reason"]) == ("a", 1, "late")


@pytest.mark.parametrize("in_pandas", [False, True])
async def test_keyed_processor_of_spark_runs_on_members_and_its_state_moves(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, in_pandas: bool
) -> None:
    """A StatefulProcessor runs on members that have no JVM; a second member goes on with its state and its timers."""
    await create_logs(journals, SHARD)
    application = spark_sessions(in_pandas=in_pandas)
    producer = Producer(journals)
    for number, name in enumerate(("one", "two"), start=1):
        async with (
            cluster.member(name, application=application, state_dir=str(tmp_path / name)) as member,
            client_of(member) as client,
        ):
            if number == 1:
                await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
            await wait_for_primaries(client, SHARD)
            end = await producer.publish(SOURCE, KEYS)
            count: Any = await count_of(member.resolver, "a", read_through={SOURCE: end})
            assert count == (3 * number,)

            async def told(number: int = number) -> bool:
                found = await committed(journals, OUTPUT)
                counts = {each["key"]: each["n"] for each in found if each["what"] == "end"}
                return counts == {"a": 3 * number, "b": 2 * number, "c": number}

            await eventually(told)
    echoed = sorted(
        each["n"] for each in await committed(journals, OUTPUT) if each["what"] == "row"
    )
    assert echoed == list(range(1, 2 * len(KEYS) + 1))


async def test_state_of_a_processor_of_spark_is_looked_up_by_key_prefix_and_timer(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """What no streaming query offers: its state, by the names and types that the processor declared, while it runs."""
    await create_logs(journals, SHARD)
    async with (
        cluster.member(
            "one", application=spark_sessions(), state_dir=str(tmp_path / "one")
        ) as member,
        client_of(member) as client,
        KeyedClient(member.address) as states,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        await wait_for_primaries(client, SHARD)
        end = await Producer(journals).publish(SOURCE, KEYS)
        options = KeyedReadOptions(read_through={SOURCE: end}, encoding=KEYED_ENCODING_ARROW)

        (table,) = (await states.describe(SHARD)).tables
        assert [(each.name, each.kind) for each in table.variables] == [
            ("count", "value"),
            ("echoed", "map"),
            ("timers", "timers"),
        ]
        answer = await states.get(SHARD, [("a",)], options)
        (found,) = pa.ipc.open_stream(answer.arrow).read_all().to_pylist()
        assert (found["key"], found["count"]) == ("a", {"n": 3})
        assert found["echoed"] == [({"n": number}, {"what": "row"}) for number in (1, 3, 6)]
        assert found["timers"][-1] == FAR_MS
        begun = [page async for page in states.scan(SHARD, text_prefix="b")]
        assert [row["key"] for page in begun for row in page.rows] == ["b"]
        (far,) = [page async for page in states.timers(SHARD, from_ms=FAR_MS)]
        assert sorted(str(row["key"]) for row in far.rows) == ["a", "b", "c"]
        assert {row["due_ms"] for row in far.rows} == {FAR_MS}
