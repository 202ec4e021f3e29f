"""Commands over divisions of their journal, while members go away: each is applied once, and its answer stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broadsheet.consumer.application import Shard
from broadsheet.consumer.client import ElasticClient
from broadsheet.consumer.commands import Commands, SqliteAnswers
from broadsheet.consumer.commands.appender import CommandAppender
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores import SqliteStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.errors import PartMissingError
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.division import DIVIDED
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.errors import ServiceError
from broadsheet.security.auth import Claims
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec
from broadsheet.wire.key_range import ALL_KEYS, range_labels
from broadsheet.wire.labels import SPLIT_EPOCH, SPLIT_EPOCH_DIVIDED, SPLIT_OF, label_set
from tests.support.broker import journal_spec
from tests.support.dividing import MIDDLE, PARTS, READER, create_middle, until_divided
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd

CALLERS = 3


class Add(msgspec.Struct):
    """Adds to the only number."""

    amount: int


class Total(msgspec.Struct):
    """The number then."""

    amount: int


class Adding:
    """Adds numbers up."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self.commands = Commands(prefix, Add, Total, answers=SqliteAnswers())

    def new_store(self, shard: Shard) -> SqliteStore:
        """Open the database, which all members share."""
        state = LocalState(self._directory / shard.id)
        return SqliteStore(shard, state, schema="CREATE TABLE IF NOT EXISTS total (amount INT)")

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """There are only commands; what is taken for something else fails the test."""
        return self.commands.message_type(journal_spec) or JsonType()

    def consume_message(
        self, shard: Shard, store: SqliteStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Apply a command."""
        del publisher
        assert self.commands.is_command(envelope), envelope.journal
        self.commands.consume(shard, store, envelope, lambda add: _add(store, add))

    def finalize_txn(self, shard: Shard, store: SqliteStore, publisher: Publisher) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Nothing is open."""


def _add(store: SqliteStore, add: Add) -> Total:
    (before,) = store.connection.execute("SELECT coalesce(sum(amount), 0) FROM total").fetchone()
    store.connection.execute("DELETE FROM total")
    store.connection.execute("INSERT INTO total VALUES (?)", (before + add.amount,))
    return Total(before + add.amount)


class Members:
    """Members of one shard, of which one at a time serves."""

    def __init__(self, cluster: Cluster, directory: Path, prefix: str) -> None:
        self._cluster, self._directory, self._prefix = cluster, directory, prefix
        self._started = 0
        self._serving: tuple[Adding, Service] | None = None

    async def start(self, stack: AsyncExitStack) -> Service:
        """Start the next; callers ask it from now on."""
        self._started += 1
        application: Any = Adding(self._directory, self._prefix)
        member = self._cluster.member(f"m{self._started}", application=application)
        service = await stack.enter_async_context(member)
        self._serving = application, service
        return service

    async def ask(self, command_id: str) -> Total:
        """Add one, and repeat that until there is an answer, as callers do."""
        answers: list[Total] = []

        async def has_answer() -> bool:
            assert self._serving is not None
            application, service = self._serving
            try:
                async with (
                    asyncio.timeout(2),
                    await service.resolver.resolve(
                        READER, claims=Claims.process(), may_proxy=False
                    ) as resolution,
                ):
                    if resolution.shard is None:
                        return False
                    answers.append(
                        await application.commands.execute(
                            resolution, Add(1), command_id=command_id
                        )
                    )
            except (ServiceError, TimeoutError):
                return False
            return True

        await eventually(has_answer, timeout_seconds=30)
        return answers[-1]


@asynccontextmanager
async def callers(ask: Callable[[str], Any]) -> AsyncIterator[dict[str, Total]]:
    """Execute commands until the block ends; yield the answers, each of which is asked for twice."""
    answers: dict[str, Total] = {}
    ends = asyncio.Event()

    async def call(caller: int) -> None:
        number = 0
        while not ends.is_set():
            number += 1
            command_id = f"{caller}-{number}"
            answers[command_id] = await ask(command_id)
            if number > 1:
                before = f"{caller}-{number - 1}"
                assert await ask(before) == answers[before], before

    async with asyncio.TaskGroup() as group:
        for caller in range(CALLERS):
            group.create_task(call(caller))
        try:
            yield answers
        finally:
            ends.set()


async def _has_more(answers: dict[str, Total], than: int) -> None:
    await eventually(lambda: len(answers) > than + 2 * CALLERS)


@pytest.mark.parametrize(
    ("prefix", "replaced"),
    [
        pytest.param(MIDDLE.partition("/")[0], False, id="below"),
        pytest.param(MIDDLE, True, id="itself-replaced"),
    ],
)
async def test_commands_are_applied_once_while_their_journal_is_divided_twice(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, prefix: str, replaced: bool
) -> None:
    """The journal is divided, then its parts, of which one takes the commands; and the member that serves is stopped in
    the midst of each. A journal that has the prefix as its name has parts that lie beside it, not below.
    """
    await create_middle(journals)
    members = Members(cluster, tmp_path, prefix)
    async with AsyncExitStack() as stack:
        serving = await members.start(stack)
        async with client_of(serving) as client:
            await client.apply(upserts(shard(READER, MIDDLE)))
            await wait_for_primaries(client, READER)
        async with callers(members.ask) as answers:
            await _has_more(answers, 0)
            for divided in (MIDDLE, *PARTS):
                async with ElasticClient(serving.address) as elastic:
                    await elastic.split_journal(divided)
                if replaced:
                    before, serving = serving, await members.start(stack)
                    before.force_stop()
                async with ElasticClient(serving.address) as elastic:
                    await until_divided(elastic)
                await _has_more(answers, len(answers))
        async with client_of(serving) as client:
            (listed,) = (await client.list()).shards
        assert {each.after for each in listed.spec.sources} == set(PARTS)
    assert sorted(each.amount for each in answers.values()) == [*range(1, len(answers) + 1)]


@pytest.mark.parametrize("circle", [2, 3])
async def test_command_whose_parts_are_in_a_circle_is_refused(
    journals: JournalClient, circle: int
) -> None:
    """Labels that somebody wrote by hand name each journal as a part of the one before, and all are divided."""
    names = [f"circle/{number}" for number in range(circle)]
    divided = {SPLIT_EPOCH: SPLIT_EPOCH_DIVIDED, **dict(range_labels(ALL_KEYS))}
    origins = dict(zip(names, [*names[1:], names[0]], strict=True)) | {"other/part": "other"}
    await create_journals(journals, "other")
    for name, origin in origins.items():
        spec = journal_spec(name, labels=label_set({SPLIT_OF: origin, **divided}))
        await journals.apply([ApplyRequest.Change(upsert=spec)])
    for name in names:
        await journals.append(name, b"{}\n", union_registers=DIVIDED)
    await journals.learn_divided("other")
    appender = CommandAppender(journals, MappedJournal(names[0], NDJSON), JsonType())

    with pytest.raises(PartMissingError, match=r"circle/\d "):
        await appender.append({"amount": 1})
