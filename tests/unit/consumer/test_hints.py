"""Recovery hints as they are stored: what Gazette writes we read, and the other way round."""

from __future__ import annotations

import pytest

from broadsheet.consumer.recoverylog.hints import (
    backup_hints_keys,
    decode_hints,
    encode_hints,
    primary_hints_key,
    recovery_log_of,
)
from broadsheet.wire.recorded_op_pb2 import FnodeSegments, FSMHints, Property, Segment
from broadsheet.wire.shard_pb2 import ShardSpec

HINTS = FSMHints(
    log="logs/shard-1",
    live_nodes=[
        FnodeSegments(
            fnode=4,
            segments=[
                Segment(author=7, first_seq_no=4, first_offset=100, first_checksum=9, last_seq_no=8)
            ],
        )
    ],
    properties=[Property(path="/a", content="b")],
)


def test_hints_keys_follow_the_prefix() -> None:
    """The keys are part of what we share with Gazette."""
    spec = ShardSpec(id="shard-1", recovery_log_prefix="logs", hint_prefix="/hints", hint_backups=2)

    assert recovery_log_of(spec) == "logs/shard-1"
    assert primary_hints_key(spec) == b"/hints/shard-1.primary"
    assert backup_hints_keys(spec) == (b"/hints/shard-1.backup.0", b"/hints/shard-1.backup.1")


def test_hints_round_trip_as_json_with_numbers() -> None:
    """Go's JSON of an int64 is a number; protobuf's own mapping would write text."""
    encoded = encode_hints(HINTS)

    assert decode_hints(encoded) == HINTS
    assert b'"first_seq_no":4' in encoded


def test_hints_are_read_as_protobuf_too() -> None:
    """The first byte tells which."""
    assert decode_hints(HINTS.SerializeToString()) == HINTS


def test_hints_with_null_lists_are_empty() -> None:
    """Go writes null for a list without elements."""
    value = b'{"log":"logs/shard-1","live_nodes":null,"properties":null}'

    assert decode_hints(value) == FSMHints(log="logs/shard-1")


def test_hints_of_a_later_release_are_read_without_what_it_added() -> None:
    """A later release adds a field, anywhere; if this one refused that, no release could ever add one."""
    value = (
        b'{"log":"logs/shard-1","later":{"a":[1]},"min_reader":1,'
        b'"live_nodes":[{"fnode":4,"later":1,"segments":[{"author":7,"later":1}]}]}'
    )

    found = decode_hints(value)

    assert (found.log, found.live_nodes[0].segments[0].author) == ("logs/shard-1", 7)


def test_hints_that_need_a_later_reader_are_refused_and_say_so() -> None:
    """Where an unknown field matters, its writer says so, and the error does not blame damage."""
    with pytest.raises(ValueError, match=r"^min_reader: a later release .* number 2 on"):
        decode_hints(b'{"log":"logs/shard-1","min_reader":2}')


@pytest.mark.parametrize("value", [b"{", b'{"log":3}', b'{"unknown":1}', b"\xff\xff"])
def test_hints_that_are_neither_are_refused(value: bytes) -> None:
    """Damaged hints must never pass for "no hints": recovery would start from the beginning of time."""
    with pytest.raises(ValueError, match="expected FSMHints"):
        decode_hints(value)
