"""A relay into a journal that is divided meanwhile, a reader of that journal, and what must hold afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from broadsheet.consumer.application import Shard
from broadsheet.consumer.client import ElasticClient
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.division import DIVIDED
from broadsheet.journals.message.partitioning import MappedJournal, field_key, modulo_mapping
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import Flags, MessageClock, build_uuid, new_producer_id
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply
from broadsheet.wire.key_range import GROUPS, KeyRange, range_labels
from broadsheet.wire.labels import (
    CONTENT_TYPE,
    PUBLISHERS,
    PUBLISHERS_CHECKED,
    SPLIT_OF,
    label_set,
    union,
)
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.members import Cluster, Producer, committed
from tests.support.spark import make_journals
from tests.support.tally import JsonTally

SOURCE, MIDDLE, OUTPUT = "test/source", "test/middle", "test/output"
PARTS = (f"{MIDDLE}-0000", f"{MIDDLE}-0800")
RELAY, READER = "relay-a", "reader-b"
KEYS = [f"k{number}" for number in range(20)]

_JSON = JsonType()


class RelayTally(JsonTally):
    """Relays the source into the middle by key, and what it reads there into the output."""

    by_key = staticmethod(modulo_mapping(field_key("key"), lambda: [MappedJournal(MIDDLE, NDJSON)]))

    def consume_message(
        self, shard: Shard, store: Any, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count, and pass on."""
        if envelope.flags == 2:
            return
        message = envelope.message
        self.count(store, message["key"])
        if envelope.journal == SOURCE:
            onward = {"key": message["key"], "n": message["n"]}
            publisher.publish_uncommitted(self.by_key, onward, _JSON)
            return
        passed = {"key": message["key"], "n": message["n"], "by": envelope.journal}
        publisher.publish_uncommitted(MappedJournal(OUTPUT, NDJSON), passed, _JSON)


class RecordedRelay(RelayTally):
    """The same, with states in recovery logs."""

    def new_store(self, shard: Shard) -> Any:
        """Open what the log replayed to."""
        return JsonFileStore(shard, initial={}, state_type=dict[str, int])


def relay(cluster: Cluster) -> RelayTally:
    """Return the application, whose stores all members share."""
    return RelayTally(cluster.directory, output=OUTPUT)


async def create_middle(journals: JournalClient) -> None:
    """Create the journal that is divided: its publishers see that."""
    labels = label_set((CONTENT_TYPE, NDJSON), (PUBLISHERS, PUBLISHERS_CHECKED))
    await journals.apply(
        [JournalApply.Change(upsert=journal_spec(MIDDLE, labels=labels), expect_mod_revision=0)]
    )


@asynccontextmanager
async def traffic(producer: Producer) -> AsyncIterator[Counter[str]]:
    """Publish messages of all keys into the source until the block ends; yield how many each key got."""
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


async def until_divided(elastic: ElasticClient, timeout_seconds: float = 60.0) -> None:
    """Wait until no division is under way."""

    async def over() -> bool:
        found = await elastic.journal_splits()
        assert not found, found
        return True

    await eventually(over, timeout_seconds=timeout_seconds)


async def until_sealed(elastic: ElasticClient, reason: str) -> None:
    """Wait until the journal is sealed, and its division waits for this."""

    async def waits() -> bool:
        (split,) = await elastic.journal_splits()
        assert split.phase == "sealed", split
        assert reason in split.reason, split
        return True

    await eventually(waits, timeout_seconds=60.0)


async def check_passed(journals: JournalClient, sent: Counter[str]) -> dict[str, set[str]]:
    """Check that each message came out once, those of a key in order; return the keys that came by each journal."""

    async def all_out() -> list[dict[str, Any]]:
        found = await committed(journals, OUTPUT)
        assert len(found) >= sent.total(), (len(found), sent.total())
        return found

    passed = await eventually(all_out, timeout_seconds=60.0)
    numbers: dict[str, list[int]] = defaultdict(list)
    keys: dict[str, set[str]] = defaultdict(set)
    for each in passed:
        numbers[each["key"]].append(each["n"])
        keys[each["by"]].add(each["key"])
    assert {key: len(found) for key, found in numbers.items()} == dict(sent)
    for key, found in numbers.items():
        assert found == sorted(set(found)), f"{key} came twice, or out of order: {found}"
    return keys


def divide(
    address: str,
    journal: str,
    at: int = GROUPS // 2,
    *,
    message_type: MessageType = _JSON,
    is_told: bool = False,
) -> tuple[str, str]:
    """Divide a journal as a member does, with no reader to wait for; return its parts.

    Args:
        address: A broker.
        journal: Its name.
        at: First group of the second part.
        message_type: Of its messages.
        is_told: Label the journal in the end, by which others learn of it before they are refused.
    """
    parts = make_parts(address, journal, at, message_type=message_type)
    close(address, journal, message_type=message_type, is_told=is_told)
    return parts


def make_parts(
    address: str, journal: str, at: int = GROUPS // 2, *, message_type: MessageType = _JSON
) -> tuple[str, str]:
    """Make a journal's parts, which is the first step; return them."""
    ranges = (KeyRange(0, at), KeyRange(at, GROUPS))
    low, high = (f"{journal}-{owned.begin:04x}" for owned in ranges)
    for name, owned in zip((low, high), ranges, strict=True):
        labels = {SPLIT_OF: journal, **dict(range_labels(owned))}
        make_journals(address, [name], content_type=message_type.content_type, labels=labels)
    return low, high


def close(
    address: str, journal: str, *, message_type: MessageType = _JSON, is_told: bool = False
) -> None:
    """Have a journal refuse new publishers, and label it if others are told, which is the second step."""

    async def register() -> None:
        async with JournalClient(address) as journals:
            message = message_type.new_acknowledgement(journal)
            uuid = build_uuid(new_producer_id(), MessageClock().tick(), Flags.ACK_TXN)
            message_type.set_uuid(message, uuid)
            framing = framing_for(message_type.content_type, journal=journal)
            content = framing.frame(message_type.encode(message))
            await journals.append(journal, content, union_registers=DIVIDED)
            if is_told:
                listed = await journals.get(journal)
                listed.spec.labels.CopyFrom(union(listed.spec.labels, DIVIDED))
                change = JournalApply.Change(
                    upsert=listed.spec, expect_mod_revision=listed.mod_revision
                )
                await journals.apply([change])

    asyncio.run(register())
