"""Shards whose journals hold bytes that are no messages, or that decoders fail at in ways that they do not document."""

from __future__ import annotations

from base64 import b64decode
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageType
from broadsheet.journals.message.reader import read_committed
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, label_set
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec
from tests.support.eventually import eventually
from tests.support.live_shards import (
    SECOND_SOURCE,
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    counts,
    read_through,
    spec_of,
)
from tests.support.members import Producer

pytestmark = pytest.mark.etcd

QUICK = ShardConfig(restart_delay_seconds=0.02, stop_grace_seconds=2, attempts_max=3)
NESTED = b'{"key":' + b"[" * 1_500 + b"]" * 1_500 + b"}"
JUNK = (NESTED, b"junk", b'{"_meta":{"uuid":"no uuid"},"key":"x"}', b"", b'{"key":"\xff"}')


class _Startled(JsonType):
    """Fails at one message as no documented decoder does."""

    def decode(self, payload: bytes) -> Any:
        """Decode a value that is not startling."""
        if b"startling" in payload:
            raise OverflowError("a length of 2**70")
        return super().decode(payload)


class _StartledCounting(Counting):
    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """JSON lines, decoded by somebody's own type."""
        del journal_spec
        return _Startled()


def _with_dead_letters() -> ShardSpec:
    spec = spec_of(SHARD, SOURCE)
    spec.labels.CopyFrom(label_set({DEAD_LETTER_JOURNAL: SECOND_SOURCE}))
    return spec


async def _dead_letters(journals: JournalClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    batches = read_committed(journals, SECOND_SOURCE, JsonType(), block=False)
    async with aclosing(batches):
        async for batch in batches:
            found += batch.messages()
    return [message for message in found if "payload_base64" in message]


async def test_bytes_that_are_no_message_go_to_the_dead_letter_journal(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Plan: brackets nested too deep for Python, a junk line, a UUID that is none, an empty line and broken UTF-8 stand
    between messages. Why: each of them made the journal unreadable for ever, though there is a dead-letter journal.
    """
    spec = _with_dead_letters()
    await host.assign(spec)
    producer = Producer(journals)
    await producer.publish(SOURCE, ["a"])
    appended = await journals.append(SOURCE, b"".join(line + b"\n" for line in JUNK))
    begin = appended.commit.begin
    end = await producer.publish(SOURCE, ["b", "a"])

    shard = host.start(spec, Counting(tmp_path), config=QUICK)

    await read_through(shard, source=end)
    assert await counts(shard) == {"a": 2, "b": 1}
    letters = await _dead_letters(journals)
    # The last is JSON enough to find no UUID in: the application's decoder says what is wrong with it.
    assert [b64decode(letter["payload_base64"]) for letter in letters] == list(JUNK)
    assert [letter["uuid"] for letter in letters[:4]] == [""] * 4
    assert [letter["begin"] for letter in letters] == [
        begin + sum(len(line) + 1 for line in JUNK[:index]) for index in range(len(JUNK))
    ]
    assert "not a JSON message" in letters[0]["cause"]
    counted = host.registry.get_sample_value(
        "broadsheet_shard_dead_letters_total", {"shard": shard.fqn}
    )
    # The last one's three failures repeat the transaction, and what is left out in it is counted again.
    assert counted is not None
    assert counted >= len(JUNK)


async def test_nested_brackets_are_told_with_place_and_ways_on(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Plan: no dead-letter journal. Why: an operator must learn journal and offset, and how to go on; what precedes
    the damage is committed, and min_offset passes it by.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    producer = Producer(journals)
    begin = await producer.publish(SOURCE, ["a"])
    behind = (await journals.append(SOURCE, NESTED + b"\n")).commit.end
    end = await producer.publish(SOURCE, ["b"])
    shard = host.start(spec, Counting(tmp_path), config=QUICK)

    await eventually(
        lambda: host.says(
            SHARD,
            ReplicaStatus.FAILED,
            f"journal {SOURCE} holds bytes that are no message: at offset {begin}: not a JSON message",
            "broadsheet.dev/dead-letter-journal",
            f"or set min_offset of source {SOURCE} to {behind}",
        )
    )
    onward = ShardSpec.FromString(spec.SerializeToString())
    onward.sources[0].min_offset = behind
    await host.change_spec(onward)

    await read_through(shard, source=end)
    assert await counts(shard) == {"a": 1, "b": 1}


async def test_whatever_a_message_type_raises_names_the_message(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Plan: an application's own decoder raises OverflowError. Why: only ValueError was taken for a failure to decode;
    the message goes to the dead-letter journal as any that cannot be decoded.
    """
    spec = _with_dead_letters()
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, ["a", "startling", "b"])

    shard = host.start(spec, _StartledCounting(tmp_path), config=QUICK)

    await read_through(shard, source=end)
    assert await counts(shard) == {"a": 1, "b": 1}
    (letter,) = await _dead_letters(journals)
    assert f"journal {SOURCE} holds bytes that are no message: at offset " in letter["cause"]
    assert "cannot be decoded: OverflowError: a length of 2**70" in letter["cause"]
