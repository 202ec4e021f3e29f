"""Spark's source: what it finds in a journal, and what its tasks decode, with damage read around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowMessage, ArrowType
from broadsheet.journals.content.csv import CSV
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.journals.content.registry import framing_for
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.codecs import tables_for, tolerant_decoder_for
from broadsheet.spark_bridge.journal_source.columns import RowColumns, with_metadata
from broadsheet.spark_bridge.journal_source.message_table import DAMAGED, MessageTable
from broadsheet.spark_bridge.journal_source.options import ReadMode, read_options
from tests.fuzz.arrow_seeds import arrow_messages
from tests.fuzz.decoder import FuzzedDecoder
from tests.fuzz.messages import CSV_JOURNAL, JSON_JOURNAL, PROTOBUF_JOURNAL

_OPTIONS: Final = replace(
    read_options(
        {
            "address": "http://127.0.0.1:1",
            "selector": "name=in/a",
            "messageType": "broadsheet.wire.journal_pb2:AppendRequest",
            "uuidField": "content",
        }
    ),
    mode=ReadMode.PERMISSIVE,
)
_CHUNK: Final = 11


def _columns(**kinds: DataType) -> RowColumns:
    fields = [StructField(name, kind) for name, kind in kinds.items()]
    fields.append(StructField("_corrupt_record", StringType()))
    return RowColumns(
        with_metadata(StructType(fields)), include_metadata=True, corrupt="_corrupt_record"
    )


def _reads(content_type: str, columns: RowColumns) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        table = _table(content_type, data, len(data) + 1)
        again = _table(content_type, data, _CHUNK)
        assert table.begins.tolist() == again.begins.tolist(), "it depends on how bytes arrive"
        assert table.flags.tolist() == again.flags.tolist(), "it depends on how bytes arrive"
        sound = table.select(table.flags != DAMAGED)
        if not len(sound):
            return
        places = zip(sound.begins.tolist(), sound.ends.tolist(), strict=True)
        pieces = [data[begin:end] for begin, end in places]
        starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)[:-1]
        content = FetchedContent("in/a", b"".join(pieces), starts, sound.begins)
        decoder = tolerant_decoder_for("in/a", content_type, options=_OPTIONS, columns=columns)
        assert decoder.whole_bytes(content.data) == len(content.data), "a frame is lost"
        rows = [row for batch in decoder.decode(content) for row in batch.to_pylist()]
        begins = set(sound.begins.tolist())
        assert {row["_begin"] for row in rows} <= begins, "a row stands where no message does"
        if content_type != ARROW_STREAM:
            assert len(rows) == len(sound), "a message is lost"

    return read


def _table(content_type: str, data: bytes, chunk: int) -> MessageTable:
    tables = tables_for("in/a", content_type, _OPTIONS)
    found = [tables.feed(data[at : at + chunk]) for at in range(0, len(data) + 1, chunk)]
    return MessageTable(
        *(
            np.concatenate([getattr(each, name) for each in found])
            for name in ("begins", "ends", "producers", "clocks", "flags")
        )
    )


def _arrow_journal() -> Sequence[bytes]:
    frame = framing_for(ARROW_STREAM).frame
    acknowledgement = ArrowType().encode(ArrowMessage(None, b"U" * 16))
    return [frame(payload) + frame(acknowledgement) for payload in arrow_messages()]


SPARK_DECODERS: Final = (
    FuzzedDecoder(
        "spark.json",
        JSON_JOURNAL,
        _reads(
            NDJSON,
            _columns(
                key=StringType(),
                n=IntegerType(),
                deep=ArrayType(StructType([StructField("x", ArrayType(DoubleType()))])),
            ),
        ),
        (),
        cost=4,
    ),
    FuzzedDecoder(
        "spark.csv", CSV_JOURNAL, _reads(CSV, _columns(text=StringType(), n=LongType())), ()
    ),
    FuzzedDecoder(
        "spark.protobuf",
        PROTOBUF_JOURNAL,
        _reads(PROTOBUF_FIXED, _columns(journal=StringType(), offset=LongType())),
        (),
        cost=4,
    ),
    FuzzedDecoder(
        "spark.arrow",
        _arrow_journal,
        _reads(
            ARROW_STREAM,
            _columns(texts0=LongType(), texts1=StringType(), times0=TimestampType()),
        ),
        (),
        cost=4,
    ),
)
