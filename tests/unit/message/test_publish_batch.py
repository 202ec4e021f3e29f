"""Rows that are published as columns: what readers get is what `publish_uncommitted` makes of them one by one."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowType
from broadsheet.journals.content.avro import AVRO, AvroType
from broadsheet.journals.content.csv import CsvType
from broadsheet.journals.content.json import NDJSON, JsonStructType, JsonType, Meta
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.journals.errors import ContentTypeError, NoPartitionsError, PublishMessageError
from broadsheet.journals.message import arrow_ipc, framing
from broadsheet.journals.message.framing import Payloads
from broadsheet.journals.message.partitioning import (
    KeyColumn,
    MappedJournal,
    modulo_mapping,
    rendezvous_mapping,
)
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import Flags, MessageClock, parse_uuid
from broadsheet.runtime.errors import ValidationError
from tests.support.arrow_values import with_bad_text

JSON_TYPE = JsonType()
ONE = MappedJournal("a/one", NDJSON)
PARTITIONS = [MappedJournal(f"a/part-{n:03}", NDJSON) for n in range(3)]
PRODUCER = 0x0100000000AB
AVRO_SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "k", "type": "string"}, {"name": "n", "type": ["null", "long"]}],
}

SCHEMA = pa.schema(
    {
        "k": pa.string(),
        "n": pa.int64(),
        "x": pa.float64(),
        "flag": pa.bool_(),
        "raw": pa.binary(),
        "list": pa.list_(pa.int32()),
        "of": pa.struct({"a": pa.string(), "b": pa.int8()}),
    }
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.text(max_size=12),
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "flag": st.none() | st.booleans(),
            "raw": st.none() | st.binary(max_size=5),
            "list": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
            "of": st.none()
            | st.fixed_dictionaries(
                {"a": st.none() | st.text(max_size=3), "b": st.integers(-5, 5)}
            ),
        }
    ),
    max_size=12,
)


def lines_by_journal(publisher: Publisher) -> dict[str, list[bytes]]:
    """Return what a publisher would append, line by line."""
    return {
        append.journal: b"".join(append.content).splitlines() for append in publisher.take_appends()
    }


def without_uuid(line: bytes) -> Any:
    """Return the message of a line, but for its UUID."""
    message = JSON_TYPE.decode(line)
    del message["_meta"]
    return message


@given(rows=ROWS, rule=st.sampled_from(["modulo", "rendezvous"]))
def test_batch_is_published_as_its_rows_one_by_one(rows: list[dict[str, Any]], rule: Any) -> None:
    """Plan: the same rows both ways. Why: journals, order, values and clocks must not depend on the way."""
    by_rule = {"modulo": modulo_mapping, "rendezvous": rendezvous_mapping}[rule]
    one_by_one = Publisher(MessageClock(), PRODUCER)
    for row in rows:
        mapping = by_rule(lambda message: message["k"].encode(), lambda: PARTITIONS)
        one_by_one.publish_uncommitted(mapping, dict(row), JSON_TYPE)
    at_once = Publisher(MessageClock(), PRODUCER)
    table = pa.Table.from_pylist(rows, SCHEMA)
    at_once.publish_batch(KeyColumn("k", lambda: PARTITIONS, rule), table, JSON_TYPE)

    expected, found = lines_by_journal(one_by_one), lines_by_journal(at_once)
    assert found.keys() == expected.keys()
    clocks: list[int] = []
    for journal, lines in found.items():
        assert [without_uuid(line) for line in lines] == [
            without_uuid(line) for line in expected[journal]
        ]
        stamps = [parse_uuid(JSON_TYPE.uuid_of(line)) for line in lines]
        assert {(producer, flags) for producer, _, flags in stamps} == {
            (PRODUCER, Flags.CONTINUE_TXN)
        }
        own = [clock for _, clock, _ in stamps]
        assert own == sorted(own)
        clocks.extend(own)
    assert len(set(clocks)) == len(rows)
    acknowledged = {intent.journal: intent for intent in at_once.build_ack_intents()}
    assert acknowledged.keys() == found.keys()
    for intent in acknowledged.values():
        _, clock, flags = parse_uuid(JSON_TYPE.uuid_of(intent.acknowledgement))
        assert flags == Flags.ACK_TXN
        assert clock > max(clocks, default=0)


def test_rollbacks_precede_the_first_row_of_a_batch() -> None:
    """Plan: a batch into a new journal. Why: the rollback must not acknowledge any of its rows."""
    publisher = Publisher(MessageClock(), PRODUCER)
    publisher.publish_batch(ONE, pa.table({"n": [1, 2]}), JSON_TYPE)

    [rollback] = publisher.take_rollbacks()
    first = JSON_TYPE.uuid_of(lines_by_journal(publisher)["a/one"][0])
    assert rollback.clock == parse_uuid(first)[1] - 1


def test_small_batch_is_carried_by_its_intent_from_the_second_transaction_on() -> None:
    """Plan: two transactions. Why: the ways of small transactions do not depend on how messages were made."""
    publisher = Publisher(MessageClock(), PRODUCER, carried_bytes_max=1 << 14)
    for carried in (False, True):
        publisher.publish_batch(ONE, pa.table({"n": [1, 2]}), JSON_TYPE)
        assert bool(publisher.take_appends()) is not carried
        publisher.take_rollbacks()
        [intent] = publisher.build_ack_intents()
        assert len(intent.content.splitlines()) == (3 if carried else 1)


def test_arrow_batch_is_one_message_for_each_journal() -> None:
    """Plan: rows of two journals. Why: rows share one UUID, and keep their order."""
    publisher = Publisher(MessageClock(), PRODUCER)
    journals = [MappedJournal(f"a/part-{n}", ARROW_STREAM) for n in range(2)]
    table = pa.table({"k": [f"key-{n}" for n in range(50)], "n": range(50)})
    publisher.publish_batch(KeyColumn("k", lambda: journals), table, ArrowType())

    seen: list[int] = []
    for append in publisher.take_appends():
        [content] = append.content
        size = int.from_bytes(content[4:8], "little")
        message = ArrowType().decode(bytes(Payloads.of([content[8 : 8 + size]])[0]))
        numbers = message.rows.column("n").to_pylist()
        assert numbers == sorted(numbers)
        seen.extend(numbers)
    assert sorted(seen) == list(range(50))


def test_dictionary_columns_and_infinite_numbers_are_written() -> None:
    """Plan: both. Why: data frames have categories, and JSON has no infinity."""
    publisher = Publisher(MessageClock(), PRODUCER)
    keys = pa.array(["a", None, "a"]).dictionary_encode()
    rows = pa.table({"k": keys, "x": [math.inf, 1.5, math.nan]})
    publisher.publish_batch(ONE, rows, JSON_TYPE)

    lines = lines_by_journal(publisher)["a/one"]
    assert [without_uuid(line) for line in lines] == [
        {"k": "a", "x": "Infinity"},
        {"k": None, "x": 1.5},
        {"k": "a", "x": "NaN"},
    ]


def test_large_rows_are_cut_into_pieces_between_rows() -> None:
    """Plan: 40 rows of 1 MiB. Why: an append's pieces are bounded in bytes, not in rows alone."""
    publisher = Publisher(MessageClock(), PRODUCER)
    publisher.publish_batch(ONE, pa.table({"s": ["x" * (1 << 20)] * 40}), JSON_TYPE)

    [append] = publisher.take_appends()
    assert len(append.content) >= 10
    assert all(piece.endswith(b"}\n") for piece in append.content)
    assert sum(piece.count(b"\n") for piece in append.content) == 40


