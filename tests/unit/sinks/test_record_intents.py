"""Intents that carry records: their form, and what follows from them and the marker."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from broadsheet.consumer.direct.partitioner import murmur2, partition_of
from broadsheet.consumer.direct.record_intents import (
    Intent,
    IntentVerdict,
    encoded_head,
    encoded_record,
    parse_intent,
    resolve,
)
from broadsheet.consumer.stores.kafka.record import Record
from broadsheet.journals.message.checkpoint import build_checkpoint
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.formats import LaterFormatError
from broadsheet.wire.outputs_pb2 import RecordIntent

RECORD = Record("t", b"v", b"k", 1)
_BYTES = st.none() | st.binary(max_size=8)


@given(
    st.lists(
        st.builds(
            Record,
            st.text(max_size=5),
            _BYTES,
            _BYTES,
            st.integers(0, 99),
            st.lists(st.tuples(st.text(max_size=3), _BYTES), max_size=2).map(tuple),
            st.integers(0, 2**40),
        ),
        max_size=5,
    )
)
def test_intent_of_records_is_parsed_to_what_it_was(records: list[Record]) -> None:
    """Tombstones stay tombstones, empty keys empty: what a restart sends is what the first life would have sent."""
    content = encoded_head(7, "/root/shard") + b"".join(map(encoded_record, records))

    assert parse_intent(content, "intent") == Intent(7, "/root/shard", records)


@pytest.mark.parametrize(
    ("number", "records", "marker", "expected"),
    [
        (0, 0, None, IntentVerdict.SENT),
        (5, 0, None, IntentVerdict.SENT),
        (5, 0, 3, IntentVerdict.SENT),
        (5, 0, 5, IntentVerdict.SENT),
        (5, 0, 6, IntentVerdict.CONTRADICTED),
        (0, 0, 1, IntentVerdict.CONTRADICTED),
        (5, 1, 5, IntentVerdict.SENT),
        (5, 1, 4, IntentVerdict.SEND),
        (1, 1, None, IntentVerdict.SEND),
        (1, 1, 1, IntentVerdict.SENT),
        (5, 1, None, IntentVerdict.DOUBTFUL),
        (5, 1, 6, IntentVerdict.CONTRADICTED),
        (5, 1, 3, IntentVerdict.CONTRADICTED),
    ],
)
def test_recovery_follows_the_table(
    number: int, records: int, marker: int | None, expected: IntentVerdict
) -> None:
    """Each row of the recovery table; a wrong one loses records, or doubles them."""
    assert resolve(Intent(number, "s", [RECORD] * records), marker) is expected


def test_intent_of_a_later_release_is_refused() -> None:
    """What this release does not understand it must not send, nor drop."""
    with pytest.raises(LaterFormatError, match="records that a checkpoint holds"):
        parse_intent(RecordIntent(number=1, min_reader=99).SerializeToString(), "intent")


@pytest.mark.parametrize("content", [b"\xff\xff", encoded_record(RECORD)])
def test_intent_that_is_damaged_is_refused_by_name(content: bytes) -> None:
    """Records without a number cannot be compared with the marker, and so are never sent."""
    with pytest.raises(ValidationError, match=r"ack_intents\[kafka:default\]"):
        parse_intent(content, "ack_intents[kafka:default]")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_of_a_key_is_the_one_of_java(key: bytes, expected: int) -> None:
    """Kafka's own test vectors: records go where producers in Java send those of the same key."""
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert 0 <= partition_of(key, 7) < 7


def test_checkpoint_keeps_the_last_acknowledgement_beside_records_for_other_systems() -> None:
    """Records say nothing of journals: without the acknowledgement, a successor would roll back what was committed."""
    checkpoint = build_checkpoint({}, {"kafka:default": b"n"}, {"out/a": b"before"})

    assert dict(checkpoint.ack_intents) == {"kafka:default": b"n", "out/a": b"before"}
