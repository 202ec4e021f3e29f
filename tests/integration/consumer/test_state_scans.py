"""What shards hold, streamed from primaries and standbys, over real members, etcd and broker."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broadsheet.consumer.application import Shard
from broadsheet.consumer.client import ShardClient, StateClient
from broadsheet.consumer.errors import NotShardPrimaryError, ShardNotFoundError
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.state_tables import TableScan
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.security.auth import Claims, KeyedAuth
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.wire.state_pb2 import ScannedState, ScanStateResponse
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import (
    TALLIES,
    JsonFileTally,
    counts_of,
    create_logs,
    files_below,
    recorded,
)

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
OUTPUT = "test/output"
SHARD = "shard-a"
KEYS = ["a", "b", "a", "c", "b", "a"]
COUNTS = dict(Counter(KEYS))
KEY = b64encode(b"a key of the test, thirty-two bytes").decode()
TABLES = {"sqlite": "counts", "rocksdb": "default", "aggregate": "aggregates", "json": "state"}


class HeldStore(JsonFileStore[dict[str, int]]):
    """Scans wait for `go_on` before their last batch."""

    go_on = threading.Event()

    @contextmanager
    def scan(self, table: str, columns: Sequence[str] = ()) -> Iterator[TableScan]:
        """Yield the rows, and once told so the same again."""
        with super().scan(table, columns) as scan:
            batches = list(scan.batches)

            def held() -> Iterator[pa.RecordBatch]:
                yield from batches
                assert self.go_on.wait(20)
                yield from batches

            yield TableScan(scan.checkpoint, scan.schema, held())


class HeldTally(JsonFileTally):
    """Counts in such a store."""

    def new_store(self, shard: Shard) -> Any:
        """Open what the log replayed to."""
        return HeldStore(shard, initial={}, state_type=dict[str, int])


@asynccontextmanager
async def _counting(
    cluster: Cluster, journals: JournalClient, directory: Path, application: Any
) -> AsyncIterator[tuple[Service, ShardClient, Producer, int]]:
    """A member whose shard has counted `KEYS`; and where its source ends."""
    await create_logs(journals, SHARD)
    producer = Producer(journals)
    async with (
        cluster.member("one", application=application, state_dir=str(directory / "one")) as member,
        client_of(member) as client,
    ):
        spec = recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)
        await client.apply(upserts(spec))
        end = await producer.publish(SOURCE, KEYS)
        await wait_for_primaries(client, SHARD)
        await client.wait_read_through(SHARD, {SOURCE: end}, timeout_seconds=DEADLINE_SECONDS)
        yield member, client, producer, end


async def _rows(
    address: str, table: str = "", columns: Sequence[str] = (), **limits: float
) -> tuple[ScannedState, list[dict[str, Any]]]:
    """What a member streams of the shard."""
    async with (
        StateClient(address) as client,
        aclosing(client.scan(SHARD, table, columns, **limits)) as parts,
    ):
        received = [part async for part in parts]
    return received[0].state, _decoded(received)


def _decoded(parts: list[ScanStateResponse]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        pa.ipc.open_stream(b"".join(part.arrow for part in parts)).read_all().to_pylist()
    )
    return rows


def _entry(kind: str, row: dict[str, Any]) -> tuple[str, int]:
    if kind == "rocksdb":
        return row["key"].decode(), int(row["value"].decode())
    return row["key"], int(row["count"] if kind in ("sqlite", "aggregate") else row["value"])


@pytest.mark.parametrize("kind", sorted(TALLIES))
async def test_scan_streams_the_last_commit_with_its_offsets(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, kind: str
) -> None:
    """Rows and the offsets that they reflect come together, whichever store it is; tables are described with the types
    that rows then have.
    """
    application = TALLIES[kind][0](cluster.directory, output=OUTPUT)
    async with (
        _counting(cluster, journals, tmp_path, application) as (member, _, _, end),
        StateClient(member.address) as client,
    ):
        state, rows = await _rows(member.address, TABLES[kind])

        assert dict(_entry(kind, row) for row in rows) == COUNTS
        assert (state.slot, dict(state.read_through)) == (0, {SOURCE: end})
        assert state.staleness_seconds == 0
        (table,) = (await client.describe(SHARD)).tables
        assert table.name == TABLES[kind]
        schema = pa.ipc.read_schema(pa.py_buffer(table.arrow_schema))
        assert schema.names == list(rows[0])
        narrow = await _rows(member.address, "", schema.names[:1])
        assert all(list(row) == schema.names[:1] for row in narrow[1])


async def test_scan_does_not_hold_up_transactions(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """While a scan stands still, the shard reads, commits and answers; the scan shows what was there when it began."""
    HeldStore.go_on.clear()
    application = HeldTally(cluster.directory, output=OUTPUT)
    async with (
        _counting(cluster, journals, tmp_path, application) as (member, client, producer, end),
        StateClient(member.address) as states,
        aclosing(states.scan(SHARD)) as parts,
    ):
        received = [await anext(parts), await anext(parts), await anext(parts)]
        later = await producer.publish(SOURCE, KEYS)

        await client.wait_read_through(SHARD, {SOURCE: later}, timeout_seconds=DEADLINE_SECONDS)
        counts = await counts_of(member.resolver, SHARD, "json", read_through={SOURCE: later})

        assert counts == {key: 2 * n for key, n in COUNTS.items()}
        HeldStore.go_on.set()
        received += [part async for part in parts]
        assert dict(_entry("json", row) for row in _decoded(received)) == COUNTS
        assert dict(received[0].state.read_through) == {SOURCE: end}


async def test_scan_ends_when_its_shard_does(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A shard that is taken away tears down although somebody still reads: the reader is told to go elsewhere."""
    HeldStore.go_on.clear()
    application = HeldTally(cluster.directory, output=OUTPUT)
    async with (
        _counting(cluster, journals, tmp_path, application) as (member, client, _, _),
        StateClient(member.address) as states,
        aclosing(states.scan(SHARD)) as parts,
    ):
        for _ in range(3):
            await anext(parts)
        async with await member.resolver.resolve(
            SHARD, claims=Claims.process(), may_proxy=False
        ) as resolution:
            await client.unassign([SHARD])
            await resolution.reference.ended
        HeldStore.go_on.set()

        with pytest.raises(EndpointError, match="stopped while it was being read"):
            async for _ in parts:
                pass

        await wait_for_primaries(client, SHARD)


