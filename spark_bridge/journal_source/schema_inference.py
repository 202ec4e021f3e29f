"""Infers the columns of messages for a reader that names none. Driver only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import StringType, StructField, StructType

from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import ContentTypeError
from broadsheet.journals.transport import PATIENCE_SECONDS
from broadsheet.spark_bridge.brokers import open_client
from broadsheet.spark_bridge.content.registry import spark_content_of
from broadsheet.spark_bridge.format_options import OptionError
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
        first = next(iter(journals))
        infer = spark_content_of(kinds[0], journal=first).inference(first, options)
        samples = await _samples(client, list(journals))
    strict = options.mode is ReadMode.FAILFAST
    try:
        schema = infer(samples, strict) if samples else StructType([])
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
