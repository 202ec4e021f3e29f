"""Selects a journal's codec by its content type: finding messages and UUIDs on the driver, and decoding them in tasks.

`broadsheet.spark_bridge.content.registry` has the record of each content type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broadsheet.spark_bridge.content.registry import RowDecoder, Tables, spark_content_of
from broadsheet.spark_bridge.journal_source.columns import RowColumns
from broadsheet.spark_bridge.journal_source.message_table import FrameTables
from broadsheet.spark_bridge.journal_source.options import ReadMode, ReadOptions

if TYPE_CHECKING:
    from broadsheet.spark_bridge.journal_source.damage import TolerantDecoder


def tables_for(journal: str, content_type: str, options: ReadOptions) -> Tables:
    """Return the finder of a journal's messages.

    Raises:
        ContentTypeError: messages of this type cannot be read.
        OptionError: the message type is needed for that, and is missing or wrong.
    """
    content = spark_content_of(content_type, journal=journal)
    read_around = options.mode is not ReadMode.FAILFAST
    if content.tables is not None:
        return content.tables(journal, read_around)
    uuid_of = content.uuid_of(journal, options)
    return FrameTables(journal, content_type, uuid_of, read_around=read_around)


def tolerant_decoder_for(
    journal: str, content_type: str, *, options: ReadOptions, columns: RowColumns
) -> TolerantDecoder:
    """Return the decoder of a journal's messages that treats undecodable ones as the mode says.

    Raises:
        ContentTypeError: messages of this type cannot be read.
        OptionError: an option or a column does not fit them.
    """
    from broadsheet.spark_bridge.journal_source.damage import TolerantDecoder

    inner = decoder_for(journal, content_type, options=options, columns=columns)
    return TolerantDecoder(inner, columns, content_type=content_type, mode=options.mode)


def decoder_for(
    journal: str, content_type: str, *, options: ReadOptions, columns: RowColumns
) -> RowDecoder:
    """Return the decoder of a journal's messages.

    Raises:
        ContentTypeError: messages of this type cannot be read.
        OptionError: an option or a column does not fit them.
    """
    content = spark_content_of(content_type, journal=journal)
    if options.decode:
        return content.decoder(journal, options, columns)
    from broadsheet.spark_bridge.journal_source.raw_decoder import RawDecoder

    uuid_of = content.uuid_of(journal, options)
    return RawDecoder(columns, content_type=content_type, uuid_of=uuid_of)
