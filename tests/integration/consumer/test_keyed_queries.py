"""State by key while shards run: over gRPC and REST, by shardctl and by tasks, from primaries and standbys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pyarrow as pa
import pytest

from broadsheet.consumer.client import KeyedClient, KeyedReadOptions, ShardClient, StateClient
from broadsheet.consumer.client.keyed_client import key_message
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.consumer.keyed import StateOptions, StreamOptions, count, session, stream
from broadsheet.consumer.keyed.operators.application import StreamApplication
from broadsheet.consumer.member.service import Service
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import RpcFailedError, ValidationError
from broadsheet.spark_bridge import KeyedReader, TaskResolver
from broadsheet.spark_bridge.task_resolver import close_connections
from broadsheet.wire.keyed_pb2 import KEYED_ENCODING_ARROW, GetKeysRequest
from broadsheet.wire.keyed_pb2_grpc import KeyedServiceStub
from broadsheet.wire.shard_metadata import request_metadata
from broadsheet.wire.shard_pb2 import Status
from tests.integration.consumer.test_keyed_shards import (
    KEYS,
    QUIET_MS,
    SHARD,
    SIDE,
    SOURCE,
    sessions,
)
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs, recorded
from tests.support.shardctl_runs import Ran, shardctl

pytestmark = pytest.mark.etcd


class MemberStream(StreamApplication):
    """With the end that the members of tests give their applications."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The primary, its standby, and how far the source reaches."""

    primary: Service
    standby: Service
    client: ShardClient
    end: int
    root: str


@asynccontextmanager
async def pair(cluster: Cluster, journals: JournalClient, directory: Path) -> AsyncIterator[Pair]:
    """Two members with one shard, whose primary has read `KEYS`."""
    await create_logs(journals, SHARD)
    await create_journals(journals, SIDE)
    one = cluster.member(
        "one", application=sessions(), zone="zone-a", state_dir=str(directory / "one"), admin_port=0
    )
    async with one as primary, client_of(primary) as client:
        await client.apply(upserts(recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)))
        end = await Producer(journals).publish(SOURCE, KEYS)
        await wait_for_primaries(client, SHARD)
        two = cluster.member(
            "two",
            application=sessions(),
            zone="zone-b",
            state_dir=str(directory / "two"),
            admin_port=0,
        )
        async with two as standby:

            async def standing() -> bool:
                return (await statuses(client))[SHARD] == [
                    ("member-one", "PRIMARY"),
                    ("member-two", "STANDBY"),
                ]

            await eventually(standing)
            yield Pair(primary, standby, client, end, cluster.root)


def metrics_of(member: Service, root: str) -> dict[str, float]:
    """Return the samples of the shard's keyed state at a member."""
    return {
        sample.name: sample.value
        for family in member.registry.collect()
        for sample in family.samples
        if sample.name.startswith("broadsheet_keyed_")
        and sample.labels == {"shard": f"{root}/items/{SHARD}"}
    }


