"""Spark rows of a content type that has no code of its own in Spark: encoded and decoded by its message type."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from broadsheet.journals.content.avro import AVRO, SCHEMA_LABEL, AvroType, schema_label
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.journals.message.uuid import Flags, parse_uuid
from broadsheet.spark_bridge.content.encoder import Encoder
from broadsheet.spark_bridge.content.registry import spark_content_of
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_sink.commit_record import (
    CommitAttempt,
    SinkTarget,
    publication_of,
)
from broadsheet.spark_bridge.journal_sink.commit_rules import QueryIdentity, check_same_batch
from broadsheet.spark_bridge.journal_sink.options import write_options
from broadsheet.spark_bridge.journal_sink.row_content import RowContent
from broadsheet.spark_bridge.journal_sink.stamps import Stamper
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.codecs import decoder_for
from broadsheet.spark_bridge.journal_source.columns import RowColumns, with_metadata
from broadsheet.spark_bridge.journal_source.options import read_options
from broadsheet.wire.labels import label_set

SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "tags", "type": ["null", {"type": "map", "values": "int"}]},
    ],
}
LABELS = label_set((SCHEMA_LABEL, schema_label(SCHEMA)))
ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": pa.array(["a", None, ""]),
        "at": pa.array([dt.datetime(2024, 2, 29, tzinfo=dt.UTC), None, None], pa.timestamp("us", tz="UTC")),
        "tags": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
    }
)  # fmt: skip
WRITE = write_options(
    {"address": "http://127.0.0.1:1", "selector": "topic=x", "etcd": "127.0.0.1:2"}
)
READ = read_options({"address": "http://127.0.0.1:1", "selector": "topic=x"})


def _encoder(rows: pa.RecordBatch = ROWS) -> Encoder:
    return spark_content_of(AVRO).encoder(from_arrow_schema(rows.schema), WRITE, LABELS)


def _content(data: bytes) -> FetchedContent:
    zero = np.zeros(1, dtype=np.int64)
    return FetchedContent("a/journal", data, zero, zero + 1_000)


def test_rows_content_comes_back_with_places_and_uuids() -> None:
    """A message for each stretch of rows, in the order asked for; each row knows its message's place."""
    stamper = Stamper(7)
    encoded = _encoder().encode(ROWS, [(0, 1), (1, 3)], stamper, np.array([2, 0, 1]))
    acknowledgement = _encoder().acknowledgement(stamper.stamp_acknowledgement())
    data = b"".join([*encoded.contents, acknowledgement])
    columns = RowColumns(with_metadata(from_arrow_schema(ROWS.schema)), include_metadata=True)

    decoder = decoder_for("a/journal", AVRO, options=READ, columns=columns)
    rows = decoder.decode(_content(data))

    assert encoded.messages == [1, 1]
    assert decoder.whole_bytes(data + data[:9]) == len(data)
    assert rows.column("id").to_pylist() == [3, 1, 2]
    assert rows.select(ROWS.schema.names).take(pa.array([1, 2, 0])).to_pylist() == ROWS.to_pylist()
    first_end = 1_000 + len(encoded.contents[0])
    assert rows.column("_begin").to_pylist() == [1_000, first_end, first_end]
    assert len(set(rows.column("_uuid").to_pylist())) == 2
    payloads = framing_for(AVRO).unframer(journal="", offset=0).feed(data).payloads
    flags = [parse_uuid(payload[:16])[2] for payload in payloads]
    assert flags == [Flags.CONTINUE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN]


def test_rows_content_value_that_does_not_fit_names_column_and_row() -> None:
    """By the row's place among those that were given, not in the order of writing."""
    rows = pa.record_batch({"id": pa.array([1, None, 3], pa.int64())})

    with pytest.raises(RowValueError) as raised:
        _encoder(rows).encode(rows, [(0, 3)], Stamper(7), np.array([2, 0, 1]))

    assert (raised.value.column, raised.value.row) == ("id", 1)


def test_rows_content_of_other_columns_is_refused_on_the_driver() -> None:
    """A column without a field would be dropped in silence; a field without a column cannot be filled."""
    with pytest.raises(PublishError, match=r"column other: messages of .* there are id, name"):
        _encoder(pa.record_batch({"id": [1], "other": ["a"]}))
    with pytest.raises(PublishError, match="column id: expected one"):
        _encoder(pa.record_batch({"name": ["a"]}))
    with pytest.raises(OptionError, match=f"option selector: .*{SCHEMA_LABEL}"):
        spark_content_of(AVRO).encoder(from_arrow_schema(ROWS.schema), WRITE, label_set())


def test_rows_content_columns_are_inferred_from_the_first_rows() -> None:
    """Acknowledgements have none, and damaged messages are skipped unless they must not be."""
    encoded = _encoder().encode(ROWS, [(0, 3)], Stamper(7))
    framing = framing_for(AVRO)
    infer = spark_content_of(AVRO).inference("a/journal", READ)
    damaged = framing.frame(b"u" * 16 + b"junk")
    sample = framing.frame(b"u" * 16) + damaged + bytes(encoded.contents[0])

    found = infer([sample], False)

    assert found.names == ROWS.schema.names
    assert infer([framing.frame(b"u" * 16)], True) == StructType([])
    with pytest.raises(ValueError, match="Object Container File"):
        infer([sample], True)


def test_rows_content_damaged_message_names_its_journal() -> None:
    """The decoder's own error, whatever its class, becomes one with the place."""
    columns = RowColumns(from_arrow_schema(ROWS.schema), include_metadata=False)
    data = framing_for(AVRO).frame(AvroType().encode(AvroType().new_acknowledgement("")) + b"junk")

    with pytest.raises(FramingError, match="a/journal"):
        decoder_for("a/journal", AVRO, options=READ, columns=columns).decode(_content(data))


def test_rows_content_record_tells_rows_from_messages() -> None:
    """Two messages of 500 rows are the same batch when they are repeated; compared as messages, they were another's."""
    attempt = CommitAttempt(
        messages=2, acknowledgement=b"ack", journals=("a/journal",), content=RowContent(500, 7)
    )
    record = publication_of([attempt], committed_at=1.0, batch=3)
    target = SinkTarget(selector="", journals=("a/journal",))
    identity = QueryIdentity(query="q", target=target)

    check_same_batch(record, identity, RowContent(500, 7))
    with pytest.raises(PublishError, match="with 500 rows; this run's 2 rows are others"):
        check_same_batch(record, identity, RowContent(2, 7))
