"""Journals with damage as the source reads them: as the mode says, and never at the cost of what is sound."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.content.csv import CSV, CsvType
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED, ProtobufType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.framing import FIXED_MAGIC
from broadsheet.journals.message.uuid import build_uuid
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.columns import with_metadata
from broadsheet.spark_bridge.journal_source.schema_inference import infer_schema
from broadsheet.wire.journal_pb2 import AppendRequest
from tests.support.journal_reads import IDS, Query, Topic

pytestmark = pytest.mark.e2e

WITH_CORRUPT = StructType([*IDS.fields, StructField("_corrupt_record", StringType())])
RAW = StructType([StructField("value", BinaryType())])
NESTED = b'{"id":' + b"[" * 1_500 + b"]" * 1_500 + b"}"
JUNK = (b"junk", NESTED, b'{"_meta":{"uuid":"none"},"id":7}', b"\xff\xfe")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker for all tests, which keep to their own journals."""
    with EmbeddedBrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.address


def _damaged(address: str) -> tuple[Topic, list[tuple[int, int]]]:
    """Return a journal with junk among messages and within a transaction, and where the junk stands."""
    topic = Topic(address, 1)
    writer, other = topic.writer(), topic.writer()
    places: list[tuple[int, int]] = []
    content = b""
    for index, junk in enumerate(JUNK):
        content += writer.line(1, id=index) + other.line(0, id=10 + index)
        places.append((len(content), len(content) + len(junk) + 1))
        content += junk + b"\n"
    writer.append(content)
    writer.acknowledge()
    return topic, places


def _rows(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def test_failfast_is_the_default_and_names_the_place(address: str) -> None:
    """Plan: read without a mode. Why: a read that leaves out what it was not told to would be wrong in silence."""
    topic, places = _damaged(address)

    with pytest.raises(FramingError, match=f"at offset {places[0][0]}: not a JSON message"):
        topic.batch()


def test_permissive_reads_around_damage_and_shows_it(address: str) -> None:
    """Plan: junk, nested brackets, a UUID that is none and bytes that are no text, within a transaction. Why: one bad
    line made the whole journal unreadable; all that is sound must come once, and what is not, with its place.
    """
    topic, places = _damaged(address)

    _, rows = topic.batch(with_metadata(WITH_CORRUPT), mode="PERMISSIVE", includeMetadata="true")

    assert _rows([r for r in rows if r["_corrupt_record"] is None], "id") == _rows(
        [{"id": n} for n in (0, 1, 2, 3, 10, 11, 12, 13)], "id"
    )
    damaged = sorted(
        (row for row in rows if row["_corrupt_record"] is not None), key=lambda row: row["_begin"]
    )
    assert [(row["_begin"], row["_end"]) for row in damaged] == places
    shown = [row["_corrupt_record"].rstrip("\n") for row in damaged]
    assert shown == [junk.decode(errors="replace") for junk in JUNK]
    assert {(row["id"], row["_uuid"], row["_producer"]) for row in damaged} == {(None,) * 3}


def test_dropmalformed_leaves_damage_out(address: str) -> None:
    """Plan: the same journal; and a message with a value that does not fit. Why: the whole record goes, as in Spark."""
    topic, _ = _damaged(address)
    writer = topic.writer()
    writer.append(writer.line(0, id="no number") + writer.line(0, id=99))

    _, rows = topic.batch(mode="DROPMALFORMED")

    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3, 10, 11, 12, 13, 99]


def test_value_that_does_not_fit_is_null_and_its_record_is_shown(address: str) -> None:
    """Plan: one wrong value among sound messages. Why: it is read as Spark's JSON source does, and can be found."""
    topic = Topic(address, 1)
    writer = topic.writer()
    writer.append(writer.line(0, id=1) + writer.line(0, id="x") + writer.line(0, id=2))

    _, rows = topic.batch(WITH_CORRUPT, mode="PERMISSIVE")

    assert [row["id"] for row in rows] == [1, None, 2]
    assert [row["_corrupt_record"] is None for row in rows] == [True, False, True]
    assert json.loads(rows[1]["_corrupt_record"])["id"] == "x"


