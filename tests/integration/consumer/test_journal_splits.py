"""Divisions of source journals under traffic, over real members, etcd and broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.ops import Put
from broadsheet.consumer.client import ElasticClient, ShardClient
from broadsheet.consumer.commands.appender import CommandAppender
from broadsheet.consumer.member import journal_splitter
from broadsheet.consumer.member.journal_splitter import JournalSplitter
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.rpc import transaction_rollback
from broadsheet.consumer.shard.holding import ForkHolding
from broadsheet.consumer.shard.transaction_loop import TransactionLoop
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.errors import TransactionRolledBackError
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.division import is_divided, sealed_at
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import MessageSource, read_batches
from broadsheet.journals.message.uuid import Flags, MessageClock, new_producer_id
from broadsheet.journals.message_writer import MessageWriter
from broadsheet.journals.topic import open_topic
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply, ListResponse as JournalListed
from broadsheet.wire.keys_pb2 import GetKeyTableRequest, KeyRule
from broadsheet.wire.keys_pb2_grpc import KeyServiceStub
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import ListResponse
from tests.support.dividing import (
    KEYS,
    MIDDLE,
    OUTPUT,
    PARTS,
    READER,
    RELAY,
    SOURCE,
    check_passed,
    create_middle,
    divide,
    relay,
    traffic,
    until_divided,
    until_sealed,
)
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.shardctl_runs import shardctl
from tests.support.splitting import StandStill

pytestmark = pytest.mark.etcd


async def test_journal_is_divided_under_traffic_with_each_key_in_order(
    cluster: Cluster, journals: JournalClient
) -> None:
    """The publisher goes on into the parts without a failure, and the reader reads them behind the seal: nothing is
    lost, comes twice, or overtakes an earlier message of its key.
    """
    await create_middle(journals)
    producer = Producer(journals)
    with capture_logs() as events:
        await _divided_under_traffic(cluster, journals, producer)
    ended = [
        each for each in events if each["event"] in ("shard.failed", "publisher.journal_divided")
    ]
    assert not ended, ended


async def _divided_under_traffic(
    cluster: Cluster, journals: JournalClient, producer: Producer
) -> None:
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
        await wait_for_primaries(client, RELAY, READER)
        async with traffic(producer) as sent:
            await eventually(lambda: sent.total() > 400)
            plan = await elastic.split_journal(MIDDLE)
            assert [each.journal for each in plan.parts] == list(PARTS)
            assert list(plan.readers) == [READER]
            await until_divided(elastic)
            at_seal = sent.total()
            await eventually(lambda: sent.total() > at_seal + 400)
        by_journal = await check_passed(journals, sent)

        assert by_journal.keys() == {MIDDLE, *PARTS}
        assert by_journal[PARTS[0]].isdisjoint(by_journal[PARTS[1]])
        assert by_journal[PARTS[0]] | by_journal[PARTS[1]] == set(KEYS)
        assert sealed_at((await journals.get(MIDDLE)).spec)


async def test_reader_that_begins_behind_the_seal_reads_the_journal_first(
    cluster: Cluster, journals: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused shard gets the parts, too. When it is resumed they are full already, and the journal's broker is slow:
    yet the journal comes first.
    """
    part_was_read, batches_of = asyncio.Event(), MessageSource.batches

    async def batches(self: MessageSource, **asked: Any) -> AsyncGenerator[MessageBatch, None]:
        if self.journal == MIDDLE:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await part_was_read.wait()
        async with aclosing(batches_of(self, **asked)) as found:
            async for batch in found:
                yield batch
                if self.journal in PARTS:
                    part_was_read.set()

    await create_middle(journals)
    producer = Producer(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        reader = shard(READER, MIDDLE)
        reader.disable = True
        await client.apply(upserts(shard(RELAY, SOURCE), reader))
        await wait_for_primaries(client, RELAY)
        async with traffic(producer) as sent:
            await eventually(lambda: sent.total() > 400)
            await elastic.split_journal(MIDDLE)
            await until_sealed(elastic, f"shard {READER} is paused")
            at_seal = sent.total()
            await eventually(lambda: sent.total() > at_seal + 400)
        (listed,) = [each for each in (await client.list()).shards if each.spec.id == READER]
        behind = {each.journal: each.after for each in listed.spec.sources}
        assert behind == {MIDDLE: "", PARTS[0]: MIDDLE, PARTS[1]: MIDDLE}
        listed.spec.disable = False
        monkeypatch.setattr(MessageSource, "batches", batches)
        await client.apply(upserts(listed.spec, expect=listed.mod_revision))
        by_journal = await check_passed(journals, sent)
        assert by_journal.keys() == {MIDDLE, *PARTS}
        await until_divided(elastic)
        assert await _sources(client) == _parts_behind(await journals.get(MIDDLE))


async def test_reader_that_recovers_from_before_the_seal_reads_the_journal_again(
    cluster: Cluster, journals: JournalClient
) -> None:
    """It goes back to before the division, as after a rewind, when the journal is no source any more: it reads the rest
    of the journal, then the parts. Once the journal is gone, that is refused by name.
    """
    await create_middle(journals)
    producer = Producer(journals)
    state = cluster.directory / READER / "state.json"
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
        await wait_for_primaries(client, RELAY, READER)
        await producer.publish(SOURCE, KEYS)
        await _passed(journals, 1)
        early = await asyncio.to_thread(state.read_bytes)
        await producer.publish(SOURCE, KEYS)
        await _passed(journals, 2)
        await elastic.split_journal(MIDDLE)
        await until_divided(elastic)
        behind = _parts_behind(await journals.get(MIDDLE))
        assert await _sources(client) == behind
        await producer.publish(SOURCE, KEYS)
        await _passed(journals, 3)

        with capture_logs() as events:
            await _recover_from(client, state, early)
            await _passed(journals, 5)
        assert any(each["event"] == "source.added_again" for each in events)
        found = await committed(journals, OUTPUT)
        for key in KEYS:
            first, *rest = [each["n"] for each in found if each["key"] == key]
            assert rest == [first + 20, first + 40] * 2, (key, first, rest)

        async def has_left() -> bool:
            return await _sources(client) == behind

        await eventually(has_left)

        revision = (await journals.get(MIDDLE)).mod_revision
        await journals.apply([JournalApply.Change(delete=MIDDLE, expect_mod_revision=revision)])
        await _recover_from(client, state, early)

        async def refused() -> bool:
            told = [text for each in (await _listed(client)).status for text in each.errors]
            assert any("the journal is gone" in text for text in told), told
            return True

        await eventually(refused)


async def test_new_shard_that_names_a_divided_journal_gets_its_parts_and_parts_of_parts(
    cluster: Cluster, journals: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard is made after both divisions ended, when only the first journal is among its sources."""
    monkeypatch.setattr(journal_splitter, "FIND_SECONDS", 0.1)
    await create_middle(journals)
    producer = Producer(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(shard(RELAY, SOURCE)))
        await wait_for_primaries(client, RELAY)
        sent: Counter[str] = Counter()
        for number, journal in enumerate((MIDDLE, PARTS[0], ""), 1):
            end = await producer.publish(SOURCE, KEYS)
            await client.wait_read_through(RELAY, {SOURCE: end}, timeout_seconds=60)
            sent.update(KEYS)
            assert sent.total() == number * len(KEYS)
            if journal:
                await elastic.split_journal(journal)
                await until_divided(elastic)
        await client.apply(upserts(shard(READER, MIDDLE)))
        by_journal = await check_passed(journals, sent)
        inner = {f"{PARTS[0]}-0000", f"{PARTS[0]}-0400"}
        assert by_journal.keys() == {MIDDLE, *PARTS, *inner}

        async def has_left() -> bool:
            return {name for name, _, _ in await _sources(client)} == {*inner, PARTS[1]}

        await eventually(has_left)


async def test_part_is_divided_again_and_a_reader_recovers_from_before_both_divisions(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Messages go into the parts of the part, key tables name the first journal as publishers do, and a reader that
    goes back to before both divisions reads the journals in their order.
    """
    await create_middle(journals)
    producer = Producer(journals)
    state = cluster.directory / READER / "state.json"
    inner = [f"{PARTS[0]}-0000", f"{PARTS[0]}-0400"]
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
        await wait_for_primaries(client, RELAY, READER)
        await producer.publish(SOURCE, KEYS)
        await _passed(journals, 1)
        early = await asyncio.to_thread(state.read_bytes)
        for number, journal in enumerate((MIDDLE, PARTS[0]), 2):
            await elastic.split_journal(journal)
            await until_divided(elastic)
            await producer.publish(SOURCE, KEYS)
            sent = await _passed(journals, number)
        by_journal = await check_passed(journals, sent)
        assert by_journal.keys() == {MIDDLE, *PARTS, *inner}
        behind = await _sources(client)
        assert [(name, after) for name, after, _ in behind] == [
            *((name, PARTS[0]) for name in inner),
            (PARTS[1], MIDDLE),
        ]
        assert await _journals_of_keys(one) == [MIDDLE]

        with capture_logs() as events:
            await _recover_from(client, state, early)
            await _passed(journals, 5)
        assert any(each["event"] == "source.added_again" for each in events)
        found = await committed(journals, OUTPUT)
        for key in KEYS:
            numbers = [each["n"] for each in found if each["key"] == key]
            assert numbers == [*numbers[:3], *numbers[1:3]], key

        async def has_left() -> bool:
            return await _sources(client) == behind

        await eventually(has_left)
        await until_divided(elastic)


async def test_part_that_is_divided_before_its_journal_is_read_leaves_the_sources_behind_it(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A paused reader has neither read when both are sealed. It reads them in their order, and both leave its sources:
    the first journal first.
    """
    await create_middle(journals)
    producer = Producer(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        reader = shard(READER, MIDDLE)
        reader.disable = True
        await client.apply(upserts(shard(RELAY, SOURCE), reader))
        await wait_for_primaries(client, RELAY)
        async with traffic(producer) as sent:
            for journal in (MIDDLE, PARTS[0]):
                at_begin = sent.total()
                await eventually(partial(_has_grown, sent, at_begin + 200))
                await elastic.split_journal(journal)
                await eventually(partial(_is_sealed, elastic, journal))
            await eventually(partial(_has_grown, sent, sent.total() + 200))
        assert await _journals_of_keys(one) == [MIDDLE]
        await _pause_reader(client, paused=False)
        by_journal = await check_passed(journals, sent)
        assert by_journal.keys() == {MIDDLE, *PARTS, f"{PARTS[0]}-0000", f"{PARTS[0]}-0400"}
        await until_divided(elastic)
        left = {name for name, _, _ in await _sources(client)}
        assert left == {f"{PARTS[0]}-0000", f"{PARTS[0]}-0400", PARTS[1]}
        assert await _journals_of_keys(one) == [MIDDLE]


def _has_grown(sent: Counter[str], total: int) -> bool:
    return sent.total() > total


async def _is_sealed(elastic: ElasticClient, journal: str) -> bool:
    return any(
        each.journal == journal and each.phase == "sealed"
        for each in await elastic.journal_splits()
    )


async def _journals_of_keys(member: Service) -> list[str]:
    """Return the journals that the reader's key table has publishers choose among."""
    request = GetKeyTableRequest(
        rule=KeyRule.KEY_RULE_MODULO, selector=selector(label_set(("id", READER)))
    )
    async with grpc.aio.insecure_channel(member.address.partition("://")[2]) as channel:
        # `Any`: grpc.aio returns another call than the stub says.
        stub: Any = KeyServiceStub(channel)
        return list((await stub.GetKeyTable(request)).table.journals)


async def _recover_from(client: ShardClient, state: Path, content: bytes) -> None:
    """Have the reader go on from an earlier state of its store."""
    await _pause_reader(client, paused=True)

    async def away() -> bool:
        return not (await _listed(client)).route.members

    await eventually(away)
    await asyncio.to_thread(state.write_bytes, content)
    await _pause_reader(client, paused=False)


async def _pause_reader(client: ShardClient, *, paused: bool) -> None:
    listed = await _listed(client)
    listed.spec.disable = paused
    await client.apply(upserts(listed.spec, expect=listed.mod_revision))


async def _listed(client: ShardClient) -> ListResponse.Shard:
    (listed,) = [each for each in (await client.list()).shards if each.spec.id == READER]
    return listed


async def _sources(client: ShardClient) -> list[tuple[str, str, int]]:
    spec = (await _listed(client)).spec
    return [(each.journal, each.after, each.after_offset) for each in spec.sources]


def _parts_behind(divided: JournalListed.Journal) -> list[tuple[str, str, int]]:
    sealed = sealed_at(divided.spec)
    assert sealed is not None
    return [(part, MIDDLE, sealed) for part in PARTS]


async def test_apply_of_a_reader_without_the_parts_is_refused(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A file from before the division would leave the parts unread."""
    await create_middle(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(shard(READER, MIDDLE)))
        await wait_for_primaries(client, READER)
        planned = await _shardctl(one, f"journals split {MIDDLE} --at k1 --dry-run")
        assert f"{MIDDLE}-0000" in planned
        assert "dry run: nothing was changed" in planned
        (document,) = json.loads(
            await _shardctl(one, f"journals split {MIDDLE} --dry-run -o json")
        )["splits"]
        assert [each["journal"] for each in document["parts"]] == [*PARTS]
        assert not await elastic.journal_splits()
        asked = await _shardctl(one, f"journals split {MIDDLE}")
        assert f"read by {READER}" in asked
        await until_divided(elastic)
        assert "JOURNAL" in await _shardctl(one, "journals splits --watch")
        with pytest.raises(ValidationError, match="was divided: keep"):
            await client.apply(upserts(shard(READER, MIDDLE), expect=-1))
        with pytest.raises(ValidationError, match="divided already"):
            await elastic.split_journal(MIDDLE)
        with pytest.raises(ValidationError, match="publishers=checked"):
            await elastic.split_journal(SOURCE)


async def _shardctl(member: Service, line: str) -> str:
    ran = await asyncio.to_thread(shardctl, f"shardctl {line} --address {member.address}")
    assert ran.status == 0, ran
    return ran.stdout + ran.stderr


async def test_journal_with_an_open_transaction_is_sealed_behind_its_acknowledgement(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A transaction that began before the division ends in the journal; meanwhile the division says what it waits for,
    and publishers go on in the parts.
    """
    await create_middle(journals)
    producer = Producer(journals)
    topic = await open_topic(journals, MIDDLE)
    mapping = topic.mapping("key")
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
        JournalClient(cluster.broker_address) as others,
    ):
        await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
        await wait_for_primaries(client, RELAY, READER)
        writer = MessageWriter(others, transaction=True)
        writer.publish(mapping, {"key": "open", "n": 1}, JsonType())
        await writer.flush()
        async with traffic(producer) as sent:
            await eventually(lambda: sent.total() > 100)
            await elastic.split_journal(MIDDLE)

            async def waits() -> bool:
                (split,) = await elastic.journal_splits()
                return split.phase == "draining" and "transaction open" in split.reason

            await eventually(waits)
            at_division = sent.total()
            await eventually(lambda: sent.total() > at_division + 200)
            writer.publish(mapping, {"key": "open", "n": 2}, JsonType())
            await writer.commit()
            await until_divided(elastic)
            # Its next transaction is refused by the journal, of whose division it knows nothing yet.
            writer.publish(mapping, {"key": "open", "n": 3}, JsonType())
            assert not others.divided.parts
            await writer.commit()
            assert others.divided.parts
            sent["open"] = 3
        by_journal = await check_passed(journals, sent)
        assert "open" in by_journal[MIDDLE]
        assert sum("open" in by_journal[part] for part in PARTS) == 1


async def test_division_does_not_begin_while_a_transaction_of_before_is_open(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Its program may be dead, and who reads the parts would wait for it. Nothing is changed for publishers."""
    await create_middle(journals)
    clock = MessageClock()
    clock.update(time.time() - 600)
    publisher = Publisher(clock, new_producer_id())
    publisher.publish_uncommitted(MappedJournal(MIDDLE, NDJSON), {"key": "k", "n": 0}, JsonType())
    (pending,) = publisher.take_appends()
    await journals.append(MIDDLE, pending.content)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
        await wait_for_primaries(client, RELAY, READER)
        await elastic.split_journal(MIDDLE)

        async def waits() -> bool:
            (split,) = await elastic.journal_splits()
            return "must end before" in split.reason and split.phase == "preparing"

        await eventually(waits)
        assert not is_divided((await journals.get(MIDDLE)).spec.labels)
        await Producer(journals).publish(SOURCE, KEYS)
        await _passed(journals, 1)
        (intent,) = publisher.build_ack_intents()
        await journals.append(MIDDLE, intent.content)
        await until_divided(elastic)


async def test_transaction_of_a_silent_program_is_rolled_back_and_the_program_learns_of_it(
    cluster: Cluster, journals: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The division names it, and the command to use. A young one, a shard's, and one that is not open are refused; the
    writer,
    alive after all, gets an error at its commit, and what it publishes again is read once.
    """
    await create_middle(journals)
    mapping = (await open_topic(journals, MIDDLE)).mapping("key")
    writer = MessageWriter(journals, transaction=True)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
        await wait_for_primaries(client, RELAY, READER)
        writer.publish(mapping, {"key": "open", "n": 1}, JsonType())
        await writer.flush()
        await elastic.split_journal(MIDDLE)

        async def named() -> str:
            (split,) = await elastic.journal_splits()
            asked = re.search("--producer ([0-9a-f]{12})", split.reason)
            assert asked is not None, split
            assert split.phase == "draining", split
            return asked[1]

        producer = await eventually(named)
        roll_back = f"journals roll-back {MIDDLE} --producer {producer}"
        refused = await asyncio.to_thread(shardctl, f"shardctl {roll_back} --address {one.address}")
        assert "its program may be alive" in refused.stderr
        monkeypatch.setattr(transaction_rollback, "LIVELY_SECONDS", 0.0)
        with pytest.raises(ValidationError, match="no transaction open"):
            await elastic.roll_back_transaction(MIDDLE, 1)
        async with EtcdClient(EtcdConfig(endpoints=(cluster.etcd_endpoint,))) as etcd:
            record = f"/broadsheet.v1{cluster.root}/rollbacks/{RELAY}#{producer}#{MIDDLE}".encode()
            await etcd.txn((), (Put(record, b""),))
            with pytest.raises(ValidationError, match=f"is of shard {RELAY}"):
                await elastic.roll_back_transaction(MIDDLE, int(producer, 16))
            await etcd.delete(record)
        assert "dry run" in await _shardctl(one, f"{roll_back} --dry-run")
        assert (await elastic.journal_splits())[0].phase == "draining"
        assert "rolled back" in await _shardctl(one, roll_back)
        await until_divided(elastic)

        with pytest.raises(TransactionRolledBackError, match="roll_back"):
            await writer.commit()
        await writer.roll_back()
        writer.publish(mapping, {"key": "open", "n": 2}, JsonType())
        await writer.commit()
        await eventually(lambda: _has_passed(journals, 1))
        found = await committed(journals, OUTPUT)
        assert [each["n"] for each in found] == [2]


async def test_writer_with_a_stale_view_goes_on_into_the_parts(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Messages that a sealed journal refuses are published into its parts, in their order, and none in both."""
    await create_middle(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
        JournalClient(cluster.broker_address) as others,
    ):
        await client.apply(upserts(shard(READER, MIDDLE)))
        await wait_for_primaries(client, READER)
        writer = MessageWriter(others)
        mapping = (await open_topic(others, MIDDLE)).mapping("key")
        for number in range(3):
            if number == 1:
                await elastic.split_journal(MIDDLE)
                await until_divided(elastic)
            for key in KEYS:
                writer.publish(mapping, {"key": key, "n": number}, JsonType())
            await writer.flush()

        async def passed() -> bool:
            return len(await committed(journals, OUTPUT)) >= 3 * len(KEYS)

        await eventually(passed)
        found = await committed(journals, OUTPUT)
        assert [each for each in found if each["n"] == 0 and each["by"] != MIDDLE] == []
        for key in KEYS:
            assert [each["n"] for each in found if each["key"] == key] == [0, 1, 2]
        among = await open_topic(others, selector="broadsheet.dev/publishers=checked")
        assert [each.journal for each in among.partitions] == [MIDDLE], "parts are no partitions"


async def test_commands_go_on_in_a_part_and_bytes_are_refused(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Their sender knows nothing of the division: a divided journal refuses it, and all go into one part, in order.
    Bytes that are appended as they are have no key, and are refused by name.
    """
    await create_middle(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
        JournalClient(cluster.broker_address) as others,
    ):
        await client.apply(upserts(shard(READER, MIDDLE)))
        await wait_for_primaries(client, READER)
        appender = CommandAppender(others, MappedJournal(MIDDLE, NDJSON), JsonType())
        assert (await appender.append({"key": "k", "n": 0})).keys() == {MIDDLE}
        await elastic.split_journal(MIDDLE)
        await until_divided(elastic)
        await appender.append({"key": "k", "n": 1})
        (part,) = await appender.append({"key": "k", "n": 2})
        assert part in PARTS
        await eventually(lambda: _has_passed(journals, 3))
        found = await committed(journals, OUTPUT)
        assert [(each["n"], each["by"]) for each in found] == [(0, MIDDLE), (1, part), (2, part)]
        raw = cluster.directory / "raw"
        await asyncio.to_thread(raw.write_bytes, b"{}\n")
        line = f"shardctl journals append {MIDDLE} -f {raw} --broker {cluster.broker_address}"
        refused = await asyncio.to_thread(shardctl, line)
        assert "was divided by key" in refused.stderr
    assert not await _messages_behind_the_seal(journals)


async def test_publisher_that_moves_to_a_member_with_a_stale_view_goes_on_in_the_parts(
    cluster: Cluster, journals: JournalClient
) -> None:
    """The sealed journal refuses its first append; the shard begins again, and nothing comes behind the seal."""
    await create_middle(journals)
    producer = Producer(journals)
    async with cluster.member("one", application=relay(cluster)) as one:
        async with client_of(one) as client, ElasticClient(one.address) as elastic:
            await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
            await wait_for_primaries(client, RELAY, READER)
            await producer.publish(SOURCE, KEYS)
            await _passed(journals, 1)
            await elastic.split_journal(MIDDLE)
            await until_divided(elastic)
        async with (
            cluster.member("two", application=relay(cluster)) as two,
            client_of(two) as client,
        ):
            one.force_stop()
            await wait_for_primaries(client, RELAY, READER)
            with capture_logs() as events:
                await producer.publish(SOURCE, KEYS)
                sent = await _passed(journals, 2)
            assert any(each["event"] == "publisher.journal_divided" for each in events)
            await check_passed(journals, sent)
    assert not await _messages_behind_the_seal(journals)


async def _messages_behind_the_seal(journals: JournalClient) -> int:
    """Return how many there are but acknowledgements: a successor repeats those, and rolls back what was left."""
    sealed = sealed_at((await journals.get(MIDDLE)).spec)
    assert sealed is not None
    count = 0
    async with aclosing(read_batches(journals, MIDDLE, JsonType(), block=False)) as batches:
        async for batch in batches:
            behind = (batch.begins >= sealed) & (batch.flags != Flags.ACK_TXN)
            count += int(behind.sum())
    return count


async def test_journal_awaits_what_a_killed_publisher_has_committed(
    cluster: Cluster, journals: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher is killed between its commit and the append of the intent that carries its messages: nothing in
    the journal tells of them. The seal waits for its successor, which appends them.
    """
    await create_middle(journals)
    producer = Producer(journals)
    append_acks = TransactionLoop.append_acks
    kept: list[bytes] = []
    cuts: set[object] = set()
    keeps = False

    def cut(self: TransactionLoop, intents: Any, *, recovered: bool) -> None:
        if self in cuts or (keeps and MIDDLE in intents and not recovered and not kept):
            cuts.add(self)
            kept.append(intents.get(MIDDLE, b""))
            return
        append_acks(self, intents, recovered=recovered)

    monkeypatch.setattr(TransactionLoop, "append_acks", cut)
    asked = StandStill(ForkHolding, "settle", behind=False)
    asked.released.set()

    async def settle(self: ForkHolding) -> Any:
        return await asked(self)

    monkeypatch.setattr(ForkHolding, "settle", settle)
    async with cluster.member("one", application=relay(cluster)) as one:
        async with client_of(one) as client:
            await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
            await wait_for_primaries(client, RELAY, READER)
            await producer.publish(SOURCE, KEYS)
            await producer.publish(SOURCE, KEYS)
            sent = await _passed(journals, 2)
        keeps = True
        await producer.publish(SOURCE, KEYS)
        sent.update(KEYS)
        await eventually(lambda: bool(kept))
        assert kept[0].count(b"\n") > 1, "the intent carries the messages"
        async with cluster.member("two", application=relay(cluster)) as two:
            async with ElasticClient(two.address) as elastic:
                await elastic.split_journal(MIDDLE)

                await eventually(asked.reached.is_set)
                (split,) = await elastic.journal_splits()
                assert split.phase == "leaving"
                one.force_stop()
                await until_divided(elastic)
            await producer.publish(SOURCE, KEYS)
            sent.update(KEYS)
            by_journal = await check_passed(journals, sent)
            assert by_journal[MIDDLE] == set(KEYS)
            assert by_journal.keys() > {MIDDLE}
            assert not await _messages_behind_the_seal(journals)


async def _passed(journals: JournalClient, rounds: int) -> Counter[str]:
    async def passed() -> bool:
        return len(await committed(journals, OUTPUT)) >= rounds * len(KEYS)

    await eventually(passed)
    return Counter(dict.fromkeys(KEYS, rounds))


async def test_journal_that_is_written_behind_its_seal_stays_among_the_sources(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A publisher that does not look at the register would lose messages: the division names it, and the shard reads
    them.
    """
    await create_middle(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        reader = shard(READER, MIDDLE)
        reader.disable = True
        await client.apply(upserts(reader))
        await elastic.split_journal(MIDDLE)
        await until_sealed(elastic, f"shard {READER} is paused")
        clock, producer = MessageClock(), new_producer_id()
        clock.update(time.time())
        publisher = Publisher(clock, producer)
        publisher.publish_committed(MappedJournal(MIDDLE, NDJSON), {"key": "k", "n": 0}, JsonType())
        (pending,) = publisher.take_appends()
        await journals.append(MIDDLE, pending.content)
        await _pause_reader(client, paused=False)
        await until_sealed(elastic, f"producer {producer:012x} published into {MIDDLE} behind")
        await eventually(lambda: _has_passed(journals, 1))
        assert MIDDLE in [each.journal for each in (await _listed(client)).spec.sources]


async def test_transaction_that_is_left_behind_the_seal_holds_a_division_up_until_it_is_rolled_back(
    cluster: Cluster, journals: JournalClient
) -> None:
    """As of a primary that slept over the seal and the rollbacks of its successor: readers show nothing of it, so the
    journal may leave their sources.
    """
    await create_middle(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        reader = shard(READER, MIDDLE)
        reader.disable = True
        await client.apply(upserts(reader))
        await elastic.split_journal(MIDDLE)
        await until_sealed(elastic, f"shard {READER} is paused")
        clock, producer = MessageClock(), new_producer_id()
        # Silent for long enough that an operator may take it for dead.
        clock.update(time.time() - 600)
        publisher = Publisher(clock, producer)
        publisher.publish_uncommitted(
            MappedJournal(MIDDLE, NDJSON), {"key": "k", "n": 0}, JsonType()
        )
        (pending,) = publisher.take_appends()
        await journals.append(MIDDLE, pending.content)
        await _pause_reader(client, paused=False)
        await until_sealed(elastic, f"producer {producer:012x} has a transaction open in {MIDDLE}")
        await elastic.roll_back_transaction(MIDDLE, producer)
        await until_divided(elastic)
        assert MIDDLE not in [each.journal for each in (await _listed(client)).spec.sources]
        assert not await _has_passed(journals, 1)


async def test_division_ends_when_its_journal_is_deleted_and_no_shard_reads_it(
    cluster: Cluster, journals: JournalClient
) -> None:
    """An operator may give a sealed journal up: as long as a shard reads it, the division says that it is gone."""
    await create_middle(journals)
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        reader = shard(READER, MIDDLE)
        reader.disable = True
        await client.apply(upserts(reader))
        await elastic.split_journal(MIDDLE)
        await until_sealed(elastic, f"shard {READER} is paused")
        revision = (await journals.get(MIDDLE)).mod_revision
        await journals.apply([JournalApply.Change(delete=MIDDLE, expect_mod_revision=revision)])
        await until_sealed(elastic, MIDDLE)
        await client.apply(upserts(shard(READER, *PARTS), expect=-1))
        await until_divided(elastic)


async def _has_passed(journals: JournalClient, messages: int) -> bool:
    return len(await committed(journals, OUTPUT)) >= messages


STEPS: dict[str, tuple[str, bool]] = {
    # Where the leader stands still, before or behind a call, when its member is killed, with all shards.
    "before-the-parts": ("make_parts", False),
    "behind-the-parts": ("make_parts", True),
    "behind-the-sources": ("give_parts", True),
    "behind-the-register": ("close", True),
    "behind-the-leaving": ("have_publishers_leave", True),
    "behind-the-seal": ("seal", True),
    "before-the-end": ("end_sources", False),
    "behind-the-end": ("end_sources", True),
}
_IN_CI = ("behind-the-register",)
_ASKED = os.environ.get("JOURNAL_SPLIT_STEPS", ",".join(_IN_CI))


@pytest.mark.parametrize("round_", range(int(os.environ.get("JOURNAL_SPLIT_ROUNDS", "1"))))
@pytest.mark.parametrize("step", [each for each in STEPS if _ASKED == "all" or each in _ASKED])
async def test_division_whose_leader_is_killed_at_a_step_is_done_by_another(
    cluster: Cluster,
    journals: JournalClient,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    round_: int,
) -> None:
    """Each step is done again from what is there. The publisher and the reader die with the leader, and go on."""
    del round_
    name, behind = STEPS[step]
    await create_middle(journals)
    producer = Producer(journals)
    async with cluster.member("one", application=relay(cluster)) as one:
        async with client_of(one) as client:
            await client.apply(upserts(shard(RELAY, SOURCE), shard(READER, MIDDLE)))
            await wait_for_primaries(client, RELAY, READER)
        async with cluster.member("two", application=relay(cluster)) as two:
            async with traffic(producer) as sent:
                await eventually(lambda: sent.total() > 200)
                still = StandStill(JournalSplitter, name, behind=behind)

                async def called(*args: Any) -> Any:
                    return await still(*args)

                monkeypatch.setattr(JournalSplitter, name, called)
                async with ElasticClient(two.address) as elastic, client_of(two) as client:
                    await elastic.split_journal(MIDDLE)
                    await eventually(still.reached.is_set)
                    one.force_stop()
                    still.released.set()
                    await wait_for_primaries(client, RELAY, READER)
                    await until_divided(elastic)
                at_seal = sent.total()
                await eventually(lambda: sent.total() > at_seal + 200)
            by_journal = await check_passed(journals, sent)
            assert by_journal.keys() >= set(PARTS)


async def test_publisher_whose_part_was_deleted_fails_and_says_so(
    cluster: Cluster, journals: JournalClient
) -> None:
    """The part is applied again, and the shard goes on: every message is published once."""
    await create_middle(journals)
    await asyncio.to_thread(divide, cluster.broker_address, MIDDLE, is_told=True)
    part = await journals.get(PARTS[0])
    deleting = JournalApply.Change(delete=PARTS[0], expect_mod_revision=part.mod_revision)
    await journals.apply([deleting])
    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(shard(RELAY, SOURCE)))
        await wait_for_primaries(client, RELAY)
        await Producer(journals).publish(SOURCE, KEYS)

        async def says() -> bool:
            (listed,) = (await client.list()).shards
            return any(
                f"{MIDDLE} is divided" in text for each in listed.status for text in each.errors
            )

        await eventually(says)
        await journals.apply([JournalApply.Change(upsert=part.spec, expect_mod_revision=0)])

        async def published() -> bool:
            found = [each for name in PARTS for each in await committed(journals, name)]
            return sorted(each["key"] for each in found) == sorted(KEYS)

        await eventually(published, timeout_seconds=60.0)