@pytest.mark.parametrize("message_type", [JSON_TYPE, ArrowType()])
def test_rows_that_readers_refuse_are_refused(
    message_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row beyond the frame's limit, behind short ones: every reader of its journal would stop at it."""
    monkeypatch.setattr(framing, "FRAME_BYTES_MAX", 4_000)
    monkeypatch.setattr(arrow_ipc, "FRAME_BYTES_AIM", 500)
    publisher = Publisher(MessageClock(), PRODUCER)
    mapped = MappedJournal("a/one", message_type.content_type)
    rows = pa.table({"n": [1, 2, 3], "short": ["x"] * 3, "long": ["y", "y", "z" * 4_000]})

    with pytest.raises(
        PublishMessageError, match=r"column long, row 2: a message of \d+ bytes; readers take 4000"
    ):
        publisher.publish_batch(mapped, rows, message_type)

    assert not publisher.take_appends()
    publisher.publish_batch(mapped, rows.slice(0, 2), message_type)
    assert publisher.take_appends()


def test_rows_as_avro_are_one_message_that_reads_back() -> None:
    """A content type of rows needs no code in the publisher: its messages are made of whole tables."""
    publisher = Publisher(MessageClock(), PRODUCER)
    rows = pa.table({"k": ["a", "b"], "n": [1, None]})

    publisher.publish_batch(MappedJournal("a/one", AVRO), rows, AvroType(AVRO_SCHEMA))

    [append] = publisher.take_appends()
    frames = framing.FixedFraming().unframer(journal="a/one", offset=0).feed(append.content[0])
    [payload] = frames.payloads
    message = AvroType().decode(payload)
    assert message.rows == rows.to_pylist()
    assert parse_uuid(message.uuid)[2] == Flags.CONTINUE_TXN


def test_large_rows_of_arrow_messages_are_cut_where_they_are_skewed() -> None:
    """Two rows of 40 MiB among many short ones: each fits a message, and both together would not."""
    publisher = Publisher(MessageClock(), PRODUCER)
    texts = ["x" * (40 << 20)] * 2 + ["y"] * 200
    publisher.publish_batch(
        MappedJournal("a/one", ARROW_STREAM), pa.table({"t": texts}), ArrowType()
    )

    [append] = publisher.take_appends()
    frames = framing.FixedFraming().unframer(journal="a/one", offset=0)
    payloads = [each for piece in append.content for each in frames.feed(piece).payloads]
    assert sum(ArrowType().decode(each).rows.num_rows for each in payloads) == len(texts)


@pytest.mark.parametrize("message_type", [JSON_TYPE, CsvType(columns=1)])
def test_single_messages_that_readers_refuse_are_refused(message_type: Any) -> None:
    """Above 64 MiB, by one byte and by the frame's own length: every reader of the journal would stop there."""
    publisher = Publisher(MessageClock(), PRODUCER)
    long = "x" * framing.FRAME_BYTES_MAX
    message: Any = {"v": long} if message_type is JSON_TYPE else ["", long]

    with pytest.raises(PublishMessageError, match="readers take 67108864 at most"):
        publisher.publish_uncommitted(
            MappedJournal("a/one", message_type.content_type), message, message_type
        )
    assert not publisher.take_appends()


@pytest.mark.parametrize("rule", ["modulo", "rendezvous"])
def test_keys_of_any_layout_are_those_of_their_values(rule: Any) -> None:
    """Views, large texts, dictionaries: a key's journal does not depend on how a column is laid out."""
    texts = ["a", "k" * 30, "é", ""]
    plain = pa.array(texts)
    layouts = [
        *(plain.cast(kind) for kind in (pa.large_string(), pa.string_view(), pa.binary())),
        plain.cast(pa.binary()).cast(pa.binary_view()),
        plain.dictionary_encode(),
    ]
    mapping = KeyColumn("k", lambda: PARTITIONS, rule)
    _, expected = mapping.journals_of(pa.record_batch({"k": plain}))

    for layout in layouts:
        rows = pa.record_batch({"k": layout})
        assert mapping.journals_of(rows)[1].tolist() == expected.tolist()
        publisher = Publisher(MessageClock(), PRODUCER)
        publisher.publish_batch(mapping, rows, JSON_TYPE)
        assert sum(map(len, lines_by_journal(publisher).values())) == len(texts)


def test_null_key_within_a_dictionary_is_named() -> None:
    """A dictionary that holds null among its values has no null of its own."""
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))

    with pytest.raises(ValidationError, match="k: 1 keys are null"):
        KeyColumn("k", lambda: PARTITIONS).journals_of(pa.record_batch({"k": keys}))