def test_stream_passes_damage_by_once_and_repeats_alike(address: str) -> None:
    """Plan: micro-batches of few rows over a damaged journal, each asked for again by a new reader. Why: damage has no
    UUID, so it is outside of sequencing; its place alone must make it come in one batch, the same again.
    """
    topic, _ = _damaged(address)
    query = Query(topic, mode="PERMISSIVE", maxRowsPerTrigger=3)

    batches = query.trigger_to_the_end()

    assert len(batches) > 3
    ids = [each for batch in batches for each in batch]
    assert sorted(filter(lambda each: each is not None, ids)) == [0, 1, 2, 3, 10, 11, 12, 13]
    assert ids.count(None) == len(JUNK)  # type: ignore[arg-type]
    query.close()
    query.restart()
    assert [query.ids(batch) for batch in range(len(batches))] == batches
    query.close()


def test_raw_messages_are_bytes_that_nobody_decodes(address: str) -> None:
    """Plan: decode=false, with messages that no column could hold. Why: others decode them."""
    topic = Topic(address, 1)
    writer = topic.writer()
    lines = [writer.line(0, id={"deep": [index]}) for index in range(3)]
    writer.append(b"".join(lines))

    _, rows = topic.batch(with_metadata(RAW), decode="false", includeMetadata="true")

    assert [row["value"] + b"\n" for row in rows] == lines
    assert [row["_begin"] for row in rows] == [0, len(lines[0]), len(lines[0]) + len(lines[1])]
    assert {row["_producer"] for row in rows} == {f"{writer.producer:012x}"}
    assert infer_schema(topic.options(decode="false")) == RAW
    with pytest.raises(OptionError, match="value BINARY"):
        topic.batch(IDS, decode="false")


def _protobuf(count: int) -> list[bytes]:
    messages = [
        AppendRequest(journal=f"j{n}", offset=n, content=build_uuid(7 | 1 << 40, (1 << 50) + n, 0))
        for n in range(count)
    ]
    frame = framing_for(PROTOBUF_FIXED).frame
    encode = ProtobufType(AppendRequest, uuid_field="content").encode
    return [frame(encode(message)) for message in messages]


def test_lost_frames_are_one_damaged_record_and_the_rest_is_read(address: str) -> None:
    """Plan: length-prefixed messages with bytes of no frame, a length that leads nowhere and a payload that is none.
    Why: what lies between two sound frames is one record with its offsets.
    """
    topic = Topic(address, 1, content_type=PROTOBUF_FIXED)
    a, b, c, d = _protobuf(4)
    absurd = FIXED_MAGIC + b"\xff\xff\xff\x7f" + b"rest"
    no_message = framing_for(PROTOBUF_FIXED).frame(b"\xff\xff")
    content = a + b"junk of some bytes" + b + absurd + c + no_message + d
    topic.writer().append(content)
    schema = StructType(
        [
            StructField("offset", LongType()),
            StructField("_corrupt_record", BinaryType()),
        ]
    )
    options = {
        "messageType": "broadsheet.wire.journal_pb2:AppendRequest",
        "uuidField": "content",
        "mode": "PERMISSIVE",
    }

    _, rows = topic.batch(schema, **options)

    assert sorted(row["offset"] for row in rows if row["offset"] is not None) == [0, 1, 2, 3]
    assert [row["_corrupt_record"] for row in rows if row["_corrupt_record"] is not None] == [
        b"junk of some bytes",
        absurd,
        no_message,
    ]


def test_csv_record_that_was_cut_off_costs_no_other(address: str) -> None:
    """Plan: a record whose quote is not closed, then sound ones; and one with too few fields. Why: the open quote would
    take in all that follows.
    """
    topic = Topic(address, 1, content_type=CSV)
    kind = CsvType(columns=2)
    records = [["", "a", "1"], ["", "b", "2"], ["", "c\nd", "3"], ["", "e", "4"]]
    lines = []
    for number, record in enumerate(records):
        kind.set_uuid(record, build_uuid(7 | 1 << 40, (1 << 50) + number, 0))
        lines.append(kind.encode(record) + b"\n")
    cut = lines[1][:36] + b',"b\n'
    short = lines[3].replace(b",e,4", b",e")
    topic.writer().append(lines[0] + cut + lines[2] + short)
    schema = StructType(
        [
            StructField("text", StringType()),
            StructField("n", LongType()),
            StructField("_corrupt_record", StringType()),
        ]
    )

    _, rows = topic.batch(schema, mode="PERMISSIVE")

    assert _rows([r for r in rows if r["_corrupt_record"] is None], "text", "n") == [
        ("a", 1),
        ("c\nd", 3),
    ]
    shown = [row["_corrupt_record"] for row in rows if row["_corrupt_record"] is not None]
    assert sorted(shown) == sorted([cut.decode(), short.decode().rstrip("\n")])
