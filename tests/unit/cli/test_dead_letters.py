"""What a dead letter says, and the message that a replay makes of it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import pytest

from broadsheet.cli.shards.dead_letters import Letter, letter_journal
from broadsheet.journals.content.json import json_uuid_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_pb2 import ShardSpec


def _letter(payload: bytes = b'{"_meta":{"uuid":"old"},"key":"a"}', **fields: Any) -> Letter:
    recorded = {
        "journal": "in/part-000;meta",
        "uuid": "0e2f3f3a-0000-11f0-8001-010203040506",
        "at": "2026-01-02T03:04:05.678+00:00",
        "payload_base64": b64encode(payload).decode(),
    }
    return Letter(offset=4096, fields=recorded | fields, digest=bytes(range(64)))


def test_replayed_message_is_the_same_each_time() -> None:
    """Its UUID is made from the letter, so readers who have it drop it: a replay may be repeated after a failure."""
    first, second = (b"".join(_letter().published()) for _ in range(2))

    assert first == second
    message = msgspec.json.decode(first)
    assert message["key"] == "a"
    assert message["_meta"]["uuid"] != "old"
    assert json_uuid_of(first)
    assert _letter().journal == "in/part-000"


def test_another_letter_makes_another_message() -> None:
    """Two letters of the same moment and content are two messages, which both count."""
    other = Letter(offset=5000, fields=_letter().fields, digest=bytes(64))

    assert [*other.published()] != [*_letter().published()]


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({}, ""),
        ({"uuid": ""}, "could not be read"),
        ({"payload_bytes": 1 << 25}, "its beginning only"),
    ],
)
def test_letter_that_holds_no_whole_message_is_left(fields: dict[str, Any], obstacle: str) -> None:
    """Half a message, or bytes that are none, would only fail again."""
    found = _letter(**fields).obstacle

    assert obstacle in found
    assert bool(found) is bool(obstacle)


def test_payload_that_is_no_json_is_named() -> None:
    """The source's messages are in another format: nothing is published."""
    with pytest.raises(ValidationError, match="letter 4096: is no JSON message"):
        _letter(b"\x00").published()


def test_shard_without_a_dead_letter_journal_is_told_so() -> None:
    """Such a shard leaves nothing out: it fails at the message instead."""
    with pytest.raises(ValidationError, match="has no label"):
        letter_journal(ShardSpec(id="flights-000"))
