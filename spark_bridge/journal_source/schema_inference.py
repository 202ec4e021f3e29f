"""Infers the columns of messages for a reader that names none. Driver only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.json as pa_json
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import ContentTypeError
from broadsheet.journals.message.framing import ARROW_STREAM, CSV, NDJSON, PROTOBUF_FIXED
from broadsheet.journals.message.json_columns import doubles_of
from broadsheet.journals.message.json_tables import may_be_rounded, rounded_integer
from broadsheet.journals.message.types import json_uuid_of
from broadsheet.journals.transport import PATIENCE_SECONDS
from broadsheet.spark_bridge.brokers import open_client
from broadsheet.spark_bridge.content.arrow import read_arrow
from broadsheet.spark_bridge.content.frames import frames_in
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.codecs import protobuf_class
from broadsheet.spark_bridge.journal_source.columns import METADATA_TYPES, with_metadata
from broadsheet.spark_bridge.journal_source.journals import selected_journals
from broadsheet.spark_bridge.journal_source.message_types import columns_of, load_message_class
from broadsheet.spark_bridge.journal_source.options import ReadMode, ReadOptions, read_options
from broadsheet.spark_bridge.journal_source.raw_decoder import RAW_SCHEMA

SAMPLE_BYTES: Final = 1 << 20
"""Bytes sampled of each journal."""
SAMPLED_JOURNALS: Final = 8
_META: Final = "_meta"


def infer_schema(options: Mapping[str, Any]) -> StructType | str:
    """Return the columns of a read: those of the option, of the message type, or of the first messages.

    Raises:
        OptionError: an option is wrong, or there is nothing to infer columns from.
        ContentTypeError: the journals' content type cannot be read, or differs among them.
        ServiceError: the journals cannot be listed or read.
    """
    read = read_options(options)
    if read.schema is not None:
        # Columns are added to DDL as text, because only the JVM parses it.
        metadata = [f"{name} {kind.simpleString()}" for name, kind in METADATA_TYPES.items()]
        return ", ".join([read.schema, *(metadata if read.include_metadata else ())])
    if not read.decode:
        schema = RAW_SCHEMA
    elif read.message_type is not None:
        found = load_message_class(read.message_type)
        schema = columns_of(found, uuid_field=read.uuid_field)
    else:
        schema = asyncio.run(_sampled_schema(read))
    if read.adds_corrupt_column and read.mode is ReadMode.PERMISSIVE:
        schema = StructType([*schema.fields, StructField(read.corrupt_column, StringType())])
    return with_metadata(schema) if read.include_metadata else schema


async def _sampled_schema(options: ReadOptions) -> StructType:
    async with open_client(
        options.access, patience_seconds=PATIENCE_SECONDS, verify_first=False
    ) as client:
        journals = await selected_journals(client, options)
        kinds = sorted(set(journals.values()))
        if not journals:
            raise OptionError(
                "selector", "a selector of at least one journal", got=options.selector
            )
        if len(kinds) > 1:
            other = next(name for name, kind in journals.items() if kind == kinds[1])
            raise ContentTypeError(other, kinds[1], f"expected {kinds[0]!r}, as others of the read")
        if kinds[0] == PROTOBUF_FIXED:
            protobuf_class(next(iter(journals)), options)  # its message says what is missing
        if kinds[0] == CSV:
            raise OptionError("schema", "columns as DDL: CSV messages do not name theirs", got=None)
        if kinds[0] not in (NDJSON, ARROW_STREAM):
            raise ContentTypeError(next(iter(journals)), kinds[0], "its messages cannot be read")
        samples = await _samples(client, list(journals))
    infer = _infer_json if kinds[0] == NDJSON else _infer_arrow
    strict = options.mode is ReadMode.FAILFAST
    try:
        schema = infer(samples, strict=strict) if samples else StructType([])
    except ValueError as error:
        expected = f"columns as DDL, for the first messages cannot be read ({error})"
        raise OptionError("schema", expected, got=None) from error
    if not schema.fields:
        expected = "columns as DDL, such as 'id BIGINT, name STRING': there are no messages to find them by"
        raise OptionError("schema", expected, got=None)
    return schema


async def _samples(client: JournalClient, journals: list[str]) -> list[bytes]:
    """Return the beginnings of the first journals that are not empty."""
    samples: list[bytes] = []
    for name in journals:
        sample = await _sample(client, name)
        if sample:
            samples.append(sample)
        if len(samples) == SAMPLED_JOURNALS:
            break
    return samples


async def _sample(client: JournalClient, journal: str) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async with client.reader(journal, block=False) as reader:
        async for span in reader:
            chunks.append(span.content)
            size += len(span.content)
            if size >= SAMPLE_BYTES:
                break
    return b"".join(chunks)


def _infer_json(samples: list[bytes], *, strict: bool) -> StructType:
    lines = b"".join(
        line + b"\n"
        for sample in samples
        # The last line may be cut off by the size of the sample.
        for line in sample.split(b"\n")[:-1]
        if _is_message(line, json_uuid_of, strict=strict)
    )
    if not lines:
        return StructType([])
    try:
        sample = pa_json.read_json(pa.BufferReader(lines))
    except pa.ArrowInvalid as error:
        expected = f"columns as DDL, for the first messages do not agree ({error})"
        raise OptionError("schema", expected, got=None) from error
    found = sample.schema
    if any(map(may_be_rounded, doubles_of(sample))):
        _check_integers(lines, pa.struct(list(found)))
    return StructType(
        [StructField(f.name, from_arrow_type(_settled(f.type))) for f in found if f.name != _META]
    )


def _check_integers(lines: bytes, kind: pa.DataType) -> None:
    """Refuse integers that the inferred columns would round.

    Raises:
        OptionError: there is one.
    """
    for value in msgspec.json.Decoder().decode_lines(lines):
        if rounded := rounded_integer(value, kind):
            expected = f"columns as DDL, with DECIMAL(38, 0) or DOUBLE where {rounded}"
            raise OptionError("schema", expected, got=None)


def _is_message(payload: bytes, look: Callable[[bytes], object], *, strict: bool) -> bool:
    """Return whether a sample's message can be read; Arrow's parser would crash on endless brackets.

    Raises:
        ValueError: it cannot, and must not be skipped.
    """
    try:
        look(payload)
    except ValueError:
        if strict:
            raise
        return False
    return True


def _infer_arrow(samples: list[bytes], *, strict: bool) -> StructType:
    for sample in samples:
        for payload in frames_in(sample).payloads:
            if not _is_message(payload, read_arrow, strict=strict):
                continue
            found = read_arrow(payload).schema
            if found.names:
                return StructType(
                    [StructField(f.name, from_arrow_type(f.type), f.nullable) for f in found]
                )
    return StructType([])


def _settled(kind: pa.DataType) -> pa.DataType:
    """Return the column's type for an inferred one: times are strings, as in Spark's JSON source, and so are nulls."""
    if pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _settled(f.type)) for f in kind])
    return kind