@pytest.mark.parametrize("kind", sorted(TALLIES))
async def test_standby_answers_within_the_staleness_allowed(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, kind: str
) -> None:
    """Only if a caller allows old state does a standby answer: with all that was committed when it was asked, from a
    copy that leaves no file behind, and the primary commits on. Else it says who the primary is.
    """

    def tally() -> Any:
        return TALLIES[kind][0](cluster.directory, output=OUTPUT)

    async with (
        _counting(cluster, journals, tmp_path, tally()) as (one, client, producer, end),
        cluster.member(
            "two", application=tally(), zone="zone-b", state_dir=str(tmp_path / "two")
        ) as two,
    ):

        async def standing() -> bool:
            return [status for _, status in (await statuses(client))[SHARD]] == [
                "PRIMARY",
                "STANDBY",
            ]

        await eventually(standing)
        with pytest.raises(NotShardPrimaryError) as refused:
            await _rows(two.address)
        assert refused.value.header is not None
        assert one.address in refused.value.header.route.endpoints

        state, rows = await _rows(two.address, max_staleness_seconds=10.0)

        assert dict(_entry(kind, row) for row in rows) == COUNTS
        assert (state.slot, dict(state.read_through)) == (1, {SOURCE: end})
        assert 0 < state.staleness_seconds < 10
        assert not [path for path in files_below(tmp_path / "two") if "copy-" in str(path)]
        later = await producer.publish(SOURCE, KEYS)
        await client.wait_read_through(SHARD, {SOURCE: later}, timeout_seconds=DEADLINE_SECONDS)
        state, rows = await _rows(two.address, max_staleness_seconds=10.0)
        assert dict(_entry(kind, row) for row in rows) == {k: 2 * n for k, n in COUNTS.items()}
        assert dict(state.read_through) == {SOURCE: later}


async def test_standby_that_cannot_be_in_time_leaves_it_to_the_primary(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A bound that no copy can meet is no licence to be older: the answer names the primary, and why."""

    def tally() -> Any:
        return TALLIES["sqlite"][0](cluster.directory, output=OUTPUT)

    async with (
        _counting(cluster, journals, tmp_path, tally()) as (_, client, _, _),
        cluster.member("two", application=tally(), state_dir=str(tmp_path / "two")) as two,
    ):

        async def standing() -> bool:
            return (await statuses(client))[SHARD][1:] == [("member-two", "STANDBY")]

        await eventually(standing)

        with pytest.raises(NotShardPrimaryError, match="has not played all"):
            await _rows(two.address, max_staleness_seconds=1e-6)


async def test_scan_mistakes_are_told_in_words(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Tables and columns that there are not, shards that there are not, stores that show nothing."""
    application = TALLIES["sqlite"][0](cluster.directory, output=OUTPUT)
    async with _counting(cluster, journals, tmp_path, application) as (member, _, _, _):
        with pytest.raises(ValidationError, match="expected one of counts; got 'count'"):
            await _rows(member.address, "count")
        with pytest.raises(ValidationError, match=r"columns\[0\]: expected one of key, count"):
            await _rows(member.address, "counts", ["sum"])
        with pytest.raises(ValidationError, match="max_staleness_seconds: expected seconds"):
            await _rows(member.address, max_staleness_seconds=-1.0)
    async with cluster.member("sql") as member, client_of(member) as client:
        await client.apply(upserts(shard("shard-sql", SOURCE)))
        await wait_for_primaries(client, "shard-sql")
        async with StateClient(member.address) as states:
            assert not (await states.describe("shard-sql")).tables
            with pytest.raises(ValidationError, match="none: this store shows no tables"):
                await anext(states.scan("shard-sql"))
            with pytest.raises(ShardNotFoundError):
                await states.describe("no-such-shard")


async def test_scan_is_authorized_like_stat(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Without a token nothing; with one of another shard, as if this one were not there."""
    await create_logs(journals, SHARD)
    application = TALLIES["json"][0](cluster.directory, output=OUTPUT)
    settings: dict[str, Any] = {"auth_keys": KEY, "state_dir": str(tmp_path / "one")}
    async with (
        cluster.member("one", application=application, **settings) as member,
        client_of(member, KeyedAuth(KEY)) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        await wait_for_primaries(client, SHARD)
        async with StateClient(member.address, auth=KeyedAuth(KEY)) as states:
            assert [part async for part in states.scan(SHARD)]
        async with StateClient(member.address) as stranger:
            with pytest.raises(UnauthenticatedError):
                await anext(stranger.scan(SHARD))