def test_key_column_has_two_rules() -> None:
    """Plan: a misspelt rule. Why: any other journal than that of the message-by-message mapping is wrong in silence."""
    rule: Any = "modulu"
    with pytest.raises(
        ValidationError, match="rule: expected one of modulo, rendezvous, got 'modulu'"
    ):
        KeyColumn("k", lambda: PARTITIONS, rule)


class Reading(msgspec.Struct):
    """A message whose number no text can stand for."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    x: float = 0.0


def bad_texts(count: int, *, bad: int) -> pa.Array:
    """Return strings of which one is no UTF-8."""
    return with_bad_text(pa.array(["a"] * count), bad)


class Wrapped(JsonType):
    """A type of an application that writes its values in a way of its own."""

    def encode(self, message: Any) -> bytes:
        """Wrap the message."""
        return super().encode({"wrapped": message})


@pytest.mark.parametrize(
    ("table", "mapping", "message_type", "error", "says"),
    [
        (pa.table({"_meta": [1]}), ONE, JSON_TYPE, PublishMessageError, "_meta"),
        (
            pa.table({"n": [1, 2, 3], "t": bad_texts(3, bad=2)}),
            ONE,
            JSON_TYPE,
            PublishMessageError,
            "column t, row 2: text that is not UTF-8",
        ),
        (
            # Of the second journal's rows, the second: named as the row that it is in the table.
            pa.table({"k": ["a", "d", "a", "d"], "t": bad_texts(4, bad=3)}),
            KeyColumn("k", lambda: PARTITIONS),
            JSON_TYPE,
            PublishMessageError,
            "column t, row 3: text that is not UTF-8",
        ),
        (
            pa.table({"n": [1, 2, 3], "t": bad_texts(3, bad=1)}),
            MappedJournal("a/one", ARROW_STREAM),
            ArrowType(),
            PublishMessageError,
            "column t, row 1: text that is not UTF-8",
        ),
        (
            pa.table({"n": pa.array([[None] * ((1 << 20) + 1)], pa.list_(pa.null()))}),
            MappedJournal("a/one", ARROW_STREAM),
            ArrowType(),
            PublishMessageError,
            "column n, row 0: 1048577 values without bytes",
        ),
        (
            pa.table({"x": [1.5, math.nan]}),
            ONE,
            JsonStructType(Reading),
            PublishMessageError,
            "column x, row 1: NaN",
        ),
        (
            pa.table({"t": pa.array([1], pa.timestamp("ns"))}),
            ONE,
            JSON_TYPE,
            PublishMessageError,
            "column t, row 0: .* has parts of a microsecond",
        ),
        (
            # Beyond the rows that are encoded at once.
            pa.table({"d": pa.array([0] * 19_999 + [2_932_897], pa.int32()).cast(pa.date32())}),
            ONE,
            JSON_TYPE,
            PublishMessageError,
            "column d, row 19999: a year",
        ),
        (pa.table({"n": [1]}), ONE, Wrapped(), PublishMessageError, "rows as Wrapped"),
        (
            pa.table({"k": ["a"], "n": [1], "m": [1]}),
            MappedJournal("a/one", AVRO),
            AvroType(AVRO_SCHEMA),
            PublishMessageError,
            "column m: expected a field of the schema, k, n",
        ),
        (
            pa.table({"k": ["a", None], "n": [1, 2]}),
            MappedJournal("a/one", AVRO),
            AvroType(AVRO_SCHEMA),
            PublishMessageError,
            "column k, row 1",
        ),
        (
            pa.table({"n": [1]}),
            MappedJournal("a/one", PROTOBUF_FIXED),
            JSON_TYPE,
            ContentTypeError,
            "x-ndjson",
        ),
        (pa.table({"n": [1]}), MappedJournal("a b", NDJSON), JSON_TYPE, PublishMessageError, "a b"),
        (
            pa.table({"n": [1]}),
            KeyColumn("k", lambda: PARTITIONS),
            JSON_TYPE,
            ValidationError,
            "'k'",
        ),
        (
            pa.table({"k": ["a", None]}),
            KeyColumn("k", lambda: PARTITIONS),
            JSON_TYPE,
            ValidationError,
            "1 keys are null",
        ),
        (pa.table({"k": ["a"]}), KeyColumn("k", list), JSON_TYPE, NoPartitionsError, "partitions"),
    ],
)
def test_what_cannot_be_published_is_named_and_leaves_nothing(
    table: pa.Table, mapping: Any, message_type: Any, error: type[Exception], says: str
) -> None:
    """Plan: one broken thing at a time. Why: half a batch in the buffers would be published with the rest."""
    publisher = Publisher(MessageClock(), PRODUCER)
    with pytest.raises(error, match=says):
        publisher.publish_batch(mapping, table, message_type)
    assert not publisher.has_published
    assert publisher.take_appends() == []
    assert publisher.build_ack_intents() == []
