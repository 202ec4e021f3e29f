"""A keyed shard whose rows are counted and echoed, traffic into it, and what must hold once it was split."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.keyed import (
    JournalOutput,
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    TxnTime,
)
from broadsheet.consumer.keyed.application import RowOutput
from broadsheet.consumer.resolver.resolver import ShardResolver
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Claims
from broadsheet.wire.key_range import KeyRange, key_range_of
from broadsheet.wire.labels import FORK_OF, value_of
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.eventually import eventually
from tests.support.members import Cluster, Producer, committed, shard
from tests.support.recorded_tally import recorded

SOURCE, OUTPUT = "test/source", "test/output"
PARENT = "shard-a"
CHILD = "shard-a-0800"
KEYS = [f"k{number}" for number in range(40)]
ECHO_SCHEMA = "key string, n long, count long"
TO_JOURNAL = JournalOutput(MappedJournal(OUTPUT, NDJSON), JsonType(), ECHO_SCHEMA)

Echoes = Callable[[], Awaitable[list[dict[str, Any]]]]
"""Returns the committed echoes as an outside reader finds them."""


class Numbers(KeyedProcessor):
    """Counts the rows of each key, and echoes each with its count."""

    def init(self, state: StateHandle) -> None:
        """Declare the count."""
        self.count = state.value("count", int)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Count, and echo."""
        del time
        count = self.count.get() or 0
        for row in rows:
            count += 1
            yield (*key, row.n, count)
        self.count.update(count)


class MemberApplication(KeyedApplication):
    """With the end that the members of tests give their applications."""

    def close(self) -> None:
        """Nothing is open."""


def application(to: RowOutput = TO_JOURNAL) -> Any:
    """Return the application; `Any`: the members of tests are typed for another one.

    Args:
        to: Where echoes go.
    """
    return MemberApplication(Numbers, key="key string", rows="key string, n long", output=to)


def in_journal(journals: JournalClient) -> Echoes:
    """Return the reader of echoes that go to the journal."""
    return partial(committed, journals, OUTPUT)


@asynccontextmanager
async def traffic(producer: Producer) -> AsyncIterator[Counter[str]]:
    """Publish messages of all keys until the block ends; yield how many each key got."""
    sent: Counter[str] = Counter()
    ends = asyncio.Event()

    async def publish() -> None:
        while not ends.is_set():
            await producer.publish(SOURCE, KEYS)
            sent.update(KEYS)

    async with TaskGroup() as group:
        publishing = group.start_soon(publish(), name="publish")
        try:
            yield sent
        finally:
            ends.set()
            await publishing


async def ranges(client: ShardClient) -> dict[str, KeyRange]:
    """Return the ranges of shards that serve."""
    return {
        listed.spec.id: key_range_of(listed.spec.labels)
        for listed in (await client.list()).shards
        if not value_of(listed.spec.labels, FORK_OF)
    }


async def counts(resolvers: Sequence[ShardResolver], shard_id: str, end: int) -> dict[str, int]:
    """Return the committed counts of the keys that a shard owns, once it has read so far."""
    for resolver in resolvers:
        async with await resolver.resolve(
            shard_id, claims=Claims.process(), may_proxy=False, read_through={SOURCE: end}
        ) as resolution:
            if resolution.shard is None:
                continue

            def shown(store: Any) -> dict[str, int]:
                with store.scan("state") as scan:
                    rows = [row for batch in scan.batches for row in batch.to_pylist()]
                return {row["key"]: row["count"] for row in rows}

            return await resolution.call(shown)
    raise AssertionError(f"no member serves {shard_id}")


def check_outputs(found: list[dict[str, Any]], sent: Counter[str]) -> None:
    """Each message is echoed once, with the count of its key at the time: state went on without a gap."""
    by_key: dict[str, list[int]] = {}
    for each in found:
        by_key.setdefault(each["key"], []).append(each["count"])
    assert {key: len(each) for key, each in by_key.items()} == dict(sent)
    assert all(each == list(range(1, len(each) + 1)) for each in by_key.values())


async def check_merged(
    resolver: ShardResolver, echoes: Echoes, survivor: str, sent: Counter[str], end: int
) -> None:
    """State of the survivor, and outputs, are those of one shard that had all keys at all times."""
    assert await counts([resolver], survivor, end) == dict(sent)
    await _check_echoes(echoes, sent)


class StandStill:
    """Has the first call of a method stand still, before or behind what it does, until it is let go."""

    def __init__(self, owner: type, name: str, *, behind: bool) -> None:
        self.reached, self.released = asyncio.Event(), asyncio.Event()
        self._call: Callable[..., Awaitable[Any]] = getattr(owner, name)
        self._behind = behind

    async def __call__(self, *args: Any) -> Any:
        """Perform the call."""
        first = not self.reached.is_set()
        if not (first and self._behind):
            if first:
                await self._stand()
            return await self._call(*args)
        result = await self._call(*args)
        await self._stand()
        return result

    async def _stand(self) -> None:
        self.reached.set()
        await self.released.wait()


def spec(cluster: Cluster) -> ShardSpec:
    """Return the shard that is split."""
    return recorded(shard(PARENT, SOURCE), cluster.root)


async def check_split(
    resolvers: Sequence[ShardResolver], echoes: Echoes, sent: Counter[str], end: int
) -> None:
    """State of both shards together, and outputs, are those of one shard that was never split."""
    parts = [await counts(resolvers, each, end) for each in (PARENT, CHILD)]
    assert all(parts)
    assert not parts[0].keys() & parts[1].keys()
    assert parts[0] | parts[1] == dict(sent)
    await _check_echoes(echoes, sent)


async def _check_echoes(echoes: Echoes, sent: Counter[str]) -> None:
    async def all_of_them() -> list[dict[str, Any]]:
        found = await echoes()
        return found if len(found) >= sent.total() else []

    check_outputs(await eventually(all_of_them), sent)