async def posted(member: Service, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Ask the admin port of a member."""
    async with (
        aiohttp.ClientSession(base_url=member.admin_address) as http,
        http.post(path, json=body) as answer,
    ):
        return answer.status, await answer.json()


async def test_key_is_found_by_any_member_over_grpc_and_rest(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A caller may know one member alone, and the key must be found as of the offsets that it wrote: the member that
    is not the primary passes the question on, answers itself where the caller takes a bounded age, and refuses with the
    route a caller that follows routes.
    """
    async with (
        pair(cluster, journals, tmp_path) as members,
        KeyedClient(members.primary.address) as primary,
        KeyedClient(members.standby.address) as standby,
    ):
        token = KeyedReadOptions(read_through={SOURCE: members.end})
        for client in (primary, standby):
            answer = await client.get(SHARD, [("a",), ("absent",), ("c",)], token)
            assert list(answer.key_numbers) == [0, 2]
            assert [(row["key"], row["count"]) for row in answer.rows] == [("a", 3), ("c", 1)]
            first: Any = answer.rows[0]  # values as JSON has them
            assert list(first["numbers"]) == [1, 3, 6]
            assert list(first["timers"]) == [6 + QUIET_MS]
            assert answer.state.slot == 0
            assert answer.state.read_through[SOURCE] == members.end
        aged = KeyedReadOptions(
            read_through={SOURCE: members.end},
            max_staleness_seconds=10,
            columns=["count"],
            encoding=KEYED_ENCODING_ARROW,
        )
        answer = await standby.get(SHARD, [("b",)], aged)
        assert answer.state.slot == 1
        assert pa.ipc.open_stream(answer.arrow).read_all().to_pylist() == [{"count": 2}]

        body = {"shard": SHARD, "keys": [["a"]], "columns": ["by_parity", "count"]}
        status, found = await posted(members.standby, "/v1/keyed/get_keys", body)
        assert (status, found["status"]) == (200, "OK")
        parities = [{"key": False, "value": 2.0}, {"key": True, "value": 1.0}]
        assert found["rows"] == [{"by_parity": parities, "count": 3.0}]

        async with grpc.aio.insecure_channel(
            members.standby.address.removeprefix("http://")
        ) as channel:
            refused = await KeyedServiceStub(channel).GetKeys(
                GetKeysRequest(shard=SHARD, keys=[key_message(["a"])]),
                metadata=request_metadata(SHARD, {}),
            )
        assert refused.status == Status.NOT_SHARD_PRIMARY
        assert refused.header.route.endpoints


async def test_pages_timers_and_schema_are_those_of_the_processor(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """What a tool needs to look into a shard: its variables with their types, pages by a cursor, the next timers by
    time and by key; and a wrong question is answered with what was expected.
    """
    async with (
        pair(cluster, journals, tmp_path) as members,
        KeyedClient(members.standby.address) as client,
    ):
        await client.get(SHARD, [("a",)], KeyedReadOptions(read_through={SOURCE: members.end}))
        described = await client.describe(SHARD)
        (table,) = described.tables
        kinds = [(each.name, each.kind) for each in table.variables]
        assert kinds == [
            ("count", "value"),
            ("end", "value"),
            ("numbers", "list"),
            ("by_parity", "map"),
            ("timers", "timers"),
        ]
        assert [(each.name, each.type) for each in table.key] == [("key", "string")]
        assert (described.time, described.next_timer_ms) == ("event", 4 + QUIET_MS)

        pages = [page async for page in client.scan(SHARD, page_size=2)]
        assert sorted(str(row["key"]) for page in pages for row in page.rows) == ["a", "b", "c"]
        assert len(pages[0].rows) == 2
        begun = [page async for page in client.scan(SHARD, text_prefix="b")]
        assert [row["count"] for page in begun for row in page.rows] == [2]

        (due,) = [page async for page in client.timers(SHARD)]
        assert [(row["key"], row["due_ms"]) for row in due.rows] == [
            ("c", 4 + QUIET_MS),
            ("b", 5 + QUIET_MS),
            ("a", 6 + QUIET_MS),
        ]
        (mine,) = [page async for page in client.timers(SHARD, ("b",))]
        assert [row["due_ms"] for row in mine.rows] == [5 + QUIET_MS]
        last = client.timers(SHARD, from_ms=5 + QUIET_MS, page_size=1)
        assert [row["key"] async for page in last for row in page.rows] == ["b", "a"]

        async with StateClient(members.primary.address) as states:
            (told,) = (await states.list_replicas()).replicas
        assert told.keyed.rows > len(set(KEYS))
        assert told.keyed.state_bytes > 0
        assert (told.keyed.next_timer_ms, told.keyed.late_rows) == (4 + QUIET_MS, 0)
        async with StateClient(members.standby.address) as states:
            (told,) = (await states.list_replicas()).replicas
        assert not told.HasField("keyed")
        samples = metrics_of(members.primary, members.root)
        assert samples["broadsheet_keyed_state_rows"] > len(set(KEYS))
        assert samples["broadsheet_keyed_state_bytes"] > 0
        assert samples["broadsheet_keyed_watermark_timestamp_seconds"] == len(KEYS) / 1000
        assert samples["broadsheet_keyed_next_timer_timestamp_seconds"] == (4 + QUIET_MS) / 1000
        assert samples["broadsheet_keyed_late_rows_total"] == 0
        assert samples["broadsheet_keyed_failed_calls_total"] == 0
        assert not metrics_of(members.standby, members.root)

        wrong = KeyedReadOptions(columns=["total"])
        with pytest.raises(ValidationError, match=r"columns\[0\]: expected one of key, count, end"):
            await client.get(SHARD, [("a",)], wrong)
        with pytest.raises(
            ValidationError, match=r"keys\[1\].key: expected string, as text; got 7"
        ):
            await client.get(SHARD, [("a",), (7,)])
        with pytest.raises(ValidationError, match=r"keys\[0\]: expected 1 fields \(key\), got 2"):
            await client.get(SHARD, [("a", "b")])
        with pytest.raises(ValidationError, match="table: expected one of state; got 'counts'"):
            await client.get(SHARD, [("a",)], KeyedReadOptions(table="counts"))
        with pytest.raises(ShardNotFoundError):
            await client.get("absent", [("a",)])


async def test_shardctl_and_tasks_look_keys_up(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """The verbs print what the service answers, as tables and documents; a task's reader follows the shard, and has
    read through what its resolver carries.
    """
    async with pair(cluster, journals, tmp_path) as members:
        at = f"--address {members.standby.address}"

        async def ran(line: str) -> Ran:
            return await asyncio.to_thread(shardctl, f"shardctl keyed {line} {at}")

        read = await ran(f"get {SHARD} a --columns key,count --read-through {SOURCE}={members.end}")
        assert [line.split() for line in read.stdout.splitlines()] == [["KEY", "COUNT"], ["a", "3"]]
        assert (await ran(f"get {SHARD} absent")).status == 3
        scanned = json.loads((await ran(f"scan {SHARD} -o json")).stdout)
        assert {row["key"]: row["count"] for row in scanned["rows"]} == {"a": 3, "b": 2, "c": 1}
        timers = json.loads((await ran(f"timers {SHARD} -n 1 -o json")).stdout)
        assert timers["rows"] == [{"due_ms": 4 + QUIET_MS, "key": "c"}]
        schema = (await ran(f"schema {SHARD}")).stdout.splitlines()
        assert schema[1].split() == ["state", "key", "key", "string"]
        assert any(
            line.split()[1:] == ["by_parity", "map", "bool", "→", "int64"] for line in schema
        )
        wrong = await ran(f"get {SHARD} a b")
        assert wrong.status != 0
        assert "expected 1 fields (key), got 2" in wrong.stderr

        def in_a_task() -> tuple[Any, ...]:
            resolver = TaskResolver([members.standby.address], token={SOURCE: members.end})
            reader = KeyedReader(resolver, shard=SHARD, columns=("count",))
            try:
                return (
                    reader.get("a"),
                    reader.get("absent"),
                    reader.get_many([("b",), ("x",), ("c",)]),
                    pa.concat_tables(reader.scan()).num_rows,
                    pa.concat_tables(reader.timers("b")).to_pylist(),
                )
            finally:
                close_connections()

        assert await asyncio.to_thread(in_a_task) == (
            {"count": 3},
            None,
            [[{"count": 2}], [], [{"count": 1}]],
            3,
            [{"due_ms": 5 + QUIET_MS, "key": "b"}],
        )


async def test_open_session_of_a_stream_is_looked_at(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A session that no later row has ended yet has no output: a query of its key shows it as it stands."""
    await create_logs(journals, SHARD)
    source = stream(SOURCE, "key string, n long", time="n").key_by("key")
    made = source.window(session(QUIET_MS)).agg(rows=count())
    options = StreamOptions(state=StateOptions(index="memory"))
    application: Any = MemberStream(made.to("test/output").plan, "test/output", options)
    async with (
        cluster.member("one", application=application, state_dir=str(tmp_path / "one")) as member,
        client_of(member) as client,
        KeyedClient(member.address) as keyed,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        end = await Producer(journals).publish(SOURCE, KEYS)
        await wait_for_primaries(client, SHARD)
        token = KeyedReadOptions(read_through={SOURCE: end})
        answer = await keyed.get(SHARD, [("a",)], token)
        (row,) = answer.rows
        assert (row["rows"], row["window_start"], row["window_end"]) == (3, 1, 6 + QUIET_MS)
        described = await keyed.describe(SHARD)
        assert [each.name for each in described.tables] == ["operator_1"]
        assert described.tables[0].operator.startswith("session")
        scanned = [page async for page in keyed.scan(SHARD, page_size=1)]
        assert {row["rows"] for page in scanned for row in page.rows} == {1, 2, 3}
        (due,) = [page async for page in keyed.timers(SHARD)]
        assert [row["due_ms"] for row in due.rows] == [QUIET_MS + n for n in (4, 5, 6)]


async def test_store_without_keys_says_so(cluster: Cluster, journals: JournalClient) -> None:
    """A shard of another application is no error of the caller's syntax: it hears where its state can be read."""
    del journals
    async with cluster.member("one") as member, client_of(member) as client:
        await client.apply(upserts(shard(SHARD, SOURCE)))
        await wait_for_primaries(client, SHARD)
        async with KeyedClient(member.address) as keyed:
            with pytest.raises(RpcFailedError, match="has no state by key"):
                await keyed.describe(SHARD)
